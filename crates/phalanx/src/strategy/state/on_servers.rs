//! The part of a state that is on parameter servers: variables of models, and what their optimizer keeps.

use std::sync::Arc;

use phalanx_graph::HostTensor;

use super::{DRAWS, OptimizerRef, State, StateArray, ValueKind};
use crate::fit::LossScale;
use crate::optim::ParamSpec;
use crate::servers::{PulledValues, Servers, StateLayout};
use crate::{Error, Result};

/// Which entries of a state are on parameter servers.
pub(in crate::strategy) struct SharedEntries {
    servers: Arc<Servers>,
    /// In the order of the servers: variables, slots of the optimizer, the number of updates.
    entries: Vec<usize>,
    /// The entries that the optimizer updates.
    trained: Vec<usize>,
    /// The values that the devices have.
    pulled: Option<PulledValues>,
}

impl State {
    /// The position of an entry among the ones that are on servers.
    pub(in crate::strategy) fn shared_position(&self, entry: usize) -> Option<usize> {
        let shared = self.shared.as_ref()?;
        shared.entries.iter().position(|&own| own == entry)
    }

    /// Whether servers update an entry by their optimizer.
    pub(in crate::strategy) fn is_trained_on_servers(&self, entry: usize) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.trained.contains(&entry))
    }

    /// Refuses what servers cannot keep.
    pub(super) fn check_added(&self, what: &str, kind: ValueKind) -> Result<()> {
        if self.strategy.placement.servers().is_none() || kind != ValueKind::Replicated {
            return Ok(());
        }
        Err(Error::user(format!(
            "value `{what}` is to be the same everywhere, and parameter servers keep models and their optimizer alone; add it as another kind, which each worker has for itself, or pass it as an argument"
        )))
    }

    /// Refuses what comes after the optimizer, with which the state goes to the servers.
    pub(super) fn check_not_shared(&self, what: &str) -> Result<()> {
        if self.shared.is_none() {
            return Ok(());
        }
        Err(Error::user(format!(
            "{what} comes after the optimizer, with which the state went to the parameter servers; add all models first, and then the one optimizer"
        )))
    }

    /// Refuses a loss scale that servers do not keep.
    pub(super) fn check_scale(&self, loss_scale: Option<LossScale>) -> Result<()> {
        match (loss_scale, self.strategy.placement.servers()) {
            (Some(scale), Some(_)) => scale.check_on_servers(),
            _ => Ok(()),
        }
    }

    /// Places the variables of all models and what the optimizer keeps on the servers, where the strategy has some.
    pub(super) fn share(&mut self, optimizer: &OptimizerRef) -> Result<()> {
        let Some(servers) = self.strategy.placement.servers().cloned() else {
            return Ok(());
        };
        let is_variable = |&entry: &usize| self.entries[entry].kind == ValueKind::Replicated;
        let variables: Vec<usize> = (DRAWS + 1..optimizer.first).filter(is_variable).collect();
        let trained: Vec<usize> = optimizer.params.iter().map(|(_, entry)| *entry).collect();
        let slots = optimizer.optimizer.slots(&optimizer.specs());
        let first_slot = optimizer.first + 1;
        let kept = (first_slot..first_slot + slots.len()).chain([optimizer.first]);
        let entries: Vec<usize> = variables.iter().copied().chain(kept).collect();
        let values = entries.iter().map(|&entry| self.read(entry));
        let values: Vec<HostTensor> = values.collect::<Result<_>>()?;
        let spec = |&entry: &usize| {
            let of_it = optimizer.params.iter().find(|(_, own)| *own == entry);
            let of_entry = |entry: &StateArray| ParamSpec::new(&entry.name, entry.shape.clone());
            of_it.map_or_else(|| of_entry(&self.entries[entry]), |(spec, _)| spec.clone())
        };
        let specs = variables.iter().map(spec).collect();
        let position = |entry: &usize| variables.iter().position(|own| own == entry);
        let positions = trained.iter().filter_map(position).collect();
        let layout = |partitioner: &_, count| {
            StateLayout::new(
                specs,
                slots,
                positions,
                &optimizer.optimizer,
                (partitioner, count),
                Vec::new(),
            )
        };
        servers.create(layout, &values)?;
        for &entry in &entries[variables.len()..] {
            self.entries[entry].buffers.clear();
        }
        self.shared = Some(SharedEntries {
            servers,
            entries,
            trained,
            pulled: None,
        });
        Ok(())
    }

    /// Puts the newest values of the servers on the devices; nothing where the strategy has no servers.
    ///
    /// # Errors
    /// There is no optimizer yet, or the job has failed.
    pub(in crate::strategy) fn pull(&mut self) -> Result<Option<PulledValues>> {
        if self.strategy.placement.servers().is_none() {
            return Ok(None);
        }
        let Some(shared) = &self.shared else {
            return Err(Error::user(
                "the models of a state go to the parameter servers with their optimizer, and there is none; call `add_optimizer` first",
            ));
        };
        let values = shared.servers.values_of_step()?;
        if shared
            .pulled
            .as_ref()
            .is_some_and(|old| values.is_same(old))
        {
            return Ok(Some(values));
        }
        let pairs = shared.entries.iter().copied().zip(values.variables.iter());
        for (entry, value) in pairs.collect::<Vec<_>>() {
            self.entries[entry].buffers = self.placed(value, ValueKind::Replicated)?;
        }
        if let Some(shared) = &mut self.shared {
            shared.pulled = Some(values.clone());
        }
        Ok(Some(values))
    }

    /// Lets the random numbers of the next step follow from a number.
    pub(in crate::strategy) fn set_draws(&mut self, number: i64) -> Result<()> {
        let number = HostTensor::scalar(number);
        self.entries[DRAWS].buffers = self.placed(&number, ValueKind::Replicated)?;
        Ok(())
    }

    /// The value of an entry that the servers have.
    pub(super) fn read_shared(&self, entry: usize) -> Option<Result<HostTensor>> {
        let shared = self.shared.as_ref()?;
        let position = self.shared_position(entry)?;
        Some(shared.servers.state().map(|state| state[position].clone()))
    }

    /// Sets entries that the servers have, by the first worker; the others are left as they are.
    pub(in crate::strategy) fn write_shared<'v>(
        &self,
        values: impl IntoIterator<Item = (usize, &'v HostTensor)>,
    ) -> Result<()> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let mut state = shared.servers.state()?.to_vec();
        for (entry, value) in values {
            if let Some(position) = self.shared_position(entry) {
                state[position] = value.clone();
            }
        }
        shared.servers.set_state(&state)
    }
}
