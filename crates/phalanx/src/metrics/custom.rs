//! Metrics of the program, with a state of their own.

use std::fmt::Debug;
use std::sync::Arc;

use phalanx_graph::{Shape, Tensor};
use serde_json::{Map, Value};

use super::counting::Counting;
use super::{Better, Measure, Metric, MetricStateSpec, in_dims_of};

/// A metric with a state of your own, Keras' `Metric` to derive from; where it is the mean of a number for each example, [`Metric::custom`]
/// is shorter.
///
/// Its state is sums: arrays that are zeros first and that each batch adds to. They are added up over steps, in f64 by `fit` and
/// `evaluate`, and over replicas and workers, each of which has its rows of a batch. What is no sum, such as a maximum, is not for it:
/// Keras' metrics may assign whatever they like, and are then another on several replicas.
///
/// ```
#[doc = include_str!("example.md")]
/// # use phalanx::losses::weighted;
/// # use phalanx::serde_json::{Value, json};
/// # use phalanx::{DType, Shape, Tensor};
/// /// How much of the targets' squares the errors are.
/// #[derive(Debug)]
/// struct RelativeSquares;
///
/// impl StatefulMetric for RelativeSquares {
///     fn kind(&self) -> &'static str {
///         "relative_squares"
///     }
///     fn state(&self) -> Vec<MetricStateSpec> {
///         let sum = |name| MetricStateSpec { name, shape: Shape::scalar(DType::F64) };
///         vec![sum("errors"), sum("targets")]
///     }
///     fn update(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Vec<Tensor> {
///         let sum = |values: Tensor| weighted(&values, weight).sum_all();
///         vec![sum((y_true - y_pred).square()), sum(y_true.square())]
///     }
///     fn result(&self, state: &[Vec<f64>]) -> f64 {
///         if state[1][0] == 0.0 { 0.0 } else { state[0][0] / state[1][0] }
///     }
/// }
///
/// let result = measure(RelativeSquares, column([1.0, 2.0, 2.0]), column([2.0, 2.0, 4.0]))?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.5556");
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait StatefulMetric: Debug + Send + Sync {
    /// The name in logs, unless it is [named](Metric::named) otherwise.
    fn kind(&self) -> &'static str;

    /// The settings, a JSON object: what the workers of parameter servers compare. None by default.
    fn config(&self) -> Value {
        Value::Object(Map::new())
    }

    /// The arrays that are added up; of f64 where a loop of your own counts for long.
    fn state(&self) -> Vec<MetricStateSpec>;

    /// What a batch adds to each array of the state, with its dims.
    ///
    /// Targets that differ from the predictions by a last dim of 1 come in the dims of the predictions, as of
    /// [`Loss::custom`](crate::losses::Loss::custom); all others come as they are.
    ///
    /// Weights are `[batch]`, or of more dims of the predictions. An example of weight 0 must add nothing, even if it is not a number: rows that
    /// only fill up a batch have this weight. [`weighted`](crate::losses::weighted) sees to it.
    #[track_caller]
    fn update(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Vec<Tensor>;

    /// The number in the logs, from the accumulated state; it is asked for before the first batch, too.
    fn result(&self, state: &[Vec<f64>]) -> f64;

    /// Which values are better, for [`Fit::keep_best`](crate::fit::Fit::keep_best) and callbacks that watch it.
    fn better(&self) -> Option<Better> {
        None
    }

    /// Whether it compares probabilities: where the loss takes logits, it is then given their probabilities.
    fn takes_probabilities(&self) -> bool {
        false
    }

    /// What is wrong with the settings.
    ///
    /// # Errors
    /// A sentence with the field in backticks, what was expected and what was got.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A [`StatefulMetric`] of the program.
#[derive(Clone, Debug)]
pub(super) struct CustomMetric(pub(super) Arc<dyn StatefulMetric>);

impl<M: StatefulMetric + 'static> From<M> for Metric {
    fn from(metric: M) -> Self {
        Self::of(Measure::Custom(CustomMetric(Arc::new(metric))))
    }
}

impl Counting for CustomMetric {
    fn state(&self) -> Vec<MetricStateSpec> {
        self.0.state()
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let added = self.0.update(&in_dims_of(y_pred, y_true), y_pred, weight);
        let shapes: Vec<Shape> = self.state().into_iter().map(|spec| spec.shape).collect();
        let (expected, got): (Vec<_>, Vec<_>) = (
            shapes.iter().map(|shape| shape.dims.clone()).collect(),
            added.iter().map(Tensor::dims).collect(),
        );
        if expected != got {
            let message = format!(
                "`update` must add arrays of the dims {expected:?} of its state, got {got:?}"
            );
            y_pred.graph().fail(self.0.kind(), message);
            return None;
        }
        let added = added.iter().zip(shapes);
        Some(
            added
                .map(|(added, shape)| added.convert(shape.dtype))
                .collect(),
        )
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        vec![self.0.result(state)]
    }

    fn check(&self) -> Result<(), String> {
        let mut names: Vec<&str> = self.0.state().iter().map(|spec| spec.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!(
                "`state` has two arrays `{}`; call one otherwise",
                twice[0]
            ));
        }
        self.0.check()
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        self.0.takes_probabilities()
    }

    fn better(&self) -> Option<Better> {
        self.0.better()
    }
}
