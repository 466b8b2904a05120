//! Shapes of loops and branches, from the shapes of their bodies.

use std::sync::Arc;

use super::{Inferred, sum};
use crate::op::{Node, Op, ScanDims, Subgraph};
use crate::{DType, Shape};

fn check_body(body: &Subgraph, expected: &[Shape], what: &str) -> Result<(), String> {
    if body.parameters == expected {
        return Ok(());
    }
    Err(format!(
        "the {what} takes ({}), but is given ({})",
        listed(&body.parameters),
        listed(expected)
    ))
}

/// Replicas that leave a loop after different numbers of steps would wait for each other forever.
pub(super) fn check_silent(
    condition: &Subgraph,
    body: &Subgraph,
    replicas: usize,
) -> Result<(), String> {
    let found = communication(&condition.nodes).map(|op| (op, "condition"));
    let found = found.or_else(|| communication(&body.nodes).map(|op| (op, "body")));
    match found {
        Some((op, part)) if replicas > 1 => Err(format!(
            "{op} between {replicas} replicas in the {part} of a loop whose length depends on data: replicas that stop \
             at different steps wait forever; use scan, whose length is known, or move {op} out of the loop"
        )),
        _ => Ok(()),
    }
}

/// The first op that waits for other replicas.
pub(crate) fn communication(nodes: &[Node]) -> Option<&'static str> {
    nodes.iter().find_map(|node| match &node.op {
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_) => Some(node.op.name()),
        op => {
            let mut bodies = op.bodies().into_iter();
            bodies.find_map(|body| communication(&body.nodes))
        }
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

pub(super) fn case(inputs: &[&Shape], branches: &[Arc<Subgraph>], replicas: usize) -> Inferred {
    let Some((&index, given)) = inputs.split_first() else {
        return Err("needs an index, got no operand".into());
    };
    if *index != Shape::scalar(DType::I32) {
        return Err(format!("expected an index i32[], got {index}"));
    }
    let given: Vec<Shape> = given.iter().map(|&shape| shape.clone()).collect();
    let Some(first) = branches.first().map(|branch| results(branch)) else {
        return Err("needs a branch, got none".into());
    };
    for (number, branch) in branches.iter().enumerate() {
        check_body(branch, &given, "branch")?;
        let own = results(branch);
        if own != first {
            return Err(format!(
                "branch {number} gives ({}), but branch 0 ({}); give the same shapes in each",
                listed(&own),
                listed(&first)
            ));
        }
        if let (Some(op), true) = (communication(&branch.nodes), replicas > 1) {
            return Err(format!(
                "{op} between {replicas} replicas in branch {number}: replicas that take other branches never come to \
                 it, and those that do wait forever; move {op} behind the case"
            ));
        }
    }
    Ok(first)
}

fn results(body: &Subgraph) -> Vec<Shape> {
    let outputs = body.outputs.iter();
    outputs.map(|&value| body.shape(value).clone()).collect()
}

fn listed(shapes: &[Shape]) -> String {
    let names: Vec<String> = shapes.iter().map(ToString::to_string).collect();
    names.join(", ")
}
