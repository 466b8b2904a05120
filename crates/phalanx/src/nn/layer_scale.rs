//! Residual branches that begin as nearly nothing.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::sizes::one_float;
use super::{Cx, Initializer};
use crate::config::{self, Component, Described, Field, Kind};

/// `gamma x` with a factor for each channel that is learnt from near 0, at the end of a residual branch; kind `layer_scale` (Touvron et
/// al. 2021).
///
/// Variable: `gamma` of the last dim. It is the layer of Keras' ConvNeXt, which has the channels as a setting, `projection_dim`, and no default
/// for `init_values`; padding masks go on, which Keras loses there.
///
/// ```
/// use phalanx::nn::{LayerScale, Sequential};
///
/// let model = Sequential::new([8, 8, 3]).add(LayerScale::new(1e-6)).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [3]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerScale {
    init_values: f64,
}

impl LayerScale {
    /// Factors that begin as this number.
    #[must_use]
    pub const fn new(init_values: f64) -> Self {
        Self { init_values }
    }
}

/// Factors of 0.00001 at first.
impl Default for LayerScale {
    fn default() -> Self {
        Self::new(1e-5)
    }
}

impl Described for LayerScale {
    const COMPONENT: Component = Component {
        name: "layer_scale",
        doc: "the input times a factor for each channel that is learnt from near 0",
        fields: &[Field::optional(
            "init_values",
            Kind::REAL,
            "the factors at first",
        )],
    };
}

impl Layer for LayerScale {
    fn kind(&self) -> &'static str {
        "layer_scale"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        match self.init_values.is_finite() {
            true => Ok(()),
            false => Err(format!(
                "`init_values` must be a finite number, got {}",
                self.init_values
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_float(inputs)?;
        match input.rank() {
            0 | 1 => Err(format!("expected [batch, .., channels], got {input}")),
            _ => Ok(()),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let shape = Shape::new(x.dtype(), [x.dim(x.rank() - 1)]);
        let first = Initializer::Constant {
            value: self.init_values,
        };
        x * cx.variable("gamma", shape, &first)
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
