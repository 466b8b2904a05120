use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, at_least_zero};

/// `values[i]` for the first `i` with `step <= boundaries[i]`, else the last value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PiecewiseConstantDecay {
    boundaries: Vec<u64>,
    values: Vec<f64>,
}

impl Described for PiecewiseConstantDecay {
    const COMPONENT: Component = Component {
        name: "piecewise_constant_decay",
        doc: "constant between given steps",
        fields: &[
            Field::required(
                "boundaries",
                Kind::List(&Kind::COUNT, 0, usize::MAX),
                "ascending steps after which the rate changes",
            )
            .example("[1000, 2000]"),
            Field::required(
                "values",
                Kind::List(&Kind::AT_LEAST_ZERO, 1, usize::MAX),
                "the rates, one more than `boundaries`",
            )
            .example("[0.1, 0.01, 0.001]"),
        ],
    };
}

impl PiecewiseConstantDecay {
    /// `values` has one more number than `boundaries`, which ascend.
    #[must_use]
    pub fn new(boundaries: impl Into<Vec<u64>>, values: impl Into<Vec<f64>>) -> Self {
        Self {
            boundaries: boundaries.into(),
            values: values.into(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let (boundaries, values) = (self.boundaries.len(), self.values.len());
        if values != boundaries + 1 {
            return Err(format!(
                "`values` must have one more number than `boundaries`, got {values} and {boundaries}"
            ));
        }
        if !self.boundaries.is_sorted_by(|a, b| a < b) {
            return Err(format!(
                "`boundaries` must ascend, got {:?}",
                self.boundaries
            ));
        }
        self.values
            .iter()
            .try_for_each(|&value| at_least_zero("values", value))
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let passed = self.boundaries.iter().filter(|&&b| step > b).count();
        self.values.get(passed).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let rate = |&value: &f64| step.graph().scalar(DType::F32, value);
        let last = rate(self.values.last().unwrap_or(&f64::NAN));
        let pieces = self.boundaries.iter().zip(&self.values);
        pieces.rev().fold(last, |later, (&boundary, value)| {
            let reached = step.less_equal(&step.like(boundary as f64));
            reached.select(&rate(value), &later)
        })
    }
}
