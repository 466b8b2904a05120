//! The rows of a CSV file to predict, of which each has a prediction.

use std::collections::HashSet;
use std::path::Path;

use phalanx::data::{
    CsvColumn, CsvColumns, CsvOptions, Dataset, Header, LabelColumn, MissingValues, csv_header,
    csv_width,
};
use phalanx::{Error, Result as Read};

use crate::config::{Csv, Label};
use crate::data_facts::Facts;
use crate::rows::{by_names, by_positions, read_prepared};
use crate::texts::in_rows;

/// The rows of a file to predict, without a label and weights: where it has a header, the columns that the model was trained on; else
/// by their positions in the files of the training, whose label and weights it may leave out, together.
///
/// # Errors
/// A file that cannot be read, whose rows do not fit the model, or with a missing value in a row that a training would leave out.
pub fn to_predict(data: &Csv, facts: &Facts, path: &Path) -> Read<Dataset> {
    let mut options = without_label(by_positions(data, facts, path));
    // First, as it decides which columns may hold texts in a line that is no header.
    let fits = match facts.labels.is_empty() {
        true => choose_columns(&mut options, (data, facts), path),
        false => leave_labels_out(&mut options, facts, path),
    };
    let header = csv_header(path, &options)?;
    options.header = match header.is_empty() {
        true => Header::No,
        false => Header::Yes,
    };
    if !header.is_empty() && !facts.columns.is_empty() {
        options = without_label(by_names(options, facts));
    }
    if !matches!(options.columns.first(), Some(CsvColumn::Name(_))) {
        fits?;
        if facts.window.is_none() {
            check_label(&options, (facts, &header), path)?;
        }
    }
    let drops = options.missing == MissingValues::Drop;
    if drops {
        options.missing = MissingValues::Fail;
    }
    let (rows, dropped) = read_prepared(path, &options, facts)?;
    if drops {
        check_names(options, facts, path)?;
    }
    match dropped {
        0 => Ok(rows),
        _ => Err(Error::Bug(format!("{dropped} rows without a prediction"))),
    }
}

/// Refuses `NA` and the like in a category, which is missing where a training leaves such rows out, and a name where rows are read to fail.
fn check_names(options: CsvOptions, facts: &Facts, path: &Path) -> Read<()> {
    if options.categories.is_empty() {
        return Ok(());
    }
    let options = CsvOptions {
        missing: MissingValues::Keep,
        ..options
    };
    let mut columns = CsvColumns::default();
    let rows = Dataset::from_csv_with(path, &options, &mut columns)?;
    for (fact, place) in facts.categories.iter().zip(facts.texts.len()..) {
        let names = in_rows(&rows, place, columns.texts())?;
        if let Some(row) = names.iter().position(|name| name.is_empty()) {
            return Err(Error::User(format!(
                "{} has a missing value in row {} of {}, and the training left such rows out; fill it in or remove the row",
                path.display(),
                row + 1,
                fact.shown()
            )));
        }
    }
    Ok(())
}

fn without_label(options: CsvOptions) -> CsvOptions {
    CsvOptions {
        label: LabelColumn::None,
        labels: Vec::new(),
        weight: None,
        ..options
    }
}

/// Chooses the columns of a file by their positions, of which it has as many as the files of the training, or the others alone.
fn choose_columns(
    options: &mut CsvOptions,
    (data, facts): (&Csv, &Facts),
    path: &Path,
) -> Read<()> {
    let columns = match facts.layout {
        Some(layout) => layout.columns,
        None if !options.columns.is_empty() => return Ok(()),
        None => columns_of_training(data, facts)?,
    };
    if facts.window.is_some() {
        return check_width(columns, path, options);
    }
    let label = label_of_training(data, facts, columns);
    let weight = facts.weight.as_ref().map(|weight| weight.index);
    let without = match weight {
        None => "the label",
        Some(_) => "the label and the weights",
    };
    let of_training: Vec<usize> = label.into_iter().chain(weight).collect();
    let first_line = CsvOptions {
        header: Header::No,
        ..options.clone()
    };
    let width = csv_width(path, &first_line)?;
    let is_whole = width == columns;
    let left_out = 1 + usize::from(weight.is_some());
    if !is_whole && width + left_out != columns {
        return Err(Error::User(format!(
            "{} has {width} columns, and the files of the training {columns} with {without}; give a file with the same columns, or the same without {without}",
            path.display()
        )));
    }
    if is_whole && !options.columns.is_empty() {
        return Ok(());
    }
    let one_hot = options
        .one_hot
        .iter_mut()
        .map(|one_hot| &mut one_hot.column);
    let others = options.texts.iter_mut().chain(&mut options.categories);
    let others = others.chain(&mut options.indices);
    let used = options.columns.iter_mut().chain(others).chain(one_hot);
    let mut positions: Vec<&mut usize> = used.filter_map(position).collect();
    if label.is_none() && (is_whole || !positions.is_empty()) {
        return Err(Error::User(format!(
            "the training did not keep which of its columns is the label, and {} does not name them as it did; name the columns in its first line, or train again",
            path.display()
        )));
    }
    if is_whole {
        let others = (0..width).filter(|column| !of_training.contains(column));
        options.columns = others.map(CsvColumn::Index).collect();
        return Ok(());
    }
    for index in &mut positions {
        **index -= of_training.iter().filter(|left| **left < **index).count();
    }
    Ok(())
}

/// Leaves labels and weights out of the features where these are found by their positions, as two have one name.
fn leave_labels_out(options: &mut CsvOptions, facts: &Facts, path: &Path) -> Read<()> {
    if !(options.columns.is_empty() && facts.columns.is_empty()) {
        return Ok(());
    }
    let header = csv_header(path, options)?;
    if header.is_empty() {
        return Err(Error::User(format!(
            "{} has no line that names its columns, by which those of the labels are left out; give it the first line of the training's files",
            path.display()
        )));
    }
    if let Some(layout) = facts.layout.filter(|layout| layout.columns != header.len()) {
        return Err(Error::User(format!(
            "{} has {} columns, and the files of the training {} with the labels, found by their positions as two features have one name; \
             give a file with the same columns, or train with a name for each feature",
            path.display(),
            header.len(),
            layout.columns
        )));
    }
    let labels = facts.labels.iter().flat_map(|label| &label.columns);
    let weight = facts.weight.iter().map(|weight| &weight.name);
    let others: HashSet<&String> = labels.chain(weight).collect();
    let features = (0..header.len()).filter(|&column| !others.contains(&header[column]));
    options.columns = features.map(CsvColumn::Index).collect();
    Ok(())
}

/// Refuses a file of a series that has not all columns of the training, the label among them, which is a feature too.
fn check_width(columns: usize, path: &Path, options: &CsvOptions) -> Read<()> {
    let first_line = CsvOptions {
        header: Header::No,
        ..options.clone()
    };
    let width = csv_width(path, &first_line)?;
    if width == columns {
        return Ok(());
    }
    Err(Error::User(format!(
        "{} has {width} columns, and the files of the training {columns}; give a file with the same columns",
        path.display()
    )))
}

fn position(column: &mut CsvColumn) -> Option<&mut usize> {
    match column {
        CsvColumn::Index(index) => Some(index),
        CsvColumn::Name(_) => None,
    }
}

/// The position of the label in the files of the training, if it is known.
fn label_of_training(data: &Csv, facts: &Facts, columns: usize) -> Option<usize> {
    let kept = facts.layout.and_then(|layout| layout.label);
    kept.or(match &data.label.value {
        Label::None => None,
        Label::Last => columns.checked_sub(1),
        Label::Index(index) => Some(*index),
        Label::Name(_) => None,
    })
}

/// Whether the file has its label where it is no feature: its columns are chosen by their positions in the files of the training.
fn check_label(
    options: &CsvOptions,
    (facts, header): (&Facts, &[String]),
    path: &Path,
) -> Read<()> {
    let label = facts.label.as_ref();
    let found = header.iter().position(|name| Some(name) == label);
    let is_feature = |column: &usize| {
        options.columns.is_empty() || options.columns.contains(&CsvColumn::Index(*column))
    };
    match found.filter(is_feature) {
        None => Ok(()),
        Some(column) => Err(Error::User(format!(
            "{} has the label in column {column}, counted from 0, where the files of the training have a feature; give its columns their order",
            path.display()
        ))),
    }
}

/// The columns of a training that did not keep them: its features, of which the values of a one-hot column are one column, and the label.
///
/// # Errors
/// One of the columns has the weights of the rows, and nobody knows which.
fn columns_of_training(data: &Csv, facts: &Facts) -> Read<usize> {
    if data.weight.is_some() {
        return Err(Error::User(
            "the model has no training.json, which says which column has the weights; name the columns of the features by `columns` of `data`, or train again".into(),
        ));
    }
    let values: usize = facts.one_hot.iter().map(|fact| fact.values.len()).sum();
    let features: usize = facts.dims.iter().product();
    // A series has its label among the features.
    let label = usize::from(facts.window.is_none());
    Ok(features + label + facts.one_hot.len() - values.min(features))
}
