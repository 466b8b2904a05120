//! Which frequencies a signal has while it goes on.

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::convolve;
use super::conv1d::{fits_steps, kernel_row};
use super::fourier::{Complex, ComplexPart, WindowFunction, WindowScaling};
use super::layer::Layer;
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::{Padding, Sizes, SlidingWindow, check_size, one_input};
use super::{Cx, Initializer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// What a [`StftSpectrogram`] gives of each frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpectrogramMode {
    /// The logarithm of the magnitude.
    #[default]
    Log,
    /// The absolute value.
    Magnitude,
    /// The power spectral density: the square of the magnitude, twice for all frequencies but the first and the last.
    Psd,
    /// The real part.
    Real,
    /// The imaginary part.
    Imag,
    /// The angle, from -pi to pi.
    Angle,
    /// The real parts of all frequencies, and then the imaginary ones.
    Stft,
}

/// The short-time Fourier transform of signals; kind `stft_spectrogram`.
///
/// Signals `[batch, steps, channels]` become `[batch, frames, channels * frequencies]`, or with [`expand_dims`](Self::expand_dims) images
/// `[batch, frames, frequencies, channels]`. Each frame is multiplied by kernels `[frame_length, 1, frequencies]` of cosines and of sines, which training
/// changes as in Keras: make the layer not [trainable](super::LayerSpec::trainable) to keep them. Computed in f32 in a model of mixed precision, too, where
/// Keras takes 16 bits or nothing. An angle has a gradient everywhere.
///
/// ```
/// use phalanx::nn::{Sequential, StftSpectrogram};
///
/// let model = Sequential::new([16_000, 1]).add(StftSpectrogram::new(256).fft_length(512)).build()?;
/// assert_eq!(model.outputs()[0].dims, [124, 257]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StftSpectrogram {
    mode: SpectrogramMode,
    frame_length: usize,
    frame_step: Option<usize>,
    fft_length: Option<usize>,
    window: Option<WindowFunction>,
    periodic: bool,
    scaling: Option<WindowScaling>,
    padding: Padding,
    expand_dims: bool,
}

impl StftSpectrogram {
    /// Frames of this many samples, which begin half as many apart: 256 in Keras' default.
    #[must_use]
    pub const fn new(frame_length: usize) -> Self {
        Self {
            mode: SpectrogramMode::Log,
            frame_length,
            frame_step: None,
            fft_length: None,
            window: Some(WindowFunction::Hann),
            periodic: false,
            scaling: Some(WindowScaling::Density),
            padding: Padding::Valid,
            expand_dims: false,
        }
    }

    /// Sets what is given of each frequency, the logarithm of its magnitude by default.
    #[must_use]
    pub const fn mode(mut self, mode: SpectrogramMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how far apart frames begin.
    #[must_use]
    pub const fn frame_step(mut self, frame_step: usize) -> Self {
        self.frame_step = Some(frame_step);
        self
    }

    /// Sets of how many samples the transform is, the frame with zeros behind it: the next power of two by default. There are half as many frequencies and one.
    #[must_use]
    pub const fn fft_length(mut self, fft_length: usize) -> Self {
        self.fft_length = Some(fft_length);
        self
    }

    /// Sets by what frames are multiplied at first, a Hann window by default, whether that ends where the next one would begin, and by what it is divided.
    #[must_use]
    pub const fn window(
        mut self,
        window: Option<WindowFunction>,
        periodic: bool,
        scaling: Option<WindowScaling>,
    ) -> Self {
        (self.window, self.periodic, self.scaling) = (window, periodic, scaling);
        self
    }

    /// Sets whether frames may reach beyond the ends.
    #[must_use]
    pub const fn padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// Gives images of one row for each frame.
    #[must_use]
    pub const fn expand_dims(mut self) -> Self {
        self.expand_dims = true;
        self
    }

    fn step(&self) -> usize {
        self.frame_step.unwrap_or(self.frame_length / 2)
    }

    fn frequencies(&self) -> usize {
        let length = self.fft_length;
        length.unwrap_or_else(|| self.frame_length.next_power_of_two()) / 2 + 1
    }

    fn frames(&self) -> SlidingWindow<2> {
        SlidingWindow {
            strides: Sizes([1, self.step()]),
            padding: self.padding,
            ..SlidingWindow::new(Sizes([1, self.frame_length]))
        }
    }

    /// The parts of complex numbers that are computed.
    const fn parts(&self) -> &'static [(&'static str, ComplexPart)] {
        const BOTH: &[(&str, ComplexPart)] = &[
            ("real_kernel", ComplexPart::Real),
            ("imag_kernel", ComplexPart::Imag),
        ];
        match self.mode {
            SpectrogramMode::Real => BOTH.split_at(1).0,
            SpectrogramMode::Imag => BOTH.split_at(1).1,
            _ => BOTH,
        }
    }

    /// The kernels side by side, `[1, frame, 1, parts * frequencies]`.
    #[track_caller]
    fn kernels(&self, cx: &mut Cx) -> Tensor {
        let dims = [self.frame_length, 1, self.frequencies()];
        let kernels = self.parts().iter().map(|&(name, part)| {
            let start = Initializer::Stft {
                side: part,
                window: self.window,
                scaling: self.scaling,
                periodic: self.periodic,
            };
            cx.variable(name, Shape::f32(dims), &start)
        });
        let kernels: Vec<Tensor> = kernels.collect();
        let joined = Tensor::concat(&kernels.iter().collect::<Vec<_>>(), 2);
        kernel_row(&joined)
    }

    /// What is given of complex numbers `[batch, channels, frames, frequencies]`.
    #[track_caller]
    fn given(&self, x: &Complex) -> Tensor {
        // What Keras lets nothing fall below.
        let at_least = |x: &Tensor| x.maximum(&x.like(1e-7));
        let magnitude = || at_least(&x.power()).sqrt();
        match self.mode {
            SpectrogramMode::Angle => x.angle(),
            SpectrogramMode::Psd => {
                let last = self.frequencies() - 1;
                let times = |at: usize| if at == 0 || at == last { 1.0f32 } else { 2.0 };
                let times: Vec<f32> = (0..=last).map(times).collect();
                let power = x.power();
                let times = power.graph().constant(HostTensor::new([last + 1], &times));
                let times = times.convert(power.dtype());
                &power * times.broadcast_in(&power.dims(), &[3])
            }
            SpectrogramMode::Log => at_least(&magnitude()).log(),
            _ => magnitude(),
        }
    }
}

impl Described for StftSpectrogram {
    const COMPONENT: Component = Component {
        name: "stft_spectrogram",
        doc: "the short-time Fourier transform of signals, whose kernels are trained",
        fields: &[
            Field::optional(
                "mode",
                Kind::OneOf(&["log", "magnitude", "psd", "real", "imag", "angle", "stft"]),
                "what is given of each frequency",
            ),
            Field::optional("frame_length", Kind::SIZE, "number of samples of a frame"),
            Field::optional(
                "frame_step",
                Kind::Either(&[Kind::Null, Kind::SIZE]),
                "how many samples after each other frames begin; half of a frame where null",
            ),
            Field::optional(
                "fft_length",
                Kind::Either(&[Kind::Null, Kind::SIZE]),
                "number of samples of the transform; the next power of two where null",
            ),
            WINDOW,
            Field::optional(
                "periodic",
                Kind::Bool,
                "whether the window ends where the next one would begin",
            ),
            Field::optional(
                "scaling",
                Kind::Either(&[Kind::Null, Kind::OneOf(&WindowScaling::NAMES)]),
                "what the window is divided by: the root of the sum of its squares, or its sum",
            ),
            fields::PADDING.doc(
                "`valid`: frames stay inside the signal; `same`: they may reach beyond its ends",
            ),
            Field::optional(
                "expand_dims",
                Kind::Bool,
                "whether frequencies and channels are two dims",
            ),
        ],
    };
}

/// `window`.
pub(super) const WINDOW: Field = Field::optional(
    "window",
    Kind::Either(&[Kind::Null, Kind::OneOf(&WindowFunction::NAMES)]),
    "by what a frame is multiplied",
);

impl Layer for StftSpectrogram {
    fn kind(&self) -> &'static str {
        "stft_spectrogram"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Samples are not rounded.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        let length = self.frame_length;
        check_size("`frame_length` less one", length.saturating_sub(1))?;
        if !(1..=length).contains(&self.step()) {
            return Err(format!(
                "`frame_step` must be from 1 to `frame_length`, {length}, got {}",
                self.step()
            ));
        }
        match self.fft_length {
            Some(fft) if fft < length => Err(format!(
                "`fft_length` must be at least `frame_length`, {length}, got {fft}"
            )),
            _ => self.frames().check("`frame_length`"),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let signal = one_signal(inputs, 3, "signals [batch, steps, channels]")?;
        fits_steps(self.frames(), signal.dims[1])
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kept = as_float(&inputs[0]);
        let x = widened(&kept);
        let (batch, steps, channels) = (x.dim(0), x.dim(1), x.dim(2));
        let kernels = self.kernels(cx).convert(x.dtype());
        let rows = x.transpose(&[0, 2, 1]);
        let rows = rows.reshape(&[batch * channels, 1, steps, 1]);
        let both = convolve(&rows, &kernels, self.frames(), 1);
        let both = both.reshape(&[batch, channels, both.dim(2), both.dim(3)]);
        let given = match self.mode {
            SpectrogramMode::Real | SpectrogramMode::Imag | SpectrogramMode::Stft => both,
            _ => {
                let half = self.frequencies();
                self.given(&Complex {
                    real: both.slice_dim(3, 0, half),
                    imag: both.slice_dim(3, half, 2 * half),
                })
            }
        };
        let given = given.convert(kept.dtype());
        match self.expand_dims {
            true => given.transpose(&[0, 2, 3, 1]),
            false => {
                let turned = given.transpose(&[0, 2, 1, 3]);
                turned.reshape(&[batch, turned.dim(1), channels * turned.dim(3)])
            }
        }
    }
}

/// The one input of a layer, of as many dims.
pub(super) fn one_signal<'s>(
    inputs: &'s [Shape],
    rank: usize,
    what: &str,
) -> Result<&'s Shape, String> {
    let input = one_input(inputs)?;
    match input.rank() == rank && input.dtype != phalanx_graph::DType::Bool {
        true => Ok(input),
        false => Err(format!("expected {what}, got {input}; reshape them first")),
    }
}
