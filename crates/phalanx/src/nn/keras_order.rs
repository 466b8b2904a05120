//! The order in which Keras keeps the layers of a model, by which its files number them.

use std::cmp::Reverse;

use super::keras_config::is_sequential;
use super::keras_graph::{KerasNode, keras_graph};
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
                    let kind = match is_sequential(model) {
                        true => "sequential",
                        false => "functional",
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

/// The layers as in Keras' `Model.layers`: those with the most calls and operations between them and the outputs first, and of equal
/// ones the one that a walk from the outputs finds first.
fn keras_order(model: &Model) -> Vec<usize> {
    let nodes = keras_graph(model);
    let mut walk = OutputWalk {
        nodes: &nodes,
        is_entered: vec![false; nodes.len()],
        left: Vec::with_capacity(nodes.len()),
        found: vec![usize::MAX; model.layers.len()],
        count: 0,
    };
    let made = |output: &Place| output.node.checked_sub(model.inputs.len());
    for output in model.outputs.iter().filter_map(made) {
        walk.from(output);
    }
    let depths = depths(&nodes, &walk.left, model.layers.len());
    let mut order: Vec<usize> = (0..model.layers.len()).collect();
    order.sort_by_key(|&layer| (Reverse(depths[layer]), walk.found[layer]));
    order
}

/// The most nodes between each of the `layers` and the outputs; in `left`, nodes come after what they take.
fn depths(nodes: &[KerasNode], left: &[usize], layers: usize) -> Vec<usize> {
    let mut of_nodes = vec![0; nodes.len()];
    let mut of_layers = vec![0; layers];
    for &at in left.iter().rev() {
        let mut depth = of_nodes[at];
        if let Some(layer) = nodes[at].layer {
            depth = depth.max(of_layers[layer]);
            of_layers[layer] = depth;
        }
        for &before in &nodes[at].takes {
            of_nodes[before] = of_nodes[before].max(depth + 1);
        }
    }
    of_layers
}

/// A walk from the outputs to the inputs, depth first.
struct OutputWalk<'n> {
    nodes: &'n [KerasNode],
    is_entered: Vec<bool>,
    /// The nodes, each after those whose results it takes.
    left: Vec<usize>,
    /// By layer, how many were found before it.
    found: Vec<usize>,
    count: usize,
}

impl OutputWalk<'_> {
    fn from(&mut self, output: usize) {
        // Nodes on the way, each with the number of inputs that were looked at: models can be too deep for a recursion.
        let mut way = Vec::new();
        way.extend(self.enter(output));
        while let Some((node, looked_at)) = way.last_mut() {
            let input = self.nodes[*node].takes.get(*looked_at).copied();
            *looked_at += 1;
            match input {
                Some(input) => way.extend(self.enter(input)),
                None => {
                    self.left.push(*node);
                    way.pop();
                }
            }
        }
    }

    /// The node, where it was not entered before.
    fn enter(&mut self, node: usize) -> Option<(usize, usize)> {
        if std::mem::replace(&mut self.is_entered[node], true) {
            return None;
        }
        let layer = self.nodes[node].layer;
        if let Some(found) = layer.map(|layer| &mut self.found[layer])
            && *found == usize::MAX
        {
            *found = self.count;
            self.count += 1;
        }
        Some((node, 0))
    }
}
