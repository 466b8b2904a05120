//! Ops that move elements: where each comes from, or goes to.

use phalanx_graph::op::{PadDim, SliceDim};
use phalanx_graph::{Op, Shape};

use super::machine::take;
use super::noise::Noise;
use super::numbers::wrap;
use super::{Array, Dual, Operand};

/// Stands for no place in a tensor.
pub(super) const NOWHERE: usize = usize::MAX;

/// Distance in memory between neighbours of each dim.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

/// The sums of one offset of each dim, the last dim varying fastest; nowhere where any is.
pub(super) fn places(dims: &[Vec<usize>]) -> Vec<usize> {
    let mut all = vec![0];
    for offsets in dims {
        let mut next = Vec::with_capacity(all.len() * offsets.len());
        for &base in &all {
            let sum = |&offset: &usize| match base == NOWHERE || offset == NOWHERE {
                true => NOWHERE,
                false => base + offset,
            };
            next.extend(offsets.iter().map(sum));
        }
        all = next;
    }
    all
}

/// The offsets of every index of a dim.
pub(super) fn steps(size: usize, stride: usize) -> Vec<usize> {
    (0..size).map(|i| i * stride).collect()
}

/// The elements at places; 0 from nowhere.
pub(super) fn pick<T: Copy + Default>(from: &[T], places: &[usize]) -> Vec<T> {
    let element = |&place: &usize| from.get(place).copied().unwrap_or_default();
    places.iter().map(element).collect()
}

/// Writes elements to places, but not to nowhere.
fn put<T: Copy>(into: &mut [T], from: &[T], places: &[usize]) {
    for (&element, &place) in from.iter().zip(places) {
        if let Some(slot) = into.get_mut(place) {
            *slot = element;
        }
    }
}

/// A tensor of the elements at places of another.
fn moved(x: &Operand, places: &[usize]) -> Dual {
    let value = match x.value {
        Array::Floats(values) => Array::Floats(pick(values, places)),
        Array::Ints(values) => Array::Ints(pick(values, places)),
    };
    Dual {
        value,
        tangent: x
            .slope()
            .map_or_else(Vec::new, |tangent| pick(tangent, places)),
    }
}

/// Overwrites the elements at places.
fn overwrite(target: &mut Dual, x: &Operand, places: &[usize]) {
    match (&mut target.value, x.value) {
        (Array::Floats(into), Array::Floats(from)) => put(into, from, places),
        (Array::Ints(into), Array::Ints(from)) => put(into, from, places),
        _ => {}
    }
    let count = target.value.len();
    match x.slope() {
        Some(tangent) => {
            target.tangent.resize(count, 0.0);
            put(&mut target.tangent, tangent, places);
        }
        None if target.tangent.is_empty() => {}
        None => put(&mut target.tangent, &vec![0.0; places.len()], places),
    }
}

pub(super) fn iota(shape: &Shape, dim: usize) -> Dual {
    let mut offsets: Vec<Vec<usize>> = shape.dims.iter().map(|&size| steps(size, 0)).collect();
    if let Some(counted) = offsets.get_mut(dim) {
        *counted = steps(counted.len(), 1);
    }
    let places = places(&offsets);
    if shape.dtype.is_float() {
        return Dual::floats(places.iter().map(|&place| place as f64).collect(), None);
    }
    Dual::ints(
        places
            .iter()
            .map(|&place| wrap(shape.dtype, place as i64))
            .collect(),
    )
}

/// An op that moves elements and does nothing else.
pub(super) fn eval(op: &Op, x: &[Operand], shape: &Shape) -> Result<Dual, String> {
    let Some(first) = x.first() else {
        return Err("it has no operands".into());
    };
    let (sizes, strides) = (&first.shape.dims, strides(&first.shape.dims));
    let each = |offsets: &dyn Fn(usize) -> Vec<usize>| -> Vec<Vec<usize>> {
        (0..shape.rank()).map(offsets).collect()
    };
    let offsets = match op {
        Op::Transpose(perm) => each(&|dim| steps(shape.dims[dim], strides[perm[dim]])),
        Op::Broadcast { dims, map } => each(&|dim| {
            let from = map.iter().position(|&to| to == dim);
            let stride = from.filter(|&from| sizes[from] != 1);
            steps(dims[dim], stride.map_or(0, |from| strides[from]))
        }),
        Op::Reverse(dims) => each(&|dim| {
            let mut offsets = steps(sizes[dim], strides[dim]);
            if dims.contains(&dim) {
                offsets.reverse();
            }
            offsets
        }),
        Op::Slice(slices) => each(&|dim| sliced(&slices[dim], strides[dim])),
        Op::DynamicSlice(_) => {
            let starts = starts(&x[1..], sizes, &shape.dims)?;
            each(&|dim| part(starts[dim], shape.dims[dim], strides[dim]))
        }
        Op::Gather { dim } => gathered(*dim, &take(x)?)?,
        Op::Pad(pads) => return pad(pads, &take(x)?, shape),
        Op::DynamicUpdateSlice => return update(x),
        Op::Concat(dim) => return Ok(concat(*dim, x, shape)),
        op => return Err(format!("{} is not known to the interpreter", op.name())),
    };
    Ok(moved(first, &places(&offsets)))
}

fn sliced(slice: &SliceDim, stride: usize) -> Vec<usize> {
    let taken = (slice.start..slice.limit).step_by(slice.stride.max(1));
    taken.map(|i| i * stride).collect()
}

/// The offsets of `size` indices from `start`.
fn part(start: usize, size: usize, stride: usize) -> Vec<usize> {
    (start..start + size).map(|i| i * stride).collect()
}

/// Starts of slices, moved so that they fit.
fn starts(x: &[Operand], whole: &[usize], part: &[usize]) -> Result<Vec<usize>, String> {
    if x.len() != whole.len() || part.len() != whole.len() {
        return Err(format!("expected {} starts, got {}", whole.len(), x.len()));
    }
    let sizes = whole.iter().zip(part);
    let clamped = x.iter().zip(sizes).map(|(start, (&whole, &part))| {
        let last = whole.saturating_sub(part) as i64;
        let start = start.ints()?.first().copied();
        Ok(start.unwrap_or_default().clamp(0, last) as usize)
    });
    clamped.collect()
}

fn pad(pads: &[PadDim], [x, value]: &[Operand; 2], shape: &Shape) -> Result<Dual, String> {
    let mut result = moved(value, &vec![0; shape.len()]);
    let strides = strides(&shape.dims);
    let targets = (0..shape.rank()).map(|dim| {
        let (pad, size) = (&pads[dim], shape.dims[dim]);
        let target = |i: usize| {
            let place = pad.low + (i * (pad.interior + 1)) as i64;
            let place = usize::try_from(place).ok().filter(|&place| place < size);
            place.map_or(NOWHERE, |place| place * strides[dim])
        };
        (0..x.shape.dims[dim]).map(target).collect()
    });
    let targets: Vec<Vec<usize>> = targets.collect();
    overwrite(&mut result, x, &places(&targets));
    Ok(result)
}

fn update(x: &[Operand]) -> Result<Dual, String> {
    let [base, new, from @ ..] = x else {
        return Err("expected a base, an update and its starts".into());
    };
    let (whole, size) = (&base.shape.dims, &new.shape.dims);
    let starts = starts(from, whole, size)?;
    let strides = strides(whole);
    let targets = (0..whole.len()).map(|dim| part(starts[dim], size[dim], strides[dim]));
    let targets: Vec<Vec<usize>> = targets.collect();
    let mut result = Dual {
        value: base.value.clone(),
        tangent: base.tangent.to_vec(),
    };
    overwrite(&mut result, new, &places(&targets));
    Ok(result)
}

fn concat(along: usize, x: &[Operand], shape: &Shape) -> Dual {
    let mut result = Dual::from(Array::zeros(shape.dtype, shape.len()));
    let strides = strides(&shape.dims);
    let mut start = 0;
    for x in x {
        let first = |dim| if dim == along { start } else { 0 };
        let dims = x.shape.dims.iter().enumerate();
        let targets = dims.map(|(dim, &size)| part(first(dim), size, strides[dim]));
        overwrite(&mut result, x, &places(&targets.collect::<Vec<_>>()));
        start += x.shape.dims.get(along).copied().unwrap_or(1);
    }
    result
}

/// The offsets in a table of what indices pick along a dim: dims before, indices, dims after.
fn gathered(dim: usize, [table, indices]: &[Operand; 2]) -> Result<Vec<Vec<usize>>, String> {
    let last = table.shape.dims[dim] as i64 - 1;
    indexed(table, dim, indices, |index| match last {
        -1 => None,
        last => Some(index.clamp(0, last) as usize),
    })
}

fn indexed(
    table: &Operand,
    dim: usize,
    indices: &Operand,
    place: impl Fn(i64) -> Option<usize>,
) -> Result<Vec<Vec<usize>>, String> {
    let (dims, strides) = (&table.shape.dims, strides(&table.shape.dims));
    let indices = indices.ints()?.iter();
    let picked = indices.map(|&index| place(index).map_or(NOWHERE, |i| i * strides[dim]));
    let mut offsets: Vec<Vec<usize>> = (0..dims.len())
        .map(|i| steps(dims[i], strides[i]))
        .collect();
    offsets[dim] = picked.collect();
    Ok(offsets)
}

/// Puts updates where indices say; out of range is dropped.
pub(super) fn scatter_set(
    dim: usize,
    [base, indices, updates]: &[Operand; 3],
) -> Result<Dual, String> {
    let size = base.shape.dims[dim];
    let inside = |index| usize::try_from(index).ok().filter(|&index| index < size);
    let targets = places(&indexed(base, dim, indices, inside)?);
    let mut result = Dual {
        value: base.value.clone(),
        tangent: base.tangent.to_vec(),
    };
    overwrite(&mut result, updates, &targets);
    Ok(result)
}

/// The places of elements in ascending order.
pub(super) fn argsort([x]: &[Operand; 1]) -> Result<Dual, String> {
    let values = x.ints()?;
    let mut order: Vec<i64> = (0..values.len() as i64).collect();
    order.sort_by_key(|&place| values[place as usize]);
    Ok(Dual::ints(order))
}

/// Adds updates where indices say; out of range is dropped.
pub(super) fn scatter_add(
    dim: usize,
    [base, indices, updates]: &[Operand; 3],
    noise: &Noise,
) -> Result<Dual, String> {
    let size = base.shape.dims[dim];
    let inside = |index| usize::try_from(index).ok().filter(|&index| index < size);
    let targets = places(&indexed(base, dim, indices, inside)?);
    if !base.shape.dtype.is_float() {
        let mut sums = base.ints()?.to_vec();
        for (&update, &place) in updates.ints()?.iter().zip(&targets) {
            if let Some(sum) = sums.get_mut(place) {
                *sum = wrap(base.shape.dtype, sum.wrapping_add(update));
            }
        }
        return Ok(Dual::ints(sums));
    }
    let add = |base: &[f64], updates: &[f64]| {
        let mut sums = base.to_vec();
        for (&update, &place) in updates.iter().zip(&targets) {
            if let Some(sum) = sums.get_mut(place) {
                *sum += update;
            }
        }
        sums
    };
    let (start, new) = (base.floats()?, updates.floats()?);
    let mut sums = add(start, new);
    if noise.is_on() {
        let absolute = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let terms = add(&absolute(start), &absolute(new));
        for ((sum, start), terms) in sums.iter_mut().zip(start).zip(terms) {
            // Nothing, or nothing but zeros, was added to it.
            if terms != start.abs() {
                *sum = noise.sum(*sum, terms);
            }
        }
    }
    let tangent = match (base.slope(), updates.slope()) {
        (None, None) => None,
        (start, new) => {
            let (no_start, no_new) = (vec![0.0; sums.len()], vec![0.0; targets.len()]);
            Some(add(start.unwrap_or(&no_start), new.unwrap_or(&no_new)))
        }
    };
    Ok(Dual::floats(sums, tangent))
}
