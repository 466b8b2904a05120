//! The loss of one replica's rows, and its metrics.
//!
//! A replica's loss is its share of the loss of the whole batch: the weighted sum over its rows, divided by the weight of
//! *all* replicas' rows ([`global_weight`]). The shares add up to the loss, and so do their gradients, however
//! unequally rows and weights are divided.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Tensor};

use super::batch::ROUNDING;
use super::batch_tensors::{BatchTensors, GlobalWeights};
use super::compile::{Compile, LossTerm, Losses, NamedMetric, weighted_sum};
use super::epoch_totals::{LossAndMetrics, WeightedSum};
use super::outputs::Output;
use crate::losses::Loss;
use crate::nn::{Effects, Model};
use crate::{Error, Result};

/// What the outputs of a model are compared with, and how.
#[derive(Clone)]
pub(super) struct Objective {
    pub(super) losses: Losses,
    pub(super) metrics: Vec<NamedMetric>,
    /// The outputs that have targets, in order.
    pub(super) targets: Vec<usize>,
    /// Targets that hold classes.
    pub(super) classes: Vec<LabelledClasses>,
    /// Targets that are labels of steps, by position among them, and the number of steps of their outputs.
    pub(super) labels: Vec<(usize, usize)>,
    /// Of each target whether its output has a padding mask.
    pub(super) masked: Vec<bool>,
    /// Targets that a metric counts by their classes.
    pub(super) counted: Vec<CountedClasses>,
    /// Targets that are shares from 0 to 1, by position among them, and the loss that takes them so.
    pub(super) shares: Vec<(usize, String)>,
}

/// A target that holds classes.
#[derive(Clone)]
pub(super) struct LabelledClasses {
    /// The target, by position.
    pub(super) target: usize,
    /// How many classes its output has.
    pub(super) classes: usize,
    /// The class that is left out.
    pub(super) left_out: Option<i64>,
}

/// A target that a metric counts by its classes, where it does not have a row for each class.
#[derive(Clone)]
pub(super) struct CountedClasses {
    /// The metric.
    pub(super) metric: String,
    /// The target, by position.
    pub(super) target: usize,
    /// The dims of an example of its output, but the last.
    pub(super) rows: Vec<usize>,
    pub(super) classes: usize,
    /// The class that is left out.
    pub(super) left_out: Option<i64>,
    /// Whether an example without weight adds nothing.
    pub(super) weighted: bool,
    /// Whether the loss refuses as much, but for what has no weight.
    pub(super) refused: bool,
}

impl Objective {
    pub(super) fn new(model: &Model, compile: &Compile) -> Self {
        let outputs = model.output_names();
        let metrics = compile.named_metrics(&outputs, &model.outputs());
        let has_target = |output: &usize| {
            compile.loss.terms.iter().any(|term| term.output == *output)
                || metrics.iter().any(|metric| metric.output == *output)
        };
        let targets: Vec<usize> = (0..outputs.len()).filter(has_target).collect();
        let classes = classes(model, &compile.loss, &targets);
        Self {
            counted: counted(model, &metrics, &targets, &classes),
            classes,
            labels: labels(model, &compile.loss, &targets),
            masked: (targets.iter())
                .map(|&output| model.masked_outputs()[output])
                .collect(),
            shares: shares(&compile.loss, &targets),
            losses: compile.loss.clone(),
            targets,
            metrics,
        }
    }

    /// Whether a value of a target may stand for a padded place: no class and no share is a whole number below 0. Which places are
    /// padded is known on the devices alone.
    pub(super) fn may_be_padding(&self, target: usize, value: f64) -> bool {
        self.masked[target] && value < 0.0 && value.fract() == 0.0
    }

    /// What else can be done about a value of a target that may be of a padded place, for the end of a message.
    pub(super) fn padding_remedy(&self, target: usize) -> &'static str {
        match self.masked[target] {
            true => "; padded places take 0, or a whole number below 0",
            false => "",
        }
    }

    /// A replica's share of the loss of `replicas` replicas, and what its rows add to the metrics.
    pub(super) fn loss_and_metrics(
        &self,
        outputs: &[Output],
        batch: &BatchTensors,
        effects: &Effects,
        replicas: usize,
    ) -> LossAndMetrics {
        self.check_parts(batch);
        let row_weights = batch.row_weights();
        let mut losses = Vec::new();
        let mut loss = outputs[0].value.graph().scalar(DType::F32, 0.0);
        for term in &self.losses.terms {
            let output = &outputs[term.output];
            let y_true = self.target(term.output, batch);
            let (values, weight) = weighted_values(
                &term.loss,
                y_true,
                output,
                row_weights.as_ref(),
                batch.rows(),
            );
            let values = self.with_known_shares(term, y_true, values);
            let varies = weight.is_some();
            let (sum, weight) = weighted_sum(&values, weight.as_ref());
            let whole = global_weight(&weight, varies, batch, replicas);
            let mean = divide_or_zero(&sum, &whole);
            loss = loss.convert(mean.dtype()) + &mean * term.weight;
            losses.push(WeightedSum { sum, weight });
        }
        let (loss, penalties) = with_penalties(loss, batch, effects, replicas);
        LossAndMetrics {
            metrics: self.metric_updates(outputs, batch, row_weights.as_ref()),
            loss,
            losses,
            penalties,
        }
    }

    /// Refuses parts of a batch one after the other for what compares its examples.
    fn check_parts(&self, batch: &BatchTensors) {
        let losses = self.losses.terms.iter().map(|term| &term.loss);
        let losses = losses
            .filter(|loss| loss.compares_examples())
            .map(Loss::name);
        let metrics = self
            .metrics
            .iter()
            .filter(|metric| metric.metric.compares_examples());
        let mut names = losses.chain(metrics.map(|metric| &*metric.name));
        let parts = batch.micro_batches;
        if let Some(name) = names.next().filter(|_| parts > 1) {
            let message = format!(
                "it compares the examples of a batch, and the pipeline has {parts} parts of it one after the other; set `micro_batches` to 1, or train by another strategy"
            );
            batch.x[0].graph().fail(name, message);
        }
    }

    /// Losses that are no numbers where a share is below 0 and padding is known on the device alone: a padded place has no weight, and
    /// another one ends the training.
    fn with_known_shares(&self, term: &LossTerm, y_true: &Tensor, values: Tensor) -> Tensor {
        let is_of_term = |(target, loss): &(usize, String)| {
            self.masked[*target] && self.targets[*target] == term.output && loss == term.loss.name()
        };
        if !self.shares.iter().any(is_of_term) {
            return values;
        }
        let below = -y_true.convert(values.dtype());
        let below = match below.rank().checked_sub(values.rank()) {
            Some(0) => below,
            Some(1) => below.max(&[below.rank() - 1]),
            _ => return values,
        };
        match below.dims() == values.dims() {
            true => (below.like(ROUNDING).less(&below)).select(&values.like(f64::NAN), &values),
            false => values,
        }
    }

    /// Refuses to do what needs a loss without one.
    pub(super) fn require_loss(&self, doing: &str) -> Result<()> {
        if self.losses.terms.is_empty() {
            return Err(Error::user(format!(
                "cannot {doing}: the model was compiled without a loss; set `loss` in Compile"
            )));
        }
        Ok(())
    }

    /// The target of an output of the model.
    fn target<'a>(&self, output: usize, batch: &'a BatchTensors) -> &'a Tensor {
        let position = self.targets.iter().position(|&target| target == output);
        &batch.y[position.unwrap_or(0)]
    }

    /// What this replica's rows add to the state of each metric.
    fn metric_updates(
        &self,
        outputs: &[Output],
        batch: &BatchTensors,
        row_weights: Option<&Tensor>,
    ) -> Vec<Vec<Tensor>> {
        let updates = self.metrics.iter().map(|metric| {
            let weight = match metric.weighted {
                true => row_weights,
                false => batch.mask.as_ref(),
            };
            let output = &outputs[metric.output];
            let y = self.target(metric.output, batch);
            let weight = output.weight(weight);
            metric.metric.update(y, &output.value, weight.as_ref())
        });
        updates.collect()
    }
}

/// The loss with a replica's share of what layers add to it, and what that adds to the totals. It counts by examples, whatever their
/// weights are: means over a replica's examples become the mean over all, and shares of what no example changes add up to it.
fn with_penalties(
    loss: Tensor,
    batch: &BatchTensors,
    effects: &Effects,
    replicas: usize,
) -> (Tensor, WeightedSum) {
    let examples = match &batch.mask {
        Some(mask) => mask.sum_all().convert(loss.dtype()),
        None => loss.like(batch.rows() as f64),
    };
    let added = effects.losses.iter();
    let added = added.map(|added| added.convert(loss.dtype()));
    let Some(added) = added.reduce(|all, added| all + added) else {
        let (sum, weight) = (loss.like(0.0), examples);
        return (loss, WeightedSum { sum, weight });
    };
    let whole = global_weight(&examples, batch.mask.is_some(), batch, replicas);
    let penalties = WeightedSum {
        sum: added.convert(DType::F64) * examples.convert(DType::F64),
        weight: examples.clone(),
    };
    let share = match replicas * batch.micro_batches {
        1 => added,
        _ => added * divide_or_zero(&examples, &whole),
    };
    (loss + share, penalties)
}

/// Which targets are integer classes.
fn classes(model: &Model, losses: &Losses, targets: &[usize]) -> Vec<LabelledClasses> {
    let outputs = model.outputs();
    let of_term = |term: &LossTerm| {
        let (Loss::SparseCategoricalCrossentropy(_)
        | Loss::CategoricalGeneralizedCrossEntropy(_)
        | Loss::Ctc(_)) = term.loss
        else {
            return None;
        };
        Some(LabelledClasses {
            target: targets.iter().position(|&target| target == term.output)?,
            classes: *outputs[term.output].dims.last()?,
            left_out: term.loss.left_out(),
        })
    };
    losses.terms.iter().filter_map(of_term).collect()
}

/// Which targets are labels of steps, and how many steps there are.
fn labels(model: &Model, losses: &Losses, targets: &[usize]) -> Vec<(usize, usize)> {
    let outputs = model.outputs();
    let of_term = |term: &LossTerm| {
        let Loss::Ctc(_) = term.loss else {
            return None;
        };
        let target = targets.iter().position(|&target| target == term.output)?;
        Some((target, *outputs[term.output].dims.first()?))
    };
    losses.terms.iter().filter_map(of_term).collect()
}

/// Which targets metrics count by their classes.
fn counted(
    model: &Model,
    metrics: &[NamedMetric],
    targets: &[usize],
    of_loss: &[LabelledClasses],
) -> Vec<CountedClasses> {
    let outputs = model.outputs();
    let of_metric = |metric: &NamedMetric| {
        let (&columns, rows) = outputs[metric.output].dims.split_last()?;
        let (classes, left_out) = metric.metric.counts_classes(columns)?;
        let target = targets.iter().position(|&target| target == metric.output)?;
        let mut of_loss = of_loss.iter();
        Some(CountedClasses {
            metric: metric.name.clone(),
            target,
            rows: rows.to_vec(),
            classes,
            left_out,
            weighted: metric.weighted,
            refused: of_loss.any(|known| known.target == target && known.left_out.is_none()),
        })
    };
    metrics.iter().filter_map(of_metric).collect()
}

/// Which targets are shares from 0 to 1, and the loss that takes them so.
fn shares(losses: &Losses, targets: &[usize]) -> Vec<(usize, String)> {
    let of_term = |term: &LossTerm| {
        let takes_shares = matches!(
            term.loss,
            Loss::BinaryCrossentropy(_)
                | Loss::BinaryFocalCrossentropy(_)
                | Loss::Dice(_)
                | Loss::Tversky(_)
        );
        let target = targets.iter().position(|&target| target == term.output)?;
        takes_shares.then(|| (target, term.loss.name().to_owned()))
    };
    losses.terms.iter().filter_map(of_term).collect()
}

/// The weight of the rows of all replicas and micro-batches, from the weight of these rows; where rows have no weights
/// of their own, every replica has as much.
///
/// With micro-batches it is a parameter of the program, since it must be known before the first micro-batch is
/// differentiated; the pipeline computes it in a program of its own.
fn global_weight(own: &Tensor, varies: bool, batch: &BatchTensors, replicas: usize) -> Tensor {
    match &batch.global_weights {
        GlobalWeights::AllReduced => {}
        GlobalWeights::Recorded(kept) => {
            kept.borrow_mut().push(own.clone());
            return own.clone();
        }
        GlobalWeights::Known(global_weights) => {
            let total = global_weights.borrow_mut().next();
            return total.expect("a total for each weight that was kept");
        }
    }
    if batch.micro_batches > 1 && varies {
        let whole = own.graph().parameter("whole", own.shape());
        batch.wholes.borrow_mut().push((own.clone(), whole.clone()));
        return whole;
    }
    match (replicas * batch.micro_batches, varies) {
        (1, _) => own.clone(),
        (_, true) => own.all_reduce(ReduceOp::Sum),
        (parts, false) => own * parts as f64,
    }
}

/// The numbers that a loss gives for an output, and the weight of each where not all count alike: padded steps and classes that are left out have
/// none.
#[track_caller]
pub(crate) fn weighted_values(
    loss: &Loss,
    y_true: &Tensor,
    output: &Output,
    row_weights: Option<&Tensor>,
    rows: usize,
) -> (Tensor, Option<Tensor>) {
    let weight = output.weight(row_weights);
    let y_pred = loss.without_unweighted(&output.value, weight.as_ref());
    let values = loss.in_batch(y_true, &y_pred, weight.as_ref());
    check_rows(loss.name(), &values, rows);
    check_mask(loss.name(), &values, output);
    let weight = loss.own_weight(y_true, &values, weight.as_ref());
    (values, weight)
}

/// Refuses a loss that does not give a number for each row: the mean over the batch could not be computed from it.
#[track_caller]
fn check_rows(name: &str, values: &Tensor, rows: usize) {
    if values.dims().first() != Some(&rows) {
        let message = format!(
            "the loss gives {}, expected a number for each of {rows} examples; leave their mean to the trainer",
            values.shape()
        );
        values.graph().fail(name, message);
    }
}

/// Refuses padded steps where the loss has no number for each step.
#[track_caller]
fn check_mask(name: &str, values: &Tensor, output: &Output) {
    if let Some(mask) = &output.mask
        && mask.rank() > values.rank()
    {
        let message = format!(
            "the loss gives {}, and the output has a padding mask, {}: padded steps cannot be left out of a number for a whole example; leave out what makes the mask (`mask_zero`, `masking`), or use a loss with a number for each step",
            values.shape(),
            mask.shape()
        );
        values.graph().fail(name, message);
    }
}

/// `sum / total`, or 0 where the total is 0.
pub(crate) fn divide_or_zero(sum: &Tensor, total: &Tensor) -> Tensor {
    let total = total.convert(sum.dtype());
    let nothing = total.equal(&total.like(0.0));
    sum / nothing.select(&total.like(1.0), &total)
}
