//! Shapes of matrix products, convolutions and reductions over windows.

use super::{
    check_combines, check_dim, check_distinct, check_rank, check_steps, operand, product, sum,
    wrong_type,
};
use crate::op::{ConvDims, ConvSpec, DotDims, ReduceOp, WindowDim};
use crate::{DType, Shape};

pub(super) fn dot(inputs: &[&Shape], dims: &DotDims) -> Result<Shape, String> {
    let (lhs, rhs) = (operand(inputs, 0)?, operand(inputs, 1)?);
    let pairs = [
        (&dims.lhs_batch, &dims.rhs_batch, "batch"),
        (&dims.lhs_contract, &dims.rhs_contract, "contracted"),
    ];
    for (left, right, what) in pairs {
        if left.len() != right.len() {
            return Err(format!(
                "{what} dims {left:?} and {right:?} differ in number"
            ));
        }
        for (&l, &r) in left.iter().zip(right) {
            let (a, b) = (check_dim(lhs, l)?, check_dim(rhs, r)?);
            if a != b {
                return Err(format!(
                    "{what} dim {l} of {lhs} has size {a}, but dim {r} of {rhs} has {b}"
                ));
            }
        }
    }
    for (batch, contract) in [
        (&dims.lhs_batch, &dims.lhs_contract),
        (&dims.rhs_batch, &dims.rhs_contract),
    ] {
        check_distinct(
            &[&batch[..], contract].concat(),
            "batch and contracted dims",
        )?;
    }
    if lhs.dtype != rhs.dtype {
        return Err(format!("expected one element type, got {lhs} and {rhs}"));
    }
    if lhs.dtype == DType::Bool {
        return wrong_type(lhs, "numbers");
    }
    let narrows = lhs.dtype.is_float() && !dims.dtype.is_float();
    if narrows || dims.dtype == DType::Bool {
        return Err(format!(
            "a product of {lhs} and {rhs} cannot be {}",
            dims.dtype
        ));
    }
    let mut out: Vec<usize> = dims.lhs_batch.iter().map(|&d| lhs.dims[d]).collect();
    out.extend(free_dims(lhs, &dims.lhs_batch, &dims.lhs_contract).map(|d| lhs.dims[d]));
    out.extend(free_dims(rhs, &dims.rhs_batch, &dims.rhs_contract).map(|d| rhs.dims[d]));
    Ok(Shape::new(dims.dtype, out))
}

/// The dims of a dot operand that are neither batch nor contracted, ascending.
fn free_dims<'a>(
    shape: &Shape,
    batch: &'a [usize],
    contract: &'a [usize],
) -> impl Iterator<Item = usize> + use<'a> {
    (0..shape.rank()).filter(move |dim| !batch.contains(dim) && !contract.contains(dim))
}

pub(super) fn conv(inputs: &[&Shape], dims: &ConvDims) -> Result<Shape, String> {
    let (input, kernel) = (operand(inputs, 0)?, operand(inputs, 1)?);
    let spatial = dims.strides.len();
    if input.rank() != spatial + 2 || kernel.rank() != spatial + 2 {
        return Err(format!(
            "a convolution over {spatial} spatial dims needs rank {}, got input {input} and kernel {kernel}",
            spatial + 2
        ));
    }
    check_conv(dims)?;
    let (features, batch) = (input.dims[dims.input.feature], input.dims[dims.input.batch]);
    let (in_features, out_features) = (
        kernel.dims[dims.kernel.feature],
        kernel.dims[dims.kernel.batch],
    );
    let groups_fit = product([in_features, dims.feature_groups])? == features
        && out_features % dims.feature_groups == 0
        && out_features % dims.batch_groups == 0
        && batch % dims.batch_groups == 0;
    if input.dtype != kernel.dtype {
        return Err(format!(
            "expected one element type, got {input} and {kernel}"
        ));
    }
    if input.dtype == DType::Bool {
        return wrong_type(input, "numbers");
    }
    if !groups_fit {
        return Err(format!(
            "kernel {kernel} does not fit input {input} with {} groups: expected {} input features per group",
            dims.feature_groups,
            features / dims.feature_groups.max(1)
        ));
    }
    let mut out = vec![0; spatial + 2];
    out[dims.output.batch] = batch / dims.batch_groups;
    out[dims.output.feature] = out_features;
    for i in 0..spatial {
        let size = input.dims[dims.input.spatial[i]];
        let window = kernel.dims[dims.kernel.spatial[i]];
        out[dims.output.spatial[i]] = conv_size(dims, i, size, window)?;
    }
    Ok(Shape::new(input.dtype, out))
}

/// Whether the numbers of a convolution make sense together, whatever it is applied to.
fn check_conv(dims: &ConvDims) -> Result<(), String> {
    let spatial = dims.strides.len();
    let lengths = [
        dims.padding.len(),
        dims.input_dilation.len(),
        dims.kernel_dilation.len(),
    ];
    if lengths != [spatial; 3] {
        return Err(format!(
            "expected {spatial} paddings, input dilations and kernel dilations, one per stride, got {lengths:?}"
        ));
    }
    for (layout, what) in [
        (&dims.input, "input"),
        (&dims.kernel, "kernel"),
        (&dims.output, "output"),
    ] {
        check_layout(layout, spatial, what)?;
    }
    let steps = [&dims.strides, &dims.input_dilation, &dims.kernel_dilation];
    if steps.iter().any(|list| list.contains(&0)) {
        return Err("strides and dilations must be at least 1".into());
    }
    check_steps(steps.into_iter().flatten().map(|&step| step as u64))?;
    let edges = dims.padding.iter().flat_map(|(low, high)| [low, high]);
    check_steps(edges.map(|edge| edge.unsigned_abs()))?;
    if dims.feature_groups == 0 || dims.batch_groups == 0 {
        return Err("a convolution has at least 1 group".into());
    }
    if dims.feature_groups > 1 && dims.batch_groups > 1 {
        return Err("a convolution groups either features or the batch, not both".into());
    }
    Ok(())
}

fn check_layout(layout: &ConvSpec, spatial: usize, what: &str) -> Result<(), String> {
    let mut places = vec![layout.batch, layout.feature];
    places.extend(&layout.spatial);
    places.sort_unstable();
    if places == (0..spatial + 2).collect::<Vec<_>>() {
        return Ok(());
    }
    Err(format!(
        "{layout:?} does not name each of the {} dims of the {what} once",
        spatial + 2
    ))
}

fn conv_size(dims: &ConvDims, i: usize, size: usize, window: usize) -> Result<usize, String> {
    let dilated = |n: usize, by: usize| match n {
        0 => Ok(0),
        _ => sum([product([n - 1, by])?, 1]),
    };
    let (low, high) = dims.padding[i];
    let spread = dilated(size, dims.input_dilation[i])?;
    let room = spread as i128 + i128::from(low) + i128::from(high);
    let window = dilated(window, dims.kernel_dilation[i])? as i128;
    if room == 0 && window > 0 {
        return Ok(0);
    }
    if room < window || window == 0 {
        return Err(format!(
            "a window of {window} does not fit the {room} elements of spatial dim {i}; pad the input or take a smaller kernel"
        ));
    }
    Ok(((room - window) as usize) / dims.strides[i] + 1)
}

pub(super) fn reduce_window(
    kind: ReduceOp,
    shape: &Shape,
    window: &[WindowDim],
) -> Result<Shape, String> {
    check_combines(kind, shape)?;
    check_rank(shape, window, "windows")?;
    let sizes = shape.dims.iter().zip(window).map(|(&size, w)| {
        if w.size == 0 || w.stride == 0 || w.dilation == 0 {
            return Err(format!("sizes, strides and dilations of a window must be at least 1, got {w:?}"));
        }
        check_steps([w.stride, w.dilation, w.low, w.high].map(|step| step as u64))?;
        let room = sum([size, w.low, w.high])?;
        let span = sum([product([w.size - 1, w.dilation])?, 1])?;
        if room == 0 {
            return Ok(0);
        }
        if span > room {
            return Err(format!(
                "a window of {span} does not fit a dim of {room} of {shape}; pad the input or take a smaller window"
            ));
        }
        Ok((room - span) / w.stride + 1)
    });
    Ok(Shape::new(
        shape.dtype,
        sizes.collect::<Result<Vec<_>, _>>()?,
    ))
}
