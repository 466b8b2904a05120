//! How often predictions are right.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::counting::Counting;
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use crate::losses::{class_labels, in_float, paired};

use crate::config::{Component, Described, Field, Kind};

/// The share of right predictions: [`BinaryAccuracy`] for a single output, [`SparseCategoricalAccuracy`] for integer classes,
/// [`CategoricalAccuracy`] for one-hot classes, chosen by the shapes as Keras does for `metrics=["accuracy"]`.
///
/// Where the loss takes logits, a single output is compared with 0; Keras compares it with 0.5. Targets of a class that the loss leaves
/// out have no weight; in Keras they are wrong answers.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([2], &[2i32, 1]);
/// let y_pred = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]]);
/// let result = measure(Accuracy, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accuracy;

impl Described for Accuracy {
    const COMPONENT: Component = Component {
        name: "accuracy",
        doc: "share of right answers, in the form that fits the labels and outputs",
        fields: &[],
    };
}

/// The share of predictions that equal their target exactly (Keras' class `Accuracy`).
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([1.0, 2.0, 3.0, 4.0]);
/// let y_pred = column([0.0, 2.0, 3.0, 4.0]);
/// let result = measure(Equality, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.7500");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Equality;

impl Described for Equality {
    const COMPONENT: Component = Component {
        name: "equality",
        doc: "share of predictions that equal their targets",
        fields: &[],
    };
}

/// The share of scores on the right side of the threshold: above it for a target of 1, at or below it for a target of 0.
///
/// Where the loss takes logits, a threshold between 0 and 1 is for the probabilities of the logits; Keras compares these themselves.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([1.0, 1.0, 0.0, 0.0]);
/// let y_pred = column([0.98, 1.0, 0.0, 0.6]);
/// let result = measure(BinaryAccuracy::default(), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.7500");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinaryAccuracy {
    threshold: f64,
    from_logits: bool,
}

impl Described for BinaryAccuracy {
    const COMPONENT: Component = Component {
        name: "binary_accuracy",
        doc: "share of right yes-or-no answers",
        fields: &[
            Field::optional("threshold", Kind::REAL, "scores above it are a yes"),
            FROM_LOGITS,
        ],
    };
}

/// The share of examples whose one-hot class has the largest score; of equal scores the first counts.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]);
/// let y_pred = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]]);
/// let result = measure(CategoricalAccuracy, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoricalAccuracy;

impl Described for CategoricalAccuracy {
    const COMPONENT: Component = Component {
        name: "categorical_accuracy",
        doc: "share of examples whose highest score is at the class of the one-hot label",
        fields: &[],
    };
}

/// The share of examples whose integer class has the largest score; of equal scores the first counts.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([2], &[2i32, 1]);
/// let y_pred = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]]);
/// let result = measure(SparseCategoricalAccuracy, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseCategoricalAccuracy;

impl Described for SparseCategoricalAccuracy {
    const COMPONENT: Component = Component {
        name: "sparse_categorical_accuracy",
        doc: "share of examples whose highest score is at the class",
        fields: &[],
    };
}

/// The share of examples whose one-hot class is among the `k` largest scores: fewer than `k` scores are above its own.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]);
/// let y_pred = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]]);
/// let result = measure(TopKCategoricalAccuracy::new(2), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "1.0000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKCategoricalAccuracy {
    k: u64,
}

impl Described for TopKCategoricalAccuracy {
    const COMPONENT: Component = Component {
        name: "top_k_categorical_accuracy",
        doc: "share of examples whose one-hot label is among the `k` highest scores",
        fields: &[Field::optional(
            "k",
            Kind::POSITIVE,
            "number of highest scores among which the class must be",
        )],
    };
}

/// The share of examples whose integer class is among the `k` largest scores: fewer than `k` scores are above its own.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([2], &[2i32, 1]);
/// let y_pred = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]]);
/// let result = measure(SparseTopKCategoricalAccuracy::new(2), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "1.0000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseTopKCategoricalAccuracy {
    k: u64,
}

impl Described for SparseTopKCategoricalAccuracy {
    const COMPONENT: Component = Component {
        name: "sparse_top_k_categorical_accuracy",
        doc: "share of examples whose class is among the `k` highest scores",
        fields: &[Field::optional(
            "k",
            Kind::POSITIVE,
            "number of highest scores among which the class must be",
        )],
    };
}

/// [`Accuracy`] of logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccuracyOfLogits;

impl Accuracy {
    /// Of a single output with this threshold.
    #[track_caller]
    fn at(threshold: f64, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let (labels, scores) = (y_true.dims(), y_pred.dims());
        if scores.len() < 2 || scores.last() == Some(&1) {
            BinaryAccuracy::new(threshold).values(y_true, y_pred)
        } else if labels.len() < scores.len() || labels.last() == Some(&1) {
            SparseCategoricalAccuracy.values(y_true, y_pred)
        } else {
            CategoricalAccuracy.values(y_true, y_pred)
        }
    }
}

impl Counting for Accuracy {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        Self::at(0.5, y_true, y_pred)
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        Some((outputs, None))
    }
}

impl Counting for AccuracyOfLogits {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        Accuracy::at(0.0, y_true, y_pred)
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        Some((outputs, None))
    }
}

impl Counting for Equality {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let (y_true, y_pred) = paired("equality", y_true, y_pred)?;
        Some(y_true.equal(&y_pred).convert(DType::F32))
    }
}

impl BinaryAccuracy {
    /// Scores above the threshold count as 1.
    #[must_use]
    pub const fn new(threshold: f64) -> Self {
        Self {
            threshold,
            from_logits: false,
        }
    }

    /// Takes scores as logits: the threshold is for their probabilities.
    #[must_use]
    pub const fn from_logits(mut self) -> Self {
        self.from_logits = true;
        self
    }
}

impl Counting for BinaryAccuracy {
    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        !self.from_logits && divides_probabilities(self.threshold)
    }

    fn check(&self) -> Result<(), String> {
        if self.threshold.is_finite() {
            return Ok(());
        }
        Err(format!(
            "`threshold` must be a number, got {}",
            self.threshold
        ))
    }

    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let scores = scores(y_pred, self.from_logits);
        let (y_true, y_pred) = paired("binary_accuracy", y_true, &scores)?;
        let answer = y_pred
            .greater(&y_pred.like(self.threshold))
            .convert(y_true.dtype());
        Some(y_true.equal(&answer).convert(DType::F32))
    }
}

impl Default for BinaryAccuracy {
    /// Keras' threshold of 0.5.
    fn default() -> Self {
        Self::new(0.5)
    }
}

impl Counting for CategoricalAccuracy {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let labels = one_hot_labels("categorical_accuracy", y_true, y_pred)?;
        SparseCategoricalAccuracy.values(&labels, y_pred)
    }
}

impl Counting for SparseCategoricalAccuracy {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let labels = class_labels("sparse_categorical_accuracy", y_true, y_pred)?;
        let answer = y_pred.argmax(y_pred.rank() - 1);
        Some(labels.equal(&answer).convert(DType::F32))
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        Some((outputs, None))
    }
}

macro_rules! top_k {
    ($accuracy:ident) => {
        impl $accuracy {
            /// Counts the classes of the `k` largest scores as right; `k` is at least 1.
            #[must_use]
            pub const fn new(k: u64) -> Self {
                Self { k }
            }

            fn check_k(self) -> Result<(), String> {
                if self.k >= 1 {
                    return Ok(());
                }
                Err("`k` must be at least 1, got 0".to_owned())
            }
        }

        impl Default for $accuracy {
            /// Keras' `k` of 5.
            fn default() -> Self {
                Self::new(5)
            }
        }
    };
}
top_k!(TopKCategoricalAccuracy);
top_k!(SparseTopKCategoricalAccuracy);

impl Counting for TopKCategoricalAccuracy {
    fn check(&self) -> Result<(), String> {
        self.check_k()
    }

    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let labels = one_hot_labels("top_k_categorical_accuracy", y_true, y_pred)?;
        Some(in_top_k(&labels, y_pred, self.k))
    }
}

impl Counting for SparseTopKCategoricalAccuracy {
    fn check(&self) -> Result<(), String> {
        self.check_k()
    }

    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let labels = class_labels("sparse_top_k_categorical_accuracy", y_true, y_pred)?;
        Some(in_top_k(&labels, y_pred, self.k))
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        Some((outputs, None))
    }
}

/// The class of each one-hot row as i32, or the graph's error.
#[track_caller]
fn one_hot_labels(op: &str, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
    let (y_true, _) = paired(op, y_true, y_pred)?;
    Some(
        y_true
            .argmax(y_true.rank() - 1)
            .reshape(&y_pred.dims()[..y_pred.rank() - 1]),
    )
}

/// Classes out of range and scores that are no finite numbers are never inside.
fn in_top_k(labels: &Tensor, scores: &Tensor, k: u64) -> Tensor {
    let scores = in_float(scores).computed_once();
    let last = scores.rank() - 1;
    let of_class = labels.one_hot(scores.dim(last), DType::Bool);
    let own = of_class
        .select(&scores, &scores.like(f64::NEG_INFINITY))
        .max(&[last]);
    let above = scores
        .greater(&own.keep_dims(&[last]))
        .convert(DType::F32)
        .sum(&[last]);
    let inside = above.less(&above.like(k as f64)).and(&own.is_finite());
    inside.convert(DType::F32)
}
