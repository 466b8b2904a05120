//! Ops that some devices have a kernel for.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{FusedActivation, Kernel, Pool2d, Shape};

use super::contract::bilinear;
use super::convolution::{Loop, Role};
use super::machine::take;
use super::moving::NOWHERE;
use super::noise::Noise;
use super::window::{largest_places, reduce_window};
use super::{Array, Dual, Operand, Outcome, convolution, normal, recurrent};

pub(super) fn eval(kernel: &Kernel, x: &[Operand], shapes: &[Shape], noise: &Noise) -> Outcome {
    let shape = &shapes[0];
    match kernel {
        Kernel::ConvInputGradient { dims, .. } => {
            let (given, by) = x.split_at(x.len().min(2));
            let [g, k] = take(given)?;
            let sums = Loop::new(dims, Role::Input, [shape, k.shape, g.shape]);
            let found = bilinear(&sums, &g, &k, shape.dtype, noise)?;
            Ok(vec![match by {
                [] => found,
                [by, ..] => where_positive(&found, by.floats()?)?,
            }])
        }
        Kernel::ConvKernelGradient { dims, .. } => {
            let [x, g] = take(x)?;
            let sums = Loop::new(dims, Role::Kernel, [x.shape, shape, g.shape]);
            Ok(vec![bilinear(&sums, &x, &g, shape.dtype, noise)?])
        }
        Kernel::ConvBias { dims, activation } => {
            let (residual, given) = (x.get(3), x.get(..3).unwrap_or(x));
            let [x, k, bias] = take(given)?;
            let sums = convolution::conv(dims, &[x, k], shape, noise)?;
            let (size, stride) = channel(shape, dims.output.feature);
            let biased = plus_channels(&sums, &bias, (size, stride), noise)?;
            let sum = match residual {
                // Of as many channels as there are elements.
                Some(residual) => plus_channels(&biased, residual, (shape.len(), 1), noise)?,
                None => biased,
            };
            Ok(vec![ramped(*activation, &sum)?])
        }
        Kernel::BatchNorm {
            epsilon,
            activation,
        } => normal::batch_norm(x, *epsilon, *activation, noise),
        Kernel::BatchNormGradient { epsilon, mask } => {
            normal::batch_norm_gradient(x, *epsilon, *mask, noise)
        }
        Kernel::MaxPool2d(pool) => {
            let [x] = take(x)?;
            let places = window_places(pool, &x, &shape.dims)?;
            let largest = reduce_window(ReduceOp::Max, &pool.window(), &[x], shape, noise)?;
            Ok(vec![largest, Dual::ints(places)])
        }
        Kernel::MaxPool2dGradient { pool, .. } => {
            Ok(vec![max_pool_gradient(pool, &take(x)?, shape)?])
        }
        Kernel::Lstm => recurrent::lstm(x, shape, noise),
        Kernel::LstmGradient => recurrent::lstm_gradient(x, shape, noise),
        Kernel::Gru => recurrent::gru(x, shape, noise),
        Kernel::GruGradient => recurrent::gru_gradient(x, shape, noise),
    }
}

/// Number of channels, and distance between them in memory.
fn channel(shape: &Shape, dim: usize) -> (usize, usize) {
    (shape.dims[dim], shape.dims[dim + 1..].iter().product())
}

fn values(x: &Dual) -> Result<&[f64], String> {
    match &x.value {
        Array::Floats(values) => Ok(values),
        Array::Ints(_) => Err("expected floats".into()),
    }
}

/// The numbers where `by` is positive, 0 elsewhere.
fn where_positive(x: &Dual, by: &[f64]) -> Result<Dual, String> {
    let masked = |x: &[f64]| -> Vec<f64> {
        let pairs = x.iter().zip(by);
        pairs
            .map(|(&x, &by)| if by > 0.0 { x } else { 0.0 })
            .collect()
    };
    Ok(Dual::floats(masked(values(x)?), Some(masked(&x.tangent))))
}

fn plus_channels(
    x: &Dual,
    bias: &Operand,
    (size, stride): (usize, usize),
    noise: &Noise,
) -> Result<Dual, String> {
    let of = |i: usize| i / stride % size;
    let b = bias.floats()?;
    let sums = values(x)?.iter().enumerate().map(|(i, &x)| {
        let b = b[of(i)];
        noise.scaled(x + b, if b == 0.0 { 0.0 } else { x.abs().max(b.abs()) })
    });
    let sums: Vec<f64> = sums.collect();
    if x.tangent.is_empty() && bias.slope().is_none() {
        return Ok(Dual::floats(sums, None));
    }
    let along = |i: usize| {
        let own = x.tangent.get(i).copied().unwrap_or_default();
        own + bias.slope().map_or(0.0, |tangent| tangent[of(i)])
    };
    let tangent = (0..sums.len()).map(along).collect();
    Ok(Dual::floats(sums, Some(tangent)))
}

/// What follows a kernel's own work.
fn ramp_of(activation: FusedActivation, y: f64) -> f64 {
    match activation {
        _ if y.is_nan() => y,
        FusedActivation::None => y,
        FusedActivation::Relu => y.max(0.0),
        FusedActivation::Clipped(ceiling) => y.max(0.0).min(ceiling),
    }
}

/// Whether `y` is where an activation has slope 1.
pub(super) fn rises(activation: FusedActivation, y: f64) -> bool {
    match activation {
        FusedActivation::None => true,
        FusedActivation::Relu => y > 0.0,
        FusedActivation::Clipped(ceiling) => y > 0.0 && y < ceiling,
    }
}

pub(super) fn ramped(activation: FusedActivation, x: &Dual) -> Result<Dual, String> {
    let before = values(x)?;
    let after = before.iter().map(|&y| ramp_of(activation, y)).collect();
    let pairs = before.iter().zip(&x.tangent);
    let tangent = pairs.map(|(&y, &t)| if rises(activation, y) { t } else { 0.0 });
    Ok(Dual::floats(after, Some(tangent.collect())))
}

/// The place, row by row in its window, of the first of the largest elements; 0 in a window of padding.
fn window_places(pool: &Pool2d, x: &Operand, windows: &[usize]) -> Result<Vec<i64>, String> {
    let elements = largest_places(x, &pool.window(), windows)?;
    let places = elements.iter().enumerate().map(|(window, &element)| {
        if element == NOWHERE {
            return 0;
        }
        let (from, at) = (
            coordinates(window, windows),
            coordinates(element, &x.shape.dims),
        );
        let inside = [0, 1]
            .map(|side| at[side + 1] + pool.padding[side].0 - from[side + 1] * pool.strides[side]);
        (inside[0] * pool.size[1] + inside[1]) as i64
    });
    Ok(places.collect())
}

/// Indices along each of four dims, of an element by its place in memory.
fn coordinates(mut place: usize, dims: &[usize]) -> [usize; 4] {
    let mut at = [0; 4];
    for dim in (0..4).rev() {
        at[dim] = place % dims[dim];
        place /= dims[dim];
    }
    at
}

/// Each window's cotangent goes to the element at the place that is given.
fn max_pool_gradient(
    pool: &Pool2d,
    [place, g]: &[Operand; 2],
    shape: &Shape,
) -> Result<Dual, String> {
    let dims = &shape.dims;
    let element = |(window, &place): (usize, &i64)| {
        let [image, oy, ox, channel] = coordinates(window, &g.shape.dims);
        let (ky, kx) = (place as usize / pool.size[1], place as usize % pool.size[1]);
        let y = (oy * pool.strides[0] + ky).checked_sub(pool.padding[0].0);
        let x = (ox * pool.strides[1] + kx).checked_sub(pool.padding[1].0);
        let (y, x) = (y.filter(|&y| y < dims[1])?, x.filter(|&x| x < dims[2])?);
        Some(((image * dims[1] + y) * dims[2] + x) * dims[3] + channel)
    };
    let elements = place.ints()?.iter().enumerate().map(element);
    let elements: Vec<Option<usize>> = elements.collect();
    let spread = |g: &[f64]| {
        let mut sums = vec![0.0; shape.len()];
        for (&g, element) in g.iter().zip(&elements) {
            if let Some(element) = element {
                sums[*element] += g;
            }
        }
        sums
    };
    Ok(Dual::floats(spread(g.floats()?), g.slope().map(spread)))
}
