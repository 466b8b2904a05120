//! Parts of a graph that derivatives compute again.

use std::collections::HashMap;
use std::ops::Range;

use super::Graph;
use crate::Tensor;
use crate::op::Value;
use crate::simplify::is_root;

/// Nodes that derivatives compute again; their inputs in so far as they were named.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) nodes: Range<usize>,
    pub(crate) inputs: Vec<Value>,
}

impl Graph {
    /// Builds something whose derivatives compute again from `inputs` what they need of it, where they would else keep
    /// it: less memory for more work. What `build` computes from other tensors is kept as usual; of nested calls the
    /// outermost counts.
    #[track_caller]
    pub fn checkpointed<T>(&self, inputs: &[&Tensor], build: impl FnOnce() -> T) -> T {
        let first = self.0.borrow().nodes.len();
        let result = build();
        if inputs.iter().any(|input| !self.owns(input)) {
            let message = "an input is of another graph; name tensors of the graph that is built";
            self.fail("checkpointed", message.into());
            return result;
        }
        let mut inner = self.0.borrow_mut();
        let nodes = first..inner.nodes.len();
        inner.regions.retain(|region| region.nodes.start < first);
        let inputs = inputs.iter().map(|input| input.value()).collect();
        inner.regions.push(Region { nodes, inputs });
        result
    }

    pub(crate) fn regions(&self) -> Vec<Region> {
        self.0.borrow().regions.clone()
    }

    /// The integers that nodes of a region take from outside.
    pub(crate) fn integers_from_outside(&self, region: &Region) -> Vec<Value> {
        let inner = self.0.borrow();
        let nodes = inner.nodes[region.nodes.clone()].iter();
        let taken = nodes.flat_map(|node| &node.inputs);
        let is_integer = |value: &&Value| {
            let shape = &inner.nodes[value.node].shapes[value.output];
            value.node < region.nodes.start && shape.dtype.is_integer()
        };
        taken.filter(is_integer).copied().collect()
    }

    /// Repeats the nodes of a region that depend on `values`, on what those are mapped to; returns the copies.
    pub(crate) fn repeat(
        &self,
        region: &Region,
        mut values: HashMap<Value, Value>,
    ) -> HashMap<usize, usize> {
        let mut copies = HashMap::new();
        for index in region.nodes.clone() {
            let mut node = self.node(index);
            if is_root(&node.op) || !node.inputs.iter().any(|input| values.contains_key(input)) {
                continue;
            }
            for input in &mut node.inputs {
                *input = values.get(input).copied().unwrap_or(*input);
            }
            let outputs = node.shapes.len();
            let mut inner = self.0.borrow_mut();
            inner.nodes.push(node);
            let copy = inner.nodes.len() - 1;
            copies.insert(index, copy);
            let at = |node, output| Value { node, output };
            values.extend((0..outputs).map(|output| (at(index, output), at(copy, output))));
        }
        copies
    }
}
