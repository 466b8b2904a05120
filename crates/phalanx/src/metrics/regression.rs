//! How far predicted numbers are from the true ones, over all examples together.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::columns::{columns, refuse_columns};
use super::counting::Counting;
use super::{Better, MetricStateSpec};
use crate::config::{Component, Described, Field, Kind};
use crate::losses::{aligned_weight, paired, weighted_or_zero};

/// The root of the mean squared error, of all values together: it is not the mean of the roots of batches.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 1.0, 0.0, 0.0]);
/// let y_pred = column([1.0, 1.0, 1.0, 0.0]);
/// let result = measure(RootMeanSquaredError, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.7071");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMeanSquaredError;

impl Described for RootMeanSquaredError {
    const COMPONENT: Component = Component {
        name: "root_mean_squared_error",
        doc: "the root of the mean of squared differences",
        fields: &[],
    };
}

impl Counting for RootMeanSquaredError {
    /// The squared error of each value.
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let (y_true, y_pred) = paired(Self::COMPONENT.name, y_true, y_pred)?;
        Some((y_true - y_pred).square())
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        let [total, count] = state else {
            return vec![f64::NAN];
        };
        vec![super::confusion::ratio(total[0], count[0]).sqrt()]
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }
}

/// The coefficient of determination R2: 1 minus the squared errors over the squared distances of the targets from their mean; 1 for
/// exact predictions, 0 for ones as good as the mean.
///
/// Of several outputs the mean, or weighted by the variance of each; where none has any, the mean. Sums are in f64: Keras' f32 sums lose
/// the variance of targets far from 0. An output whose targets are all equal counts 1 where predictions are exact and 0 otherwise; Keras
/// has NaN for exact ones, where no output has a variance to be weighted by, and before the first example, where the score is 0 here.
/// Keras' `num_regressors` is not supported.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([1.0, 4.0, 3.0]);
/// let y_pred = column([2.0, 4.0, 4.0]);
/// let result = measure(R2Score::default(), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5714");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct R2Score {
    class_aggregation: Option<R2Average>,
    outputs: Option<usize>,
}

impl Described for R2Score {
    const COMPONENT: Component = Component {
        name: "r2_score",
        doc: "the share of the variance of targets that predictions explain",
        fields: &[
            Field::optional(
                "class_aggregation",
                Kind::OneOf(&["uniform_average", "variance_weighted_average"]),
                "how the scores of several outputs are combined",
            ),
            Field::optional(
                "outputs",
                Kind::SIZE,
                "number of outputs; by default of the model",
            ),
        ],
    };
}

/// A variance below this part of the mean square is none.
const ROUNDING: f64 = 1e-13;

/// How the scores of several outputs become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum R2Average {
    /// The mean.
    UniformAverage,
    /// The mean weighted by the variance of each output's targets.
    VarianceWeightedAverage,
}

impl Default for R2Score {
    /// Keras' uniform average.
    fn default() -> Self {
        Self {
            class_aggregation: Some(R2Average::UniformAverage),
            outputs: None,
        }
    }
}

impl R2Score {
    /// Sets how the scores of several outputs are combined.
    #[must_use]
    pub const fn average(mut self, average: R2Average) -> Self {
        self.class_aggregation = Some(average);
        self
    }

    /// Sets the number of outputs; by default it is the last dim of the predictions.
    #[must_use]
    pub const fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = Some(outputs);
        self
    }
}

impl Counting for R2Score {
    fn bind(&mut self, y_pred: &Shape) {
        self.outputs.get_or_insert(columns(y_pred));
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let shape = Shape::new(DType::F64, [self.outputs.unwrap_or(1)]);
        let spec = |name| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        ["sum", "squared_sum", "residual", "count"].map(spec).into()
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let (y_true, y_pred) = paired("r2_score", y_true, y_pred)?;
        let last = y_pred.rank() - 1;
        let outputs = y_pred.dim(last);
        if outputs != self.outputs.unwrap_or(1) {
            let set = self.outputs;
            refuse_columns("r2_score", ["outputs", "outputs"], set, outputs, &y_pred);
            return None;
        }
        let weight = match weight {
            Some(weight) => aligned_weight(&y_pred, weight)?,
            None => y_pred.like(1.0),
        };
        let weight = weight.broadcast_to(&y_pred.dims()).convert(DType::F64);
        let [y_true, y_pred] = [y_true, y_pred].map(|values| values.convert(DType::F64));
        let rows: Vec<usize> = (0..last).collect();
        let sum = |values: &Tensor| weighted_or_zero(values, &weight).sum(&rows);
        Some(vec![
            sum(&y_true),
            sum(&y_true.square()),
            sum(&(&y_true - &y_pred).square()),
            weight.sum(&rows),
        ])
    }

    /// The score of sums of each output: of targets, of their squares, of squared errors and of weights.
    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        let [sums, squares, errors, counts] = state else {
            return vec![f64::NAN];
        };
        let of_output = |i: usize| {
            let mean = sums[i] / counts[i];
            let variance = squares[i] - sums[i] * mean;
            // What rounding leaves of the variance of equal targets.
            if variance <= ROUNDING * squares[i] {
                let is_exact = errors[i] == 0.0;
                return (0.0, f64::from(is_exact));
            }
            (variance, 1.0 - errors[i] / variance)
        };
        let is_seen = |i: &usize| counts[*i] != 0.0;
        let scores: Vec<(f64, f64)> = (0..sums.len()).filter(is_seen).map(of_output).collect();
        let has_variance = scores.iter().any(|&(variance, _)| variance > 0.0);
        let weight = |variance: f64| match self.class_aggregation {
            Some(R2Average::VarianceWeightedAverage) if has_variance => variance,
            _ => 1.0,
        };
        let total: f64 = scores.iter().map(|&(variance, _)| weight(variance)).sum();
        let sum: f64 = scores
            .iter()
            .map(|&(variance, score)| weight(variance) * score)
            .sum();
        vec![super::confusion::ratio(sum, total)]
    }
}
