//! Micro-batches on their way through the stages.

use std::collections::HashMap;
use std::rc::Rc;

use phalanx_pjrt::Buffer;

use super::ValueId;
use super::buffers::{Copies, StageBuffer};
use super::compile::{CompiledPiece, StagedProgram};
use crate::engine::{Engine, PendingRun};
use crate::{Error, Result};

/// Values by their numbers.
pub(super) type PipelineValues<'a> = HashMap<ValueId, Copies<'a>>;

/// A run of a program in stages over the micro-batches of a batch.
pub(super) struct PipelineRun<'a> {
    pub(super) engine: &'a Engine,
    pub(super) program: &'a StagedProgram,
    /// What all micro-batches take, each as it is when it first needs it: the state, and what is carried on.
    pub(super) shared: PipelineValues<'a>,
    /// What one micro-batch has.
    pub(super) micro_batches: Vec<PipelineValues<'a>>,
    /// The run that was begun last.
    pub(super) done: Option<PendingRun>,
}

impl<'a> PipelineRun<'a> {
    /// Runs all pieces for all micro-batches: first all of them forward, then all of them backward, as in GPipe. `F2` is
    /// the forward pass of micro-batch 2, `B2` its backward pass:
    ///
    /// ```text
    ///  tick     0    1    2    3    4    5  |  0    1    2    3    4    5
    ///  stage 0  F0   F1   F2   F3           |            B0   B1   B2   B3
    ///  stage 1       F0   F1   F2   F3      |       B0   B1   B2   B3
    ///  stage 2            F0   F1   F2   F3 |  B0   B1   B2   B3
    /// ```
    ///
    /// Nothing here waits: the host hands pieces to the devices in this order, and a device runs a piece once its
    /// inputs are there. The order is what makes stages overlap, since a device takes its pieces in the order given.
    ///
    /// Invariant: on each stage micro-batch `m` comes before `m + 1`, in both directions. So what one micro-batch carries
    /// on to the next (epoch totals, state of layers, sums of gradients) is there when it is needed, and sums are
    /// added in the same order in every run.
    pub(super) fn run(&mut self, stages: usize) -> Result<()> {
        let micro_batches = self.micro_batches.len();
        // One direction in tests and predictions, two in training.
        let directions = self.program.pieces.len() / stages;
        for direction in 0..directions {
            for tick in 0..micro_batches + stages - 1 {
                // A step in the direction: backward, the first step is on the last stage.
                for step in 0..stages.min(tick + 1) {
                    let micro_batch = tick - step;
                    if micro_batch < micro_batches {
                        self.run_piece(direction * stages + step, micro_batch)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn run_piece(&mut self, at: usize, micro_batch: usize) -> Result<()> {
        let program = self.program;
        let piece = &program.pieces[at];
        // A piece without outputs has nothing to compute.
        if !piece.outputs.is_empty() {
            self.compute(piece, micro_batch)?;
        }
        if at + 1 == program.pieces.len() {
            // The micro-batch is through: only its results stay in memory, and what is carried on is shared.
            let is_result = |id| program.outputs.contains(&id) && !program.carries(id);
            self.micro_batches[micro_batch].retain(|id, _| is_result(*id));
        }
        Ok(())
    }

    fn compute(&mut self, piece: &'a CompiledPiece, micro_batch: usize) -> Result<()> {
        let inputs = piece.inputs.iter();
        let inputs: Vec<Rc<StageBuffer<'a>>> = inputs
            .map(|&id| self.fetch(micro_batch, id, piece))
            .collect::<Result<_>>()?;
        let buffers: Vec<&Buffer> = inputs.iter().map(|input| input.buffer()).collect();
        let (outputs, done) = piece.compiled.run(&[&buffers])?;
        for (&id, output) in piece.outputs.iter().zip(outputs.into_iter().flatten()) {
            let made = Copies::on_one(piece.device, StageBuffer::Owned(output));
            for carry in &self.program.carried {
                if carry.from == id {
                    self.shared.insert(carry.into, made.clone());
                }
            }
            self.micro_batches[micro_batch].insert(id, made);
        }
        self.done = Some(done);
        Ok(())
    }

    /// A value of a micro-batch on the device of a piece.
    ///
    /// A shared value is kept with the micro-batch at its first use: the backward pass of a micro-batch must see the
    /// values that its forward pass saw, although later micro-batches have carried on in between.
    fn fetch(
        &mut self,
        micro_batch: usize,
        id: ValueId,
        piece: &CompiledPiece,
    ) -> Result<Rc<StageBuffer<'a>>> {
        let copies = match self.micro_batches[micro_batch].get(&id) {
            Some(copies) => copies.clone(),
            None => {
                let shared = self.shared.get(&id).cloned();
                let shared = shared.ok_or_else(|| Error::Bug(format!("no value {id:?}")))?;
                self.micro_batches[micro_batch].insert(id, shared.clone());
                shared
            }
        };
        copies.on_device(self.engine, self.program.shape(id), piece.device)
    }
}
