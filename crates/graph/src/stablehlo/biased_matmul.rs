//! Products to whose columns a bias is added, and which nothing else uses: both are one call of `phalanx.product`, which saves a pass over the
//! result.

use std::collections::HashMap;

use super::host_matmul::{host_matmul, is_call};
use super::writer::{Operand, Writer};
use crate::op::{BinaryOp, DotDims, Node, Op, Value};
use crate::{DType, Shape};

/// Those of some nodes.
pub(super) struct BiasedProducts {
    /// The bias, and the product, of each sum.
    sums: HashMap<usize, (usize, Value)>,
    /// Whether a node is such a product, which is written with its sum.
    delayed: Vec<bool>,
}

impl BiasedProducts {
    /// `uses` has how often each node is used.
    pub(super) fn of(w: &Writer, nodes: &[Node], uses: &[usize]) -> Self {
        let sums = (0..nodes.len()).filter_map(|index| {
            let (product, bias) = biased(w, nodes, index)?;
            (uses[product] == 1).then_some((index, (product, bias)))
        });
        let sums: HashMap<_, _> = sums.collect();
        let mut delayed = vec![false; nodes.len()];
        for (product, _) in sums.values() {
            delayed[*product] = true;
        }
        Self { sums, delayed }
    }

    /// Whether a node is written with a later one.
    pub(super) fn is_delayed(&self, index: usize) -> bool {
        self.delayed[index]
    }

    /// What a node is written from.
    pub(super) fn inputs(&self, nodes: &[Node], index: usize) -> Vec<Value> {
        let Some((product, bias)) = self.sums.get(&index) else {
            return nodes[index].inputs.clone();
        };
        [&nodes[*product].inputs[..], &[*bias]].concat()
    }

    /// The sum at a place, where it is one of these.
    pub(super) fn lower(
        &self,
        w: &mut Writer,
        (nodes, index): (&[Node], usize),
        inputs: &[Operand],
    ) -> Option<Operand> {
        let (product, _) = self.sums.get(&index)?;
        let (dims, [lhs, rhs, bias]) = (dot(&nodes[*product])?, inputs) else {
            return None;
        };
        host_matmul(w, [lhs, rhs], Some(bias), dims, &nodes[index].shapes[0])
    }
}

/// The product and the bias of a sum, where a call adds them.
fn biased(w: &Writer, nodes: &[Node], sum: usize) -> Option<(usize, Value)> {
    let Op::Binary(BinaryOp::Add) = nodes[sum].op else {
        return None;
    };
    let [first, second] = nodes[sum].inputs[..] else {
        return None;
    };
    [(first, second), (second, first)]
        .into_iter()
        .find_map(|(product, repeated)| {
            let bias = bias_of(w, nodes, product.node, repeated.node)?;
            Some((product.node, bias))
        })
}

/// The bias that a node repeats for each row of a product, if the two are that.
fn bias_of(w: &Writer, nodes: &[Node], product: usize, repeated: usize) -> Option<Value> {
    let dims = dot(&nodes[product])?;
    let Op::Broadcast { map, .. } = &nodes[repeated].op else {
        return None;
    };
    let bias = nodes[repeated].inputs[0];
    let shape = |value: &Value| -> &Shape { &nodes[value.node].shapes[value.output] };
    let [lhs, rhs] = [0, 1].map(|side| shape(&nodes[product].inputs[side]));
    let result = &nodes[product].shapes[0];
    let first = result.rank() - (rhs.rank() - dims.rhs_contract.len());
    let is_of_columns = map.iter().copied().eq(first..result.rank())
        && shape(&bias).dims == result.dims[first..]
        && shape(&bias).dtype == DType::F32;
    let is_one = dims.lhs_batch.is_empty() && result.dtype == DType::F32;
    (is_of_columns && is_one && is_call(w, [lhs, rhs, result], dims)).then_some(bias)
}

fn dot(node: &Node) -> Option<&DotDims> {
    match &node.op {
        Op::Dot(dims) => Some(dims),
        _ => None,
    }
}
