//! The derivative of a scan is a scan in the other direction over the saved carries.

use super::{Step, backpropagate};
use crate::op::{Op, ScanDims};
use crate::{Graph, Shape, Tensor};

/// Inputs of the forward loop, split by role.
struct Roles {
    /// Rows of the carried values at the start of each step, `[length, ..]`.
    carries: Vec<Tensor>,
    xs: Vec<Tensor>,
    constants: Vec<Tensor>,
}

pub(super) fn scan(step: &Step, dims: &ScanDims) -> Vec<Option<Tensor>> {
    let input = |range: std::ops::Range<usize>| range.map(|i| step.input(i)).collect();
    let (carry, xs, all) = (dims.carry, dims.xs, step.node.inputs.len());
    let roles = Roles {
        carries: step.graph.save_carries(step.index),
        xs: input(carry..carry + xs),
        constants: input(carry + xs..all),
    };
    let gradient = reversed(step, dims, &roles);
    (0..all).map(|i| step.when(i, || gradient(i))).collect()
}

fn floats(tensors: &[Tensor]) -> Vec<usize> {
    let is_float = |i: &usize| tensors[*i].dtype().is_float();
    (0..tensors.len()).filter(is_float).collect()
}

/// Runs the reversed loop; the result maps a float input of the forward loop to its gradient.
fn reversed(step: &Step, dims: &ScanDims, roles: &Roles) -> impl Fn(usize) -> Tensor {
    let carries: Vec<usize> = floats(&roles.carries);
    let xs: Vec<usize> = floats(&roles.xs);
    let constants: Vec<usize> = floats(&roles.constants);
    let ys: Vec<Tensor> = (dims.carry..step.node.shapes.len())
        .map(|i| step.output(i))
        .collect();
    let ys = floats(&ys);

    let state = carries.iter().map(|&i| step.cotangent(i));
    let sums = constants.iter().map(|&i| roles.constants[i].zeros_like());
    let initial: Vec<Tensor> = state.chain(sums).collect();
    let y_rows = ys.iter().map(|&j| step.cotangent(dims.carry + j));
    let saved = roles.carries.iter().chain(&roles.xs).cloned();
    let rows: Vec<Tensor> = saved.chain(y_rows).collect();

    let (carried, parts) = (carries.len(), (roles.carries.len(), roles.xs.len()));
    let body = |state: &[Tensor], rows: &[Tensor], fixed: &[Tensor]| {
        let graph = state
            .iter()
            .chain(rows)
            .chain(fixed)
            .next()
            .map(Tensor::graph)
            .cloned();
        let graph = graph.unwrap_or_default();
        let (carry, rest) = rows.split_at(parts.0);
        let (x, dy) = rest.split_at(parts.1);
        let inputs = [carry, x, fixed].concat();
        let outputs = graph.inline(&dims.body, &inputs);
        let seeds_carry = carries.iter().zip(state);
        let seeds_y = ys
            .iter()
            .zip(dy)
            .map(|(&j, dy)| (outputs[dims.carry + j].value(), dy));
        let seeds: Vec<_> = seeds_carry
            .map(|(&i, cotangent)| (outputs[i].value(), cotangent))
            .chain(seeds_y)
            .map(|(value, cotangent)| (value, cotangent.clone()))
            .collect();
        let wrt: Vec<&Tensor> = (carries.iter().map(|&i| &carry[i]))
            .chain(constants.iter().map(|&i| &fixed[i]))
            .chain(xs.iter().map(|&i| &x[i]))
            .collect();
        let found = backpropagate(&graph, &seeds, &wrt);
        let mut found: Vec<Tensor> = found
            .into_iter()
            .zip(&wrt)
            .map(|(gradient, tensor)| gradient.unwrap_or_else(|| tensor.zeros_like()))
            .collect();
        let rows = found.split_off(carried + constants.len());
        let next = found.iter().enumerate().map(|(i, gradient)| {
            if i < carried {
                gradient.clone()
            } else {
                &state[i] + gradient
            }
        });
        (next.collect(), rows)
    };
    let (last, stacked) = backwards(step.graph, dims, &initial, &rows, &roles.constants, body);

    let (carry, rows) = (dims.carry, dims.xs);
    move |input| {
        let place = |list: &[usize], i: usize| list.iter().position(|&at| at == i).unwrap_or(0);
        if input < carry {
            last[place(&carries, input)].clone()
        } else if input < carry + rows {
            stacked[place(&xs, input - carry)].clone()
        } else {
            last[carried + place(&constants, input - carry - rows)].clone()
        }
    }
}

/// A scan over the rows in the order opposite to that of `dims`.
fn backwards(
    graph: &Graph,
    dims: &ScanDims,
    initial: &[Tensor],
    rows: &[Tensor],
    constants: &[Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Vec<Tensor>) {
    let row = |tensor: &Tensor| {
        let shape = tensor.shape();
        Shape::new(shape.dtype, &shape.dims[1..])
    };
    let shapes: Vec<Shape> = (initial.iter().map(Tensor::shape))
        .chain(rows.iter().map(row))
        .chain(constants.iter().map(Tensor::shape))
        .collect();
    let body = graph.subgraph(&shapes, |values| {
        let (state, rest) = values.split_at(initial.len());
        let (rows, constants) = rest.split_at(rows.len());
        let (mut next, ys) = body(state, rows, constants);
        next.extend(ys);
        next
    });
    let op = Op::Scan(ScanDims {
        body,
        length: dims.length,
        carry: initial.len(),
        xs: rows.len(),
        reverse: !dims.reverse,
    });
    let inputs: Vec<&Tensor> = initial.iter().chain(rows).chain(constants).collect();
    let mut outputs = graph.push_many(op, &inputs);
    let stacked = outputs.split_off(initial.len());
    (outputs, stacked)
}
