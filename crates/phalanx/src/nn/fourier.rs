//! Fourier transforms of short frames: kernels that variables begin as, and transforms as products with matrices of cosines.

use std::f64::consts::TAU;

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};

/// By what the samples of a frame are multiplied before its Fourier transform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowFunction {
    /// A cosine from 0 to 1 and back.
    #[default]
    Hann,
    /// A cosine from 0.08 to 1 and back.
    Hamming,
}

/// What a windowed frame is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowScaling {
    /// The root of the sum of the window's squares.
    #[default]
    Density,
    /// The sum of the window.
    Spectrum,
}

/// A part of a complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComplexPart {
    /// The real one.
    #[default]
    Real,
    /// The imaginary one.
    Imag,
}

impl WindowFunction {
    pub(super) const NAMES: [&'static str; 2] = ["hann", "hamming"];

    /// The values for a frame, which come again after a period.
    pub(super) fn values(self, length: usize, period: usize) -> Vec<f64> {
        let middle = match self {
            Self::Hann => 0.5,
            Self::Hamming => 0.54,
        };
        let angle = TAU / period.max(1) as f64;
        let value = |at: usize| middle - (1.0 - middle) * (angle * at as f64).cos();
        (0..length).map(value).collect()
    }
}

impl WindowScaling {
    pub(super) const NAMES: [&'static str; 2] = ["density", "spectrum"];

    fn of(self, window: &[f64]) -> f64 {
        match self {
            Self::Density => window.iter().map(|x| x * x).sum::<f64>().sqrt(),
            Self::Spectrum => window.iter().map(|x| x.abs()).sum(),
        }
    }
}

impl ComplexPart {
    pub(super) const NAMES: [&'static str; 2] = ["real", "imag"];

    /// Of the number of absolute value 1 at this many parts of a turn.
    fn at(self, part: usize, parts: usize) -> f64 {
        let angle = TAU * (part % parts) as f64 / parts as f64;
        match self {
            Self::Real => angle.cos(),
            Self::Imag => -angle.sin(),
        }
    }
}

/// The first values of the kernels of a Fourier transform, `[frame, 1, frequencies]`, as Keras' `STFT` has them.
pub(super) fn stft_kernel(
    shape: &Shape,
    part: ComplexPart,
    window: Option<WindowFunction>,
    scaling: Option<WindowScaling>,
    periodic: bool,
) -> HostTensor {
    let (length, frequencies) = (shape.dims[0], shape.dims[2]);
    let period = if periodic {
        length
    } else {
        length.saturating_sub(1)
    };
    let window = window.map(|window| window.values(length, period));
    // Without a window nothing is scaled in Keras.
    let window = window.map(|window| {
        let scale = scaling.map_or(1.0, |scaling| scaling.of(&window));
        window.iter().map(|x| x / scale).collect::<Vec<f64>>()
    });
    let parts = (2 * frequencies.saturating_sub(1)).max(1);
    let value = |i: usize| {
        let (time, frequency) = (i / frequencies, i % frequencies);
        let weight = window.as_ref().map_or(1.0, |window| window[time]);
        (weight * part.at(time * frequency, parts)) as f32
    };
    let values: Vec<f32> = (0..shape.len()).map(value).collect();
    HostTensor::new(shape.dims.clone(), &values)
}

/// A complex tensor.
pub(super) struct Complex {
    pub(super) real: Tensor,
    pub(super) imag: Tensor,
}

/// The Fourier transforms of real frames `[frames, n]` at the frequencies from 0 to half of `n`: `[frames, n / 2 + 1]`.
///
/// In two steps of products with matrices of cosines, whose sizes are factors of `n` (Cooley and Tukey 1965): two of about the root of `n` where it has
/// them.
#[track_caller]
pub(super) fn fourier(frames: &Tensor) -> Complex {
    let (rows, n) = (frames.dim(0), frames.dim(1));
    let first = (1..).take_while(|factor| factor * factor <= n);
    let first = first.filter(|factor| n % factor == 0).last().unwrap_or(1);
    let second = n / first;
    let bins = n / 2 + 1;
    let kept = (bins - 1) / first + 1;
    let constant = |dims: [usize; 2], part: ComplexPart, parts: usize| {
        let values = (0..dims[0] * dims[1]).map(|i| part.at((i / dims[1]) * (i % dims[1]), parts));
        let values: Vec<f32> = values.map(|x| x as f32).collect();
        frames
            .graph()
            .constant(HostTensor::new(dims, &values))
            .convert(frames.dtype())
    };
    let both = |dims, parts| {
        [ComplexPart::Real, ComplexPart::Imag].map(|part| constant(dims, part, parts))
    };
    // Sample `second * i + j` of a frame at `[j, i]`.
    let samples = frames.reshape(&[rows, first, second]).transpose(&[0, 2, 1]);
    let [real, imag] = both([first, first], first).map(|matrix| samples.matmul(&matrix));
    let [turn_real, turn_imag] =
        both([second, first], n).map(|turn| turn.broadcast_in(&real.dims(), &[1, 2]));
    let turned = Complex {
        real: (&real * &turn_real - &imag * &turn_imag).transpose(&[0, 2, 1]),
        imag: (&real * &turn_imag + &imag * &turn_real).transpose(&[0, 2, 1]),
    };
    let [cos, sin] = both([second, kept], second);
    let in_order = |x: Tensor| {
        let x = x.transpose(&[0, 2, 1]).reshape(&[rows, kept * first]);
        x.slice_dim(1, 0, bins)
    };
    Complex {
        real: in_order(turned.real.matmul(&cos) - turned.imag.matmul(&sin)),
        imag: in_order(turned.real.matmul(&sin) + turned.imag.matmul(&cos)),
    }
}

impl Complex {
    /// The square of the absolute value.
    #[track_caller]
    pub(super) fn power(&self) -> Tensor {
        self.real.square() + self.imag.square()
    }

    /// The angle from the real axis, from -pi to pi, within 1e-6.
    ///
    /// The derivatives belong to the function, not to the polynomial; of 0 they are 0, where Keras has none.
    #[track_caller]
    pub(super) fn angle(&self) -> Tensor {
        let [real, imag] = [&self.real, &self.imag].map(Tensor::stop_gradient);
        let still = angle_of(&real, &imag);
        let power = (real.square() + imag.square()).maximum(&real.like(1e-30));
        let moved = &real * (&self.imag - &imag) - &imag * (&self.real - &real);
        still + moved / power
    }
}

/// The angle of complex numbers, by the polynomial of Cephes' `atanf`.
#[track_caller]
fn angle_of(real: &Tensor, imag: &Tensor) -> Tensor {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};
    let (across, up) = (real.abs(), imag.abs());
    let (low, high) = (across.minimum(&up), across.maximum(&up));
    let zeros = high.zeros_like();
    let ratio = &low / high.greater(&zeros).select(&high, &(&zeros + 1.0));
    // Above the tangent of a sixteenth of a turn, from an eighth of one.
    let is_steep = ratio.greater(&ratio.like(std::f64::consts::SQRT_2 - 1.0));
    let z = is_steep.select(&((&ratio - 1.0) / (&ratio + 1.0)), &ratio);
    let s = z.square();
    let series = [
        8.053_744_495_38e-2,
        -1.387_768_560_32e-1,
        1.997_771_064_78e-1,
        -3.333_294_915_39e-1,
    ];
    let series = series
        .into_iter()
        .fold(zeros.clone(), |sum, factor| sum * &s + factor);
    let angle = series * &s * &z + &z;
    let angle = is_steep.select(&(&angle + FRAC_PI_4), &angle);
    let angle = up.greater(&across).select(&(FRAC_PI_2 - &angle), &angle);
    let angle = real.less(&zeros).select(&(PI - &angle), &angle);
    imag.less(&zeros).select(&-&angle, &angle)
}
