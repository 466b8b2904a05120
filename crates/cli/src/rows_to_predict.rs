//! The rows of a CSV file to predict, of which each has a prediction.

use std::path::Path;

use phalanx::data::{CsvColumn, CsvOptions, Dataset, LabelColumn, MissingValues, csv_width};
use phalanx::{Error, Result as Read};

use crate::config::{Csv, Label};
use crate::data_facts::{Facts, FileLayout};
use crate::rows::{as_trained, read_prepared};

/// The rows of a file to predict, without a label and weights: where it has a header, the columns that the model was trained on; else
/// by their positions in the files of the training, whose label and weights it may leave out, together.
///
/// # Errors
/// A file that cannot be read, whose rows do not fit the model, or with a missing value in a row that a training would leave out.
pub fn to_predict(data: &Csv, facts: &Facts, path: &Path) -> Read<Dataset> {
    let mut options = CsvOptions {
        label: LabelColumn::None,
        weight: None,
        ..as_trained(data, facts, path)?
    };
    if options.missing == MissingValues::Drop {
        options.missing = MissingValues::Fail;
    }
    let by_name = matches!(options.columns.first(), Some(CsvColumn::Name(_)));
    if !by_name {
        let width = csv_width(path, &options)?;
        without_label(&mut options, (data, facts), (path, width))?;
    }
    let (rows, dropped) = read_prepared(path, &options, facts)?;
    match dropped {
        0 => Ok(rows),
        _ => Err(Error::Bug(format!("{dropped} rows without a prediction"))),
    }
}

/// Chooses the columns of a file with this many, by their positions.
fn without_label(
    options: &mut CsvOptions,
    (data, facts): (&Csv, &Facts),
    (path, width): (&Path, usize),
) -> Read<()> {
    let columns = match facts.layout {
        Some(FileLayout { columns, .. }) => columns,
        None if !options.columns.is_empty() => return Ok(()),
        None => columns_of_training(facts),
    };
    let label = match &data.label.value {
        Label::Index(index) => *index,
        Label::Last | Label::Name(_) => columns.saturating_sub(1),
    };
    let (of_training, without) = match &facts.weight {
        None => (vec![label], "the label"),
        Some(weight) => (vec![label, weight.index], "the label and the weights"),
    };
    if width == columns {
        if options.columns.is_empty() {
            let others = (0..width).filter(|column| !of_training.contains(column));
            options.columns = others.map(CsvColumn::Index).collect();
        }
        return Ok(());
    }
    if width + of_training.len() != columns {
        return Err(Error::User(format!(
            "{} has {width} columns, and the files of the training {columns} with {without}; give a file with the same columns, or the same without {without}",
            path.display()
        )));
    }
    let all = options.columns.iter_mut().chain(&mut options.texts);
    let one_hot = options
        .one_hot
        .iter_mut()
        .map(|one_hot| &mut one_hot.column);
    for column in all.chain(&mut options.indices).chain(one_hot) {
        if let CsvColumn::Index(index) = column {
            *index -= of_training.iter().filter(|left| *left < index).count();
        }
    }
    Ok(())
}

/// The same of a training that did not keep it: its features, of which the values of a one-hot column are one column, and the label.
fn columns_of_training(facts: &Facts) -> usize {
    let values: usize = facts.one_hot.iter().map(|fact| fact.values.len()).sum();
    let features: usize = facts.dims.iter().product();
    features + 1 + facts.one_hot.len() - values.min(features)
}
