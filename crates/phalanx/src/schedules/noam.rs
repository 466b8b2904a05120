use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, above_zero};

/// The rate of the Transformer (Vaswani et al. 2017, 5.3): `factor * width^-0.5 * min(n^-0.5, n * warmup_steps^-1.5)`
/// with `n = step + 1`.
///
/// It rises for `warmup_steps`, then falls with the square root of the step. Not in Keras.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoamDecay {
    width: u64,
    warmup_steps: u64,
    factor: f64,
}

impl Described for NoamDecay {
    const COMPONENT: Component = Component {
        name: "noam_decay",
        doc: "the rate of the Transformer: rises linearly, then falls with the square root of the step",
        fields: &[
            Field::required("width", Kind::POSITIVE, "size of the model's vectors").example("512"),
            Field::required(
                "warmup_steps",
                Kind::POSITIVE,
                "number of steps of the rise",
            )
            .example("4000"),
            Field::optional("factor", Kind::ABOVE_ZERO, "factor of the rate"),
        ],
    };
}

impl NoamDecay {
    /// The rate of a model whose vectors have `width` numbers.
    #[must_use]
    pub const fn new(width: u64, warmup_steps: u64) -> Self {
        Self {
            width,
            warmup_steps,
            factor: 1.0,
        }
    }

    /// What the paper's rate is multiplied by; 1 by default.
    #[must_use]
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        above_zero("width", self.width as f64)?;
        above_zero("warmup_steps", self.warmup_steps as f64)?;
        above_zero("factor", self.factor)
    }

    /// The slope of the rise, and what the square root of the step divides in the fall.
    fn coefficients(&self) -> (f64, f64) {
        let scale = self.factor / (self.width as f64).sqrt();
        (scale / (self.warmup_steps as f64).powf(1.5), scale)
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let ((slope, scale), number) = (self.coefficients(), step as f64 + 1.0);
        (number * slope).min(scale / number.sqrt())
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let ((slope, scale), number) = (self.coefficients(), step.convert(DType::F32) + 1.0);
        (&number * slope).minimum(&(number.rsqrt() * scale))
    }
}
