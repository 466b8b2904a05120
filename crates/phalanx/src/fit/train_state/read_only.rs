//! Tests and predictions, which change nothing.

use std::sync::Arc;

use phalanx_pjrt::Buffer;

use super::{RunOf, TrainState};
use crate::Result;
use crate::engine::PendingRun;
use crate::fit::in_flight::MOST_IN_FLIGHT;
use crate::fit::pipeline::BorrowedState;
use crate::fit::setup::Setup;
use crate::fit::step_cache::StepExecutable;

impl TrainState {
    /// Copies the variables to the replicas, where these have none.
    fn copy_variables(&mut self, setup: &Setup) -> Result<()> {
        self.arrays()?;
        if self.placement.parameter_device().is_some() && self.copies.is_empty() {
            let variables = setup.model.variables().iter().enumerate();
            let variables = variables.map(|(index, variable)| (index, variable.shape.clone()));
            self.copies = self.copied(&variables.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// The arrays of each replica, which begin with the variables; what a parameter device has was copied before.
    fn variables(&self) -> &[Vec<Buffer>] {
        match self.placement.parameter_device() {
            None => &self.arrays,
            Some(_) => &self.copies,
        }
    }

    /// Makes ready what a step takes that depends on the variables alone, once for as long as they stay.
    fn prepare(&mut self, setup: &Setup, step: &StepExecutable) -> Result<()> {
        self.copy_variables(setup)?;
        let Some(program) = step.preparation() else {
            return Ok(());
        };
        if self.arrays.prepared(program.fingerprint()).is_some() {
            return Ok(());
        }
        let count = setup.model.variables().len();
        let lists = self.variables().iter();
        let lists: Vec<Vec<&Buffer>> = lists
            .map(|arrays| arrays[..count].iter().collect())
            .collect();
        let (values, done) = self.run(program, &lists, RunOf::Nothing)?;
        // What could not be made is not kept for later steps.
        self.placement.engine().wait(&done, MOST_IN_FLIGHT + 1)?;
        self.arrays.keep_prepared(program.fingerprint(), values);
        Ok(())
    }

    /// Adds what was made ready for a step to the arguments of each replica.
    fn extend_by_prepared<'a>(&'a self, step: &StepExecutable, lists: &mut [Vec<&'a Buffer>]) {
        let program = step.preparation();
        let values = program.and_then(|program| self.arrays.prepared(program.fingerprint()));
        for (list, values) in lists.iter_mut().zip(values.unwrap_or_default()) {
            list.extend(values);
        }
    }

    /// Begins a test step; the sums go on in the totals returned.
    pub(in crate::fit) fn test(
        &mut self,
        setup: &Setup,
        step: &StepExecutable,
        totals: &[Buffer],
        batch: &[Vec<Buffer>],
    ) -> Result<(Vec<Buffer>, Arc<PendingRun>)> {
        let count = setup.model.variables().len();
        if let StepExecutable::Pipelined(step) = step {
            let state = BorrowedState {
                totals: totals.first(),
                ..self.borrow(setup, count, batch)?
            };
            let (totals, done) = state.test(step)?;
            return Ok((vec![totals], Arc::new(done)));
        }
        self.prepare(setup, step)?;
        let replicas = self.variables().iter().zip(totals).zip(batch);
        let mut lists: Vec<Vec<&Buffer>> = replicas
            .map(|((arrays, totals), batch)| {
                let variables = arrays[..count].iter();
                variables.chain([totals]).chain(batch).collect()
            })
            .collect();
        self.extend_by_prepared(step, &mut lists);
        let (outputs, done) = self.run(step.single_program()?, &lists, RunOf::Test)?;
        Ok((outputs.into_iter().flatten().collect(), done))
    }

    /// Begins a prediction: the outputs of each replica.
    pub(in crate::fit) fn predict(
        &mut self,
        setup: &Setup,
        step: &StepExecutable,
        x: &[Vec<Buffer>],
    ) -> Result<Vec<Vec<Buffer>>> {
        let count = setup.model.variables().len();
        if let StepExecutable::Pipelined(step) = step {
            return self.borrow(setup, count, x)?.predict(step);
        }
        self.prepare(setup, step)?;
        let mut lists: Vec<Vec<&Buffer>> = (self.variables().iter().zip(x))
            .map(|(arrays, x)| arrays[..count].iter().chain(x).collect())
            .collect();
        self.extend_by_prepared(step, &mut lists);
        let (outputs, _) = self.run(step.single_program()?, &lists, RunOf::Nothing)?;
        Ok(outputs)
    }
}
