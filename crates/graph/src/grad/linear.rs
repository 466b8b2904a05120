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

/// `g` is `[batch.., lhs free.., rhs free..]`: contracted with the right side over its free dims.
fn dot_lhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let first = batch + lhs_free.len();
    let product = g.convert(rhs.dtype()).dot(
        rhs,
        DotDims {
            lhs_batch: (0..batch).collect(),
            rhs_batch: dims.rhs_batch.clone(),
            lhs_contract: (first..first + rhs_free.len()).collect(),
            rhs_contract: rhs_free,
            dtype: dims.dtype,
        },
    );
    let contracted = matching(&dims.rhs_contract, &dims.lhs_contract);
    let places = [dims.lhs_batch.clone(), lhs_free, contracted].concat();
    placed(&product, &places).convert(lhs.dtype())
}

fn dot_rhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let product = lhs.dot(
        &g.convert(lhs.dtype()),
        DotDims {
            lhs_batch: dims.lhs_batch.clone(),
            rhs_batch: (0..batch).collect(),
            rhs_contract: (batch..batch + lhs_free.len()).collect(),
            lhs_contract: lhs_free,
            dtype: dims.dtype,
        },
    );
    let contracted = matching(&dims.lhs_contract, &dims.rhs_contract);
    let places = [dims.rhs_batch.clone(), contracted, rhs_free].concat();
    placed(&product, &places).convert(rhs.dtype())
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
