//! Dropout.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::sizes::{check_range, one_float};
use crate::config::{self, Component, Described, Field, Kind};

/// Sets elements to 0 with a probability and scales the others by `1 / (1 - rate)`, in training alone; kind
/// `dropout` (Srivastava et al. 2014).
///
/// What is dropped depends on the step's key, the layer and the number of the example, not on how a batch is
/// divided over replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    rate: f64,
}

impl Dropout {
    /// Drops with a probability between 0 and 1.
    #[must_use]
    pub const fn new(rate: f64) -> Self {
        Self { rate }
    }
}

impl Described for Dropout {
    const COMPONENT: Component = Component {
        name: "dropout",
        doc: "sets a random share of the input to 0 in training",
        fields: &[Field::required("rate", Kind::SHARE, "the share").example("0.5")],
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
        check_range("`rate`", self.rate, 0.0..=1.0)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_float(inputs).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        if !cx.training() || self.rate == 0.0 {
            return x.clone();
        }
        if self.rate == 1.0 {
            return x.zeros_like();
        }
        let bits = cx.random_bits(&x.dims());
        let threshold = cx.graph().scalar(DType::U32, self.rate * 2f64.powi(32));
        let kept = bits.greater_equal(&threshold);
        kept.select(&(x / (1.0 - self.rate)), &x.zeros_like())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
