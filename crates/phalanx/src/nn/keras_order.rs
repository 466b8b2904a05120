//! The order in which Keras keeps the layers of a model, by which its files number them.

use std::cmp::Reverse;

use super::layer::Body;
use super::model::{Model, Place};

impl Model {
    /// Path and kind of every layer in Keras' order; a model inside, a `sequential` or a `functional` one, comes before its layers, and a layer
    /// before the one that it wraps.
    pub(crate) fn layer_kinds(&self) -> Vec<(String, &'static str)> {
        let mut kinds = Vec::new();
        for entry in keras_order(self).into_iter().map(|at| &self.layers[at]) {
            match &entry.body {
                Body::Layer { layer, .. } => {
                    let (mut path, mut layer) = (entry.name.clone(), layer.as_ref());
                    kinds.push((path.clone(), layer.kind()));
                    while let Some(wrapped) = layer.wrapped() {
                        path.push_str("/layer");
                        kinds.push((path.clone(), wrapped.kind()));
                        layer = wrapped;
                    }
                }
                Body::Model(model) => {
                    let kind = if model.is_stack() {
                        "sequential"
                    } else {
                        "functional"
                    };
                    kinds.push((entry.name.clone(), kind));
                    let inner = model.layer_kinds().into_iter();
                    kinds
                        .extend(inner.map(|(path, kind)| (format!("{}/{path}", entry.name), kind)));
                }
            }
        }
        kinds
    }
}

/// The layers as in Keras' `Model.layers`: those with the most calls between them and the outputs first, and of equal ones the one
/// that a walk from the outputs finds first.
fn keras_order(model: &Model) -> Vec<usize> {
    let mut walk = OutputWalk {
        model,
        is_entered: vec![false; model.calls.len()],
        left: Vec::with_capacity(model.calls.len()),
        found: vec![usize::MAX; model.layers.len()],
        count: 0,
    };
    for output in &model.outputs {
        walk.from(output);
    }
    let depths = depths(model, &walk.left);
    let mut order: Vec<usize> = (0..model.layers.len()).collect();
    order.sort_by_key(|&layer| (Reverse(depths[layer]), walk.found[layer]));
    order
}

/// The most calls between each layer and the outputs; `calls` come after what they take.
fn depths(model: &Model, calls: &[usize]) -> Vec<usize> {
    let mut of_calls = vec![0; model.calls.len()];
    let mut of_layers = vec![0; model.layers.len()];
    for &at in calls.iter().rev() {
        let call = &model.calls[at];
        let depth = of_layers[call.layer].max(of_calls[at]);
        of_layers[call.layer] = depth;
        for before in call.inputs.iter().filter_map(|input| call_of(model, input)) {
            of_calls[before] = of_calls[before].max(depth + 1);
        }
    }
    of_layers
}

/// The call that makes a value; none where it is an input.
fn call_of(model: &Model, place: &Place) -> Option<usize> {
    place.node.checked_sub(model.inputs.len())
}

/// A walk from the outputs to the inputs, depth first.
struct OutputWalk<'m> {
    model: &'m Model,
    is_entered: Vec<bool>,
    /// The calls, each after those whose results it takes.
    left: Vec<usize>,
    /// By layer, how many were found before it.
    found: Vec<usize>,
    count: usize,
}

impl OutputWalk<'_> {
    fn from(&mut self, output: &Place) {
        // Calls on the way, each with the number of inputs that were looked at: models can be too deep for a recursion.
        let mut way = Vec::new();
        way.extend(self.enter(output));
        while let Some((call, looked_at)) = way.last_mut() {
            let model = self.model;
            let input = model.calls[*call].inputs.get(*looked_at);
            *looked_at += 1;
            match input {
                Some(input) => way.extend(self.enter(input)),
                None => {
                    self.left.push(*call);
                    way.pop();
                }
            }
        }
    }

    /// The call that makes this value, where it was not entered before.
    fn enter(&mut self, place: &Place) -> Option<(usize, usize)> {
        let call = call_of(self.model, place)?;
        if std::mem::replace(&mut self.is_entered[call], true) {
            return None;
        }
        let found = &mut self.found[self.model.calls[call].layer];
        if *found == usize::MAX {
            *found = self.count;
            self.count += 1;
        }
        Some((call, 0))
    }
}
