//! What runs when a training step starts: its program, compiled if it is not yet, and its batch put on the devices.

use std::slice::Chunks;
use std::sync::Arc;

use phalanx_pjrt::Buffer;

use super::batch::{check_values, put, tensors};
use super::compiled_model::CompiledModel;
use super::divided_batch::DividedBatch;
use super::in_flight::InFlight;
use super::step_cache::StepKey;
use super::step_program::StepBuilder;
use super::step_times::StepPart;
use super::verify::ReplicaVerifier;
use crate::engine::PendingRun;
use crate::optim::WindowPart;
use crate::{Error, Result};

impl CompiledModel {
    /// These batches by programs: one for all where there are as many as an execution has, and of one shape.
    pub(super) fn programs<'b>(&self, batches: &'b [DividedBatch]) -> Chunks<'b, DividedBatch> {
        let is_alike = batches.windows(2).all(|two| two[0].shape == two[1].shape);
        let is_whole = batches.len() == self.setup.steps_per_execution;
        batches.chunks(if is_alike && is_whole {
            batches.len()
        } else {
            1
        })
    }

    /// Begins a program that was compiled for the next steps on these batches.
    pub(super) fn run_steps(
        &mut self,
        key: &StepKey,
        batches: &[DividedBatch],
        flight: &mut InFlight,
    ) -> Result<()> {
        self.clock.enter(StepPart::Transfer);
        let mut arrays: Vec<Vec<Buffer>> = Vec::new();
        for DividedBatch {
            batch, partition, ..
        } in batches
        {
            let more = put(&self.placement, tensors(batch), partition, key.shape.filled)?;
            arrays.resize_with(more.len(), Vec::new);
            for (list, more) in arrays.iter_mut().zip(more) {
                list.extend(more);
            }
        }
        self.clock.enter(StepPart::Compute);
        let done = self.begin_steps(key, &arrays)?;
        self.clock.steps_begun(&done, batches.len())?;
        if let Some(world) = self.placement.world() {
            self.own_times.watch(&done, world)?;
        }
        flight.push(self.placement.engine(), done, batches.len())?;
        self.verify(batches.len())
    }

    /// Checks batches of one shape, and compiles the program of the next steps on them if it is not yet.
    pub(super) fn compile_steps(
        &mut self,
        batches: &[DividedBatch],
        flight: &mut InFlight,
    ) -> Result<StepKey> {
        let (first, _) = batches
            .split_first()
            .ok_or_else(|| Error::Bug("steps without a batch".into()))?;
        for DividedBatch { batch, .. } in batches {
            check_values(&self.setup, batch)?;
        }
        let key = StepKey {
            shape: first.shape.clone(),
            parts: self.setup.window().parts(self.iterations, batches.len()),
        };
        if self.train.has(&key) {
            return Ok(key);
        }
        // Processes compare their programs, which no running step may disturb.
        flight.finish(self.placement.engine())?;
        let before = self.clock.enter(StepPart::Compile);
        let traced = StepBuilder::new(&self.setup).train_steps(&key.shape, &key.parts)?;
        let name = match *key.parts {
            [WindowPart::Inner] => "inner_step",
            [_] => "train_step",
            _ => "train_steps",
        };
        self.train
            .insert(&self.placement, &self.setup, name, &key, traced)?;
        self.clock.enter(before);
        self.begin_own_times();
        Ok(key)
    }

    /// Begins the next steps, whose program is compiled, on batches that are on the devices.
    pub(super) fn begin_steps(
        &mut self,
        key: &StepKey,
        batches: &[Vec<Buffer>],
    ) -> Result<Arc<PendingRun>> {
        let step = self.train.get(key)?;
        let done = self
            .state
            .train(&self.setup, step, batches, self.iterations)?;
        // Skipped steps are found out in `results`.
        self.iterations += key.parts.len() as i64;
        Ok(done)
    }

    /// Compares the replicas every `verify_every` steps, after these last ones.
    fn verify(&mut self, steps: usize) -> Result<()> {
        let Some(every) = self.placement.verify_every() else {
            return Ok(());
        };
        let is_copied =
            self.placement.local_replicas() > 1 && self.placement.layout().is_replicated();
        if !is_copied || !self.has_passed(every, steps) {
            return Ok(());
        }
        let verifier = match self.verifier.take() {
            Some(verifier) => verifier,
            None => ReplicaVerifier::new(&self.placement, &self.setup)?,
        };
        verifier.verify(&self.placement, &self.state, self.iterations)?;
        self.verifier = Some(verifier);
        Ok(())
    }

    /// Whether the count of batches came to a multiple of a number within these last steps.
    pub(super) fn has_passed(&self, every: u64, steps: usize) -> bool {
        let counted = self.iterations.unsigned_abs();
        counted / every > counted.saturating_sub(steps as u64) / every
    }
}
