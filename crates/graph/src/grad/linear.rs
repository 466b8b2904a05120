//! Derivatives of matrix products.

use super::{Step, inverse};
use crate::Tensor;
use crate::op::DotDims;

pub(super) fn dot(step: &Step, g: &Tensor, dims: &DotDims) -> Vec<Option<Tensor>> {
    let (lhs, rhs) = (step.input(0), step.input(1));
    vec![
        step.when(0, || dot_lhs(g, &lhs, &rhs, dims)),
        step.when(1, || dot_rhs(g, &lhs, &rhs, dims)),
    ]
}

fn free_dims(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    let is_free = |dim: &usize| !batch.contains(dim) && !contract.contains(dim);
    (0..rank).filter(is_free).collect()
}

/// A factor of the product that a gradient is, with its batch dims and those that are summed over.
struct Factor<'a> {
    tensor: &'a Tensor,
    batch: Vec<usize>,
    contract: Vec<usize>,
}

/// The product of `first` and `second` where the last dim of the result is to be one of `second`'s, else of `second` and `first`: what
/// moves dims then leaves the last, and most of memory, where it is.
fn product(first: Factor<'_>, second: Factor<'_>, in_order: bool, dims: &DotDims) -> Tensor {
    let (lhs, rhs) = if in_order {
        (first, second)
    } else {
        (second, first)
    };
    let dims = DotDims {
        lhs_batch: lhs.batch,
        rhs_batch: rhs.batch,
        lhs_contract: lhs.contract,
        rhs_contract: rhs.contract,
        dtype: dims.dtype,
    };
    lhs.tensor.dot(rhs.tensor, dims)
}

/// `g` is `[batch.., lhs free.., rhs free..]`: contracted with the right side over its free dims.
fn dot_lhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let first = batch + lhs_free.len();
    let in_order = lhs_free.last() < dims.lhs_contract.iter().max() || is_short(rhs);
    let contracted = matching(&dims.rhs_contract, &dims.lhs_contract);
    let places = places(&dims.lhs_batch, [&lhs_free, &contracted], in_order);
    let left = Factor {
        tensor: &g.convert(rhs.dtype()),
        batch: (0..batch).collect(),
        contract: (first..first + rhs_free.len()).collect(),
    };
    let right = Factor {
        tensor: rhs,
        batch: dims.rhs_batch.clone(),
        contract: rhs_free,
    };
    let product = product(left, right, in_order, dims);
    placed(&product, &places).convert(lhs.dtype())
}

fn dot_rhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let in_order = dims.rhs_contract.iter().max() < rhs_free.last() || is_short(lhs);
    let contracted = matching(&dims.lhs_contract, &dims.rhs_contract);
    let places = places(&dims.rhs_batch, [&contracted, &rhs_free], in_order);
    let left = Factor {
        tensor: lhs,
        batch: dims.lhs_batch.clone(),
        contract: lhs_free.clone(),
    };
    let right = Factor {
        tensor: &g.convert(lhs.dtype()),
        batch: (0..batch).collect(),
        contract: (batch..batch + lhs_free.len()).collect(),
    };
    let product = product(left, right, in_order, dims);
    placed(&product, &places).convert(rhs.dtype())
}

/// Whether its elements have 16 bits: XLA:CPU multiplies such matrices faster as they are, whatever happens to the result (decision 61).
fn is_short(tensor: &Tensor) -> bool {
    tensor.dtype().size() < 4
}

/// Where the dims of the result of a [`product`] belong.
fn places(batch: &[usize], [first, second]: [&[usize]; 2], in_order: bool) -> Vec<usize> {
    match in_order {
        true => [batch, first, second].concat(),
        false => [batch, second, first].concat(),
    }
}

/// The partners in `to` of the dims `from`, in ascending order of `from`.
fn matching(from: &[usize], to: &[usize]) -> Vec<usize> {
    let mut pairs: Vec<_> = from.iter().zip(to).collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, &dim)| dim).collect()
}

/// Moves dim `i` to dim `places[i]`.
fn placed(tensor: &Tensor, places: &[usize]) -> Tensor {
    if places.iter().enumerate().all(|(i, &place)| i == place) {
        return tensor.clone();
    }
    tensor.transpose(&inverse(places))
}
