//! The examples of IDX, NumPy, CIFAR, TFRecord, TensorFlow Datasets', WebDataset and Parquet files that a `train.yaml` speaks of.

use phalanx::DType;
use phalanx::data::{
    Dataset, Example, Feature, Features, HostTensor, Npz, Parquet, ParquetOptions, read_npy,
};
use phalanx::image::ImagePipeline;
use phalanx::{Error, Result as Read};

use crate::config::{
    ExampleFiles, ExampleParts, ExampleTest, Examples, Label, LabelType, Located, Position,
    Problem, TrainConfig,
};
use crate::data_facts::Facts;
use crate::encoded;
use crate::feature_rows;
use crate::rows::{Rows, held_out, label_column, label_kind, prepared};
use crate::split::check_test;
use crate::tfds_rows;

/// The examples of files, in their order, with augmentation for those to train on.
///
/// # Errors
/// Files that cannot be read or do not fit one another, or a split that leaves nothing, at the line that names them.
pub(crate) fn read(
    config: &TrainConfig,
    data: &Examples,
    known: Option<&Facts>,
) -> Result<Rows, Problem> {
    let wrong = |error: Error| unreadable(data.at, &error);
    let data = &with_names(&tfds_rows::opened(data)?, known).map_err(wrong)?;
    let dims = match known {
        Some(known) => known.dims.clone(),
        None => dims(data).map_err(wrong)?,
    };
    let plan = data.images.as_ref().map(|images| images.plan.clone());
    let fixed = plan.as_ref().map(ImagePipeline::without_augmentation);
    let read = |files: &ExampleFiles, plan: &Option<ImagePipeline>| match plan {
        Some(plan) => encoded::images(data, files, plan, config.fit.seed),
        // Each input has dims of its own.
        None if data.inputs().is_some() => raw(data, files),
        None => dataset(data, files, &dims),
    };
    let open = |files: &ExampleFiles, plan| tfds_rows::checked(data, files, read(files, plan)?);
    let apart = match &data.test {
        Some(Located {
            value: ExampleTest::Files(files),
            at,
        }) => Some(open(files, &fixed).map_err(|error| unreadable(*at, &error))?),
        _ => None,
    };
    let all = open(&data.files, &fixed).map_err(wrong)?;
    let examples = all.len();
    let inputs = match known {
        Some(known) => known.inputs.clone(),
        None => feature_rows::facts(data, &all).map_err(wrong)?,
    };
    let alike = |examples: Dataset| feature_rows::of_widths(examples, &inputs);
    let (all, apart) = (alike(all), apart.map(alike));
    check_test(config, known, examples)?;
    let Divided {
        mut train,
        validation,
        test,
    } = parts(config, data, all, apart.clone())?;
    if plan != fixed {
        let augmented = open(&data.files, &plan).map_err(wrong)?;
        train = parts(config, data, augmented, apart)?.train;
    }
    Ok(Rows {
        train: prepared(config, &train)?,
        plain: train,
        validation,
        test,
        facts: Facts {
            dims,
            examples,
            inputs,
            ..facts_of_files(data)
        },
        dropped: 0,
        warnings: Vec::new(),
    })
}

/// The data with the names that the columns of a table have in the first file of the training: in others they may be in another order.
fn with_names(data: &Examples, known: Option<&Facts>) -> Read<Examples> {
    let mut data = data.clone();
    let ExampleFiles::Parquet { pattern } = &data.files else {
        return Ok(data);
    };
    let names = match known {
        Some(known) if !known.columns.is_empty() => (known.columns.clone(), known.label.clone()),
        _ => {
            let first = Parquet::open(pattern, &parquet_options(&data))?;
            let columns = first.columns().into_iter().map(str::to_owned).collect();
            (columns, first.label().map(str::to_owned))
        }
    };
    if let (columns, Some(label)) = names {
        let label = Label::Name(label);
        data.parts = ExampleParts::Columns { columns, label };
    }
    Ok(data)
}

/// The names of the columns and of the classes, where files have some.
fn facts_of_files(data: &Examples) -> Facts {
    let classes = tfds_rows::classes(data);
    match &data.parts {
        ExampleParts::Columns {
            columns,
            label: Label::Name(label),
        } => Facts {
            columns: columns.clone(),
            label: Some(label.clone()),
            ..Facts::default()
        },
        _ => Facts {
            classes,
            ..Facts::default()
        },
    }
}

struct Divided {
    train: Dataset,
    validation: Option<Dataset>,
    test: Option<Dataset>,
}

/// All examples divided as the file says; `apart` has the examples of a test with files.
fn parts(
    config: &TrainConfig,
    data: &Examples,
    all: Dataset,
    apart: Option<Dataset>,
) -> Result<Divided, Problem> {
    let (rest, test) = match &data.test {
        Some(Located {
            value: ExampleTest::Split(fraction),
            at,
        }) => {
            let parts = all.validation_split(*fraction);
            let (rest, test) = parts
                .map_err(|error| Problem::new(*at, error.to_string(), "change the fraction"))?;
            (rest, Some(test))
        }
        _ => (all, apart),
    };
    let (train, validation) = held_out(config, rest, test.as_ref(), |_| {
        let next = "write `validation: {split: 0.1}`, or `validation: test`";
        Err(Problem::new(
            data.at,
            "csv files do not go with these data",
            next,
        ))
    })?;
    Ok(Divided {
        train,
        validation,
        test,
    })
}

/// The dims of one example as the model sees them: as the file says, else as they are, with a channel for images without one.
fn dims(data: &Examples) -> Read<Vec<usize>> {
    if let Some(images) = &data.images {
        return Ok(images.plan.dims().to_vec());
    }
    if data.inputs().is_some() || !data.features.value.is_empty() {
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

/// Dims that say how numbers lie.
fn apart_from_ones(dims: &[usize]) -> Vec<usize> {
    dims.iter().copied().filter(|&dim| dim != 1).collect()
}

/// Examples as the model takes them: f32, divided, in these dims.
fn dataset(data: &Examples, files: &ExampleFiles, dims: &[usize]) -> Read<Dataset> {
    let (dims, divide_by) = (dims.to_vec(), data.divide_by as f32);
    let are_said = !data.features.value.is_empty();
    Ok(raw(data, files)?.map(move |example| {
        let x = &example.x[0];
        if !are_said && x.dims().len() > 1 && apart_from_ones(x.dims()) != apart_from_ones(&dims) {
            return Err(Error::User(format!(
                "an example has dims {:?}, expected {dims:?} as the first of the training has; write `features: {dims:?}` if its numbers are in that order",
                x.dims()
            )));
        }
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
    let label_type = data.label_type;
    match files {
        ExampleFiles::Idx { images, labels } => Dataset::from_idx(images, labels),
        ExampleFiles::Npz { file, input, label } => {
            let mut arrays = Npz::open(file)?;
            let (x, y) = (
                arrays.read(input, MAX_ARRAY)?,
                arrays.read(label, MAX_ARRAY)?,
            );
            of_arrays(&x, &y, label, label_type)
        }
        ExampleFiles::Npy { input, label } => {
            let (x, y) = (read_npy(input, MAX_ARRAY)?, read_npy(label, MAX_ARRAY)?);
            of_arrays(&x, &y, &label.display().to_string(), label_type)
        }
        ExampleFiles::Cifar { pattern, version } => Dataset::from_cifar(pattern, *version),
        ExampleFiles::TfRecord { .. } | ExampleFiles::Tfds { .. } => {
            let options = encoded::tfrecord_options(data.corrupt);
            if let ExampleParts::Inputs { inputs, label } = &data.parts {
                let pattern = encoded::tfrecords(files)?;
                return feature_rows::read(&pattern, &options, data, (&inputs.value, label));
            }
            let ExampleFiles::TfRecord { pattern } = files else {
                return tfds_rows::read(data, files, &options);
            };
            let (input, label) = named(&data.parts);
            let parse = move |features: &Features| example(features, &input, &label, label_type);
            Dataset::from_tf_examples(pattern, &options, parse)
        }
        ExampleFiles::Parquet { pattern } => Dataset::from_parquet(pattern, &parquet_options(data)),
        ExampleFiles::WebDataset { .. } => Err(Error::Bug("a tar file without images".into())),
    }
}

/// The most bytes of an array that is read.
const MAX_ARRAY: u64 = 1 << 36;

/// Examples of an array and one of labels, one number for each, which is called `name`.
fn of_arrays(x: &HostTensor, y: &HostTensor, name: &str, kind: LabelType) -> Read<Dataset> {
    let (rows, labels) = (x.dims().first(), y.dims().first());
    let (Some(&rows), Some(&labels)) = (rows, labels) else {
        return Err(Error::User(
            "an array has one number, expected one for each example".into(),
        ));
    };
    if y.dims()[1..].iter().any(|&dim| dim != 1) {
        return Err(Error::User(format!(
            "the labels `{name}` have dims {:?}, expected one number for each example, [{labels}]; of shares for each class take the largest by argmax",
            y.dims()
        )));
    }
    let y = y.reshape([labels]);
    let y = y.ok_or_else(|| Error::Bug("an array of another size".into()))?;
    let is_class = |&(_, label): &(usize, f64)| f64::from(label as i32) == label;
    let wrong = y
        .to_f64()
        .into_iter()
        .enumerate()
        .find(|label| !is_class(label));
    let y = match (kind, wrong) {
        (LabelType::Value, _) => y.convert(DType::F32),
        (LabelType::Class, None) => y.convert(DType::I32),
        (LabelType::Class, Some((at, label))) => {
            return Err(Error::User(format!(
                "label {at} of `{name}` is {label}, which is no class; write `label_type: value`"
            )));
        }
    };
    // An example of one number is a vector of one.
    let x = match x.dims() {
        [_] => x.reshape([rows, 1]),
        _ => Some(x.clone()),
    };
    Dataset::from_arrays(
        x.ok_or_else(|| Error::Bug("an array of another size".into()))?,
        y,
    )
}

fn parquet_options(data: &Examples) -> ParquetOptions {
    let ExampleParts::Columns { columns, label } = &data.parts else {
        return ParquetOptions::default();
    };
    ParquetOptions {
        columns: columns.clone(),
        label: label_column(label),
        kind: label_kind(data.label_type),
        ..ParquetOptions::default()
    }
}

/// The names of the input and of the label.
pub(crate) fn named(parts: &ExampleParts) -> (String, String) {
    match parts {
        ExampleParts::Named { input, label } => (input.clone(), label.clone()),
        ExampleParts::All
        | ExampleParts::Inputs { .. }
        | ExampleParts::Supervised { .. }
        | ExampleParts::Columns { .. } => Default::default(),
    }
}

/// A `tf.train.Example`: a vector of numbers or of bytes, and a label.
fn example(features: &Features, input: &str, label: &str, kind: LabelType) -> Read<Example> {
    let x = match features.get(input) {
        Some(Feature::Floats(values)) => HostTensor::new([values.len()], values),
        Some(Feature::Ints(values)) => HostTensor::new([values.len()], values),
        Some(Feature::Bytes(values)) if values.len() == 1 => {
            if let Some(format) = encoded::format(&values[0]) {
                return Err(Error::User(format!(
                    "the feature `{input}` is a {format} file, expected numbers; write `image_size: [ROWS, COLUMNS]` in data",
                )));
            }
            if encoded::is_serialized_tensor(&values[0]) {
                return Err(Error::User(format!(
                    "the feature `{input}` is a tensor as `tf.io.serialize_tensor` writes it, expected numbers; write them as a list of floats or integers, and their dims as `features`",
                )));
            }
            HostTensor::new([values[0].len()], &values[0])
        }
        Some(Feature::Bytes(values)) => {
            return Err(Error::User(format!(
                "the feature `{input}` has {} strings, expected one of raw bytes",
                values.len()
            )));
        }
        None => return Err(absent(features, input, "input")),
    };
    let y = labelled(features, label, kind)?;
    Ok(Example {
        x: vec![x],
        y: vec![y],
        weight: None,
    })
}

/// The label that a feature has.
pub(crate) fn labelled(features: &Features, label: &str, kind: LabelType) -> Read<HostTensor> {
    Ok(match (kind, features.get(label)) {
        (_, None) => return Err(absent(features, label, "label")),
        (LabelType::Class, _) => HostTensor::scalar(class(features, label)?),
        (LabelType::Value, Some(Feature::Ints(values))) if values.len() == 1 => {
            HostTensor::scalar(values[0] as f32)
        }
        (LabelType::Value, _) => HostTensor::scalar(features.floats(label, 1)?[0]),
    })
}

/// The class that a feature has.
pub(crate) fn class(features: &Features, label: &str) -> Read<i32> {
    let other = match features.get(label) {
        Some(Feature::Floats(_)) => {
            "floats; write `label_type: value`, or whole numbers to the files"
        }
        Some(Feature::Bytes(_)) => "texts; write their numbers to the files, from 0 on",
        _ => "",
    };
    if !other.is_empty() {
        return Err(Error::User(format!(
            "the label `{label}` is no class, which is one integer, but {other}"
        )));
    }
    let class = features.ints(label, 1)?[0];
    i32::try_from(class).map_err(|_| {
        Error::User(format!(
            "the label {class} is no class; write `label_type: value`"
        ))
    })
}

/// What is said of a feature that is not there; `key` names it in a training file.
pub(crate) fn absent(features: &Features, name: &str, key: &str) -> Error {
    let there: Vec<&str> = features.iter().map(|(name, _)| name).collect();
    Error::User(format!(
        "an example has no feature `{name}`, only {}; write `{key}: NAME` in data",
        there.join(", ")
    ))
}

/// What is said of data that cannot be read.
pub(crate) fn unreadable(at: Position, error: &Error) -> Problem {
    let next = match error {
        Error::Io { .. } => "correct the path; a relative one starts at the folder of this file",
        _ => "correct the files, or what `data` says of them",
    };
    Problem::new(at, error.to_string(), next)
}
