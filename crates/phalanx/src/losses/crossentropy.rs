//! Cross-entropies, from logits in the stable log-softmax form or from probabilities clipped as Keras does.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::shapes::{mean_of_last, of_pairs};
use super::{EPSILON, ExampleLoss, class_labels, in_float};
use crate::{Error, Result};

use crate::config::{Component, Described, Field, Kind};

pub(super) const FROM_LOGITS: Field = Field::optional(
    "from_logits",
    Kind::Bool,
    "whether predictions are logits, not probabilities",
);
pub(super) const LABEL_SMOOTHING: Field = Field::optional(
    "label_smoothing",
    Kind::SHARE,
    "how far targets move towards the uniform answer",
);

/// Cross-entropy of integer classes: `log(sum(exp(x))) - x[class]` over the last dim.
///
/// Targets `[batch, ..]` or `[batch, .., 1]` of any number type; predictions `[batch, .., classes]`.
/// A class out of range gives NaN, where Keras' answer depends on its backend. Probabilities are
/// clipped to `[1e-7, 1 - 1e-7]` and then normalised, as Keras does. A target of the class that is left out
/// ([`ignore_class`](Self::ignore_class)) has the loss 0 and the weight 0; as a metric, too, where Keras counts its 0 unless there are weights.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([2], &[1i32, 2]);
/// let y_pred = rows([[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]);
/// let loss = per_example(SparseCategoricalCrossentropy::from_probabilities(), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.0513, 2.3026]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseCategoricalCrossentropy {
    from_logits: bool,
    ignore_class: Option<i64>,
}

impl Described for SparseCategoricalCrossentropy {
    const COMPONENT: Component = Component {
        name: "sparse_categorical_crossentropy",
        doc: "cross-entropy of classes given as whole numbers",
        fields: &[
            FROM_LOGITS,
            Field::optional(
                "ignore_class",
                CLASS,
                "targets of this class are left out, such as 255 for what is not labelled",
            ),
        ],
    };
}

/// Cross-entropy of one-hot or soft classes: `-sum(y_true * log_softmax(x))` over the last dim.
///
/// Targets and predictions `[batch, .., classes]`. Probabilities are normalised and then clipped. Targets need not add up to 1; with
/// logits, Keras' gradient takes it for given on TensorFlow.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
/// let y_pred = rows([[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]);
/// let loss = per_example(CategoricalCrossentropy::from_probabilities(), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.0513, 2.3026]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoricalCrossentropy {
    from_logits: bool,
    label_smoothing: f64,
}

impl Described for CategoricalCrossentropy {
    const COMPONENT: Component = Component {
        name: "categorical_crossentropy",
        doc: "cross-entropy of classes given as shares, such as one-hot labels",
        fields: &[FROM_LOGITS, LABEL_SMOOTHING],
    };
}

/// Cross-entropy of independent yes-or-no answers, the mean over the last dim of
/// `max(x, 0) - x * y_true + log(1 + exp(-|x|))`.
///
/// Targets and predictions `[batch, .., n]`. Probabilities are clipped to `[1e-7, 1 - 1e-7]`.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.4, 0.6]]);
/// let loss = per_example(BinaryCrossentropy::from_probabilities(), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.9163, 0.7136]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinaryCrossentropy {
    from_logits: bool,
    label_smoothing: f64,
}

impl Described for BinaryCrossentropy {
    const COMPONENT: Component = Component {
        name: "binary_crossentropy",
        doc: "cross-entropy of independent yes-or-no answers",
        fields: &[FROM_LOGITS, LABEL_SMOOTHING],
    };
}

impl SparseCategoricalCrossentropy {
    /// Predictions are logits: any numbers, larger for likelier classes.
    #[must_use]
    pub const fn from_logits() -> Self {
        Self {
            from_logits: true,
            ignore_class: None,
        }
    }

    /// Predictions are probabilities, as after a softmax (Keras' default).
    #[must_use]
    pub const fn from_probabilities() -> Self {
        Self {
            from_logits: false,
            ignore_class: None,
        }
    }

    /// Leaves out targets of this class, such as one for what is not labelled.
    #[must_use]
    pub const fn ignore_class(mut self, class: i64) -> Self {
        self.ignore_class = Some(class);
        self
    }
}

impl ExampleLoss for SparseCategoricalCrossentropy {
    fn check(&self) -> Result<()> {
        check_class(self.ignore_class)
            .map_err(|problem| Error::user(format!("{}: {problem}", Self::COMPONENT.name)))
    }

    fn takes_logits(&self) -> Option<bool> {
        Some(self.from_logits)
    }

    fn left_out(&self) -> Option<i64> {
        self.ignore_class
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some(labels) = class_labels("sparse_categorical_crossentropy", y_true, y_pred) else {
            return y_pred.clone();
        };
        let scores = in_float(y_pred);
        let last = scores.rank() - 1;
        let classes = scores.dim(last);
        let logits = if self.from_logits {
            scores
        } else {
            scores.clamp(EPSILON, 1.0 - EPSILON).log()
        };
        let shift = logits.max(&[last]).stop_gradient();
        let shifted = &logits - shift.keep_dims(&[last]);
        let chosen = if classes >= MANY_CLASSES && logits.shape().len() <= i32::MAX as usize {
            picked(&logits, &labels) - shift
        } else {
            let of_class = labels.one_hot(classes, DType::Bool);
            of_class.select(&shifted, &shifted.like(0.0)).sum(&[last])
        };
        let loss = shifted.exp().sum(&[last]).log() - chosen;
        let in_range = labels
            .greater_equal(&labels.like(0.0))
            .and(&labels.less(&labels.like(classes as f64)));
        let loss = in_range.select(&loss, &loss.like(f64::NAN));
        match self.ignore_class {
            Some(class) => labels
                .equal(&labels.like(class as f64))
                .select(&loss.like(0.0), &loss),
            None => loss,
        }
    }
}

/// From this many classes on the logit of a class is gathered, and its gradient scattered; a smaller row is compared and summed as a
/// whole, which is one loop with the rest.
const MANY_CLASSES: usize = 1024;

/// Of each row of `[.., classes]` the element that `labels` names; of a label out of range, any.
#[track_caller]
fn picked(logits: &Tensor, labels: &Tensor) -> Tensor {
    let (dims, classes) = (labels.dims(), logits.dim(logits.rank() - 1));
    let rows: usize = dims.iter().product();
    let row = logits.graph().iota(Shape::new(DType::I32, [rows]), 0);
    let class = labels.clamp(0.0, (classes - 1) as f64).reshape(&[rows]);
    let place = row * classes as f64 + class;
    let flat = logits.reshape(&[rows * classes]);
    flat.gather(&place, 0).reshape(&dims)
}

macro_rules! smoothed {
    ($loss:ident) => {
        impl $loss {
            /// Predictions are logits.
            #[must_use]
            pub const fn from_logits() -> Self {
                Self {
                    from_logits: true,
                    label_smoothing: 0.0,
                }
            }

            /// Predictions are probabilities (Keras' default).
            #[must_use]
            pub const fn from_probabilities() -> Self {
                Self {
                    from_logits: false,
                    label_smoothing: 0.0,
                }
            }

            /// Moves targets this fraction of the way, from 0 to 1, towards the uniform answer.
            #[must_use]
            pub const fn label_smoothing(mut self, fraction: f64) -> Self {
                self.label_smoothing = fraction;
                self
            }
        }
    };
}
smoothed!(CategoricalCrossentropy);
smoothed!(BinaryCrossentropy);

impl ExampleLoss for CategoricalCrossentropy {
    fn check(&self) -> Result<()> {
        check_smoothing(Self::COMPONENT.name, self.label_smoothing)
    }

    fn takes_logits(&self) -> Option<bool> {
        Some(self.from_logits)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let last = p.rank() - 1;
            let t = smooth(t, self.label_smoothing, 1.0 / p.dim(last) as f64);
            -(t * log_probabilities(p, self.from_logits)).sum(&[last])
        })
    }
}

impl ExampleLoss for BinaryCrossentropy {
    fn check(&self) -> Result<()> {
        check_smoothing(Self::COMPONENT.name, self.label_smoothing)
    }

    fn takes_logits(&self) -> Option<bool> {
        Some(self.from_logits)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let t = smooth(t, self.label_smoothing, 0.5);
            mean_of_last(&binary_crossentropy(&t, p, self.from_logits))
        })
    }
}

/// The number of a class, which is an i32 on the device.
pub(crate) const CLASS: Kind = Kind::Whole(i32::MIN as i64, i32::MAX as i64);

pub(crate) fn check_class(class: Option<i64>) -> std::result::Result<(), String> {
    match class {
        Some(class) if i32::try_from(class).is_err() => Err(format!(
            "`ignore_class` must be from {} to {}, got {class}",
            i32::MIN,
            i32::MAX
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_smoothing(name: &str, fraction: f64) -> Result<()> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(());
    }
    Err(Error::user(format!(
        "{name}: `label_smoothing` must lie between 0 and 1, got {fraction}"
    )))
}

/// Targets, a fraction of the way towards the uniform answer.
#[track_caller]
pub(super) fn smooth(y_true: &Tensor, fraction: f64, uniform: f64) -> Tensor {
    if fraction == 0.0 {
        return y_true.clone();
    }
    y_true * (1.0 - fraction) + fraction * uniform
}

/// The logarithm of the probability of each class, along the last dim.
#[track_caller]
pub(super) fn log_probabilities(y_pred: &Tensor, from_logits: bool) -> Tensor {
    let last = y_pred.rank() - 1;
    if from_logits {
        return y_pred.log_softmax(last);
    }
    let normalised = y_pred / y_pred.sum(&[last]).keep_dims(&[last]);
    normalised.clamp(EPSILON, 1.0 - EPSILON).log()
}

/// The cross-entropy of each yes or no.
#[track_caller]
pub(super) fn binary_crossentropy(y_true: &Tensor, y_pred: &Tensor, from_logits: bool) -> Tensor {
    if from_logits {
        // One condition for both parts: where x is 0 their derivatives add up to the derivative of a logistic.
        let zero = y_pred.like(0.0);
        let above = y_pred.greater_equal(&zero);
        let tail = above.select(&-y_pred, y_pred).exp().log1p();
        return above.select(y_pred, &zero) - y_pred * y_true + tail;
    }
    let p = y_pred.clamp(EPSILON, 1.0 - EPSILON);
    let yes = y_true * p.log();
    let no = (1.0 - y_true) * (1.0 - &p).log();
    -(yes + no)
}
