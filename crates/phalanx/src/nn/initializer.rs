//! First values of variables.

use phalanx_graph::{DType, HostTensor, Shape};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fourier::{ComplexPart, WindowFunction, WindowScaling, stft_kernel};
use super::sampling::{Distribution, Draws, orthogonal, sample};
use super::sizes::{check_range, described_variants, named_variant};
use crate::config::{Component, Description, Field, Kind};

/// The closed set of initializers, each with Keras' distribution and defaults.
///
/// Values depend on the seed, the variable's path and the position alone; they have Keras' moments and bounds,
/// not its bits. In JSON and YAML: the name, `he_normal`, or the name with its settings,
/// `{"truncated_normal": {"stddev": 0.02}}`. Fans are the last two dims times the size of the others, but in
/// [`MultiHeadAttention`](super::MultiHeadAttention).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// Uniform within `sqrt(6 / (fan_in + fan_out))`, the default of kernels (Glorot and Bengio 2010).
    #[default]
    GlorotUniform,
    /// Truncated normal of variance `2 / (fan_in + fan_out)`.
    GlorotNormal,
    /// Uniform within `sqrt(6 / fan_in)` (He et al. 2015).
    HeUniform,
    /// Truncated normal of variance `2 / fan_in`.
    HeNormal,
    /// Uniform within `sqrt(3 / fan_in)` (LeCun et al. 1998).
    LecunUniform,
    /// Truncated normal of variance `1 / fan_in`.
    LecunNormal,
    /// Of variance `scale / fan`, of which the six above are special cases.
    VarianceScaling {
        /// Factor of the variance, 1 by default.
        #[serde(default = "default_gain")]
        scale: f64,
        /// By which number it is divided, the inputs by default.
        #[serde(default)]
        mode: Fan,
        /// What is drawn from, a truncated normal by default.
        #[serde(default)]
        distribution: ScaledDistribution,
    },
    /// Normal cut at two deviations from the mean.
    TruncatedNormal {
        /// Mean, 0 by default.
        #[serde(default)]
        mean: f64,
        /// Deviation before the cut, 0.05 by default.
        #[serde(default = "default_spread")]
        stddev: f64,
    },
    /// Normal.
    RandomNormal {
        /// Mean, 0 by default.
        #[serde(default)]
        mean: f64,
        /// Deviation, 0.05 by default.
        #[serde(default = "default_spread")]
        stddev: f64,
    },
    /// Uniform.
    RandomUniform {
        /// Lower bound, -0.05 by default.
        #[serde(default = "default_low")]
        low: f64,
        /// Upper bound, 0.05 by default.
        #[serde(default = "default_spread")]
        high: f64,
    },
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// One number.
    Constant {
        /// The number, 0 by default.
        #[serde(default)]
        value: f64,
    },
    /// A random orthogonal matrix times a gain: all dims but the last are rows (Saxe et al. 2014).
    Orthogonal {
        /// Factor, 1 by default.
        #[serde(default = "default_gain")]
        gain: f64,
    },
    /// A gain on the diagonal of a matrix, 0 elsewhere.
    Identity {
        /// What is on the diagonal, 1 by default.
        #[serde(default = "default_gain")]
        gain: f64,
    },
    /// 1 in the second quarter and 0 elsewhere: the bias of an [`Lstm`](super::Lstm) whose forget gates start open
    /// (Jozefowicz et al. 2015).
    ForgetGate,
    /// Waves under a window, `[frame, 1, frequencies]`: with a kernel of these a convolution of a signal is a short-time Fourier transform.
    Stft {
        /// Cosines or sines.
        #[serde(default)]
        side: ComplexPart,
        /// By what the waves are multiplied, a Hann window by default.
        #[serde(default = "default_window")]
        window: Option<WindowFunction>,
        /// By what they are divided, the root of the sum of the window's squares by default.
        #[serde(default = "default_scaling")]
        scaling: Option<WindowScaling>,
        /// Whether the window ends where the next one would begin; it does not by default.
        #[serde(default)]
        periodic: bool,
    },
}

/// What the variance of [`Initializer::VarianceScaling`] is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fan {
    /// Inputs that reach an output.
    #[default]
    FanIn,
    /// Outputs that an input reaches.
    FanOut,
    /// The mean of both.
    FanAvg,
}

impl Fan {
    const NAMES: [&'static str; 3] = ["fan_in", "fan_out", "fan_avg"];
}

/// What [`Initializer::VarianceScaling`] draws from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaledDistribution {
    /// A normal cut at two deviations, wider so that it has the variance after the cut.
    #[default]
    TruncatedNormal,
    /// A normal.
    UntruncatedNormal,
    /// A uniform one.
    Uniform,
}

impl ScaledDistribution {
    const NAMES: [&'static str; 3] = ["truncated_normal", "untruncated_normal", "uniform"];
}

const fn default_spread() -> f64 {
    0.05
}

const fn default_low() -> f64 {
    -0.05
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the default of an optional setting"
)]
const fn default_window() -> Option<WindowFunction> {
    Some(WindowFunction::Hann)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the default of an optional setting"
)]
const fn default_scaling() -> Option<WindowScaling> {
    Some(WindowScaling::Density)
}

const fn default_gain() -> f64 {
    1.0
}

/// Deviation of a standard normal cut at two deviations.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

impl Initializer {
    /// [`RandomUniform`](Self::RandomUniform) with Keras' bounds, the default of embeddings.
    pub(super) const fn embedding() -> Self {
        Self::RandomUniform {
            low: default_low(),
            high: default_spread(),
        }
    }

    /// The values of the variable `path` of a model with this seed.
    #[must_use]
    pub fn values(&self, shape: &Shape, seed: u64, path: &str) -> HostTensor {
        let float = shape.with_dtype(DType::F32);
        let values = match *self {
            Self::Zeros => return HostTensor::zeros(shape.clone()),
            Self::Ones => return HostTensor::full(shape.clone(), 1.0),
            Self::Constant { value } => return HostTensor::full(shape.clone(), value),
            Self::Orthogonal { gain } => orthogonal(&float, gain, seed, path),
            Self::Identity { gain } => identity(&float, gain),
            Self::Stft {
                side,
                window,
                scaling,
                periodic,
            } => stft_kernel(&float, side, window, scaling, periodic),
            Self::ForgetGate => {
                let quarter = shape.len() / 4;
                let open = |i: usize| f32::from(u8::from(i / quarter.max(1) == 1));
                let gates: Vec<f32> = (0..shape.len()).map(open).collect();
                HostTensor::new(shape.dims.clone(), &gates)
            }
            _ => match self.distribution(&shape.dims) {
                Some(distribution) => sample(&float, distribution, seed, path),
                None => HostTensor::zeros(float),
            },
        };
        values.convert(shape.dtype)
    }

    /// As for a variable with these fans, whatever its dims are: those that go by fans become what they draw from.
    pub(super) fn with_fans(self, fan_in: usize, fan_out: usize) -> Self {
        if self.check().is_err() {
            return self;
        }
        match self.drawn((fan_in as f64, fan_out as f64)) {
            Some(Distribution::Uniform { low, high }) => Self::RandomUniform { low, high },
            Some(Distribution::Normal { mean, stddev }) => Self::RandomNormal { mean, stddev },
            Some(Distribution::Truncated { mean, stddev }) => {
                Self::TruncatedNormal { mean, stddev }
            }
            None => self,
        }
    }

    /// What each element is drawn from, where they are drawn one by one.
    fn distribution(&self, dims: &[usize]) -> Option<Distribution> {
        self.drawn(fans(dims))
    }

    /// As [`distribution`](Self::distribution), by the fans.
    fn drawn(&self, (fan_in, fan_out): (f64, f64)) -> Option<Distribution> {
        let uniform = |variance: f64| {
            let limit = (3.0 * variance).sqrt();
            let (low, high) = (-limit, limit);
            Distribution::Uniform { low, high }
        };
        let cut = |mean: f64, stddev: f64| Distribution::Truncated { mean, stddev };
        let normal = |variance: f64| cut(0.0, variance.sqrt() / TRUNCATED_STDDEV);
        let average = (fan_in + fan_out) / 2.0;
        Some(match *self {
            Self::GlorotUniform => uniform(1.0 / average),
            Self::GlorotNormal => normal(1.0 / average),
            Self::HeUniform => uniform(2.0 / fan_in),
            Self::HeNormal => normal(2.0 / fan_in),
            Self::LecunUniform => uniform(1.0 / fan_in),
            Self::LecunNormal => normal(1.0 / fan_in),
            Self::VarianceScaling {
                scale,
                mode,
                distribution,
            } => {
                let fan = match mode {
                    Fan::FanIn => fan_in,
                    Fan::FanOut => fan_out,
                    Fan::FanAvg => average,
                };
                // As Keras: nothing reaches an output of a kernel without elements.
                let variance = scale / fan.max(1.0);
                match distribution {
                    ScaledDistribution::TruncatedNormal => normal(variance),
                    ScaledDistribution::UntruncatedNormal => Distribution::Normal {
                        mean: 0.0,
                        stddev: variance.sqrt(),
                    },
                    ScaledDistribution::Uniform => uniform(variance),
                }
            }
            Self::TruncatedNormal { mean, stddev } => cut(mean, stddev),
            Self::RandomNormal { mean, stddev } => Distribution::Normal { mean, stddev },
            Self::RandomUniform { low, high } => Distribution::Uniform { low, high },
            Self::Zeros
            | Self::Ones
            | Self::Constant { .. }
            | Self::Orthogonal { .. }
            | Self::Identity { .. }
            | Self::ForgetGate
            | Self::Stft { .. } => return None,
        })
    }

    /// The rows of a table one by one, each as [`values`](Self::values) has it; none where rows are not drawn by themselves.
    pub(crate) fn rows(&self, dims: [usize; 2], seed: u64, path: &str) -> Option<FirstRows> {
        let drawn = self.distribution(&dims);
        let constant = match *self {
            Self::Zeros => Some(0.0),
            Self::Ones => Some(1.0),
            Self::Constant { value } => Some(value as f32),
            _ => None,
        };
        let draws = drawn.map(|distribution| Draws::new(distribution, seed, path));
        (draws.is_some() || constant.is_some()).then_some(FirstRows {
            draws,
            constant: constant.unwrap_or(0.0),
        })
    }

    /// What is wrong with its settings.
    pub(super) fn check(&self) -> Result<(), String> {
        let finite = |what, value| check_range(what, value, f64::MIN..=f64::MAX);
        match *self {
            Self::TruncatedNormal { mean, stddev } | Self::RandomNormal { mean, stddev } => {
                finite("mean", mean)?;
                check_range("stddev", stddev, 0.0..f64::INFINITY)
            }
            Self::RandomUniform { low, high } => {
                finite("low", low)?;
                check_range("high", high, low..f64::INFINITY)
            }
            Self::Constant { value } => finite("value", value),
            Self::Orthogonal { gain } | Self::Identity { gain } => finite("gain", gain),
            Self::VarianceScaling { scale: 0.0, .. } => {
                Err("expected `scale` above 0, got 0".into())
            }
            Self::VarianceScaling { scale, .. } => check_range("scale", scale, 0.0..f64::INFINITY),
            _ => Ok(()),
        }
    }

    /// What is wrong with its use for a variable of these dims.
    pub(super) fn check_rank(&self, dims: &[usize]) -> Result<(), String> {
        if matches!(self, Self::Orthogonal { .. }) && dims.len() < 2 {
            return Err(format!(
                "an orthogonal initializer needs 2 dims or more, got {dims:?}"
            ));
        }
        if matches!(self, Self::Identity { .. }) && dims.len() != 2 {
            return Err(format!(
                "an identity initializer needs 2 dims, got {dims:?}"
            ));
        }
        if matches!(self, Self::Stft { .. }) && !matches!(dims, [_, 1, _]) {
            return Err(format!(
                "an initializer of Fourier transforms needs dims [frame, 1, frequencies], got {dims:?}"
            ));
        }
        Ok(())
    }
}

/// The first rows of a table, made one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstRows {
    draws: Option<Draws>,
    constant: f32,
}

impl FirstRows {
    /// Fills the row of this number.
    pub(crate) fn fill(&self, row: u64, values: &mut [f32]) {
        let first = row * values.len() as u64;
        for (at, value) in (first..).zip(values) {
            *value = self.draws.map_or(self.constant, |draws| draws.at(at));
        }
    }
}

/// `gain` where row and column are the same, else 0.
fn identity(shape: &Shape, gain: f64) -> HostTensor {
    let columns = shape.dims.last().copied().unwrap_or(1).max(1);
    let value = |at: usize| {
        if at / columns == at % columns {
            gain as f32
        } else {
            0.0
        }
    };
    let values: Vec<f32> = (0..shape.len()).map(value).collect();
    HostTensor::new(shape.dims.clone(), &values)
}

/// Inputs that reach an output and outputs that an input reaches, by Keras' rule for any rank.
fn fans(dims: &[usize]) -> (f64, f64) {
    let number = |&dim: &usize| dim as f64;
    match dims {
        [] => (1.0, 1.0),
        [size] => (number(size), number(size)),
        [field @ .., inputs, outputs] => {
            let field: f64 = field.iter().map(number).product();
            (number(inputs) * field, number(outputs) * field)
        }
    }
}

/// Initializers by name.
const INITIALIZERS: &[Component] = &[
    Component {
        name: "glorot_uniform",
        doc: "uniform within `sqrt(6 / (fan_in + fan_out))`",
        fields: &[],
    },
    Component {
        name: "glorot_normal",
        doc: "truncated normal of variance `2 / (fan_in + fan_out)`",
        fields: &[],
    },
    Component {
        name: "he_uniform",
        doc: "uniform within `sqrt(6 / fan_in)`",
        fields: &[],
    },
    Component {
        name: "he_normal",
        doc: "truncated normal of variance `2 / fan_in`",
        fields: &[],
    },
    Component {
        name: "lecun_uniform",
        doc: "uniform within `sqrt(3 / fan_in)`",
        fields: &[],
    },
    Component {
        name: "lecun_normal",
        doc: "truncated normal of variance `1 / fan_in`",
        fields: &[],
    },
    Component {
        name: "variance_scaling",
        doc: "of variance `scale / fan`",
        fields: &[
            Field::optional("scale", Kind::ABOVE_ZERO, "factor of the variance"),
            Field::optional(
                "mode",
                Kind::OneOf(&Fan::NAMES),
                "what the variance is divided by: inputs of an output, outputs of an input, or the mean of both",
            ),
            Field::optional(
                "distribution",
                Kind::OneOf(&ScaledDistribution::NAMES),
                "what is drawn from",
            ),
        ],
    },
    Component {
        name: "truncated_normal",
        doc: "normal, cut at two deviations from the mean",
        fields: &[
            Field::optional("mean", Kind::REAL, "mean"),
            Field::optional(
                "stddev",
                Kind::AT_LEAST_ZERO,
                "standard deviation before the cut",
            ),
        ],
    },
    Component {
        name: "random_normal",
        doc: "normal",
        fields: &[
            Field::optional("mean", Kind::REAL, "mean"),
            Field::optional("stddev", Kind::AT_LEAST_ZERO, "standard deviation"),
        ],
    },
    Component {
        name: "random_uniform",
        doc: "uniform",
        fields: &[
            Field::optional("low", Kind::REAL, "lower bound"),
            Field::optional("high", Kind::REAL, "upper bound"),
        ],
    },
    Component {
        name: "zeros",
        doc: "0",
        fields: &[],
    },
    Component {
        name: "ones",
        doc: "1",
        fields: &[],
    },
    Component {
        name: "constant",
        doc: "one number",
        fields: &[Field::optional("value", Kind::REAL, "the number")],
    },
    Component {
        name: "orthogonal",
        doc: "a random orthogonal matrix",
        fields: &[Field::optional("gain", Kind::REAL, "factor")],
    },
    Component {
        name: "identity",
        doc: "`gain` on the diagonal of a matrix, 0 elsewhere",
        fields: &[Field::optional("gain", Kind::REAL, "factor")],
    },
    Component {
        name: "forget_gate",
        doc: "1 for the forget gates of an `lstm`, 0 elsewhere: for its bias",
        fields: &[],
    },
    Component {
        name: "stft",
        doc: "waves under a window: for the kernels of a Fourier transform",
        fields: &[
            Field::optional("side", Kind::OneOf(&ComplexPart::NAMES), "cosines or sines"),
            Field::optional(
                "window",
                Kind::Either(&[Kind::Null, Kind::OneOf(&WindowFunction::NAMES)]),
                "by what the waves are multiplied",
            ),
            Field::optional(
                "scaling",
                Kind::Either(&[Kind::Null, Kind::OneOf(&WindowScaling::NAMES)]),
                "by what they are divided: the root of the sum of the window's squares, or its sum",
            ),
            Field::optional(
                "periodic",
                Kind::Bool,
                "whether the window ends where the next one would begin",
            ),
        ],
    },
];

impl Initializer {
    /// The names with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        described_variants::<Self>(INITIALIZERS)
    }
}

impl Serialize for Initializer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Initializer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = named_variant(deserializer, "initializer", INITIALIZERS)?;
        Self::deserialize(value).map_err(serde::de::Error::custom)
    }
}
