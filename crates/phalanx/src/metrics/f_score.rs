//! Means of precision and recall.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::columns::{columns, refuse_columns};
use super::counting::Counting;
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::losses::{aligned_weight, paired, weighted_or_zero};

use crate::config::{Component, Described, Field, Kind, above_zero};

const AVERAGE: Field = Field::optional(
    "average",
    Kind::OneOf(&["micro", "macro", "weighted"]),
    "how classes are combined; by default each counts on its own",
);
const THRESHOLD: Field = Field::optional(
    "threshold",
    Kind::REAL,
    "scores above it are a yes; by default the highest is",
);
const CLASSES: Field = Field::optional(
    "classes",
    Kind::SIZE,
    "number of classes; by default the number of outputs",
);

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
        fields: &[AVERAGE, THRESHOLD, CLASSES, FROM_LOGITS],
    };
}

/// A mean of precision and recall of each class in which recall counts `beta` times as much: `(1 + beta^2) * precision * recall /
/// (beta^2 * precision + recall)`. Shapes, answers and averages are as for [`F1Score`], which has a `beta` of 1.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]);
/// let y_pred = rows([[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]]);
/// let result = measure(FBetaScore::new(2.0).threshold(0.5), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.7090");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FBetaScore {
    beta: f64,
    #[serde(flatten)]
    f1: F1Score,
}

impl Described for FBetaScore {
    const COMPONENT: Component = Component {
        name: "fbeta_score",
        doc: "mean of precision and recall, of which one counts more",
        fields: &[
            Field::optional(
                "beta",
                Kind::ABOVE_ZERO,
                "how many times as much recall counts",
            ),
            AVERAGE,
            THRESHOLD,
            CLASSES,
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

    #[track_caller]
    fn counted(
        &self,
        op: &str,
        [y_true, y_pred]: [&Tensor; 2],
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let (y_true, y_pred) = paired(op, y_true, &self.scored(y_pred))?;
        let last = y_pred.rank() - 1;
        let classes = y_pred.dim(last);
        if classes != self.classes.unwrap_or(1) {
            let set = self.classes;
            refuse_columns(op, ["classes", "classes"], set, classes, &y_pred);
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
    fn scores(&self, state: &[Vec<f64>], beta: f64) -> Vec<f64> {
        let [tp, fp, misses] = state else {
            return vec![f64::NAN];
        };
        if self.average == Some(F1Average::Micro) {
            let sum = |counts: &[f64]| counts.iter().sum();
            return vec![score(sum(tp), sum(fp), sum(misses), beta)];
        }
        let counts = tp.iter().zip(fp).zip(misses);
        let scores: Vec<f64> = counts
            .map(|((&tp, &fp), &fn_)| score(tp, fp, fn_, beta))
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

impl Default for FBetaScore {
    /// Keras' `beta` of 1.
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl FBetaScore {
    /// Counts recall `beta` times as much as precision; it must be above 0.
    #[must_use]
    pub fn new(beta: f64) -> Self {
        let f1 = F1Score::default();
        Self { beta, f1 }
    }

    /// Combines the scores of the classes into one.
    #[must_use]
    pub const fn average(mut self, average: F1Average) -> Self {
        self.f1.average = Some(average);
        self
    }

    /// Takes every score above this as a yes, instead of the largest score alone.
    #[must_use]
    pub const fn threshold(mut self, threshold: f64) -> Self {
        self.f1.threshold = Some(threshold);
        self
    }

    /// Sets the number of classes; by default it is the last dim of the predictions.
    #[must_use]
    pub const fn classes(mut self, classes: usize) -> Self {
        self.f1.classes = Some(classes);
        self
    }

    /// Takes scores as logits: the threshold is for their probabilities.
    #[must_use]
    pub const fn from_logits(mut self) -> Self {
        self.f1.from_logits = true;
        self
    }
}

impl Counting for F1Score {
    /// Without a threshold the largest score is the same of both.
    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        !self.from_logits && self.threshold.is_some_and(divides_probabilities)
    }

    fn bind(&mut self, y_pred: &Shape) {
        self.classes.get_or_insert(columns(y_pred));
    }

    fn check(&self) -> Result<(), String> {
        match self.threshold {
            Some(threshold) if !threshold.is_finite() => {
                Err(format!("`threshold` must be a number, got {threshold}"))
            }
            _ => Ok(()),
        }
    }

    fn state(&self) -> Vec<MetricStateSpec> {
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
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        self.counted(Self::COMPONENT.name, [y_true, y_pred], weight)
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        self.scores(state, 1.0)
    }
}

impl Counting for FBetaScore {
    fn takes_probabilities(&self, y_pred: &Shape) -> bool {
        self.f1.takes_probabilities(y_pred)
    }

    fn bind(&mut self, y_pred: &Shape) {
        self.f1.bind(y_pred);
    }

    fn check(&self) -> Result<(), String> {
        above_zero("beta", self.beta)?;
        self.f1.check()
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        self.f1.state()
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        self.f1
            .counted(Self::COMPONENT.name, [y_true, y_pred], weight)
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        self.f1.scores(state, self.beta)
    }
}

const EPSILON: f64 = crate::losses::EPSILON;

fn score(tp: f64, fp: f64, misses: f64, beta: f64) -> f64 {
    let (precision, recall) = (tp / (tp + fp + EPSILON), tp / (tp + misses + EPSILON));
    let square = beta * beta;
    (1.0 + square) * precision * recall / (square * precision + recall + EPSILON)
}
