//! What callbacks have kept of epochs that a process goes through again.

use serde_json::Value;

use super::{CallbackState, CallbackStates};
use crate::checkpoint::NamedTensors;

/// The variables after some epochs, from 0, as callbacks have kept them in a checkpoint.
#[derive(Default)]
pub(in crate::fit) struct KeptEpochs(Vec<(usize, NamedTensors)>);

impl KeptEpochs {
    /// Of a checkpoint whose training goes through epochs again from a place on at which callbacks remembered what `begun` has, as
    /// [`values_of`] gives it. That is what they remember now, or patience and the like would count epochs twice. Their tensors are the
    /// checkpoint's where these are of the same epoch; where the checkpoint has a better one, that comes again.
    pub(in crate::fit) fn take_from(
        states: &mut CallbackStates,
        begun: Vec<(String, Value)>,
    ) -> Self {
        let with_tensors = states.iter().filter(|(_, state)| !state.tensors.is_empty());
        let kept = with_tensors
            .filter_map(|(_, state)| Some((epoch_of(&state.values)?, state.tensors.clone())));
        let kept = kept.collect();
        let own = std::mem::take(states);
        let begun = begun.into_iter().map(|(name, values)| {
            let is_same = |state: &CallbackState| epoch_of(&state.values) == epoch_of(&values);
            let of_same = own
                .iter()
                .find(|(other, state)| *other == name && is_same(state));
            let tensors = of_same.map_or_else(Vec::new, |(_, state)| state.tensors.clone());
            (name, CallbackState { values, tensors })
        });
        *states = begun.collect();
        Self(kept)
    }

    pub(in crate::fit) fn find(&self, epoch: usize) -> Option<&NamedTensors> {
        let found = self.0.iter().find(|(own, _)| *own == epoch);
        found.map(|(_, variables)| variables)
    }
}

/// What callbacks remember but for tensors, without those whose tensors [`KeptEpochs`] does not know.
pub(in crate::fit) fn values_of(states: &CallbackStates) -> Vec<(String, Value)> {
    let is_known =
        |state: &CallbackState| state.tensors.is_empty() || epoch_of(&state.values).is_some();
    let known = states.iter().filter(|(_, state)| is_known(state));
    known
        .map(|(name, state)| (name.clone(), state.values.clone()))
        .collect()
}

/// The epoch that the tensors of a state with these values are of: of [`KeepBest`](super::KeepBest) or [`EarlyStopping`](super::EarlyStopping).
fn epoch_of(values: &Value) -> Option<usize> {
    let number = |key: &str| usize::try_from(values.get(key)?.as_u64()?).ok();
    number("best_epoch").or_else(|| number("epoch")?.checked_sub(1))
}
