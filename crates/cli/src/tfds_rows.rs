//! The examples of folders that TensorFlow Datasets wrote.

use phalanx::DType;
use phalanx::data::{Dataset, Example, HostTensor, TfRecordOptions, TfdsFeature, TfdsFolder};
use phalanx::{Error, Result as Read};

use crate::config::{
    ExampleFiles, ExampleParts, ExampleTest, Examples, LabelType, Located, Position, Problem,
};
use crate::example_rows::{named as names_of, unreadable};

/// The data with what their folders say, and with the names of the input and the label, which the dataset has where the training file does
/// not say them.
pub(crate) fn opened(data: &Examples) -> Result<Examples, Problem> {
    let mut data = data.clone();
    open(&mut data.files, data.at)?;
    if let Some(Located {
        value: ExampleTest::Files(files),
        at,
    }) = &mut data.test
    {
        open(files, *at)?;
    }
    let (Some(folder), ExampleParts::Supervised { input, label }) =
        (folder_of(&data.files), &data.parts)
    else {
        return Ok(data);
    };
    let (first, second) = folder.supervised().unwrap_or(("image", "label"));
    let name =
        |said: &Option<String>, other: &str| said.clone().unwrap_or_else(|| other.to_owned());
    data.parts = ExampleParts::Named {
        input: name(input, first),
        label: name(label, second),
    };
    Ok(data)
}

fn open(files: &mut ExampleFiles, at: Position) -> Result<(), Problem> {
    if let ExampleFiles::Tfds { folder, opened, .. } = files {
        let read = TfdsFolder::open(folder).map_err(|error| unreadable(at, &error))?;
        *opened = Some(Box::new(read));
    }
    Ok(())
}

fn folder_of(files: &ExampleFiles) -> Option<&TfdsFolder> {
    match files {
        ExampleFiles::Tfds { opened, .. } => opened.as_deref(),
        _ => None,
    }
}

/// The split that files are, and its folder, which was [`opened`].
pub(crate) fn split_of(files: &ExampleFiles) -> Read<(&TfdsFolder, &str)> {
    match files {
        ExampleFiles::Tfds {
            split,
            opened: Some(folder),
            ..
        } => Ok((folder, split)),
        _ => Err(Error::Bug(
            "no folder of TensorFlow Datasets, or one that was not opened".into(),
        )),
    }
}

/// The names of the classes, where the label has some.
pub(crate) fn classes(data: &Examples) -> Vec<String> {
    folder_of(&data.files).map_or_else(Vec::new, |folder| classes_in(data, folder))
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
    let ExampleFiles::Tfds { folder, .. } = files else {
        return Ok(all);
    };
    let (opened, split) = split_of(files)?;
    opened.check_count(split, &all)?;
    let (trained, there) = (classes(data), classes_in(data, opened));
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
    let (folder, split) = split_of(files)?;
    let (input, label) = names_of(&data.parts);
    if let Some(TfdsFeature::Image([rows, columns, _]) | TfdsFeature::Image16([rows, columns, _])) =
        folder.features().get(&input)
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
