//! The formulas of activations.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use phalanx_graph::Tensor;

use super::precision::widened;

/// `x` above a threshold, else `slope (x - threshold)`; what is not a number stays so.
#[track_caller]
pub(super) fn relu_from(x: &Tensor, threshold: f64, slope: f64) -> Tensor {
    let below = match slope == 0.0 {
        true => x.like(0.0),
        false => (x - threshold) * slope,
    };
    x.less_equal(&x.like(threshold)).select(&below, x)
}

/// `alpha (e^x - 1)` below 0, where alone the exponential is taken: above it could overflow.
#[track_caller]
pub(super) fn elu_of(x: &Tensor, alpha: f64) -> Tensor {
    let positive = x.greater(&x.like(0.0));
    let below = positive.select(&x.like(0.0), x);
    positive.select(x, &(below.expm1() * alpha))
}

/// `x (1 + f(x)) / 2`, where the sum cancels far below 0: 16 bits have nothing left of it.
#[track_caller]
pub(super) fn gelu_of(x: &Tensor, function: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let wide = widened(x);
    let share = (function(&wide) + 1.0) * 0.5;
    (wide * share).convert(x.dtype())
}

#[track_caller]
pub(super) fn gelu_argument(x: &Tensor) -> Tensor {
    let cubic = x * x.square() * 0.044_715;
    (x + cubic) * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2)
}

#[track_caller]
pub(super) fn hard_sigmoid_of(x: &Tensor) -> Tensor {
    (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// `max(x, 0) + log(1 + e^-|x|)`, with `-|x|` selected so that the gradient at 0 is 1/2.
#[track_caller]
pub(super) fn softplus_of(x: &Tensor) -> Tensor {
    let zero = x.like(0.0);
    let away = x.greater(&zero).select(&-x, x);
    x.maximum(&zero) + away.exp().log1p()
}

/// `max(x, 0) + min(0, alpha (e^(x / alpha) - 1))`.
#[track_caller]
pub(super) fn celu_of(x: &Tensor, alpha: f64) -> Tensor {
    elu_of(&(x / alpha), 1.0) * alpha
}

/// `x`, brought nearer to 0 by `less`, where it is further than a threshold from 0, else 0.
#[track_caller]
pub(super) fn shrunk(x: &Tensor, threshold: f64, less: f64) -> Tensor {
    let (above, below) = (x.greater(&x.like(threshold)), x.less(&x.like(-threshold)));
    let inside = below.select(&(x + less), &x.like(0.0));
    above.select(&(x - less), &inside)
}

/// `x` from 1 on, 0 up to -1, `(x + 1)^2 / 4` in between.
#[track_caller]
pub(super) fn sparse_plus_of(x: &Tensor) -> Tensor {
    let inside = (x.clamp(-1.0, 1.0) + 1.0).square() * 0.25;
    x.greater_equal(&x.like(1.0)).select(x, &inside)
}

/// `(x + sqrt(x^2 + b)) / 2`.
#[track_caller]
pub(super) fn squareplus_of(x: &Tensor, b: f64) -> Tensor {
    let wide = widened(x);
    let root = match b > 0.0 {
        true => (wide.square() + b).sqrt(),
        // The root of a square has no derivative at 0.
        false => wide.abs(),
    };
    ((wide + root) * 0.5).convert(x.dtype())
}

/// The point of the simplex that is nearest, along the last dim.
#[track_caller]
pub(super) fn sparsemax_of(x: &Tensor) -> Tensor {
    let last = x.rank().saturating_sub(1);
    let each: Vec<usize> = (0..=last).collect();
    let others: Vec<usize> = (0..last).chain([last + 1]).collect();
    let pairs = [&x.dims()[..], &[x.dim(last)]].concat();
    // Far from 0 the 1 that is shared would be lost; what is the same for all of them changes nothing.
    let fixed = x.stop_gradient();
    let largest = fixed.max(&[last]).broadcast_in(&x.dims(), &each[..last]);
    let (x, fixed) = (&(x - &largest), &fixed - &largest);
    // Which elements have a share: those whose sum with all larger ones is small enough.
    let (own, other) = (
        fixed.broadcast_in(&pairs, &each),
        fixed.broadcast_in(&pairs, &others),
    );
    let is_larger = other.greater_equal(&own);
    let count = is_larger.convert(x.dtype()).sum(&[last + 1]);
    let sum = is_larger
        .select(&other, &other.zeros_like())
        .sum(&[last + 1]);
    let has_share = (fixed * count + 1.0).greater(&sum);
    let shared = has_share.select(x, &x.zeros_like()).sum(&[last]);
    let count = has_share.convert(x.dtype()).sum(&[last]);
    let less = (shared - 1.0) / count;
    let less = less.broadcast_in(&x.dims(), &each[..last]);
    has_share.select(&(x - less), &x.zeros_like())
}
