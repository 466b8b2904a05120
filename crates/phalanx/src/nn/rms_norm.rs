//! Normalization by the root of the mean square.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::norm::{AXES, Axes, scaled_and_shifted};
use super::precision::widened;
use super::sizes::{check_range, one_float};
use super::{Cx, Initializer, fields};
use crate::config::{self, Component, Described};

/// `scale x / sqrt(mean(x^2) + epsilon)` of each example; kind `rms_norm` (Zhang and Sennrich 2019).
///
/// `[batch, ..]` to the same; the mean is taken over the normalized dims, by default the last, in f32 under a mixed policy. Variable:
/// `scale` of the normalized dims. Fields and defaults are as in Keras' `RMSNormalization`, epsilon 0.000001. The output has the mask
/// of the input, which Keras loses there.
///
/// ```
/// use phalanx::nn::{RmsNorm, Sequential};
///
/// let model = Sequential::new([8, 16]).add(RmsNorm::new()).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [16]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    axis: Axes,
    epsilon: f64,
}

/// Keras' defaults: the last dim, epsilon 0.000001.
impl Default for RmsNorm {
    fn default() -> Self {
        Self {
            axis: Axes(vec![-1]),
            epsilon: 1e-6,
        }
    }
}

impl RmsNorm {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dims that are normalized together, the last by default.
    #[must_use]
    pub fn axes(mut self, axes: impl Into<Vec<i64>>) -> Self {
        self.axis = Axes(axes.into());
        self
    }

    /// Sets what is added to the mean of squares, 0.000001 by default.
    #[must_use]
    pub const fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }
}

impl Described for RmsNorm {
    const COMPONENT: Component = Component {
        name: "rms_norm",
        doc: "each example divided by the root of its mean square",
        fields: &[
            AXES,
            fields::EPSILON.doc("what is added to the mean of squares"),
        ],
    };
}

impl Layer for RmsNorm {
    fn kind(&self) -> &'static str {
        "rms_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_range("`epsilon`", self.epsilon, 0.0..f64::INFINITY)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.axis.dims(one_float(inputs)?.rank()).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let dims = match self.axis.dims(inputs[0].rank()) {
            Ok(dims) => dims,
            Err(message) => return cx.fail(message),
        };
        let x = widened(&inputs[0]);
        let sizes: Vec<usize> = dims.iter().map(|&dim| x.dim(dim)).collect();
        let scale = cx.variable("scale", Shape::new(x.dtype(), sizes), &Initializer::Ones);
        let square = x.square().mean(&dims).keep_dims(&dims);
        let normal = &x * (square + self.epsilon).rsqrt();
        scaled_and_shifted(normal, &dims, (Some(scale), None)).convert(inputs[0].dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
