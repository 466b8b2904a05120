//! The F1 score.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::columns::{columns, refuse_columns};
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::losses::{aligned_weight, paired, weighted_or_zero};

use crate::config::{Component, Described, Field, Kind};

/// The harmonic mean of precision and recall of each class, or an average of those.
///
/// Targets are one-hot classes or several yes-or-no answers, `[batch, .., classes]`. The answer is the class with the largest
/// score or, with a threshold, every class whose score is above it; where the loss takes logits, a threshold between 0 and 1 is for their
/// probabilities. As in Keras, 1e-7 is added to each divisor.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]);
/// let y_pred = rows([[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]]);
/// let result = measure(F1Score::default().threshold(0.5), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.6556");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct F1Score {
    average: Option<F1Average>,
    threshold: Option<f64>,
    classes: Option<usize>,
    from_logits: bool,
}

impl Described for F1Score {
    const COMPONENT: Component = Component {
        name: "f1_score",
        doc: "harmonic mean of precision and recall",
        fields: &[
            Field::optional(
                "average",
                Kind::OneOf(&["micro", "macro", "weighted"]),
                "how classes are combined; by default each counts on its own",
            ),
            Field::optional(
                "threshold",
                Kind::REAL,
                "scores above it are a yes; by default the highest is",
            ),
            Field::optional(
                "classes",
                Kind::SIZE,
                "number of classes; by default the number of outputs",
            ),
            FROM_LOGITS,
        ],
    };
}

/// How the scores of classes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum F1Average {
    /// One score of the counts of all classes together.
    Micro,
    /// The mean of the scores.
    Macro,
    /// The mean weighed by how often each class is a target.
    Weighted,
}

impl F1Score {
    /// Combines the scores of the classes into one.
    #[must_use]
    pub const fn average(mut self, average: F1Average) -> Self {
        self.average = Some(average);
        self
    }

    /// Takes every score above this as a yes, instead of the largest score alone.
    #[must_use]
    pub const fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = Some(threshold);
        self
    }

    /// Sets the number of classes; by default it is the last dim of the predictions.
    #[must_use]
    pub const fn classes(mut self, classes: usize) -> Self {
        self.classes = Some(classes);
        self
    }

    /// Takes scores as logits: the threshold is for their probabilities.
    #[must_use]
    pub const fn from_logits(mut self) -> Self {
        self.from_logits = true;
        self
    }

    /// Without a threshold the largest score is the same of both.
    pub(super) fn takes_probabilities(&self) -> bool {
        !self.from_logits && self.threshold.is_some_and(divides_probabilities)
    }

    pub(super) fn bind(&mut self, y_pred: &Shape) {
        self.classes.get_or_insert(columns(y_pred));
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self.threshold {
            Some(threshold) if !threshold.is_finite() => {
                Err(format!("`threshold` must be a number, got {threshold}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn state(&self) -> Vec<MetricStateSpec> {
        let shape = Shape::f32([self.classes.unwrap_or(1)]);
        let spec = |name| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        ["true_positives", "false_positives", "false_negatives"]
            .map(spec)
            .into()
    }

    #[track_caller]
    pub(super) fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let (y_true, y_pred) = paired("f1_score", y_true, &self.scored(y_pred))?;
        let last = y_pred.rank() - 1;
        let classes = y_pred.dim(last);
        if classes != self.classes.unwrap_or(1) {
            let set = self.classes;
            refuse_columns("f1_score", ["classes", "classes"], set, classes, &y_pred);
            return None;
        }
        let answer = self.answers(&y_pred);
        let weight = match weight {
            Some(weight) => aligned_weight(&y_pred, weight)?,
            None => y_pred.like(1.0),
        };
        let weight = weight.broadcast_to(&y_pred.dims());
        let rows: Vec<usize> = (0..last).collect();
        let sum = |hits: Tensor| {
            let hits = weighted_or_zero(&hits, &weight);
            hits.sum(&rows).convert(DType::F32)
        };
        Some(vec![
            sum(&answer * &y_true),
            sum(&answer * (1.0 - &y_true)),
            sum((1.0 - &answer) * &y_true),
        ])
    }

    /// What the threshold is for.
    #[track_caller]
    fn scored(&self, y_pred: &Tensor) -> Tensor {
        scores(y_pred, self.from_logits && self.threshold.is_some())
    }

    /// 1 where the answer is yes; a row of zeros has no largest score.
    fn answers(&self, scores: &Tensor) -> Tensor {
        let yes = match self.threshold {
            Some(threshold) => scores.greater(&scores.like(threshold)),
            None => {
                let last = scores.rank() - 1;
                let scores = &scores.computed_once();
                let largest = scores.max(&[last]).keep_dims(&[last]);
                let above = scores.abs().greater(&scores.like(1e-9));
                scores.greater_equal(&largest).and(&above)
            }
        };
        yes.convert(scores.dtype())
    }

    /// The result of counts of each class.
    pub(super) fn scores(&self, tp: &[f64], fp: &[f64], misses: &[f64]) -> Vec<f64> {
        if self.average == Some(F1Average::Micro) {
            let sum = |counts: &[f64]| counts.iter().sum();
            return vec![score(sum(tp), sum(fp), sum(misses))];
        }
        let counts = tp.iter().zip(fp).zip(misses);
        let scores: Vec<f64> = counts
            .map(|((&tp, &fp), &fn_)| score(tp, fp, fn_))
            .collect();
        let mean = match self.average {
            None => return scores,
            Some(F1Average::Weighted) => {
                let targets: Vec<f64> = tp.iter().zip(misses).map(|(a, b)| a + b).collect();
                let weighed = scores
                    .iter()
                    .zip(&targets)
                    .map(|(score, count)| score * count);
                weighed.sum::<f64>() / (targets.iter().sum::<f64>() + EPSILON)
            }
            Some(_) => scores.iter().sum::<f64>() / scores.len() as f64,
        };
        vec![mean]
    }
}

const EPSILON: f64 = crate::losses::EPSILON;

fn score(tp: f64, fp: f64, misses: f64) -> f64 {
    let (precision, recall) = (tp / (tp + fp + EPSILON), tp / (tp + misses + EPSILON));
    2.0 * precision * recall / (precision + recall + EPSILON)
}
