//! The columns of texts, of categories, of weights and of the labels of outputs, as the first CSV file has them.

use std::collections::HashSet;
use std::path::Path;

use phalanx::config::suggest;
use phalanx::data::{CsvOptions, csv_header};
use phalanx::{Error, Result as Read};

use crate::config::{Column, Csv, Located, Position, Problem};
use crate::data_facts::{Facts, InputFact, WeightFact};
use crate::output_labels;

/// Whether the first file has these columns by their names.
///
/// # Errors
/// The first that it has not, at its line. That it cannot be read is for its reader to say.
pub(crate) fn check(data: &Csv, options: &CsvOptions) -> Result<(), Problem> {
    let path = &data.csv[0].value;
    let Ok(header) = csv_header(path, options) else {
        return Ok(());
    };
    let texts = data.text.iter().map(|text| (&text.column, "texts"));
    let weights = data.weight.iter().map(|weight| (weight, "weights"));
    let categories = data.category.iter();
    let categories = categories.map(|category| (&category.column, "categories"));
    let of_outputs = data.labels.value.iter().flat_map(|output| &output.columns);
    let of_outputs: Vec<_> = of_outputs
        .map(|name| Located {
            value: Column::Name(name.clone()),
            at: data.labels.at,
        })
        .collect();
    let labels = of_outputs.iter().map(|column| (column, "labels"));
    let mut columns = texts.chain(categories).chain(weights).chain(labels);
    columns.try_for_each(|(column, what)| check_column(path, &header, column, what))
}

/// What is to be said of a feature without a name, as the index of a pandas table is one.
pub(crate) fn unnamed(data: &Csv, facts: &Facts) -> Option<String> {
    let place = facts.columns.iter().position(String::is_empty);
    let place = place.filter(|_| data.columns.is_empty())?;
    Some(format!(
        "feature {place} of {} has no name: where it is the index of a pandas table, the model is given the numbers of the rows; leave it out by `columns`, or write the file with `index=False`",
        data.csv[0].value.display()
    ))
}

fn check_column(
    path: &Path,
    header: &[String],
    Located { value, at }: &Located<Column>,
    what: &str,
) -> Result<(), Problem> {
    let (Column::Name(name), file) = (value, path.display()) else {
        return Ok(());
    };
    if header.is_empty() {
        let message =
            format!("the {what} are in the column {name:?}, and {file} has no names of columns");
        let next = "give the position of the column, from 0, or write `header: true`";
        return Err(Problem::new(*at, message, next));
    }
    let mut known = header.iter().map(String::as_str);
    if known.clone().any(|known| known == name) {
        return Ok(());
    }
    let message = format!("{file} has no column {name:?} of {what}");
    Err(Problem::new(*at, message, suggest(name, &mut known)))
}

/// The column of the weights in files with this header and this many columns.
pub(crate) fn weight(
    data: &Csv,
    header: &[String],
    columns: usize,
) -> Result<Option<WeightFact>, (Position, Error)> {
    let Some(Located { value, at }) = &data.weight else {
        return Ok(None);
    };
    let index = match value {
        Column::Index(index) => *index,
        Column::Name(name) => {
            let found = header.iter().position(|other| other == name);
            found.ok_or_else(|| (*at, Error::Bug(format!("weights of no column {name:?}"))))?
        }
    };
    if index >= columns {
        let message = format!(
            "the weights are in column {index}, counted from 0, and the files have {columns}; choose an index below {columns}"
        );
        return Err((*at, Error::User(message)));
    }
    let name = header.get(index).cloned().unwrap_or_default();
    Ok(Some(WeightFact { index, name }))
}

/// The names of the columns of the features in files with this header, without the positions of `others`, where all the rest are.
pub(crate) fn of_features(
    data: &Csv,
    header: &[String],
    others: [Option<usize>; 2],
) -> Vec<String> {
    match data.columns.is_empty() {
        true => {
            let features = header.iter().enumerate();
            let features = features.filter(|(column, _)| !others.contains(&Some(*column)));
            let of_outputs = output_labels::columns(data);
            let features = features.filter(|(_, name)| !of_outputs.contains(name));
            features.map(|(_, name)| name.clone()).collect()
        }
        false => {
            let name = |column: &Column| match column {
                Column::Name(name) => Some(name.clone()),
                Column::Index(index) => header.get(*index).cloned(),
            };
            let names: Option<Vec<String>> = data.columns.iter().map(name).collect();
            names.unwrap_or_default()
        }
    }
}

/// The inputs that `data` names, of files with this header.
pub(crate) fn inputs(data: &Csv, header: &[String], facts: &Facts) -> Read<Vec<InputFact>> {
    let position = |column: &Column| match column {
        Column::Index(index) => Some(*index),
        Column::Name(name) => header.iter().position(|other| other == name),
    };
    let mut seen = HashSet::new();
    let mut inputs = Vec::new();
    for input in &data.inputs.value {
        let (mut width, mut columns) = (0, Vec::new());
        for position in input.columns.iter().filter_map(position) {
            let name = header.get(position);
            if !seen.insert(position) {
                let name = name.map_or_else(String::new, |name| format!(" ({name:?})"));
                return Err(Error::User(format!(
                    "the inputs have the column at position {position}{name} twice; name it once: several layers may take one input"
                )));
            }
            columns.extend(name.cloned());
            let mut one_hot = facts.one_hot.iter();
            width += one_hot
                .find(|fact| fact.index == position)
                .map_or(1, |fact| fact.values.len());
        }
        inputs.push(InputFact {
            name: input.name.clone(),
            columns,
            width: (!input.is_index).then_some(width),
            text: data.text_of(input),
            category: data.category_of(input),
            length: None,
            any_length: false,
        });
    }
    Ok(inputs)
}
