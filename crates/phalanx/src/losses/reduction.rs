//! From a loss per example to one number, as Keras' `reduction` does.

use phalanx_graph::{DType, Tensor};

use super::{aligned_weight, weighted_or_zero};

/// How the losses of a batch become one number. The training step does not use it: it divides by the
/// true total weight over all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReduction {
    /// The weighted sum divided by the number of losses (not by the weights).
    SumOverBatchSize,
    /// The weighted sum.
    Sum,
    /// The weighted sum divided by the sum of the weights as they were given, before broadcasting.
    MeanWithSampleWeight,
    /// The weighted losses themselves.
    None,
}

impl LossReduction {
    /// Weighs and reduces unreduced losses.
    #[must_use]
    #[track_caller]
    pub fn apply(self, values: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let losses = weighted(values, weight);
        let count = losses.like(losses.shape().len() as f64);
        match (self, weight) {
            (Self::None, _) => losses,
            (Self::Sum, _) => losses.sum_all(),
            (Self::MeanWithSampleWeight, Some(weight)) => {
                divide_or_zero(&losses.sum_all(), &weight.convert(losses.dtype()).sum_all())
            }
            _ => divide_or_zero(&losses.sum_all(), &count),
        }
    }
}

/// Losses times the weights of their examples; see [`Loss::per_example`](super::Loss::per_example).
///
/// Weights are `[batch]`, or broadcast against the losses from the first dim on. A weight of 0 makes 0 of any loss.
#[must_use]
#[track_caller]
pub fn weighted(values: &Tensor, weight: Option<&Tensor>) -> Tensor {
    match weight.and_then(|weight| aligned_weight(values, weight)) {
        Some(weight) => weighted_or_zero(values, &weight.broadcast_to(&values.dims())),
        None => values.clone(),
    }
}

fn divide_or_zero(total: &Tensor, count: &Tensor) -> Tensor {
    debug_assert_ne!(total.dtype(), DType::Bool);
    let zero = total.like(0.0);
    count.equal(&zero).select(
        &zero,
        &(total / &count.equal(&zero).select(&count.like(1.0), count)),
    )
}
