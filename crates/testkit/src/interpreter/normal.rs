//! Batch normalisation, and its gradient.

use phalanx_graph::{FusedActivation, Mask};

use super::kernels::{ramped, rises};
use super::machine::take;
use super::noise::Noise;
use super::{Dual, Operand, Outcome};

/// Sums over all dims but the last.
fn by_channel(channels: usize, x: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0; channels];
    for (i, x) in x.enumerate() {
        sums[i % channels] += x;
    }
    sums
}

/// By channel, with errors.
fn sums(x: &[f64], channels: usize, noise: &Noise) -> Vec<f64> {
    let mut sums = by_channel(channels, x.iter().copied());
    noise.sums(&mut sums, || {
        by_channel(channels, x.iter().map(|x| x.abs()))
    });
    sums
}

fn scaled(x: Vec<f64>, by: f64) -> Vec<f64> {
    x.into_iter().map(|x| x * by).collect()
}

/// The mean of each channel, with its error.
fn mean(x: &[f64], channels: usize, noise: &Noise) -> Vec<f64> {
    let count = x.len() / channels.max(1);
    scaled(sums(x, channels, noise), 1.0 / count as f64)
}

/// `a + b` with its error.
fn sum_of_two(a: f64, b: f64, noise: &Noise) -> f64 {
    noise.scaled(a + b, a.abs().max(b.abs()))
}

/// What a normalisation finds on its way.
struct Normal {
    mean: Vec<f64>,
    variance: Vec<f64>,
    /// `x - mean`.
    centred: Vec<f64>,
    /// `1 / sqrt(variance + epsilon)`.
    inverse: Vec<f64>,
}

impl Normal {
    fn new(x: &[f64], channels: usize, epsilon: f64, noise: &Noise) -> Self {
        let mean = mean(x, channels, noise);
        let centred = x.iter().enumerate();
        let centred = centred.map(|(i, &x)| sum_of_two(x, -mean[i % channels], noise));
        let centred: Vec<f64> = centred.collect();
        let squares: Vec<f64> = centred.iter().map(|x| noise.relative(x * x)).collect();
        let variance = self::mean(&squares, channels, noise);
        let inverse = variance
            .iter()
            .map(|v| noise.relative(1.0 / (v + epsilon).sqrt()));
        Self {
            inverse: inverse.collect(),
            mean,
            variance,
            centred,
        }
    }

    /// The derivatives along `x`'s derivatives.
    fn along(&self, tangent: &[f64]) -> Self {
        let channels = self.mean.len();
        let mean = mean(tangent, channels, &Noise::NONE);
        let centred = tangent.iter().enumerate();
        let centred: Vec<f64> = centred.map(|(i, t)| t - mean[i % channels]).collect();
        let pairs = self.centred.iter().zip(&centred);
        let products: Vec<f64> = pairs.map(|(x, t)| 2.0 * x * t).collect();
        let variance = self::mean(&products, channels, &Noise::NONE);
        let pairs = self.inverse.iter().zip(&variance);
        let inverse = pairs.map(|(y, t)| -0.5 * y * y * y * t);
        Self {
            inverse: inverse.collect(),
            mean,
            variance,
            centred,
        }
    }
}

/// Values of `(x, gamma, beta, residual)`, or their derivatives.
type Given<'a> = [&'a [f64]; 4];

pub(super) fn batch_norm(
    x: &[Operand],
    epsilon: f64,
    activation: FusedActivation,
    noise: &Noise,
) -> Outcome {
    let [first, gamma, beta, rest @ ..] = x else {
        return Err("expected x, gamma and beta".into());
    };
    let (channels, zeros) = (gamma.value.len(), vec![0.0; first.value.len()]);
    let residual = rest.first();
    let values: Given = [
        first.floats()?,
        gamma.floats()?,
        beta.floats()?,
        residual.map_or(Ok(zeros.as_slice()), Operand::floats)?,
    ];
    let normal = Normal::new(values[0], channels, epsilon, noise);
    let y = normalized(&normal, &values, noise);
    let (mean, variance) = (normal.mean.clone(), normal.variance.clone());
    if x.iter().all(|x| x.slope().is_none()) {
        let y = ramped(activation, &Dual::floats(y, None))?;
        return Ok(vec![
            y,
            Dual::floats(mean, None),
            Dual::floats(variance, None),
        ]);
    }
    let count = zeros.len();
    let slopes = [
        slope_or_zeros(Some(first), count),
        slope_or_zeros(Some(gamma), channels),
        slope_or_zeros(Some(beta), channels),
        slope_or_zeros(residual, count),
    ];
    let along = normal.along(&slopes[0]);
    let tangent = normalized_along(&normal, &along, &values, &slopes);
    Ok(vec![
        ramped(activation, &Dual::floats(y, Some(tangent)))?,
        Dual::floats(mean, Some(along.mean)),
        Dual::floats(variance, Some(along.variance)),
    ])
}

fn slope_or_zeros(x: Option<&Operand>, count: usize) -> Vec<f64> {
    let tangent = x.and_then(Operand::slope);
    tangent.map_or_else(|| vec![0.0; count], <[f64]>::to_vec)
}

fn normalized(normal: &Normal, [_, gamma, beta, residual]: &Given, noise: &Noise) -> Vec<f64> {
    let all = normal.centred.iter().zip(*residual).enumerate();
    let each = all.map(|(i, (x, residual))| {
        let c = i % gamma.len();
        let y = noise.relative(x * normal.inverse[c] * gamma[c]);
        sum_of_two(sum_of_two(y, beta[c], noise), *residual, noise)
    });
    each.collect()
}

fn normalized_along(
    normal: &Normal,
    along: &Normal,
    [_, gamma, ..]: &Given,
    [_, to_gamma, to_beta, to_residual]: &[Vec<f64>; 4],
) -> Vec<f64> {
    let each = (0..normal.centred.len()).map(|i| {
        let c = i % gamma.len();
        let factor = normal.inverse[c] * gamma[c];
        let factor_along = along.inverse[c] * gamma[c] + normal.inverse[c] * to_gamma[c];
        let y = along.centred[i] * factor + normal.centred[i] * factor_along;
        y + to_beta[c] + to_residual[i]
    });
    each.collect()
}

/// What the gradient of a normalisation finds on its way; or the derivatives of that.
struct Backward {
    /// The cotangent where it passes.
    g: Vec<f64>,
    /// The normalized `x`.
    z: Vec<f64>,
    inverse: Vec<f64>,
    /// Sums of `g z`.
    to_gamma: Vec<f64>,
    /// Sums of `g`.
    to_beta: Vec<f64>,
    /// `g - mean(g) - z mean(g z)`.
    centred: Vec<f64>,
}

/// Values of `(cotangent, x, mean, variance, gamma)`, or their derivatives.
type Known<'a> = [&'a [f64]; 5];

impl Backward {
    fn new(
        [g, x, mean, variance, gamma]: &Known,
        epsilon: f64,
        passes: impl Fn(usize, f64) -> bool,
        noise: &Noise,
    ) -> Self {
        let channels = gamma.len();
        let count = (x.len() / channels.max(1)) as f64;
        let inverse = variance
            .iter()
            .map(|v| noise.relative(1.0 / (v + epsilon).sqrt()));
        let inverse: Vec<f64> = inverse.collect();
        let normal = |(i, &x): (usize, &f64)| {
            let c = i % channels;
            noise.relative(sum_of_two(x, -mean[c], noise) * inverse[c])
        };
        let z: Vec<f64> = x.iter().enumerate().map(normal).collect();
        let masked = g.iter().zip(&z).enumerate();
        let masked = masked.map(|(i, (&g, &z))| if passes(i, z) { g } else { 0.0 });
        let g: Vec<f64> = masked.collect();
        let products = g.iter().zip(&z).map(|(g, z)| noise.relative(g * z));
        let products: Vec<f64> = products.collect();
        let (to_beta, to_gamma) = (sums(&g, channels, noise), sums(&products, channels, noise));
        let centred = (0..g.len()).map(|i| {
            let c = i % channels;
            let centred = sum_of_two(g[i], -to_beta[c] / count, noise);
            sum_of_two(centred, -z[i] * to_gamma[c] / count, noise)
        });
        Self {
            centred: centred.collect(),
            g,
            z,
            inverse,
            to_gamma,
            to_beta,
        }
    }

    /// The derivatives along the derivatives of what is known.
    fn along(&self, [_, x, mean, ..]: &Known, [g, to_x, to_mean, to_variance, _]: &Known) -> Self {
        let channels = mean.len();
        let count = (x.len() / channels.max(1)) as f64;
        let inverse = self.inverse.iter().zip(*to_variance);
        let inverse: Vec<f64> = inverse.map(|(y, t)| -0.5 * y * y * y * t).collect();
        let normal = |i: usize| {
            let c = i % channels;
            (to_x[i] - to_mean[c]) * self.inverse[c] + (x[i] - mean[c]) * inverse[c]
        };
        let z: Vec<f64> = (0..x.len()).map(normal).collect();
        let products = (0..x.len()).map(|i| g[i] * self.z[i] + self.g[i] * z[i]);
        let to_gamma = by_channel(channels, products);
        let to_beta = by_channel(channels, g.iter().copied());
        let centred = (0..x.len()).map(|i| {
            let c = i % channels;
            let by_z = z[i] * self.to_gamma[c] + self.z[i] * to_gamma[c];
            g[i] - (to_beta[c] + by_z) / count
        });
        Self {
            centred: centred.collect(),
            g: g.to_vec(),
            z,
            inverse,
            to_gamma,
            to_beta,
        }
    }
}

/// `gamma / sqrt(variance + epsilon) (g - mean(g) - z mean(g z))`, of the cotangent `g` where it passes and the normalized
/// `z`; then the sums of `g z` and of `g`, and `g` for the residual.
pub(super) fn batch_norm_gradient(
    x: &[Operand],
    epsilon: f64,
    mask: Mask,
    noise: &Noise,
) -> Outcome {
    let (known, by) = x.split_at(x.len().min(5));
    let known = take::<5>(known)?;
    let by = match (mask, by.first()) {
        (Mask::None, _) => &[],
        (_, None) => return Err("expected six operands".into()),
        (_, Some(by)) => by.floats()?,
    };
    let mut values: Known = [&[]; 5];
    for (value, x) in values.iter_mut().zip(&known) {
        *value = x.floats()?;
    }
    let gamma = values[4];
    let passes = |i: usize, z: f64| match mask {
        Mask::None => true,
        Mask::Beta(activation) => {
            rises(activation, z * gamma[i % gamma.len()] + by[i % gamma.len()])
        }
        Mask::Output => by[i] > 0.0,
    };
    let found = Backward::new(&values, epsilon, passes, noise);
    let to_x = found.centred.iter().enumerate().map(|(i, centred)| {
        let c = i % gamma.len();
        noise.relative(centred * gamma[c] * found.inverse[c])
    });
    let mut results = vec![
        to_x.collect(),
        found.to_gamma.clone(),
        found.to_beta.clone(),
    ];
    results.extend((mask == Mask::Output).then(|| found.g.clone()));
    if known.iter().all(|x| x.slope().is_none()) {
        return Ok(duals(results, Vec::new()));
    }
    let mut slopes = known.map(|x| slope_or_zeros(Some(&x), x.value.len()));
    for (i, (g, &z)) in slopes[0].iter_mut().zip(&found.z).enumerate() {
        *g = if passes(i, z) { *g } else { 0.0 };
    }
    let slopes: Known = slopes.each_ref().map(Vec::as_slice);
    let along = found.along(&values, &slopes);
    let to_x = (0..found.g.len()).map(|i| {
        let c = i % gamma.len();
        let factor = slopes[4][c] * found.inverse[c] + gamma[c] * along.inverse[c];
        factor * found.centred[i] + gamma[c] * found.inverse[c] * along.centred[i]
    });
    let tangents = vec![to_x.collect(), along.to_gamma, along.to_beta, along.g];
    Ok(duals(results, tangents))
}

/// Results with their tangents; without, where there are none.
fn duals(values: Vec<Vec<f64>>, tangents: Vec<Vec<f64>>) -> Vec<Dual> {
    let tangents = tangents
        .into_iter()
        .map(Some)
        .chain(std::iter::repeat(None));
    let pairs = values.into_iter().zip(tangents);
    pairs
        .map(|(values, tangent)| Dual::floats(values, tangent))
        .collect()
}
