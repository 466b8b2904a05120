//! Loops, both kinds of which become `stablehlo.while`, and branches.

use std::sync::Arc;

use super::lower_nodes;
use super::writer::{Operand, Writer, list};
use crate::op::{ScanDims, Subgraph};
use crate::{DType, Shape};

pub(super) fn while_loop(
    w: &mut Writer,
    condition: &Subgraph,
    body: &Subgraph,
    initial: &[Operand],
) -> Vec<Operand> {
    write_while(
        w,
        initial,
        |w, carried| inline(w, condition, carried),
        |w, carried| inline(w, body, carried),
    )
}

/// Branches take what they use from outside.
pub(super) fn case(
    w: &mut Writer,
    branches: &[Arc<Subgraph>],
    inputs: &[Operand],
    shapes: &[Shape],
) -> Vec<Operand> {
    let (index, inputs) = (&inputs[0], &inputs[1..]);
    let results = w.header(shapes, &format!("\"stablehlo.case\"({}) (", index.name));
    for (number, branch) in branches.iter().enumerate() {
        match number {
            0 => w.open("{"),
            _ => w.reopen("}, {"),
        }
        let outputs = inline(w, branch, inputs);
        w.finish_block("stablehlo.return", &outputs);
    }
    let types = list(shapes.iter().map(Shape::stablehlo));
    let location = w.location();
    w.close(&format!("}}) : (tensor<i32>) -> ({types}){location}"));
    results
}

/// Writes the nodes of a subgraph in place.
fn inline(w: &mut Writer, subgraph: &Subgraph, arguments: &[Operand]) -> Vec<Operand> {
    lower_nodes(w, &subgraph.nodes, arguments, &subgraph.outputs)
}

fn write_while(
    w: &mut Writer,
    initial: &[Operand],
    condition: impl FnOnce(&mut Writer, &[Operand]) -> Vec<Operand>,
    body: impl FnOnce(&mut Writer, &[Operand]) -> Vec<Operand>,
) -> Vec<Operand> {
    let carried: Vec<Operand> = initial.iter().map(|value| w.fresh(&value.shape)).collect();
    let shapes: Vec<Shape> = initial.iter().map(|value| value.shape.clone()).collect();
    let bound = carried.iter().zip(initial);
    let bound = list(bound.map(|(inside, outside)| format!("{} = {}", inside.name, outside.name)));
    let types = list(shapes.iter().map(Shape::stablehlo));
    let results = w.header(&shapes, &format!("stablehlo.while({bound}) : {types}"));
    w.open("cond {");
    let holds = condition(w, &carried);
    w.finish_block("stablehlo.return", &holds);
    w.reopen("} do {");
    let next = body(w, &carried);
    w.finish_block("stablehlo.return", &next[..carried.len()]);
    let location = w.location();
    w.close(&format!("}}{location}"));
    results
}

/// Carries a counter, the carried values, the tensors read, the constants, and the stacked results.
pub(super) fn scan(
    w: &mut Writer,
    scan: &ScanDims,
    inputs: &[Operand],
    shapes: &[Shape],
) -> Vec<Operand> {
    let stacks = &shapes[scan.carry..];
    if scan.length == 0 {
        let mut results = inputs[..scan.carry].to_vec();
        results.extend(stacks.iter().map(|shape| w.full(shape, 0.0)));
        return results;
    }
    let counter = Shape::scalar(DType::I32);
    let mut initial = vec![w.full(&counter, 0.0)];
    initial.extend_from_slice(inputs);
    initial.extend(stacks.iter().map(|shape| w.full(shape, 0.0)));
    let results = write_while(
        w,
        &initial,
        |w, carried| {
            let limit = w.full(&counter, scan.length as f64);
            let pair = [carried[0].clone(), limit];
            vec![w.typed("compare LT,", &pair, "", &Shape::scalar(DType::Bool), false)]
        },
        |w, carried| scan_body(w, scan, inputs.len(), carried),
    );
    let stacked = results[1 + inputs.len()..].iter();
    results[1..=scan.carry]
        .iter()
        .chain(stacked)
        .cloned()
        .collect()
}

fn scan_body(w: &mut Writer, scan: &ScanDims, inputs: usize, carried: &[Operand]) -> Vec<Operand> {
    let (counter, values) = (&carried[0], &carried[1..=inputs]);
    let row = if scan.reverse {
        let last = w.full(&counter.shape, (scan.length - 1) as f64);
        w.elementwise("subtract", &[last, counter.clone()], &counter.shape)
    } else {
        counter.clone()
    };
    let zero = w.full(&counter.shape, 0.0);
    let mut arguments = values.to_vec();
    for x in &mut arguments[scan.carry..scan.carry + scan.xs] {
        *x = read_row(w, x, &row, &zero);
    }
    let results = inline(w, &scan.body, &arguments);
    let (next, ys) = results.split_at(scan.carry);
    let one = w.full(&counter.shape, 1.0);
    let mut out = vec![w.elementwise("add", &[counter.clone(), one], &counter.shape)];
    out.extend_from_slice(next);
    out.extend_from_slice(&values[scan.carry..]);
    for (stack, y) in carried[1 + inputs..].iter().zip(ys) {
        out.push(write_row(w, stack, y, &row, &zero));
    }
    out
}

fn starts(row: &Operand, zero: &Operand, rank: usize) -> Vec<Operand> {
    let mut starts = vec![zero.clone(); rank];
    starts[0] = row.clone();
    starts
}

fn read_row(w: &mut Writer, x: &Operand, row: &Operand, zero: &Operand) -> Operand {
    let mut sizes = x.shape.dims.clone();
    sizes[0] = 1;
    let mut inputs = vec![x.clone()];
    inputs.extend(starts(row, zero, sizes.len()));
    let shape = Shape::new(x.shape.dtype, sizes.clone());
    let attributes = format!("sizes = {sizes:?}");
    let slice = w.typed("dynamic_slice", &inputs, &attributes, &shape, false);
    w.reshape(&slice, &sizes[1..])
}

fn write_row(
    w: &mut Writer,
    stack: &Operand,
    y: &Operand,
    row: &Operand,
    zero: &Operand,
) -> Operand {
    let mut dims = vec![1];
    dims.extend(&y.shape.dims);
    let update = w.reshape(y, &dims);
    let mut inputs = vec![stack.clone(), update];
    inputs.extend(starts(row, zero, dims.len()));
    let shape = stack.shape.clone();
    w.typed("dynamic_update_slice", &inputs, "", &shape, false)
}
