//! Right and wrong answers at thresholds.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::losses::{aligned_weight, paired, weighted_or_zero};

use crate::config::{Component, Described, Field, Kind};

/// The setting of all that count at thresholds.
pub(super) const THRESHOLDS: Field = Field::optional(
    "thresholds",
    Kind::Worded(
        "a number or a list of numbers",
        &Kind::Either(&[Kind::REAL, Kind::List(&Kind::REAL, 1, usize::MAX)]),
    ),
    "scores above it are a yes; of several, the mean is logged",
);

/// The share of positive answers that are right: `tp / (tp + fp)`, 0 where no answer is positive.
///
/// An answer is positive when its score is above a threshold. Where the loss takes logits, thresholds between 0 and 1 are for
/// the probabilities of the logits; Keras compares these themselves. Keras' `top_k` and `class_id` are not supported.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 1.0, 1.0, 1.0]);
/// let y_pred = column([1.0, 0.0, 1.0, 1.0]);
/// let result = measure(Precision::default(), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.6667");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    thresholds: Thresholds,
    from_logits: bool,
}

impl Described for Precision {
    const COMPONENT: Component = Component {
        name: "precision",
        doc: "share of the positive answers that is right",
        fields: &[THRESHOLDS, FROM_LOGITS],
    };
}

/// The share of positive targets that are found: `tp / (tp + fn)`, 0 where no target is positive.
///
/// A target is found when its score is above a threshold. Where the loss takes logits, thresholds between 0 and 1 are for
/// the probabilities of the logits; Keras compares these themselves. Keras' `top_k` and `class_id` are not supported.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 1.0, 1.0, 1.0, 1.0]);
/// let y_pred = column([1.0, 0.0, 1.0, 1.0, 0.0]);
/// let result = measure(Recall::default(), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    thresholds: Thresholds,
    from_logits: bool,
}

impl Described for Recall {
    const COMPONENT: Component = Component {
        name: "recall",
        doc: "share of the positive targets that is found",
        fields: &[THRESHOLDS, FROM_LOGITS],
    };
}

/// One threshold or several, as in configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
pub(super) enum Thresholds {
    One(f64),
    Many(Vec<f64>),
}

/// What metrics have in common whose fields are `thresholds` and `from_logits`.
macro_rules! at_thresholds {
    ($metric:ident) => {
        impl $metric {
            /// A result for each of these thresholds.
            #[must_use]
            pub fn at(thresholds: impl Into<Vec<f64>>) -> Self {
                Self {
                    thresholds: Thresholds::Many(thresholds.into()),
                    from_logits: false,
                }
            }

            /// Takes scores as logits: thresholds are for their probabilities.
            #[must_use]
            pub const fn from_logits(mut self) -> Self {
                self.from_logits = true;
                self
            }

            pub(super) fn takes_probabilities(&self) -> bool {
                let mut thresholds = self.thresholds.values().iter().copied();
                !self.from_logits && thresholds.all(divides_probabilities)
            }

            pub(super) fn check(&self) -> Result<(), String> {
                self.thresholds.check()
            }
        }

        impl Default for $metric {
            /// Keras' threshold of 0.5.
            fn default() -> Self {
                Self {
                    thresholds: Thresholds::One(0.5),
                    from_logits: false,
                }
            }
        }
    };
}
pub(super) use at_thresholds;
at_thresholds!(Precision);
at_thresholds!(Recall);

impl Precision {
    pub(super) fn state(&self) -> Vec<MetricStateSpec> {
        self.thresholds.state(["true_positives", "false_positives"])
    }

    #[track_caller]
    pub(super) fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let cases = Cases::new(
            "precision",
            y_true,
            &scores(y_pred, self.from_logits),
            weight,
        )?;
        let positive = self.thresholds.exceeded_by(&cases.scores);
        let (yes, no) = (cases.positives(), cases.negatives());
        Some(vec![count(&positive, &yes), count(&positive, &no)])
    }
}

impl Recall {
    pub(super) fn state(&self) -> Vec<MetricStateSpec> {
        self.thresholds.state(["true_positives", "false_negatives"])
    }

    #[track_caller]
    pub(super) fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let cases = Cases::new("recall", y_true, &scores(y_pred, self.from_logits), weight)?;
        let positive = self.thresholds.exceeded_by(&cases.scores);
        let yes = cases.positives();
        Some(vec![count(&positive, &yes), count(&positive.not(), &yes)])
    }
}

impl Thresholds {
    pub(super) fn values(&self) -> &[f64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let values = self.values();
        if !values.is_empty() && values.iter().all(|value| value.is_finite()) {
            return Ok(());
        }
        Err(format!(
            "`thresholds` must be one or more numbers, got {values:?}"
        ))
    }

    pub(super) fn state<const N: usize>(&self, names: [&'static str; N]) -> Vec<MetricStateSpec> {
        let shape = Shape::f32([self.values().len()]);
        let spec = |name| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        names.map(spec).into()
    }

    /// `[n, thresholds]` for scores `[n]`.
    pub(super) fn exceeded_by(&self, scores: &Tensor) -> Tensor {
        exceeded(scores, self.values())
    }
}

/// Scores, targets and weights of a batch, each `[n]` in f32.
pub(super) struct Cases {
    pub(super) scores: Tensor,
    pub(super) targets: Tensor,
    weights: Option<Tensor>,
}

impl Cases {
    #[track_caller]
    pub(super) fn new(
        op: &str,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Self> {
        let (targets, scores) = paired(op, y_true, y_pred)?;
        let dims = scores.dims();
        let weights = match weight {
            None => None,
            Some(weight) => Some(aligned_weight(&scores, weight)?.broadcast_to(&dims)),
        };
        let flat = |tensor: Tensor| tensor.convert(DType::F32).reshape(&[dims.iter().product()]);
        Some(Self {
            scores: flat(scores),
            targets: flat(targets),
            weights: weights.map(flat),
        })
    }

    /// Weights of the positive targets, 0 elsewhere.
    pub(super) fn positives(&self) -> Tensor {
        self.weighed(
            &self
                .targets
                .not_equal(&self.targets.like(0.0))
                .convert(DType::F32),
        )
    }

    /// Weights of the negative targets, 0 elsewhere.
    pub(super) fn negatives(&self) -> Tensor {
        self.weighed(
            &self
                .targets
                .equal(&self.targets.like(0.0))
                .convert(DType::F32),
        )
    }

    pub(super) fn weighed(&self, values: &Tensor) -> Tensor {
        match &self.weights {
            Some(weights) => weighted_or_zero(values, weights),
            None => values.clone(),
        }
    }
}

/// Whether each score `[n]` lies above each threshold: `[n, thresholds]`.
pub(super) fn exceeded(scores: &Tensor, thresholds: &[f64]) -> Tensor {
    let values: Vec<f32> = thresholds.iter().map(|&value| value as f32).collect();
    let values = scores
        .graph()
        .constant(HostTensor::new([values.len()], &values));
    scores.keep_dims(&[1]).greater(&values)
}

/// The sum over `n` of the weights `[n]` where `chosen`, `[n, columns]`.
pub(super) fn count(chosen: &Tensor, weights: &Tensor) -> Tensor {
    let weights = weights.keep_dims(&[1]);
    chosen.select(&weights, &weights.like(0.0)).sum(&[0])
}

/// `part / (part + rest)`, 0 where both are.
pub(super) fn fractions(part: &[f64], rest: &[f64]) -> Vec<f64> {
    let whole: Vec<f64> = part.iter().zip(rest).map(|(a, b)| a + b).collect();
    fractions_of(part, &whole)
}

/// `part / whole`, 0 where the whole is.
pub(super) fn fractions_of(part: &[f64], whole: &[f64]) -> Vec<f64> {
    part.iter().zip(whole).map(|(&a, &b)| ratio(a, b)).collect()
}

/// `a / b`, 0 when `b` is.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}
