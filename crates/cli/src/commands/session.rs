//! A model on a device, as a `train.yaml` asks for it: what train, evaluate and predict share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx::Error;
use phalanx::data::{Batches, Dataset};
use phalanx::engine::EngineOptions;
use phalanx::fit::{Compile, Losses, OutputMetric, Trainer};
use phalanx::losses::Loss;
use phalanx::metrics::Metric;
use phalanx::nn::IntoModel;
use phalanx::optim::Optimizer;
use phalanx::replicas::DeviceChoice;
use phalanx::saved::SavedModel;
use phalanx::strategy::{NamedStrategy, Strategy};
use phalanx_pjrt::Platform;

use super::Context;
use crate::args::UseArgs;
use crate::config::{self, Csv, Data, Images, Located, Problem, Problems, TrainConfig};
use crate::failure::{Exit, Failure};
use crate::run_folder::RunFolder;
use crate::{image_rows, locate, output, rows};

/// A model on a device and what it was asked for.
pub(crate) struct Session {
    pub(crate) config: TrainConfig,
    pub(crate) trainer: Trainer,
}

/// Reads a `train.yaml`.
pub(crate) fn config(path: &Path) -> Result<TrainConfig, Failure> {
    let bytes = config::load(path).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format!("cannot read {}: {error}", path.display()),
        )
        .next("give the path of a train.yaml; examples/digits.yaml is one")
    })?;
    config::parse_bytes(&bytes, path).map_err(wrong)
}

/// Reads the `train.yaml` of a model that is used, not trained.
pub(crate) fn used(args: &UseArgs) -> Result<TrainConfig, Failure> {
    let mut config = config(&args.file)?;
    if let Some(output) = &args.output {
        config.output.clone_from(output);
    }
    Ok(config)
}

/// Mistakes in a `train.yaml`, which say what to do.
#[allow(clippy::needless_pass_by_value, reason = "the shape of map_err")]
pub(crate) fn wrong(problems: Problems) -> Failure {
    Failure::new(Exit::Usage, problems.to_string())
}

/// An error of the library, which says what to do.
pub(crate) fn failed(error: &Error) -> Failure {
    let exit = match error {
        Error::User(_) | Error::Data { .. } | Error::Graph(_) => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::of(exit, error)
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
        let trainer = start(context, &strategy)?.compile(model, compile);
        let session = Self {
            config: config.clone(),
            trainer: trainer.map_err(|error| failed(&error))?,
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

    /// The model that a training saved.
    pub(crate) fn resume(context: &Context, config: &TrainConfig) -> Result<Self, Failure> {
        let path = RunFolder::of(&config.output).model();
        let saved = SavedModel::load(&path).map_err(|error| {
            let file = config.origin.display();
            Failure::of(Exit::Usage, &error).next(format!(
                "train it first with `phalanx train {file}`, or say where it is with --output"
            ))
        })?;
        Self::start(context, config, saved)
    }

    /// Saves the model.
    pub(crate) fn save(&self, folder: &RunFolder) -> Result<(), Failure> {
        self.trainer
            .save(folder.model())
            .map_err(|error| failed(&error))
    }

    /// The rows in batches, in their order, to measure or to predict.
    pub(crate) fn batches(&self, rows: &Dataset) -> Batches {
        let batches = rows.batch(self.config.fit.batch_size);
        match self.config.data.images() {
            Some(images) => image_rows::to_measure(images, self.classes(), &batches),
            None => batches,
        }
    }

    /// The rows in batches to train on, made ahead.
    pub(crate) fn to_train(&self, rows: &Dataset) -> Batches {
        let batches = rows.batch(self.config.fit.batch_size);
        let seed = self.config.fit.seed;
        match self.config.data.images() {
            Some(images) => image_rows::to_train(images, seed, self.classes(), &batches),
            None => batches.prefetch(2),
        }
    }

    /// How many classes the model tells.
    fn classes(&self) -> usize {
        let outputs = self.trainer.model().outputs();
        let last = outputs.first().and_then(|shape| shape.dims.last());
        last.copied().unwrap_or(1)
    }

    /// The rows or images named, or those of the test, with labels.
    pub(crate) fn labelled(&self, args: &UseArgs) -> Result<Dataset, Failure> {
        self.check_kind(args)?;
        match (&self.config.data, &args.images) {
            (Data::Images(images), Some(path)) => {
                image_rows::labelled(images, path).map_err(|error| failed(&error))
            }
            (Data::Images(_), None) => self.test_rows(),
            (Data::Csv(data), _) => self.rows(data, &args.csv, rows::labelled),
        }
    }

    /// The rows or images named, or those of the test, of which labels do not matter; with the names of images.
    pub(crate) fn to_predict(
        &self,
        args: &UseArgs,
    ) -> Result<(Dataset, Option<Vec<String>>), Failure> {
        self.check_kind(args)?;
        let images = match (&self.config.data, &args.images) {
            (Data::Images(images), Some(path)) => {
                Some(image_rows::to_predict(images, path).map_err(|error| failed(&error))?)
            }
            (Data::Images(images), None) => self.test_images(images)?,
            (Data::Csv(data), _) => {
                return Ok((self.rows(data, &args.csv, rows::to_predict)?, None));
            }
        };
        match images {
            Some((images, names)) => Ok((images, Some(names))),
            None => Ok((self.test_rows()?, None)),
        }
    }

    fn test_images(&self, images: &Images) -> Result<Option<(Dataset, Vec<String>)>, Failure> {
        image_rows::test_to_predict(&self.config, images)
            .map_err(|problem| wrong(self.config.problems(vec![problem])))
    }

    /// Whether what is named is of the kind that the model trained on.
    fn check_kind(&self, args: &UseArgs) -> Result<(), Failure> {
        let (what, next) = match (&self.config.data, &args.images) {
            (Data::Images(_), None) if !args.csv.is_empty() => (
                "images, and --csv names rows",
                "name a folder of images with --images",
            ),
            (Data::Csv(_), Some(_)) => (
                "rows, and --images names images",
                "name a CSV file with --csv",
            ),
            _ => return Ok(()),
        };
        let file = self.config.origin.display();
        Err(Failure::new(Exit::Usage, format!("{file} trains on {what}")).next(next))
    }

    fn rows(&self, data: &Csv, csv: &[PathBuf], read: ReadRows) -> Result<Dataset, Failure> {
        let mut all: Option<Dataset> = None;
        for path in csv {
            let next = read(data, path, &self.features()).map_err(|error| failed(&error))?;
            all = Some(match all {
                None => next,
                Some(before) => before.concatenate(&next).map_err(|error| failed(&error))?,
            });
        }
        match all {
            Some(all) => Ok(all),
            None => self.test_rows(),
        }
    }

    fn test_rows(&self) -> Result<Dataset, Failure> {
        let rows = rows::load(&self.config).map_err(wrong)?;
        rows.test.ok_or_else(|| {
            let file = self.config.origin.display();
            let (what, next) = match &self.config.data {
                Data::Images(_) => (
                    "images",
                    "name a folder with --images, or add `test: {split: 0.1}` to data and train again",
                ),
                Data::Csv(_) => (
                    "rows",
                    "name a file with --csv, or add `test: {last: 100}` to data",
                ),
            };
            Failure::new(Exit::Usage, format!("{file} has no test {what}")).next(next)
        })
    }

    /// Dims of one example.
    fn features(&self) -> Vec<usize> {
        let mut inputs = self.trainer.model().inputs();
        inputs
            .next()
            .map(|(_, shape)| shape.dims)
            .unwrap_or_default()
    }
}

type ReadRows = fn(&Csv, &Path, &[usize]) -> phalanx::Result<Dataset>;

fn compile(config: &TrainConfig) -> Result<Compile, Problem> {
    let metrics = config
        .metrics
        .iter()
        .map(|metric| metric.make(Metric::from_config));
    let metrics = metrics.map(|metric| metric.map(OutputMetric::from));
    Ok(Compile {
        optimizer: config.optimizer.make(Optimizer::from_config)?,
        loss: Losses::from(config.loss.make(Loss::from_config)?),
        metrics: metrics.collect::<Result<_, _>>()?,
        seed: config.fit.seed,
        precision: config.precision,
        ..Compile::default()
    })
}

/// The strategy of the file on its devices, or on those of the command line.
fn strategy(context: &Context, config: &TrainConfig) -> Result<NamedStrategy, Problem> {
    let strategy = match &config.strategy {
        Some(component) => component.make(NamedStrategy::from_config)?,
        None => NamedStrategy::default(),
    };
    Ok(match &context.global.devices {
        Some(devices) => strategy.on_devices(devices.clone()),
        None => strategy,
    })
}

fn start(context: &Context, strategy: &NamedStrategy) -> Result<Box<dyn Strategy>, Failure> {
    let platform = strategy
        .devices()
        .map_or(Platform::Cpu, DeviceChoice::platform);
    let found = locate::plugin(&context.search, &context.global, platform)?;
    let quiet = context.global.quiet;
    let options = EngineOptions {
        plugin: Some(found.path),
        offline: context.global.offline,
        notice: Arc::new(move |line| {
            if !quiet {
                output::notice_over_bar(line);
            }
        }),
        ..EngineOptions::default()
    };
    strategy.start(options).map_err(|error| match error {
        Error::User(_) => failed(&error),
        _ => {
            Failure::of(Exit::NotReady, &error).next("run `phalanx doctor` to see what is missing")
        }
    })
}
