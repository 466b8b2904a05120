//! Windows of batches over which each replica adds its gradients by itself. See decision 39.

use super::setup::{Setup, StepLayout};
use crate::optim::WindowPart;

/// The batches over which each replica adds its gradients by itself, before the sums are exchanged and the variables updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccumulationWindow {
    /// `None` where every step exchanges what it has.
    steps: Option<u64>,
}

impl AccumulationWindow {
    pub(super) fn of(setup: &Setup) -> Self {
        let is_replicated = matches!(setup.layout, StepLayout::Replicated) && setup.replicas > 1;
        let is_local = is_replicated && !setup.loss_scale.is_dynamic();
        let steps = setup.optimizer.options().gradient_accumulation_steps;
        Self {
            steps: steps.filter(|_| is_local),
        }
    }

    /// The number of batches; `None` where every step exchanges what it has.
    pub(super) const fn steps(self) -> Option<u64> {
        self.steps
    }

    /// Which part of a window the step after this number of batches is.
    pub(super) fn part(self, iterations: i64) -> WindowPart {
        let is_inner = |steps| !(iterations.unsigned_abs() + 1).is_multiple_of(steps);
        match self.steps.is_some_and(is_inner) {
            true => WindowPart::Inner,
            false => self.last_part(),
        }
    }

    /// The same of each of some steps.
    pub(super) fn parts(self, iterations: i64, steps: usize) -> Vec<WindowPart> {
        (iterations..).take(steps).map(|at| self.part(at)).collect()
    }

    /// Which part of a window a step is that ends in an update.
    pub(super) const fn last_part(self) -> WindowPart {
        match self.steps {
            Some(_) => WindowPart::Last,
            None => WindowPart::Counted,
        }
    }
}
