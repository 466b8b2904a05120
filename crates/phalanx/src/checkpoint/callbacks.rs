//! What callbacks remember, as the manifest and `callbacks.safetensors` have it.

use std::collections::HashSet;

use serde_json::Value;

use super::manifest::Manifest;
use super::{CallbackState, CallbackStates, NamedTensors};
use crate::storage::problem;
use crate::{Error, Result};

/// What is between the names of a callback and of a tensor.
const SEPARATOR: char = '/';

/// All tensors, under the name of their callback and their own; an error where a reader could not tell whose they are.
pub(super) fn tensors(states: &CallbackStates) -> Result<NamedTensors> {
    let mut known = HashSet::new();
    let mut all = NamedTensors::new();
    for (callback, state) in states {
        if callback.contains(SEPARATOR) && !state.tensors.is_empty() {
            return Err(Error::user(format!(
                "callback `{callback}` remembers tensors, and no checkpoint can have them under a name with `{SEPARATOR}`; let its `kind` be another"
            )));
        }
        for (tensor, value) in &state.tensors {
            let name = format!("{callback}{SEPARATOR}{tensor}");
            if !known.insert(name.clone()) {
                return Err(Error::user(format!(
                    "callback `{callback}` remembers two tensors `{tensor}`; give each a name of its own"
                )));
            }
            all.push((name, value.clone()));
        }
    }
    Ok(all)
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
