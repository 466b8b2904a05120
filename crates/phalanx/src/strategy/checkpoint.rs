//! The state of a custom training loop as a value, and as a checkpoint.

use std::collections::HashSet;

use super::State;
use crate::Result;
use crate::checkpoint::TrainingState;
use crate::data::Position;
use crate::fit::match_by_name;

impl State {
    /// All its values on the host, for [`TrainingState::save`]; waits for the steps begun. Of several processes all call this, and the
    /// first one saves.
    ///
    /// Of a value that replicas do not have in common it is what [`ValueKind`](super::ValueKind) says: the sum, the mean,
    /// or the value of the first replica.
    ///
    /// # Errors
    /// When a value was lost in a step that failed, or the device fails.
    pub fn training_state(&self) -> Result<TrainingState> {
        let names = self.unique_names().into_iter().enumerate();
        let values = names.map(|(entry, name)| Ok((name, self.read(entry)?)));
        let replicas = self.strategy.replicas();
        Ok(TrainingState::of_values(
            values.collect::<Result<_>>()?,
            self.seed,
            replicas,
        ))
    }

    /// As [`training_state`](Self::training_state), with the position in the data of a loop
    /// ([`DistributedIter::position`](super::DistributedIter::position)), which
    /// [`TrainingState::position`] gives back.
    ///
    /// # Errors
    /// As for [`training_state`](Self::training_state).
    pub fn training_state_at(&self, position: &Position) -> Result<TrainingState> {
        let mut state = self.training_state()?;
        state.manifest.position = position.clone();
        Ok(state)
    }

    /// Takes the values of a state to which the same was added in the same order, whatever the strategy and the number of
    /// replicas.
    ///
    /// # Errors
    /// When values are missing, too many or of other shapes; when the device fails. Nothing is changed then.
    pub fn set_training_state(&mut self, state: &TrainingState) -> Result<()> {
        let names = self.unique_names().into_iter().zip(&self.entries);
        let wanted = names.map(|(name, entry)| (name, entry.shape.clone()));
        let wanted: Vec<_> = wanted.collect();
        let values = match_by_name("the state", &wanted, state.variables())?;
        let (shared, own): (Vec<_>, Vec<_>) = (values.iter().enumerate())
            .partition(|(entry, _)| self.shared_position(*entry).is_some());
        let placed = own.into_iter().map(|(entry, value)| {
            let arrays = self.placed(value, self.entries[entry].kind)?;
            Ok((entry, arrays))
        });
        let placed: Vec<_> = placed.collect::<Result<_>>()?;
        self.finish_exchanges()?;
        self.write_shared(shared)?;
        for (entry, arrays) in placed {
            self.entries[entry].buffers = arrays;
        }
        self.seed = state.seed();
        Ok(())
    }

    /// Unique names of the entries; a second optimizer or metric of a kind gets a number.
    fn unique_names(&self) -> Vec<String> {
        let mut known = HashSet::new();
        let entries = self.entries.iter();
        let unique = entries.map(|entry| {
            let numbered = (2..).map(|number| format!("{}#{number}", entry.name));
            let mut names = std::iter::once(entry.name.clone()).chain(numbered);
            let name = names.find(|name| known.insert(name.clone()));
            name.unwrap_or_default()
        });
        unique.collect()
    }
}
