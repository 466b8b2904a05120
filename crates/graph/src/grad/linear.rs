//! Derivatives of matrix products.

use super::{Step, inverse};
use crate::op::{DotDims, Op};
use crate::{DType, Tensor};

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

/// A factor of the product that a gradient is: its batch dims, those that are summed over, and where the others belong in the gradient.
struct Factor<'a> {
    tensor: &'a Tensor,
    batch: Vec<usize>,
    contract: Vec<usize>,
    places: Vec<usize>,
}

/// The product of two factors whose batch dims belong to these places, either way around: so that what moves dims leaves the last, and most of
/// memory, where it is.
fn product([first, second]: [Factor<'_>; 2], batch: &[usize], dims: &DotDims) -> Tensor {
    let in_order = first.places.iter().max() < second.places.iter().max();
    let (lhs, rhs) = match in_order || is_short(first.tensor) {
        true => (first, second),
        false => (second, first),
    };
    let places = [batch, &lhs.places, &rhs.places].concat();
    let dims = DotDims {
        lhs_batch: lhs.batch,
        rhs_batch: rhs.batch,
        lhs_contract: lhs.contract,
        rhs_contract: rhs.contract,
        dtype: dims.dtype,
    };
    placed(&lhs.tensor.dot(rhs.tensor, dims), &places)
}

/// Whether its elements have 16 bits: XLA:CPU multiplies such matrices faster as they are, whatever happens to the result (decision 61).
fn is_short(tensor: &Tensor) -> bool {
    tensor.dtype().size() < 4
}

/// The cotangent of a product and a factor of it, to be multiplied: as short as the factor, but where f16 would lose what is small of the
/// cotangent. One that was f16 before it was widened loses nothing.
fn with_factor(g: &Tensor, factor: &Tensor) -> [Tensor; 2] {
    let own = factor.dtype();
    let node = g.graph().node(g.value().node);
    let widened =
        matches!(node.op, Op::Convert(_)) && g.graph().shape_of(node.inputs[0]).dtype == own;
    let dtype = match own {
        DType::F16 if !widened => g.dtype(),
        own => own,
    };
    [g.convert(dtype), factor.convert(dtype)]
}

/// `g` is `[batch.., lhs free.., rhs free..]`: contracted with the right side over its free dims.
fn dot_lhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let first = batch + lhs_free.len();
    let [g, factor] = &with_factor(g, rhs);
    let left = Factor {
        tensor: g,
        batch: (0..batch).collect(),
        contract: (first..first + rhs_free.len()).collect(),
        places: lhs_free,
    };
    let right = Factor {
        tensor: factor,
        batch: dims.rhs_batch.clone(),
        contract: rhs_free,
        places: matching(&dims.rhs_contract, &dims.lhs_contract),
    };
    product([left, right], &dims.lhs_batch, dims).convert(lhs.dtype())
}

fn dot_rhs(g: &Tensor, lhs: &Tensor, rhs: &Tensor, dims: &DotDims) -> Tensor {
    let batch = dims.lhs_batch.len();
    let lhs_free = free_dims(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let [g, factor] = &with_factor(g, lhs);
    let right = Factor {
        tensor: g,
        batch: (0..batch).collect(),
        contract: (batch..batch + lhs_free.len()).collect(),
        places: free_dims(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract),
    };
    let left = Factor {
        tensor: factor,
        batch: dims.lhs_batch.clone(),
        contract: lhs_free,
        places: matching(&dims.lhs_contract, &dims.rhs_contract),
    };
    product([left, right], &dims.rhs_batch, dims).convert(rhs.dtype())
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
