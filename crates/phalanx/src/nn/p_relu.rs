//! A rectifier with slopes that are learnt.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::norm::Axes;
use super::sizes::one_float;
use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// `max(x, 0) - alpha max(-x, 0)` with a slope for each element of an example; kind `p_relu` (He et al. 2015).
///
/// Variable: `alpha` of the input's dims without the batch, 1 for those in `shared_axes`. Fields and defaults are Keras', but axes
/// count from 1, the first after the batch, and no other numbers are taken. PyTorch's `PReLU(channels)` of images has `shared_axes` 1 and 2,
/// and its `PReLU()` all of them.
///
/// ```
/// use phalanx::nn::{PRelu, Sequential};
///
/// let model = Sequential::new([8, 8, 3]).add(PRelu::new().shared_axes([1, 2])).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [1, 1, 3]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PRelu {
    alpha_initializer: Initializer,
    alpha_regularizer: Option<Regularizer>,
    alpha_constraint: Option<Constraint>,
    shared_axes: Axes,
}

/// Keras' defaults: slopes of 0 at first, none of them shared.
impl Default for PRelu {
    fn default() -> Self {
        Self {
            alpha_initializer: Initializer::Zeros,
            alpha_regularizer: None,
            alpha_constraint: None,
            shared_axes: Axes(Vec::new()),
        }
    }
}

impl PRelu {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dims along which slopes are the same, from 1 on: 1 and 2 for one slope for each channel of an image.
    #[must_use]
    pub fn shared_axes(mut self, axes: impl Into<Vec<i64>>) -> Self {
        self.shared_axes = Axes(axes.into());
        self
    }

    /// Sets the first slopes.
    #[must_use]
    pub const fn alpha_initializer(mut self, initializer: Initializer) -> Self {
        self.alpha_initializer = initializer;
        self
    }

    /// Sets a penalty on the slopes.
    #[must_use]
    pub const fn alpha_regularizer(mut self, regularizer: Regularizer) -> Self {
        self.alpha_regularizer = Some(regularizer);
        self
    }

    /// Sets what every update brings the slopes back to.
    #[must_use]
    pub fn alpha_constraint(mut self, constraint: Constraint) -> Self {
        self.alpha_constraint = Some(constraint);
        self
    }

    /// The dims of the slopes, for an input of these.
    fn sizes(&self, input: &[usize]) -> Vec<usize> {
        let shared = |dim: usize| self.shared_axes.0.contains(&(dim as i64));
        let dims = input.iter().enumerate().skip(1);
        dims.map(|(dim, &size)| if shared(dim) { 1 } else { size })
            .collect()
    }
}

impl Described for PRelu {
    const COMPONENT: Component = Component {
        name: "p_relu",
        doc: "a rectifier whose slopes below 0 are learnt",
        fields: &[
            fields::initializer("alpha_initializer", "first slopes"),
            fields::regularizer("alpha_regularizer", "penalty on the slopes"),
            fields::constraint("alpha_constraint", "what updates bring the slopes back to"),
            Field::optional(
                "shared_axes",
                Kind::Worded(
                    "a dimension or a list of them: 1 or [1, 2]",
                    &Kind::Either(&[Kind::SIZE, Kind::List(&Kind::SIZE, 0, usize::MAX)]),
                ),
                "the dimensions, from 1 on, along which slopes are the same",
            ),
        ],
    };
}

impl Layer for PRelu {
    fn kind(&self) -> &'static str {
        "p_relu"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_float(inputs)?;
        let rank = i64::try_from(input.rank()).unwrap_or(i64::MAX);
        let axes = &self.shared_axes.0;
        match axes.iter().all(|axis| (1..rank).contains(axis)) {
            true => Ok(()),
            false => Err(format!(
                "`shared_axes` must be from 1 to {}, the dims of an example, got {axes:?}",
                rank - 1
            )),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let shape = Shape::new(x.dtype(), self.sizes(&x.dims()));
        let limits = (self.alpha_regularizer, self.alpha_constraint.as_ref());
        let alpha = cx.limited("alpha", shape, &self.alpha_initializer, limits);
        let relu = |x: &Tensor| Activation::Relu.apply(x);
        relu(x) - alpha * relu(&-x)
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
