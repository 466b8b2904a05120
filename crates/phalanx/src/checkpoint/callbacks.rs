//! What callbacks remember, as the manifest and `callbacks.safetensors` have it.

use serde_json::Value;

use super::manifest::Manifest;
use super::{CallbackState, CallbackStates, NamedTensors};
use crate::Result;
use crate::storage::problem;

/// What is between the names of a callback and of a tensor; no name of a callback has it.
const SEPARATOR: char = '/';

/// All tensors, under the name of their callback and their own.
pub(super) fn tensors(states: &CallbackStates) -> NamedTensors {
    let of_one = |(name, state): &(String, CallbackState)| {
        let tensors = state.tensors.iter();
        let named =
            tensors.map(|(tensor, value)| (format!("{name}{SEPARATOR}{tensor}"), value.clone()));
        named.collect::<Vec<_>>()
    };
    states.iter().flat_map(of_one).collect()
}

/// Everything else.
pub(super) fn values(states: &CallbackStates) -> Vec<(String, Value)> {
    let states = states.iter();
    states
        .map(|(name, state)| (name.clone(), state.values.clone()))
        .collect()
}

/// The states, from both; the manifest is left without them.
pub(super) fn states(manifest: &mut Manifest, tensors: NamedTensors) -> Result<CallbackStates> {
    let values = std::mem::take(&mut manifest.callbacks).into_iter();
    let mut states: CallbackStates = values
        .map(|(name, values)| {
            let tensors = Vec::new();
            (name, CallbackState { values, tensors })
        })
        .collect();
    for (name, value) in tensors {
        let parts = name.split_once(SEPARATOR);
        let state = parts.and_then(|(callback, tensor)| {
            let state = states.iter_mut().find(|(other, _)| other == callback)?;
            Some((&mut state.1, tensor))
        });
        let (state, tensor) = state.ok_or_else(|| {
            let message = format!("`{name}` is of no callback that the checkpoint has");
            problem("callbacks.safetensors", "names", message)
        })?;
        state.tensors.push((tensor.to_owned(), value));
    }
    Ok(states)
}
