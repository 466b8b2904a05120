//! A model on a device, as a `train.yaml` asks for it: what all commands with one share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx::Error;
use phalanx::data::{Batches, Dataset};
use phalanx::engine::EngineOptions;
use phalanx::fit::preemption::PreemptionWatcher;
use phalanx::fit::{Compile, Losses, OutputMetric, StepEstimator, Trainer};
use phalanx::import::LoadWeights;
use phalanx::losses::Loss;
use phalanx::metrics::Metric;
use phalanx::nn::{IntoModel, Model};
use phalanx::optim::Optimizer;
use phalanx::replicas::DeviceChoice;
use phalanx::strategy::{NamedStrategy, Strategy};
use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_pjrt::{Platform, PluginSearch, idle_gpus};

use super::Context;
use crate::config::{
    self, Data, FirstWeights, Located, OfOutput, Position, Problem, Problems, TrainConfig,
};
use crate::data_facts::Facts;
use crate::failure::{Exit, Failure};
use crate::record::Record;
use crate::run_folder::RunFolder;
use crate::signals::Signals;
use crate::{image_rows, locate, output, preemption, texts};

/// A model on a device and what it was asked for.
pub(crate) struct Session {
    pub(crate) config: TrainConfig,
    pub(crate) trainer: Trainer,
}

/// Reads a `train.yaml`, with other values for some of its keys. What it leaves to the file of a Keras model counts as one of them.
pub(crate) fn config(path: &Path, overrides: &[String]) -> Result<TrainConfig, Failure> {
    let bytes = config::load(path).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format!("cannot read {}: {error}", path.display()),
        )
        .next("give the path of a train.yaml; examples/digits.yaml is one")
    })?;
    if is_saved_by_keras(&bytes) {
        let (shown, name) = (
            path.display(),
            path.file_name().unwrap_or_default().display(),
        );
        let why = format!("{shown} is a model as Keras saves it, expected a training file");
        let next =
            format!("write a train.yaml with `model: {name}` and with data, and give its path");
        return Err(Failure::new(Exit::Usage, why).next(next));
    }
    let of_keras = config::left_to_keras(&bytes, path, overrides).map_err(wrong)?;
    config::parse_with(&bytes, path, &[&of_keras, overrides].concat()).map_err(wrong)
}

/// Whether a file begins as `.keras`, a zip archive, or as `.h5` does.
fn is_saved_by_keras(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x89HDF\r\n\x1a\n")
}

/// The same training in one process: what was trained by several is evaluated and predicts as any other.
pub(crate) fn alone(mut config: TrainConfig) -> TrainConfig {
    let is_of_several = |name: &str| ["parameter_server", "multi_worker"].contains(&name);
    config.strategy = config
        .strategy
        .filter(|strategy| !is_of_several(&strategy.name));
    config
}

/// Mistakes in a `train.yaml`, which say what to do.
#[allow(clippy::needless_pass_by_value, reason = "the shape of map_err")]
pub(crate) fn wrong(problems: Problems) -> Failure {
    Failure::new(Exit::Usage, problems.to_string())
}

/// An error of the library, which says what to do.
pub(crate) fn failed(error: &Error) -> Failure {
    let exit = match error.exit_code() {
        2 => Exit::Usage,
        TRY_AGAIN => Exit::TryAgain,
        _ => Exit::Failed,
    };
    Failure::of(exit, error)
}

/// What a training step takes, known by its shapes alone; gives the configuration the batch size of all replicas.
pub(crate) fn estimator(
    context: &Context,
    config: &mut TrainConfig,
    model: impl IntoModel,
) -> Result<StepEstimator, Failure> {
    let at_fault = |problem| wrong(config.problems(vec![problem]));
    let compile = compile(config).map_err(at_fault)?;
    let strategy = strategy(context, config).map_err(at_fault)?;
    let strategy = start(context, &strategy)?;
    config.fit.resolve_batch_size(strategy.replicas_in_sync());
    let estimator = strategy.estimator(model, compile);
    estimator.map_err(|error| failed(&error))
}

impl Session {
    /// The model with first values, or with those it was saved with.
    pub(crate) fn start(
        context: &Context,
        config: &TrainConfig,
        model: impl IntoModel,
    ) -> Result<Self, Failure> {
        let at_fault = |problem| wrong(config.problems(vec![problem]));
        let compile = compile(config).map_err(at_fault)?;
        let strategy = strategy(context, config).map_err(at_fault)?;
        let strategy = start(context, &strategy)?;
        let mut config = config.clone();
        (config.fit).resolve_batch_size(strategy.replicas_in_sync());
        let trainer = strategy.compile(model, compile);
        let session = Self {
            trainer: trainer.map_err(|error| failed(&error))?,
            config,
        };
        session.check_mix().map_err(at_fault)?;
        Ok(session)
    }

    /// Whether the model tells the classes that images are mixed of.
    fn check_mix(&self) -> Result<(), Problem> {
        let images = self.config.data.images();
        match images.and_then(|images| images.mix.as_ref()) {
            Some(Located { at, .. }) if self.classes() < 2 => Err(Problem::new(
                *at,
                format!(
                    "mixed images have shares of several classes, and the model has {} output",
                    self.classes()
                ),
                "give the last layer a unit for each class, and the activation softmax",
            )),
            _ => Ok(()),
        }
    }

    /// Takes the values that the training file gives the variables first, for data of which `facts` are known.
    pub(crate) fn load_first_weights(
        &mut self,
        context: &mut Context,
        facts: &Facts,
    ) -> Result<(), Failure> {
        let Some(first) = self.config.first_weights.clone() else {
            return Ok(());
        };
        let options = LoadWeights {
            skip_mismatch: first.may_lack,
            ..LoadWeights::default()
        };
        let file = file_of_weights(&first.file.value);
        self.check_meanings(context, (&first, &file), facts)?;
        let loaded = self.trainer.load_weights(&file, options);
        let wrong = |message: String| {
            let next =
                "correct the path or the model; `fine_tune` takes what fits and leaves the rest";
            let problem = Problem::new(first.file.at, message, next);
            wrong(self.config.problems(vec![problem]))
        };
        let loaded = loaded.map_err(|error| wrong(error.to_string()))?;
        match context.global.shows_text() {
            true => context.output.line(loaded),
            false => Ok(()),
        }
    }

    /// Whether words, names and columns had the numbers that they have now where the weights were trained, if that is kept beside them.
    fn check_meanings(
        &self,
        context: &Context,
        (first, file): (&FirstWeights, &Path),
        facts: &Facts,
    ) -> Result<(), Failure> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let Some(mut before) = Record::read(folder)?.map(|record| record.facts) else {
            return Ok(());
        };
        if first.may_lack {
            // Classes may be others: what tells them apart learns it.
            before.classes.clear();
        }
        let Some(how) = before.other_numbers(facts) else {
            return Ok(());
        };
        let message = format!("{how} of {}", file.display());
        if first.may_lack {
            context.warn(&format!("{message}: a layer that takes them, and whose name and shape fit, begins with what was learnt of others; give it another `name` to begin anew"));
            return Ok(());
        }
        let next = "bring the data, and what `data` says of them, back to what they were, or take the weights by `fine_tune`, with another `name` for each layer that shall begin anew";
        let problem = Problem::new(first.file.at, message, next);
        Err(wrong(self.config.problems(vec![problem])))
    }

    /// Saves the model.
    pub(crate) fn save(&self, folder: &RunFolder) -> Result<(), Failure> {
        self.trainer
            .save(folder.model())
            .map_err(|error| failed(&error))
    }

    /// The rows in batches, in their order, to predict.
    pub(crate) fn in_order(&self, rows: &Dataset) -> Batches {
        measured(&self.config, self.classes(), rows)
    }

    /// The rows in batches to measure on.
    pub(crate) fn batches(&self, rows: &Dataset) -> Result<Batches, Failure> {
        let by_length = texts::by_length(&self.config, rows, None);
        let by_length = by_length.map_err(|error| failed(&error))?;
        Ok(by_length.unwrap_or_else(|| self.in_order(rows)))
    }

    /// The rows in batches to train on, made ahead.
    pub(crate) fn to_train(&self, rows: &Dataset) -> Result<Batches, Failure> {
        let (fit, seed) = (&self.config.fit, self.config.fit.seed);
        let by_length = texts::by_length(&self.config, rows, fit.shuffle.then_some(seed));
        let by_length = by_length.map_err(|error| failed(&error))?;
        let batches = by_length.unwrap_or_else(|| rows.batch(fit.batch_size));
        let batches = match self.config.data.images() {
            Some(images) => image_rows::to_train(images, seed, self.classes(), &batches),
            None if matches!(self.config.data, Data::Examples(_)) => batches.autotune(),
            None => batches.prefetch(2),
        };
        Ok(match fit.steps_per_epoch {
            Some(steps) => batches.epochs_of(steps),
            None => batches,
        })
    }

    /// How many classes the model tells.
    pub(crate) fn classes(&self) -> usize {
        classes_of(self.trainer.model())
    }
}

/// Rows in batches, in their order, for a model of this number of classes.
pub(crate) fn measured(config: &TrainConfig, classes: usize, rows: &Dataset) -> Batches {
    let batches = rows.batch(config.fit.batch_size);
    match config.data.images() {
        Some(images) => image_rows::to_measure(images, classes, &batches),
        None => batches,
    }
}

/// How many classes a model tells.
pub(crate) fn classes_of(model: &Model) -> usize {
    let outputs = model.outputs();
    let last = outputs.first().and_then(|shape| shape.dims.last());
    last.copied().unwrap_or(1)
}

/// The weights of a model where its folder is named.
fn file_of_weights(path: &Path) -> PathBuf {
    let inside = path.join("weights.safetensors");
    if inside.is_file() {
        inside
    } else {
        path.to_owned()
    }
}

fn compile(config: &TrainConfig) -> Result<Compile, Problem> {
    let made = |metrics: &[OfOutput]| {
        let made = metrics.iter().map(|of| {
            let metric = of.component.make(Metric::from_config)?;
            Ok(OutputMetric::of(of.output, metric))
        });
        made.collect::<Result<Vec<_>, Problem>>()
    };
    let mut losses = Losses::default();
    for OfOutput { output, component } in &config.losses {
        let weight = config.loss_weights.get(*output).copied();
        losses = losses.and(
            *output,
            component.make(Loss::from_config)?,
            weight.unwrap_or(1.0),
        );
    }
    Ok(Compile {
        loss_scale: config.scale_of_loss(),
        optimizer: config.optimizer.make(Optimizer::from_config)?,
        loss: losses,
        metrics: made(&config.metrics)?,
        weighted_metrics: made(&config.weighted_metrics)?,
        seed: config.fit.seed,
        precision: config.precision,
        steps_per_execution: config.fit.steps_per_execution,
    })
}

/// The strategy of the file, on its devices or the command line's.
fn strategy(context: &Context, config: &TrainConfig) -> Result<NamedStrategy, Problem> {
    let strategy = match &config.strategy {
        Some(component) => component.make(NamedStrategy::from_config)?,
        None => NamedStrategy::default(),
    };
    let strategy = match &context.global.devices {
        Some(devices) => strategy.on_devices(devices.clone()),
        None => strategy,
    };
    if context.worker.is_none() {
        return Ok(strategy);
    }
    let at = config.strategy.as_ref().map(|component| component.at);
    let in_cluster = strategy.in_cluster();
    in_cluster.map_err(|error| {
        Problem::new(
            at.unwrap_or(Position::START),
            error.to_string(),
            "see `phalanx env --explain`",
        )
    })
}

/// How long the other processes of a training wait for this one.
pub(crate) fn others_wait(context: &Context, config: &TrainConfig) -> Result<Duration, Failure> {
    let at_fault = |problem| wrong(config.problems(vec![problem]));
    let strategy = strategy(context, config).map_err(at_fault)?;
    let wait = strategy.others_wait(context.is_server());
    wait.map_err(|error| failed(&error))
}

/// Watches for what is to end this process: signals, and the notice of its cloud where that is asked for.
pub(crate) fn watch_for_end(
    context: &Context,
    config: &TrainConfig,
) -> Result<(Signals, Option<PreemptionWatcher>), Failure> {
    let signals = Signals::watch().map_err(|error| Failure::of(Exit::Failed, &error))?;
    let watch = |cloud| preemption::watch(cloud, &signals.stop, context.global.quiet);
    let watcher = config.fit.preemption_notice.map(watch).transpose();
    let watcher = watcher.map_err(|error| failed(&error))?;
    Ok((signals, watcher))
}

/// Serves as the parameter server that this process is, until the job ends: soon, where this process is to.
pub(crate) fn serve(context: &Context, config: &TrainConfig) -> Result<(), Failure> {
    let at_fault = |problem| wrong(config.problems(vec![problem]));
    let strategy = strategy(context, config).map_err(at_fault)?;
    let (signals, _watcher) = watch_for_end(context, config)?;
    match strategy.start_ending_when(engine_options(context, &strategy)?, &signals.stop) {
        Err(Error::Stopped(_)) if signals.stop.load(Ordering::Relaxed) => {
            let message = "the parameter server was asked to end, and so did its workers";
            Err(Failure::new(signals.exit(), message))
        }
        Err(Error::Stopped(_)) => Ok(()),
        Ok(_) => Err(Failure::new(
            Exit::Usage,
            "this process is a parameter server, and the strategy of the training has none",
        )
        .next("write `strategy: parameter_server`, or launch without --ps")),
        Err(error) => Err(failed(&error)),
    }
}

/// Starts the devices of a strategy. Where none are named these are the accelerators of this machine for which a plugin is found,
/// of the first kind that starts, and else the CPU; of several workers always the CPU.
fn start(context: &Context, strategy: &NamedStrategy) -> Result<Box<dyn Strategy>, Failure> {
    if strategy.devices().is_none() && context.global.plugin.is_none() {
        let unserved = context.search.unserved_gpus();
        if let Some(platform) = unserved.filter(|_| !context.global.quiet) {
            output::notice(format_args!("{}", idle_gpus(platform)));
        }
        for devices in accelerators(&context.search) {
            if strategy.name() == "multi_worker" && context.worker.is_some() {
                if !context.global.quiet {
                    output::notice(format_args!(
                        "{devices} is there and not used: several workers train on CPUs, unless `devices` names others"
                    ));
                }
                continue;
            }
            let named = strategy.clone().on_devices(devices.clone());
            match start_on(context, &named) {
                Ok(started) => {
                    if !context.global.quiet {
                        output::notice(format_args!(
                            "{devices} is used, which is there; --devices cpu trains on the CPU"
                        ));
                    }
                    return Ok(started);
                }
                Err(failure) if !context.global.quiet => output::notice(format_args!(
                    "warning: {devices} does not start and is not used: {}",
                    failure.message
                )),
                Err(_) => {}
            }
        }
    }
    start_on(context, strategy)
}

/// The kinds of accelerators for which there is a plugin.
fn accelerators(search: &PluginSearch) -> Vec<DeviceChoice> {
    let kinds = [
        (Platform::Cuda, "gpu"),
        (Platform::Rocm, "rocm"),
        (Platform::Tpu, "tpu"),
    ];
    let found = kinds.into_iter().filter(|(platform, _)| {
        let found = search.find(*platform, None);
        // What the user names is not passed over in silence.
        found.map_or_else(|missing| missing.named, |_| true)
    });
    found.filter_map(|(_, name)| name.parse().ok()).collect()
}

fn engine_options(context: &Context, strategy: &NamedStrategy) -> Result<EngineOptions, Failure> {
    let platform = strategy
        .devices()
        .map_or(Platform::Cpu, DeviceChoice::platform);
    let found = locate::plugin(&context.search, &context.global, platform)?;
    // What a parameter server says, such as whom it has refused, nobody else does.
    let quiet = context.global.quiet && !context.is_server();
    Ok(EngineOptions {
        plugin: Some(found.path),
        offline: context.global.offline,
        notice: Arc::new(move |line| {
            if !quiet {
                output::notice_over_bar(line);
            }
        }),
        ..EngineOptions::default()
    })
}

fn start_on(context: &Context, strategy: &NamedStrategy) -> Result<Box<dyn Strategy>, Failure> {
    let options = engine_options(context, strategy)?;
    strategy.start(options).map_err(|error| match error {
        Error::User(_) | Error::Cluster(_) => failed(&error),
        _ => {
            Failure::of(Exit::NotReady, &error).next("run `phalanx doctor` to see what is missing")
        }
    })
}
