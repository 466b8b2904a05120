//! The rows that a `train.yaml` speaks of, read from their files.

use std::path::{Path, PathBuf};

use phalanx::data::{
    ClassWeights, CsvColumns, CsvOptions, Dataset, Header, HostTensor, LabelColumn, LabelKind,
};
use phalanx::{Error, Result as Read};

use crate::config::{
    Csv, Data, Label, LabelType, Located, Position, Problem, Problems, Test, TrainConfig,
    Validation,
};
use crate::image_rows;

/// What a model trains on, and what it is measured on.
#[derive(Debug)]
pub struct Rows {
    /// To train on, shuffled and weighted as the file says.
    pub train: Dataset,
    /// To evaluate after each epoch.
    pub validation: Option<Dataset>,
    /// To evaluate at the end.
    pub test: Option<Dataset>,
    /// Dims of one example.
    pub features: Vec<usize>,
}

/// Reads all files that a configuration names.
///
/// # Errors
/// A file that cannot be read, files or rows that do not fit one another, or a split that leaves nothing, each at the line that
/// names it.
pub fn load(config: &TrainConfig) -> Result<Rows, Problems> {
    read_all(config).map_err(|problem| config.problems(vec![problem]))
}

fn read_all(config: &TrainConfig) -> Result<Rows, Problem> {
    match &config.data {
        Data::Images(images) => image_rows::read(config, images),
        Data::Csv(data) => read_csv(config, data),
    }
}

fn read_csv(config: &TrainConfig, data: &Csv) -> Result<Rows, Problem> {
    let mut columns = CsvColumns::default();
    let (all, features) = read_files(data, &data.csv, None, &mut columns)?;
    let (rest, test) = match &data.test {
        None => (all, None),
        Some(Located {
            value: Test::Csv(csv),
            ..
        }) => (
            all,
            Some(read_files(data, csv, Some(&features), &mut columns)?.0),
        ),
        Some(Located {
            value: Test::First(count),
            at,
        }) => {
            let (test, rest) = split(&all, *count, *count, *at)?;
            (rest, Some(test))
        }
        Some(Located {
            value: Test::Last(count),
            at,
        }) => {
            let count = (*count).min(length(&all));
            let (rest, test) = split(&all, length(&all) - count, count, *at)?;
            (rest, Some(test))
        }
    };
    let read = |csv: &[_]| Ok(read_files(data, csv, Some(&features), &mut columns)?.0);
    let (train, validation) = held_out(config, rest, test.as_ref(), read)?;
    let train = prepared(config, &train)?;
    Ok(Rows {
        train,
        validation,
        test,
        features,
    })
}

/// What is left to train on, and what is validated on.
fn held_out(
    config: &TrainConfig,
    rest: Dataset,
    test: Option<&Dataset>,
    read: impl FnOnce(&[Located<PathBuf>]) -> Result<Dataset, Problem>,
) -> Result<(Dataset, Option<Dataset>), Problem> {
    Ok(match &config.fit.validation {
        None => (rest, None),
        Some(Located {
            value: Validation::Test,
            ..
        }) => (rest, test.cloned()),
        Some(Located {
            value: Validation::Csv(csv),
            ..
        }) => (rest, Some(read(csv)?)),
        Some(Located {
            value: Validation::Split(fraction),
            at,
        }) => {
            let parts = rest.validation_split(*fraction);
            let (train, validation) = parts
                .map_err(|error| Problem::new(*at, error.to_string(), "change the fraction"))?;
            (train, Some(validation))
        }
    })
}

/// The rows of a file to predict: all its columns, or, where it has one more than the model takes, all but the label.
///
/// # Errors
/// A file that cannot be read, or whose rows do not fit `features`.
pub fn to_predict(data: &Csv, path: &Path, features: &[usize]) -> Read<Dataset> {
    let needed: usize = features.iter().product();
    let unlabelled = CsvOptions {
        label: LabelColumn::None,
        features: Vec::new(),
        ..options(data)
    };
    let columns = |dataset: &Dataset| {
        dataset
            .get(0, 0)
            .map(|example| example.x[0].dims().iter().product::<usize>())
    };
    // A label that is no number, or a name that the header lacks, is the reader's to refuse.
    if let Ok(dataset) = Dataset::from_csv(path, &unlabelled)
        && columns(&dataset)? == needed
    {
        let unlabelled = CsvOptions {
            features: features.to_vec(),
            ..unlabelled
        };
        return divided(data, &Dataset::from_csv(path, &unlabelled)?);
    }
    let labelled = CsvOptions {
        features: features.to_vec(),
        ..options(data)
    };
    divided(data, &Dataset::from_csv(path, &labelled)?)
}

/// The rows of a file with labels.
///
/// # Errors
/// A file that cannot be read, or whose rows do not fit `features`.
pub fn labelled(data: &Csv, path: &Path, features: &[usize]) -> Read<Dataset> {
    let options = CsvOptions {
        features: features.to_vec(),
        ..options(data)
    };
    divided(data, &Dataset::from_csv(path, &options)?)
}

/// The rows of files one after the other, divided, with the dims of one example; `features` are those to have, and
/// `columns` those of the files before.
fn read_files(
    data: &Csv,
    csv: &[Located<PathBuf>],
    features: Option<&[usize]>,
    columns: &mut CsvColumns,
) -> Result<(Dataset, Vec<usize>), Problem> {
    let options = options(data);
    let mut all: Option<(Dataset, Vec<usize>)> = None;
    for path in csv {
        let wrong = |error| unreadable(path.at, &error);
        let next = Dataset::from_csv_with(&path.value, &options, columns).map_err(wrong)?;
        let dims = next.get(0, 0).map_err(wrong)?.x[0].dims().to_vec();
        let needed = all.as_ref().map(|(_, dims)| dims.as_slice()).or(features);
        if needed.is_some_and(|needed| needed != dims) {
            let message = format!(
                "{} has examples of dims {dims:?}, the files before it of {:?}",
                path.value.display(),
                needed.unwrap_or_default()
            );
            return Err(Problem::new(
                path.at,
                message,
                "use files with the same columns",
            ));
        }
        all = Some(match all {
            None => (next, dims),
            Some((before, _)) => (before.concatenate(&next).map_err(wrong)?, dims),
        });
    }
    let Some((all, dims)) = all else {
        return Err(Problem::new(
            Position::START,
            "no file is named",
            "name a file under `csv`",
        ));
    };
    let wrong = |error| unreadable(csv[0].at, &error);
    let all = if csv.len() > 1 {
        gathered(&all, 1.0).map_err(wrong)?
    } else {
        all
    };
    Ok((divided(data, &all).map_err(wrong)?, dims))
}

fn unreadable(at: Position, error: &Error) -> Problem {
    let next = match error {
        Error::Io { .. } => "correct the path; a relative one starts at the folder of this file",
        _ => "correct the file, or what `data` says of it",
    };
    Problem::new(at, error.to_string(), next)
}

fn options(data: &Csv) -> CsvOptions {
    CsvOptions {
        header: match data.header {
            None => Header::Auto,
            Some(true) => Header::Yes,
            Some(false) => Header::No,
        },
        label: match &data.label.value {
            Label::Last => LabelColumn::Last,
            Label::Index(index) => LabelColumn::Index(*index),
            Label::Name(name) => LabelColumn::Name(name.clone()),
        },
        kind: match data.label_type {
            LabelType::Class => LabelKind::Class,
            LabelType::Value => LabelKind::Value,
        },
        features: data.features.value.clone(),
        delimiter: data.delimiter,
        ..CsvOptions::default()
    }
}

fn divided(data: &Csv, dataset: &Dataset) -> Read<Dataset> {
    if data.divide_by == 1.0 {
        return Ok(dataset.clone());
    }
    gathered(dataset, data.divide_by)
}

/// The rows in one array, features divided: once here, not in every epoch.
fn gathered(dataset: &Dataset, divisor: f64) -> Read<Dataset> {
    let batch = dataset.batch(length(dataset)).get(0, 0)?;
    let divide = |x: &HostTensor| {
        let values: Vec<f32> = x
            .f32s()
            .iter()
            .map(|value| value / divisor as f32)
            .collect();
        HostTensor::new(x.dims(), &values)
    };
    Dataset::from_arrays(batch.x.iter().map(divide).collect::<Vec<_>>(), batch.y)
}

/// The first `at_row` rows and the others; neither may be empty. `count` is the number that the user wrote.
fn split(
    all: &Dataset,
    at_row: usize,
    count: usize,
    at: Position,
) -> Result<(Dataset, Dataset), Problem> {
    let rows = length(all);
    if at_row == 0 || at_row >= rows {
        let message = format!("{count} or more test rows of {rows} leave none to train on");
        return Err(Problem::new(
            at,
            message,
            format!("choose a number below {rows}"),
        ));
    }
    all.split_at(at_row)
        .map_err(|error| Problem::new(at, error.to_string(), "change the number of rows"))
}

/// A CSV file has an end.
fn length(dataset: &Dataset) -> usize {
    dataset.len().unwrap_or_default()
}

/// Weighted and shuffled as the file says.
pub(crate) fn prepared(config: &TrainConfig, train: &Dataset) -> Result<Dataset, Problem> {
    let mut train = train.clone();
    if let Some(Located { value, at }) = &config.fit.class_weight {
        let weights = ClassWeights::new(value.iter().copied());
        train =
            train
                .class_weights(weights.map_err(|error| {
                    Problem::new(*at, error.to_string(), "correct the weights")
                })?);
    }
    Ok(if config.fit.shuffle {
        train.shuffle(config.fit.seed)
    } else {
        train
    })
}
