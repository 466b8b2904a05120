//! The gradients of one batch, for those who look at them: a program of its own, which changes nothing.

use phalanx_graph::HostTensor;
use phalanx_pjrt::Buffer;

use super::batch::{put, tensors};
use super::compiled_model::CompiledModel;
use super::divided_batch::DividedBatch;
use super::in_flight::InFlight;
use super::step_cache::StepKey;
use super::step_program::StepBuilder;
use super::step_times::StepPart;
use super::train_state::RunOf;
use crate::Result;
use crate::replicas::Layout;

impl CompiledModel {
    /// Whether gradients can be computed apart from a step: variables are neither on parameter servers nor in stages.
    pub(super) fn has_gradients(&self) -> bool {
        let is_whole = self.setup.layout.stage_plan().is_none();
        is_whole && self.placement.servers().is_none()
    }

    /// The names of the trained variables with the gradients that the next step would have of this batch: of the loss over the batch of
    /// all replicas and processes, which all call this, and before the optimizer clips them.
    pub(super) fn gradients(
        &mut self,
        first: &DividedBatch,
        flight: &mut InFlight,
    ) -> Result<Vec<(String, HostTensor)>> {
        // Processes compare their programs, which no running step may disturb.
        flight.finish(self.placement.engine())?;
        let key = StepKey::without_update(first.shape.clone());
        if !self.train.has(&key) {
            let before = self.clock.enter(StepPart::Compile);
            let traced = StepBuilder::new(&self.setup).gradients(&key.shape)?;
            let (placement, setup) = (&self.placement, &self.setup);
            (self.train).insert(placement, setup, "gradients", &key, traced)?;
            self.clock.enter(before);
        }
        let batch = tensors(&first.batch);
        let batch = put(&self.placement, batch, &first.partition, key.shape.filled)?;
        let copies = self.state.copies_of_all(&self.setup)?;
        let totals = self.state.zeros(&self.setup)?;
        let lists = self.state.arguments(copies.as_deref(), &totals, &batch)?;
        let program = self.train.get(&key)?.single_program()?;
        let (outputs, _) = self.state.run(program, &lists, RunOf::Nothing)?;
        let gradients = self.read_gradients(&outputs)?;
        if let Some(world) = self.placement.world() {
            world.check()?;
        }
        Ok(gradients)
    }

    fn read_gradients(&self, outputs: &[Vec<Buffer>]) -> Result<Vec<(String, HostTensor)>> {
        let variables = self.setup.model.variables();
        let trained = self.setup.state.trained.iter().enumerate();
        let read = |(output, &index): (usize, &usize)| {
            let variable = &variables[index];
            let parts: Vec<&Buffer> = outputs.iter().map(|of_one| &of_one[output]).collect();
            let value = match self.placement.layout() {
                Layout::Sharded(_) => self.state.read(&parts, index, &variable.shape),
                // Summed, so that any replica has them.
                _ => self.placement.engine().get(parts[0], &variable.shape),
            };
            Ok((variable.name.clone(), value?))
        };
        trained.map(read).collect()
    }
}
