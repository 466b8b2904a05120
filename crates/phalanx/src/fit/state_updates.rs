//! What a step leaves.

use phalanx_graph::{Graph, Sharding, Tensor};

use super::step::{StepProgram, explain};
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

    /// What was set so far stays as it was where the condition does not hold.
    pub(super) fn select_if(&mut self, condition: &Tensor) {
        for (old, new) in self.old.iter().zip(&mut self.new) {
            *new = new.take().map(|new| condition.select(&new, old));
        }
    }

    /// Cuts what was set, where the program is divided among devices, as what it replaces.
    pub(super) fn shard(&mut self, shardings: &[Sharding]) {
        for (new, sharding) in self.new.iter_mut().zip(shardings) {
            *new = new.take().map(|new| new.sharded(sharding));
        }
    }

    /// Number of arrays of the state.
    pub(super) const fn len(&self) -> usize {
        self.old.len()
    }

    /// The program, which may overwrite what it replaces; the totals follows the state in its arguments.
    pub(super) fn finish(&self, graph: &Graph, totals: &Tensor) -> Result<StepProgram> {
        self.program(graph, Some(totals))
    }

    /// The program that only replaces the state.
    pub(super) fn finish_state(&self, graph: &Graph) -> Result<StepProgram> {
        self.program(graph, None)
    }

    fn program(&self, graph: &Graph, totals: Option<&Tensor>) -> Result<StepProgram> {
        let changed: Vec<usize> = (0..self.new.len())
            .filter(|&index| self.new[index].is_some())
            .collect();
        let new = self.new.iter().flatten().map(|value| ("state", value));
        let totals = totals.map(|totals| ("tally", totals));
        let outputs: Vec<(&str, &Tensor)> = new.chain(totals).collect();
        let mut program = graph.finish(&outputs).map_err(explain)?;
        let replaced = changed.iter().copied().chain([self.old.len()]);
        program.donated = replaced.zip(0..outputs.len()).collect();
        Ok(StepProgram {
            program,
            apply: None,
            sent: Vec::new(),
            changed,
            disconnected: Vec::new(),
            staged: None,
            exchange: None,
        })
    }
}
