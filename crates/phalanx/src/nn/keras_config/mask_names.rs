//! Names of layers that Keras would give to operations on masks.
//!
//! Keras makes these operations again when it reads a model, and names them by counting on from what the session has seen: two of one
//! name, and it refuses the model.

use std::borrow::Cow;

use crate::nn::keras_graph::keras_graph;
use crate::nn::model::Model;

/// The names of Keras' operations on masks, which may have a number.
const OF_OPERATIONS: [&str; 8] = [
    "any",
    "concatenate",
    "convert_to_tensor",
    "expand_dims",
    "logical_or",
    "not_equal",
    "ones_like",
    "zeros_like",
];

/// The model, in which no layer has such a name where Keras finds masks.
pub(super) fn without_mask_names(model: &Model) -> Cow<'_, Model> {
    let mut layers = model.layers.iter();
    if !layers.any(|layer| is_of_operation(&layer.name))
        || keras_graph(model).len() == model.calls.len()
    {
        return Cow::Borrowed(model);
    }
    let mut renamed = model.clone();
    for at in 0..renamed.layers.len() {
        let name = &renamed.layers[at].name;
        if is_of_operation(name) {
            renamed.layers[at].name = unused(&renamed, format!("{name}_layer"));
        }
    }
    Cow::Owned(renamed)
}

/// The name, made longer until no layer or input has it.
fn unused(model: &Model, mut name: String) -> String {
    let is_taken = |name: &str| {
        model.layers.iter().any(|layer| layer.name == name)
            || model.inputs.iter().any(|input| input.name == name)
    };
    while is_taken(&name) {
        name.push('_');
    }
    name
}

/// Whether Keras names such an operation so.
fn is_of_operation(name: &str) -> bool {
    let kind = match name.rsplit_once('_') {
        Some((kind, number)) if number.parse::<u64>().is_ok() => kind,
        _ => name,
    };
    OF_OPERATIONS.contains(&kind)
}
