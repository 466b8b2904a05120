//! Resizing with the numbers of `tf.image.resize`, centres of pixels at halves.

use std::f32::consts::PI;

use serde::{Deserialize, Serialize};

/// How the pixels of an image of another size are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// The pixel at the place.
    Nearest,
    /// Linearly between the pixels beside the place.
    #[default]
    Bilinear,
    /// By cubic polynomials of four pixels in each direction (Keys 1981, a = -1/2).
    Bicubic,
    /// By Lanczos' windowed sinc of six pixels in each direction.
    Lanczos3,
    /// By Lanczos' windowed sinc of ten pixels in each direction.
    Lanczos5,
}

impl Resampling {
    /// Pixels on each side of a place that count.
    const fn radius(self) -> f32 {
        match self {
            Self::Nearest => 0.5,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos3 => 3.0,
            Self::Lanczos5 => 5.0,
        }
    }

    /// The weight of a pixel this far from the place.
    fn weight(self, distance: f32) -> f32 {
        let x = distance.abs();
        match self {
            Self::Nearest => 1.0,
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x >= 2.0 => 0.0,
            Self::Bicubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Self::Bicubic => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Lanczos3 | Self::Lanczos5 if x > self.radius() => 0.0,
            Self::Lanczos3 | Self::Lanczos5 if x <= 1e-3 => 1.0,
            Self::Lanczos3 | Self::Lanczos5 => {
                let radius = self.radius();
                radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * PI * x * x)
            }
        }
    }
}

/// What one output coordinate is made of.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    /// The first pixel.
    pub(crate) start: usize,
    /// The part of it and of those after it.
    pub(crate) weights: Vec<f32>,
}

/// Rows of an image made rows of another size, as they come.
#[derive(Debug)]
pub(super) struct Resizer {
    channels: usize,
    columns: Vec<Taps>,
    rows: Vec<Taps>,
    /// The first output row that needs this or later input rows.
    pending: usize,
    /// An input row at the new width.
    narrow: Vec<f32>,
}

impl Resizer {
    /// From (height, width) to (height, width).
    pub(super) fn new(
        from: (usize, usize),
        to: (usize, usize),
        channels: usize,
        antialias: bool,
    ) -> Self {
        Self {
            channels,
            columns: taps(from.1, to.1, Resampling::Bilinear, antialias),
            rows: taps(from.0, to.0, Resampling::Bilinear, antialias),
            pending: 0,
            narrow: vec![0.0; to.1 * channels],
        }
    }

    /// Adds what input row `y` gives to the output, which is zeros before the first.
    pub(super) fn add(&mut self, y: usize, row: &[u8], out: &mut [f32]) {
        let ends_before = |taps: &Taps| taps.start + taps.weights.len() <= y;
        while self.rows.get(self.pending).is_some_and(ends_before) {
            self.pending += 1;
        }
        let stride = self.narrow.len();
        let mut narrowed = false;
        for (i, taps) in self.rows.iter().enumerate().skip(self.pending) {
            let Some(&weight) = y.checked_sub(taps.start).and_then(|k| taps.weights.get(k)) else {
                break;
            };
            if !narrowed {
                narrow(&self.columns, self.channels, row, &mut self.narrow);
                narrowed = true;
            }
            for (sum, value) in out[i * stride..][..stride].iter_mut().zip(&self.narrow) {
                *sum += weight * value;
            }
        }
    }
}

fn narrow(columns: &[Taps], channels: usize, row: &[u8], out: &mut [f32]) {
    for (taps, pixel) in columns.iter().zip(out.chunks_exact_mut(channels)) {
        pixel.fill(0.0);
        let samples = row[taps.start * channels..].chunks_exact(channels);
        for (weight, sample) in taps.weights.iter().zip(samples) {
            for (sum, &value) in pixel.iter_mut().zip(sample) {
                *sum += weight * f32::from(value);
            }
        }
    }
}

/// Of what each of `to` places is made, of `from` pixels; smoothed where several pixels become one, if `antialias` says so.
pub(crate) fn taps(from: usize, to: usize, how: Resampling, antialias: bool) -> Vec<Taps> {
    let scale = from as f32 / to as f32;
    let taps = |i: usize| {
        let centre = (i as f32 + 0.5) * scale;
        match how {
            Resampling::Nearest => one_at(centre, from),
            how if antialias => spread(centre, scale.max(1.0), how, from),
            Resampling::Bilinear => nearest_two(centre, from),
            Resampling::Bicubic => spread(to_1024ths(centre), 1.0, how, from),
            how => spread(centre, 1.0, how, from),
        }
    };
    (0..to).map(taps).collect()
}

/// A place rounded as TensorFlow does it, which has the weights of cubic polynomials in a table.
fn to_1024ths(centre: f32) -> f32 {
    let low = (centre - 0.5).floor();
    low + ((centre - 0.5 - low) * 1024.0).round() / 1024.0 + 0.5
}

/// The pixel that covers a place.
fn one_at(centre: f32, from: usize) -> Taps {
    let start = (centre.floor() as usize).min(from - 1);
    let weights = vec![1.0];
    Taps { start, weights }
}

/// The two pixels beside a place.
fn nearest_two(centre: f32, from: usize) -> Taps {
    let place = centre - 0.5;
    let low = place.floor();
    let start = (low.max(0.0) as usize).min(from - 1);
    let share = place - low;
    let last = (place.ceil().max(0.0) as usize).min(from - 1);
    let weights = if last > start {
        vec![1.0 - share, share]
    } else {
        vec![1.0]
    };
    Taps { start, weights }
}

/// The pixels around a place that count, made `scale` times as many, with weights that add up to 1.
fn spread(centre: f32, scale: f32, how: Resampling, from: usize) -> Taps {
    let radius = how.radius() * scale;
    let start = (centre - radius - 0.5).ceil().max(0.0) as usize;
    let last = ((centre + radius - 0.5).floor().max(0.0) as usize).min(from - 1);
    let start = start.min(last);
    let weight = |x: usize| how.weight((x as f32 + 0.5 - centre) / scale);
    let weights: Vec<f32> = (start..=last).map(weight).collect();
    let total: f32 = weights.iter().sum();
    Taps {
        start,
        weights: weights.into_iter().map(|weight| weight / total).collect(),
    }
}
