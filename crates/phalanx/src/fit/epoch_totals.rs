//! Sums over the steps of an epoch.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};

use super::compile::{Losses, NamedMetric};
use super::loss_scale::FiniteCheck;

/// Sums over the steps of an epoch, in one f64 array that is read at once: loss and weight, the loss of each output
/// when there are several, the states of the metrics, and last the number (from 1) of the first step whose loss is
/// not finite, 0 when there is none.
#[derive(Clone, Debug)]
pub(super) struct EpochTotals {
    pub(super) len: usize,
    per_output: usize,
    metrics: Vec<Vec<Shape>>,
}

/// What one replica's rows of a batch add to the totals; losses are its share of the loss of the whole batch.
pub(super) struct LossAndMetrics {
    pub(super) loss: Tensor,
    /// The weight of its rows, and of the rows of all replicas.
    pub(super) weight: Tensor,
    pub(super) global_weight: Tensor,
    pub(super) terms: Vec<Tensor>,
    pub(super) metrics: Vec<Vec<Tensor>>,
}

impl LossAndMetrics {
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let sums = [&self.loss, &self.weight, &self.global_weight].into_iter();
        let metrics = self.metrics.iter().flatten();
        sums.chain(&self.terms).chain(metrics).cloned().collect()
    }

    /// The same of other tensors, in the order of [`tensors`](Self::tensors).
    pub(super) fn with(&self, tensors: &mut impl Iterator<Item = Tensor>) -> Self {
        let mut next = |_: &Tensor| tensors.next().expect("as many as there are");
        Self {
            loss: next(&self.loss),
            weight: next(&self.weight),
            global_weight: next(&self.global_weight),
            terms: self.terms.iter().map(&mut next).collect(),
            metrics: (self.metrics.iter())
                .map(|states| states.iter().map(&mut next).collect())
                .collect(),
        }
    }
}

impl EpochTotals {
    pub(super) fn new(losses: &Losses, metrics: &[NamedMetric]) -> Self {
        let per_output = if losses.terms.len() > 1 {
            losses.terms.len()
        } else {
            0
        };
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
            len: 2 + per_output + counts + 1,
            per_output,
            metrics,
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape::new(DType::F64, [self.len])
    }

    /// The totals after a batch; with `iterations`, of a training step, a loss that is not finite is noted too.
    ///
    /// A loss counts by the weight of its batch, so that the mean of an epoch does not depend on the batch size.
    pub(super) fn add_batch(
        &self,
        totals: &Tensor,
        loss_and_metrics: &LossAndMetrics,
        iterations: Option<&Tensor>,
        workers: usize,
    ) -> Tensor {
        let flat = |tensor: &Tensor| tensor.convert(DType::F64).reshape(&[tensor.shape().len()]);
        let loss = loss_and_metrics.loss.convert(DType::F64);
        let whole = loss_and_metrics.global_weight.convert(DType::F64);
        let mut added = vec![flat(&(&loss * &whole)), flat(&loss_and_metrics.weight)];
        let terms = loss_and_metrics.terms.iter().take(self.per_output);
        added.extend(terms.map(|term| flat(&(term.convert(DType::F64) * &whole))));
        added.extend(loss_and_metrics.metrics.iter().flatten().map(flat));
        let counts: usize = added.iter().map(|part| part.dim(0)).sum();
        if counts + 1 != self.len {
            let message = format!("states of {} numbers are updated by {counts}", self.len - 1);
            totals.graph().fail("metric", message);
            return totals.clone();
        }
        let first_non_finite = totals.slice_dim(0, counts, self.len);
        let mut loss = loss;
        if workers > 1 && iterations.is_some() {
            let parts: Vec<&Tensor> = added.iter().collect();
            let sums = Tensor::concat(&parts, 0).all_reduce(ReduceOp::Sum);
            loss = sums.slice_dim(0, 0, 1).reshape(&[]);
            added = vec![sums];
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

    /// Whether any example had a weight above 0.
    pub(super) fn has_weight(totals: &[f64]) -> bool {
        totals.get(1).is_some_and(|&weight| weight > 0.0)
    }

    /// The first step, counted from 0, whose loss is not finite.
    pub(super) fn first_non_finite(totals: &[f64]) -> Option<u64> {
        let number = totals.last().copied().unwrap_or(0.0);
        (number > 0.0).then(|| number as u64 - 1)
    }

    /// The loss, the loss of each output, and the results of the metrics; losses are `none` where nothing has weight.
    pub(super) fn read(
        &self,
        totals: &[f64],
        metrics: &[NamedMetric],
        none: f64,
    ) -> (f64, Vec<f64>, Vec<f64>) {
        let weight = totals[1];
        let mean = |sum: f64| if weight == 0.0 { none } else { sum / weight };
        let terms = totals[2..][..self.per_output].iter().map(|&sum| mean(sum));
        let mut at = 2 + self.per_output;
        let results = metrics.iter().zip(&self.metrics).map(|(metric, shapes)| {
            let mut take = |shape: &Shape| {
                let values = &totals[at..][..shape.len()];
                at += shape.len();
                HostTensor::new(shape.dims.clone(), values)
            };
            let state: Vec<HostTensor> = shapes.iter().map(&mut take).collect();
            metric.metric.result(&state)
        });
        (mean(totals[0]), terms.collect(), results.collect())
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
