//! The part of the rows that a training leaves out to test on: `training.json` says it, and each checkpoint, which may have moved without it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::{Callback, CallbackState};
use phalanx::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::{Data, ExampleTest, ImageTest, Test, TrainConfig};
use crate::data_facts::Facts;
use crate::split::check_parts;

/// By what checkpoints find it.
const KIND: &str = "held_out";

/// A key of a training file, its value, and the one of the training before.
pub(crate) type Differing = (&'static str, String, String);

/// The part that is left out, and what it is a part of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeldOut {
    part: Option<Part>,
    /// The key of the files of a table, and these in their order; none of other data.
    key: String,
    files: Vec<PathBuf>,
    /// Of how many examples the part is.
    examples: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Part {
    First(usize),
    Last(usize),
    Split(f64),
}

impl Part {
    fn of(data: &Data) -> Option<Self> {
        match data {
            Data::Csv(csv) => match csv.test.as_ref()?.value {
                Test::First(rows) => Some(Self::First(rows)),
                Test::Last(rows) => Some(Self::Last(rows)),
                Test::Split(share) => Some(Self::Split(share)),
                Test::Csv(_) => None,
            },
            Data::Images(images) => match images.test.as_ref()?.value {
                ImageTest::Split(share) => Some(Self::Split(share)),
                ImageTest::Folder(_) => None,
            },
            Data::Examples(examples) => match examples.test.as_ref()?.value {
                ExampleTest::Split(share) => Some(Self::Split(share)),
                ExampleTest::Files(_) => None,
            },
        }
    }

    /// As a training file has it.
    fn shown(self) -> String {
        match self {
            Self::First(rows) => format!("{{first: {rows}}}"),
            Self::Last(rows) => format!("{{last: {rows}}}"),
            Self::Split(share) => format!("{{split: {share}}}"),
        }
    }

    /// Whether all rows of this part are in another one.
    fn is_in(self, other: Self) -> bool {
        match (self, other) {
            (Self::First(own), Self::First(of)) | (Self::Last(own), Self::Last(of)) => own <= of,
            _ => self == other,
        }
    }
}

impl HeldOut {
    pub(crate) fn of(data: &Data) -> Self {
        let files = match data {
            Data::Csv(csv) => csv.csv.iter().map(|file| file.value.clone()).collect(),
            _ => Vec::new(),
        };
        let is_parquet = matches!(data, Data::Csv(csv) if csv.is_parquet);
        Self {
            part: Part::of(data),
            key: if is_parquet { "parquet" } else { "csv" }.to_owned(),
            files,
            examples: None,
        }
    }

    /// What tests on rows that the training `then` has not left out: another part, or one of files in another order.
    pub(crate) fn other(&self, then: &Self) -> Option<Differing> {
        let part = self.part?;
        if then.part.is_some_and(|then| part.is_in(then)) {
            return self.other_files(then);
        }
        let then = then.part.map(Part::shown);
        let then = then.unwrap_or_else(|| "no part of its rows left out".into());
        Some(("test", part.shown(), then))
    }

    /// Files in another order than then. Files that came or went are seen by the number of rows.
    fn other_files(&self, then: &Self) -> Option<Differing> {
        let both = self.files.len().min(then.files.len());
        let names = |all: &Self| names_in_order(&all.files[..both]);
        let (now, then) = (names(self), names(then));
        let shown = |names: &[String]| format!("[{}]", names.join(", "));
        let key = if self.key == "parquet" {
            "parquet"
        } else {
            "csv"
        };
        (now != then).then(|| {
            let now = format!("{}, of which `test` is a part", shown(&now));
            (key, now, shown(&then))
        })
    }
}

/// What files are called wherever their folder is, to which data may have moved: their names, below the folder that has all of them where two
/// have one name.
fn names_in_order(paths: &[PathBuf]) -> Vec<String> {
    let different: HashSet<_> = paths.iter().map(|path| path.file_name()).collect();
    let names = paths
        .iter()
        .map(|path| match different.len() == paths.len() {
            true => Path::new(path.file_name().unwrap_or_default()),
            false => below_common(path, paths),
        });
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// The end of a path that follows what all of them begin with.
fn below_common<'a>(path: &'a Path, all: &[PathBuf]) -> &'a Path {
    let mut above = path.ancestors().skip(1);
    let common = above.find(|folder| all.iter().all(|path| path.starts_with(folder)));
    let end = common.and_then(|folder| path.strip_prefix(folder).ok());
    end.unwrap_or(path)
}

/// Has checkpoints remember what was held out, and refuses to go on with another part.
pub(crate) struct HeldOutCheck {
    now: HeldOut,
    config: TrainConfig,
}

impl HeldOutCheck {
    pub(crate) fn new(config: &TrainConfig, facts: &Facts) -> Self {
        Self {
            now: HeldOut {
                examples: facts.examples,
                ..HeldOut::of(&config.data)
            },
            config: config.clone(),
        }
    }

    /// Refuses to go on from a checkpoint of a training with another part.
    pub(crate) fn check(&self, state: &TrainingState) -> Result<()> {
        let Some(then) = state.remembered(KIND) else {
            return Ok(());
        };
        let then = HeldOut::deserialize(then).map_err(|error| {
            Error::User(format!(
                "the checkpoint does not say what was held out: {error}; train without --resume"
            ))
        })?;
        if let Some((key, now, then)) = self.now.other(&then) {
            return Err(Error::User(format!(
                "`{key}` is {now}, and the checkpoint was trained with {then}; bring `{key}` back to what it was, or train without --resume"
            )));
        }
        let before = Facts {
            examples: then.examples,
            ..Facts::default()
        };
        check_parts(&self.config, &before, self.now.examples)
            .map_err(|problem| Error::User(self.config.problems(vec![problem]).to_string()))
    }
}

impl Callback for HeldOutCheck {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: json!(self.now),
            ..CallbackState::default()
        }
    }
}
