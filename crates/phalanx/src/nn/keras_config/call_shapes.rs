//! What the dims of values are where layers are called.

use phalanx_graph::{DType, Shape};
use serde_json::Value;

use super::Settings;
use crate::nn::model::{Model, Place};

/// Dims of an example of a value, and its type.
pub(super) fn dims_of(model: &Model, place: Place) -> (&[usize], DType) {
    match place.node.checked_sub(model.inputs.len()) {
        None => {
            let Shape { dims, dtype } = &model.inputs[place.node].shape;
            (&dims[..], *dtype)
        }
        Some(call) => {
            let Shape { dims, dtype } = &model.shapes[call][place.output];
            (&dims[1..], *dtype)
        }
    }
}

/// Whether a layer is given something of other dims than it gives.
pub(super) fn changes_dims(model: &Model, at: usize) -> bool {
    let calls = model.calls.iter().zip(&model.shapes);
    let mut own = calls.filter(|(call, _)| call.layer == at);
    own.any(|(call, shapes)| dims_of(model, call.inputs[0]).0 != &shapes[0].dims[1..])
}

/// The dims of what a layer gives in each of its calls, with the batch.
fn given(model: &Model, at: usize) -> impl Iterator<Item = &[usize]> {
    let calls = model.calls.iter().zip(&model.shapes);
    let own = calls.filter(move |(call, _)| call.layer == at);
    own.filter_map(|(_, shapes)| Some(&*shapes.first()?.dims))
}

/// The last dim of what a layer gives where it is called.
pub(super) fn channels(model: &Model, at: usize) -> usize {
    let last = given(model, at).next().and_then(<[usize]>::last);
    last.copied().unwrap_or_default()
}

/// The sizes of the dims of the output that a layer's equation names, where they are known and the same in all calls: of those that are not said Keras
/// knows none behind the layer.
pub(super) fn named_sizes(model: &Model, at: usize, settings: &Settings) -> Option<Value> {
    let equation = settings.get("equation")?.as_str()?;
    let count = settings.get("output_shape")?.as_array()?.len();
    let mut calls = given(model, at);
    let dims = calls.next()?;
    let differ = calls.any(|other| other != dims);
    let is_open = model.inputs.iter().any(|input| input.open > 0);
    let first = match equation.starts_with('.') {
        true => dims.len().checked_sub(count)?,
        false => 1,
    };
    let named = dims.get(first..first + count)?;
    (!differ && !is_open).then(|| named.into())
}
