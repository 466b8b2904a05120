//! The order in which Keras keeps the layers of a model, by which its files number them.

use std::cmp::Reverse;

use super::keras_config::{is_sequential, is_written_as_stack};
use super::keras_graph::{KerasNode, keras_graph};
use super::layer::Body;
use super::model::{Model, NamedLayer, Place};

/// A Keras that describes models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KerasVersion {
    Two,
    Three,
}

impl KerasVersion {
    pub(super) const fn of(number: u64) -> Option<Self> {
        match number {
            2 => Some(Self::Two),
            3 => Some(Self::Three),
            _ => None,
        }
    }

    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// A file of Keras, in which layers are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KerasFile {
    /// One that is read: it is as the model was described, by whatever Keras.
    Read,
    /// Weights for the model in Keras 3, which has it as Keras 3 described it.
    Weights,
    /// The whole model as it is here.
    Archive,
}

impl Model {
    /// Whether Keras described it, or a model in it, whose layers have the names of that description.
    pub(crate) fn is_of_keras(&self) -> bool {
        let inside = |entry: &NamedLayer| match &entry.body {
            Body::Layer { .. } => false,
            Body::Model(model) => model.is_of_keras(),
        };
        self.of_keras.is_some() || self.layers.iter().any(inside)
    }

    /// Path and kind of every layer in Keras' order; a model inside, a `sequential` or a `functional` one, comes before its layers, and a layer
    /// before the one that it wraps.
    pub(crate) fn layer_kinds(&self, file: KerasFile) -> Vec<(String, &'static str)> {
        let mut kinds = Vec::new();
        for entry in self.order_in(file).into_iter().map(|at| &self.layers[at]) {
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
                    let is_stack = match file {
                        KerasFile::Archive => is_written_as_stack(model),
                        _ => is_sequential(model) && model.of_keras.is_none(),
                    };
                    let kind = match is_stack {
                        true => "sequential",
                        false => "functional",
                    };
                    kinds.push((entry.name.clone(), kind));
                    let inner = model.layer_kinds(file).into_iter();
                    kinds
                        .extend(inner.map(|(path, kind)| (format!("{}/{path}", entry.name), kind)));
                }
            }
        }
        kinds
    }

    /// The layers as Keras numbers them in such a file. A description says it better than its graph here, where layers stand for operations and
    /// others take masks off, and whatever a version of Keras counts.
    fn order_in(&self, file: KerasFile) -> Vec<usize> {
        match (self.of_keras, file) {
            (Some(_), KerasFile::Read) | (Some(KerasVersion::Three), KerasFile::Weights) => {
                (0..self.layers.len()).collect()
            }
            _ => keras_order(self),
        }
    }
}

/// The layers as in Keras' `Model.layers`: those with the most calls and operations between them and the outputs first, and of equal
/// ones the one that a walk from the outputs finds first.
pub(super) fn keras_order(model: &Model) -> Vec<usize> {
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
