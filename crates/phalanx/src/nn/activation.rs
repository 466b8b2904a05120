//! Elementwise activations, as functions and as a layer.

use std::cell::RefCell;
use std::f64::consts::FRAC_1_SQRT_2;
use std::fmt;
use std::ptr::fn_addr_eq;
use std::thread::LocalKey;

use phalanx_graph::{Shape, Tensor};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::activation_functions::{
    celu_of, elu_of, gelu_argument, gelu_of, hard_sigmoid_of, relu_from, shrunk, softplus_of,
    sparse_plus_of, sparsemax_of, squareplus_of,
};
use super::activation_names::ACTIVATIONS;
use super::layer::Layer;
use super::precision::widened;
use super::sizes::{check_range, described_variants, named_variant, one_float};
use super::{Cx, Regularizer, fields};
use crate::config::{self, Component, Described, Description, Family, Field, Kind};

/// An activation: one of a closed set, each with Keras' formula and defaults, or a [function of your own](Self::custom).
///
/// In JSON and YAML: the name, `relu`, or the name with its settings, `{"leaky_relu": {"negative_slope": 0.1}}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Activation {
    /// `x`.
    #[default]
    Linear,
    /// `max(x, 0)`; the gradient at 0 is 0.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` where positive, else `negative_slope x`.
    LeakyRelu {
        /// Slope below 0; 0.2 by default.
        #[serde(default = "default_slope")]
        negative_slope: f64,
    },
    /// `x` above `threshold`, else `negative_slope (x - threshold)`, and `max_value` at most: Keras' layer `ReLU` with its settings.
    GeneralRelu {
        /// Slope up to the threshold; 0 by default.
        #[serde(default)]
        negative_slope: f64,
        /// The greatest value, from 0 on; none by default.
        #[serde(default)]
        max_value: Option<f64>,
        /// Where `x` begins to count, from 0 on; 0 by default.
        #[serde(default)]
        threshold: f64,
    },
    /// `x` where positive, else `alpha (e^x - 1)`.
    Elu {
        /// Minus the limit at minus infinity; 1 by default.
        #[serde(default = "default_alpha")]
        alpha: f64,
    },
    /// Scaled ELU that keeps mean 0 and variance 1 (Klambauer et al. 2017).
    Selu,
    /// `x P(X <= x)` for standard normal X, by the error function.
    Gelu,
    /// The approximation of [`Gelu`](Self::Gelu) by tanh: Keras' `approximate=True`.
    GeluTanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `relu6(x + 3) / 6`.
    HardSigmoid,
    /// `min(max(0.2 x + 0.5, 0), 1)`: the `hard_sigmoid` of Keras 2, and of gates in its `ConvLSTM2D`. Files for Keras 3 have no name for it.
    HardSigmoidKeras2,
    /// `x hard_sigmoid(x)`.
    HardSilu,
    /// Hyperbolic tangent.
    Tanh,
    /// `log(1 + e^x)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// `x tanh(softplus(x))`.
    Mish,
    /// `e^x / sum(e^x)` along the last dim.
    Softmax,
    /// `x - log(sum(e^x))` along the last dim.
    LogSoftmax,
    /// `e^x`.
    Exponential,
    /// `max(x, 0) + min(0, alpha (e^(x / alpha) - 1))` (Barron 2017).
    Celu {
        /// Minus the limit at minus infinity; 1 by default.
        #[serde(default = "default_alpha")]
        alpha: f64,
    },
    /// `x` where it is further than `threshold` from 0, else 0.
    HardShrink {
        /// From 0 on; 0.5 by default.
        #[serde(default = "default_threshold")]
        threshold: f64,
    },
    /// `min(max(x, -1), 1)`.
    HardTanh,
    /// `log(1 / (1 + e^-x))`.
    LogSigmoid,
    /// `x` brought nearer to 0 by `threshold`, at most to 0.
    SoftShrink {
        /// From 0 on; 0.5 by default.
        #[serde(default = "default_threshold")]
        threshold: f64,
    },
    /// `x` from 1 on, 0 up to -1, `(x + 1)^2 / 4` in between.
    SparsePlus,
    /// `(x + 1) / 2`, at least 0 and at most 1.
    SparseSigmoid,
    /// The point of the simplex that is nearest to `x`, along the last dim (Martins and Astudillo 2016); takes time quadratic in its size. Keras' own does
    /// not add up to 1 where several elements have a share.
    Sparsemax,
    /// `(x + sqrt(x^2 + b)) / 2` (Barron 2021).
    Squareplus {
        /// How smooth, from 0 on; 4 by default.
        #[serde(default = "default_smoothness")]
        b: f64,
    },
    /// `x - tanh(x)`.
    TanhShrink,
    /// `x` above `threshold`, else `default_value`.
    Threshold {
        /// Above which `x` stays.
        threshold: f64,
        /// What is given elsewhere.
        default_value: f64,
    },
    /// See [`Activation::custom`].
    #[serde(skip)]
    Custom(CustomActivation),
}

/// A function of the program, with a name for errors and files; equal to the same function of the same name.
#[derive(Clone, Copy)]
pub struct CustomActivation {
    name: &'static str,
    function: fn(&Tensor) -> Tensor,
}

impl fmt::Debug for CustomActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomActivation({:?})", self.name)
    }
}

impl PartialEq for CustomActivation {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && fn_addr_eq(self.function, other.function)
    }
}

const fn default_slope() -> f64 {
    0.2
}

const fn default_alpha() -> f64 {
    1.0
}

const fn default_threshold() -> f64 {
    0.5
}

const fn default_smoothness() -> f64 {
    4.0
}

/// Limit and slope of [`Activation::Selu`], by its authors.
pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

impl Activation {
    /// A function of your own, which traces values of the dims that it is given; it captures nothing. For settings, a [`Layer`] of your own
    /// is the place.
    ///
    /// Files of models have the name; [`Registry::with_activation`](super::Registry::with_activation) finds the function for it when they are
    /// read.
    ///
    /// ```
    /// use phalanx::nn::{Activation, Dense, Sequential};
    /// let squared = Activation::custom("squared_relu", |x| x.maximum(&x.like(0.0)).square());
    /// let model = Sequential::new([4]).add(Dense::new(8).activation(squared)).add(Dense::new(1));
    /// model.build()?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    pub const fn custom(name: &'static str, function: fn(&Tensor) -> Tensor) -> Self {
        Self::Custom(CustomActivation { name, function })
    }

    /// The activation of each element.
    #[must_use]
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> Tensor {
        let last = x.rank().saturating_sub(1);
        match self {
            Self::Linear => x.clone(),
            Self::Relu => x.maximum(&x.like(0.0)),
            Self::Relu6 => x.clamp(0.0, 6.0),
            Self::LeakyRelu { negative_slope } => {
                let positive = x.greater(&x.like(0.0));
                positive.select(x, &(x * negative_slope))
            }
            Self::GeneralRelu {
                negative_slope,
                max_value,
                threshold,
            } => {
                let rectified = relu_from(x, threshold, negative_slope);
                max_value.map_or_else(
                    || rectified.clone(),
                    |most| rectified.minimum(&x.like(most)),
                )
            }
            Self::Elu { alpha } => elu_of(x, alpha),
            Self::Selu => elu_of(x, SELU_ALPHA) * SELU_SCALE,
            Self::Gelu => gelu_of(x, |x| (x * FRAC_1_SQRT_2).erf()),
            Self::GeluTanh => gelu_of(x, |x| gelu_argument(x).tanh()),
            Self::Sigmoid => x.logistic(),
            Self::HardSigmoid => hard_sigmoid_of(x),
            Self::HardSigmoidKeras2 => (x * 0.2 + 0.5).clamp(0.0, 1.0),
            Self::HardSilu => x * hard_sigmoid_of(x),
            Self::Tanh => x.tanh(),
            Self::Softplus => softplus_of(x),
            Self::Softsign => x / (x.abs() + 1.0),
            Self::Silu => x * x.logistic(),
            Self::Mish => x * softplus_of(x).tanh(),
            Self::Softmax => widened(x).softmax(last),
            Self::LogSoftmax => widened(x).log_softmax(last),
            Self::Exponential => x.exp(),
            Self::Celu { alpha } => celu_of(x, alpha),
            Self::HardTanh => x.clamp(-1.0, 1.0),
            Self::LogSigmoid => -softplus_of(&-x),
            Self::HardShrink { threshold } => shrunk(x, threshold, 0.0),
            Self::SoftShrink { threshold } => shrunk(x, threshold, threshold),
            Self::SparsePlus => sparse_plus_of(x),
            Self::SparseSigmoid => (x + 1.0).clamp(0.0, 2.0) * 0.5,
            Self::Sparsemax => sparsemax_of(&widened(x)).convert(x.dtype()),
            Self::Squareplus { b } => squareplus_of(x, b),
            Self::TanhShrink => x - x.tanh(),
            Self::Threshold {
                threshold,
                default_value,
            } => {
                let is_above = x.greater(&x.like(threshold));
                is_above.select(x, &x.like(default_value))
            }
            Self::Custom(own) => own.apply(x),
        }
    }

    /// What is wrong with its settings.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::LeakyRelu {
                negative_slope: setting,
            }
            | Self::Elu { alpha: setting }
                if !setting.is_finite() =>
            {
                Err(format!("expected a finite setting of {self:?}"))
            }
            Self::Threshold {
                threshold,
                default_value,
            } if !(threshold.is_finite() && default_value.is_finite()) => {
                Err(format!("expected finite settings of {self:?}"))
            }
            Self::Celu { alpha } => check_range("`alpha`", alpha, f64::MIN_POSITIVE..f64::INFINITY),
            Self::HardShrink { threshold } | Self::SoftShrink { threshold } => {
                check_range("`threshold`", threshold, 0.0..f64::INFINITY)
            }
            Self::Squareplus { b } => check_range("`b`", b, 0.0..f64::INFINITY),
            Self::GeneralRelu {
                negative_slope,
                max_value,
                threshold,
            } => {
                let is_size = |setting: f64| setting.is_finite() && setting >= 0.0;
                match negative_slope.is_finite()
                    && max_value.is_none_or(is_size)
                    && is_size(threshold)
                {
                    true => Ok(()),
                    false => Err(format!(
                        "expected a finite slope, and a greatest value and a threshold of 0 or more, got {self:?}"
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}

impl CustomActivation {
    /// The name in files.
    pub(super) const fn name(self) -> &'static str {
        self.name
    }

    #[track_caller]
    fn apply(self, x: &Tensor) -> Tensor {
        let y = (self.function)(x);
        if y.dims() != x.dims() {
            let message = format!(
                "an activation keeps the dims of {}, got {}",
                x.shape(),
                y.shape()
            );
            x.graph().fail(self.name, message);
            return x.clone();
        }
        y
    }
}

thread_local! {
    /// The functions of the program that can be read by their names, of the registry that reads a layer on this thread.
    pub(super) static KNOWN: RefCell<Vec<CustomActivation>> = const { RefCell::new(Vec::new()) };
}

/// Reads with these parts of the program, such as [`KNOWN`] activations; inside of that with none, the same are.
pub(super) fn with_known<P: Clone, T>(
    place: &'static LocalKey<RefCell<Vec<P>>>,
    known: &[P],
    read: impl FnOnce() -> T,
) -> T {
    if known.is_empty() {
        return read();
    }
    let before = place.replace(known.to_vec());
    let result = read();
    place.set(before);
    result
}

/// What stands before the name of a function of the program in files.
const CUSTOM: &str = "custom";

impl Activation {
    /// Whether an activation in a configuration is a function of a program.
    pub(crate) fn is_custom_in(config: &Value) -> bool {
        match config {
            Value::Object(fields) => fields.iter().any(|(field, value)| {
                let is_activation = field.ends_with("activation");
                is_activation && value.get(CUSTOM).is_some() || Self::is_custom_in(value)
            }),
            Value::Array(values) => values.iter().any(Self::is_custom_in),
            _ => false,
        }
    }

    /// The names with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        described_variants::<Self>(ACTIVATIONS)
    }
}

impl Serialize for Activation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Custom(own) => json!({CUSTOM: own.name}).serialize(serializer),
            _ => Self::serialize(self, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Activation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if let Some(name) = value.get(CUSTOM) {
            let found =
                KNOWN.with_borrow(|known| known.iter().find(|own| own.name == *name).copied());
            return found.map(Self::Custom).ok_or_else(|| {
                D::Error::custom(format!(
                    "the activation {name} is a function of the program that wrote the model, and not registered here; add it by `Registry::with_activation` and read the model by `SavedModel::load_with`, or build the model there and load the weights alone (`SavedModel::load_weights`)"
                ))
            });
        }
        let value = named_variant(value, "activation", ACTIVATIONS).map_err(D::Error::custom)?;
        Self::deserialize(value).map_err(D::Error::custom)
    }
}

macro_rules! shorthands {
    ($($name:ident => $value:expr),* $(,)?) => {$(
        #[doc = concat!("[`", stringify!($value), "`](Activation), as in `.activation(", stringify!($name), ")`.")]
        #[must_use]
        pub const fn $name() -> Activation {
            $value
        }
    )*};
}

shorthands! {
    relu => Activation::Relu,
    relu6 => Activation::Relu6,
    selu => Activation::Selu,
    gelu => Activation::Gelu,
    sigmoid => Activation::Sigmoid,
    tanh => Activation::Tanh,
    silu => Activation::Silu,
    softmax => Activation::Softmax,
    softplus => Activation::Softplus,
}

/// Lets a shorthand be given without calling it: `.activation(relu)`.
impl<F: FnOnce() -> Self> From<F> for Activation {
    fn from(shorthand: F) -> Self {
        shorthand()
    }
}

/// An activation as a layer of its own; kind `activation`.
///
/// With `linear` and a penalty on the output it is Keras' `ActivityRegularization`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationLayer {
    activation: Activation,
    activity_regularizer: Option<Regularizer>,
}

impl ActivationLayer {
    /// The layer of an activation.
    #[must_use]
    pub fn new(activation: impl Into<Activation>) -> Self {
        Self {
            activation: activation.into(),
            activity_regularizer: None,
        }
    }

    /// Sets a penalty on the output.
    #[must_use]
    pub const fn activity_regularizer(mut self, regularizer: Regularizer) -> Self {
        self.activity_regularizer = Some(regularizer);
        self
    }
}

impl Described for ActivationLayer {
    const COMPONENT: Component = Component {
        name: "activation",
        doc: "an activation as a layer of its own",
        fields: &[
            Field::required(
                "activation",
                Kind::Component(Family::Activation),
                "the activation",
            )
            .example("relu"),
            fields::ACTIVITY_REGULARIZER,
        ],
    };
}

impl Layer for ActivationLayer {
    fn kind(&self) -> &'static str {
        "activation"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        self.activation.check()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_float(inputs).map(|_| ())
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.activation.apply(&inputs[0])
    }

    fn activation(&self) -> Option<Activation> {
        Some(self.activation)
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.activity_regularizer
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
