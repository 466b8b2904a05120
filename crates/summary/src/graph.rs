//! The graph of a model as TensorBoard's Graphs tab draws it.

use crate::message::Message;

/// A node of a graph. Names with slashes make boxes that open: `encoder/dense_1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphNode {
    /// Its name, unique in the graph.
    pub name: String,
    /// What it does, such as `Dense`.
    pub op: String,
    /// The names of the nodes whose results it takes.
    pub inputs: Vec<String>,
    /// The dims of its results, which edges show; `None` is a dim of any size.
    pub shapes: Vec<Vec<Option<usize>>>,
    /// Settings that the panel of the node shows, as texts.
    pub settings: Vec<(String, String)>,
}

/// A `GraphDef` of nodes.
pub(crate) fn graph_def(nodes: &[GraphNode]) -> Vec<u8> {
    Message::of(|graph| {
        for node in nodes {
            graph.message(1, |to| node_def(to, node));
        }
        graph.message(4, |versions| versions.integer(1, PRODUCER));
    })
}

/// The version of graphs that TensorFlow 2.21 writes.
const PRODUCER: u64 = 2474;

fn node_def(to: &mut Message, node: &GraphNode) {
    to.text(1, &node.name);
    to.text(2, &node.op);
    for input in &node.inputs {
        to.text(3, input);
    }
    for (name, value) in &node.settings {
        attribute(to, name, |value_of| value_of.text(2, value));
    }
    if !node.shapes.is_empty() {
        attribute(to, "_output_shapes", |value| {
            value.message(1, |list| {
                for shape in &node.shapes {
                    list.message(7, |to| dims(to, shape));
                }
            });
        });
    }
}

fn attribute(node: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    node.message(5, |entry| {
        entry.text(1, name);
        entry.message(2, fill);
    });
}

fn dims(to: &mut Message, shape: &[Option<usize>]) {
    for size in shape {
        // A size of -1 is any.
        let size = size.map_or(u64::MAX, |size| size as u64);
        to.message(2, |dim| dim.integer(1, size));
    }
}
