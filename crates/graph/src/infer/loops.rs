//! Shapes of loops, from those of their bodies.

use super::{Inferred, sum};
use crate::op::{Op, ScanDims, Subgraph};
use crate::{DType, Shape};

fn check_body(body: &Subgraph, expected: &[Shape], what: &str) -> Result<(), String> {
    if body.parameters == expected {
        return Ok(());
    }
    let shapes = |list: &[Shape]| {
        let names: Vec<String> = list.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    Err(format!(
        "the {what} takes ({}), but is given ({})",
        shapes(&body.parameters),
        shapes(expected)
    ))
}

/// Replicas that leave a loop after different numbers of steps would wait for each other forever.
pub(super) fn check_silent(
    condition: &Subgraph,
    body: &Subgraph,
    replicas: usize,
) -> Result<(), String> {
    let found = communication(condition).map(|op| (op, "condition"));
    let found = found.or_else(|| communication(body).map(|op| (op, "body")));
    match found {
        Some((op, part)) if replicas > 1 => Err(format!(
            "{op} between {replicas} replicas in the {part} of a loop whose length depends on data: replicas that stop \
             at different steps wait forever; use scan, whose length is known, or move {op} out of the loop"
        )),
        _ => Ok(()),
    }
}

/// The first op of a body that waits for other replicas.
fn communication(body: &Subgraph) -> Option<&'static str> {
    body.nodes.iter().find_map(|node| match &node.op {
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_) => Some(node.op.name()),
        Op::Scan(scan) => communication(&scan.body),
        Op::While { condition, body } => communication(condition).or_else(|| communication(body)),
        _ => None,
    })
}

pub(super) fn while_loop(inputs: &[&Shape], condition: &Subgraph, body: &Subgraph) -> Inferred {
    let carried: Vec<Shape> = inputs.iter().map(|&shape| shape.clone()).collect();
    check_body(condition, &carried, "condition")?;
    check_body(body, &carried, "body")?;
    let truth = condition.outputs.len() == 1
        && *condition.shape(condition.outputs[0]) == Shape::scalar(DType::Bool);
    if !truth {
        return Err("the condition must give one bool scalar".into());
    }
    check_carry(body, &carried)?;
    Ok(carried)
}

fn check_carry(body: &Subgraph, carried: &[Shape]) -> Result<(), String> {
    for (i, expected) in carried.iter().enumerate() {
        match body.outputs.get(i).map(|&value| body.shape(value)) {
            Some(shape) if shape == expected => {}
            Some(shape) => {
                return Err(format!(
                    "carried value {i} is {expected}, but the body returns {shape}"
                ));
            }
            None => return Err(format!("the body returns no carried value {i}")),
        }
    }
    Ok(())
}

pub(super) fn scan_loop(inputs: &[&Shape], scan: &ScanDims) -> Inferred {
    if i32::try_from(scan.length).is_err() {
        return Err(format!("{} steps are more than an i32 counts", scan.length));
    }
    let read = sum([scan.carry, scan.xs])?;
    if read > inputs.len() {
        return Err(format!("needs {read} operands, got {}", inputs.len()));
    }
    let mut expected = Vec::new();
    for (i, &shape) in inputs.iter().enumerate() {
        let is_row = (scan.carry..read).contains(&i);
        if !is_row {
            expected.push(shape.clone());
        } else if shape.dims.first() == Some(&scan.length) {
            expected.push(Shape::new(shape.dtype, &shape.dims[1..]));
        } else {
            return Err(format!("expected {} rows, got {shape}", scan.length));
        }
    }
    check_body(&scan.body, &expected, "body")?;
    check_carry(&scan.body, &expected[..scan.carry])?;
    let mut outputs = expected[..scan.carry].to_vec();
    for &value in &scan.body.outputs[scan.carry..] {
        let row = scan.body.shape(value);
        let mut dims = vec![scan.length];
        dims.extend(&row.dims);
        outputs.push(Shape::new(row.dtype, dims));
    }
    Ok(outputs)
}
