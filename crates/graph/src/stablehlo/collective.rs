//! Communication between replicas; a program of one replica communicates nothing.

use super::literal::int_table;
use super::reduction::{with_combiner, working_dtype};
use super::world_exchange;
use super::writer::{Operand, Writer, list, signature};
use crate::op::{ReduceOp, Via};
use crate::{DType, Shape};

/// Groups of replicas that communicate among themselves, one row each.
type Groups = Vec<Vec<usize>>;

fn everyone(w: &Writer) -> Groups {
    vec![(0..w.replicas).collect()]
}

fn table(groups: &Groups) -> String {
    int_table(groups, groups[0].len())
}

/// One exchange per element type, for the combining function takes one type; what has no elements stays at home.
pub(super) fn all_reduce(
    w: &mut Writer,
    kind: ReduceOp,
    via: Via,
    inputs: &[Operand],
) -> Vec<Operand> {
    let mut results = inputs.to_vec();
    if w.replicas == 1 {
        return results;
    }
    if w.world.is_some() {
        return world_exchange::all_reduce(w, kind, inputs);
    }
    // They write with it.
    let mut sums = w.host_all_reduce.take();
    for dtype in DType::ALL {
        let sent = |x: &Operand| x.shape.dtype == dtype && !x.shape.is_empty();
        let places: Vec<usize> = (0..inputs.len()).filter(|&i| sent(&inputs[i])).collect();
        if places.is_empty() {
            continue;
        }
        let operands: Vec<Operand> = places.iter().map(|&i| inputs[i].clone()).collect();
        let reduced = match (via, &mut sums) {
            (Via::Native, Some(sums)) => sums.add(w, &operands),
            (Via::Native, None) if is_narrow_sum(kind, dtype) => {
                let all = everyone(w);
                flat(w, &operands, |w, x| sum_of_parts(w, x, &all))
            }
            (Via::Native, None) => reduce_in(w, kind, &operands, &everyone(w)),
            (Via::OneDevice, _) => flat(w, &operands, |w, x| through_one(w, kind, x)),
            (Via::Hierarchical, _) => flat(w, &operands, |w, x| through_groups(w, kind, x)),
        };
        for (place, reduced) in places.into_iter().zip(reduced) {
            results[place] = reduced;
        }
    }
    w.host_all_reduce = sums;
    results
}

fn reduce_in(w: &mut Writer, kind: ReduceOp, inputs: &[Operand], groups: &Groups) -> Vec<Operand> {
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape.clone()).collect();
    let names = list(inputs.iter().map(|input| input.name.clone()));
    let text = format!(
        "\"stablehlo.all_reduce\"({names}) <{{replica_groups = {}}}> ({{",
        table(groups)
    );
    let types = signature(inputs, &shapes);
    with_combiner(w, kind, shapes[0].dtype, &shapes, &text, &types)
}

/// What `exchange` makes of the operands laid end to end, cut up again.
fn flat(
    w: &mut Writer,
    inputs: &[Operand],
    exchange: impl FnOnce(&mut Writer, &Operand) -> Operand,
) -> Vec<Operand> {
    let mut rows: Vec<Operand> = Vec::with_capacity(inputs.len());
    for x in inputs {
        rows.push(w.reshape(x, &[x.shape.len()]));
    }
    let total = Shape::new(
        inputs[0].shape.dtype,
        [rows.iter().map(|row| row.shape.len()).sum()],
    );
    let joined = match rows.as_slice() {
        [row] => row.clone(),
        rows => w.typed("concatenate", rows, "dim = 0", &total, false),
    };
    let result = exchange(w, &joined);
    let mut start = 0;
    let mut results = Vec::with_capacity(inputs.len());
    for x in inputs {
        let part = w.slice(&result, start, start + x.shape.len());
        results.push(w.reshape(&part, &x.shape.dims));
        start += x.shape.len();
    }
    results
}

/// Replica 0 combines in the order of replicas; sums of 16-bit floats in f32. What the others combine is dropped.
fn through_one(w: &mut Writer, kind: ReduceOp, x: &Operand) -> Operand {
    let wide = working_dtype(kind, x.shape.dtype);
    let mut total = w.convert(x, wide);
    for replica in 1..w.replicas {
        let theirs = permute(w, x, &[(replica, 0)]);
        let theirs = w.convert(&theirs, wide);
        let shape = total.shape.clone();
        total = w.elementwise(kind.name(), &[total, theirs], &shape);
    }
    let total = w.convert(&total, x.shape.dtype);
    let number = Shape::scalar(DType::U32);
    let own = w.line(&number, "stablehlo.replica_id : tensor<ui32>");
    let mut result = total.clone();
    for replica in 1..w.replicas {
        let sent = permute(w, &total, &[(0, replica)]);
        let replica = w.full(&number, replica as f64);
        let is_here = number.with_dtype(DType::Bool);
        let here = w.typed("compare EQ,", &[own.clone(), replica], "", &is_here, false);
        result = super::select(w, &[here, sent, result], &x.shape);
    }
    result
}

/// The size of groups: the largest proper divisor up to the 8 devices of a machine; all replicas where there is none.
fn group_size(replicas: usize) -> usize {
    let divides = |size: &usize| replicas.is_multiple_of(*size);
    (2..=8.min(replicas / 2))
        .rev()
        .find(divides)
        .unwrap_or(replicas)
}

/// Reduce-scatter in each group, all-reduce across groups, all-gather in each group, of a multiple of the group's size.
fn through_groups(w: &mut Writer, kind: ReduceOp, x: &Operand) -> Operand {
    let (size, length) = (group_size(w.replicas), x.shape.len());
    let starts = (0..w.replicas).step_by(size);
    let within: Groups = starts
        .clone()
        .map(|start| (start..start + size).collect())
        .collect();
    let across: Groups = (0..size)
        .map(|place| starts.clone().map(|start| start + place).collect())
        .collect();
    let padded = Shape::new(x.shape.dtype, [length.next_multiple_of(size)]);
    let part = Shape::new(x.shape.dtype, [padded.len() / size]);
    let whole = w.lengthen(x, &padded);
    let narrow = is_narrow_sum(kind, x.shape.dtype);
    let mut own = match narrow {
        true => own_part(w, &whole, &part, &within),
        false => scatter_in(w, kind, &whole, 0, &part, &within),
    };
    if across[0].len() > 1 {
        own = match narrow {
            true => sum_of_parts(w, &own, &across),
            false => reduce_in(w, kind, &[own], &across).swap_remove(0),
        };
    }
    let all = gather_in(w, &own, 0, &padded, &within);
    w.slice(&all, 0, length)
}

/// Libraries add 16-bit floats in 16 bits, with an error that grows with each replica; so those are sent as they are,
/// added in f32 where they arrive, and rounded once.
fn is_narrow_sum(kind: ReduceOp, dtype: DType) -> bool {
    kind == ReduceOp::Sum && working_dtype(kind, dtype) != dtype
}

/// Each replica adds a part of the whole and sends the sum to all.
fn sum_of_parts(w: &mut Writer, x: &Operand, groups: &Groups) -> Operand {
    let (size, length) = (groups[0].len(), x.shape.len());
    let padded = Shape::new(x.shape.dtype, [length.next_multiple_of(size)]);
    let part = Shape::new(x.shape.dtype, [padded.len() / size]);
    let whole = w.lengthen(x, &padded);
    let own = own_part(w, &whole, &part, groups);
    let all = gather_in(w, &own, 0, &padded, groups);
    w.slice(&all, 0, length)
}

/// The sum of one part of every replica's, in the order of replicas.
fn own_part(w: &mut Writer, x: &Operand, part: &Shape, groups: &Groups) -> Operand {
    let (size, length) = (groups[0].len(), part.len());
    let received = exchange_in(w, x, [0, 0], &x.shape, groups);
    let mut total: Option<Operand> = None;
    for place in 0..size {
        let theirs = w.slice(&received, place * length, (place + 1) * length);
        let theirs = w.convert(&theirs, working_dtype(ReduceOp::Sum, part.dtype));
        total = Some(match total {
            None => theirs,
            Some(total) => {
                let shape = theirs.shape.clone();
                w.elementwise("add", &[total, theirs], &shape)
            }
        });
    }
    let total = total.expect("groups have members");
    w.convert(&total, part.dtype)
}

pub(super) fn all_gather(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    if w.replicas == 1 {
        return x.clone();
    }
    if w.world.is_some() {
        return world_exchange::all_gather(w, x, dim, shape);
    }
    let groups = everyone(w);
    gather_in(w, x, dim, shape, &groups)
}

fn gather_in(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape, groups: &Groups) -> Operand {
    let properties = format!(
        "all_gather_dim = {dim} : i64, replica_groups = {}",
        table(groups)
    );
    generic(w, "all_gather", x, &properties, shape)
}

pub(super) fn reduce_scatter(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    if w.replicas == 1 {
        return x.clone();
    }
    if w.world.is_some() {
        return world_exchange::reduce_scatter(w, x, dim, shape);
    }
    let groups = everyone(w);
    if !is_narrow_sum(ReduceOp::Sum, x.shape.dtype) || x.shape.is_empty() {
        return scatter_in(w, ReduceOp::Sum, x, dim, shape, &groups);
    }
    // The parts of the first dim lie end to end.
    let mut swap: Vec<usize> = (0..shape.rank()).collect();
    swap.swap(0, dim);
    let ordered = w.transpose(x, &swap);
    let flat = w.reshape(&ordered, &[x.shape.len()]);
    let part = Shape::new(shape.dtype, [shape.len()]);
    let own = own_part(w, &flat, &part, &groups);
    let dims: Vec<usize> = swap.iter().map(|&at| shape.dims[at]).collect();
    let own = w.reshape(&own, &dims);
    w.transpose(&own, &swap)
}

fn scatter_in(
    w: &mut Writer,
    kind: ReduceOp,
    x: &Operand,
    dim: usize,
    shape: &Shape,
    groups: &Groups,
) -> Operand {
    let text = format!(
        "\"stablehlo.reduce_scatter\"({}) <{{replica_groups = {}, scatter_dimension = {dim} : i64}}> ({{",
        x.name,
        table(groups)
    );
    let shapes = [shape.clone()];
    let types = signature(std::slice::from_ref(x), &shapes);
    with_combiner(w, kind, shape.dtype, &shapes, &text, &types).swap_remove(0)
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
    let groups = everyone(w);
    exchange_in(w, x, [split, concat], shape, &groups)
}

fn exchange_in(
    w: &mut Writer,
    x: &Operand,
    [split, concat]: [usize; 2],
    shape: &Shape,
    groups: &Groups,
) -> Operand {
    let properties = format!(
        "concat_dimension = {concat} : i64, replica_groups = {}, split_count = {} : i64, split_dimension = {split} : i64",
        table(groups),
        groups[0].len()
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

#[cfg(test)]
mod tests {
    use super::group_size;

    #[test]
    fn groups_are_as_large_as_a_machine_allows() {
        let sizes = [2, 3, 4, 6, 8, 9, 12, 16, 22, 64].map(group_size);
        assert_eq!(sizes, [2, 3, 2, 3, 4, 3, 6, 8, 2, 8]);
    }
}
