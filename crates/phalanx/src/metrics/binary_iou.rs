//! How far predicted and true regions of one kind overlap.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::counting::Counting;
use super::iou::{TARGET_CLASS_IDS, check_targets, confusion_matrix, mean};
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::config::{Component, Described, Field, Kind};
use crate::losses::paired;

/// Intersection over union of what is and what is not, averaged: each score from a threshold on is class 1, others are class 0.
///
/// Targets 0 and 1 and predictions `[batch, ..]` of the same dims. Where the loss takes logits, a threshold between 0 and 1 is for their
/// probabilities. A class that is nowhere is left out; Keras truncates weights to whole numbers.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 1.0, 0.0, 1.0]);
/// let y_pred = column([0.1, 0.2, 0.4, 0.7]);
/// let result = measure(BinaryIou::default().threshold(0.3), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.3333");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinaryIou {
    target_class_ids: Vec<usize>,
    threshold: f64,
    from_logits: bool,
}

impl Described for BinaryIou {
    const COMPONENT: Component = Component {
        name: "binary_io_u",
        doc: "intersection over union of yes and of no, averaged",
        fields: &[
            TARGET_CLASS_IDS.kind(Kind::List(&Kind::Whole(0, 1), 1, 2)),
            Field::optional("threshold", Kind::REAL, "scores from it on are a yes"),
            FROM_LOGITS,
        ],
    };
}

impl Default for BinaryIou {
    /// Both classes and a threshold of 0.5, as in Keras.
    fn default() -> Self {
        Self {
            target_class_ids: vec![0, 1],
            threshold: 0.5,
            from_logits: false,
        }
    }
}

impl BinaryIou {
    /// Averages these classes alone: 0, 1 or both.
    #[must_use]
    pub fn target_class_ids(mut self, classes: impl Into<Vec<usize>>) -> Self {
        self.target_class_ids = classes.into();
        self
    }

    /// Takes scores from this on as class 1.
    #[must_use]
    pub const fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }

    /// Takes scores as logits: the threshold is for their probabilities.
    #[must_use]
    pub const fn from_logits(mut self) -> Self {
        self.from_logits = true;
        self
    }
}

impl Counting for BinaryIou {
    fn check(&self) -> Result<(), String> {
        if !self.threshold.is_finite() {
            let threshold = self.threshold;
            return Err(format!("`threshold` must be a number, got {threshold}"));
        }
        check_targets(Some(&self.target_class_ids), Some(2))
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        !self.from_logits && divides_probabilities(self.threshold)
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        vec![MetricStateSpec {
            name: "total_confusion_matrix",
            shape: Shape::f32([2, 2]),
        }]
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let scores = scores(y_pred, self.from_logits);
        let (labels, scores) = paired(Self::COMPONENT.name, y_true, &scores)?;
        let answers = scores.greater_equal(&scores.like(self.threshold));
        let [labels, answers] = [labels, answers].map(|classes| classes.convert(DType::I32));
        let all = labels.equal(&labels);
        let matrix = confusion_matrix([&labels, &answers], &all, 2, weight)?;
        Some(vec![matrix])
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        match state {
            [matrix] => vec![mean(matrix, 2, Some(&self.target_class_ids))],
            _ => vec![f64::NAN],
        }
    }
}
