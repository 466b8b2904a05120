//! What softmax and its logarithm are made of, on host processors: one call of `phalanx.softmax` for the maximum, the exponentials and the sum of
//! each row.

use std::collections::HashMap;

use super::kernels::call;
use super::writer::{Operand, Writer};
use crate::op::{BinaryOp, Node, Op, ReduceOp, UnaryOp, Value, any_node};
use crate::{DType, Program, Shape};

/// Elements from which a call gains more than it costs.
const MIN_ELEMENTS: usize = 1 << 16;
/// Numbers of a row from which the call's vectors are filled.
const MIN_COLUMNS: usize = 64;

/// The nodes of one softmax.
#[derive(Clone, Copy)]
struct Softmax {
    exponentials: usize,
    sum: usize,
}

/// Those of some nodes.
pub(super) struct Softmaxes {
    /// By their maxima.
    found: HashMap<usize, Softmax>,
    /// What calls gave for later nodes.
    given: HashMap<usize, Operand>,
}

impl Program {
    /// Whether this program has rows of which a call of `phalanx.softmax` is made.
    #[must_use]
    pub fn gains_from_host_softmax(&self) -> bool {
        let gains = |nodes: &[Node], node: &Node| match (&node.op, &node.inputs[..]) {
            (
                Op::Reduce {
                    kind: ReduceOp::Max,
                    dims,
                },
                &[x],
            ) => is_of_rows(nodes, x, dims) && !softmaxes(nodes).is_empty(),
            _ => false,
        };
        self.mesh.is_none() && any_node(&self.nodes, &gains)
    }
}

impl Softmaxes {
    pub(super) fn of(w: &Writer, nodes: &[Node]) -> Self {
        Self {
            found: if w.host_softmax {
                softmaxes(nodes)
            } else {
                HashMap::new()
            },
            given: HashMap::new(),
        }
    }

    /// The result of a node that belongs to one of these; a maximum is written with all that belongs to it.
    pub(super) fn lower(
        &mut self,
        w: &mut Writer,
        index: usize,
        inputs: &[Operand],
    ) -> Option<Operand> {
        if let Some(given) = self.given.remove(&index) {
            return Some(given);
        }
        let softmax = *self.found.get(&index)?;
        let x = &inputs[0];
        let rows = Shape::new(x.shape.dtype, &x.shape.dims[..x.shape.rank() - 1]);
        let outputs = [x.shape.clone(), rows.clone(), rows];
        let mut results = call(w, "phalanx.softmax", inputs, &outputs, Vec::new());
        let largest = results.pop();
        self.given
            .extend([softmax.exponentials, softmax.sum].into_iter().zip(results));
        largest
    }
}

/// Maxima of rows, each with the exponentials of the differences from it and the sums of these.
fn softmaxes(nodes: &[Node]) -> HashMap<usize, Softmax> {
    let mut maxima = HashMap::new();
    let mut spread = HashMap::new();
    let mut differences = HashMap::new();
    let mut exponentials = HashMap::new();
    let mut found = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        match (&node.op, &node.inputs[..]) {
            (
                Op::Reduce {
                    kind: ReduceOp::Max,
                    dims,
                },
                &[x],
            ) if is_of_rows(nodes, x, dims) => {
                maxima.insert(index, behind_barrier(nodes, x));
            }
            (Op::Broadcast { map, .. }, &[largest])
                if maxima.contains_key(&largest.node) && map.iter().copied().eq(0..map.len()) =>
            {
                spread.insert(index, largest.node);
            }
            (Op::Binary(BinaryOp::Sub), &[x, shift]) => {
                let largest = spread.get(&shift.node).copied();
                if let Some(largest) = largest.filter(|largest| maxima[largest] == x) {
                    differences.insert(index, largest);
                }
            }
            (Op::Unary(UnaryOp::Exp), &[x]) => {
                if let Some(&largest) = differences.get(&x.node) {
                    exponentials.insert(index, largest);
                }
            }
            (
                Op::Reduce {
                    kind: ReduceOp::Sum,
                    dims,
                },
                &[x],
            ) if is_of_rows(nodes, x, dims) => {
                if let Some(&largest) = exponentials.get(&x.node) {
                    let softmax = Softmax {
                        exponentials: x.node,
                        sum: index,
                    };
                    found.entry(largest).or_insert(softmax);
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether the last dim of enough numbers in f32 is reduced.
fn is_of_rows(nodes: &[Node], x: Value, dims: &[usize]) -> bool {
    let x = &nodes[x.node].shapes[x.output];
    let is_large = x.len() >= MIN_ELEMENTS && x.dims.last() >= Some(&MIN_COLUMNS);
    x.dtype == DType::F32 && x.rank() > 1 && is_large && *dims == [x.rank() - 1]
}

/// The value that a barrier passes on, if it is one.
fn behind_barrier(nodes: &[Node], value: Value) -> Value {
    match nodes[value.node].op {
        Op::OptimizationBarrier => nodes[value.node].inputs[value.output],
        _ => value,
    }
}
