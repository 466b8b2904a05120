//! What is kept of a training beside its model, and checked where the model is used: `training.json`.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::config::{
    self, Csv, Data, ExampleParts, Examples, FeatureInput, ImageSettings, ImageTest, InputFeatures,
    Problems, Test, TrainConfig,
};
use crate::data_facts::Facts;
use crate::failure::{Exit, Failure};
use crate::held_out::{Differing, HeldOut};
use crate::windows::WindowFact;

/// The name of the file.
pub(crate) const NAME: &str = "training.json";
/// The version of its form.
const VERSION: u32 = 1;
/// The most bytes of one: a training file, columns with their means, and the words of texts.
const MAX_BYTES: u64 = 64 << 20;
/// What keys are that a training file leaves out.
const ABSENT: &str = "not given";
const ALL_COLUMNS: &str = "all columns but the label";
const A_COLUMN_EACH: &str = "a number of each column";

/// A training: its file with what the command line changed, and what was found out about its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The version of this form.
    version: u32,
    /// The version of the program.
    phalanx: String,
    /// The training file, from the root of the file system: relative paths of data start at its folder.
    file: PathBuf,
    /// Its text.
    text: String,
    /// What the command line set in it.
    overrides: Vec<String>,
    /// The devices that the command line named in place of the ones in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    devices: Option<String>,
    /// The number of workers, where several trained together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workers: Option<usize>,
    /// The seed, also where the file does not name one.
    seed: u64,
    /// What is known of the data.
    pub(crate) facts: Facts,
}

impl Record {
    /// The record of a training.
    pub(crate) fn new(config: &TrainConfig, facts: &Facts) -> Self {
        Self {
            version: VERSION,
            phalanx: env!("CARGO_PKG_VERSION").to_owned(),
            file: std::path::absolute(&config.origin).unwrap_or_else(|_| config.origin.clone()),
            text: config.text.clone(),
            overrides: config.overrides.clone(),
            devices: None,
            workers: None,
            seed: config.fit.seed,
            facts: facts.clone(),
        }
    }

    /// The same with where the training runs: on devices that the command line named, with other workers.
    #[must_use]
    pub(crate) fn on(self, devices: Option<String>, workers: Option<usize>) -> Self {
        Self {
            devices,
            workers,
            ..self
        }
    }

    /// Where the training ran, by the names that the settings of trainings have where they are compared.
    pub(crate) fn places(&self) -> impl Iterator<Item = (String, String)> {
        let devices = self.devices.clone();
        let workers = self.workers.map(|workers| workers.to_string());
        let all = [("devices", devices), ("workers", workers)];
        all.into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    }

    /// Writes it into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(NAME);
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other);
        if let Ok(text) = &text
            && text.len() as u64 >= MAX_BYTES
        {
            let message = format!(
                "{} would have {} bytes, more than the {MAX_BYTES} that are read",
                path.display(),
                text.len()
            );
            return Err(Failure::new(Exit::Usage, message).next(
                "write a smaller `vocabulary` in `text` or `category`, or name fewer columns",
            ));
        }
        text.and_then(|text| replace(&path, &(text + "\n")))
            .map_err(|error| {
                let message = format!("cannot write {}: {error}", path.display());
                Failure::new(Exit::Failed, message).next("choose another folder with --output")
            })
    }

    /// Reads the record of a folder; nothing where there is none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, Failure> {
        let path = folder.join(NAME);
        let Ok(file) = fs::File::open(&path) else {
            return Ok(None);
        };
        let damaged = |why: String| {
            let message = format!("{} cannot be used: {why}", path.display());
            Failure::new(Exit::Usage, message).next("copy the file again, or train again")
        };
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| damaged(error.to_string()))?;
        let record: Self =
            serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if record.version != VERSION {
            let version = record.version;
            return Err(damaged(format!(
                "it is of version {version}, and this program reads {VERSION}"
            )));
        }
        Ok(Some(record))
    }

    /// The training file with what the command line changed, as a JSON document.
    pub(crate) fn document(&self) -> Result<Json, config::Problem> {
        config::document_with(&self.text, &self.overrides)
    }

    /// The configuration of the training.
    pub(crate) fn config(&self) -> Result<TrainConfig, Problems> {
        config::parse_with(self.text.as_bytes(), &self.file, &self.overrides)
    }

    /// What `config` asks for otherwise than this training did, and may not where the training goes on: the key, its value, and the one
    /// then. How numbers are scaled is such a key, and a test on a part of the rows that was not left out.
    pub(crate) fn other_on_resume(&self, config: &TrainConfig) -> Option<Differing> {
        // A file of a version that could say what this one cannot has none to compare.
        let trained = self.config().ok()?;
        let is_table = |data: &Data| matches!(data, Data::Csv(_));
        if is_table(&config.data) != is_table(&trained.data) {
            return Some(other_kind(&config.data, &trained.data));
        }
        let of_scaling = |data: &Data| -> Vec<_> {
            let keys = match data {
                Data::Csv(csv) => of_csv(csv),
                Data::Images(_) => Vec::new(),
                Data::Examples(examples) => of_examples(examples),
            };
            let keys = keys.into_iter();
            keys.filter(|(key, ..)| ["divide_by", "missing", "standardize"].contains(key))
                .collect()
        };
        let files = [document(config), self.document().unwrap_or_default()];
        let (now, then) = (of_scaling(&config.data), of_scaling(&trained.data));
        differing(&now, &then, files.each_ref())
            .or_else(|| HeldOut::of(&config.data).other(&HeldOut::of(&trained.data)))
    }

    /// Whether `config` reads data as this training did: another meaning of the numbers that the model is given would make its
    /// answers wrong without a word. Where it `tests` on the test data, a part of the rows must be the one that was left out.
    pub(crate) fn check(&self, config: &TrainConfig, tests: bool) -> Result<(), Failure> {
        let Ok(trained) = self.config() else {
            // The file was of a version that could say what this one cannot.
            return Ok(());
        };
        let files = [document(config), self.document().unwrap_or_default()];
        let differing =
            |now: &[MeaningKey], then: &[MeaningKey]| differing(now, then, files.each_ref());
        let seed = (drawn(&config.data), self.seed != config.fit.seed);
        let differs = match (&config.data, &trained.data) {
            _ if seed == (true, true) => {
                Some(("seed", config.fit.seed.to_string(), self.seed.to_string()))
            }
            (Data::Csv(now), Data::Csv(then)) => differing(&of_csv(now), &of_csv(then)),
            (Data::Images(now), Data::Images(then)) => {
                differing(&of_images(&now.settings), &of_images(&then.settings))
            }
            (Data::Examples(now), Data::Examples(then)) => {
                differing(&of_examples(now), &of_examples(then))
            }
            (now, then) => Some(other_kind(now, then)),
        };
        let differs = match tests {
            true => {
                differs.or_else(|| HeldOut::of(&config.data).other(&HeldOut::of(&trained.data)))
            }
            false => differs,
        };
        let Some((key, now, then)) = differs else {
            return Ok(());
        };
        let (file, folder) = (config.origin.display(), config.output.display());
        let message = format!(
            "`{key}` of {file} is {now}, and the model in {folder} was trained with {then}"
        );
        Err(Failure::new(Exit::Usage, message).next(format!(
            "give the folder in place of the file, which uses what the model was trained with: `{folder}`"
        )))
    }
}

/// A training file with what the command line changed; null where it cannot be one.
fn document(config: &TrainConfig) -> Json {
    config::document_with(&config.text, &config.overrides).unwrap_or_default()
}

/// Data of different kinds.
fn other_kind(now: &Data, then: &Data) -> Differing {
    let kind = |data: &Data| match data {
        Data::Csv(_) => "a table",
        Data::Images(_) => "a folder of images",
        Data::Examples(_) => "files of examples",
    };
    ("data", kind(now).to_owned(), kind(then).to_owned())
}

/// Writes a text in place of another: a disk that is full leaves the old one, without which a training does not go on.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let new = path.with_extension("json.new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| {
        // What is not there needs no removal.
        let _ = fs::remove_file(&new);
    })
}

/// Whether the test is drawn by the seed.
fn drawn(data: &Data) -> bool {
    match data {
        Data::Csv(csv) => csv
            .test
            .as_ref()
            .is_some_and(|test| matches!(test.value, Test::Split(_))),
        // The last examples are held out, whatever the seed.
        Data::Examples(_) => false,
        Data::Images(images) => {
            let test = images.test.as_ref();
            test.is_some_and(|test| matches!(test.value, ImageTest::Split(_)))
        }
    }
}

/// A key that says what the numbers of an example mean: its name, its value to compare, and what it is where a file leaves it out.
type MeaningKey = (&'static str, String, &'static str);

fn of_csv(csv: &Csv) -> Vec<MeaningKey> {
    let texts = csv.text.iter();
    let texts: Vec<_> = texts
        .map(|text| {
            let batches = batches_of(&text.buckets.value);
            (&text.column.value, &text.options, batches)
        })
        .collect();
    let categories = csv.category.iter();
    let categories: Vec<_> = categories
        .map(|own| (&own.column.value, own.vocabulary, own.min_count, own.hash))
        .collect();
    let weight = csv.weight.as_ref().map(|weight| &weight.value);
    let window = csv.window.as_ref().map(WindowFact::from);
    vec![
        ("divide_by", csv.divide_by.to_string(), "1"),
        (
            "features",
            format!("{:?}", csv.features.value),
            A_COLUMN_EACH,
        ),
        ("label", format!("{:?}", csv.label.value), "the last column"),
        ("label_type", format!("{:?}", csv.label_type), "class"),
        ("labels", format!("{:?}", csv.labels.value), ABSENT),
        ("weight", format!("{weight:?}"), ABSENT),
        ("columns", format!("{:?}", csv.columns), ALL_COLUMNS),
        ("inputs", format!("{:?}", csv.inputs.value), ABSENT),
        ("one_hot", format!("{:?}", csv.one_hot.value), ABSENT),
        ("text", format!("{texts:?}"), ABSENT),
        ("window", format!("{window:?}"), ABSENT),
        ("category", format!("{categories:?}"), ABSENT),
        ("classes", format!("{:?}", csv.classes.value), ABSENT),
        (
            "missing",
            format!("{:?}", csv.missing),
            "fail (the default)",
        ),
        ("standardize", csv.standardize.to_string(), "false"),
    ]
}

fn of_images(images: &ImageSettings) -> Vec<MeaningKey> {
    let plan = images.plan.without_augmentation();
    vec![
        ("image_size", format!("{:?}", plan.size), ABSENT),
        ("scale", format!("{:?}", plan.scale), "unit"),
        ("region", format!("{:?}", plan.region), "whole"),
    ]
}

/// Whether batches have one length, as the model has then: in which batches examples are says nothing of what their numbers mean.
const fn batches_of(buckets: &[usize]) -> &'static str {
    match buckets.is_empty() {
        true => "without buckets",
        false => "with buckets",
    }
}

fn of_input(input: &FeatureInput) -> String {
    let name = &input.name;
    match &input.of {
        InputFeatures::Sequence {
            feature,
            length,
            buckets,
        } => {
            let batches = batches_of(buckets);
            format!("{name}: {{feature: {feature}, length: {length}}} {batches}")
        }
        of => format!("{name}: {of:?}"),
    }
}

fn of_examples(examples: &Examples) -> Vec<MeaningKey> {
    let (key, input, label) = match &examples.parts {
        ExampleParts::All => ("input", String::new(), String::new()),
        ExampleParts::Named { input, label } => ("input", input.clone(), label.clone()),
        ExampleParts::Supervised { input, label } => {
            let named = |name: &Option<String>| name.clone().unwrap_or_default();
            ("input", named(input), named(label))
        }
        ExampleParts::Inputs { inputs, label } => {
            let inputs: Vec<_> = inputs.value.iter().map(of_input).collect();
            ("inputs", inputs.join(", "), label.clone())
        }
        ExampleParts::Columns { columns, label } => {
            ("columns", columns.join(", "), format!("{label:?}"))
        }
    };
    let mut keys = vec![
        ("divide_by", examples.divide_by.to_string(), "1"),
        (
            "features",
            format!("{:?}", examples.features.value),
            "as in the files",
        ),
        ("label_type", format!("{:?}", examples.label_type), "class"),
        (key, input, ABSENT),
        ("label", label, ABSENT),
    ];
    keys.extend(examples.images.iter().flat_map(of_images));
    keys
}

/// The first key that differs, as both training files have it.
fn differing(now: &[MeaningKey], then: &[MeaningKey], files: [&Json; 2]) -> Option<Differing> {
    let pairs = now.iter().zip(then).filter(|(now, then)| now.1 != then.1);
    let shown = |file: &Json, key: &MeaningKey| {
        let written = written(&file["data"], key.0);
        written.map_or_else(|| key.2.to_owned(), in_a_line)
    };
    let all = pairs.map(|(now, then)| (now.0, shown(files[0], now), shown(files[1], then)));
    let all: Vec<Differing> = all.collect();
    // Columns follow from inputs where these name them.
    let told = all.iter().find(|(_, now, then)| now != then);
    told.or(all.first()).cloned()
}

/// The value of a key in a section or one in it. Files to test on have keys of their own.
fn written<'a>(section: &'a Json, key: &str) -> Option<&'a Json> {
    let entries = section.as_object()?;
    let mut below = entries.iter().filter(|(name, _)| *name != "test");
    let own = entries.get(key);
    own.or_else(|| below.find_map(|(_, value)| written(value, key)))
}

/// A value as a training file has it in one line.
fn in_a_line(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(in_a_line).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| format!("{key}: {}", in_a_line(value));
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What differs between a file with these keys of its data, and one with others.
    fn told(now: &str, then: &str) -> Option<String> {
        let read = |keys: &str| {
            let data = format!("data: {{{keys}}}\n");
            let text = format!(
                "{data}model: [{{dense: {{units: 1}}}}]\noptimizer: adam\nloss: mse\nfit: {{epochs: 1, batch_size: 2}}\noutput: out\n"
            );
            let config = config::parse_with(text.as_bytes(), Path::new("t.yaml"), &[]);
            config.unwrap_or_else(|problems| panic!("{problems}"))
        };
        let keys = |data: &Data| match data {
            Data::Csv(csv) => of_csv(csv),
            Data::Images(images) => of_images(&images.settings),
            Data::Examples(examples) => of_examples(examples),
        };
        let [now, then] = [now, then].map(read);
        let files = [document(&now), document(&then)];
        let found = differing(&keys(&now.data), &keys(&then.data), files.each_ref());
        found.map(|(key, now, then)| format!("{key}: {now} | {then}"))
    }

    #[test]
    fn what_differs_is_told_as_it_is_written() {
        let csv = "csv: a.csv, test: {csv: b.csv}";
        for (now, then, expected) in [
            ("label: y", "", "label: y | the last column"),
            ("label: 2", "label: price", "label: 2 | price"),
            ("weight: w", "weight: v", "weight: w | v"),
            (
                "columns: [x, 2]",
                "",
                "columns: [x, 2] | all columns but the label",
            ),
            (
                "features: [2, 3]",
                "features: [3, 2]",
                "features: [2, 3] | [3, 2]",
            ),
            (
                "classes: [b, \"a b\"]",
                "classes: [a b, b]",
                "classes: [b, a b] | [a b, b]",
            ),
            ("label_type: value", "", "label_type: value | class"),
            ("one_hot: [kind]", "", "one_hot: [kind] | not given"),
            (
                "text: {column: review, length: 4}",
                "text: {column: review, length: 5}",
                "text: {column: review, length: 4} | {column: review, length: 5}",
            ),
            (
                "missing: fail, divide_by: 2",
                "divide_by: 4",
                "divide_by: 2 | 4",
            ),
        ] {
            let [now, then] = [now, then].map(|keys| format!("{csv}, {keys}"));
            assert_eq!(told(&now, &then).as_deref(), Some(expected));
            assert_eq!(told(&now, &now), None);
        }
        let records = "tfrecord: a, image_size: [2, 2]";
        let told = told(
            &format!("{records}, input: x, label: y"),
            &format!("{records}, input: z, label: y"),
        );
        assert_eq!(told.as_deref(), Some("input: x | z"));
    }

    #[test]
    fn a_text_that_cannot_be_written_leaves_the_one_before() {
        let folder = std::env::temp_dir().join(format!("record-{}", std::process::id()));
        let (path, new) = (folder.join(NAME), folder.join("training.json.new"));
        // Nothing can be written beside it.
        fs::create_dir_all(new.join("full")).unwrap();
        fs::write(&path, "old").unwrap();
        replace(&path, "old").unwrap();
        assert!(replace(&path, "new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::remove_dir_all(&new).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(!new.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
