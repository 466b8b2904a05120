//! Reductions, whole and over windows.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{DType, Shape};

use super::moving::{NOWHERE, places, steps, strides};
use super::noise::Noise;
use super::numbers::{range, wrap};
use super::{Dual, Operand};

/// The number that changes nothing.
fn float_identity(kind: ReduceOp) -> f64 {
    match kind {
        ReduceOp::Sum | ReduceOp::And | ReduceOp::Or => 0.0,
        ReduceOp::Prod => 1.0,
        ReduceOp::Max => f64::NEG_INFINITY,
        ReduceOp::Min => f64::INFINITY,
    }
}

fn int_identity(kind: ReduceOp, dtype: DType) -> i64 {
    match kind {
        ReduceOp::Sum | ReduceOp::Or => 0,
        ReduceOp::Prod => 1,
        ReduceOp::And => wrap(dtype, -1),
        ReduceOp::Max => range(dtype).0,
        ReduceOp::Min => range(dtype).1,
    }
}

pub(super) fn int_combined(kind: ReduceOp, dtype: DType, a: i64, b: i64) -> i64 {
    let result = match kind {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
    };
    wrap(dtype, result)
}

/// Whether `x` is to replace the best so far: strictly better, or NaN.
fn beats(kind: ReduceOp, x: f64, best: f64) -> bool {
    match kind {
        _ if best.is_nan() => false,
        ReduceOp::Max => x > best || x.is_nan(),
        _ => x < best || x.is_nan(),
    }
}

pub(super) fn reduce(
    kind: ReduceOp,
    dims: &[usize],
    [x]: &[Operand; 1],
    noise: &Noise,
) -> Result<Dual, String> {
    let kept = |dim: &usize| !dims.contains(dim);
    let rank = x.shape.rank();
    let sizes = (0..rank).filter(kept).map(|dim| x.shape.dims[dim]);
    let sizes: Vec<usize> = sizes.collect();
    let mut into = strides(&sizes).into_iter();
    let offsets = (0..rank).map(|dim| {
        let stride = if kept(&dim) { into.next() } else { None };
        steps(x.shape.dims[dim], stride.unwrap_or(0))
    });
    let targets = places(&offsets.collect::<Vec<_>>());
    let count = sizes.iter().product();
    let reduction = Reduction {
        kind,
        count,
        dtype: x.shape.dtype,
        is_trivial: targets.len() == count,
        ties: Ties::Share,
        walk: |visit: &mut dyn FnMut(usize, usize)| {
            for (from, &to) in targets.iter().enumerate() {
                visit(from, to);
            }
        },
    };
    reduction.of(x, noise)
}

/// What equal winners do with the tangent.
#[derive(Clone, Copy, PartialEq)]
enum Ties {
    /// Each takes an equal part.
    Share,
    /// The first takes it.
    First,
}

/// Elements combined.
struct Reduction<W> {
    kind: ReduceOp,
    /// Number of results.
    count: usize,
    dtype: DType,
    /// Whether nothing is combined: each result is one element.
    is_trivial: bool,
    ties: Ties,
    /// Calls a function with each element's place and its result's place, in order.
    walk: W,
}

impl<W: Fn(&mut dyn FnMut(usize, usize))> Reduction<W> {
    fn of(&self, x: &Operand, noise: &Noise) -> Result<Dual, String> {
        let kind = self.kind;
        if !self.dtype.is_float() {
            let mut found = vec![int_identity(kind, self.dtype); self.count];
            let x = x.ints()?;
            (self.walk)(&mut |from, to| {
                found[to] = int_combined(kind, self.dtype, found[to], x[from]);
            });
            return Ok(Dual::ints(found));
        }
        let values = x.floats()?;
        match kind {
            ReduceOp::Sum => {
                let mut sums = self.sums(values);
                let absolute = || values.iter().map(|x| x.abs()).collect::<Vec<_>>();
                if !self.is_trivial {
                    noise.sums(&mut sums, || self.sums(&absolute()));
                }
                Ok(Dual::floats(
                    sums,
                    x.slope().map(|tangent| self.sums(tangent)),
                ))
            }
            ReduceOp::Prod => Ok(self.products(values, x.slope(), noise)),
            ReduceOp::Max | ReduceOp::Min => {
                let best = self.best(values);
                let found = best.iter().map(|&place| values.get(place).copied());
                let found = found.map(|x| x.unwrap_or_else(|| float_identity(kind)));
                let found: Vec<f64> = found.collect();
                let tangent = x.slope().map(|tangent| match self.ties {
                    Ties::Share => self.shared(values, &found, tangent),
                    Ties::First => super::moving::pick(tangent, &best),
                });
                Ok(Dual::floats(found, tangent))
            }
            ReduceOp::And | ReduceOp::Or => Err("not a reduction of floats".into()),
        }
    }

    fn sums(&self, x: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        (self.walk)(&mut |from, to| sums[to] += x[from]);
        sums
    }

    fn products(&self, x: &[f64], tangent: Option<&[f64]>, noise: &Noise) -> Dual {
        let mut found = vec![1.0; self.count];
        let mut along = tangent.map(|_| vec![0.0; self.count]);
        (self.walk)(&mut |from, to| {
            if let (Some(along), Some(tangent)) = (&mut along, tangent) {
                along[to] = along[to] * x[from] + found[to] * tangent[from];
            }
            found[to] *= x[from];
        });
        if !self.is_trivial {
            found.iter_mut().for_each(|y| *y = noise.relative(*y));
        }
        Dual::floats(found, along)
    }

    /// The place of the first largest or smallest element.
    fn best(&self, x: &[f64]) -> Vec<usize> {
        let mut best = vec![NOWHERE; self.count];
        (self.walk)(&mut |from, to| {
            if best[to] == NOWHERE || beats(self.kind, x[from], x[best[to]]) {
                best[to] = from;
            }
        });
        best
    }

    /// The mean tangent of the elements that equal the result.
    fn shared(&self, x: &[f64], best: &[f64], tangent: &[f64]) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); self.count];
        (self.walk)(&mut |from, to| {
            if x[from] == best[to] {
                sums[to].0 += tangent[from];
                sums[to].1 += 1.0;
            }
        });
        sums.into_iter().map(|(sum, count)| sum / count).collect()
    }
}

/// Calls `visit` with the element and the window for each place of the windows, row-major; padding is left out.
fn each_of_windows(
    shape: &Shape,
    window: &[WindowDim],
    count: &[usize],
    visit: &mut dyn FnMut(usize, usize),
) {
    let strides = strides(&shape.dims);
    let along = |dim: usize, step: usize| -> Vec<usize> {
        let w = &window[dim];
        let at = |i: usize| {
            let place = (i * w.stride + step * w.dilation).checked_sub(w.low);
            let place = place.filter(|&place| place < shape.dims[dim]);
            place.map_or(NOWHERE, |place| place * strides[dim])
        };
        (0..count[dim]).map(at).collect()
    };
    let sizes: Vec<usize> = window.iter().map(|w| w.size).collect();
    for flat in 0..sizes.iter().product() {
        let mut rest = flat;
        let mut offsets = vec![Vec::new(); sizes.len()];
        for dim in (0..sizes.len()).rev() {
            offsets[dim] = along(dim, rest % sizes[dim]);
            rest /= sizes[dim];
        }
        for (to, from) in places(&offsets).into_iter().enumerate() {
            if from != NOWHERE {
                visit(from, to);
            }
        }
    }
}

pub(super) fn reduce_window(
    kind: ReduceOp,
    window: &[WindowDim],
    [x]: &[Operand; 1],
    shape: &Shape,
    noise: &Noise,
) -> Result<Dual, String> {
    let places: usize = window.iter().map(|w| w.size).product();
    let reduction = Reduction {
        kind,
        count: shape.len(),
        dtype: shape.dtype,
        is_trivial: places == 1,
        ties: Ties::First,
        walk: |visit: &mut dyn FnMut(usize, usize)| {
            each_of_windows(x.shape, window, &shape.dims, visit);
        },
    };
    reduction.of(x, noise)
}

/// The place of the largest element of each window, the first of equal ones; nowhere for a window of padding.
pub(super) fn largest_places(
    x: &Operand,
    window: &[WindowDim],
    count: &[usize],
) -> Result<Vec<usize>, String> {
    let reduction = Reduction {
        kind: ReduceOp::Max,
        count: count.iter().product(),
        dtype: x.shape.dtype,
        is_trivial: false,
        ties: Ties::First,
        walk: |visit: &mut dyn FnMut(usize, usize)| each_of_windows(x.shape, window, count, visit),
    };
    Ok(reduction.best(x.floats()?))
}
