//! What a trainer tells of its data and its epochs.

use std::time::Duration;

use phalanx_graph::Shape;

use super::Trainer;
use super::batch::check_values;
use super::history::{InputReport, Logs, Throughput};
use super::setup::Setup;
use super::step_times::{StepPart, StepTimes};
use super::train_loop::FitRun;
use crate::data::{Batch, Batches, InputBottleneck, LostBytes, Position, StageTime, TrainingData};
use crate::engine::Engine;
use crate::losses::Loss;
use crate::metrics::Better;
use crate::nn::Activation;
use crate::{Error, Result};

impl Trainer {
    /// Whether labels are classes that the model tells, and indices have a row in its tables: what every batch is checked for
    /// before its step, for a program that wants to know before the first. Other mistakes are found when a step is compiled.
    ///
    /// # Errors
    /// When one is not; the error says in which example, counted from [`Batch::first`].
    pub fn check_batch(&self, batch: &Batch) -> Result<()> {
        check_values(&self.compiled.setup, batch)
    }
}

/// Warns of the bytes of files that are left out.
pub(super) fn warn_lost(engine: &Engine, lost: &[LostBytes]) {
    for lost in lost {
        engine.notice(&format!("warning: {lost}"));
    }
}

/// Warns of examples that are left out.
pub(super) fn warn_skipped(engine: &Engine, count: u64, what: &str) {
    if count > 0 {
        engine.notice(&format!(
            "warning: {count} corrupt examples left out of the {what}"
        ));
    }
}

impl FitRun<'_> {
    /// How fast an epoch of `steps` in all was, which took this time.
    pub(super) fn throughput(
        &self,
        steps: usize,
        seconds: f64,
        times: &StepTimes,
    ) -> Option<Throughput> {
        // With servers the clock counts this worker's own steps.
        let made = match self.trainer.compiled.placement.servers() {
            Some(_) => steps.saturating_sub(self.place.steps_before),
            None => times.steps,
        };
        let whole = made.saturating_mul(self.data.batch_size());
        // The last batch of the data may be smaller than the others.
        let all = self.data.examples().filter(|all| {
            let more = whole.checked_sub(*all);
            more.is_some_and(|more| more < self.data.batch_size())
        });
        let left_out = times.of(StepPart::Compile) + times.of(StepPart::Validation);
        let seconds = seconds - left_out.as_secs_f64();
        let flops = self.trainer.compiled.train.flops_of_step();
        let flops_each = flops.map(|flops| flops / self.data.most_rows() as f64);
        Throughput::of(made, all.unwrap_or(whole), flops_each, seconds)
    }

    /// Warns of settings that train badly, and of data that cannot be read.
    pub(super) fn warn_at_start(&self) {
        let (trainer, data) = (&*self.trainer, self.data);
        let uneven = trainer.compiled.setup.uneven_shares_warning();
        let idle = trainer
            .compiled
            .placement
            .idle_replicas_warning(data.most_rows());
        let model = trainer.compiled.setup.warnings();
        let cut = self.fit.cut_epoch_warning(data);
        let untested = self.fit.no_validation_warning(self.place.epoch);
        let of_fit = cut.into_iter().chain(untested);
        for warning in uneven.into_iter().chain(model).chain(idle).chain(of_fit) {
            trainer.engine().notice(&format!("warning: {warning}"));
        }
        warn_lost(trainer.engine(), &data.lost());
        if let Some(validation) = &self.fit.validation {
            warn_lost(trainer.engine(), &validation.dataset().lost());
        }
    }
}

/// The end of a training that somebody asked to stop.
pub(super) fn stopped_error(iterations: i64, position: &Position) -> Error {
    let epoch = position.epoch + 1;
    Error::Stopped(format!(
        "the training was stopped after step {iterations}, in epoch {epoch}; `Fit::resume` goes on from here"
    ))
}

/// What reading the data of an epoch cost; `skipped` examples were left out before it.
pub(super) fn input_of(
    data: &dyn TrainingData,
    stages: Vec<StageTime>,
    starved: Duration,
    elapsed: Duration,
    skipped: u64,
) -> InputReport {
    let in_no_bucket = data.by_index().map_or(0, Batches::in_no_bucket);
    InputReport {
        bottleneck: InputBottleneck::of(&stages, starved, elapsed),
        stages,
        skipped: data.skipped() - skipped + in_no_bucket,
        validation_skipped: 0,
        lost_bytes: data.lost().iter().map(|lost| lost.bytes).sum(),
    }
}

impl Setup {
    /// The error of an epoch that counts no example.
    pub(super) fn empty_epoch_error(&self, steps: usize, skipped: u64) -> Error {
        let why = match (steps, skipped) {
            (0, 0) => "the data have no example".into(),
            (0, _) => format!("all of its {skipped} examples are corrupt and left out"),
            _ => format!("no example of its {steps} steps has a weight above 0"),
        };
        let next = self.what_to_check();
        Error::User(format!("the epoch trained on nothing: {why}; {next}"))
    }

    /// What to do where no example counts.
    pub(super) fn what_to_check(&self) -> &'static str {
        match self.objective.losses.compare_examples() {
            true => {
                "check the data and the weights, and that batches have several examples of a class, since this loss compares them"
            }
            false => "check the data and the weights",
        }
    }

    /// Losses are `none` where nothing has weight.
    pub(super) fn logs(&self, totals: &[f64], none: f64) -> Logs {
        let (loss, terms, results) = self
            .epoch_totals
            .read(totals, &self.objective.metrics, none);
        let mut logs = Logs::default();
        let names = self.objective.losses.log_names(&self.model.output_names());
        for (name, value) in names.into_iter().zip([loss].into_iter().chain(terms)) {
            logs.push(name, value);
        }
        for (metric, value) in self.objective.metrics.iter().zip(results) {
            logs.push(&metric.name, value);
        }
        logs
    }

    /// The logs of an epoch, and which values of each are better.
    pub(super) fn goals(&self) -> Vec<(String, Option<Better>)> {
        let logs = self.logs(&vec![0.0; self.epoch_totals.len], 0.0);
        let metrics = &self.objective.metrics;
        let better = |name: &str| {
            let metric = metrics.iter().find(|metric| metric.name == name);
            // The others are losses.
            metric.map_or(Some(Better::Lower), |metric| metric.metric.better())
        };
        let logs = logs.iter();
        logs.map(|(name, _)| (name.to_owned(), better(name)))
            .collect()
    }

    /// What trains without an error and learns little or nothing: losses that take an output for what it is not, outputs that are
    /// constant, and models without a variable to train.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (names, activations) = (self.model.output_names(), self.model.output_activations());
        let shapes = self.model.outputs();
        let terms = self.objective.losses.terms.iter();
        let told = terms.filter_map(|term| {
            let activation = activations[term.output]?;
            let why = match is_constant(activation, &shapes[term.output]) {
                true => ONE_UNIT.to_owned(),
                false => mistaken(&term.loss, activation)?,
            };
            Some(format!("of output `{}`: {why}", names[term.output]))
        });
        let frozen = (!self.model.is_trainable()).then(|| FROZEN.to_owned());
        told.chain(frozen).collect()
    }
}

const ONE_UNIT: &str = "a softmax over one unit is 1 for every example, and learns nothing; give the layer the activation sigmoid, or a unit for each class";
const FROZEN: &str = "the model has no variable to train and will not change; unfreeze a layer (`trainable`), or evaluate it instead";

/// Whether the output is the same for every example.
fn is_constant(activation: Activation, output: &Shape) -> bool {
    activation == Activation::Softmax && output.dims.last() == Some(&1)
}

/// What does not fit between a loss and the activation of its output.
fn mistaken(loss: &Loss, activation: Activation) -> Option<String> {
    let name = loss.name();
    let (wanted, is_probability) = match loss {
        Loss::BinaryCrossentropy(_) | Loss::BinaryFocalCrossentropy(_) => (
            "sigmoid",
            matches!(
                activation,
                Activation::Sigmoid
                    | Activation::HardSigmoid
                    | Activation::HardSigmoidKeras2
                    | Activation::Softmax
            ),
        ),
        _ => (
            "softmax",
            matches!(activation, Activation::Softmax | Activation::Sigmoid),
        ),
    };
    let out = match loss {
        Loss::Ctc(_) => "the activation",
        _ => "`from_logits` or the activation",
    };
    match (loss.takes_logits()?, is_probability) {
        (true, true) => Some(format!(
            "the loss `{name}` takes logits, and the last layer makes probabilities of them already; leave {out} out"
        )),
        (false, false) if activation == Activation::Linear => Some(format!(
            "the loss `{name}` takes probabilities, and the last layer has no activation; set `from_logits: true`, or give the layer the activation {wanted}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::Compile;
    use crate::losses::{BinaryCrossentropy, MeanSquaredError, SparseCategoricalCrossentropy};
    use crate::nn::{Dense, Sequential, sigmoid, softmax};
    use crate::replicas::Reduction;

    #[test]
    fn what_learns_nothing_is_told() {
        let warnings = |layer: Dense, is_trainable: bool| {
            let mut model = Sequential::new([4]).add(layer).build().unwrap();
            model.set_trainable(is_trainable);
            let loss = BinaryCrossentropy::from_probabilities().into();
            let compile = Compile {
                loss,
                ..Compile::default()
            };
            let setup = Setup::new(model, compile, 1, Reduction::default()).unwrap();
            setup.warnings()
        };
        let one = warnings(Dense::new(1).activation(softmax), true);
        assert_eq!(one, [format!("of output `dense`: {ONE_UNIT}")]);
        assert_eq!(warnings(Dense::new(1).activation(sigmoid), false), [FROZEN]);
        let none: [&str; 0] = [];
        assert_eq!(warnings(Dense::new(2).activation(softmax), true), none);
    }

    #[test]
    fn logits_and_probabilities_are_told_apart() {
        let sparse: Loss = SparseCategoricalCrossentropy::from_probabilities().into();
        let logits: Loss = SparseCategoricalCrossentropy::from_logits().into();
        let binary: Loss = BinaryCrossentropy::from_probabilities().into();
        let told = |loss: &Loss, activation| mistaken(loss, activation).unwrap_or_default();
        assert!(told(&sparse, Activation::Linear).ends_with("the activation softmax"));
        assert!(told(&binary, Activation::Linear).ends_with("the activation sigmoid"));
        assert!(told(&logits, Activation::Softmax).contains("takes logits"));
        for (loss, activation) in [
            (&sparse, Activation::Softmax),
            (&logits, Activation::Linear),
            (&binary, Activation::Sigmoid),
            (&MeanSquaredError.into(), Activation::Linear),
        ] {
            assert_eq!(mistaken(loss, activation), None);
        }
    }
}
