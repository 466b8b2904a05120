//! Derivatives of every element of a tensor: what takes its cotangent back, once built, is the body of a loop over the elements.

use std::collections::{HashMap, HashSet};

use super::backpropagate;
use crate::op::{Node, Op, Subgraph, Value};
use crate::{DType, Graph, Shape, Tensor};

/// The derivative of each element of `target` with respect to tensors, `[dims of the target.., dims of the tensor..]`; `None` for a tensor that
/// `target` does not depend on through floating-point values: `TensorFlow`'s `GradientTape.jacobian`.
///
/// One loop goes over the elements of the target and takes a cotangent back in each turn, as [`gradients`](super::gradients) does, with its
/// ties, and its sums over replicas. What is computed on the way to the target is computed once.
///
/// Records a mistake on the graph when `target` is no floating-point tensor, and as `gradients`.
#[must_use]
#[track_caller]
pub fn jacobian(target: &Tensor, wrt: &[&Tensor]) -> Vec<Option<Tensor>> {
    let dims = target.dims();
    let count = dims.iter().product();
    if !is_differentiable("jacobian", target, wrt) {
        return vec![None; wrt.len()];
    }
    let found = rows(target, wrt, count, |row, places| {
        places.equal(row).reshape(&dims)
    });
    let shaped = found.into_iter().zip(wrt).map(|(rows, x)| {
        let rows = rows?;
        Some(rows.reshape(&[&dims[..], &x.dims()].concat()))
    });
    shaped.collect()
}

/// The derivative of each element of `target`, `[batch, ..]`, with respect to its own row of tensors, `[batch, ..]`: `[batch, other dims of the
/// target.., other dims of the tensor..]`; `None` as in [`jacobian`]. `TensorFlow`'s `GradientTape.batch_jacobian`.
///
/// A row of the target must depend on the same row of the tensors alone, which is not checked: the derivatives of all rows are added up. So the
/// loop is as many turns as an example has elements.
///
/// Records a mistake on the graph as [`jacobian`], and when the first dims differ.
#[must_use]
#[track_caller]
pub fn batch_jacobian(target: &Tensor, wrt: &[&Tensor]) -> Vec<Option<Tensor>> {
    let none = vec![None; wrt.len()];
    if !is_differentiable("batch_jacobian", target, wrt) {
        return none;
    }
    let dims = target.dims();
    let batch = dims.first().copied();
    if batch.is_none() || wrt.iter().any(|x| x.dims().first().copied() != batch) {
        let shapes: Vec<String> = wrt.iter().map(|x| x.shape().to_string()).collect();
        let message = format!(
            "expected tensors of as many rows as the target, {}, got {}; take `jacobian` of tensors without a batch",
            target.shape(),
            shapes.join(", ")
        );
        target.graph().fail("batch_jacobian", message);
        return none;
    }
    let (batch, own) = (dims[0], &dims[1..]);
    let count = own.iter().product();
    let found = rows(target, wrt, count, |row, places| {
        let of_example = places.equal(row).reshape(&[&[1], own].concat());
        of_example.broadcast_to(&dims)
    });
    let shaped = found.into_iter().zip(wrt).map(|(rows, x)| {
        let other = &x.dims()[1..];
        let rows = rows?.reshape(&[&[count, batch], other].concat());
        let order: Vec<usize> = [1, 0].into_iter().chain(2..rows.rank()).collect();
        Some(rows.transpose(&order).reshape(&[&dims[..], other].concat()))
    });
    shaped.collect()
}

/// Notes what has no derivatives.
#[track_caller]
fn is_differentiable(name: &'static str, target: &Tensor, wrt: &[&Tensor]) -> bool {
    let shape = target.shape();
    if !shape.dtype.is_float() {
        let message = format!("expected a floating-point tensor, got {shape}");
        target.graph().fail(name, message);
        return false;
    }
    all_owned(name, (target, "target"), wrt)
}

/// Whether tensors are of the graph of what is derived, with its name in messages; notes the first that is not.
#[track_caller]
pub(super) fn all_owned(
    op: &'static str,
    (target, what): (&Tensor, &str),
    wrt: &[&Tensor],
) -> bool {
    let graph = target.graph();
    let Some(at) = wrt.iter().position(|tensor| !graph.owns(tensor)) else {
        return true;
    };
    let message = format!(
        "tensor {at} belongs to another graph than the {what}; inside a loop or a branch use the tensor that its body is given"
    );
    graph.fail(op, message);
    false
}

/// What each of `count` cotangents gives the tensors, stacked: `chosen(row, places)` says which elements of the target are in one, from its number
/// and the numbers of all.
#[track_caller]
fn rows(
    target: &Tensor,
    wrt: &[&Tensor],
    count: usize,
    chosen: impl FnOnce(&Tensor, &Tensor) -> Tensor,
) -> Vec<Option<Tensor>> {
    let graph = target.graph();
    // Stands for the cotangent: what depends on it is what the loop repeats.
    let cotangent = target.stop_gradient();
    let found = backpropagate(graph, &[(target.value(), cotangent.clone())], wrt);
    let wanted: Vec<Value> = found.iter().flatten().map(Tensor::value).collect();
    let (body, outside) = way_back(graph, cotangent.value(), &wanted);
    let outside: Vec<Tensor> = outside
        .into_iter()
        .map(|value| Tensor::new(graph.clone(), value))
        .collect();
    let outside: Vec<&Tensor> = outside.iter().collect();
    let dtype = target.dtype();
    let numbers = graph.iota(Shape::new(DType::I32, [count]), 0);
    let (_, stacked) = graph.scan(count, &[], &[&numbers], &outside, |_, row, outside| {
        let inner = row[0].graph();
        let places = inner.iota(Shape::new(DType::I32, [count]), 0);
        let seed = chosen(&row[0], &places).convert(dtype);
        let arguments = [&[seed], outside].concat();
        (Vec::new(), inner.inline(&body, &arguments))
    });
    let mut stacked = stacked.into_iter();
    let in_order = found
        .into_iter()
        .map(|gradient| gradient.and_then(|_| stacked.next()));
    in_order.collect()
}

/// The nodes that depend on a cotangent, as a graph of it and of the values that they take from outside, which are named too.
fn way_back(graph: &Graph, cotangent: Value, wanted: &[Value]) -> (Subgraph, Vec<Value>) {
    let inside = dependents(graph, cotangent.node);
    let known: HashSet<usize> = inside.iter().map(|(index, _)| *index).collect();
    let is_outside = |value: &&Value| !known.contains(&value.node) && **value != cotangent;
    let taken = inside
        .iter()
        .flat_map(|(_, node)| &node.inputs)
        .chain(wanted);
    let mut seen = HashSet::new();
    let outside: Vec<Value> = taken
        .filter(is_outside)
        .filter(|value| seen.insert(**value))
        .copied()
        .collect();
    let given: Vec<Value> = std::iter::once(cotangent)
        .chain(outside.iter().copied())
        .collect();
    let parameters: Vec<Shape> = given.iter().map(|value| graph.shape_of(*value)).collect();
    let like = graph.node(cotangent.node);
    let declared = parameters.iter().enumerate();
    let mut nodes: Vec<Node> = declared
        .map(|(place, shape)| parameter(place, shape, &like))
        .collect();
    let at = |node, output| Value { node, output };
    let places = given
        .into_iter()
        .zip(0..)
        .map(|(value, node)| (value, at(node, 0)));
    let mut moved: HashMap<Value, Value> = places.collect();
    for (index, mut node) in inside {
        node.inputs
            .iter_mut()
            .for_each(|input| *input = moved[input]);
        let (copy, outputs) = (nodes.len(), 0..node.shapes.len());
        if node.op == Op::OptimizationBarrier {
            // What is computed again would be so in each turn.
            moved.extend(outputs.map(|output| (at(index, output), node.inputs[output])));
            continue;
        }
        moved.extend(outputs.map(|output| (at(index, output), at(copy, output))));
        nodes.push(node);
    }
    let outputs = wanted.iter().map(|value| moved[value]).collect();
    let body = Subgraph {
        nodes,
        parameters,
        outputs,
    };
    (body, outside)
}

/// The nodes behind one that depend on it, in order.
fn dependents(graph: &Graph, first: usize) -> Vec<(usize, Node)> {
    let (mut known, mut found) = (HashSet::from([first]), Vec::new());
    graph.each_node(usize::MAX, |index, node| {
        if node.inputs.iter().any(|input| known.contains(&input.node)) {
            known.insert(index);
            found.push((index, node.clone()));
        }
    });
    found
}

fn parameter(place: usize, shape: &Shape, like: &Node) -> Node {
    Node {
        op: Op::Parameter(place),
        inputs: Vec::new(),
        shapes: vec![shape.clone()],
        ..like.clone()
    }
}
