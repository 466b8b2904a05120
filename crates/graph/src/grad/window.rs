//! Derivatives of reductions, whole and over windows.

use super::{Gradients, Step, indicator};
use crate::Tensor;
use crate::op::{CompareOp, PadDim, ReduceOp, SliceDim, WindowDim};

pub(super) fn reduce(kind: ReduceOp, dims: &[usize], step: &Step, g: &Tensor) -> Option<Tensor> {
    let (x, y) = (step.input(0), step.output(0));
    let size = x.dims();
    let kept: Vec<usize> = (0..size.len()).filter(|dim| !dims.contains(dim)).collect();
    let spread = |tensor: &Tensor| tensor.broadcast_in(&size, &kept);
    match kind {
        ReduceOp::Sum => Some(spread(g)),
        ReduceOp::Max | ReduceOp::Min => {
            let chosen = indicator(CompareOp::Eq, &x, &spread(&y));
            let share = g / chosen.sum(dims);
            Some(chosen * spread(&share))
        }
        ReduceOp::Prod => Some(product(&x, &y, dims, &spread) * spread(g)),
        ReduceOp::And | ReduceOp::Or => None,
    }
}

/// The product of the other elements, exact where some are zero.
fn product(x: &Tensor, y: &Tensor, dims: &[usize], spread: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
    let (zero, one) = (x.like(0.0), x.like(1.0));
    let is_zero = x.equal(&zero);
    let filled = is_zero.select(&one, x);
    let zeros = spread(&is_zero.convert(x.dtype()).sum(dims));
    let others = spread(&filled.reduce(ReduceOp::Prod, dims));
    let at_zero = zeros.equal(&one).select(&others, &zero);
    is_zero.select(&at_zero, &(spread(y) / filled))
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
            let (x, best) = (step.input(0), step.output(0));
            Ok(vec![Some(largest(kind, window, &x, &best, g))])
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

/// Compares each place of the window with the winner in turn; the first that equals it takes the gradient.
///
/// Not select-and-scatter, which XLA:CPU expands to a scalar loop.
pub(crate) fn largest(
    kind: ReduceOp,
    window: &[WindowDim],
    x: &Tensor,
    best: &Tensor,
    g: &Tensor,
) -> Tensor {
    let edges: Vec<PadDim> = window.iter().map(padding).collect();
    let identity = kind.identity(x.dtype()).to_f64()[0];
    let padded = x.pad(&edges, identity);
    let (size, count) = (padded.dims(), g.dims());
    let zero = g.like(0.0);
    let mut total: Option<Tensor> = None;
    let mut taken: Option<Tensor> = None;
    for offset in offsets(window) {
        let slices = place(&offset, window, &count);
        let wins = padded.slice(&slices).equal(best);
        let first = match &taken {
            Some(taken) => wins.and(&taken.not()),
            None => wins.clone(),
        };
        let part = super::unslice(&first.select(g, &zero), &size, &slices);
        total = Some(total.map_or(part.clone(), |sum| sum + part));
        taken = Some(taken.map_or(wins.clone(), |taken| taken.or(&wins)));
    }
    let total = total.unwrap_or_else(|| padded.zeros_like());
    super::unpad(&total, &x.dims(), &edges)
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
    let slice = |i: usize| SliceDim {
        start: offset[i],
        limit: offset[i]
            + count[i].saturating_sub(1) * window[i].stride
            + usize::from(count[i] > 0),
        stride: window[i].stride,
    };
    (0..offset.len()).map(slice).collect()
}
