//! The graph of a model as Keras 3 has it: calls of layers, and the operations by which it finds the masks of padding.
//!
//! These operations are no layers, but stand between layers, so that Keras' order of the layers depends on them. As of Keras 3.15, which
//! notes the mask that a layer is called with only where it is called with one value and nothing else.

use super::layer::{Body, Layer};
use super::model::{Call, Model, Place};
use super::recurrent::RECURRENT;

/// A call of a layer, or an operation on masks.
pub(super) struct KerasNode {
    /// Which layer is called.
    pub(super) layer: Option<usize>,
    /// The nodes whose results it takes, in Keras' order.
    pub(super) takes: Vec<usize>,
}

/// The calls of a model, in their order, and then the operations.
pub(super) fn keras_graph(model: &Model) -> Vec<KerasNode> {
    let takes = |call: &Call| {
        call.inputs
            .iter()
            .filter_map(|&place| maker(model, place))
            .collect()
    };
    let node = |call: &Call| KerasNode {
        layer: Some(call.layer),
        takes: takes(call),
    };
    let mut graph = MaskGraph {
        model,
        nodes: model.calls.iter().map(node).collect(),
        masks: Vec::with_capacity(model.calls.len()),
    };
    for at in 0..model.calls.len() {
        graph.call(at);
    }
    graph.nodes
}

/// The call that makes a value; none where it is an input.
fn maker(model: &Model, place: Place) -> Option<usize> {
    place.node.checked_sub(model.inputs.len())
}

/// A graph on its way.
struct MaskGraph<'m> {
    model: &'m Model,
    nodes: Vec<KerasNode>,
    /// The operation that makes the mask of each call's result, of those that were looked at.
    masks: Vec<Option<usize>>,
}

impl MaskGraph<'_> {
    fn call(&mut self, at: usize) {
        let model = self.model;
        let call = &model.calls[at];
        let mask = |place: &Place| {
            let before = maker(model, *place)?;
            // States of a recurrent layer have none.
            let is_model = matches!(model.layers[model.calls[before].layer].body, Body::Model(_));
            self.masks[before].filter(|_| is_model || place.output == 0)
        };
        let given: Vec<Option<usize>> = call.inputs.iter().map(mask).collect();
        let (takes_masks, made) = match &model.layers[call.layer].body {
            Body::Model(_) => (true, None),
            Body::Layer { layer, .. } => {
                let is_alone = call.inputs.len() == 1;
                let kind = layer.kind();
                let takes_masks = is_alone && (is_recurrent(kind) || TAKE_MASKS.contains(&kind));
                (takes_masks, self.mask_of(at, layer.as_ref(), &given))
            }
        };
        if takes_masks {
            self.nodes[at].takes.extend(given.into_iter().flatten());
        }
        self.masks.push(made);
    }

    /// The mask of what a call makes, by its inputs' masks.
    fn mask_of(&mut self, at: usize, layer: &dyn Layer, given: &[Option<usize>]) -> Option<usize> {
        let first = given.first().copied().flatten();
        match layer.kind() {
            "masking" => {
                let differs = self.operation(self.nodes[at].takes.clone());
                Some(self.operation(vec![differs]))
            }
            "reversible_embedding" if self.model.is_reversed(&self.model.calls[at]) => None,
            "embedding" | "reversible_embedding" => {
                let is_masked = layer.config()["mask_zero"] == true;
                is_masked.then(|| self.operation(self.nodes[at].takes.clone()))
            }
            "add" | "subtract" | "multiply" | "average" | "maximum" | "minimum" => {
                let all: Option<Vec<usize>> = given.iter().copied().collect();
                let either = |mask, next| self.operation(vec![mask, next]);
                all?.into_iter().reduce(either)
            }
            "concatenate" => self.joined(at, given),
            "attention" | "additive_attention" => first.map(|mask| self.operation(vec![mask])),
            kind if is_recurrent(kind) => {
                let sequence = self.model.shape_at(self.model.calls[at].inputs[0]);
                let has_steps = self.model.shapes[at][0].rank() == sequence.rank();
                first.filter(|_| has_steps)
            }
            "layer_scale" | "rms_norm" | "spectral_norm" | "stochastic_depth" => None,
            _ => first.filter(|_| layer.keeps_mask()),
        }
    }

    /// The mask of values that are joined, some of which have one.
    fn joined(&mut self, at: usize, given: &[Option<usize>]) -> Option<usize> {
        if given.iter().all(Option::is_none) {
            return None;
        }
        let model = self.model;
        let mut masks = Vec::new();
        for (place, mask) in model.calls[at].inputs.iter().zip(given) {
            // Ones for a value without a mask, and zeros to stretch the mask of another.
            let like = self.operation(maker(model, *place).into_iter().collect());
            masks.push(match mask {
                Some(mask) => {
                    let stretched = self.operation(vec![*mask]);
                    self.operation(vec![stretched, like])
                }
                None => like,
            });
        }
        let joined = self.operation(masks);
        Some(self.operation(vec![joined]))
    }

    fn operation(&mut self, takes: Vec<usize>) -> usize {
        self.nodes.push(KerasNode { layer: None, takes });
        self.nodes.len() - 1
    }
}

/// The kinds of layers beside recurrent ones that Keras calls with the mask of their input.
const TAKE_MASKS: [&str; 3] = ["batch_norm", "global_average_pool1d", "time_distributed"];

/// Whether a layer of a kind takes steps, in one direction or in both.
fn is_recurrent(kind: &str) -> bool {
    kind == "bidirectional" || RECURRENT.contains(&kind)
}
