//! The examples of IDX, CIFAR and TFRecord files that a `train.yaml` speaks of.

use phalanx::DType;
use phalanx::data::{Dataset, Example, Feature, Features, HostTensor, TfRecordOptions};
use phalanx::{Error, Result as Read};

use crate::config::{
    ExampleFiles, ExampleTest, Examples, LabelType, Located, Position, Problem, TfFeatures,
    TrainConfig,
};
use crate::facts::Facts;
use crate::rows::{Rows, held_out, prepared};

/// The examples of files, in their order.
///
/// # Errors
/// Files that cannot be read or do not fit one another, or a split that leaves nothing, at the line that names them.
pub(crate) fn read(
    config: &TrainConfig,
    data: &Examples,
    known: Option<&Facts>,
) -> Result<Rows, Problem> {
    let wrong = |error: Error| unreadable(data.at, &error);
    let dims = match known {
        Some(known) => known.dims.clone(),
        None => dims(data).map_err(wrong)?,
    };
    let all = dataset(data, &data.files, &dims).map_err(wrong)?;
    let (rest, test) = match &data.test {
        None => (all, None),
        Some(Located { value, at }) => match value {
            ExampleTest::Files(files) => {
                let test = dataset(data, files, &dims).map_err(|error| unreadable(*at, &error))?;
                (all, Some(test))
            }
            ExampleTest::Split(fraction) => {
                let parts = all.validation_split(*fraction);
                let (rest, test) = parts
                    .map_err(|error| Problem::new(*at, error.to_string(), "change the fraction"))?;
                (rest, Some(test))
            }
        },
    };
    let (train, validation) = held_out(config, rest, test.as_ref(), |_| {
        let next = "write `validation: {split: 0.1}`, or `validation: test`";
        Err(Problem::new(
            data.at,
            "csv files do not go with these data",
            next,
        ))
    })?;
    Ok(Rows {
        train: prepared(config, &train)?,
        plain: train,
        validation,
        test,
        facts: Facts {
            dims,
            ..Facts::default()
        },
        dropped: 0,
    })
}

/// The dims of one example as the model sees them: as the file says, else as they are, with a channel for images without one.
fn dims(data: &Examples) -> Read<Vec<usize>> {
    if !data.features.value.is_empty() {
        return Ok(data.features.value.clone());
    }
    let first = raw(data, &data.files)?.get(0, 0)?;
    Ok(match *first.x[0].dims() {
        [height, width] => vec![height, width, 1],
        ref other => other.to_vec(),
    })
}

fn size(tensor: &HostTensor) -> usize {
    tensor.dims().iter().product()
}

/// Examples as the model takes them: f32, divided, in these dims.
fn dataset(data: &Examples, files: &ExampleFiles, dims: &[usize]) -> Read<Dataset> {
    let (dims, divide_by) = (dims.to_vec(), data.divide_by as f32);
    Ok(raw(data, files)?.map(move |example| {
        let x = &example.x[0];
        let expected: usize = dims.iter().product();
        if size(x) != expected {
            return Err(Error::User(format!(
                "an example has {} numbers, expected {expected} for the dims {dims:?}; correct `features`",
                size(x)
            )));
        }
        let values = x.convert(DType::F32).values::<f32>().unwrap_or_default();
        let values: Vec<f32> = values.iter().map(|value| value / divide_by).collect();
        Ok(Example {
            x: vec![HostTensor::new(dims.clone(), &values)],
            ..example
        })
    }))
}

/// Examples as the files have them.
fn raw(data: &Examples, files: &ExampleFiles) -> Read<Dataset> {
    match files {
        ExampleFiles::Idx { images, labels } => Dataset::from_idx(images, labels),
        ExampleFiles::Cifar { pattern, version } => Dataset::from_cifar(pattern, *version),
        ExampleFiles::TfRecord { pattern } => {
            let (names, kind) = (data.names.clone().unwrap_or_default(), data.label_type);
            Dataset::from_tf_examples(pattern, &TfRecordOptions::default(), move |features| {
                example(features, &names, kind)
            })
        }
    }
}

/// A `tf.train.Example`: a vector of numbers or of bytes, and a label.
fn example(features: &Features, names: &TfFeatures, kind: LabelType) -> Read<Example> {
    let x = match features.get(&names.input) {
        Some(Feature::Floats(values)) => HostTensor::new([values.len()], values),
        Some(Feature::Ints(values)) => HostTensor::new([values.len()], values),
        Some(Feature::Bytes(values)) if values.len() == 1 => {
            if let Some(format) = encoded(&values[0]) {
                return Err(Error::User(format!(
                    "the feature `{}` is a {format} file, expected its pixels; write the images to a folder for each class and use `image_folder`",
                    names.input
                )));
            }
            HostTensor::new([values[0].len()], &values[0])
        }
        Some(Feature::Bytes(values)) => {
            return Err(Error::User(format!(
                "the feature `{}` has {} strings, expected one of raw bytes",
                names.input,
                values.len()
            )));
        }
        None => return Err(absent(features, &names.input, "input")),
    };
    let y = match (kind, features.get(&names.label)) {
        (_, None) => return Err(absent(features, &names.label, "label")),
        (LabelType::Class, _) => {
            let class = features.ints(&names.label, 1)?[0];
            let class = i32::try_from(class).map_err(|_| {
                Error::User(format!(
                    "the label {class} is no class; write `label_type: value`"
                ))
            })?;
            HostTensor::scalar(class)
        }
        (LabelType::Value, Some(Feature::Ints(values))) if values.len() == 1 => {
            HostTensor::scalar(values[0] as f32)
        }
        (LabelType::Value, _) => HostTensor::scalar(features.floats(&names.label, 1)?[0]),
    };
    Ok(Example {
        x: vec![x],
        y: vec![y],
        weight: None,
    })
}

fn absent(features: &Features, name: &str, key: &str) -> Error {
    let there: Vec<&str> = features.iter().map(|(name, _)| name).collect();
    Error::User(format!(
        "an example has no feature `{name}`, only {}; write `{key}: NAME` in data",
        there.join(", ")
    ))
}

/// The format of an image file by its first bytes.
fn encoded(bytes: &[u8]) -> Option<&'static str> {
    let formats: [(&[u8], &str); 3] = [
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n", "PNG"),
        (b"RIFF", "WebP"),
    ];
    let found = formats
        .into_iter()
        .find(|(start, _)| bytes.starts_with(start));
    found.map(|(_, name)| name)
}

fn unreadable(at: Position, error: &Error) -> Problem {
    let next = match error {
        Error::Io { .. } => "correct the path; a relative one starts at the folder of this file",
        _ => "correct the files, or what `data` says of them",
    };
    Problem::new(at, error.to_string(), next)
}
