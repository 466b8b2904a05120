//! `train.yaml`: what to train, on what, and how.
//!
//! `keys` declares every key once; the parser, its messages, the JSON Schema (`schema`) and the tables of
//! `docs/train-yaml.md` (`reference`) are made of it. The library declares the settings of layers, losses, metrics,
//! optimizers and strategies in the same way. `aliases` has the spellings of Keras and PyTorch.
//!
//! Parsing touches no file. It collects every mistake, each with its position and what to do about it.

mod aliases;
mod bins;
mod categories;
mod component;
mod csv_characters;
mod example_table;
mod examples;
mod feature_inputs;
mod fine_tune;
mod fit;
mod fit_table;
mod images;
mod inputs;
pub mod json_schema;
mod keras_compile;
mod labels;
mod loss_scale;
mod overrides;
mod paths;
mod reader;
pub mod reference;
mod sections;
mod tensorboard;
mod texts;
mod training_file;
mod validation;
mod weights;
mod windows;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use phalanx::data::TfdsFolder;
use phalanx::fit::LossScale;

pub use categories::CsvCategory;
pub use component::Component;
pub use feature_inputs::{FeatureInput, InputFeatures};
pub use fine_tune::FirstWeights;
pub use fit::{Cloud, Fit, SaveFreq, Validation};
pub use inputs::CsvInput;
pub(crate) use inputs::{Source, name_of};
pub use keras_compile::left_to_keras;
pub(crate) use labels::other_outputs;
pub use labels::{CsvOutput, OfOutput};
pub use phalanx::config::Family;
pub use phalanx_yaml::{Position, Problem, Problems};
pub use texts::CsvText;
pub use windows::CsvWindow;

/// A whole `train.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainConfig {
    /// The file as the user named it.
    pub origin: PathBuf,
    /// Its text.
    pub text: String,
    /// What the command line set in it, as it was written: `fit.batch_size=64`.
    pub overrides: Vec<String>,
    /// What to train and test on.
    pub data: Data,
    /// What decides the examples of an epoch, as text that is the same for all ways to write it.
    pub data_text: String,
    /// What is trained.
    pub model: ModelSource,
    /// The values that the variables have first, where they are not random.
    pub first_weights: Option<FirstWeights>,
    /// The optimizer.
    pub optimizer: Component,
    /// The loss of each output, in their order.
    pub losses: Vec<OfOutput>,
    /// What the loss of each output counts in the total; empty where all count alike.
    pub loss_weights: Vec<f64>,
    /// The metrics.
    pub metrics: Vec<OfOutput>,
    /// Those in which weights count.
    pub weighted_metrics: Vec<OfOutput>,
    /// How to train.
    pub fit: Fit,
    /// What is called on the way.
    pub callbacks: Vec<Component>,
    /// What layers compute in.
    pub precision: phalanx::nn::Policy,
    /// What the loss is multiplied by, where the precision does not decide it.
    pub loss_scale: Option<Located<LossScale>>,
    /// On which devices, and how they work together.
    pub strategy: Option<Component>,
    /// Where the model and the logs go, from the working directory.
    pub output: PathBuf,
    /// Where checkpoints are, a folder or a URL, if not in the folder of the output.
    pub checkpoint: Option<PathBuf>,
}

/// Where the layers of a model are.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelSource {
    /// In the training file, first to last; at least one.
    Layers(Vec<Component>),
    /// In a file of Keras or the folder of a model.
    Saved(Located<PathBuf>),
}

impl TrainConfig {
    /// The layers that the file lists, first to last; none where it names a saved model.
    #[must_use]
    pub fn layers(&self) -> &[Component] {
        match &self.model {
            ModelSource::Layers(layers) => layers,
            ModelSource::Saved(_) => &[],
        }
    }

    /// The input whose lengths decide which examples are in a batch together, and the lengths that batches have, if they are by length.
    pub(crate) fn length_buckets(&self) -> Option<(usize, Vec<usize>)> {
        match &self.data {
            Data::Csv(csv) => csv.length_buckets(),
            Data::Examples(examples) => examples.length_buckets(),
            Data::Images(_) => None,
        }
    }

    /// Puts the names of logs in place of other spellings where a log is named: `val_mae` is `val_mean_absolute_error`.
    fn use_names_of_logs(&mut self) {
        let own = self.metrics.iter().chain(&self.weighted_metrics);
        let own = own.filter_map(|metric| metric.component.settings["name"].as_str());
        let own: Vec<String> = own.map(str::to_owned).collect();
        let outputs = self.outputs().to_vec();
        let name = |log: &str| {
            let written = log.strip_prefix("val_").unwrap_or(log);
            let written = labels::of_log(&outputs, written).unwrap_or(written);
            let prefix = &log[..log.len() - written.len()];
            let meant = component::metric(written).filter(|_| own.iter().all(|own| own != written));
            meant.map(|name| format!("{prefix}{name}"))
        };
        if let Some(log) = &mut self.fit.keep_best
            && let Some(name) = name(&log.value)
        {
            log.value = name;
        }
        for callback in &mut self.callbacks {
            if let Some(monitor) = callback.settings.get_mut("monitor")
                && let Some(name) = monitor.as_str().and_then(name)
            {
                *monitor = name.into();
            }
        }
    }

    /// Mistakes found later in what this file says.
    #[must_use]
    pub fn problems(&self, list: Vec<Problem>) -> Problems {
        Problems::new(&self.origin.display().to_string(), list)
    }
}

/// What to train and test on.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// The rows of CSV files.
    Csv(Csv),
    /// The images of a folder.
    Images(Images),
    /// The examples of IDX, NumPy, CIFAR, TFRecord, WebDataset or Parquet files.
    Examples(Examples),
}

impl Data {
    /// How images become examples, where the data are images.
    #[must_use]
    pub const fn images(&self) -> Option<&ImageSettings> {
        match self {
            Self::Images(images) => Some(&images.settings),
            Self::Examples(examples) => examples.images.as_ref(),
            Self::Csv(_) => None,
        }
    }

    /// A `test` that may be written for these data.
    pub(crate) const fn test_example(&self) -> &'static str {
        match self {
            Self::Images(_) | Self::Examples(_) => "{split: 0.1}",
            Self::Csv(csv) => match (csv.window.is_some(), csv.is_parquet) {
                (false, _) => "{split: 0.2}",
                (true, false) => "{last: 100}",
                (true, true) => "{parquet: test.parquet}",
            },
        }
    }
}

/// CSV files and how their rows become examples.
#[derive(Debug, Clone, PartialEq)]
pub struct Csv {
    /// CSV files of the same columns, read one after the other; at least one.
    pub csv: Vec<Located<PathBuf>>,
    /// Whether the key `parquet` names them, which has fewer kinds of tests.
    pub is_parquet: bool,
    /// Whether the first line names the columns; `None` to see.
    pub header: Option<bool>,
    /// The column of the label.
    pub label: Located<Label>,
    /// What the label is.
    pub label_type: LabelType,
    /// The column of the weights of rows.
    pub weight: Option<Located<Column>>,
    /// The character between fields.
    pub delimiter: char,
    /// The character before decimals.
    pub decimal: char,
    /// Dims of one example; empty for as many as there are feature columns.
    pub features: Located<Vec<usize>>,
    /// The columns of the features; empty for all but the label.
    pub columns: Vec<Column>,
    /// The inputs of a model that has several, whose columns are also in `columns`; empty for one of all features.
    pub inputs: Located<Vec<CsvInput>>,
    /// Columns of which each value is a feature of its own.
    pub one_hot: Located<Vec<Column>>,
    /// Columns of texts, which are inputs of their own.
    pub text: Vec<CsvText>,
    /// The windows of a time series, where rows are one.
    pub window: Option<CsvWindow>,
    /// Columns that name something, which are inputs of their own.
    pub category: Vec<CsvCategory>,
    /// The labels of a model with several outputs, in place of `label`; empty for one.
    pub labels: Located<Vec<CsvOutput>>,
    /// The labels of the classes as they stand in the file; empty for numbers from 0, or the texts that are found.
    pub classes: Located<Vec<String>>,
    /// Lines at the start of each file that are not read.
    pub skip_rows: usize,
    /// What is done about missing values.
    pub missing: Missing,
    /// Whether features are given mean 0 and deviation 1.
    pub standardize: bool,
    /// What every feature is divided by.
    pub divide_by: f64,
    /// What the trained model is tested on.
    pub test: Option<Located<Test>>,
}

/// A folder of images and how they become examples.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// The folder, with a folder for each class.
    pub folder: Located<PathBuf>,
    /// How they become examples.
    pub settings: ImageSettings,
    /// What the trained model is tested on.
    pub test: Option<Located<ImageTest>>,
}

/// How files of images become examples.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSettings {
    /// Size, scale and augmentation.
    pub plan: phalanx::image::ImagePipeline,
    /// How the images of a batch are mixed with one another, and their labels with them.
    pub mix: Option<Located<Mix>>,
    /// What is done about images that cannot be read.
    pub corrupt: phalanx::data::CorruptPolicy,
}

/// Files that hold examples, and how they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples {
    /// The files.
    pub files: ExampleFiles,
    /// The line of the section.
    pub at: Position,
    /// What of an example is read.
    pub parts: ExampleParts,
    /// How the images become examples, where the input is one.
    pub images: Option<ImageSettings>,
    /// What is done about records that cannot be read.
    pub corrupt: phalanx::data::CorruptPolicy,
    /// Dims of one example; empty for the dims that the files have.
    pub features: Located<Vec<usize>>,
    /// What the label is.
    pub label_type: LabelType,
    /// What every number of an example is divided by.
    pub divide_by: f64,
    /// What the trained model is tested on.
    pub test: Option<Located<ExampleTest>>,
}

impl Examples {
    /// The inputs that `data` names.
    pub(crate) fn inputs(&self) -> Option<&Located<Vec<FeatureInput>>> {
        match &self.parts {
            ExampleParts::Inputs { inputs, .. } => Some(inputs),
            _ => None,
        }
    }

    fn length_buckets(&self) -> Option<(usize, Vec<usize>)> {
        let inputs = self.inputs()?.value.iter().enumerate();
        let mut bucketed = inputs.filter_map(|(place, input)| match &input.of {
            InputFeatures::Sequence {
                length, buckets, ..
            } if !buckets.is_empty() => {
                let lengths = buckets.iter().chain([length]).copied();
                Some((place, lengths.collect()))
            }
            _ => None,
        });
        bucketed.next()
    }
}

/// Files that hold examples.
#[derive(Debug, Clone, PartialEq)]
pub enum ExampleFiles {
    /// Two IDX files, as of MNIST.
    Idx {
        /// The file of the images.
        images: PathBuf,
        /// The file of the labels.
        labels: PathBuf,
    },
    /// Two arrays of an archive that NumPy saved.
    Npz {
        /// The archive.
        file: PathBuf,
        /// The name of the array of the examples.
        input: String,
        /// The name of the array of their labels.
        label: String,
    },
    /// Two arrays that NumPy saved, each in a file.
    Npy {
        /// The file of the examples.
        input: PathBuf,
        /// The file of their labels.
        label: PathBuf,
    },
    /// The binary version of CIFAR.
    Cifar {
        /// A path or a pattern.
        pattern: String,
        /// How many classes it has.
        version: phalanx::data::Cifar,
    },
    /// TFRecord files of `tf.train.Example`.
    TfRecord {
        /// A path or a pattern.
        pattern: String,
    },
    /// A split of a folder of TensorFlow Datasets.
    Tfds {
        /// The folder of one version.
        folder: PathBuf,
        /// The name of the split.
        split: String,
        /// What the folder says, once it was read.
        opened: Option<Box<TfdsFolder>>,
    },
    /// WebDataset's tar files.
    WebDataset {
        /// A path or a pattern.
        pattern: String,
    },
    /// Parquet files of numbers.
    Parquet {
        /// A path or a pattern.
        pattern: String,
    },
}

/// What of an example is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExampleParts {
    /// All of it: the format says what the label is.
    All,
    /// Features of a `tf.train.Example`, or members of a tar file, by name.
    Named {
        /// What the model is given.
        input: String,
        /// The label.
        label: String,
    },
    /// Features of TensorFlow Datasets, by name where the file says it, else those that the dataset names for supervised training.
    Supervised {
        /// What the model is given.
        input: Option<String>,
        /// The label.
        label: Option<String>,
    },
    /// Features of a `tf.train.Example`, of which a model has several inputs.
    Inputs {
        /// What the model is given.
        inputs: Located<Vec<FeatureInput>>,
        /// The label.
        label: String,
    },
    /// Columns of a table.
    Columns {
        /// Those of the features; empty for all but the label.
        columns: Vec<String>,
        /// That of the label.
        label: Label,
    },
}

/// Examples that training does not see.
#[derive(Debug, Clone, PartialEq)]
pub enum ExampleTest {
    /// This fraction, from the end.
    Split(f64),
    /// Files of their own.
    Files(ExampleFiles),
}

/// How images of a batch are mixed, with the alpha of the distribution of shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mix {
    /// As [`phalanx::data::mix_up`].
    Up(f32),
    /// As [`phalanx::data::cut_mix`].
    Cut(f32),
}

/// Images that training does not see.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageTest {
    /// A fraction, drawn by the seed.
    Split(f64),
    /// A folder of its own with the same classes.
    Folder(PathBuf),
}

/// The column of the label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// There is none: outputs have labels of their own.
    None,
    /// The last.
    Last,
    /// The one at an index, from 0.
    Index(usize),
    /// The one that the header names so.
    Name(String),
}

/// A column of features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// The one at an index, from 0.
    Index(usize),
    /// The one that the header names so.
    Name(String),
}

/// What is done about missing values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Missing {
    /// They are errors.
    Fail,
    /// Their rows are left out.
    Drop,
    /// They become the mean of their column in the training rows.
    Mean,
    /// They become this number.
    Number(f64),
}

/// What the label is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelType {
    /// A class, a whole number from 0.
    Class,
    /// Any number.
    Value,
}

/// Rows that training does not see.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A fraction, drawn by the seed, of each class the same.
    Split(f64),
    /// So many of the first rows.
    First(usize),
    /// So many of the last rows.
    Last(usize),
    /// Files of their own.
    Csv(Vec<Located<PathBuf>>),
}

/// A value and where it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its place; where the value was left out, the place of the section.
    pub at: Position,
}

/// Reads the text of a `train.yaml`. `origin` is its path: the name in messages, and its folder is where paths of data start.
///
/// No file is touched.
///
/// # Errors
/// Every mistake found, with its place and what to do.
pub fn parse(text: &str, origin: &Path) -> Result<TrainConfig, Problems> {
    parse_bytes(text.as_bytes(), origin)
}

/// As [`parse`], of bytes that may be anything.
///
/// # Errors
/// As [`parse`].
pub fn parse_bytes(bytes: &[u8], origin: &Path) -> Result<TrainConfig, Problems> {
    parse_with(bytes, origin, &[])
}

/// As [`parse_bytes`], with other values for some keys: `fit.batch_size=64`.
///
/// # Errors
/// As [`parse`]; an override that names no place in the file, or whose value is no YAML.
pub fn parse_with(
    bytes: &[u8],
    origin: &Path,
    overrides: &[String],
) -> Result<TrainConfig, Problems> {
    let fail = |list| Problems::new(&origin.display().to_string(), list);
    let (mut root, problems) = phalanx_yaml::parse(bytes).map_err(|problem| fail(vec![problem]))?;
    for text in overrides {
        overrides::apply(&mut root, text).map_err(|problem| fail(vec![problem]))?;
    }
    let mut reader = reader::Reader { problems };
    let config = reader.train_config(&root, origin);
    match config {
        Some(config) if reader.problems.is_empty() => Ok(TrainConfig {
            text: String::from_utf8_lossy(bytes).into_owned(),
            overrides: overrides.to_vec(),
            ..config
        }),
        _ => Err(fail(reader.problems)),
    }
}

/// A file as the JSON document that the [schema](json_schema::schema) describes.
///
/// # Errors
/// Text that is not YAML, or has a number that is not finite.
pub fn document(text: &str) -> Result<serde_json::Value, Problem> {
    document_with(text, &[])
}

/// As [`document`], with other values for some keys: `fit.batch_size=64`.
///
/// # Errors
/// As [`document`]; an override that names no place in the file, or whose value is no YAML.
pub fn document_with(text: &str, overrides: &[String]) -> Result<serde_json::Value, Problem> {
    let (mut root, _) = phalanx_yaml::parse(text.as_bytes())?;
    for text in overrides {
        overrides::apply(&mut root, text)?;
    }
    let infinite = || Problem::new(root.at, "a number is not finite", "write a finite number");
    root.to_json().ok_or_else(infinite)
}

/// The bytes of a file, no more than are needed to see that it is too large.
///
/// # Errors
/// Those of the file system.
pub fn load(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = phalanx_yaml::MAX_BYTES as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
