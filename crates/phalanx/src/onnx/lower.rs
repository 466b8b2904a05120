//! Which ONNX nodes each op becomes.

use phalanx_graph::op::{Node, Op, SliceDim, Subgraph, Value};
use phalanx_graph::{Kernel, Shape};

use super::size::Size;
use super::writer::{OnnxValue, OnnxWriter};
use super::{contract, elementwise, loops, rearrange, window};
use crate::{Error, Result};

/// The same node of two programs that differ by the batch.
#[derive(Clone, Copy)]
pub(super) struct NodePair<'a>(pub(super) [&'a Node; 2]);

impl<'a> NodePair<'a> {
    /// The node of the first program, for all in which the programs are alike.
    pub(super) const fn node(self) -> &'a Node {
        self.0[0]
    }

    fn ops(self) -> [&'a Op; 2] {
        self.0.map(|node| &node.op)
    }

    /// Dims of a result, for any batch.
    pub(super) fn dims(self, w: &OnnxWriter, result: usize) -> Result<Vec<Size>> {
        w.dims(self.0.map(|node| &node.shapes[result]))
    }

    /// Whether both do the same, but for sizes that results have and bodies.
    fn is_alike(self) -> bool {
        let whole = |slice: &SliceDim| slice.start == 0 && slice.stride == 1;
        self.0[0].inputs == self.0[1].inputs
            && match self.ops() {
                [Op::Reshape(_), Op::Reshape(_)]
                | [Op::DynamicSlice(_), Op::DynamicSlice(_)]
                | [Op::While { .. }, Op::While { .. }] => true,
                [Op::Broadcast { map: a, .. }, Op::Broadcast { map: b, .. }] => a == b,
                [Op::Slice(a), Op::Slice(b)] => {
                    let mut pairs = a.iter().zip(b);
                    pairs.all(|(a, b)| a == b || (whole(a) && whole(b)))
                }
                [Op::Scan(a), Op::Scan(b)] => {
                    (a.length, a.carry, a.xs, a.reverse) == (b.length, b.carry, b.xs, b.reverse)
                }
                [a, b] => a == b,
            }
    }
}

/// The nodes of two programs that differ by the batch.
#[derive(Clone, Copy)]
pub(super) struct NodesPair<'a> {
    pub(super) nodes: [&'a [Node]; 2],
    pub(super) outputs: [&'a [Value]; 2],
}

impl<'a> NodesPair<'a> {
    pub(super) fn of(bodies: [&'a Subgraph; 2]) -> Self {
        Self {
            nodes: bodies.map(|body| &*body.nodes),
            outputs: bodies.map(|body| &*body.outputs),
        }
    }

    /// For each node which of its results are used.
    fn used(self, wanted: &[bool]) -> Vec<Vec<bool>> {
        let nodes = self.nodes[0];
        let mut used: Vec<Vec<bool>> = Vec::with_capacity(nodes.len());
        used.extend(nodes.iter().map(|node| vec![false; node.shapes.len()]));
        let wanted = self.outputs[0].iter().zip(wanted);
        for (output, _) in wanted.filter(|(_, wanted)| **wanted) {
            used[output.node][output.output] = true;
        }
        for (index, node) in nodes.iter().enumerate().rev() {
            if used[index].contains(&true) {
                for input in &node.inputs {
                    used[input.node][input.output] = true;
                }
            }
        }
        used
    }
}

/// Writes all nodes that outputs need.
pub(super) fn lower_all(
    w: &mut OnnxWriter,
    pair: NodesPair,
    parameters: &[OnnxValue],
) -> Result<Vec<OnnxValue>> {
    let wanted = vec![true; pair.outputs[0].len()];
    let outputs = lower_wanted(w, pair, parameters, &wanted)?;
    outputs
        .into_iter()
        .map(|value| value.ok_or_else(unused))
        .collect()
}

/// Writes the nodes that the wanted outputs need, and gives nothing for the others.
fn lower_wanted(
    w: &mut OnnxWriter,
    pair: NodesPair,
    parameters: &[OnnxValue],
    wanted: &[bool],
) -> Result<Vec<Option<OnnxValue>>> {
    let [first, second] = pair.nodes;
    if first.len() != second.len() || pair.outputs[0] != pair.outputs[1] {
        return Err(w.bound_to_batch("what is computed"));
    }
    let place = w.place();
    let used = pair.used(wanted);
    let mut values: Vec<Vec<Option<OnnxValue>>> = Vec::with_capacity(first.len());
    for ((a, b), used) in first.iter().zip(second).zip(&used) {
        let node = NodePair([a, b]);
        if !used.contains(&true) {
            values.push(vec![None; used.len()]);
            continue;
        }
        w.at(node.node());
        let inputs = node.node().inputs.iter();
        let inputs =
            inputs.map(|input| values[input.node][input.output].clone().ok_or_else(unused));
        let inputs: Vec<OnnxValue> = inputs.collect::<Result<_>>()?;
        values.push(match &node.node().op {
            Op::Kernel(kernel) => lower_kernel(w, kernel, pair, node, &inputs, used)?,
            _ => lower(w, node, &inputs, parameters)?,
        });
    }
    w.return_to(place);
    let outputs = pair.outputs[0].iter();
    Ok(outputs
        .map(|output| values[output.node][output.output].clone())
        .collect())
}

fn unused() -> Error {
    Error::Bug("an ONNX graph needs a value that was thought unused".to_owned())
}

fn lower(
    w: &mut OnnxWriter,
    node: NodePair,
    inputs: &[OnnxValue],
    parameters: &[OnnxValue],
) -> Result<Vec<Option<OnnxValue>>> {
    if !node.is_alike() {
        return Err(w.bound_to_batch("what it does"));
    }
    let all = |values: Vec<OnnxValue>| values.into_iter().map(Some).collect();
    match node.ops() {
        [Op::Parameter(index), _] => Ok(vec![parameters.get(*index).cloned()]),
        [Op::OptimizationBarrier, _] => Ok(all(inputs.to_vec())),
        [
            Op::While {
                condition: ca,
                body: ba,
            },
            Op::While {
                condition: cb,
                body: bb,
            },
        ] => {
            let condition = NodesPair::of([ca, cb]);
            loops::while_loop(w, condition, NodesPair::of([ba, bb]), inputs).map(all)
        }
        [Op::Scan(a), Op::Scan(b)] => {
            let body = NodesPair::of([&a.body, &b.body]);
            loops::scan(w, a, body, inputs, node).map(all)
        }
        [op, _] => Ok(vec![Some(lower_single(w, op, node, inputs)?)]),
    }
}

/// An op with a kernel of its own, by what it is made of.
fn lower_kernel(
    w: &mut OnnxWriter,
    kernel: &Kernel,
    pair: NodesPair,
    node: NodePair,
    inputs: &[OnnxValue],
    used: &[bool],
) -> Result<Vec<Option<OnnxValue>>> {
    if !node.is_alike() {
        return Err(w.bound_to_batch("what it does"));
    }
    let made_of = |nodes: &[Node]| {
        let shapes = node.node().inputs.iter();
        let shapes = shapes.map(|input| nodes[input.node].shapes[input.output].clone());
        kernel.decomposed(&shapes.collect::<Vec<Shape>>(), node.node().label.clone())
    };
    let bodies = pair.nodes.map(made_of);
    let parts = NodesPair::of([&bodies[0], &bodies[1]]);
    lower_wanted(w, parts, inputs, used)
}

/// Writes an op of one result.
fn lower_single(
    w: &mut OnnxWriter,
    op: &Op,
    node: NodePair,
    inputs: &[OnnxValue],
) -> Result<OnnxValue> {
    let dims = node.dims(w, 0)?;
    let dtype = node.node().shapes[0].dtype;
    match op {
        Op::Constant(value) => Ok(OnnxValue {
            dims,
            ..w.constant(value)
        }),
        Op::Iota(dim) => Ok(rearrange::iota(w, dtype, &dims, *dim)),
        Op::Unary(op) => Ok(elementwise::unary(w, *op, &inputs[0])),
        Op::Binary(op) => Ok(elementwise::binary(w, *op, inputs, dims)),
        Op::Compare(op) => Ok(elementwise::compare(w, *op, inputs, dims)),
        Op::Select => Ok(elementwise::select(w, inputs, dims)),
        Op::Convert(dtype) => Ok(w.convert(&inputs[0], *dtype)),
        Op::StopGradient | Op::WithGradient(_) | Op::Sharded(_) => Ok(inputs[0].clone()),
        Op::Reshape(_) => Ok(w.reshape(&inputs[0], &dims)),
        Op::Transpose(perm) => Ok(w.transpose(&inputs[0], perm)),
        Op::Broadcast { map, .. } => Ok(rearrange::broadcast(w, &inputs[0], dims, map)),
        Op::Reverse(reversed) => Ok(rearrange::reverse(w, &inputs[0], reversed)),
        Op::Pad(pads) => rearrange::pad(w, &inputs[0], &inputs[1], pads, &dims),
        Op::Slice(slices) => rearrange::slice(w, &inputs[0], slices, &dims),
        Op::DynamicSlice(_) => rearrange::dynamic_slice(w, inputs, &dims),
        Op::Concat(dim) => Ok(rearrange::concat(w, inputs, *dim, dims)),
        Op::Gather { dim } => rearrange::gather(w, inputs, *dim, dims),
        Op::Dot(dot) => contract::dot(w, &inputs[0], &inputs[1], dot, dims),
        Op::Conv(conv) => contract::conv(w, &inputs[0], &inputs[1], conv, &dims),
        Op::Reduce { kind, dims: over } => window::reduce(w, *kind, &inputs[0], over, dims),
        Op::ReduceWindow { kind, window } => window::pool(w, *kind, &inputs[0], window, &dims),
        Op::Bitcast(_)
        | Op::DynamicUpdateSlice
        | Op::ScatterAdd { .. }
        | Op::ScatterSet { .. }
        | Op::ArgSort
        | Op::RandomBits(_)
        | Op::Case(_)
        | Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_)
        | Op::ReplicaId
        | Op::ExchangesSucceeded
        | Op::CustomCall(_) => Err(w.refused("ONNX has no op for it; export the model as StableHLO (`NAME.mlir`), or leave that layer out")),
        Op::Parameter(_)
        | Op::OptimizationBarrier
        | Op::While { .. }
        | Op::Scan(_)
        | Op::Kernel(_) => Err(Error::Bug(format!("`{}` has no single result", op.name()))),
    }
}
