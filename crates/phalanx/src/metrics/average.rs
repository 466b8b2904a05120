//! Weighted means over examples: the state of every metric that is one.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
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

pub(super) fn state() -> Vec<MetricStateSpec> {
    ["total", "count"].map(scalar).into()
}

/// The weighted sum of examples' means, and the sum of their weights.
#[track_caller]
pub(super) fn update(values: &Tensor, weight: Option<&Tensor>) -> Option<Vec<Tensor>> {
    let values = in_float(values);
    let dims = values.dims();
    let rows = dims.first().copied().unwrap_or(1);
    let per_row = dims.iter().skip(1).product::<usize>().max(1) as f64;
    let (total, count) = match weight {
        None => (values.sum_all() / per_row, values.like(rows as f64)),
        Some(weight) => {
            let weight = aligned_weight(&values, weight)?.broadcast_to(&dims);
            let total = weighted_or_zero(&values, &weight).sum_all();
            (total / per_row, weight.sum_all() / per_row)
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
