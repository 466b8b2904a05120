//! Ops that move elements and compute nothing.

use phalanx_graph::op::{PadDim, SliceDim};
use phalanx_graph::{DType, HostTensor, Shape};

use super::message::NodeArgument;
use super::size::Size;
use super::writer::{OnnxValue, OnnxWriter};
use crate::Result;

/// Counts along `dim`, to be repeated along the others.
pub(super) fn iota(w: &mut OnnxWriter, dtype: DType, dims: &[Size], dim: usize) -> OnnxValue {
    let counts = match dims[dim] {
        Size::Fixed(size) => {
            let numbers: Vec<f64> = (0..size).map(|number| number as f64).collect();
            w.constant(&HostTensor::from_f64(Shape::new(dtype, [size]), &numbers))
        }
        Size::Batches(count) => {
            let [zero, one] = [0.0, 1.0].map(|number| w.scalar(DType::I64, number));
            let axes = w.ints(&[0]);
            let end = w.batch(count);
            let end = w.node("Squeeze", &[&end, &axes], &[]);
            let counts = w.node("Range", &[&zero, &end, &one], &[]);
            w.convert(&OnnxValue::new(counts, DType::I64, vec![dims[dim]]), dtype)
        }
    };
    broadcast(w, &counts, dims.to_vec(), &[dim])
}

/// Dims that are new are 1 until all elements are needed.
pub(super) fn broadcast(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    dims: Vec<Size>,
    map: &[usize],
) -> OnnxValue {
    // What is stored of `x` are its last dims.
    let map = &map[map.len() - x.stored.len()..];
    let first = map.first().copied().unwrap_or(dims.len());
    let new = (first..dims.len()).filter(|dim| !map.contains(dim));
    let new: Vec<usize> = new.map(|dim| dim - first).collect();
    let value = w.unsqueezed(x, &new);
    OnnxValue { dims, ..value }
}

/// `x[starts..ends; steps]` along some dims.
fn sliced(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    ranges: &[(usize, [i64; 3])],
    dims: &[Size],
) -> OnnxValue {
    if ranges.is_empty() {
        return x.clone();
    }
    let x = w.full(x);
    let part = |part: usize| ranges.iter().map(|range| range.1[part]).collect::<Vec<_>>();
    let [starts, ends, steps] = [0, 1, 2].map(|number| w.ints(&part(number)));
    let axes = w.sizes(&ranges.iter().map(|range| range.0).collect::<Vec<_>>());
    let name = w.node("Slice", &[&x.name, &starts, &ends, &axes, &steps], &[]);
    OnnxValue::new(name, x.dtype, dims.to_vec())
}

pub(super) fn reverse(w: &mut OnnxWriter, x: &OnnxValue, reversed: &[usize]) -> OnnxValue {
    let ranges: Vec<_> = reversed
        .iter()
        .map(|&dim| (dim, [-1, i64::MIN, -1]))
        .collect();
    sliced(w, x, &ranges, &x.dims)
}

pub(super) fn slice(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    slices: &[SliceDim],
    dims: &[Size],
) -> Result<OnnxValue> {
    let mut ranges = Vec::new();
    for (dim, slice) in slices.iter().enumerate() {
        let range = [slice.start, slice.limit, slice.stride].map(|place| place as i64);
        match (x.dims[dim], dims[dim]) {
            (from, to) if from == to && slice.stride == 1 => {}
            // Smaller batches do not have what is cut from the examples that were compared.
            (Size::Batches(least), Size::Fixed(_)) if slice.limit > least => {
                return Err(w.bound_to_batch("what it takes of the examples"));
            }
            (_, Size::Fixed(_)) => ranges.push((dim, range)),
            (_, Size::Batches(_)) => return Err(w.bound_to_batch("the end of what it takes")),
        }
    }
    Ok(sliced(w, x, &ranges, dims))
}

/// Starts are moved so that the slice fits.
pub(super) fn dynamic_slice(
    w: &mut OnnxWriter,
    inputs: &[OnnxValue],
    dims: &[Size],
) -> Result<OnnxValue> {
    let x = w.full(&inputs[0]);
    let cut: Vec<usize> = (0..dims.len())
        .filter(|&dim| x.dims[dim] != dims[dim])
        .collect();
    let mut starts = Vec::new();
    let (mut last, mut sizes) = (Vec::new(), Vec::new());
    for &dim in &cut {
        let (Size::Fixed(size), Size::Fixed(taken)) = (x.dims[dim], dims[dim]) else {
            return Err(w.bound_to_batch("where it starts"));
        };
        last.push(size - taken);
        sizes.push(taken);
        let start = w.convert(&inputs[1 + dim], DType::I64);
        starts.push(w.reshape(&start, &[Size::ONE]).name);
    }
    if cut.is_empty() {
        return Ok(x);
    }
    let starts: Vec<&str> = starts.iter().map(String::as_str).collect();
    let starts = w.node("Concat", &starts, &[("axis", NodeArgument::Int(0))]);
    let [last, sizes, axes] = [&last, &sizes, &cut].map(|values| w.sizes(values));
    let zero = w.scalar(DType::I64, 0.0);
    let starts = w.node("Max", &[&starts, &zero], &[]);
    let starts = w.node("Min", &[&starts, &last], &[]);
    let ends = w.node("Add", &[&starts, &sizes], &[]);
    let name = w.node("Slice", &[&x.name, &starts, &ends, &axes], &[]);
    Ok(OnnxValue::new(name, x.dtype, dims.to_vec()))
}

pub(super) fn concat(
    w: &mut OnnxWriter,
    inputs: &[OnnxValue],
    dim: usize,
    dims: Vec<Size>,
) -> OnnxValue {
    let all: Vec<OnnxValue> = inputs.iter().map(|input| w.full(input)).collect();
    let names: Vec<&str> = all.iter().map(|input| &*input.name).collect();
    let name = w.node("Concat", &names, &[("axis", NodeArgument::Int(dim as i64))]);
    OnnxValue::new(name, inputs[0].dtype, dims)
}

/// Indices out of range are moved to the next that is in it, where ONNX's `Gather` fails.
pub(super) fn gather(
    w: &mut OnnxWriter,
    inputs: &[OnnxValue],
    dim: usize,
    dims: Vec<Size>,
) -> Result<OnnxValue> {
    let (table, indices) = (w.full(&inputs[0]), w.full(&inputs[1]));
    let last = match table.dims[dim] {
        Size::Batches(_) => return Err(w.bound_to_batch("the last index")),
        Size::Fixed(0) => return Err(w.refused("its table is empty")),
        Size::Fixed(size) => size - 1,
    };
    let [zero, last] = [0.0, last as f64].map(|number| w.scalar(DType::I32, number));
    let indices = w.node("Max", &[&indices.name, &zero], &[]);
    let indices = w.node("Min", &[&indices, &last], &[]);
    let axis = ("axis", NodeArgument::Int(dim as i64));
    let name = w.node("Gather", &[&table.name, &indices], &[axis]);
    Ok(OnnxValue::new(name, table.dtype, dims))
}

/// Edges by `Pad`, which cuts where they are negative, after [`dilated`].
pub(super) fn pad(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    value: &OnnxValue,
    pads: &[PadDim],
    dims: &[Size],
) -> Result<OnnxValue> {
    let mut x = w.full(x);
    for (dim, pad) in pads.iter().enumerate() {
        x = dilated(w, &x, dim, pad.interior, value)?;
    }
    let edges: Vec<[i64; 2]> = pads.iter().map(|pad| [pad.low, pad.high]).collect();
    Ok(edged(w, &x, &edges, value, dims))
}

/// With elements before and after, by dims.
pub(super) fn edged(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    edges: &[[i64; 2]],
    value: &OnnxValue,
    dims: &[Size],
) -> OnnxValue {
    if edges.iter().all(|edges| *edges == [0, 0]) {
        return x.clone();
    }
    let side = |side: usize| edges.iter().map(move |edges| edges[side]);
    let places = w.ints(&side(0).chain(side(1)).collect::<Vec<_>>());
    let name = w.node("Pad", &[&x.name, &places, &value.name], &[]);
    OnnxValue::new(name, x.dtype, dims.to_vec())
}

/// With `between` elements between neighbours along a dim: they come after each element, as a dim of their own, and those behind the last go.
pub(super) fn dilated(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    dim: usize,
    between: usize,
    value: &OnnxValue,
) -> Result<OnnxValue> {
    let size = match x.dims[dim] {
        _ if between == 0 => return Ok(x.clone()),
        Size::Batches(_) => return Err(w.bound_to_batch("what is between examples")),
        Size::Fixed(size) => size,
    };
    let mut dims = x.dims.clone();
    dims.insert(dim + 1, Size::ONE);
    let apart = w.reshape(x, &dims);
    let mut edges = vec![[0, 0]; dims.len()];
    edges[dim + 1][1] = between as i64;
    dims[dim + 1] = Size::Fixed(1 + between);
    let padded = edged(w, &apart, &edges, value, &dims);
    let mut dims = x.dims.clone();
    dims[dim] = Size::Fixed(size * (1 + between));
    let flat = w.reshape(&padded, &dims);
    let kept = size * (1 + between) - between;
    dims[dim] = Size::Fixed(kept);
    Ok(sliced(w, &flat, &[(dim, [0, kept as i64, 1])], &dims))
}
