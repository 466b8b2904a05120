//! Padding told by a number.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::position::one_sequence;
use crate::config::{self, Component, Described, Field, Kind};

/// Takes the steps of a sequence all of whose features are one number for padding, and sets them to 0; kind `masking`.
///
/// Input: `[batch, steps, features]`. The output has the [padding mask](Cx::padding_mask) of the other steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Masking {
    mask_value: f64,
}

impl Masking {
    /// Steps of this number are padding; Keras' default is 0.
    #[must_use]
    pub const fn new(mask_value: f64) -> Self {
        Self { mask_value }
    }
}

impl Described for Masking {
    const COMPONENT: Component = Component {
        name: "masking",
        doc: "treats steps whose features all have one value as padding",
        fields: &[Field::optional("mask_value", Kind::REAL, "the value")],
    };
}

impl Layer for Masking {
    fn kind(&self) -> &'static str {
        "masking"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_sequence(inputs).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let differs = x.not_equal(&x.like(self.mask_value)).convert(DType::I32);
        let mask = differs.max(&[2]).greater(&differs.like(0.0));
        let kept = mask.broadcast_in(&x.dims(), &[0, 1]);
        let output = kept.select(x, &x.zeros_like());
        cx.set_padding_mask(&output, &mask);
        output
    }
}
