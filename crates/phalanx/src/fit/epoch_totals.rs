//! Sums over the steps of an epoch.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};

use super::compile::{Losses, NamedMetric};
use super::loss_scale::FiniteCheck;

/// Sums over the steps of an epoch, in one f64 array that is read at once: sum and weight of the loss of each output, then of the
/// penalties, the states of the metrics, and last the number (from 1) of the first step whose loss is not finite, 0 when
/// there is none.
///
/// Each loss has a weight of its own, since outputs differ in what of them is padding; penalties count by examples.
#[derive(Clone, Debug)]
pub(super) struct EpochTotals {
    pub(super) len: usize,
    /// What the loss of each output counts in the total.
    factors: Vec<f64>,
    metrics: Vec<Vec<Shape>>,
}

/// What one replica's rows of a batch add to the totals.
pub(super) struct LossAndMetrics {
    /// Its share of the loss of the whole batch.
    pub(super) loss: Tensor,
    /// Of each output.
    pub(super) losses: Vec<WeightedSum>,
    /// Of what layers add to the loss, by examples.
    pub(super) penalties: WeightedSum,
    pub(super) metrics: Vec<Vec<Tensor>>,
}

/// A sum of weighted values, and the sum of the weights.
pub(super) struct WeightedSum {
    pub(super) sum: Tensor,
    pub(super) weight: Tensor,
}

impl WeightedSum {
    fn with(&self, next: &mut impl FnMut(&Tensor) -> Tensor) -> Self {
        Self {
            sum: next(&self.sum),
            weight: next(&self.weight),
        }
    }
}

impl LossAndMetrics {
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let added = [&self.loss].into_iter().chain(self.counts());
        added.cloned().collect()
    }

    /// What is added up, in the order of the totals.
    fn counts(&self) -> impl Iterator<Item = &Tensor> {
        let losses = self.losses.iter().chain([&self.penalties]);
        let losses = losses.flat_map(|loss| [&loss.sum, &loss.weight]);
        losses.chain(self.metrics.iter().flatten())
    }

    /// The same of other tensors, in the order of [`tensors`](Self::tensors).
    pub(super) fn with(&self, tensors: &mut impl Iterator<Item = Tensor>) -> Self {
        let mut next = |_: &Tensor| tensors.next().expect("as many as there are");
        Self {
            loss: next(&self.loss),
            losses: (self.losses.iter())
                .map(|loss| loss.with(&mut next))
                .collect(),
            penalties: self.penalties.with(&mut next),
            metrics: (self.metrics.iter())
                .map(|states| states.iter().map(&mut next).collect())
                .collect(),
        }
    }
}

impl EpochTotals {
    pub(super) fn new(losses: &Losses, metrics: &[NamedMetric]) -> Self {
        let factors: Vec<f64> = losses.terms.iter().map(|term| term.weight).collect();
        let metrics: Vec<Vec<Shape>> = metrics
            .iter()
            .map(|metric| {
                metric
                    .metric
                    .state()
                    .into_iter()
                    .map(|state| state.shape)
                    .collect()
            })
            .collect();
        let counts = metrics.iter().flatten().map(Shape::len).sum::<usize>();
        Self {
            len: 2 * (factors.len() + 1) + counts + 1,
            factors,
            metrics,
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape::new(DType::F64, [self.len])
    }

    /// The totals after a batch; with `iterations`, of a training step, a loss that is not finite is noted too. `is_shared`: each replica
    /// has the totals of all.
    pub(super) fn add_batch(
        &self,
        totals: &Tensor,
        loss_and_metrics: &LossAndMetrics,
        iterations: Option<&Tensor>,
        is_shared: bool,
    ) -> Tensor {
        let flat = |tensor: &Tensor| tensor.convert(DType::F64).reshape(&[tensor.shape().len()]);
        let mut added: Vec<Tensor> = loss_and_metrics.counts().map(flat).collect();
        let counts: usize = added.iter().map(|part| part.dim(0)).sum();
        if counts + 1 != self.len {
            let message = format!("states of {} numbers are updated by {counts}", self.len - 1);
            totals.graph().fail("metric", message);
            return totals.clone();
        }
        let first_non_finite = totals.slice_dim(0, counts, self.len);
        let mut loss = loss_and_metrics.loss.convert(DType::F64);
        if is_shared && iterations.is_some() {
            added.push(flat(&loss));
            let parts: Vec<&Tensor> = added.iter().collect();
            let sums = Tensor::concat(&parts, 0).all_reduce(ReduceOp::Sum);
            loss = sums.slice_dim(0, counts, counts + 1).reshape(&[]);
            added = vec![sums.slice_dim(0, 0, counts)];
        }
        added.push(match iterations {
            Some(iterations) => {
                let is_finite = loss.abs().less(&loss.like(f64::INFINITY));
                newly_bad(&first_non_finite, &is_finite.not(), iterations)
            }
            None => first_non_finite.zeros_like(),
        });
        let added: Vec<&Tensor> = added.iter().collect();
        totals + Tensor::concat(&added, 0)
    }

    /// The totals after a skipped step: unchanged, but for a note when the training has diverged.
    pub(super) fn add_skipped(
        &self,
        totals: &Tensor,
        finite_check: &FiniteCheck,
        iterations: &Tensor,
    ) -> Tensor {
        let counts = totals.slice_dim(0, 0, self.len - 1);
        let first_non_finite = totals.slice_dim(0, self.len - 1, self.len);
        let bad = newly_bad(&first_non_finite, &finite_check.is_lost, iterations);
        Tensor::concat(&[&counts, &(first_non_finite + bad)], 0)
    }

    /// The totals of all replicas together, from the totals of each.
    pub(super) fn merge_replicas(&self, totals_per_replica: &[Vec<f64>]) -> Vec<f64> {
        let mut all = vec![0.0; self.len];
        for totals in totals_per_replica {
            for (sum, count) in all.iter_mut().zip(totals) {
                *sum += count;
            }
        }
        let bad = totals_per_replica
            .iter()
            .filter_map(|totals| totals.last().copied());
        let first_non_finite = bad.filter(|&step| step > 0.0).reduce(f64::min);
        all[self.len - 1] = first_non_finite.unwrap_or(0.0);
        all
    }

    /// The weight of the losses of all outputs together.
    pub(super) fn weight(&self, totals: &[f64]) -> f64 {
        let losses = self.losses(totals);
        losses.map(|(_, weight)| weight).sum()
    }

    /// Whether any example had a weight above 0.
    pub(super) fn has_weight(&self, totals: &[f64]) -> bool {
        let mut losses = self.losses(totals);
        losses.any(|(_, weight)| weight > 0.0)
    }

    /// Sum and weight of the loss of each output.
    fn losses(&self, totals: &[f64]) -> impl Iterator<Item = (f64, f64)> {
        let (pairs, _) = totals.as_chunks();
        pairs
            .iter()
            .take(self.factors.len())
            .map(|&[sum, weight]| (sum, weight))
    }

    /// The first step, counted from 0, whose loss is not finite.
    pub(super) fn first_non_finite(totals: &[f64]) -> Option<u64> {
        let number = totals.last().copied().unwrap_or(0.0);
        (number > 0.0).then(|| number as u64 - 1)
    }

    /// The loss, the loss of each output where there are several, and the results of the metrics; losses are `none` where nothing
    /// has weight.
    ///
    /// The loss is the weighted sum of the outputs' means and the mean of the penalties, so it does not depend on how examples are cut
    /// into batches. Keras weighs the loss of each batch by its number of rows.
    pub(super) fn read(
        &self,
        totals: &[f64],
        metrics: &[NamedMetric],
        none: f64,
    ) -> (f64, Vec<f64>, Vec<f64>) {
        let means = |(sum, weight): (f64, f64)| (weight != 0.0).then(|| sum / weight);
        let means: Vec<Option<f64>> = self.losses(totals).map(means).collect();
        let mut at = 2 * (means.len() + 1);
        let penalty = totals[at - 2] / totals[at - 1].max(1.0);
        let weighted = means.iter().zip(&self.factors);
        let weighted = weighted.filter_map(|(mean, factor)| Some((*mean)? * factor));
        let loss = match means.iter().any(Option::is_some) {
            true => weighted.sum::<f64>() + penalty,
            false => none,
        };
        let terms = means.iter().map(|mean| mean.unwrap_or(none));
        let terms = terms.filter(|_| self.factors.len() > 1);
        let results = metrics.iter().zip(&self.metrics).map(|(metric, shapes)| {
            let mut take = |shape: &Shape| {
                let values = &totals[at..][..shape.len()];
                at += shape.len();
                HostTensor::new(shape.dims.clone(), values)
            };
            let state: Vec<HostTensor> = shapes.iter().map(&mut take).collect();
            metric.metric.result(&state)
        });
        let results = results.collect();
        (loss, terms.collect(), results)
    }
}

/// The number of this step, counted from 1, when it is the first that is bad; otherwise 0.
fn newly_bad(first_non_finite: &Tensor, is_bad: &Tensor, iterations: &Tensor) -> Tensor {
    let zero = first_non_finite.zeros_like();
    let number = iterations.convert(DType::F64) + 1.0;
    let if_first = first_non_finite
        .equal(&zero)
        .select(&number.broadcast_to(&[1]), &zero);
    is_bad.broadcast_to(&[1]).select(&if_first, &zero)
}
