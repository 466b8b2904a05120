//! What replicas exchange.

use phalanx_graph::op::{Node, ReduceOp};
use phalanx_graph::{Op, Shape};

use super::elementwise::larger;
use super::moving::{pick, places, steps, strides};
use super::noise::Noise;
use super::window::int_combined;
use super::{Array, Dual, Operand};

/// The outputs of each replica.
type Outputs = Result<Vec<Vec<Dual>>, String>;

pub(super) const fn is_one(op: &Op) -> bool {
    matches!(
        op,
        Op::AllReduce { .. }
            | Op::AllGather { .. }
            | Op::ReduceScatter { .. }
            | Op::AllToAll { .. }
            | Op::CollectivePermute(_)
    )
}

/// An exchange, from the operands of each replica.
pub(super) fn eval(machine: &super::Machine, node: &Node, x: &[Vec<Operand>]) -> Outputs {
    let noise = &machine.noise;
    if let Op::AllReduce { kind, .. } = &node.op {
        let count = x.first().map_or(0, Vec::len);
        let found = (0..count).map(|i| all_reduce(*kind, &nth(x, i)?, noise));
        let found: Vec<Dual> = found.collect::<Result<_, _>>()?;
        return Ok(vec![found; x.len()]);
    }
    let (all, replicas) = (nth(x, 0)?, x.len());
    let made: Vec<Dual> = match &node.op {
        Op::AllGather { dim } => vec![joined(&all, *dim); replicas],
        Op::ReduceScatter { dim } => {
            let sum = all_reduce(ReduceOp::Sum, &all, noise)?;
            let parts = 0..replicas;
            parts
                .map(|part| cut(&sum, all[0].shape, *dim, part, replicas))
                .collect()
        }
        Op::AllToAll { split, concat } => {
            let parts = 0..replicas;
            parts
                .map(|part| exchanged(&all, *split, *concat, part))
                .collect()
        }
        Op::CollectivePermute(pairs) => {
            let parts = 0..replicas;
            parts.map(|to| received(&all, pairs, to)).collect()
        }
        op => return Err(format!("{} is no exchange", op.name())),
    };
    Ok(made.into_iter().map(|dual| vec![dual]).collect())
}

/// One operand of every replica.
fn nth<'a>(x: &[Vec<Operand<'a>>], i: usize) -> Result<Vec<Operand<'a>>, String> {
    let found: Option<Vec<Operand>> = x.iter().map(|list| list.get(i).copied()).collect();
    let found = found.filter(|list| !list.is_empty());
    found.ok_or_else(|| format!("operand {i} is missing"))
}

fn all_reduce(kind: ReduceOp, x: &[Operand], noise: &Noise) -> Result<Dual, String> {
    let (dtype, count) = (x[0].shape.dtype, x[0].value.len());
    if !dtype.is_float() {
        let mut found = x[0].ints()?.to_vec();
        for other in &x[1..] {
            for (a, &b) in found.iter_mut().zip(other.ints()?) {
                *a = int_combined(kind, dtype, *a, b);
            }
        }
        return Ok(Dual::ints(found));
    }
    let all: Vec<&[f64]> = x.iter().map(Operand::floats).collect::<Result<_, _>>()?;
    let combine = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let one = |i: usize| all.iter().map(|x| x[i]).reduce(f).unwrap_or_default();
        (0..count).map(one).collect()
    };
    let mut found = match kind {
        ReduceOp::Sum => combine(&|a, b| a + b),
        ReduceOp::Prod => combine(&|a, b| a * b),
        ReduceOp::Max => combine(&larger),
        ReduceOp::Min => combine(&|a, b| -larger(-a, -b)),
        ReduceOp::And | ReduceOp::Or => return Err("not a reduction of floats".into()),
    };
    let slopes: Vec<&[f64]> = x.iter().filter_map(Operand::slope).collect();
    if kind != ReduceOp::Sum && !slopes.is_empty() {
        return Err(format!("{} has no derivative", kind.name()));
    }
    if all.len() > 1 && kind == ReduceOp::Sum {
        noise.sums(&mut found, || combine(&|a, b| a.abs() + b.abs()));
    } else if all.len() > 1 && kind == ReduceOp::Prod {
        found.iter_mut().for_each(|y| *y = noise.relative(*y));
    }
    let along = |i: usize| slopes.iter().map(|t| t[i]).sum();
    let tangent = (!slopes.is_empty()).then(|| (0..count).map(along).collect());
    Ok(Dual::floats(found, tangent))
}

/// Every replica's tensor along a dim, in the order of replicas.
fn joined(x: &[Operand], dim: usize) -> Dual {
    // Seen as [before, own size of the dim and all after it].
    let before: usize = x[0].shape.dims.iter().take(dim).product();
    fn rows<T: Copy>(parts: &[&[T]], before: usize) -> Vec<T> {
        let row = |i: usize| {
            parts.iter().flat_map(move |part| {
                let size = part.len() / before.max(1);
                part[i * size..][..size].iter().copied()
            })
        };
        (0..before).flat_map(row).collect()
    }
    if let Ok(all) = x.iter().map(Operand::ints).collect::<Result<Vec<_>, _>>() {
        return Dual::ints(rows(&all, before));
    }
    let all: Vec<&[f64]> = x.iter().filter_map(|x| x.floats().ok()).collect();
    let values = rows(&all, before);
    if x.iter().all(|x| x.slope().is_none()) {
        return Dual::floats(values, None);
    }
    let zeros = vec![0.0; x[0].value.len()];
    let slopes: Vec<&[f64]> = x.iter().map(|x| x.slope().unwrap_or(&zeros)).collect();
    Dual::floats(values, Some(rows(&slopes, before)))
}

/// One of equal parts of a dim.
fn cut(x: &Dual, shape: &Shape, dim: usize, part: usize, parts: usize) -> Dual {
    let strides = strides(&shape.dims);
    let offsets = (0..shape.rank()).map(|i| {
        let all = steps(shape.dims[i], strides[i]);
        let size = all.len() / parts;
        if i == dim {
            all[part * size..][..size].to_vec()
        } else {
            all
        }
    });
    let places = places(&offsets.collect::<Vec<_>>());
    let value = match &x.value {
        Array::Floats(values) => Array::Floats(pick(values, &places)),
        Array::Ints(values) => Array::Ints(pick(values, &places)),
    };
    let tangent = match x.tangent.is_empty() {
        true => Vec::new(),
        false => pick(&x.tangent, &places),
    };
    Dual { value, tangent }
}

/// The part of every replica's tensor that is for replica `to`, joined.
fn exchanged(x: &[Operand], split: usize, concat: usize, to: usize) -> Dual {
    let whole = |x: &Operand| Dual {
        value: x.value.clone(),
        tangent: x.tangent.to_vec(),
    };
    let part = |one: &Operand| cut(&whole(one), one.shape, split, to, x.len());
    let parts: Vec<Dual> = x.iter().map(part).collect();
    let mut shape = x[0].shape.clone();
    shape.dims[split] /= x.len();
    let parts = parts.iter().map(|part| Operand {
        shape: &shape,
        value: &part.value,
        tangent: &part.tangent,
    });
    joined(&parts.collect::<Vec<_>>(), concat)
}

/// What the replica that sends to `to` has; zeros where none does.
fn received(x: &[Operand], pairs: &[(usize, usize)], to: usize) -> Dual {
    let source = pairs.iter().find(|pair| pair.1 == to);
    match source.and_then(|&(from, _)| x.get(from)) {
        Some(x) => Dual {
            value: x.value.clone(),
            tangent: x.tangent.to_vec(),
        },
        None => Dual::from(Array::zeros(x[0].shape.dtype, x[0].value.len())),
    }
}
