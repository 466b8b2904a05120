//! Derivatives of products: dot and convolution.

use super::{Step, inverse};
use crate::Tensor;
use crate::op::{ConvDims, ConvSpec, DotDims};

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

pub(super) fn conv(step: &Step, g: &Tensor, dims: &ConvDims) -> Vec<Option<Tensor>> {
    let (input, kernel) = (step.input(0), step.input(1));
    if dims.batch_groups == 1 {
        return vec![
            step.when(0, || conv_input(g, &input, &kernel, dims)),
            step.when(1, || conv_kernel(g, &input, &kernel, dims)),
        ];
    }
    // Groups of the batch are groups of features once the group is moved from batch to feature.
    let groups = dims.batch_groups;
    let (batch, feature) = (dims.input.batch, dims.input.feature);
    let grouped = move_groups(&input, batch, feature, groups);
    let same = ConvDims {
        batch_groups: 1,
        feature_groups: groups,
        ..dims.clone()
    };
    vec![
        step.when(0, || {
            let gradient = conv_input(g, &grouped, &kernel, &same);
            move_groups(&gradient, feature, batch, groups)
        }),
        step.when(1, || conv_kernel(g, &grouped, &kernel, &same)),
    ]
}

/// Splits `groups` off the front of dim `from` and puts them before the elements of dim `to`.
fn move_groups(tensor: &Tensor, from: usize, to: usize, groups: usize) -> Tensor {
    let dims = tensor.dims();
    let mut split = dims.clone();
    split[from] /= groups;
    let mut joined = split.clone();
    joined[to] *= groups;
    split.insert(from, groups);
    // In the split tensor the group is dim `from`; the others shifted by one behind it.
    let shifted = |dim: usize| if dim < from { dim } else { dim + 1 };
    let mut perm = Vec::new();
    for dim in 0..dims.len() {
        if dim == to {
            perm.push(from);
        }
        perm.push(shifted(dim));
    }
    tensor.reshape(&split).transpose(&perm).reshape(&joined)
}

struct Extent {
    input: i64,
    kernel: i64,
    output: i64,
}

/// Sizes along a spatial dim, with the zeros that dilation and stride put between.
fn extent(g: &Tensor, input: &Tensor, kernel: &Tensor, dims: &ConvDims, i: usize) -> Extent {
    let dilated = |size: usize, by: usize| (size as i64 - 1) * by as i64 + 1;
    Extent {
        input: dilated(input.dims()[dims.input.spatial[i]], dims.input_dilation[i]),
        kernel: dilated(
            kernel.dims()[dims.kernel.spatial[i]],
            dims.kernel_dilation[i],
        ),
        output: dilated(g.dims()[dims.output.spatial[i]], dims.strides[i]),
    }
}

/// The cotangent convolved with the reversed kernel, stride and input dilation exchanged.
fn conv_input(g: &Tensor, input: &Tensor, kernel: &Tensor, dims: &ConvDims) -> Tensor {
    let padding = (0..dims.strides.len()).map(|i| {
        let size = extent(g, input, kernel, dims, i);
        let low = size.kernel - 1 - dims.padding[i].0;
        (low, size.input + size.kernel - 1 - size.output - low)
    });
    let (turned, spec) = turned_kernel(kernel, dims);
    let transposed = ConvDims {
        input: dims.output.clone(),
        kernel: spec,
        output: dims.input.clone(),
        strides: dims.input_dilation.clone(),
        padding: padding.collect(),
        input_dilation: dims.strides.clone(),
        kernel_dilation: dims.kernel_dilation.clone(),
        feature_groups: dims.feature_groups,
        batch_groups: 1,
    };
    g.conv(&turned.reverse(&dims.kernel.spatial), transposed)
}

/// The kernel with input and output features exchanged, within each group.
fn turned_kernel(kernel: &Tensor, dims: &ConvDims) -> (Tensor, ConvSpec) {
    let spec = &dims.kernel;
    if dims.feature_groups > 1 {
        let grouped = move_groups(kernel, spec.batch, spec.feature, dims.feature_groups);
        // Input features now hold `[group, in]` and output features `[out]`: exchange the two dims.
        return (grouped, exchanged(spec));
    }
    (kernel.clone(), exchanged(spec))
}

fn exchanged(spec: &ConvSpec) -> ConvSpec {
    ConvSpec {
        batch: spec.feature,
        feature: spec.batch,
        spatial: spec.spatial.clone(),
    }
}

/// The input convolved with the cotangent: batch and features exchanged, stride and kernel dilation too.
fn conv_kernel(g: &Tensor, input: &Tensor, kernel: &Tensor, dims: &ConvDims) -> Tensor {
    let padding = (0..dims.strides.len()).map(|i| {
        let size = extent(g, input, kernel, dims, i);
        let low = dims.padding[i].0;
        (low, size.output + size.kernel - size.input - 1 - low)
    });
    let correlated = ConvDims {
        input: exchanged(&dims.input),
        kernel: exchanged(&dims.output),
        output: exchanged(&dims.kernel),
        strides: dims.kernel_dilation.clone(),
        padding: padding.collect(),
        input_dilation: dims.input_dilation.clone(),
        kernel_dilation: dims.strides.clone(),
        feature_groups: 1,
        batch_groups: dims.feature_groups,
    };
    input.conv(g, correlated)
}
