//! Derivatives of convolutions, as ops of their own and as convolutions.

use super::Step;
use crate::op::{ConvDims, ConvSpec, Op, SliceDim};
use crate::{Kernel, Sharding, Tensor};

pub(super) fn conv(step: &Step, g: &Tensor, dims: &ConvDims) -> Vec<Option<Tensor>> {
    let (input, kernel) = (step.input(0), step.input(1));
    if dims.batch_groups == 1 {
        return vec![
            step.when(0, || to_input(g, &input.dims(), &kernel, dims)),
            step.when(1, || to_kernel(g, &input, &kernel.dims(), dims)),
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
            let gradient = to_input(g, &grouped.dims(), &kernel, &same);
            move_groups(&gradient, feature, batch, groups)
        }),
        step.when(1, || to_kernel(g, &grouped, &kernel.dims(), &same)),
    ]
}

/// The derivative of the input's gradient, which is linear in the cotangent and in the kernel.
pub(super) fn input_gradient_vjp(step: &Step, g: &Tensor, dims: &ConvDims) -> Vec<Option<Tensor>> {
    let (cotangent, kernel) = (step.input(0), step.input(1));
    vec![
        step.when(0, || g.conv(&kernel, dims.clone())),
        step.when(1, || to_kernel(&cotangent, g, &kernel.dims(), dims)),
    ]
}

/// The derivative of the kernel's gradient, which is linear in the input and in the cotangent.
pub(super) fn kernel_gradient_vjp(step: &Step, g: &Tensor, dims: &ConvDims) -> Vec<Option<Tensor>> {
    let (input, cotangent) = (step.input(0), step.input(1));
    vec![
        step.when(0, || to_input(&cotangent, &input.dims(), g, dims)),
        step.when(1, || input.conv(g, dims.clone())),
    ]
}

fn to_input(g: &Tensor, input: &[usize], kernel: &Tensor, dims: &ConvDims) -> Tensor {
    let (dims, input) = (dims.clone(), input.to_vec());
    let op = Kernel::ConvInputGradient { dims, input };
    g.graph().push(Op::Kernel(op), &[g, kernel])
}

fn to_kernel(g: &Tensor, input: &Tensor, kernel: &[usize], dims: &ConvDims) -> Tensor {
    let (input, dims) = without_unseen(input, g, kernel, dims);
    let kernel = kernel.to_vec();
    let (input, g) = match dims.feature_groups {
        1 => (input, g.clone()),
        _ => (whole_on_planes(&input), whole_on_planes(g)),
    };
    let op = Kernel::ConvKernelGradient { dims, kernel };
    g.graph().push(Op::Kernel(op), &[&input, &g])
}

/// The elements that a kernel of one place meets in its strides, and the convolution of those without strides.
///
/// oneDNN's gradient of such a kernel is wrong, or does not end, for some sizes (decision 31); and it copies these elements, too.
fn without_unseen(
    input: &Tensor,
    g: &Tensor,
    kernel: &[usize],
    dims: &ConvDims,
) -> (Tensor, ConvDims) {
    let spatial = 0..dims.strides.len();
    let of_one_place = spatial.clone().all(|i| {
        kernel[dims.kernel.spatial[i]] == 1
            && dims.padding[i] == (0, 0)
            && dims.input_dilation[i] == 1
    });
    if !of_one_place || dims.strides.iter().all(|&stride| stride == 1) || g.dims().contains(&0) {
        return (input.clone(), dims.clone());
    }
    let all = |&limit: &usize| SliceDim {
        start: 0,
        limit,
        stride: 1,
    };
    let mut met: Vec<SliceDim> = input.dims().iter().map(all).collect();
    for i in spatial {
        let (stride, count) = (dims.strides[i], g.dim(dims.output.spatial[i]));
        let limit = (count - 1) * stride + 1;
        met[dims.input.spatial[i]] = SliceDim {
            start: 0,
            limit,
            stride,
        };
    }
    let strides = vec![1; dims.strides.len()];
    (
        input.slice(&met),
        ConvDims {
            strides,
            ..dims.clone()
        },
    )
}

/// The tensor on every device, where a mesh has more than one axis: XLA's partitioner then adds what is left of this
/// gradient of a grouped convolution over the wrong devices, where a tensor is cut over one axis and repeated over another.
fn whole_on_planes(tensor: &Tensor) -> Tensor {
    let mesh = tensor.graph().mesh();
    let is_plane =
        mesh.is_some_and(|mesh| mesh.axes.iter().filter(|(_, size)| *size > 1).count() > 1);
    match is_plane {
        true => tensor.sharded(&Sharding::replicated(tensor.rank())),
        false => tensor.clone(),
    }
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
fn extent(g: &[usize], input: &[usize], kernel: &[usize], dims: &ConvDims, i: usize) -> Extent {
    let dilated = |size: usize, by: usize| (size as i64 - 1) * by as i64 + 1;
    Extent {
        input: dilated(input[dims.input.spatial[i]], dims.input_dilation[i]),
        kernel: dilated(kernel[dims.kernel.spatial[i]], dims.kernel_dilation[i]),
        output: dilated(g[dims.output.spatial[i]], dims.strides[i]),
    }
}

/// The cotangent convolved with the reversed kernel, stride and input dilation exchanged.
pub(crate) fn input_gradient(
    g: &Tensor,
    input: &[usize],
    kernel: &Tensor,
    dims: &ConvDims,
) -> Tensor {
    if g.shape().is_empty() {
        return g.like(0.0).broadcast_to(input);
    }
    let padding = (0..dims.strides.len()).map(|i| {
        let size = extent(&g.dims(), input, &kernel.dims(), dims, i);
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
pub(crate) fn kernel_gradient(
    g: &Tensor,
    input: &Tensor,
    kernel: &[usize],
    dims: &ConvDims,
) -> Tensor {
    if g.shape().is_empty() || input.shape().is_empty() {
        return g.like(0.0).broadcast_to(kernel);
    }
    let padding = (0..dims.strides.len()).map(|i| {
        let size = extent(&g.dims(), &input.dims(), kernel, dims, i);
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
