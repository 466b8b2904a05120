//! What callbacks have kept of epochs that a process goes through again.

use super::{CallbackState, CallbackStates};
use crate::checkpoint::NamedTensors;

/// The variables after some epochs, from 0, as callbacks have kept them in a checkpoint.
#[derive(Default)]
pub(in crate::fit) struct KeptEpochs(Vec<(usize, NamedTensors)>);

impl KeptEpochs {
    /// Of a checkpoint whose training goes through all epochs from `first` on again. What stays of the states is the best of the epochs
    /// before: patience and the like would count epochs twice.
    pub(in crate::fit) fn take_from(states: &mut CallbackStates, first: usize) -> Self {
        let kept = states.iter().filter_map(|(_, state)| {
            let epoch = epoch_of(state)?;
            Some((epoch, state.tensors.clone()))
        });
        let kept = kept.collect();
        let is_before = |state: &CallbackState| epoch_of(state).is_some_and(|epoch| epoch < first);
        states.retain(|(name, state)| name == "keep_best" && is_before(state));
        Self(kept)
    }

    pub(in crate::fit) fn find(&self, epoch: usize) -> Option<&NamedTensors> {
        let found = self.0.iter().find(|(own, _)| *own == epoch);
        found.map(|(_, variables)| variables)
    }
}

/// The epoch that the tensors of a state are of: of [`KeepBest`](super::KeepBest) or [`EarlyStopping`](super::EarlyStopping).
fn epoch_of(state: &CallbackState) -> Option<usize> {
    if state.tensors.is_empty() {
        return None;
    }
    let number = |key: &str| usize::try_from(state.values.get(key)?.as_u64()?).ok();
    number("best_epoch").or_else(|| number("epoch")?.checked_sub(1))
}
