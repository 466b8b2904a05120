//! Communication between replicas: one group of all of them; a program of one replica communicates nothing.

use super::literal::int_table;
use super::reduction::with_combiner;
use super::writer::{Operand, Writer, list, signature};
use crate::op::ReduceOp;
use crate::{DType, Shape};

fn groups(w: &Writer) -> String {
    let all: Vec<usize> = (0..w.replicas).collect();
    int_table(&[all], w.replicas)
}

/// One op per element type, for the combining function takes one type.
pub(super) fn all_reduce(w: &mut Writer, kind: ReduceOp, inputs: &[Operand]) -> Vec<Operand> {
    let mut results = inputs.to_vec();
    if w.replicas == 1 {
        return results;
    }
    for dtype in DType::ALL {
        let places: Vec<usize> = (0..inputs.len())
            .filter(|&index| inputs[index].shape.dtype == dtype)
            .collect();
        if places.is_empty() {
            continue;
        }
        let operands: Vec<Operand> = places.iter().map(|&index| inputs[index].clone()).collect();
        for (place, reduced) in places
            .into_iter()
            .zip(reduce_group(w, kind, dtype, &operands))
        {
            results[place] = reduced;
        }
    }
    results
}

fn reduce_group(w: &mut Writer, kind: ReduceOp, dtype: DType, inputs: &[Operand]) -> Vec<Operand> {
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape.clone()).collect();
    let names = list(inputs.iter().map(|input| input.name.clone()));
    let text = format!(
        "\"stablehlo.all_reduce\"({names}) <{{replica_groups = {}}}> ({{",
        groups(w)
    );
    let types = signature(inputs, &shapes);
    with_combiner(w, kind, dtype, &shapes, &text, &types)
}

pub(super) fn all_gather(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    if w.replicas == 1 {
        return x.clone();
    }
    let properties = format!(
        "all_gather_dim = {dim} : i64, replica_groups = {}",
        groups(w)
    );
    generic(w, "all_gather", x, &properties, shape)
}

pub(super) fn reduce_scatter(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    if w.replicas == 1 {
        return x.clone();
    }
    let text = format!(
        "\"stablehlo.reduce_scatter\"({}) <{{replica_groups = {}, scatter_dimension = {dim} : i64}}> ({{",
        x.name,
        groups(w)
    );
    let shapes = [shape.clone()];
    let types = signature(std::slice::from_ref(x), &shapes);
    with_combiner(w, ReduceOp::Sum, shape.dtype, &shapes, &text, &types).swap_remove(0)
}

pub(super) fn all_to_all(
    w: &mut Writer,
    x: &Operand,
    split: usize,
    concat: usize,
    shape: &Shape,
) -> Operand {
    if w.replicas == 1 {
        return x.clone();
    }
    let properties = format!(
        "concat_dimension = {concat} : i64, replica_groups = {}, split_count = {} : i64, split_dimension = {split} : i64",
        groups(w),
        w.replicas
    );
    generic(w, "all_to_all", x, &properties, shape)
}

pub(super) fn permute(w: &mut Writer, x: &Operand, pairs: &[(usize, usize)]) -> Operand {
    if w.replicas == 1 && !pairs.is_empty() {
        return x.clone();
    }
    if pairs.is_empty() {
        return w.full(&x.shape, 0.0);
    }
    let pairs: Vec<Vec<usize>> = pairs.iter().map(|&(from, to)| vec![from, to]).collect();
    let properties = format!("source_target_pairs = {}", int_table(&pairs, 2));
    let shape = x.shape.clone();
    generic(w, "collective_permute", x, &properties, &shape)
}

fn generic(w: &mut Writer, name: &str, x: &Operand, properties: &str, shape: &Shape) -> Operand {
    let types = signature(std::slice::from_ref(x), std::slice::from_ref(shape));
    let text = format!(
        "\"stablehlo.{name}\"({}) <{{{properties}}}> : {types}",
        x.name
    );
    w.line(shape, &text)
}
