//! Reductions, whole and over windows.

use phalanx_graph::DType;
use phalanx_graph::op::{ReduceOp, UnaryOp, WindowDim};

use super::contract::is_pooled;
use super::elementwise::unary;
use super::message::NodeArgument;
use super::size::Size;
use super::writer::{OnnxValue, OnnxWriter};
use crate::Result;

pub(super) fn reduce(
    w: &mut OnnxWriter,
    kind: ReduceOp,
    x: &OnnxValue,
    over: &[usize],
    dims: Vec<Size>,
) -> Result<OnnxValue> {
    if over.is_empty() {
        return Ok(x.clone());
    }
    let is_bool = x.dtype == DType::Bool;
    let op = match kind {
        ReduceOp::Max => "ReduceMax",
        ReduceOp::Or if is_bool => "ReduceMax",
        ReduceOp::Min => "ReduceMin",
        ReduceOp::And if is_bool => "ReduceMin",
        ReduceOp::Sum => "ReduceSum",
        ReduceOp::Prod => "ReduceProd",
        ReduceOp::And | ReduceOp::Or => return Err(w.refused("bits are not reduced there")),
    };
    let full = w.full(x);
    let wide = match x.dtype {
        DType::Bool => w.convert(&full, DType::I32),
        DType::U8 | DType::U32 => w.convert(&full, DType::I64),
        _ => full,
    };
    let axes = w.sizes(over);
    let name = w.node(
        op,
        &[&wide.name, &axes],
        &[("keepdims", NodeArgument::Int(0))],
    );
    Ok(w.convert(&OnnxValue::new(name, wide.dtype, dims), x.dtype))
}

/// Windows by ONNX's poolings, which want the dims that have windows last, behind two others.
pub(super) fn pool(
    w: &mut OnnxWriter,
    kind: ReduceOp,
    x: &OnnxValue,
    window: &[WindowDim],
    dims: &[Size],
) -> Result<OnnxValue> {
    let is_over = |dim: &usize| window[*dim] != WindowDim::identity();
    let (over, others): (Vec<usize>, Vec<usize>) = (0..window.len()).partition(is_over);
    if over.is_empty() {
        return Ok(x.clone());
    }
    let order = [&others[..], &over].concat();
    let x = w.full(x);
    let turned = w.transpose(&x, &order);
    let sizes = |dims: &[Size]| order.iter().map(|&dim| dims[dim]).collect::<Vec<_>>();
    let (ordered, result) = (sizes(&x.dims), sizes(dims));
    let Some(all) = Size::product(&ordered[..others.len()]) else {
        return Err(w.bound_to_batch("how many windows there are"));
    };
    // Two dims before the windows are a batch and its features; others are as good as one.
    let before = match others.len() {
        2 => ordered[..2].to_vec(),
        _ => vec![all, Size::ONE],
    };
    let pooled = |sizes: &[Size]| [&before, &sizes[others.len()..]].concat();
    let windows: Vec<WindowDim> = over.iter().map(|&dim| window[dim]).collect();
    let flat = w.reshape(&turned, &pooled(&ordered));
    let found = windows_of(w, kind, &flat, &windows, pooled(&result))?;
    let found = w.reshape(&found, &result);
    let place = |dim: usize| order.iter().position(|&other| other == dim).unwrap_or(dim);
    let back: Vec<usize> = (0..order.len()).map(place).collect();
    Ok(w.transpose(&found, &back))
}

/// Of `[batch, feature, windows..]`.
fn windows_of(
    w: &mut OnnxWriter,
    kind: ReduceOp,
    x: &OnnxValue,
    windows: &[WindowDim],
    dims: Vec<Size>,
) -> Result<OnnxValue> {
    let fits = windows
        .iter()
        .all(|window| window.low.max(window.high) < window.size);
    let is_dilated = windows.iter().any(|window| window.dilation > 1);
    if !is_pooled(x.dtype) || !fits || (kind == ReduceOp::Sum && is_dilated) {
        return Err(w.refused("ONNX pools floats alone, pads by less than a window, and sums windows without gaps; export the model as StableHLO (`NAME.mlir`)"));
    }
    let field = |of: fn(&WindowDim) -> usize| windows.iter().map(of).collect::<Vec<_>>();
    let padding = [field(|window| window.low), field(|window| window.high)].concat();
    let mut arguments = vec![
        (
            "kernel_shape",
            NodeArgument::ints(field(|window| window.size)),
        ),
        ("strides", NodeArgument::ints(field(|window| window.stride))),
        ("pads", NodeArgument::ints(padding)),
    ];
    match kind {
        ReduceOp::Max | ReduceOp::Min => {
            arguments.push((
                "dilations",
                NodeArgument::ints(field(|window| window.dilation)),
            ));
            let negate = |w: &mut OnnxWriter, x: &OnnxValue| match kind {
                ReduceOp::Min => unary(w, UnaryOp::Neg, x),
                _ => x.clone(),
            };
            let given = negate(w, x);
            let name = w.node("MaxPool", &[&given.name], &arguments);
            Ok(negate(w, &OnnxValue::new(name, x.dtype, dims)))
        }
        ReduceOp::Sum => {
            arguments.push(("count_include_pad", NodeArgument::Int(1)));
            let means = w.node("AveragePool", &[&x.name], &arguments);
            let count = windows.iter().map(|window| window.size).product::<usize>();
            let count = w.scalar(x.dtype, count as f64);
            let name = w.node("Mul", &[&means, &count], &[]);
            Ok(OnnxValue::new(name, x.dtype, dims))
        }
        ReduceOp::Prod | ReduceOp::And | ReduceOp::Or => {
            Err(w.refused("ONNX has maxima and means of windows alone"))
        }
    }
}
