//! How loud a signal is at the pitches that people hear.

use phalanx_graph::op::PadDim;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::fourier::{WindowFunction, fourier};
use super::layer::Layer;
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::{check_range, check_size};
use super::spectrogram::{WINDOW, one_signal};
use crate::config::{self, Component, Described, Field, Kind};

/// The power of signals on the mel scale of pitches, in decibels; kind `mel_spectrogram`.
///
/// Signals `[batch, samples]` become `[batch, num_mel_bins, frames]`: the signal is mirrored at its ends, so that frame `i` has its middle at sample
/// `i * sequence_stride`; each has its window, its Fourier transform, whose absolute value is taken to the power of `mag_exp`, and sums over triangles on the
/// mel scale of HTK. Computed in f32. Nothing is more than `top_db` below the loudest part of its own example, where Keras takes the loudest of the batch; and
/// silence has a gradient of 0, where Keras has none. Windows are TensorFlow's, which of an odd length do not end where the next one would begin.
///
/// ```
/// use phalanx::nn::{MelSpectrogram, Sequential};
///
/// let model = Sequential::new([16_000]).add(MelSpectrogram::new(128)).build()?;
/// assert_eq!(model.outputs()[0].dims, [128, 32]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MelSpectrogram {
    num_mel_bins: usize,
    sampling_rate: f64,
    fft_length: usize,
    sequence_stride: usize,
    sequence_length: Option<usize>,
    window: Option<WindowFunction>,
    min_freq: f64,
    max_freq: Option<f64>,
    mag_exp: f64,
    power_to_db: bool,
    top_db: f64,
    min_power: f64,
    ref_power: f64,
}

impl MelSpectrogram {
    /// This many pitches of signals of 16,000 samples in a second, from frames of 2,048, as in Keras' defaults.
    #[must_use]
    pub const fn new(num_mel_bins: usize) -> Self {
        Self {
            num_mel_bins,
            sampling_rate: 16_000.0,
            fft_length: 2048,
            sequence_stride: 512,
            sequence_length: None,
            window: Some(WindowFunction::Hann),
            min_freq: 20.0,
            max_freq: None,
            mag_exp: 2.0,
            power_to_db: true,
            top_db: 80.0,
            min_power: 1e-10,
            ref_power: 1.0,
        }
    }

    /// Sets the samples of a second, and the lowest and the highest frequency in hertz: 20 and half of the samples by default.
    #[must_use]
    pub const fn frequencies(
        mut self,
        sampling_rate: f64,
        min_freq: f64,
        max_freq: Option<f64>,
    ) -> Self {
        (self.sampling_rate, self.min_freq, self.max_freq) = (sampling_rate, min_freq, max_freq);
        self
    }

    /// Sets the samples of a frame, and how far apart frames begin. A frame of large factors, such as a prime, takes longer.
    #[must_use]
    pub const fn frames(mut self, fft_length: usize, sequence_stride: usize) -> Self {
        (self.fft_length, self.sequence_stride) = (fft_length, sequence_stride);
        self
    }

    /// Sets by what frames are multiplied, and how many samples in their middle that lets through: a Hann window over all by default.
    #[must_use]
    pub const fn window(
        mut self,
        window: Option<WindowFunction>,
        sequence_length: Option<usize>,
    ) -> Self {
        (self.window, self.sequence_length) = (window, sequence_length);
        self
    }

    /// Sets the power of the magnitude, 2 by default.
    #[must_use]
    pub const fn mag_exp(mut self, mag_exp: f64) -> Self {
        self.mag_exp = mag_exp;
        self
    }

    /// Gives powers, not decibels.
    #[must_use]
    pub const fn without_decibels(mut self) -> Self {
        self.power_to_db = false;
        self
    }

    /// Sets how many decibels below the loudest part the quietest is, the least power, and the power of 0 decibels: 80, 1e-10 and 1 by default.
    #[must_use]
    pub const fn decibels(mut self, top_db: f64, min_power: f64, ref_power: f64) -> Self {
        (self.top_db, self.min_power, self.ref_power) = (top_db, min_power, ref_power);
        self
    }

    fn highest(&self) -> f64 {
        self.max_freq.unwrap_or((self.sampling_rate / 2.0).floor())
    }

    /// The window with zeros around it; none where all samples count alike.
    fn weights(&self) -> Option<HostTensor> {
        let length = self.sequence_length.unwrap_or(self.fft_length);
        // TensorFlow's windows of odd lengths have the period of the even ones below.
        let period = length - length % 2;
        let window = self.window?.values(length, period);
        let before = (self.fft_length - length) / 2;
        let mut weights = vec![0.0f32; self.fft_length];
        let inside = weights.iter_mut().skip(before).zip(window);
        inside.for_each(|(weight, value)| *weight = value as f32);
        Some(HostTensor::new([self.fft_length], &weights))
    }

    /// The frames of signals `[batch, samples]`: `[batch * frames, fft_length]`.
    #[track_caller]
    fn framed(&self, x: &Tensor) -> Tensor {
        let x = mirrored(x, self.fft_length / 2);
        let count = (x.dim(1) - self.fft_length) / self.sequence_stride + 1;
        let places = Shape::new(DType::I32, [count, self.fft_length]);
        let number = |dim: usize| x.graph().iota(places.clone(), dim);
        let places = number(0) * self.sequence_stride as f64 + number(1);
        let frames = x.gather(&places, 1);
        let frames = frames.reshape(&[x.dim(0) * count, self.fft_length]);
        match self.weights() {
            None => frames,
            Some(weights) => {
                let weights = x.graph().constant(weights).convert(x.dtype());
                &frames * weights.broadcast_in(&frames.dims(), &[1])
            }
        }
    }

    /// How much each frequency counts for each pitch, `[frequencies, num_mel_bins]`: triangles on the mel scale.
    #[track_caller]
    fn triangles(&self, like: &Tensor) -> Tensor {
        let (last, bins) = (self.fft_length / 2, self.num_mel_bins);
        let [low, high] = [self.min_freq, self.highest()].map(mel);
        let edge = |at: usize| low + (high - low) * at as f64 / (bins + 1) as f64;
        let hertz = |at: usize| at as f64 * self.sampling_rate / 2.0 / last as f64;
        let constant = |count: usize, value: &dyn Fn(usize) -> f64| {
            let values: Vec<f32> = (0..count).map(|at| value(at) as f32).collect();
            like.graph().constant(HostTensor::new([count], &values))
        };
        let dims = [last, bins];
        let pitches = constant(last, &|at| mel(hertz(at + 1))).broadcast_in(&dims, &[0]);
        let [lower, middle, upper] =
            [0, 1, 2].map(|more| constant(bins, &|at| edge(at + more)).broadcast_in(&dims, &[1]));
        let rising = (&pitches - &lower) / (&middle - &lower);
        let falling = (&upper - &pitches) / (&upper - &middle);
        let inside = rising.minimum(&falling);
        let inside = inside.maximum(&inside.zeros_like());
        // HTK leaves out the frequency 0.
        let first = PadDim {
            low: 1,
            ..PadDim::default()
        };
        inside
            .pad(&[first, PadDim::default()], 0.0)
            .convert(like.dtype())
    }

    /// Powers `[batch, frames, num_mel_bins]` in decibels.
    #[track_caller]
    fn in_decibels(&self, power: &Tensor) -> Tensor {
        let least = power.like(self.min_power);
        let level = power.maximum(&least).log() * (10.0 / std::f64::consts::LN_10);
        let level = level - 10.0 * self.ref_power.abs().max(self.min_power).log10();
        let loudest = level.max(&[1, 2]) - self.top_db;
        level.maximum(&loudest.broadcast_in(&level.dims(), &[0]))
    }

    /// The settings that are numbers.
    fn check_numbers(&self) -> Result<(), String> {
        check_range("`sampling_rate`", self.sampling_rate, 1.0..=1e9)?;
        check_range("`min_freq`", self.min_freq, 0.0..=1e9)?;
        check_range("`mag_exp`", self.mag_exp, 0.01..=100.0)?;
        check_range("`top_db`", self.top_db, 0.0..=f64::MAX)?;
        check_range("`min_power`", self.min_power, 1e-30..=f64::MAX)?;
        check_range("`ref_power`", self.ref_power, f64::MIN..=f64::MAX)?;
        match self.min_freq < self.highest() && self.highest() <= 1e9 {
            true => Ok(()),
            false => Err(format!(
                "`min_freq` must be below the highest frequency, {}, got {}",
                self.highest(),
                self.min_freq
            )),
        }
    }
}

/// A frequency in hertz on the mel scale of HTK.
fn mel(hertz: f64) -> f64 {
    1127.0 * (hertz / 700.0).ln_1p()
}

/// Signals `[batch, samples]` with as many samples more at both ends, as in a mirror.
#[track_caller]
fn mirrored(x: &Tensor, more: usize) -> Tensor {
    let samples = x.dim(1);
    let [before, after] = [[1, more + 1], [samples - 1 - more, samples - 1]]
        .map(|[start, end]| x.slice_dim(1, start, end).reverse(&[1]));
    Tensor::concat(&[&before, x, &after], 1)
}

impl Described for MelSpectrogram {
    const COMPONENT: Component = Component {
        name: "mel_spectrogram",
        doc: "the power of signals on the mel scale of pitches, in decibels",
        fields: &[
            Field::optional("num_mel_bins", Kind::SIZE, "number of pitches"),
            Field::optional("sampling_rate", Kind::ABOVE_ZERO, "samples of a second"),
            Field::optional("fft_length", Kind::SIZE, "number of samples of a frame"),
            Field::optional(
                "sequence_stride",
                Kind::SIZE,
                "how many samples after each other frames begin",
            ),
            Field::optional(
                "sequence_length",
                Kind::Either(&[Kind::Null, Kind::SIZE]),
                "number of samples in the middle of a frame that the window lets through; all where null",
            ),
            WINDOW,
            Field::optional(
                "min_freq",
                Kind::AT_LEAST_ZERO,
                "the lowest frequency, in hertz",
            ),
            Field::optional(
                "max_freq",
                Kind::Either(&[Kind::Null, Kind::ABOVE_ZERO]),
                "the highest frequency, in hertz; half of `sampling_rate` where null",
            ),
            Field::optional("mag_exp", Kind::ABOVE_ZERO, "the power of the magnitude"),
            Field::optional(
                "power_to_db",
                Kind::Bool,
                "whether powers are given in decibels",
            ),
            Field::optional(
                "top_db",
                Kind::AT_LEAST_ZERO,
                "how many decibels below the loudest part of an example the quietest is",
            ),
            Field::optional("min_power", Kind::ABOVE_ZERO, "the least power in decibels"),
            Field::optional("ref_power", Kind::REAL, "the power of 0 decibels"),
        ],
    };
}

impl Layer for MelSpectrogram {
    fn kind(&self) -> &'static str {
        "mel_spectrogram"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Samples are not rounded.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`num_mel_bins`", self.num_mel_bins)?;
        check_size("`sequence_stride`", self.sequence_stride)?;
        check_range("`fft_length`", self.fft_length as f64, 2.0..=1_048_576.0)?;
        let length = self.sequence_length.unwrap_or(self.fft_length);
        if !(1..=self.fft_length).contains(&length) {
            return Err(format!(
                "`sequence_length` must be from 1 to `fft_length`, {}, got {length}",
                self.fft_length
            ));
        }
        self.check_numbers()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let samples = one_signal(inputs, 2, "signals [batch, samples]")?.dims[1];
        match samples > self.fft_length / 2 {
            true => Ok(()),
            false => Err(format!(
                "a signal must be longer than half of `fft_length`, {}, at which it is mirrored, got {samples} samples",
                self.fft_length
            )),
        }
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kept = as_float(&inputs[0]);
        let x = widened(&kept);
        let frames = self.framed(&x);
        let power = fourier(&frames).power();
        let power = match self.mag_exp == 2.0 {
            true => power,
            // A power of 0 has no derivative.
            false => {
                let least = power.like(1e-30);
                (power.maximum(&least).log() * (self.mag_exp / 2.0)).exp()
            }
        };
        let pitches = power.matmul(&self.triangles(&x));
        let (batch, bins) = (x.dim(0), self.num_mel_bins);
        let pitches = pitches.reshape(&[batch, frames.dim(0) / batch, bins]);
        let given = match self.power_to_db {
            true => self.in_decibels(&pitches),
            false => pitches,
        };
        given.transpose(&[0, 2, 1]).convert(kept.dtype())
    }
}
