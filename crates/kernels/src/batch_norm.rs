//! Batch normalisation in training, and its gradient, of f32 and of bf16 that is f32 in registers only.
//!
//! These loops are ours, not oneDNN's: both are bound by memory bandwidth, and ours read and write less. They compute mean and
//! variance in one pass, fuse a following ReLU and a residual addition, recompute the ReLU's mask from x instead of reading y, and run
//! the second pass backwards, so that it starts with what the first one left in the cache.
//!
//! With n rows of x, c channels: mean = sum(x) / n, variance = sum((x - mean)^2) / n,
//! y = (x - mean) * gamma / sqrt(variance + epsilon) + beta. The one-pass sums are of x - shift, with a shift near the mean: sums of
//! squares of x itself would cancel.

use crate::openmp::ThreadTeam;
use crate::scratchpad::Scratchpad;
use crate::simd::compiled_for_wide_vectors;
use crate::stored::Stored;

pub(crate) struct BatchNormForward<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) gamma: &'a [f32],
    pub(crate) beta: &'a [f32],
    /// Added before the ReLU.
    pub(crate) residual: Option<&'a [T]>,
    pub(crate) y: &'a mut [T],
    pub(crate) mean: &'a mut [f32],
    pub(crate) variance: &'a mut [f32],
    pub(crate) epsilon: f32,
    /// A ReLU at the end, and its ceiling.
    pub(crate) relu: Option<Ceiling>,
}

/// The largest value that a ReLU lets through.
pub(crate) type Ceiling = f32;

/// Comparisons with NaN are false: no value is above it.
pub(crate) const NO_CEILING: Ceiling = f32::NAN;

pub(crate) struct BatchNormGradient<'a, T> {
    pub(crate) dy: &'a [T],
    pub(crate) x: &'a [T],
    pub(crate) mean: &'a [f32],
    pub(crate) variance: &'a [f32],
    pub(crate) gamma: &'a [f32],
    pub(crate) mask: Mask<'a, T>,
    pub(crate) dx: &'a mut [T],
    pub(crate) dgamma: &'a mut [f32],
    pub(crate) dbeta: &'a mut [f32],
    pub(crate) epsilon: f32,
}

/// Where the ReLU let values through.
pub(crate) enum Mask<'a, T> {
    /// There is none.
    None,
    /// Where (x - mean) * scale + beta is positive and below the ceiling.
    Beta { beta: &'a [f32], ceiling: Ceiling },
    /// Where y is positive; the masked dy is the gradient of the residual.
    Output { y: &'a [T], residual: &'a mut [T] },
}

/// Bytes of a chunk of rows: small enough to divide the work evenly, large enough to make its sums cheap.
const CHUNK_BYTES: usize = 1 << 18;
/// Rows whose sums are kept in f32 before they are added up in f64.
const BLOCK_ROWS: usize = 64;

/// Fewest rows of a chunk, however long they are: its sums take 16 bytes a channel, at most an eighth of the chunk.
const MIN_CHUNK_ROWS: usize = 32;

/// Elements of a chunk of an array with this many channels: whole rows.
fn chunk_len(channels: usize) -> usize {
    (CHUNK_BYTES / 4 / channels).max(MIN_CHUNK_ROWS) * channels
}

impl<T: Stored> BatchNormForward<'_, T> {
    pub(crate) fn run(self, team: &ThreadTeam, scratch: &mut Scratchpad) {
        let channels = self.gamma.len();
        let chunk = chunk_len(channels);
        let rows = (self.x.len() / channels) as f64;
        let mut shift = vec![0.0; channels];
        estimate_shift(self.x, &mut shift);
        let shift = shift.as_slice();
        let sums = scratch.doubles(self.x.len().div_ceil(chunk) * 2 * channels);
        let chunks = self.x.chunks(chunk).zip(sums.chunks_mut(2 * channels));
        team.for_each(chunks, |(x, sums)| moments(x, shift, sums));
        reduce_chunks(sums, 2 * channels);
        for c in 0..channels {
            let mean = sums[c] / rows;
            self.mean[c] = (f64::from(shift[c]) + mean) as f32;
            let variance = sums[channels + c] / rows - mean * mean;
            // Not `max`, which would hide a NaN.
            self.variance[c] = if variance < 0.0 { 0.0 } else { variance as f32 };
        }
        let scale = scale_of(self.gamma, self.variance, self.epsilon);
        let affine = Affine {
            mean: self.mean,
            scale: &scale,
            beta: self.beta,
            ceiling: self.relu.unwrap_or(NO_CEILING),
        };
        let relu = self.relu.is_some();
        let chunks = self.x.chunks(chunk).zip(self.y.chunks_mut(chunk)).rev();
        match self.residual {
            None if relu => team.for_each(chunks, |(x, y)| normalise::<T, true>(x, &affine, y)),
            None => team.for_each(chunks, |(x, y)| normalise::<T, false>(x, &affine, y)),
            Some(residual) => {
                let chunks = residual.chunks(chunk).rev().zip(chunks);
                if relu {
                    team.for_each(chunks, |(r, (x, y))| {
                        normalise_and_add::<T, true>(x, &affine, r, y);
                    });
                } else {
                    team.for_each(chunks, |(r, (x, y))| {
                        normalise_and_add::<T, false>(x, &affine, r, y);
                    });
                }
            }
        }
    }
}

impl<T: Stored> BatchNormGradient<'_, T> {
    pub(crate) fn run(self, team: &ThreadTeam, scratch: &mut Scratchpad) {
        let channels = self.gamma.len();
        let chunk = chunk_len(channels);
        let rows = (self.x.len() / channels) as f64;
        let scale = scale_of(self.gamma, self.variance, self.epsilon);
        let affine = |beta, ceiling| Affine {
            mean: self.mean,
            scale: &scale,
            beta,
            ceiling,
        };
        let sums = scratch.doubles(self.x.len().div_ceil(chunk) * 2 * channels);
        let chunks = self.dy.chunks(chunk).zip(self.x.chunks(chunk));
        let chunks = chunks.zip(sums.chunks_mut(2 * channels));
        let (mut upstream, mut relu) = (self.dy, None);
        match self.mask {
            Mask::None => team.for_each(chunks, |((dy, x), sums)| {
                gradient_sums::<T, false>(dy, x, &affine(self.mean, NO_CEILING), sums);
            }),
            Mask::Beta { beta, ceiling } => {
                team.for_each(chunks, |((dy, x), sums)| {
                    gradient_sums::<T, true>(dy, x, &affine(beta, ceiling), sums);
                });
                relu = Some((beta, ceiling));
            }
            Mask::Output { y, residual } => {
                let outputs = y.chunks(chunk).zip(residual.chunks_mut(chunk));
                team.for_each(chunks.zip(outputs), |(((dy, x), sums), (y, masked))| {
                    mask(dy, y, masked);
                    gradient_sums::<T, false>(masked, x, &affine(self.mean, NO_CEILING), sums);
                });
                upstream = residual;
            }
        }
        reduce_chunks(sums, 2 * channels);
        let (mut slope, mut offset) = (vec![0.0; channels], vec![0.0; channels]);
        for c in 0..channels {
            let inverse = 1.0 / (f64::from(self.variance[c]) + f64::from(self.epsilon)).sqrt();
            let (dbeta, dgamma) = (sums[c], sums[channels + c] * inverse);
            let scale = f64::from(scale[c]);
            (self.dbeta[c], self.dgamma[c]) = (dbeta as f32, dgamma as f32);
            slope[c] = (-scale * inverse * dgamma / rows) as f32;
            offset[c] = (-scale * dbeta / rows) as f32;
        }
        let terms = InputGradientTerms {
            slope: &slope,
            offset: &offset,
        };
        let chunks = upstream.chunks(chunk).zip(self.x.chunks(chunk));
        let chunks = chunks.zip(self.dx.chunks_mut(chunk)).rev();
        match relu {
            Some((beta, ceiling)) => team.for_each(chunks, |((dy, x), dx)| {
                input_gradient::<T, true>(dy, x, &terms, &affine(beta, ceiling), dx);
            }),
            None => team.for_each(chunks, |((dy, x), dx)| {
                input_gradient::<T, false>(dy, x, &terms, &affine(self.mean, NO_CEILING), dx);
            }),
        }
    }
}

/// gamma / sqrt(variance + epsilon).
fn scale_of(gamma: &[f32], variance: &[f32], epsilon: f32) -> Vec<f32> {
    let scale = |(gamma, variance): (&f32, &f32)| gamma / (variance + epsilon).sqrt();
    gamma.iter().zip(variance).map(scale).collect()
}

/// Adds all chunks into the first, in their order.
fn reduce_chunks(sums: &mut [f64], len: usize) {
    let (total, rest) = sums.split_at_mut(len);
    for chunk in rest.chunks(len) {
        total
            .iter_mut()
            .zip(chunk)
            .for_each(|(total, value)| *total += value);
    }
}

/// y = (x - mean) * scale + beta, per channel, and the ceiling of its ReLU.
struct Affine<'a> {
    mean: &'a [f32],
    scale: &'a [f32],
    beta: &'a [f32],
    ceiling: Ceiling,
}

/// dx = dy * scale + (x - mean) * slope + offset, per channel.
struct InputGradientTerms<'a> {
    slope: &'a [f32],
    offset: &'a [f32],
}

compiled_for_wide_vectors! {
    /// A shift for each channel that is near its mean, compared with the deviation. It is the median of three medians of three rows,
    /// which an outlier does not move. Rows at equal distances would all be corners where the images are a multiple of them.
    fn estimate_shift<T: Stored>(x: &[T], shift: &mut [f32]) {
        let channels = shift.len();
        let last = x.len() / channels - 1;
        const PLACES: [usize; 9] = [37, 173, 283, 419, 541, 653, 769, 887, 1009];
        let row = |i: usize| &x[last * PLACES[i] / 1024 * channels..][..channels];
        let [a, b, c] = [0, 1, 2].map(|i| [row(i), row(i + 3), row(i + 6)]);
        for i in 0..channels {
            let [a, b, c] = [a, b, c].map(|[a, b, c]| median(a[i].wide(), b[i].wide(), c[i].wide()));
            shift[i] = median(a, b, c);
        }
    }
}

/// Not a NaN, unless all are.
#[inline(always)]
fn median(a: f32, b: f32, c: f32) -> f32 {
    a.min(b).max(a.max(b).min(c))
}

compiled_for_wide_vectors! {
    /// Sums of x - shift and of its square, per channel, of whole rows.
    fn moments<T: Stored>(x: &[T], shift: &[f32], sums: &mut [f64]) {
        let channels = shift.len();
        let mut block = [vec![0.0f32; channels], vec![0.0f32; channels]];
        let [first, second] = &mut block;
        let (first, second) = (&mut first[..channels], &mut second[..channels]);
        sums.fill(0.0);
        for rows in x.chunks(BLOCK_ROWS * channels) {
            let mut fours = rows.chunks_exact(4 * channels);
            for four in &mut fours {
                let (a, four) = four.split_at(channels);
                let (b, four) = four.split_at(channels);
                let (c, d) = four.split_at(channels);
                let d = &d[..channels];
                for i in 0..channels {
                    let [a, b, c, d] = [a[i], b[i], c[i], d[i]].map(|x| x.wide() - shift[i]);
                    first[i] += (a + b) + (c + d);
                    second[i] += (a * a + b * b) + (c * c + d * d);
                }
            }
            for row in fours.remainder().chunks_exact(channels) {
                for i in 0..channels {
                    let a = row[i].wide() - shift[i];
                    first[i] += a;
                    second[i] += a * a;
                }
            }
            add_block(first, second, sums);
        }
    }
}

compiled_for_wide_vectors! {
    /// Sums of dy and of dy * (x - mean), per channel, of whole rows; with a ReLU, of the dy that it lets through.
    fn gradient_sums<T: Stored, const RELU: bool>(dy: &[T], x: &[T], affine: &Affine<'_>, sums: &mut [f64]) {
        let channels = affine.mean.len();
        let (mean, scale, beta) = (affine.mean, &affine.scale[..channels], &affine.beta[..channels]);
        let ceiling = affine.ceiling;
        let mut block = [vec![0.0f32; channels], vec![0.0f32; channels]];
        let [first, second] = &mut block;
        let (first, second) = (&mut first[..channels], &mut second[..channels]);
        sums.fill(0.0);
        let len = BLOCK_ROWS * channels;
        for (dy, x) in dy.chunks(len).zip(x.chunks(len)) {
            let mut dys = dy.chunks_exact(2 * channels);
            let mut xs = x.chunks_exact(2 * channels);
            for (dy, x) in (&mut dys).zip(&mut xs) {
                let ((dy, dy2), (x, x2)) = (dy.split_at(channels), x.split_at(channels));
                let (dy2, x2) = (&dy2[..channels], &x2[..channels]);
                for i in 0..channels {
                    let (x, x2) = (x[i].wide() - mean[i], x2[i].wide() - mean[i]);
                    let (dy, dy2) = (dy[i].wide(), dy2[i].wide());
                    let (dy, dy2) = if RELU {
                        (relu_gradient(dy, x * scale[i] + beta[i], ceiling), relu_gradient(dy2, x2 * scale[i] + beta[i], ceiling))
                    } else {
                        (dy, dy2)
                    };
                    first[i] += dy + dy2;
                    second[i] += dy * x + dy2 * x2;
                }
            }
            let rest = dys.remainder().iter().zip(xs.remainder());
            for (i, (&dy, &x)) in rest.enumerate() {
                let (dy, x) = (dy.wide(), x.wide() - mean[i]);
                let dy = if RELU { relu_gradient(dy, x * scale[i] + beta[i], ceiling) } else { dy };
                first[i] += dy;
                second[i] += dy * x;
            }
            add_block(first, second, sums);
        }
    }
}

compiled_for_wide_vectors! {
    /// y of whole rows.
    fn normalise<T: Stored, const RELU: bool>(x: &[T], affine: &Affine<'_>, y: &mut [T]) {
        let channels = affine.mean.len();
        let (mean, scale, beta) = (affine.mean, &affine.scale[..channels], &affine.beta[..channels]);
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            for i in 0..channels {
                let value = (x[i].wide() - mean[i]) * scale[i] + beta[i];
                y[i] = T::narrow(if RELU { relu(value, affine.ceiling) } else { value });
            }
        }
    }
}

compiled_for_wide_vectors! {
    /// y of whole rows, with an addition before the ReLU.
    fn normalise_and_add<T: Stored, const RELU: bool>(x: &[T], affine: &Affine<'_>, residual: &[T], y: &mut [T]) {
        let channels = affine.mean.len();
        let (mean, scale, beta) = (affine.mean, &affine.scale[..channels], &affine.beta[..channels]);
        let rows = x.chunks_exact(channels).zip(residual.chunks_exact(channels));
        for ((x, residual), y) in rows.zip(y.chunks_exact_mut(channels)) {
            for i in 0..channels {
                let value = (x[i].wide() - mean[i]) * scale[i] + beta[i] + residual[i].wide();
                y[i] = T::narrow(if RELU { relu(value, affine.ceiling) } else { value });
            }
        }
    }
}

compiled_for_wide_vectors! {
    /// dy where y is positive, else 0.
    fn mask<T: Stored>(dy: &[T], y: &[T], masked: &mut [T]) {
        for ((dy, y), masked) in dy.iter().zip(y).zip(masked) {
            *masked = T::narrow(relu_gradient(dy.wide(), y.wide(), NO_CEILING));
        }
    }
}

compiled_for_wide_vectors! {
    /// dx of whole rows.
    fn input_gradient<T: Stored, const RELU: bool>(dy: &[T], x: &[T], terms: &InputGradientTerms<'_>, affine: &Affine<'_>, dx: &mut [T]) {
        let channels = affine.mean.len();
        let (mean, scale, beta) = (affine.mean, &affine.scale[..channels], &affine.beta[..channels]);
        let ceiling = affine.ceiling;
        let (slope, offset) = (&terms.slope[..channels], &terms.offset[..channels]);
        let rows = dy.chunks_exact(channels).zip(x.chunks_exact(channels));
        for ((dy, x), dx) in rows.zip(dx.chunks_exact_mut(channels)) {
            for i in 0..channels {
                let (dy, x) = (dy[i].wide(), x[i].wide() - mean[i]);
                let dy = if RELU { relu_gradient(dy, x * scale[i] + beta[i], ceiling) } else { dy };
                dx[i] = T::narrow(dy * scale[i] + x * slope[i] + offset[i]);
            }
        }
    }
}

/// Unlike `f32::max`, keeps NaN.
#[inline(always)]
pub(crate) fn relu(value: f32, ceiling: Ceiling) -> f32 {
    let value = if value < 0.0 { 0.0 } else { value };
    if value > ceiling { ceiling } else { value }
}

#[inline(always)]
fn relu_gradient(dy: f32, value: f32, ceiling: Ceiling) -> f32 {
    let clipped = value >= ceiling;
    if value > 0.0 && !clipped { dy } else { 0.0 }
}

/// Adds the sums of a block to the sums of a chunk.
#[inline(always)]
fn add_block(first: &mut [f32], second: &mut [f32], sums: &mut [f64]) {
    for (block, sum) in first.iter_mut().chain(second).zip(sums) {
        *sum += f64::from(std::mem::take(block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_take_a_fraction_of_what_they_are_of() {
        for channels in [1, 3, 64, 2048, 65_536, 1_000_003] {
            let (chunk, sums) = (
                chunk_len(channels) * size_of::<f32>(),
                2 * channels * size_of::<f64>(),
            );
            assert!(chunk_len(channels).is_multiple_of(channels));
            assert!(8 * sums <= chunk, "{channels}: {sums} of {chunk}");
        }
    }

    #[test]
    fn an_outlier_is_not_the_shift() {
        for outlier in 0..9 {
            let x: Vec<f32> = (0..9)
                .map(|row| if row == outlier { 1e6 } else { 1.0 })
                .collect();
            let mut shift = [0.0];
            estimate_shift(&x, &mut shift);
            assert_eq!(shift, [1.0], "row {outlier}");
        }
        let mut shift = [0.0, 0.0];
        estimate_shift(&[3.0, 4.0], &mut shift);
        assert_eq!(shift, [3.0, 4.0]);
    }
}
