//! Weighted means over examples: the state of every metric that is one.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::counting::Counting;
use super::{Better, MetricStateSpec};
use crate::losses::{aligned_weight, in_float, weighted_or_zero};

use crate::config::{Component, Described};

/// The weighted mean of the predictions; targets are ignored.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 0.0, 0.0, 0.0]);
/// let y_pred = column([1.0, 3.0, 5.0, 7.0]);
/// let result = measure(Mean, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "4.0000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mean;

impl Described for Mean {
    const COMPONENT: Component = Component {
        name: "mean",
        doc: "the mean of the predictions",
        fields: &[],
    };
}

/// The weighted sum of the predictions; targets are ignored.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 0.0, 0.0, 0.0]);
/// let y_pred = column([1.0, 3.0, 5.0, 7.0]);
/// assert_eq!(measure(Sum, y_true, y_pred)?, 16.0);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum;

impl Described for Sum {
    const COMPONENT: Component = Component {
        name: "sum",
        doc: "the sum of the predictions",
        fields: &[],
    };
}

impl Counting for Mean {
    #[track_caller]
    fn values(&self, _y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        Some(y_pred.clone())
    }

    fn better(&self) -> Option<Better> {
        None
    }
}

impl Counting for Sum {
    fn state(&self) -> Vec<MetricStateSpec> {
        vec![scalar("total")]
    }

    #[track_caller]
    fn update(
        &self,
        _y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let mut total = update(y_pred, weight)?;
        total.truncate(1);
        Some(total)
    }

    fn better(&self) -> Option<Better> {
        None
    }
}

pub(super) fn state() -> Vec<MetricStateSpec> {
    ["total", "count"].map(scalar).into()
}

/// The weighted sum of all values, and the sum of their weights: a step of a sequence counts as much in any batch.
///
/// Keras adds up examples' means, in which a step counts less the longer the batch is that its sequence is padded to.
#[track_caller]
pub(super) fn update(values: &Tensor, weight: Option<&Tensor>) -> Option<Vec<Tensor>> {
    let values = in_float(values);
    let dims = values.dims();
    let (total, count) = match weight {
        None => (values.sum_all(), values.like(values.shape().len() as f64)),
        Some(weight) => {
            let weight = aligned_weight(&values, weight)?.broadcast_to(&dims);
            let total = weighted_or_zero(&values, &weight).sum_all();
            (total, weight.sum_all())
        }
    };
    Some(vec![total.convert(DType::F32), count.convert(DType::F32)])
}

fn scalar(name: &'static str) -> MetricStateSpec {
    MetricStateSpec {
        name,
        shape: Shape::scalar(DType::F32),
    }
}
