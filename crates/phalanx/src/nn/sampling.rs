//! Random numbers on the host: element `i` of a variable is a function of (seed, path, i), so values do not depend
//! on the order or the number of threads that draw them.

use std::num::NonZero;
use std::thread;

use phalanx_graph::{AlignedBytes, HostTensor, Shape};

use crate::hash::{GOLDEN, fnv1a, splitmix64};

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Distribution {
    /// Evenly between bounds.
    Uniform { low: f64, high: f64 },
    /// Normal.
    Normal { mean: f64, stddev: f64 },
    /// Normal cut at two deviations.
    Truncated { mean: f64, stddev: f64 },
}

/// Fewer elements than this are drawn by one thread.
const THREAD_WORTH: usize = 1 << 16;
/// Probability of a standard normal below -2.
const BELOW_CUT: f64 = 0.022_750_131_948_179_21;

/// An f32 tensor of independent draws.
pub(super) fn sample(
    shape: &Shape,
    distribution: Distribution,
    seed: u64,
    path: &str,
) -> HostTensor {
    let key = key(seed, path);
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let chunk = shape.len().div_ceil(threads).max(THREAD_WORTH);
    thread::scope(|scope| {
        for (part, slots) in bytes.as_mut_slice().chunks_mut(chunk * 4).enumerate() {
            let mut fill = move || fill(slots, part * chunk, key, distribution);
            if shape.len() <= chunk {
                fill();
            } else {
                scope.spawn(fill);
            }
        }
    });
    HostTensor::from_aligned(shape.clone(), bytes)
}

fn fill(slots: &mut [u8], first: usize, key: u64, distribution: Distribution) {
    for (i, slot) in slots.chunks_exact_mut(4).enumerate() {
        let value = distribution.at(unit(key, (first + i) as u64)) as f32;
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

/// The draws of a variable, by their positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    key: u64,
    distribution: Distribution,
}

impl Draws {
    pub(super) fn new(distribution: Distribution, seed: u64, path: &str) -> Self {
        let key = key(seed, path);
        Self { key, distribution }
    }

    pub(super) fn at(&self, index: u64) -> f32 {
        self.distribution.at(unit(self.key, index)) as f32
    }
}

impl Distribution {
    /// The quantile of a probability strictly between 0 and 1.
    fn at(self, probability: f64) -> f64 {
        match self {
            Self::Uniform { low, high } => low + (high - low) * probability,
            Self::Normal { mean, stddev } => mean + stddev * normal_quantile(probability),
            Self::Truncated { mean, stddev } => {
                let inside = BELOW_CUT + probability * (1.0 - 2.0 * BELOW_CUT);
                mean + stddev * normal_quantile(inside).clamp(-2.0, 2.0)
            }
        }
    }
}

/// The stream of a variable: FNV-1a of its path, mixed with the seed.
fn key(seed: u64, path: &str) -> u64 {
    splitmix64(path_hash(path) ^ splitmix64(seed))
}

/// A 64-bit hash of a path, the same on every machine and in every version.
pub(super) fn path_hash(path: &str) -> u64 {
    splitmix64(fnv1a(path.as_bytes()))
}

/// Draw `index` of a stream, strictly between 0 and 1.
fn unit(key: u64, index: u64) -> f64 {
    let bits = splitmix64(key.wrapping_add(index.wrapping_mul(GOLDEN)));
    ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// The standard normal's quantile, exact to 1e-15 relative: algorithm AS 241, PPND16 (Wichura 1988).
fn normal_quantile(probability: f64) -> f64 {
    let q = probability - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * horner(&CENTRE_NUMERATOR, r) / horner(&CENTRE_DENOMINATOR, r);
    }
    let tail = if q < 0.0 {
        probability
    } else {
        1.0 - probability
    };
    let r = (-tail.ln()).sqrt();
    let size = if r <= 5.0 {
        horner(&MIDDLE_NUMERATOR, r - 1.6) / horner(&MIDDLE_DENOMINATOR, r - 1.6)
    } else {
        horner(&TAIL_NUMERATOR, r - 5.0) / horner(&TAIL_DENOMINATOR, r - 5.0)
    };
    size.copysign(q)
}

fn horner(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

const CENTRE_NUMERATOR: [f64; 8] = [
    3.387_132_872_796_366_5,
    1.331_416_678_917_843_8e2,
    1.971_590_950_306_551_3e3,
    1.373_169_376_550_946e4,
    4.592_195_393_154_987e4,
    6.726_577_092_700_87e4,
    3.343_057_558_358_813e4,
    2.509_080_928_730_122_7e3,
];
const CENTRE_DENOMINATOR: [f64; 8] = [
    1.0,
    4.231_333_070_160_091e1,
    6.871_870_074_920_579e2,
    5.394_196_021_424_751e3,
    2.121_379_430_158_659_7e4,
    3.930_789_580_009_271e4,
    2.872_908_573_572_194_3e4,
    5.226_495_278_852_854e3,
];
const MIDDLE_NUMERATOR: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    2.417_807_251_774_506e-1,
    2.272_384_498_926_918_4e-2,
    7.745_450_142_783_414e-4,
];
const MIDDLE_DENOMINATOR: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    6.897_673_349_851e-1,
    1.481_039_764_274_800_8e-1,
    1.519_866_656_361_645_7e-2,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const TAIL_NUMERATOR: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    2.965_605_718_285_048_7e-1,
    2.653_218_952_657_612_4e-2,
    1.242_660_947_388_078_4e-3,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const TAIL_DENOMINATOR: [f64; 8] = [
    1.0,
    5.998_322_065_558_88e-1,
    1.369_298_809_227_358e-1,
    1.487_536_129_085_061_5e-2,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

/// A random matrix with orthonormal rows or columns, whichever are fewer, times `gain`.
///
/// Gram-Schmidt, twice, on normal vectors: the triangular factor has a positive diagonal, so the result is
/// evenly distributed over the orthogonal matrices.
pub(super) fn orthogonal(shape: &Shape, gain: f64, seed: u64, path: &str) -> HostTensor {
    let columns = shape.dims.last().copied().unwrap_or(1);
    let rows = shape.len() / columns.max(1);
    let (count, length) = (rows.min(columns), rows.max(columns));
    let key = key(seed, path);
    let draw = |i: usize| normal_quantile(unit(key, i as u64));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for i in 0..count {
        let mut vector: Vec<f64> = (i * length..(i + 1) * length).map(draw).collect();
        for _ in 0..2 {
            orthonormalize(&mut vector, &vectors);
        }
        vectors.push(vector);
    }
    let mut values = Vec::with_capacity(shape.len());
    for row in 0..rows {
        values.extend((0..columns).map(|column| {
            let (vector, place) = if rows >= columns {
                (column, row)
            } else {
                (row, column)
            };
            (vectors[vector][place] * gain) as f32
        }));
    }
    HostTensor::new(shape.dims.clone(), &values)
}

/// Removes from `vector` its parts along the others, then scales it to length 1.
fn orthonormalize(vector: &mut [f64], others: &[Vec<f64>]) {
    for other in others {
        let along: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
        for (a, b) in vector.iter_mut().zip(other) {
            *a -= along * b;
        }
    }
    let length = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
    for a in vector {
        *a /= length;
    }
}
