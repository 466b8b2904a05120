//! A model that was trained, and the data it is used on: what evaluate and predict share.

use std::path::{Path, PathBuf};

use phalanx::checkpoint::TrainingState;
use phalanx::data::Dataset;
use phalanx::nn::Model;
use phalanx::saved::SavedModel;

use super::Context;
use super::buckets;
use super::session::{self, Session, failed, wrong};
use crate::args::UseArgs;
use crate::config::{Csv, Data, Images, Missing, Test, TrainConfig};
use crate::data_facts::{Facts, InputFact};
use crate::failure::{Exit, Failure};
use crate::files::{check_rereadable, check_target, read_by_training, read_of_run};
use crate::output::notice;
use crate::record::{self, Record};
use crate::run_folder::RunFolder;
use crate::{image_rows, model, rows, rows_to_predict};

/// What was trained, and on what it is used.
pub(crate) struct Used {
    pub(crate) config: TrainConfig,
    folder: RunFolder,
    record: Option<Record>,
    csv: Vec<PathBuf>,
    images: Option<PathBuf>,
    is_checkpoint: bool,
}

/// Finds out what was trained: from its folder, or from a training file, which must say of data what it said then.
pub(crate) fn used(args: &UseArgs) -> Result<Used, Failure> {
    let kept = |folder: &RunFolder| {
        let at = match args.checkpoint {
            true => folder.path().to_owned(),
            false => folder.model(),
        };
        Record::read(&at)
    };
    let (config, record) = if args.file.is_dir() {
        let folder = RunFolder::of(args.output.as_deref().unwrap_or(&args.file)).or_of_model();
        let record = kept(&folder)?.ok_or_else(|| nothing_trained(&folder))?;
        let mut config = record.config().map_err(wrong)?;
        folder.path().clone_into(&mut config.output);
        (config, Some(record))
    } else if !args.file.exists() {
        let message = format!(
            "there is neither a folder nor a file {}",
            args.file.display()
        );
        return Err(Failure::new(Exit::Usage, message)
            .next("give the folder that `phalanx train` named as logs, or the training file"));
    } else {
        let mut config = session::config(&args.file, &[])?;
        if let Some(output) = &args.output {
            config.output.clone_from(output);
        }
        let record = kept(&RunFolder::of_config(&config).or_of_model())?;
        if let Some(record) = &record {
            let names_none = args.csv.is_empty() && args.images.is_none() && args.data.is_empty();
            record.check(&config, names_none)?;
        }
        (config, record)
    };
    let folder = RunFolder::of_config(&config).or_of_model();
    let (csv, images) = data_named(&config, args)?;
    Ok(Used {
        config: session::alone(config),
        folder,
        record,
        csv,
        images,
        is_checkpoint: args.checkpoint,
    })
}

impl Used {
    /// Refuses to write results over the training file, the rows or the model.
    pub(crate) fn check_target(&self, to: &Path, option: &str) -> Result<(), Failure> {
        let folder = &self.folder;
        let run = read_of_run(folder.path(), folder.model(), folder.checkpoint());
        let mut read = read_by_training(&self.config);
        read.extend(
            run.into_iter()
                .chain(self.csv.clone())
                .chain(self.images.clone()),
        );
        check_target(to, &read, option)
    }

    /// Copies what is read of buckets: the data that are named, else the training's; and the model, where a checkpoint is of it.
    pub(crate) fn fetch(&mut self, context: &Context) -> Result<(), Failure> {
        for path in self.csv.iter_mut().chain(&mut self.images) {
            *path = buckets::local(context, path)?;
        }
        if self.csv.is_empty() && self.images.is_none() {
            buckets::fetch_data(context, &mut self.config)?;
        }
        self.fetch_model(context)
    }

    /// Copies the model of a checkpoint where a bucket has it.
    pub(crate) fn fetch_model(&mut self, context: &Context) -> Result<(), Failure> {
        match self.is_checkpoint {
            true => buckets::fetch_model(context, &mut self.config),
            false => Ok(()),
        }
    }
}

/// The CSV files and the folder of images that are used in place of the test data.
fn data_named(
    config: &TrainConfig,
    args: &UseArgs,
) -> Result<(Vec<PathBuf>, Option<PathBuf>), Failure> {
    let (mut csv, mut images) = (args.csv.clone(), args.images.clone());
    match (&config.data, &args.data[..]) {
        (Data::Csv(_), paths) => csv.extend_from_slice(paths),
        (Data::Images(_) | Data::Examples(_), []) => {}
        (Data::Examples(_), [path, ..]) => {
            let message = format!(
                "the model is of files of examples, and {} is a path of others",
                path.display()
            );
            return Err(Failure::new(Exit::Usage, message).next(
                "name the files as `test` of data in the training file, and give that file",
            ));
        }
        (Data::Images(_), [path]) => images = Some(path.clone()),
        (Data::Images(_), [_, second, ..]) => {
            let message = format!(
                "the model is of images, and {} is a second folder",
                second.display()
            );
            return Err(Failure::new(Exit::Usage, message).next("name one folder of images"));
        }
    }
    Ok((csv, images))
}

fn nothing_trained(folder: &RunFolder) -> Failure {
    let shown = folder.path().display();
    let message = format!("{shown} has no trained model with a training.json");
    let next = match folder.has_checkpoint().unwrap_or(false) {
        true => "use its checkpoint with --checkpoint, or go on with the training with --resume",
        false => {
            "give the folder that `phalanx train` named as logs, or the training file; for a model that a program saved, a training file that says what its data are, with --output and this folder"
        }
    };
    Failure::new(Exit::Usage, message).next(next)
}

impl Used {
    /// The model on a device.
    pub(crate) fn start(&self, context: &Context) -> Result<(Session, Facts), Failure> {
        let session = match self.is_checkpoint {
            true => self.of_checkpoint(context)?,
            false => self.of_model(context)?,
        };
        let facts = match &self.record {
            Some(record) => record.facts.clone(),
            None => self.guessed_facts(&session)?,
        };
        Ok((session, facts))
    }

    fn of_model(&self, context: &Context) -> Result<Session, Failure> {
        Session::start(context, &self.config, self.saved(context)?)
    }

    /// The model with its values, on no device.
    pub(crate) fn saved(&self, context: &Context) -> Result<SavedModel, Failure> {
        if self.is_checkpoint {
            let state = self.newest_checkpoint()?;
            let model = state.saved_model(self.model()?);
            return model.map_err(|error| failed(&error));
        }
        self.warn_of_later_training(context);
        SavedModel::load(self.folder.model()).map_err(|error| {
            let file = self.config.origin.display();
            let next = match self.folder.has_checkpoint().unwrap_or(false) {
                true => {
                    "use the checkpoint with --checkpoint, or end the training with --resume".into()
                }
                false => format!(
                    "train it first with `phalanx train {file}`, or say where it is with --output"
                ),
            };
            Failure::of(Exit::Usage, &error).next(next)
        })
    }

    /// A training that replaces another keeps its model until it has one of its own, and may have failed before.
    fn warn_of_later_training(&self, context: &Context) {
        let (folder, model) = (self.folder.path(), self.folder.model());
        let begun = Record::read(folder).ok().flatten();
        if begun.is_some() && begun != self.record {
            context.warn(&format!(
                "{} is of a training with other settings than {} says: one that began later has not ended, and has no model yet",
                model.display(),
                folder.join(record::NAME).display()
            ));
        }
    }

    fn of_checkpoint(&self, context: &Context) -> Result<Session, Failure> {
        let state = self.newest_checkpoint()?;
        let mut session = self.untrained(context)?;
        let restored = session.trainer.set_training_state(&state);
        restored.map_err(|error| failed(&error))?;
        Ok(session)
    }

    fn newest_checkpoint(&self) -> Result<TrainingState, Failure> {
        let path = self.folder.checkpoint();
        let (state, left_out) =
            TrainingState::load_newest(&path).map_err(|error| failed(&error))?;
        if !left_out.is_empty() {
            notice(format_args!("warning: {}", left_out.join("; ")));
        }
        Ok(state)
    }

    /// The model as it was before its training.
    fn untrained(&self, context: &Context) -> Result<Session, Failure> {
        Session::start(context, &self.config, self.model()?)
    }

    /// The architecture, by the training file and what was found out about its data.
    fn model(&self) -> Result<Model, Failure> {
        let Some(record) = &self.record else {
            let path = self.folder.checkpoint();
            let message = format!("there is no training.json beside {}", path.display());
            return Err(Failure::new(Exit::Usage, message)
                .next("go on with the training with --resume, which writes one"));
        };
        model::of_data(&self.config, &record.facts).map_err(wrong)
    }

    /// What is kept of its training.
    pub(crate) const fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The model as it was before its training, and the rows to evaluate it on.
    pub(crate) fn to_follow(&self, context: &Context) -> Result<(Session, Dataset), Failure> {
        let session = self.untrained(context)?;
        let facts = self.record.as_ref().map(|record| record.facts.clone());
        let rows = self.labelled(context, &facts.unwrap_or_default())?;
        Ok((session, rows))
    }

    /// Of a model that was saved without a record.
    fn guessed_facts(&self, session: &Session) -> Result<Facts, Failure> {
        let mut facts = Facts::default();
        let mut inputs = session.trainer.model().inputs();
        facts.dims = inputs
            .next()
            .map(|(_, shape)| shape.dims)
            .unwrap_or_default();
        if let Data::Csv(csv) = &self.config.data {
            if !csv.inputs.value.is_empty() {
                self.guess_inputs(csv, session.trainer.model(), &mut facts)?;
            }
            if !csv.text.is_empty() {
                return Err(self.lacks("the words of the texts"));
            }
            if !csv.category.is_empty() {
                let is_hashed = csv.category.iter().all(|own| own.hash.is_some());
                return Err(self.lacks(match is_hashed {
                    true => "the columns whose names are hashed",
                    false => "the names of the categories",
                }));
            }
            if !csv.labels.value.is_empty() {
                return Err(self.lacks("the classes of the labels"));
            }
            if let Some(window) = &csv.window {
                facts.window = Some(window.into());
                facts.dims = facts.dims.split_off(1.min(facts.dims.len()));
            }
            facts.scaling.divide_by = csv.divide_by;
            facts.classes.clone_from(&csv.classes.value);
            if csv.standardize || csv.missing == Missing::Mean {
                return Err(self.lacks("the means of the columns"));
            }
            if let Missing::Number(number) = csv.missing {
                let features = facts.dims.iter().product();
                facts.scaling.fill = Some(vec![number as f32; features]);
            }
        }
        Ok(facts)
    }

    /// The inputs that the training file names, which must be the model's.
    fn guess_inputs(&self, csv: &Csv, model: &Model, facts: &mut Facts) -> Result<(), Failure> {
        if !csv.one_hot.value.is_empty() {
            return Err(self.lacks("the values of the one-hot columns"));
        }
        let inputs = csv.inputs.value.iter();
        let needed: Vec<&str> = model.inputs().map(|(name, _)| name).collect();
        if !needed
            .iter()
            .copied()
            .eq(inputs.clone().map(|input| &*input.name))
        {
            let message = format!(
                "{} takes the inputs {}, which the training file does not name so",
                self.folder.model().display(),
                needed.join(", ")
            );
            return Err(Failure::new(Exit::Usage, message)
                .next("name the columns of these, in this order, by `inputs` of `data`"));
        }
        facts.inputs = inputs
            .map(|input| InputFact {
                name: input.name.clone(),
                columns: Vec::new(),
                width: (!input.is_index).then_some(input.columns.len()),
                text: None,
                category: None,
                length: None,
                any_length: false,
            })
            .collect();
        let numbers = facts.inputs.iter().filter_map(|input| input.width);
        facts.dims = vec![numbers.sum()];
        Ok(())
    }

    /// What only the record of the training has, which is not there.
    fn lacks(&self, what: &str) -> Failure {
        let folder = self.folder.model();
        let message = format!(
            "{} has no training.json, which has {what}",
            folder.display()
        );
        Failure::new(Exit::Usage, message).next("train again")
    }

    /// The rows or images named, or the test data, with labels.
    pub(crate) fn labelled(&self, context: &Context, facts: &Facts) -> Result<Dataset, Failure> {
        self.check_kind()?;
        match (&self.config.data, &self.images) {
            (Data::Images(images), Some(path)) => {
                image_rows::labelled(images, facts, path, |warning| context.warn(&warning))
                    .map_err(|error| failed(&error))
            }
            (Data::Images(_) | Data::Examples(_), _) => self.test_rows(),
            (Data::Csv(data), _) => {
                let files = self.files(data);
                let is_one_series = data.window.is_some() && files.len() > 1;
                if self.csv.is_empty() && (is_one_series || self.record.is_none()) {
                    // Without a record the training's files say what labels are.
                    return self.test_rows();
                }
                self.rows(&files, |path| {
                    let (rows, dropped) = rows::labelled(data, facts, path)?;
                    if dropped > 0 {
                        let path = path.display();
                        context.warn(&format!(
                            "{dropped} rows of {path} with missing values are left out"
                        ));
                    }
                    Ok(rows)
                })
            }
        }
    }

    /// The rows or images named, or the test data; labels do not matter; with the names of images.
    pub(crate) fn to_predict(
        &self,
        context: &Context,
        facts: &Facts,
    ) -> Result<(Dataset, Option<Vec<String>>), Failure> {
        self.check_kind()?;
        let images = match (&self.config.data, &self.images) {
            (Data::Images(images), Some(path)) => Some(
                image_rows::to_predict(images, path, |warning| context.warn(&warning))
                    .map_err(|error| failed(&error))?,
            ),
            (Data::Images(images), None) => self.test_images(images)?,
            (Data::Examples(_), _) => None,
            (Data::Csv(data), _) => {
                let read = |path: &Path| rows_to_predict::to_predict(data, facts, path);
                return Ok((self.rows(&self.files(data), read)?, None));
            }
        };
        match images {
            Some((images, names)) => Ok((images, Some(names))),
            None => Ok((self.test_rows()?, None)),
        }
    }

    /// The files of rows that are used, which need no row of the training: those named, or the test's own; none where the test is a part of
    /// the training's rows, which is divided as there.
    fn files(&self, data: &Csv) -> Vec<PathBuf> {
        match data.test.as_ref().map(|test| &test.value) {
            Some(Test::Csv(files)) if self.csv.is_empty() => {
                files.iter().map(|file| file.value.clone()).collect()
            }
            _ => self.csv.clone(),
        }
    }

    fn test_images(&self, images: &Images) -> Result<Option<(Dataset, Vec<String>)>, Failure> {
        let facts = self.record.as_ref().map(|record| &record.facts);
        image_rows::test_to_predict(&self.config, images, facts)
            .map_err(|problem| wrong(self.config.problems(vec![problem])))
    }

    /// Whether what is named is of the kind that the model trained on.
    fn check_kind(&self) -> Result<(), Failure> {
        let (what, next) = match (&self.config.data, &self.images) {
            (Data::Images(_), None) if !self.csv.is_empty() => (
                "images, and --csv names rows",
                "name a folder of images with --images",
            ),
            (Data::Examples(_), _) if !self.csv.is_empty() || self.images.is_some() => (
                "files of examples, and others are named",
                "name them as `test` of data in the training file",
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

    fn rows(
        &self,
        files: &[PathBuf],
        read: impl Fn(&Path) -> phalanx::Result<Dataset>,
    ) -> Result<Dataset, Failure> {
        let mut all: Option<Dataset> = None;
        for path in files {
            let next = check_rereadable(path).and_then(|()| read(path));
            let next = next.map_err(|error| failed(&error))?;
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
        let facts = self.record.as_ref().map(|record| &record.facts);
        let rows = rows::load_as(&self.config, facts).map_err(wrong)?;
        if rows.dropped > 0 {
            notice(format_args!(
                "warning: {} rows with missing values are left out",
                rows.dropped
            ));
        }
        rows.test.ok_or_else(|| {
            let file = self.config.origin.display();
            let data = &self.config.data;
            let (what, named) = match data {
                Data::Images(_) => ("images", "name a folder with --images, or "),
                Data::Examples(_) => ("examples", ""),
                Data::Csv(_) => ("rows", "name a file with --csv, or "),
            };
            let message = format!("{file} has no test {what}");
            let example = data.test_example();
            Failure::new(Exit::Usage, message).next(format!(
                "{named}add `test: {example}` to data and train again"
            ))
        })
    }
}
