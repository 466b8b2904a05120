//! The state after a step.

use phalanx_graph::{Graph, Program, Sharding, Tensor};

use super::step_program::explain;
use crate::Result;

/// The state after a step; only what changes leaves the program.
pub(super) struct StateUpdates {
    old: Vec<Tensor>,
    new: Vec<Option<Tensor>>,
}

impl StateUpdates {
    pub(super) fn new(state: &[Tensor]) -> Self {
        Self {
            old: state.to_vec(),
            new: vec![None; state.len()],
        }
    }

    pub(super) fn set(&mut self, index: usize, value: &Tensor) {
        let same = self.old[index].value() == value.value();
        self.new[index] = (!same).then(|| value.clone());
    }

    /// Keeps the old value of all that was set so far where the condition does not hold.
    pub(super) fn select_if(&mut self, condition: &Tensor) {
        let changes = self.new.iter().zip(&self.old);
        let changes = changes.filter_map(|(new, old)| new.as_ref().map(|new| (new, old)));
        let changes: Vec<(&Tensor, &Tensor)> = changes.collect();
        let mut selected = condition
            .graph()
            .all_or_nothing(condition, &changes)
            .into_iter();
        for new in self.new.iter_mut().flatten() {
            if let Some(value) = selected.next() {
                *new = value;
            }
        }
    }

    /// Shards each new value like the array that it replaces.
    pub(super) fn shard(&mut self, shardings: &[Sharding]) {
        for (new, sharding) in self.new.iter_mut().zip(shardings) {
            *new = new.take().map(|new| new.sharded(sharding));
        }
    }

    /// The state after the step.
    pub(super) fn state(&self) -> Vec<Tensor> {
        let both = self.new.iter().zip(&self.old);
        both.map(|(new, old)| new.as_ref().unwrap_or(old).clone())
            .collect()
    }

    /// The same state after the step, as what changes of an earlier one.
    pub(super) fn since(&self, earlier: &[Tensor]) -> Self {
        let mut updates = Self::new(earlier);
        for (index, value) in self.state().iter().enumerate() {
            updates.set(index, value);
        }
        updates
    }

    /// The number of arrays of the state.
    pub(super) const fn len(&self) -> usize {
        self.old.len()
    }

    /// The program whose outputs are the changed arrays of the state and, where they are given, the epoch totals, which
    /// follow the state in its arguments; and the positions of the changed arrays. It may overwrite what it replaces.
    pub(super) fn finish(
        &self,
        graph: &Graph,
        totals: Option<&Tensor>,
    ) -> Result<(Program, Vec<usize>)> {
        let is_changed = |&index: &usize| self.new[index].is_some();
        let changed: Vec<usize> = (0..self.new.len()).filter(is_changed).collect();
        let new = self.new.iter().flatten().map(|value| ("state", value));
        let totals = totals.map(|totals| ("tally", totals));
        let outputs: Vec<(&str, &Tensor)> = new.chain(totals).collect();
        let mut program = graph.finish(&outputs).map_err(explain)?;
        let replaced = changed.iter().copied().chain([self.old.len()]);
        program.donated = replaced.zip(0..outputs.len()).collect();
        Ok((program, changed))
    }
}
