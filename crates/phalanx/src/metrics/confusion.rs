//! Right and wrong answers at thresholds.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::counting::Counting;
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::losses::{aligned_weight, in_float, paired, weighted_or_zero};

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

const TOP_K: Field = Field::optional(
    "top_k",
    Kind::Whole(1, MAX_TOP_K as i64),
    "how many of the highest scores of each row can be a yes; by default all",
);
/// The setting of metrics that may count one class alone.
pub(super) const CLASS_ID: Field = Field::optional(
    "class_id",
    Kind::Whole(0, i32::MAX as i64),
    "the only class that counts; by default all outputs do",
);
/// Each of them is found by a search of its own.
const MAX_TOP_K: usize = 100;
/// Which scores are above no threshold, as in Keras.
const LOWEST: f64 = -1e10;

/// The share of positive answers that are right: `tp / (tp + fp)`, 0 where no answer is positive.
///
/// An answer is positive when its score is above a threshold. Where the loss takes logits, thresholds between 0 and 1 are for
/// the probabilities of the logits; Keras compares these themselves. With [`top_k`](Self::top_k) the scores that are not among the
/// largest of their row are no positive answers, and all others are unless thresholds are set.
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
    thresholds: Option<Thresholds>,
    top_k: Option<usize>,
    class_id: Option<usize>,
    from_logits: bool,
}

impl Described for Precision {
    const COMPONENT: Component = Component {
        name: "precision",
        doc: "share of the positive answers that is right",
        fields: &[
            THRESHOLDS.doc("scores above it are a yes, by default 0.5, or all with `top_k`; of several, the mean is logged"),
            TOP_K,
            CLASS_ID,
            FROM_LOGITS,
        ],
    };
}

/// The share of positive targets that are found: `tp / (tp + fn)`, 0 where no target is positive.
///
/// A target is found when its score is above a threshold. Where the loss takes logits, thresholds between 0 and 1 are for
/// the probabilities of the logits; Keras compares these themselves. With [`top_k`](Self::top_k) the scores that are not among the
/// largest of their row are no positive answers, and all others are unless thresholds are set.
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
    thresholds: Option<Thresholds>,
    top_k: Option<usize>,
    class_id: Option<usize>,
    from_logits: bool,
}

impl Described for Recall {
    const COMPONENT: Component = Component {
        name: "recall",
        doc: "share of the positive targets that is found",
        fields: &[
            THRESHOLDS.doc("scores above it are a yes, by default 0.5, or all with `top_k`; of several, the mean is logged"),
            TOP_K,
            CLASS_ID,
            FROM_LOGITS,
        ],
    };
}

/// One threshold or several, as in configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
pub(super) enum Thresholds {
    One(f64),
    Many(Vec<f64>),
}

macro_rules! of_answers {
    ($metric:ident) => {
        impl $metric {
            /// A result for each of these thresholds.
            #[must_use]
            pub fn at(thresholds: impl Into<Vec<f64>>) -> Self {
                Self {
                    thresholds: Some(Thresholds::Many(thresholds.into())),
                    ..Self::default()
                }
            }

            /// Takes no scores as positive answers but the `k` largest of each row, from 1 to 100; of equal ones the first.
            #[must_use]
            pub const fn top_k(mut self, k: usize) -> Self {
                self.top_k = Some(k);
                self
            }

            /// Counts one class alone: targets and scores of this column.
            #[must_use]
            pub const fn class_id(mut self, class: usize) -> Self {
                self.class_id = Some(class);
                self
            }

            /// Takes scores as logits: thresholds are for their probabilities.
            #[must_use]
            pub const fn from_logits(mut self) -> Self {
                self.from_logits = true;
                self
            }

            /// Keras' threshold of 0.5, or none for the largest scores.
            fn thresholds(&self) -> &[f64] {
                match (&self.thresholds, self.top_k) {
                    (Some(thresholds), _) => thresholds.values(),
                    (None, None) => &[0.5],
                    (None, Some(_)) => &[LOWEST],
                }
            }

            /// Targets and scores, and which of these are positive answers.
            #[track_caller]
            fn answers(
                &self,
                y_true: &Tensor,
                y_pred: &Tensor,
                weight: Option<&Tensor>,
            ) -> Option<(Cases, Tensor)> {
                let scores = scores(y_pred, self.from_logits);
                let scores = match self.top_k {
                    Some(k) => largest(&in_float(&scores), &in_float(y_pred), k),
                    None => scores,
                };
                let name = Self::COMPONENT.name;
                let cases = Cases::of_class(name, self.class_id, y_true, &scores, weight)?;
                let positive = exceeded(&cases.scores, self.thresholds());
                Some((cases, positive))
            }

            fn check_settings(&self) -> Result<(), String> {
                if let Some(k) = self.top_k
                    && !(1..=MAX_TOP_K).contains(&k)
                {
                    return Err(format!("`top_k` must be from 1 to {MAX_TOP_K}, got {k}"));
                }
                self.thresholds.as_ref().map_or(Ok(()), Thresholds::check)
            }

            fn are_probabilities(&self) -> bool {
                let mut thresholds = self.thresholds().iter().copied();
                !self.from_logits && thresholds.all(divides_probabilities)
            }
        }

        impl Default for $metric {
            /// Keras' threshold of 0.5.
            fn default() -> Self {
                Self {
                    thresholds: None,
                    top_k: None,
                    class_id: None,
                    from_logits: false,
                }
            }
        }
    };
}
of_answers!(Precision);
of_answers!(Recall);

impl Counting for Precision {
    fn check(&self) -> Result<(), String> {
        self.check_settings()
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        self.are_probabilities()
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        vectors(
            ["true_positives", "false_positives"],
            self.thresholds().len(),
        )
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let (cases, positive) = self.answers(y_true, y_pred, weight)?;
        let (yes, no) = (cases.positives(), cases.negatives());
        Some(vec![count(&positive, &yes), count(&positive, &no)])
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        shares(state)
    }
}

impl Counting for Recall {
    fn check(&self) -> Result<(), String> {
        self.check_settings()
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        self.are_probabilities()
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        vectors(
            ["true_positives", "false_negatives"],
            self.thresholds().len(),
        )
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let (cases, positive) = self.answers(y_true, y_pred, weight)?;
        let yes = cases.positives();
        Some(vec![count(&positive, &yes), count(&positive.not(), &yes)])
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        shares(state)
    }
}

/// The scores `[.., columns]` of the `k` largest answers of their row, the first of equal ones; minus infinity elsewhere. Logits tell answers
/// apart whose probabilities are the same in f32.
#[track_caller]
fn largest(scores: &Tensor, answers: &Tensor, k: usize) -> Tensor {
    let mut rest = match answers.rank() {
        0 | 1 => return scores.clone(),
        _ => answers.computed_once(),
    };
    let (last, lowest) = (rest.rank() - 1, rest.like(f64::NEG_INFINITY));
    let columns = rest.dim(last);
    for _ in 0..k.min(columns) {
        let found = rest.argmax(last).one_hot(columns, DType::Bool);
        rest = found.select(&lowest, &rest).computed_once();
    }
    // What is left has not been found.
    rest.greater(&lowest)
        .select(&scores.like(f64::NEG_INFINITY), scores)
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
}

/// Arrays of one number for each of `count` thresholds.
pub(super) fn vectors<const N: usize>(
    names: [&'static str; N],
    count: usize,
) -> Vec<MetricStateSpec> {
    let shape = Shape::f32([count]);
    let spec = |name| MetricStateSpec {
        name,
        shape: shape.clone(),
    };
    names.map(spec).into()
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
        Self::of_class(op, None, y_true, y_pred, weight)
    }

    /// Of one class alone where there is one, or the graph's error.
    #[track_caller]
    pub(super) fn of_class(
        op: &str,
        class: Option<usize>,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Self> {
        let (targets, scores) = paired(op, y_true, y_pred)?;
        let (dims, last) = (scores.dims(), scores.rank() - 1);
        let weights = match weight {
            None => None,
            Some(weight) => Some(aligned_weight(&scores, weight)?.broadcast_to(&dims)),
        };
        if let Some(class) = class.filter(|class| *class >= dims[last]) {
            let (shape, columns) = (y_pred.shape(), dims[last]);
            let message = format!(
                "`class_id` must be below {columns}, the number of outputs of y_pred {shape}, got {class}"
            );
            y_pred.graph().fail(op, message);
            return None;
        }
        let flat = |tensor: Tensor| {
            let chosen = match class {
                Some(class) => tensor.slice_dim(last, class, class + 1),
                None => tensor,
            };
            let count = chosen.shape().len();
            chosen.convert(DType::F32).reshape(&[count])
        };
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

/// [`fractions`] of two arrays.
fn shares(state: &[Vec<f64>]) -> Vec<f64> {
    match state {
        [part, rest] => fractions(part, rest),
        _ => vec![f64::NAN],
    }
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
