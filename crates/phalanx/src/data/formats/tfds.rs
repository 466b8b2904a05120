//! Folders that TensorFlow Datasets writes: TFRecord files beside what describes them.
//!
//! `dataset_info.json` has the splits and the names of their files, `features.json` the features, and `NAME.labels.txt` the names of the classes
//! of the feature NAME (TensorFlow Datasets, `core/proto/dataset_info.proto` and `core/proto/feature.proto`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use phalanx_graph::{DType, HostTensor};
use serde_json::Value;

use super::files::{files_matching, io};
use super::records::placed;
use super::tf_example::in_item;
use super::{FeatureSpec, Features, Records, TfRecordOptions, TfRecords};
use crate::data::{Dataset, Example};
use crate::image::{Channels, Decoder, DecoderOptions, decode_png_16};
use crate::{Error, Result};

/// The file of the splits, and the one of the features.
const FILES: [&str; 2] = ["dataset_info.json", "features.json"];
/// What files are called where `dataset_info.json` does not say it.
const TEMPLATE: &str = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}";
/// The fewest digits of the number of a file.
const DIGITS: usize = 5;

/// A folder of one version of a dataset, as `tfds.builder(NAME).data_dir` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TfdsFolder {
    path: PathBuf,
    name: String,
    splits: BTreeMap<String, TfdsSplit>,
    features: BTreeMap<String, TfdsFeature>,
    supervised: Option<(String, String)>,
}

/// What `dataset_info.json` says of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TfdsSplit {
    template: String,
    files: usize,
    examples: usize,
}

/// What a feature is; sizes that differ between examples are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TfdsFeature {
    /// An image of bytes in a file of its own, `[rows, columns, channels]`: a tensor of u8.
    Image([Option<usize>; 3]),
    /// The same of a PNG file of 16 bits: a tensor of i32, which holds their numbers.
    Image16([Option<usize>; 3]),
    /// A class, a scalar of i32, with the names of all where they have some; -1 where it is not known.
    Class(Vec<String>),
    /// Integers or flags, i32 where these hold them all, else i64.
    Ints(DType, Vec<Option<usize>>),
    /// Floats, f32.
    Floats(Vec<Option<usize>>),
    /// A text, which [`TfdsFolder::texts`] reads: no tensor.
    Text,
    /// What is no tensor here, such as videos, in words.
    Other(String),
}

impl TfdsFolder {
    /// Reads what a folder says of its dataset.
    ///
    /// # Errors
    /// [`Error::Io`] for a file that cannot be read, and [`Error::Data`] for one that does not describe TFRecord files.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref();
        let [info, features] = FILES.map(|name| TfdsDescription::read(path, name));
        let (info, features) = (info?, features?);
        let format = info.text("fileFormat").unwrap_or("tfrecord");
        if format != "tfrecord" {
            return Err(info.wrong(&format!(
                "the files are of the format `{format}`, expected `tfrecord`; write the dataset again with `file_format=\"tfrecord\"`"
            )));
        }
        let splits = info.value["splits"].as_array();
        let splits = splits.into_iter().flatten().map(|split| info.split(split));
        Ok(Self {
            name: info.text("name").unwrap_or_default().to_owned(),
            splits: splits.collect::<Result<_>>()?,
            supervised: supervised(&info.value),
            features: features.features(path)?,
            path: path.to_owned(),
        })
    }

    /// The names of the splits, such as `train`.
    #[must_use]
    pub fn splits(&self) -> impl ExactSizeIterator<Item = &str> {
        self.splits.keys().map(String::as_str)
    }

    /// The features by their names, `outer/inner` where a feature has features.
    #[must_use]
    pub const fn features(&self) -> &BTreeMap<String, TfdsFeature> {
        &self.features
    }

    /// The feature that a model is given and the one that it learns (`supervised_keys`), if the dataset says so.
    #[must_use]
    pub fn supervised(&self) -> Option<(&str, &str)> {
        let (input, label) = self.supervised.as_ref()?;
        Some((input, label))
    }

    /// The pattern of the TFRecord files of a split, all of which are there.
    ///
    /// # Errors
    /// When there is no such split, or a file of it is missing.
    pub fn pattern(&self, split: &str) -> Result<String> {
        let of_split = self.split(split)?;
        let digits = DIGITS.max(of_split.files.to_string().len());
        let parts = [
            ("{DATASET}", glob::Pattern::escape(&self.name)),
            ("{SPLIT}", glob::Pattern::escape(split)),
            ("{FILEFORMAT}", "tfrecord".to_owned()),
            (
                "{SHARD_X_OF_Y}",
                format!("{}-of-{:0digits$}", "?".repeat(digits), of_split.files),
            ),
        ];
        let file = parts
            .iter()
            .fold(of_split.template.clone(), |file, (name, value)| {
                file.replace(name, value)
            });
        let folder = glob::Pattern::escape(&self.path.to_string_lossy());
        let pattern = format!("{folder}/{file}");
        let found = files_matching(&pattern)?.len();
        match found == of_split.files {
            true => Ok(pattern),
            false => Err(Error::User(format!(
                "{} has {found} of the {} files of the split `{split}`; copy the folder again",
                self.path.display(),
                of_split.files
            ))),
        }
    }

    /// How many examples a split has.
    ///
    /// # Errors
    /// When there is no such split.
    pub fn examples(&self, split: &str) -> Result<usize> {
        Ok(self.split(split)?.examples)
    }

    /// The examples of a split in the order of its files: x and y of the features that are named, each in its dims.
    ///
    /// ```no_run
    /// use phalanx::data::{TfRecordOptions, TfdsFolder};
    ///
    /// let folder = TfdsFolder::open("tensorflow_datasets/mnist/3.0.1")?;
    /// let train = folder.dataset("train", &["image"], &["label"], &TfRecordOptions::default())?;
    /// assert_eq!(train.get(0, 0)?.x[0].dims(), [28, 28, 1]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such split or feature, a feature is no tensor, or the files are not whole.
    pub fn dataset(
        &self,
        split: &str,
        inputs: &[&str],
        labels: &[&str],
        options: &TfRecordOptions,
    ) -> Result<Dataset> {
        let (inputs, labels) = (self.chosen(inputs)?, self.chosen(labels)?);
        let parse = move |features: &Features| {
            let tensors = |chosen: &[(String, TfdsFeature)]| -> Result<Vec<HostTensor>> {
                chosen
                    .iter()
                    .map(|(name, feature)| feature.tensor(name, features))
                    .collect()
            };
            Ok(Example {
                x: tensors(&inputs)?,
                y: tensors(&labels)?,
                weight: None,
            })
        };
        let data = Dataset::from_tf_examples(&self.pattern(split)?, options, parse)?;
        self.check_count(split, &data)?;
        Ok(data)
    }

    /// The texts of a feature in the order of the files, all at once: for [`TextVectorizer::adapt`](crate::data::TextVectorizer::adapt).
    ///
    /// # Errors
    /// When there is no such split or feature, it is no text or no UTF-8, or the files are not whole.
    pub fn texts(
        &self,
        split: &str,
        feature: &str,
        options: &TfRecordOptions,
    ) -> Result<Vec<String>> {
        if *self.feature(feature)? != TfdsFeature::Text {
            return Err(Error::User(format!(
                "the feature `{feature}` of {} is no text; read it with `TfdsFolder::dataset`",
                self.path.display()
            )));
        }
        let records = TfRecords::open(&self.pattern(split)?, options)?;
        let text = |i: usize| {
            let record = Features::parse(&records.get(i)?);
            let text = record.and_then(|features| text(&features, feature));
            text.map_err(|error| placed(&records, i, error))
        };
        let texts: Vec<String> = (0..records.len()).map(text).collect::<Result<_>>()?;
        self.check_number(split, texts.len())?;
        Ok(texts)
    }

    /// Refuses files that end before their last example, where none is known to be lost.
    ///
    /// # Errors
    /// When there is no such split, or it has another number of examples than `data`.
    pub fn check_count(&self, split: &str, data: &Dataset) -> Result<()> {
        match data.len().filter(|_| data.lost().is_empty()) {
            None => self.split(split).map(|_| ()),
            Some(found) => self.check_number(split, found),
        }
    }

    fn check_number(&self, split: &str, found: usize) -> Result<()> {
        let expected = self.examples(split)?;
        match found == expected {
            true => Ok(()),
            false => Err(Error::User(format!(
                "the files of the split `{split}` of {} have {found} examples, and {} says {expected}; copy the folder again",
                self.path.display(),
                FILES[0]
            ))),
        }
    }

    fn split(&self, split: &str) -> Result<&TfdsSplit> {
        self.splits.get(split).ok_or_else(|| {
            let there: Vec<&str> = self.splits().collect();
            Error::User(format!(
                "{} has no split `{split}`, only {}; name one of them",
                self.path.display(),
                there.join(", ")
            ))
        })
    }

    fn feature(&self, name: &str) -> Result<&TfdsFeature> {
        self.features.get(name).ok_or_else(|| {
            let there: Vec<&str> = self.features.keys().map(String::as_str).collect();
            Error::User(format!(
                "{} has no feature `{name}`, only {}; name one of them",
                self.path.display(),
                there.join(", ")
            ))
        })
    }

    fn chosen(&self, names: &[&str]) -> Result<Vec<(String, TfdsFeature)>> {
        let refused = |name: &str, what: &str, next: &str| {
            Err(Error::User(format!(
                "the feature `{name}` of {} is {what}, expected an image, a class or numbers; choose another, or {next}",
                self.path.display()
            )))
        };
        let of_name = |&name: &&str| match self.feature(name)? {
            TfdsFeature::Text => refused(
                name,
                "a text",
                "read it with `TfdsFolder::texts`; training files take texts of CSV and Parquet files",
            ),
            TfdsFeature::Other(what) => refused(
                name,
                what,
                "read the records with `Dataset::from_tf_examples`",
            ),
            found => Ok((name.to_owned(), found.clone())),
        };
        names.iter().map(of_name).collect()
    }
}

impl TfdsFeature {
    /// The tensor of an example.
    fn tensor(&self, name: &str, features: &Features) -> Result<HostTensor> {
        let numbers = |dtype, dims: &[Option<usize>]| {
            let fixed: Option<Vec<usize>> = dims.iter().copied().collect();
            let spec = match fixed {
                Some(dims) => FeatureSpec::fixed(name, dtype, dims),
                None => FeatureSpec::any_length(name, dtype),
            };
            Ok(features.example(&[spec], &[])?.x.remove(0))
        };
        let wrong = |message| in_item(&format!("feature `{name}`"), message);
        match self {
            Self::Image(dims) => decoded(features.bytes(name)?, dims).map_err(wrong),
            Self::Image16(dims) => decoded_16(features.bytes(name)?, dims).map_err(wrong),
            Self::Class(_) => numbers(DType::I32, &[]),
            Self::Ints(dtype, dims) => numbers(*dtype, dims),
            Self::Floats(dims) => numbers(DType::F32, dims),
            Self::Text | Self::Other(_) => Err(Error::Bug(format!("a tensor of {self:?}"))),
        }
    }
}

/// The pixels of a file, which have these dims; or what is wrong.
fn decoded(bytes: &[u8], dims: &[Option<usize>; 3]) -> std::result::Result<HostTensor, String> {
    let channels = match dims[2] {
        Some(1) => Channels::Gray,
        _ => Channels::Rgb,
    };
    let options = DecoderOptions {
        channels,
        ..DecoderOptions::default()
    };
    let pixels = Decoder::new(options)
        .decode(bytes)
        .map_err(|error| error.to_string())?;
    let found = [pixels.height, pixels.width, pixels.channels];
    check_dims(found, dims)?;
    Ok(HostTensor::new(found, &pixels.bytes))
}

/// The same of 16 bits.
fn decoded_16(bytes: &[u8], dims: &[Option<usize>; 3]) -> std::result::Result<HostTensor, String> {
    let pixels = decode_png_16(bytes, DecoderOptions::default().max_pixels);
    let (found, samples) = pixels.map_err(|error| error.to_string())?;
    check_dims(found, dims)?;
    let samples: Vec<i32> = samples.into_iter().map(i32::from).collect();
    Ok(HostTensor::new(found, &samples))
}

fn check_dims(found: [usize; 3], dims: &[Option<usize>; 3]) -> std::result::Result<(), String> {
    let mut pairs = dims.iter().zip(found);
    match pairs.all(|(dim, found)| dim.is_none_or(|dim| dim == found)) {
        true => Ok(()),
        false => Err(format!(
            "found an image of dims {found:?}, and features.json says {dims:?}; write the dataset again"
        )),
    }
}

/// The text of a feature.
fn text(features: &Features, name: &str) -> Result<String> {
    let text = std::str::from_utf8(features.bytes(name)?);
    text.map(str::to_owned).map_err(|error| {
        let message = format!("found no UTF-8 in a text: {error}; write the dataset again");
        in_item(&format!("feature `{name}`"), message)
    })
}

/// A file that describes the dataset.
struct TfdsDescription {
    path: PathBuf,
    value: Value,
}

impl TfdsDescription {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let text = fs::read(&path).map_err(|error| io(&path, "read", error))?;
        let read = serde_json::from_slice(&text);
        let why = read.as_ref().err().map(|error| format!(": {error}"));
        let described = Self {
            value: read.unwrap_or_default(),
            path,
        };
        match described.value.is_object() {
            true => Ok(described),
            false => {
                let why = why.unwrap_or_default();
                Err(described.wrong(&format!("found no JSON object{why}; copy the folder again")))
            }
        }
    }

    fn wrong(&self, message: &str) -> Error {
        Error::Data {
            source_name: self.path.display().to_string(),
            place: "description".to_owned(),
            message: message.to_owned(),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.value[key].as_str().filter(|text| !text.is_empty())
    }

    /// A split by its name.
    fn split(&self, split: &Value) -> Result<(String, TfdsSplit)> {
        let name = split["name"].as_str().unwrap_or_default();
        let lengths = split["shardLengths"].as_array();
        let lengths: Option<Vec<usize>> =
            lengths.and_then(|lengths| lengths.iter().map(whole).collect());
        let lengths = lengths.filter(|lengths| !lengths.is_empty()).ok_or_else(|| {
            self.wrong(&format!(
                "the split `{name}` does not say how many examples its files have (`shardLengths`); write the dataset again"
            ))
        })?;
        let template = split["filepathTemplate"]
            .as_str()
            .filter(|text| !text.is_empty());
        let template = template.unwrap_or(TEMPLATE);
        let is_known = |part: &str| {
            ["{DATASET}", "{SPLIT}", "{FILEFORMAT}", "{SHARD_X_OF_Y}"]
                .iter()
                .fold(part.to_owned(), |text, name| text.replace(name, ""))
        };
        // What names a file of another folder is no description of this one.
        let names = [template, name, self.text("name").unwrap_or_default()];
        if is_known(template).contains(['{', '}', '*', '?', '['])
            || !template.contains("{SHARD_X_OF_Y}")
            || names.iter().any(|name| name.contains(MAIN_SEPARATOR))
        {
            return Err(self.wrong(&format!(
                "the files of the split {name:?} are called {template:?}, expected names such as {TEMPLATE:?} in this folder; name the files by `tfrecord`"
            )));
        }
        let split = TfdsSplit {
            template: template.to_owned(),
            files: lengths.len(),
            examples: lengths
                .iter()
                .fold(0, |sum: usize, length| sum.saturating_add(*length)),
        };
        Ok((name.to_owned(), split))
    }

    fn features(&self, folder: &Path) -> Result<BTreeMap<String, TfdsFeature>> {
        let mut found = BTreeMap::new();
        add_features(&self.value, String::new(), folder, &mut found);
        match found.is_empty() {
            true => Err(self.wrong("found no feature (`featuresDict`); write the dataset again with TensorFlow Datasets of version 4.5 or later")),
            false => Ok(found),
        }
    }
}

/// Adds the features of a description, each under the name that it has in an example.
fn add_features(
    of: &Value,
    name: String,
    folder: &Path,
    found: &mut BTreeMap<String, TfdsFeature>,
) {
    let Some(inner) = of["featuresDict"]["features"].as_object() else {
        if !name.is_empty() {
            let feature = feature(of, &name, folder);
            found.insert(name, feature);
        }
        return;
    };
    for (key, of) in inner {
        let name = if name.is_empty() {
            key.clone()
        } else {
            format!("{name}/{key}")
        };
        add_features(of, name, folder, found);
    }
}

/// What a description says of a feature.
fn feature(of: &Value, name: &str, folder: &Path) -> TfdsFeature {
    let other = || {
        let class = of["pythonClassName"]
            .as_str()
            .unwrap_or("nothing that is known");
        TfdsFeature::Other(class.rsplit('.').next().unwrap_or(class).to_owned())
    };
    if of["classLabel"].is_object() {
        return TfdsFeature::Class(class_names(folder, name));
    }
    if let Some(image) = of.get("image") {
        let dims: Option<[Option<usize>; 3]> = dims(image).try_into().ok();
        let dtype = image["dtype"].as_str().unwrap_or("uint8");
        return match (dims.filter(|dims| matches!(dims[2], Some(1 | 3))), dtype) {
            (Some(dims), "uint8") => TfdsFeature::Image(dims),
            (Some(dims), "uint16") => TfdsFeature::Image16(dims),
            _ => TfdsFeature::Other(format!(
                "an image of {}, of dims {}",
                image["dtype"], image["shape"]["dimensions"]
            )),
        };
    }
    if let Some(sequence) = of.get("sequence") {
        let length = whole(&sequence["length"]);
        return match feature(&sequence["feature"], name, folder) {
            TfdsFeature::Ints(dtype, inner) if inner.is_empty() => {
                TfdsFeature::Ints(dtype, vec![length])
            }
            TfdsFeature::Floats(inner) if inner.is_empty() => TfdsFeature::Floats(vec![length]),
            TfdsFeature::Class(_) => TfdsFeature::Ints(DType::I32, vec![length]),
            _ => TfdsFeature::Other("a sequence of more than numbers".to_owned()),
        };
    }
    match (of.get("tensor"), of.get("text")) {
        (Some(tensor), _) if tensor["dtype"] == "string" && dims(tensor).is_empty() => {
            TfdsFeature::Text
        }
        (Some(tensor), _) => numbers(tensor).unwrap_or_else(other),
        (None, Some(_)) => TfdsFeature::Text,
        (None, None) => other(),
    }
}

/// A tensor that stands in the records as a list of numbers.
fn numbers(tensor: &Value) -> Option<TfdsFeature> {
    let is_plain = tensor["encoding"]
        .as_str()
        .is_none_or(|encoding| encoding == "none");
    let dims = dims(tensor);
    // Of one size alone it follows from the number of values.
    let is_known = dims.iter().all(Option::is_some) || dims.len() == 1;
    match tensor["dtype"].as_str().filter(|_| is_plain && is_known)? {
        "bool" | "int8" | "int16" | "int32" | "uint8" | "uint16" => {
            Some(TfdsFeature::Ints(DType::I32, dims))
        }
        "int64" | "uint32" | "uint64" => Some(TfdsFeature::Ints(DType::I64, dims)),
        "float16" | "bfloat16" | "float32" | "float64" => Some(TfdsFeature::Floats(dims)),
        _ => None,
    }
}

fn dims(of: &Value) -> Vec<Option<usize>> {
    let dims = of["shape"]["dimensions"].as_array();
    dims.into_iter().flatten().map(whole).collect()
}

/// A whole number from 0, which JSON of protocol buffers has as a text where it may have 64 bits.
fn whole(value: &Value) -> Option<usize> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok()),
    }
}

/// The names of the classes of a feature, a line each; none where they have no names.
fn class_names(folder: &Path, feature: &str) -> Vec<String> {
    let file = format!("{}.labels.txt", feature.replace('/', "-"));
    let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
    text.lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// The two features of `supervisedKeys`.
fn supervised(info: &Value) -> Option<(String, String)> {
    let keys = &info["supervisedKeys"];
    let old = [&keys["input"], &keys["output"]].map(|key| key.as_str());
    let items = keys["tuple"]["items"].as_array();
    let new = items.filter(|items| items.len() == 2).map(|items| {
        [
            items[0]["featureKey"].as_str(),
            items[1]["featureKey"].as_str(),
        ]
    });
    match new.unwrap_or(old) {
        [Some(input), Some(label)] => Some((input.to_owned(), label.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{test_folder, write_tfrecord};

    const GOLDEN: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/tensorflow_datasets/"
    );

    fn signs() -> PathBuf {
        Path::new(GOLDEN).join("signs/1.0.0")
    }

    /// The golden folder, copied to be changed.
    fn copied(name: &str) -> PathBuf {
        let folder = test_folder::create(name);
        for entry in fs::read_dir(signs()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        folder
    }

    fn expected() -> Value {
        let text = fs::read_to_string(format!("{GOLDEN}expected.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Every tensor of a split is as `tfds.as_numpy` has it.
    fn assert_as_tfds(folder: &TfdsFolder, split: &str, expected: &Value) {
        let is_tensor =
            |feature: &TfdsFeature| !matches!(feature, TfdsFeature::Text | TfdsFeature::Other(_));
        let names = folder.features().iter();
        let names: Vec<&str> = names
            .filter(|(_, feature)| is_tensor(feature))
            .map(|(name, _)| name.as_str())
            .collect();
        let data = folder
            .dataset(split, &names, &names[..1], &TfRecordOptions::default())
            .unwrap();
        let examples = expected.as_array().unwrap();
        assert_eq!(
            (data.len(), folder.examples(split).unwrap()),
            (Some(examples.len()), examples.len())
        );
        for (i, expected) in examples.iter().enumerate() {
            let example = data.get(0, i).unwrap();
            assert_eq!(expected.as_object().unwrap().len(), names.len());
            for (tensor, name) in example.x.iter().zip(&names) {
                let expected = &expected[*name];
                let dims: Vec<usize> = serde_json::from_value(expected["dims"].clone()).unwrap();
                let number = |value: &Value| match value {
                    Value::Bool(flag) => f64::from(u8::from(*flag)),
                    value => value.as_f64().unwrap(),
                };
                let values: Vec<f64> = expected["values"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(number)
                    .collect();
                let found = tensor.to_f64();
                // A record has floats of 32 bits, also of a feature of 64.
                assert_eq!(
                    (tensor.dims(), found),
                    (&dims[..], values),
                    "{split} {i} {name}"
                );
            }
            assert_eq!(example.y[0], example.x[0]);
        }
    }

    #[test]
    fn tensors_are_as_tensorflow_datasets_reads_them() {
        let expected = expected();
        let folder = TfdsFolder::open(signs()).unwrap();
        assert_eq!(folder.splits().collect::<Vec<_>>(), ["test", "train"]);
        assert_eq!(folder.supervised(), Some(("image", "label")));
        for split in ["train", "test"] {
            assert_as_tfds(&folder, split, &expected[format!("signs/{split}")]);
        }
        let plain = TfdsFolder::open(format!("{GOLDEN}plain/1.0.0")).unwrap();
        assert_eq!(plain.supervised(), None);
        assert_as_tfds(&plain, "train", &expected["plain/train"]);
    }

    #[test]
    fn features_are_what_the_dataset_says() {
        let folder = TfdsFolder::open(signs()).unwrap();
        let feature = |name: &str| folder.features()[name].clone();
        let names = ["stop", "go left", "Straße"].map(str::to_owned).to_vec();
        assert_eq!(feature("label"), TfdsFeature::Class(names));
        assert_eq!(feature("place/kind"), TfdsFeature::Class(Vec::new()));
        assert_eq!(
            feature("image"),
            TfdsFeature::Image([Some(6), Some(5), Some(1)])
        );
        assert_eq!(feature("photo"), TfdsFeature::Image([None, None, Some(3)]));
        assert_eq!(feature("size"), TfdsFeature::Floats(vec![Some(2), Some(3)]));
        assert_eq!(feature("number"), TfdsFeature::Ints(DType::I64, Vec::new()));
        assert_eq!(feature("words"), TfdsFeature::Ints(DType::I32, vec![None]));
        assert_eq!(feature("note"), TfdsFeature::Text);
    }

    /// Example `i` of the script has the text `note i` and `i` words.
    #[test]
    fn texts_are_of_the_examples_in_their_order() {
        let folder = TfdsFolder::open(signs()).unwrap();
        let options = TfRecordOptions::default();
        for (split, count) in [("train", 7), ("test", 3)] {
            let data = folder.dataset(split, &["words"], &[], &options).unwrap();
            let note = |i| format!("note {}", data.get(0, i).unwrap().x[0].rows());
            let expected: Vec<String> = (0..count).map(note).collect();
            assert_eq!(folder.texts(split, "note", &options).unwrap(), expected);
        }
        let error = folder.texts("train", "image", &options).unwrap_err();
        assert!(error.to_string().contains("`image`") && error.to_string().contains("is no text;"));
    }

    /// A folder of one split with one record, of features that are described so.
    fn one_record(name: &str, described: &str, record: &Features) -> Result<TfdsFolder> {
        let folder = test_folder::create(name);
        let info = r#"{"name": "one", "splits": [{"name": "train", "shardLengths": ["1"]}]}"#;
        fs::write(folder.join(FILES[0]), info).unwrap();
        let described = format!(r#"{{"featuresDict": {{"features": {{{described}}}}}}}"#);
        fs::write(folder.join(FILES[1]), described).unwrap();
        let mut bytes = Vec::new();
        write_tfrecord(&mut bytes, &record.to_bytes()).unwrap();
        fs::write(folder.join("one-train.tfrecord-00000-of-00001"), bytes).unwrap();
        TfdsFolder::open(&folder)
    }

    fn first(folder: &TfdsFolder, feature: &str) -> Result<HostTensor> {
        let data = folder.dataset("train", &[feature], &[], &TfRecordOptions::default())?;
        Ok(data.get(0, 0)?.x.remove(0))
    }

    #[test]
    fn images_of_16_bits_are_as_tensorflow_reads_them() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/tensorflow/png16.json"
        );
        let golden: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let list = |value: &Value| -> Vec<i32> { serde_json::from_value(value.clone()).unwrap() };
        for (name, golden) in golden.as_object().unwrap() {
            let png = list(&golden["png"])
                .iter()
                .map(|&byte| byte as u8)
                .collect();
            let dims: Vec<usize> = list(&golden["dims"])
                .iter()
                .map(|&dim| dim as usize)
                .collect();
            let image = |columns: usize| {
                let shape = format!(r#"["-1", "{columns}", "{}"]"#, dims[2]);
                format!(
                    r#""image": {{"image": {{"dtype": "uint16", "shape": {{"dimensions": {shape}}}}}}}"#
                )
            };
            let record = Features::new().with_bytes("image", vec![png]);
            let folder = one_record("tfds-16", &image(dims[1]), &record).unwrap();
            let expected = HostTensor::new(dims.clone(), &list(&golden["values"]));
            assert_eq!(first(&folder, "image").unwrap(), expected, "{name}");
            let folder = one_record("tfds-16", &image(9), &record).unwrap();
            let error = first(&folder, "image").unwrap_err().to_string();
            assert!(
                error.contains("and features.json says [None, Some(9), "),
                "{error}"
            );
        }
    }

    #[test]
    fn what_no_reader_follows_is_refused() {
        let record = Features::new().with_floats("x", vec![1.0]);
        let tensor = r#"{"tensor": {"dtype": "float32", "shape": {"dimensions": ["4294967296", "4294967296"]}}}"#;
        let folder = one_record("tfds-large", &format!(r#""x": {tensor}"#), &record).unwrap();
        let error = first(&folder, "x").unwrap_err().to_string();
        assert!(
            error.contains("numbers for the dims [4294967296, 4294967296]"),
            "{error}"
        );
        let one = r#"{"tensor": {"dtype": "float32", "shape": {}}}"#;
        let sequence = |of: &str| format!(r#"{{"sequence": {{"feature": {of}, "length": "-1"}}}}"#);
        let nested = format!(r#""x": {}"#, sequence(&sequence(one)));
        let folder = one_record("tfds-nested", &nested, &record).unwrap();
        let error = first(&folder, "x").unwrap_err().to_string();
        assert!(
            error.contains("is a sequence of more than numbers, expected an image,"),
            "{error}"
        );
        let deep = format!(
            r#""x": {}{one}{}"#,
            r#"{"sequence": {"feature": "#.repeat(100),
            "}}".repeat(100)
        );
        let error = one_record("tfds-deep", &deep, &record)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("found no JSON object: recursion limit exceeded at line 1"),
            "{error}"
        );
        let note = r#""note": {"text": {}}"#;
        let bytes = Features::new().with_bytes("note", vec![vec![b'a', 0xff]]);
        let folder = one_record("tfds-utf8", note, &bytes).unwrap();
        let error = folder
            .texts("train", "note", &TfRecordOptions::default())
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("record 0 at byte 0, feature `note`: found no UTF-8"),
            "{error}"
        );
    }

    #[test]
    fn what_is_missing_or_no_tensor_is_named() {
        let folder = TfdsFolder::open(signs()).unwrap();
        let error = |split: &str, inputs: &[&str]| {
            let read = folder.dataset(split, inputs, &["label"], &TfRecordOptions::default());
            read.unwrap_err().to_string()
        };
        assert!(
            error("validation", &["image"])
                .contains("has no split `validation`, only test, train; name one of them")
        );
        assert!(
            error("train", &["imgae"])
                .contains("has no feature `imgae`, only bytes, image, is_new,")
        );
        assert!(
            error("train", &["note"]).contains("the feature `note`")
                && error("train", &["note"]).contains("is a text, expected")
        );
        // A file or its end is gone.
        let path = copied("tfds-cut");
        let files = files_matching(&format!("{}/signs-train.tfrecord-*", path.display())).unwrap();
        assert_eq!(files.len(), 2);
        fs::remove_file(&files[1]).unwrap();
        let read = |path: &Path| {
            let folder = TfdsFolder::open(path)?;
            folder.dataset("train", &["image"], &["label"], &TfRecordOptions::default())
        };
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("has 1 of the 2 files of the split `train`"),
            "{error}"
        );
        fs::copy(&files[0], &files[1]).unwrap();
        fs::write(&files[1], []).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("examples, and dataset_info.json says 7"),
            "{error}"
        );
    }

    #[test]
    fn folders_that_do_not_describe_tfrecord_files_are_refused() {
        let path = copied("tfds-other");
        let error = || TfdsFolder::open(&path).unwrap_err().to_string();
        let info = fs::read_to_string(path.join("dataset_info.json")).unwrap();
        for (from, to, expected) in [
            (
                "\"fileFormat\": \"tfrecord\"",
                "\"fileFormat\": \"array_record\"",
                "of the format `array_record`, expected `tfrecord`",
            ),
            (
                "\"shardLengths\"",
                "\"lengths\"",
                "does not say how many examples its files have",
            ),
            ("{SHARD_X_OF_Y}", "{SHARD_INDEX}", "are called"),
            (
                "\"signs\"",
                "\"../signs\"",
                "in this folder; name the files by `tfrecord`",
            ),
            ("{", "[", "found no JSON object"),
        ] {
            assert!(info.contains(from), "{from}");
            fs::write(path.join("dataset_info.json"), info.replace(from, to)).unwrap();
            assert!(error().contains(expected), "{}", error());
        }
        fs::write(path.join("dataset_info.json"), info).unwrap();
        fs::write(
            path.join("features.json"),
            "{\"type\": \"x\", \"content\": {}}",
        )
        .unwrap();
        assert!(error().contains("found no feature"), "{}", error());
        fs::remove_file(path.join("features.json")).unwrap();
        assert!(error().contains("features.json"), "{}", error());
    }
}
