//! What the metrics of this module have in common.

use phalanx_graph::{Shape, Tensor};

use super::average;
use super::confusion::fractions_of;
use super::{Better, MetricStateSpec};
use crate::losses::Loss;

/// What a metric counts in a batch, and what numbers it makes of its counts; by default the mean of a number for each example.
pub(super) trait Counting {
    /// The arrays that are accumulated.
    fn state(&self) -> Vec<MetricStateSpec> {
        average::state()
    }

    /// What a batch adds to them, or the graph's error.
    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        average::update(&self.values(y_true, y_pred)?, weight)
    }

    /// A number for each example, of which the metric is the weighted mean, or the graph's error.
    #[track_caller]
    fn values(&self, _y_true: &Tensor, _y_pred: &Tensor) -> Option<Tensor> {
        None
    }

    /// The results of what was accumulated.
    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        match state {
            [counts] => counts.clone(),
            [total, count] => fractions_of(total, count),
            _ => vec![f64::NAN],
        }
    }

    /// Whether the settings make sense.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether predictions of this shape are to be probabilities.
    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        false
    }

    /// Fills in what predictions of this shape say.
    fn bind(&mut self, _y_pred: &Shape) {}

    /// Which values are better, where that is known.
    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    /// Of how many classes targets may be numbers with that many outputs, and the class that is left out.
    fn counts_classes(&self, _outputs: usize) -> Option<(usize, Option<i64>)> {
        None
    }
}

impl Counting for Loss {
    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let values = match self.compares_examples() {
            true => self.in_batch(y_true, y_pred, weight),
            false => self.values(y_true, y_pred)?,
        };
        let weight = self.own_weight(y_true, &values, weight);
        average::update(&values, weight.as_ref())
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        match self {
            Self::SparseCategoricalCrossentropy(_)
            | Self::CategoricalGeneralizedCrossEntropy(_) => Some((outputs, self.left_out())),
            _ => None,
        }
    }

    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let values = self.per_example(y_true, y_pred);
        match self {
            // As a metric it is the cosine, as in Keras.
            Self::CosineSimilarity(_) => Some(-values),
            _ => Some(values),
        }
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        match self {
            Self::KlDivergence(_)
            | Self::Dice(_)
            | Self::Tversky(_)
            | Self::CategoricalGeneralizedCrossEntropy(_) => true,
            loss => loss.takes_logits() == Some(false),
        }
    }

    fn better(&self) -> Option<Better> {
        match self {
            Self::Custom(_) => None,
            Self::CosineSimilarity(_) => Some(Better::Higher),
            _ => Some(Better::Lower),
        }
    }
}
