//! Steps in stages, on the arrays of a training.

use std::collections::HashMap;
use std::rc::Rc;

use phalanx_graph::{DType, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::buffers::{Copies, StageBuffer};
use super::compile::{
    CompiledUpdate, CompiledWeights, PipelineStep, StagedProgram, UpdatePart, device_of,
};
use super::run::{PipelineRun, PipelineValues};
use super::trace::UpdateInput;
use super::{DeviceId, StageId, StagePlan, ValueId};
use crate::engine::PendingRun;
use crate::replicas::Placement;
use crate::{Error, Result};

/// The arrays of a training in stages, borrowed for a step.
pub(in crate::fit) struct BorrowedState<'a> {
    pub(in crate::fit) placement: &'a Placement,
    pub(in crate::fit) plan: &'a StagePlan,
    /// The stage of each array.
    pub(in crate::fit) stages: &'a [StageId],
    /// The first parameters of the program.
    pub(in crate::fit) arrays: Vec<&'a Buffer>,
    /// The parameters that follow, on the last stage: the epoch totals, but for a prediction.
    pub(in crate::fit) totals: Option<&'a Buffer>,
    /// The parameter that follows in a training step, on the first stage.
    pub(in crate::fit) seed: Option<&'a Buffer>,
    /// The parameters that follow, of each micro-batch, on the first stage.
    pub(in crate::fit) micro_batches: &'a [Vec<Buffer>],
}

/// What a training step in stages leaves.
pub(in crate::fit) struct PipelineOutputs {
    pub(in crate::fit) totals: Buffer,
    /// New arrays of the state, by their positions.
    pub(in crate::fit) arrays: HashMap<usize, Buffer>,
    pub(in crate::fit) done: PendingRun,
}

/// New values of parameters of the step.
type NewValues = HashMap<ValueId, Buffer>;

impl<'a> BorrowedState<'a> {
    fn start(&self, program: &'a StagedProgram) -> PipelineRun<'a> {
        let (first, last) = (
            device_of(self.placement, StageId(0)),
            device_of(self.placement, self.plan.last_stage()),
        );
        let arrays = self.arrays.iter().zip(self.stages);
        let arrays = arrays.map(|(&array, &stage)| (device_of(self.placement, stage), array));
        let totals = self.totals.map(|totals| (last, totals));
        let seed = self.seed.map(|seed| (first, seed));
        let shared = arrays.chain(totals).chain(seed).enumerate();
        let borrow = |device, buffer| Copies::on_one(device, StageBuffer::Borrowed(buffer));
        let shared: PipelineValues<'a> = shared
            .map(|(id, (device, buffer))| (ValueId(id), borrow(device, buffer)))
            .collect();
        let count = shared.len();
        let micro_batch = |tensors: &'a Vec<Buffer>| {
            let tensors = tensors.iter().enumerate();
            let value = |(at, buffer)| (ValueId(count + at), borrow(first, buffer));
            tensors.map(value).collect()
        };
        PipelineRun {
            engine: self.placement.engine(),
            program,
            shared,
            micro_batches: self.micro_batches.iter().map(micro_batch).collect(),
            done: None,
        }
    }

    /// The parameter that the epoch totals are.
    fn totals_id(&self) -> ValueId {
        ValueId(self.arrays.len())
    }

    /// Forward and backward for all micro-batches, then one update.
    pub(in crate::fit) fn train(&self, step: &'a PipelineStep) -> Result<PipelineOutputs> {
        let mut run = self.start(&step.micro_batch);
        if let Some(weights) = &step.weights {
            run.shared.extend(self.summed_weights(weights)?);
        }
        for zeros in &step.zeros {
            let buffer = StageBuffer::Borrowed(&zeros.buffer);
            run.shared
                .insert(zeros.value, Copies::on_one(zeros.device, buffer));
        }
        let before = run.shared.clone();
        run.run(self.plan.stages)?;
        // Micro-batches let go of what is shared, so that what they leave can be taken out below.
        run.micro_batches.clear();
        let (mut after, done) = (run.shared, run.done);
        let missing = || Error::Bug("a step in stages leaves too little".into());
        let (mut replaced, updated) = match &step.update {
            Some(update) => self.update(step, update, &before, &after)?,
            None => (NewValues::new(), None),
        };
        // What the update has not replaced is as the last micro-batch has carried it on.
        for carry in &step.micro_batch.carried {
            let id = carry.into;
            if id <= self.totals_id() && !replaced.contains_key(&id) {
                let carried = after.remove(&id).ok_or_else(missing)?;
                replaced.insert(id, carried.into_buffer()?);
            }
        }
        let totals = replaced.remove(&self.totals_id());
        let arrays = replaced.into_iter();
        Ok(PipelineOutputs {
            totals: totals.ok_or_else(missing)?,
            arrays: arrays.map(|(id, array)| (id.0, array)).collect(),
            done: updated.or(done).ok_or_else(missing)?,
        })
    }

    /// The weights of all micro-batches, by the parameters that they are.
    fn summed_weights(&self, weights: &'a CompiledWeights) -> Result<PipelineValues<'a>> {
        let (engine, first) = (
            self.placement.engine(),
            device_of(self.placement, StageId(0)),
        );
        let mut run = self.start(&weights.program);
        for &sum in &weights.sums {
            let zero = HostTensor::zeros(weights.program.shape(sum).clone());
            let zero = StageBuffer::Owned(engine.put(first.0, &zero)?);
            run.shared.insert(sum, Copies::on_one(first, zero));
        }
        run.run(self.plan.stages)?;
        run.shared.retain(|id, _| weights.sums.contains(id));
        Ok(run.shared)
    }

    /// The update of all stages, from the shared values before the first micro-batch and after the last.
    ///
    /// Invariant: all that any stage needs is on its device before the first stage runs, for each gives its old arrays
    /// up to its program.
    fn update(
        &self,
        step: &'a PipelineStep,
        update: &'a CompiledUpdate,
        before: &PipelineValues<'a>,
        after: &PipelineValues<'a>,
    ) -> Result<(NewValues, Option<PendingRun>)> {
        let (engine, program) = (self.placement.engine(), &step.micro_batch);
        let flags = self.finite_flags(step, update, after)?;
        let flag = Shape::scalar(DType::Bool);
        let fetch = |input: usize, device: DeviceId| match update.inputs[input] {
            UpdateInput::Before(id) => before[&id].on_device(engine, program.shape(id), device),
            UpdateInput::After(id) => after[&id].on_device(engine, program.shape(id), device),
            UpdateInput::Finite(output) => flags[&output].on_device(engine, &flag, device),
        };
        let mut inputs: Vec<Vec<Rc<StageBuffer<'a>>>> = Vec::new();
        for part in &update.apply {
            let of_part = part.inputs.iter();
            let of_part = of_part.map(|&input| fetch(input, part.device));
            inputs.push(of_part.collect::<Result<_>>()?);
        }
        let (mut arrays, mut last) = (NewValues::new(), None);
        for (part, inputs) in update.apply.iter().zip(&inputs).rev() {
            let (made, done) = part.run(inputs)?;
            arrays.extend(made);
            last = Some(done);
        }
        Ok((arrays, last))
    }

    /// Whether the gradients of each stage are finite, by the outputs of the program that says so.
    fn finite_flags(
        &self,
        step: &'a PipelineStep,
        update: &'a CompiledUpdate,
        after: &PipelineValues<'a>,
    ) -> Result<HashMap<usize, Copies<'a>>> {
        let (engine, program) = (self.placement.engine(), &step.micro_batch);
        let mut flags = HashMap::new();
        for part in &update.finite {
            let device = part.device;
            // The parameters of this program are the sums of gradients, in their order.
            let sums = part.inputs.iter().map(|&sum| {
                let id = step.zeros[sum].value;
                after[&id].on_device(engine, program.shape(id), device)
            });
            let sums = sums.collect::<Result<Vec<_>>>()?;
            let (made, _) = part.run(&sums)?;
            let made = made.into_iter();
            flags.extend(
                made.map(|(at, flag)| (at, Copies::on_one(device, StageBuffer::Owned(flag)))),
            );
        }
        Ok(flags)
    }

    /// Forward for all micro-batches; returns the epoch totals, which each carries on to the next.
    pub(in crate::fit) fn test(&self, step: &'a PipelineStep) -> Result<(Buffer, PendingRun)> {
        let mut run = self.start(&step.micro_batch);
        if let Some(weights) = &step.weights {
            run.shared.extend(self.summed_weights(weights)?);
        }
        run.run(self.plan.stages)?;
        run.micro_batches.clear();
        let none = || Error::Bug("a test in stages without a result".into());
        let totals = run.shared.remove(&self.totals_id()).ok_or_else(none)?;
        Ok((totals.into_buffer()?, run.done.ok_or_else(none)?))
    }

    /// Forward: the outputs of each micro-batch.
    pub(in crate::fit) fn predict(&self, step: &'a PipelineStep) -> Result<Vec<Vec<Buffer>>> {
        let mut run = self.start(&step.micro_batch);
        run.run(self.plan.stages)?;
        let outputs = &step.micro_batch.outputs;
        let engine = self.placement.engine();
        let of_micro_batch = |mut values: PipelineValues<'a>| {
            let outputs = outputs.iter().enumerate().map(|(at, id)| {
                // Two outputs may be one value.
                let found = match outputs[at + 1..].contains(id) {
                    true => values.get(id).cloned(),
                    false => values.remove(id),
                };
                let missing = || Error::Bug("an output of no stage".into());
                found
                    .ok_or_else(missing)?
                    .into_own(engine, step.micro_batch.shape(*id))
            });
            outputs.collect()
        };
        run.micro_batches.into_iter().map(of_micro_batch).collect()
    }
}

impl<T: Copy + Eq + std::hash::Hash> UpdatePart<T> {
    fn run(&self, inputs: &[Rc<StageBuffer<'_>>]) -> Result<(HashMap<T, Buffer>, PendingRun)> {
        let buffers: Vec<&Buffer> = inputs.iter().map(|input| input.buffer()).collect();
        let (outputs, done) = self.compiled.run(&[&buffers])?;
        let outputs = outputs.into_iter().flatten();
        let mut outputs: Vec<Option<Buffer>> = outputs.map(Some).collect();
        let made = self.makes.iter().map(|&(what, output)| {
            let new = outputs[output].take();
            let new = new.ok_or_else(|| Error::Bug("one new value for two".into()))?;
            Ok((what, new))
        });
        Ok((made.collect::<Result<_>>()?, done))
    }
}
