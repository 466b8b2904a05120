//! Batch normalisation, and its gradient.

use phalanx_graph::{Mask, Ramp};

use super::kernels::{ramped, rises};
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

    /// The derivatives along that of `x`.
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

pub(super) fn batch_norm(x: &[Operand], epsilon: f64, ramp: Ramp, noise: &Noise) -> Outcome {
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
        let y = ramped(ramp, &Dual::floats(y, None))?;
        return Ok(vec![
            y,
            Dual::floats(mean, None),
            Dual::floats(variance, None),
        ]);
    }
    let slope = |x: Option<&Operand>, count: usize| -> Vec<f64> {
        let tangent = x.and_then(Operand::slope);
        tangent.map_or_else(|| vec![0.0; count], <[f64]>::to_vec)
    };
    let count = zeros.len();
    let slopes = [
        slope(Some(first), count),
        slope(Some(gamma), channels),
        slope(Some(beta), channels),
        slope(residual, count),
    ];
    let along = normal.along(&slopes[0]);
    let tangent = normalized_along(&normal, &along, &values, &slopes);
    Ok(vec![
        ramped(ramp, &Dual::floats(y, Some(tangent)))?,
        Dual::floats(mean, Some(along.mean)),
        Dual::floats(variance, Some(along.variance)),
    ])
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

/// `gamma / sqrt(variance + epsilon) (g - mean(g) - z mean(g z))`, of the cotangent `g` where it passes and the normalized
/// `z`; then the sums of `g z` and of `g`, and `g` for the residual.
pub(super) fn batch_norm_gradient(
    x: &[Operand],
    epsilon: f64,
    mask: Mask,
    noise: &Noise,
) -> Outcome {
    let all: Vec<&[f64]> = x.iter().map(Operand::floats).collect::<Result<_, _>>()?;
    let [g, x, mean, variance, gamma, by @ ..] = all.as_slice() else {
        return Err("expected five operands or more".into());
    };
    let channels = gamma.len();
    let count = (x.len() / channels.max(1)) as f64;
    let inverse: Vec<f64> = variance
        .iter()
        .map(|v| noise.relative(1.0 / (v + epsilon).sqrt()))
        .collect();
    let normal = |(i, &x): (usize, &f64)| {
        let c = i % channels;
        noise.relative(sum_of_two(x, -mean[c], noise) * inverse[c])
    };
    let z: Vec<f64> = x.iter().enumerate().map(normal).collect();
    let by = by.first().copied().unwrap_or_default();
    let passes = |i: usize| match mask {
        Mask::None => true,
        Mask::Beta(ramp) => rises(ramp, z[i] * gamma[i % channels] + by[i % channels]),
        Mask::Output => by[i] > 0.0,
    };
    let masked = g
        .iter()
        .enumerate()
        .map(|(i, &g)| if passes(i) { g } else { 0.0 });
    let g: Vec<f64> = masked.collect();
    let products: Vec<f64> = g
        .iter()
        .zip(&z)
        .map(|(g, z)| noise.relative(g * z))
        .collect();
    let (to_beta, to_gamma) = (sums(&g, channels, noise), sums(&products, channels, noise));
    let to_x = (0..g.len()).map(|i| {
        let c = i % channels;
        let centred = sum_of_two(g[i], -to_beta[c] / count, noise);
        let centred = sum_of_two(centred, -z[i] * to_gamma[c] / count, noise);
        noise.relative(centred * gamma[c] * inverse[c])
    });
    let mut found = vec![to_x.collect(), to_gamma, to_beta];
    found.extend((mask == Mask::Output).then(|| g.clone()));
    Ok(found
        .into_iter()
        .map(|values| Dual::floats(values, None))
        .collect())
}
