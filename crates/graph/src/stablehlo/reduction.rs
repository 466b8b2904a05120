//! Reductions: sums and products of 16-bit floats are taken in f32 and rounded once.

use super::host_reductions::host_reduction;
use super::literal::{int_array, int_table};
use super::writer::{Operand, Writer, signature};
use crate::op::{ReduceOp, WindowDim};
use crate::{DType, Shape};

/// The element type a reduction is computed in.
pub(super) fn working_dtype(kind: ReduceOp, dtype: DType) -> DType {
    match kind {
        ReduceOp::Sum | ReduceOp::Prod => dtype.wide(),
        _ => dtype,
    }
}

pub(super) fn reduce(w: &mut Writer, kind: ReduceOp, x: &Operand, dims: &[usize]) -> Operand {
    if dims.is_empty() {
        return x.clone();
    }
    if let Some(result) = host_reduction(w, kind, x, dims) {
        return result;
    }
    let dtype = x.shape.dtype;
    let wide = w.convert(x, working_dtype(kind, dtype));
    let kept = (0..wide.shape.rank()).filter(|dim| !dims.contains(dim));
    let kept: Vec<usize> = kept.map(|dim| wide.shape.dims[dim]).collect();
    let shape = Shape::new(wide.shape.dtype, kept);
    let init = identity(w, kind, wide.shape.dtype);
    let text = format!(
        "stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {dims:?} : {}",
        wide.name,
        init.name,
        kind.name(),
        signature(&[wide.clone(), init.clone()], std::slice::from_ref(&shape))
    );
    let result = w.line(&shape, &text);
    w.convert(&result, dtype)
}

pub(super) fn reduce_window(
    w: &mut Writer,
    kind: ReduceOp,
    x: &Operand,
    window: &[WindowDim],
    shape: &Shape,
) -> Operand {
    if window.is_empty() {
        return x.clone();
    }
    let wide = w.convert(x, working_dtype(kind, x.shape.dtype));
    let init = identity(w, kind, wide.shape.dtype);
    let shapes = [shape.with_dtype(wide.shape.dtype)];
    let field = |of: fn(&WindowDim) -> usize| int_array(&window.iter().map(of).collect::<Vec<_>>());
    let padding: Vec<Vec<usize>> = window.iter().map(|dim| vec![dim.low, dim.high]).collect();
    let text = format!(
        "\"stablehlo.reduce_window\"({}, {}) <{{padding = {}, window_dilations = {}, window_dimensions = {}, window_strides = {}}}> ({{",
        wide.name,
        init.name,
        int_table(&padding, 2),
        field(|dim| dim.dilation),
        field(|dim| dim.size),
        field(|dim| dim.stride),
    );
    let types = signature(&[wide.clone(), init], &shapes);
    let result = with_combiner(w, kind, wide.shape.dtype, &shapes, &text, &types);
    w.convert(&result[0], shape.dtype)
}

/// An op in generic form with one region that combines two scalars.
pub(super) fn with_combiner(
    w: &mut Writer,
    kind: ReduceOp,
    dtype: DType,
    shapes: &[Shape],
    text: &str,
    types: &str,
) -> Vec<Operand> {
    let results = w.header(shapes, text);
    let scalar = Shape::scalar(dtype);
    let (a, b) = (w.fresh(&scalar), w.fresh(&scalar));
    let t = scalar.stablehlo();
    w.open(&format!("^bb0({}: {t}, {}: {t}):", a.name, b.name));
    let combined = w.elementwise(kind.name(), &[a, b], &scalar);
    w.finish_block("stablehlo.return", &[combined]);
    let location = w.location();
    w.close(&format!("}}) : {types}{location}"));
    results
}

fn identity(w: &mut Writer, kind: ReduceOp, dtype: DType) -> Operand {
    w.constant(&kind.identity(dtype), &Shape::scalar(dtype))
}
