//! Derivatives of reductions, whole and over windows.
//!
//! A compiler may compute one value twice, in two fusions that round differently, so no derivative here compares a value
//! with the result of a reduction of it: nothing need be equal. Which element won is found once and kept
//! behind an optimization barrier: as its place in a window, or as the values that both sides of a comparison are
//! made of (`docs/decisions/0029-the-winner-is-found-once.md`).

use super::{Gradients, Step, indicator, inverse};
use crate::op::{CompareOp, PadDim, ReduceOp, SliceDim, WindowDim};
use crate::{DType, Shape, Tensor};

pub(super) fn reduce(kind: ReduceOp, dims: &[usize], step: &Step, g: &Tensor) -> Option<Tensor> {
    let x = step.input(0);
    let size = x.dims();
    let kept: Vec<usize> = (0..size.len()).filter(|dim| !dims.contains(dim)).collect();
    let spread = |tensor: &Tensor| tensor.broadcast_in(&size, &kept);
    match kind {
        ReduceOp::Sum => Some(spread(g)),
        ReduceOp::Max | ReduceOp::Min => {
            // `Tensor::reduce` put a barrier before the reduction: `x` is what it was computed from.
            let chosen = indicator(CompareOp::Eq, &x, &spread(&step.output(0)));
            // So many may be equal that f16 does not hold their number.
            let count = chosen.convert(x.dtype().wide()).sum(dims);
            let share = (g.convert(count.dtype()) / count).convert(g.dtype());
            Some(chosen * spread(&share))
        }
        ReduceOp::Prod => Some(product_of_others(&x, dims) * spread(g)),
        ReduceOp::And | ReduceOp::Or => None,
    }
}

/// For each element the product of the others: of those before it times those after it. By multiplications alone, so nothing is lost
/// where elements are zero or their product underflows, and derivatives of derivatives are right there too.
fn product_of_others(x: &Tensor, dims: &[usize]) -> Tensor {
    let size = x.dims();
    let kept = (0..size.len()).filter(|dim| !dims.contains(dim));
    let order: Vec<usize> = kept.chain(dims.iter().copied()).collect();
    let ordered = x.transpose(&order);
    let count = dims.iter().map(|&dim| size[dim]).product::<usize>();
    if count == 0 {
        return x.clone();
    }
    let rows = size.iter().product::<usize>() / count;
    let flat = ordered.reshape(&[rows, count]).convert(x.dtype().wide());
    let after = product_before(&flat.reverse(&[1])).reverse(&[1]);
    let others = product_before(&flat) * after;
    let others = others.convert(x.dtype()).reshape(&ordered.dims());
    others.transpose(&inverse(&order))
}

/// For each element of a row the product of all before it.
fn product_before(x: &Tensor) -> Tensor {
    let shift = PadDim {
        low: 1,
        high: -1,
        interior: 0,
    };
    x.cumprod(1).pad(&[PadDim::default(), shift], 1.0)
}

pub(super) fn reduce_window(
    kind: ReduceOp,
    window: &[WindowDim],
    step: &Step,
    g: &Tensor,
) -> Gradients {
    match kind {
        ReduceOp::Sum => Ok(vec![Some(window_sum(&step.input(0), g, window))]),
        ReduceOp::Max | ReduceOp::Min => {
            let x = step.input(0);
            check_places(window, &x.dims())?;
            let place = winner(kind, window, &x);
            Ok(vec![Some(to_winner(window, &x.dims(), &place, g))])
        }
        ReduceOp::And | ReduceOp::Or => Ok(vec![None]),
        ReduceOp::Prod => {
            Err("reduce_window multiply has no derivative; multiply slices instead".into())
        }
    }
}

const fn span(window: &WindowDim) -> usize {
    (window.size - 1) * window.dilation + 1
}

/// Each input receives the sum of the windows it was in: windows over the cotangent spread out by the stride.
fn window_sum(x: &Tensor, g: &Tensor, window: &[WindowDim]) -> Tensor {
    let (size, count) = (x.dims(), g.dims());
    if count.contains(&0) {
        return g.like(0.0).broadcast_to(&size);
    }
    let pads: Vec<PadDim> = (0..size.len())
        .map(|i| {
            let w = &window[i];
            let spread = (count[i] as i64 - 1) * w.stride as i64 + 1;
            let low = span(w) as i64 - 1 - w.low as i64;
            PadDim {
                low,
                high: size[i] as i64 + span(w) as i64 - 1 - spread - low,
                interior: w.stride - 1,
            }
        })
        .collect();
    let dense: Vec<WindowDim> = window
        .iter()
        .map(|w| WindowDim {
            stride: 1,
            low: 0,
            high: 0,
            ..*w
        })
        .collect();
    g.pad(&pads, 0.0).reduce_window(ReduceOp::Sum, &dense)
}

/// Windows with more places are searched by a reduction where they lie side by side; else place after place, which XLA fuses.
const MOST_IN_TURN: usize = 64;
/// Most places of windows that overlap: each takes some ops.
const MOST_OVERLAPPING: usize = 4096;

/// How many elements a window has.
fn places(window: &[WindowDim]) -> usize {
    let sizes = window.iter().map(|dim| dim.size);
    sizes.fold(1, usize::saturating_mul)
}

fn lie_side_by_side(window: &[WindowDim]) -> bool {
    let mut dims = window.iter();
    dims.all(|w| w.dilation == 1 && w.stride == w.size)
}

/// Whether the winners of all places are found at once.
fn is_by_reduction(window: &[WindowDim]) -> bool {
    places(window) > MOST_IN_TURN && lie_side_by_side(window)
}

/// Refuses windows over an input of these dims that no program can be made for.
pub(crate) fn check_places(window: &[WindowDim], dims: &[usize]) -> Result<(), String> {
    let places = places(window);
    let mut each = dims.iter().zip(window);
    let is_padding = each.any(|(&n, w)| w.low.saturating_add(w.high) > n.max(MOST_IN_TURN));
    if places > MOST_OVERLAPPING && (is_padding || !lie_side_by_side(window)) {
        return Err(format!(
            "expected at most {MOST_OVERLAPPING} places in a window for a maximum, or windows side by side without more padding than input, got {places}; take a smaller window, or strides as large as it"
        ));
    }
    Ok(())
}

/// The elements of this many windows that lie side by side in a padded input: each window's along a last dim of their own.
fn apart(padded: &Tensor, window: &[WindowDim], count: &[usize]) -> Tensor {
    let whole = |(count, w): (&usize, &WindowDim)| SliceDim {
        start: 0,
        limit: count * w.size,
        stride: 1,
    };
    let whole: Vec<SliceDim> = count.iter().zip(window).map(whole).collect();
    let rank = count.len();
    let order: Vec<usize> = (0..rank)
        .map(|i| 2 * i)
        .chain((0..rank).map(|i| 2 * i + 1))
        .collect();
    let split = count.iter().zip(window);
    let split: Vec<usize> = split.flat_map(|(&count, w)| [count, w.size]).collect();
    let together = [count, &[places(window)]].concat();
    let cut = padded.slice(&whole).reshape(&split);
    cut.transpose(&order).reshape(&together)
}

/// As [`winner`], of windows whose elements are [`apart`].
fn winner_by_reduction(kind: ReduceOp, window: &[WindowDim], apart: &Tensor) -> Tensor {
    let x = apart.computed_once();
    let last = x.rank() - 1;
    let best = match kind {
        ReduceOp::Min => x.min(&[last]),
        _ => x.max(&[last]),
    };
    let best = best.keep_dims(&[last]);
    let behind = match kind {
        ReduceOp::Min => x.greater(&best),
        _ => x.less(&best),
    };
    // Nothing is behind NaN by a comparison.
    let behind = behind.or(&best.not_equal(&best).and(&x.equal(&x)));
    let place = x.graph().iota(x.shape().with_dtype(DType::I32), last);
    let none = place.like(places(window) as f64);
    let first = behind.select(&none, &place).min(&[last]);
    first.convert(place_dtype(window)).computed_once()
}

/// As [`to_winner`], in a padded input of these dims whose winners were found at once.
fn to_winner_at_once(
    window: &[WindowDim],
    padded: &[usize],
    winner: &Tensor,
    g: &Tensor,
) -> Tensor {
    let (count, rank) = (g.dims(), g.rank());
    let together = [&count[..], &[places(window)]].concat();
    let kept: Vec<usize> = (0..rank).collect();
    let place = g
        .graph()
        .iota(Shape::new(DType::I32, together.clone()), rank);
    let wins = place.equal(&winner.convert(DType::I32).broadcast_in(&together, &kept));
    let spread = g.broadcast_in(&together, &kept);
    let spread = wins.select(&spread, &spread.zeros_like());
    let sizes = window.iter().map(|w| w.size);
    let apart: Vec<usize> = count.iter().copied().chain(sizes).collect();
    let order: Vec<usize> = (0..rank).flat_map(|i| [i, rank + i]).collect();
    let whole: Vec<usize> = count
        .iter()
        .zip(window)
        .map(|(count, w)| count * w.size)
        .collect();
    let whole = spread.reshape(&apart).transpose(&order).reshape(&whole);
    let rest = padded
        .iter()
        .zip(whole.dims())
        .map(|(&padded, whole)| PadDim {
            low: 0,
            high: padded as i64 - whole as i64,
            interior: 0,
        });
    whole.pad(&rest.collect::<Vec<_>>(), 0.0)
}

/// Which place of each window holds the largest (or smallest) element, counted row-major: the first of equal ones, the first
/// NaN before all others. As [`place_dtype`]. Padding counts as the identity: of a window that holds nothing else it may be the first.
///
/// Computed once: were it computed in two fusions, one could say 0 and the other 1 of a near tie, and both or neither would
/// take the gradient.
pub(crate) fn winner(kind: ReduceOp, window: &[WindowDim], x: &Tensor) -> Tensor {
    let padded = x.pad(&edges(window), kind.identity(x.dtype()).to_f64()[0]);
    let count = windows(&x.dims(), window);
    if is_by_reduction(window) {
        return winner_by_reduction(kind, window, &apart(&padded, window, &count));
    }
    let at = |offset: &Vec<usize>| padded.slice(&place(offset, window, &count));
    let offsets = offsets(window);
    let mut best = at(&offsets[0]);
    let mut winner = x
        .graph()
        .full(&Shape::new(place_dtype(window), count.clone()), 0.0);
    for (index, offset) in offsets.iter().enumerate().skip(1) {
        let here = at(offset);
        let behind = match kind {
            ReduceOp::Min => here.greater_equal(&best),
            _ => here.less_equal(&best),
        };
        // Not behind: better, or one of them is NaN.
        let wins = behind.not().and(&best.equal(&best));
        winner = wins.select(&winner.like(index as f64), &winner);
        best = wins.select(&here, &best);
    }
    winner.computed_once()
}

/// The type that holds the places of a window.
pub(crate) fn place_dtype(window: &[WindowDim]) -> DType {
    if places(window) <= 256 {
        DType::U8
    } else {
        DType::I32
    }
}

/// Adds the cotangent of each window to the element at the place that won it, in an input of these dims.
///
/// Not select-and-scatter, which XLA:CPU expands to a scalar loop.
pub(crate) fn to_winner(
    window: &[WindowDim],
    dims: &[usize],
    winner: &Tensor,
    g: &Tensor,
) -> Tensor {
    let edges = edges(window);
    let padded: Vec<usize> = dims
        .iter()
        .zip(window)
        .map(|(n, w)| n + w.low + w.high)
        .collect();
    if is_by_reduction(window) {
        let total = to_winner_at_once(window, &padded, winner, g);
        return super::unpad(&total, dims, &edges);
    }
    // Sums of many cotangents of 16 bits would stop growing.
    let whole = match places(window) > MOST_IN_TURN {
        true => g.convert(g.dtype().wide()),
        false => g.clone(),
    };
    let count = g.dims();
    let zero = whole.like(0.0);
    let parts = offsets(window)
        .into_iter()
        .enumerate()
        .map(|(index, offset)| {
            let wins = winner.equal(&winner.like(index as f64));
            let slices = place(&offset, window, &count);
            super::unslice(&wins.select(&whole, &zero), &padded, &slices)
        });
    let total = parts.reduce(|sum, part| sum + part);
    let total = total.unwrap_or_else(|| zero.broadcast_to(&padded));
    super::unpad(&total.convert(g.dtype()), dims, &edges)
}

fn edges(window: &[WindowDim]) -> Vec<PadDim> {
    window.iter().map(padding).collect()
}

/// How many windows there are along each dim.
fn windows(dims: &[usize], window: &[WindowDim]) -> Vec<usize> {
    let along = |(n, w): (&usize, &WindowDim)| {
        let free = (n + w.low + w.high).checked_sub(span(w));
        free.map_or(0, |free| free / w.stride + 1)
    };
    dims.iter().zip(window).map(along).collect()
}

const fn padding(window: &WindowDim) -> PadDim {
    PadDim {
        low: window.low as i64,
        high: window.high as i64,
        interior: 0,
    }
}

/// Every place of a window, row-major.
fn offsets(window: &[WindowDim]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for w in window {
        let extend = |prefix: &Vec<usize>| {
            let prefix = prefix.clone();
            (0..w.size).map(move |i| [prefix.clone(), vec![i * w.dilation]].concat())
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}

/// The elements that lie at `offset` of every window.
fn place(offset: &[usize], window: &[WindowDim], count: &[usize]) -> Vec<SliceDim> {
    let slice = |i: usize| {
        // Of no window there is no element, and the place may be outside.
        let start = if count[i] == 0 { 0 } else { offset[i] };
        SliceDim {
            start,
            limit: start
                + count[i].saturating_sub(1) * window[i].stride
                + usize::from(count[i] > 0),
            stride: window[i].stride,
        }
    };
    (0..offset.len()).map(slice).collect()
}
