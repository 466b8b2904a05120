//! What a model is trained with.

use phalanx_graph::{Shape, Tensor};
use serde_json::{Map, Value, json};

use super::{Logs, LossScale};
use crate::losses::Loss;
use crate::metrics::Metric;
use crate::nn::{Model, Policy};
use crate::optim::{Optimizer, RmsProp};
use crate::{Error, Result};

/// What a model is trained with: Keras' `compile`.
///
/// Without a loss the model can predict, but not train or be evaluated.
#[derive(Clone, Debug)]
pub struct Compile {
    /// How gradients change the variables; RMSprop by default, as in Keras.
    pub optimizer: Optimizer,
    /// What is made small.
    pub loss: Losses,
    /// What is reported beside the loss, without regard to sample weights.
    pub metrics: Vec<OutputMetric>,
    /// What is reported beside the loss, each example counted by its weight.
    pub weighted_metrics: Vec<OutputMetric>,
    /// Where the first values of variables and the randomness of dropout come from.
    pub seed: u64,
    /// In which element types layers compute, in training as in evaluation and prediction; f32 by default.
    pub precision: Policy,
    /// What the loss is multiplied by before the derivatives are taken; what the policy asks for by default.
    pub loss_scale: LossScale,
    /// Training steps of [`fit`](super::Trainer::fit) that are one program, 1 by default: Keras' `steps_per_execution`.
    ///
    /// The hooks of a batch are called once for all of them, and memory holds their batches. Steps that are left at the end of an epoch, whose
    /// batches have other shapes, or after fewer of which a callback has something to do, are programs of their own. For one device and for
    /// replicas in one process.
    pub steps_per_execution: usize,
}

impl Default for Compile {
    fn default() -> Self {
        Self {
            optimizer: RmsProp::default().into(),
            loss: Losses::default(),
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
            seed: 0,
            precision: Policy::default(),
            loss_scale: LossScale::default(),
            steps_per_execution: 1,
        }
    }
}

impl Compile {
    /// The optimizer as a training file has it: `{"adam": {..}}`.
    ///
    /// # Errors
    /// It or its schedule is of the program, for which a training file has no words.
    pub fn optimizer_settings(&self) -> Result<Value> {
        let optimizer = &self.optimizer;
        named(optimizer.kind(), optimizer.is_custom(), optimizer.config())
    }

    /// Loss and metrics as a training file has them: `{"loss": {..}, "metrics": [..], "weighted_metrics": [..]}` of the first output alone, or
    /// of all `outputs` by their names `"loss": {"a": {..}, "b": {..}}`, with `"loss_weights": {"a": 1.0, "b": 0.5}`, and metrics of each.
    ///
    /// # Errors
    /// There is not one loss of each output; without names one loss of the first that counts once, and metrics of it; or a loss or a metric is
    /// of the program. A training file has no words for these.
    pub fn loss_settings(&self, outputs: &[String]) -> Result<Map<String, Value>> {
        let mut settings = match outputs {
            [] => self.one_loss()?,
            outputs => self.loss_of_each(outputs)?,
        };
        for (key, metrics) in [
            ("metrics", &self.metrics),
            ("weighted_metrics", &self.weighted_metrics),
        ] {
            settings.insert(key.to_owned(), metric_settings(metrics, outputs)?);
        }
        Ok(settings)
    }

    fn one_loss(&self) -> Result<Map<String, Value>> {
        let [term] = &self.loss.terms[..] else {
            return Err(refused("the model was not compiled with one loss"));
        };
        if (term.output, term.weight) != (0, 1.0) {
            return Err(refused("the loss has a weight or another output"));
        }
        Ok(Map::from_iter([("loss".to_owned(), term.settings()?)]))
    }

    fn loss_of_each(&self, outputs: &[String]) -> Result<Map<String, Value>> {
        let terms = &self.loss.terms;
        let (mut losses, mut weights) = (Map::new(), Map::new());
        for (place, output) in outputs.iter().enumerate() {
            let mut own = terms.iter().filter(|term| term.output == place);
            let (Some(term), None) = (own.next(), own.next()) else {
                let what = format!("the output `{output}` was not compiled with one loss");
                return Err(refused(&what));
            };
            losses.insert(output.clone(), term.settings()?);
            weights.insert(output.clone(), json!(term.weight));
        }
        Ok(Map::from_iter([
            ("loss".to_owned(), losses.into()),
            ("loss_weights".to_owned(), weights.into()),
        ]))
    }
}

impl LossTerm {
    fn settings(&self) -> Result<Value> {
        let is_custom = matches!(self.loss, Loss::Custom(_));
        named(self.loss.name(), is_custom, self.loss.config())
    }
}

/// Metrics of the first output as a list, or of outputs with names a list of each that has some.
fn metric_settings(metrics: &[OutputMetric], outputs: &[String]) -> Result<Value> {
    let of = |output: usize| {
        let own = metrics
            .iter()
            .filter(move |of| of.output == output)
            .map(|of| &of.metric);
        let own = own.map(|of| named(of.kind(), of.is_custom(), of.config()));
        own.collect::<Result<Vec<Value>>>()
    };
    if outputs.is_empty() {
        if metrics.iter().any(|of| of.output != 0) {
            return Err(refused("a metric is of an output without a loss"));
        }
        return of(0).map(Value::Array);
    }
    let mut each = Map::new();
    for (place, output) in outputs.iter().enumerate() {
        let own = of(place)?;
        if !own.is_empty() {
            each.insert(output.clone(), Value::Array(own));
        }
    }
    Ok(Value::Object(each))
}

fn named(kind: &str, is_custom: bool, settings: Value) -> Result<Value> {
    match is_custom {
        true => Err(refused(&format!("`{kind}` is of a program of its own"))),
        false => Ok(Value::Object(Map::from_iter([(kind.to_owned(), settings)]))),
    }
}

fn refused(what: &str) -> Error {
    let next = "train by a program, or name optimizer, loss and metrics in the file";
    Error::user(format!(
        "{what}, for which a training file has no words; {next}"
    ))
}

/// The losses of a model's outputs and what each counts in the total.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    pub(super) terms: Vec<LossTerm>,
}

#[derive(Clone, Debug)]
pub(super) struct LossTerm {
    pub(super) output: usize,
    pub(super) weight: f64,
    pub(super) loss: Loss,
}

impl Losses {
    /// A loss for each output, in their order.
    #[must_use]
    pub fn each(losses: impl IntoIterator<Item = Loss>) -> Self {
        let terms = losses.into_iter().enumerate();
        terms.fold(Self::default(), |all, (output, loss)| {
            all.and(output, loss, 1.0)
        })
    }

    /// Adds a loss of an output, multiplied by `weight` in the total.
    ///
    /// The targets of a batch belong to the outputs that have a loss or a metric, in the order of the outputs.
    #[must_use]
    pub fn and(mut self, output: usize, loss: impl Into<Loss>, weight: f64) -> Self {
        let loss = loss.into();
        self.terms.push(LossTerm {
            output,
            weight,
            loss,
        });
        self
    }

    /// Whether one of them compares the examples of a batch.
    pub(super) fn compare_examples(&self) -> bool {
        self.terms.iter().any(|term| term.loss.compares_examples())
    }

    /// The names in the logs: of the total, then of the losses of outputs where there are several.
    pub(super) fn log_names(&self, outputs: &[String]) -> Vec<String> {
        let mut names = vec!["loss".to_owned()];
        for term in self.terms.iter().filter(|_| self.terms.len() > 1) {
            let base = format!("{}_loss", outputs[term.output]);
            let name = free_name(base.clone(), &base, |name| names.iter().any(|n| n == name));
            names.push(name);
        }
        names
    }
}

impl<L: Into<Loss>> From<L> for Losses {
    fn from(loss: L) -> Self {
        Self::default().and(0, loss, 1.0)
    }
}

/// A metric of one output.
#[derive(Clone, Debug)]
pub struct OutputMetric {
    pub(super) output: usize,
    pub(super) metric: Metric,
}

impl OutputMetric {
    /// A metric of an output other than the first.
    #[must_use]
    pub fn of(output: usize, metric: impl Into<Metric>) -> Self {
        let metric = metric.into();
        Self { output, metric }
    }
}

impl<M: Into<Metric>> From<M> for OutputMetric {
    fn from(metric: M) -> Self {
        Self::of(0, metric)
    }
}

/// A metric as a step counts it.
#[derive(Clone, Debug)]
pub(super) struct NamedMetric {
    pub(super) name: String,
    pub(super) output: usize,
    pub(super) metric: Metric,
    pub(super) weighted: bool,
}

/// The first name that is not taken, of one and of `base` with numbers from 1.
pub(super) fn free_name(first: String, base: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut name = first;
    for number in 1.. {
        if !taken(&name) {
            break;
        }
        name = format!("{base}_{number}");
    }
    name
}

impl Compile {
    /// The metrics under the names of the logs.
    pub(super) fn named_metrics(&self, outputs: &[String], shapes: &[Shape]) -> Vec<NamedMetric> {
        let plain = self.metrics.iter().map(|metric| (metric, false));
        let weighted = self.weighted_metrics.iter().map(|metric| (metric, true));
        let losses = self.loss.log_names(outputs);
        let mut named: Vec<NamedMetric> = Vec::new();
        for (OutputMetric { output, metric }, weighted) in plain.chain(weighted) {
            let base = match outputs {
                [_] => metric.name().to_owned(),
                _ => format!("{}_{}", outputs[*output], metric.name()),
            };
            let taken = |name: &str| {
                let is_loss = losses.iter().any(|loss| loss == name);
                is_loss || named.iter().any(|other| other.name == name)
            };
            let first = match taken(&base) && weighted {
                true => format!("weighted_{base}"),
                false => base.clone(),
            };
            let name = free_name(first, &base, taken);
            let shape = shapes[*output].dims.iter().copied();
            let batch = Shape::new(
                shapes[*output].dtype,
                [1].into_iter().chain(shape).collect::<Vec<_>>(),
            );
            named.push(NamedMetric {
                name,
                output: *output,
                metric: metric.clone().bound(self.loss_of(*output), &batch),
                weighted,
            });
        }
        named
    }

    /// Refuses settings that make no sense, and losses or metrics of outputs that the model does not have.
    pub(super) fn check(&self, model: &Model) -> Result<()> {
        self.optimizer.check()?;
        let variables = model.variables().iter();
        let paths: Vec<&str> = variables.map(|variable| variable.name.as_str()).collect();
        self.optimizer.check_factors(&paths)?;
        self.loss_scale.check()?;
        if self.steps_per_execution == 0 {
            return Err(Error::user(
                "`steps_per_execution` is 0, expected 1 or more; 1 is a program for each step",
            ));
        }
        let outputs = model.outputs().len();
        for term in &self.loss.terms {
            term.loss.check()?;
            check_output("loss", term.loss.name(), term.output, outputs)?;
            if !term.weight.is_finite() {
                let (name, weight) = (term.loss.name(), term.weight);
                return Err(Error::user(format!(
                    "loss `{name}` has the weight {weight}; expected a finite number"
                )));
            }
        }
        for metric in self.metrics.iter().chain(&self.weighted_metrics) {
            metric.metric.check()?;
            check_output("metric", metric.metric.name(), metric.output, outputs)?;
        }
        self.check_log_names(model)
    }

    /// Refuses names that other results have in the logs.
    fn check_log_names(&self, model: &Model) -> Result<()> {
        const TAKEN: [&str; 3] = [
            LossScale::SCALE,
            LossScale::SKIPPED_STEPS,
            Logs::LEARNING_RATE,
        ];
        let outputs = model.output_names();
        let metrics = self.named_metrics(&outputs, &model.outputs());
        let metrics = metrics.into_iter().map(|metric| metric.name);
        let mut names = self.loss.log_names(&outputs).into_iter().chain(metrics);
        let is_taken =
            |name: &String| name.starts_with(Logs::VALIDATION) || TAKEN.contains(&name.as_str());
        let Some(name) = names.find(is_taken) else {
            return Ok(());
        };
        Err(Error::user(format!(
            "the logs of a training would have two results `{name}`: names that begin with `val_` are of its validation, `loss_scale`, \
             `skipped_steps` and `learning_rate` its own; name the output otherwise, or the metric (`Metric::named`)"
        )))
    }

    fn loss_of(&self, output: usize) -> Option<&Loss> {
        let mut terms = self.loss.terms.iter();
        let term = terms.find(|term| term.output == output);
        term.map(|term| &term.loss)
    }
}

fn check_output(what: &str, name: &str, output: usize, outputs: usize) -> Result<()> {
    if output < outputs {
        return Ok(());
    }
    Err(Error::user(format!(
        "{what} `{name}` is of output {output}, but the model has {outputs}; outputs are counted from 0"
    )))
}

/// `values` of one example each as a weighted sum and the sum of the weights; what has no weight does not count, not
/// even as not a number.
#[track_caller]
pub(crate) fn weighted_sum(values: &Tensor, weight: Option<&Tensor>) -> (Tensor, Tensor) {
    let aligned = weight.and_then(|weight| crate::losses::aligned_weight(values, weight));
    match aligned {
        Some(weight) => {
            let weight = weight.broadcast_to(&values.dims());
            let weighted = crate::losses::weighted_or_zero(values, &weight);
            (weighted.sum_all(), weight.sum_all())
        }
        None => {
            let count = values.shape().len() as f64;
            let count = values.graph().scalar(values.dtype(), count);
            (values.sum_all(), count)
        }
    }
}
