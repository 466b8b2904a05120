//! Layers that draw random numbers in training, and pass on what they are given otherwise.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::activation::{SELU_ALPHA, SELU_SCALE};
use super::layer::Layer;
use super::position::one_sequence;
use super::sizes::{MAX_RANK, check_range, one_float, one_image, one_volume};
use crate::config::{self, Component, Described, Field, Kind};

macro_rules! random_in_training {
    (
        $(#[$doc:meta])* $name:ident, $kind:literal, $about:literal,
        $field:ident($values:expr, $range:expr, $field_doc:literal, $example:literal): $new_doc:literal,
        $one_input:ident, $changed:ident
    ) => {
        $(#[$doc])*
        ///
        /// What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
        /// divided over replicas.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $field: f64,
        }

        impl $name {
            #[doc = $new_doc]
            #[must_use]
            pub const fn new($field: f64) -> Self {
                Self { $field }
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[Field::required(stringify!($field), $values, $field_doc).example($example)],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                check_range(concat!("`", stringify!($field), "`"), self.$field, $range)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                $one_input(inputs).map(|_| ())
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                match cx.training() && self.$field > 0.0 {
                    true => $changed(cx, &inputs[0], self.$field),
                    false => inputs[0].clone(),
                }
            }

            fn keeps_mask(&self) -> bool {
                true
            }
        }
    };
}

/// Sets elements to 0 with a probability and scales the others by `1 / (1 - rate)`, in training alone; kind
/// `dropout` (Srivastava et al. 2014).
///
/// What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
/// divided over replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    rate: f64,
    noise_shape: Option<Vec<Option<usize>>>,
}

impl Dropout {
    /// Drops with a probability between 0 and 1.
    #[must_use]
    pub const fn new(rate: f64) -> Self {
        Self {
            rate,
            noise_shape: None,
        }
    }

    /// Draws along some dims alone, with the batch: `None` draws for each element of a dim, and `Some(1)` has the same along it. `[None, Some(1),
    /// Some(1), Some(1)]` drops whole images. Unlike in Keras the first cannot be 1: each example has its own draws.
    #[must_use]
    pub fn noise_shape(mut self, noise_shape: impl Into<Vec<Option<usize>>>) -> Self {
        self.noise_shape = Some(noise_shape.into());
        self
    }

    /// The dims along which is drawn.
    fn drawn(&self, rank: usize) -> Vec<usize> {
        let is_drawn = |dim: &usize| match &self.noise_shape {
            Some(shape) => shape.get(*dim) != Some(&Some(1)),
            None => true,
        };
        (0..rank).filter(is_drawn).collect()
    }
}

impl Described for Dropout {
    const COMPONENT: Component = Component {
        name: "dropout",
        doc: "sets a random share of the input to 0 in training",
        fields: &[
            Field::required("rate", Kind::SHARE, "the share").example("0.5"),
            Field::optional(
                "noise_shape",
                Kind::Worded(
                    "a list with null or 1 for each dimension, the batch first",
                    &Kind::List(&Kind::Either(&[Kind::Null, Kind::SIZE]), 1, MAX_RANK),
                ),
                "along which dimensions is drawn: null for each element, 1 for the same along it; the first is null, the batch",
            )
            .example("[null, 1, 1, null]"),
        ],
    };
}

impl Layer for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_range("`rate`", self.rate, 0.0..=1.0)?;
        match self.noise_shape.as_ref().map(|shape| shape.first()) {
            None | Some(Some(None)) => Ok(()),
            Some(_) => Err(
                "`noise_shape` must begin with null for the batch: each example has its own draws"
                    .into(),
            ),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_float(inputs)?;
        let Some(shape) = &self.noise_shape else {
            return Ok(());
        };
        let fits = |(given, &dim): (&Option<usize>, &usize)| {
            given.is_none_or(|size| size == 1 || size == dim)
        };
        if shape.len() == input.rank() && shape.iter().zip(&input.dims).skip(1).all(fits) {
            return Ok(());
        }
        let shown: Vec<String> = shape
            .iter()
            .map(|size| size.map_or("null".into(), |size| size.to_string()))
            .collect();
        Err(format!(
            "expected a `noise_shape` with null or 1 for each dim of {input}, got [{}]",
            shown.join(", ")
        ))
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        match cx.training() && self.rate > 0.0 {
            true => without(cx, x, self.rate, &self.drawn(x.rank())),
            false => x.clone(),
        }
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

random_in_training! {
    /// Sets features of `[batch, steps, features]` to 0 with a probability, in all steps, and scales the others by `1 / (1 - rate)`, in
    /// training alone; kind `spatial_dropout1d` (Tompson et al. 2015).
    SpatialDropout1d, "spatial_dropout1d", "sets a random share of the features of sequences to 0 in training",
    rate(Kind::SHARE, 0.0..=1.0, "the share", "0.5"): "Drops with a probability between 0 and 1.",
    one_sequence, without_channels
}
random_in_training! {
    /// Sets channels of `[batch, height, width, channels]` to 0 with a probability and scales the others by `1 / (1 - rate)`, in
    /// training alone; kind `spatial_dropout2d` (Tompson et al. 2015).
    SpatialDropout2d, "spatial_dropout2d", "sets a random share of the channels of images to 0 in training",
    rate(Kind::SHARE, 0.0..=1.0, "the share", "0.5"): "Drops with a probability between 0 and 1.",
    one_image, without_channels
}
random_in_training! {
    /// Sets channels of `[batch, depth, height, width, channels]` to 0 with a probability and scales the others by `1 / (1 - rate)`, in
    /// training alone; kind `spatial_dropout3d` (Tompson et al. 2015).
    SpatialDropout3d, "spatial_dropout3d", "sets a random share of the channels of volumes to 0 in training",
    rate(Kind::SHARE, 0.0..=1.0, "the share", "0.5"): "Drops with a probability between 0 and 1.",
    one_volume, without_channels
}
random_in_training! {
    /// Adds normally distributed numbers of mean 0, in training alone; kind `gaussian_noise`.
    GaussianNoise, "gaussian_noise", "adds random numbers in training",
    stddev(Kind::SHARE, 0.0..=1.0, "their standard deviation", "0.1"): "The standard deviation, from 0 to 1 as in Keras.",
    one_float, with_noise
}
random_in_training! {
    /// Multiplies by normally distributed numbers of mean 1 and standard deviation `sqrt(rate / (1 - rate))`, in training alone; kind
    /// `gaussian_dropout` (Srivastava et al. 2014).
    ///
    /// These have the deviation of what dropout of this rate multiplies by. A rate of 1 is refused, for which Keras fails in training.
    GaussianDropout, "gaussian_dropout", "multiplies by random numbers around 1 in training",
    rate(Kind::DECAY, 0.0..1.0, "rate of the dropout whose deviation they have", "0.5"): "As noisy as dropout with a probability from 0 to below 1.",
    one_float, with_factors
}
random_in_training! {
    /// Sets elements to the least value of a SELU with a probability, and scales and moves all to keep mean 0 and variance 1, in training
    /// alone; kind `alpha_dropout` (Klambauer et al. 2017).
    ///
    /// A rate of 1 is refused, for which Keras fails in training; there is no `noise_shape`.
    AlphaDropout, "alpha_dropout", "sets a random share of the input to the least value of a SELU in training",
    rate(Kind::DECAY, 0.0..1.0, "the share", "0.1"): "Drops with a probability from 0 to below 1.",
    one_float, without_activations
}

random_in_training! {
    /// Sets whole examples of `[batch, ..]` to 0 with a probability and scales the others by `1 / (1 - rate)`, in training alone, at the end
    /// of a residual branch; kind `stochastic_depth` (Huang et al. 2016).
    ///
    /// It is the layer of Keras' ConvNeXt, but for padding masks, which go on here.
    StochasticDepth, "stochastic_depth", "sets a random share of the examples to 0 in training, for branches that are added to what goes by them",
    drop_path_rate(Kind::SHARE, 0.0..=1.0, "the share", "0.1"): "Drops with a probability between 0 and 1.",
    one_float, without_examples
}

/// Whether what is drawn for each element of these dims, whose probability to be dropped is `rate`, is kept.
#[track_caller]
fn kept(cx: &mut Cx, dims: &[usize], rate: f64) -> Tensor {
    let bits = cx.random_bits(dims);
    let threshold = cx.graph().scalar(DType::U32, rate * 2f64.powi(32));
    bits.greater_equal(&threshold)
}

#[track_caller]
fn without_channels(cx: &mut Cx, x: &Tensor, rate: f64) -> Tensor {
    without(cx, x, rate, &[0, x.rank() - 1])
}

#[track_caller]
fn without_examples(cx: &mut Cx, x: &Tensor, rate: f64) -> Tensor {
    without(cx, x, rate, &[0])
}

/// Dropout that draws for each element of some dims, and has the same along the others.
#[track_caller]
fn without(cx: &mut Cx, x: &Tensor, rate: f64, drawn: &[usize]) -> Tensor {
    if rate == 1.0 {
        return x.zeros_like();
    }
    let dims: Vec<usize> = drawn.iter().map(|&dim| x.dim(dim)).collect();
    let kept = kept(cx, &dims, rate).broadcast_in(&x.dims(), drawn);
    kept.select(&(x / (1.0 - rate)), &x.zeros_like())
}

#[track_caller]
fn with_noise(cx: &mut Cx, x: &Tensor, stddev: f64) -> Tensor {
    x + (cx.normal(&x.dims()) * stddev).convert(x.dtype())
}

#[track_caller]
fn with_factors(cx: &mut Cx, x: &Tensor, rate: f64) -> Tensor {
    let stddev = (rate / (1.0 - rate)).sqrt();
    x * (cx.normal(&x.dims()) * stddev + 1.0).convert(x.dtype())
}

#[track_caller]
fn without_activations(cx: &mut Cx, x: &Tensor, rate: f64) -> Tensor {
    let least = -SELU_ALPHA * SELU_SCALE;
    let factor = ((1.0 - rate) * (1.0 + rate * least * least)).sqrt().recip();
    let kept = kept(cx, &x.dims(), rate);
    let x = kept.select(x, &cx.graph().full(&x.shape(), least));
    x * factor - factor * least * rate
}
