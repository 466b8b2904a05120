//! Predictions that are logits, as the probabilities that metrics compare.

use phalanx_graph::Tensor;

use crate::config::{Field, Kind};
use crate::losses::{Loss, in_float};

/// The setting of the metrics that compare probabilities.
pub(super) const FROM_LOGITS: Field = Field::optional(
    "from_logits",
    Kind::Bool,
    "whether predictions are logits, not probabilities; found out from the loss for thresholds between 0 and 1",
);

/// What makes probabilities of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkFunction {
    /// The logistic function of each.
    Sigmoid,
    /// The softmax over the last dim.
    Softmax,
}

impl LinkFunction {
    /// What the loss takes predictions through.
    pub(super) fn of(loss: &Loss) -> Option<Self> {
        (loss.takes_logits() == Some(true)).then_some(match loss {
            Loss::BinaryCrossentropy(_) | Loss::BinaryFocalCrossentropy(_) => Self::Sigmoid,
            _ => Self::Softmax,
        })
    }

    /// The probabilities of logits.
    #[track_caller]
    pub(super) fn probabilities(self, logits: &Tensor) -> Tensor {
        let logits = in_float(logits);
        match self {
            Self::Sigmoid => logits.logistic(),
            Self::Softmax if logits.rank() == 0 => logits,
            Self::Softmax => logits.softmax(logits.rank() - 1),
        }
    }
}

/// Whether a threshold can be one of probabilities; others are meant for logits.
pub(super) fn divides_probabilities(threshold: f64) -> bool {
    threshold > 0.0 && threshold < 1.0
}

/// The logistic function of scores that are logits by the setting, and the scores themselves otherwise.
#[track_caller]
pub(super) fn scores(y_pred: &Tensor, from_logits: bool) -> Tensor {
    match from_logits {
        true => LinkFunction::Sigmoid.probabilities(y_pred),
        false => y_pred.clone(),
    }
}
