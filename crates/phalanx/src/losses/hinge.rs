//! Hinge losses: nothing where an answer is right by a margin, linear or quadratic beyond.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ExampleLoss;
use super::shapes::{mean_of_last, of_pairs};
use crate::config::{Component, Described};

/// Hinge loss: `mean(max(1 - y_true * y_pred, 0))` over the last dim, for targets -1 and 1.
///
/// A target of 0 counts as -1, each by itself. Keras does so only where all targets of a batch are 0 or 1, and then replicas that
/// see a part of the batch may disagree.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [-1.0, 1.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.4, 0.6]]);
/// let loss = per_example(Hinge, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[1.1000, 0.9000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hinge;

impl Described for Hinge {
    const COMPONENT: Component = Component {
        name: "hinge",
        doc: "how far yes-or-no answers are from right by a margin of 1; targets -1 and 1, or 0 and 1",
        fields: &[],
    };
}

/// Squared hinge loss: `mean(max(1 - y_true * y_pred, 0)^2)` over the last dim, for targets as [`Hinge`] takes them.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [-1.0, 1.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.4, 0.6]]);
/// let loss = per_example(SquaredHinge, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[1.4600, 1.0600]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquaredHinge;

impl Described for SquaredHinge {
    const COMPONENT: Component = Component {
        name: "squared_hinge",
        doc: "the square of what `hinge` finds",
        fields: &[],
    };
}

/// Hinge loss of one-hot classes: `max(max((1 - y_true) * y_pred) - sum(y_true * y_pred) + 1, 0)` over the last dim.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 1.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.4, 2.6]]);
/// let loss = per_example(CategoricalHinge, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[1.2000, 0.0000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoricalHinge;

impl Described for CategoricalHinge {
    const COMPONENT: Component = Component {
        name: "categorical_hinge",
        doc: "how far the score of a one-hot class is from the next by a margin of 1",
        fields: &[],
    };
}

impl ExampleLoss for Hinge {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            mean_of_last(&missing_margin(t, p))
        })
    }
}

impl ExampleLoss for SquaredHinge {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            mean_of_last(&missing_margin(t, p).square())
        })
    }
}

impl ExampleLoss for CategoricalHinge {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let last = p.rank() - 1;
            let own = (t * p).sum(&[last]);
            let next = ((1.0 - t) * p).max(&[last]);
            above_zero(&(next - own + 1.0))
        })
    }
}

/// What an answer lacks of being right by 1.
fn missing_margin(y_true: &Tensor, y_pred: &Tensor) -> Tensor {
    let is_zero = y_true.equal(&y_true.zeros_like());
    let sign = is_zero.select(&y_true.like(-1.0), y_true);
    above_zero(&(1.0 - sign * y_pred))
}

fn above_zero(values: &Tensor) -> Tensor {
    values.maximum(&values.zeros_like())
}
