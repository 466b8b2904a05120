//! The examples of folders that TensorFlow Datasets wrote.

use phalanx::DType;
use phalanx::data::{Dataset, Example, HostTensor, TfRecordOptions, TfdsFeature, TfdsFolder};
use phalanx::{Error, Result as Read};

use crate::config::{ExampleFiles, ExampleParts, Examples, LabelType};
use crate::example_rows::named as names_of;

/// The data with the names of the input and the label, which the dataset has where the training file does not say them.
pub(crate) fn named(data: &Examples) -> Read<Examples> {
    let mut data = data.clone();
    let (ExampleFiles::Tfds { folder, .. }, ExampleParts::Supervised { input, label }) =
        (&data.files, &data.parts)
    else {
        return Ok(data);
    };
    let folder = TfdsFolder::open(folder)?;
    let (first, second) = folder.supervised().unwrap_or(("image", "label"));
    let name =
        |said: &Option<String>, other: &str| said.clone().unwrap_or_else(|| other.to_owned());
    data.parts = ExampleParts::Named {
        input: name(input, first),
        label: name(label, second),
    };
    Ok(data)
}

/// The names of the classes, where the label has some.
pub(crate) fn classes(data: &Examples) -> Read<Vec<String>> {
    match &data.files {
        ExampleFiles::Tfds { folder, .. } => Ok(classes_in(data, &TfdsFolder::open(folder)?)),
        _ => Ok(Vec::new()),
    }
}

fn classes_in(data: &Examples, folder: &TfdsFolder) -> Vec<String> {
    let label = match &data.parts {
        ExampleParts::Inputs { label, .. } => label.clone(),
        parts => names_of(parts).1,
    };
    match folder.features().get(&label) {
        Some(TfdsFeature::Class(names)) if data.label_type == LabelType::Class => names.clone(),
        _ => Vec::new(),
    }
}

/// The examples of files, unless these are not all of the split, or name the classes otherwise than the training's.
pub(crate) fn checked(data: &Examples, files: &ExampleFiles, all: Dataset) -> Read<Dataset> {
    let ExampleFiles::Tfds { folder, split } = files else {
        return Ok(all);
    };
    let opened = TfdsFolder::open(folder)?;
    opened.check_count(split, &all)?;
    let (trained, there) = (classes(data)?, classes_in(data, &opened));
    let mut pairs = trained.iter().zip(&there).enumerate();
    match pairs.find(|(_, (trained, there))| trained != there) {
        None => Ok(all),
        Some((class, (trained, there))) => Err(Error::User(format!(
            "class {class} is `{there}` in {} and `{trained}` in the folder of the training; give a test with the same classes in the same order",
            folder.display()
        ))),
    }
}

/// The examples of a split, in the dimensions that the dataset says.
pub(crate) fn read(
    data: &Examples,
    files: &ExampleFiles,
    options: &TfRecordOptions,
) -> Read<Dataset> {
    let ExampleFiles::Tfds { folder, split } = files else {
        return Err(Error::Bug("files of another kind than tfds".into()));
    };
    let folder = TfdsFolder::open(folder)?;
    let (input, label) = names_of(&data.parts);
    if let Some(TfdsFeature::Image([rows, columns, _])) = folder.features().get(&input)
        && rows.and(*columns).is_none()
    {
        return Err(Error::User(format!(
            "the images `{input}` have several sizes; write `image_size: [ROWS, COLUMNS]` in data"
        )));
    }
    let rows = folder.dataset(split, &[&input], &[&label], options)?;
    let kind = data.label_type;
    Ok(rows.map(move |example| {
        let y = labelled(&example.y[0], &label, kind)?;
        Ok(Example {
            y: vec![y],
            ..example
        })
    }))
}

/// A label as its type says: one number.
fn labelled(y: &HostTensor, name: &str, kind: LabelType) -> Read<HostTensor> {
    let [value] = y.to_f64()[..] else {
        return Err(Error::User(format!(
            "the label `{name}` has {} numbers, expected one",
            y.to_f64().len()
        )));
    };
    match kind {
        LabelType::Value => Ok(HostTensor::scalar(value as f32)),
        LabelType::Class if y.shape().dtype.is_float() || f64::from(value as i32) != value => {
            Err(Error::User(format!(
                "the label `{name}` is {value}, which is no class; write `label_type: value`"
            )))
        }
        LabelType::Class => Ok(y
            .convert(DType::I32)
            .reshape([])
            .unwrap_or_else(|| HostTensor::scalar(value as i32))),
    }
}
