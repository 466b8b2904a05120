//! The rows of a CSV file as arrays.

use phalanx_graph::HostTensor;
use std::borrow::Cow;

use super::Batch;
use super::csv::{CsvArrays, CsvColumn, CsvOptions, LabelColumn, MissingValues};
use super::csv_labels::{LabelValues, label_values};
use super::csv_lines::{RowPlace, shown};
use super::csv_one_hot::{FeatureColumn, feature_columns, unknown_value};
use crate::{Error, Result};

/// The numbers read so far.
pub(super) struct CsvTable<'a> {
    options: &'a CsvOptions,
    pub(super) names: Vec<String>,
    columns: usize,
    labels: Vec<LabelValues<'a>>,
    weight: Option<usize>,
    /// The columns of the features, in their order.
    chosen: Vec<FeatureColumn<'a>>,
    rows: usize,
    dropped: usize,
    features: Vec<f32>,
    /// The values of each column of indices.
    indices: Vec<Vec<i32>>,
    /// The texts of each column of texts, and the names of each of categories.
    texts: Vec<Vec<String>>,
    weights: Vec<f32>,
}

impl<'a> CsvTable<'a> {
    pub(super) fn new(
        row: &dyn RowPlace,
        columns: usize,
        names: Vec<String>,
        options: &'a CsvOptions,
    ) -> Result<Self> {
        if columns > options.max_columns {
            return Err(row.error(&format!(
                "found {columns} columns, expected at most {}; check the delimiter, or raise max_columns",
                options.max_columns
            )));
        }
        let labels = label_values(row, &names, columns, options)?;
        let of_labels: Vec<usize> = labels
            .iter()
            .flat_map(|label| label.columns.clone())
            .collect();
        let weight = weight_column(row, &names, columns, options, &of_labels)?;
        let chosen = columns_of_features(row, &names, columns, options, (&of_labels, weight))?;
        let chosen = feature_columns(row, &names, columns, &chosen, options)?;
        if chosen.is_empty() {
            return Err(row.error(match weight {
                None => "found a single column, the label, and no feature; check the delimiter, or set the label column to none",
                Some(_) => "found the columns of the label and of the weights alone, and no feature; check the delimiter and the columns",
            }));
        }
        let width = chosen.iter().map(FeatureColumn::width).sum();
        check_features(row, width, options)?;
        Ok(Self {
            options,
            names,
            columns,
            labels,
            weight,
            chosen,
            rows: 0,
            dropped: 0,
            features: Vec::new(),
            indices: vec![Vec::new(); options.indices.len()],
            texts: vec![Vec::new(); options.texts.len() + options.categories.len()],
            weights: Vec::new(),
        })
    }

    /// The columns that are used, of which a row needs the fields.
    #[cfg(feature = "parquet")]
    pub(super) fn used(&self) -> Vec<usize> {
        let features = self.chosen.iter().map(FeatureColumn::index);
        let labels = self.labels.iter().flat_map(|label| &label.columns);
        features.chain(labels.copied()).chain(self.weight).collect()
    }

    /// The columns whose values are texts or names, whatever numbers stand there.
    #[cfg(feature = "parquet")]
    pub(super) fn texts_and_names(&self) -> impl Iterator<Item = usize> + '_ {
        let is_number = |column: &FeatureColumn<'_>| {
            matches!(column, FeatureColumn::Number(_) | FeatureColumn::Index(..))
        };
        let others = self.chosen.iter().filter(move |column| !is_number(column));
        others.map(FeatureColumn::index)
    }

    /// Whether the file has a single column.
    pub(super) const fn is_of_one_column(&self) -> bool {
        self.columns == 1
    }

    pub(super) fn push(&mut self, row: &dyn RowPlace, fields: &[Cow<'_, str>]) -> Result<()> {
        if fields.len() != self.columns {
            return Err(row.error(&format!(
                "found {} columns, expected {} as in the first line; complete or remove the row",
                fields.len(),
                self.columns
            )));
        }
        if self.rows == self.options.max_rows {
            return Err(row.error(&format!(
                "found more than {} rows; shorten the file, or raise max_rows",
                self.options.max_rows
            )));
        }
        let features = self.features.len();
        let mut is_whole = true;
        for chosen in 0..self.chosen.len() {
            let column = self.chosen[chosen].index();
            is_whole &= self.push_features(row, chosen, &fields[column])?;
        }
        for label in 0..self.labels.len() {
            is_whole &= self.push_label(row, label, fields)?;
        }
        if let Some(weight) = self.weight {
            is_whole &= self.push_weight(row, weight, &fields[weight])?;
        }
        if is_whole {
            self.rows += 1;
        } else {
            self.dropped += 1;
            self.features.truncate(features);
            self.indices
                .iter_mut()
                .for_each(|list| list.truncate(self.rows));
            self.texts
                .iter_mut()
                .for_each(|list| list.truncate(self.rows));
            let rows = self.rows;
            self.labels
                .iter_mut()
                .for_each(|label| label.truncate(rows));
            self.weights.truncate(self.rows);
        }
        Ok(())
    }

    /// Adds a weight; `false` where it is missing.
    fn push_weight(&mut self, row: &dyn RowPlace, column: usize, field: &str) -> Result<bool> {
        if self.options.looks_for_missing() && is_missing(field.trim()) {
            return Ok(false);
        }
        let weight = number(field, ADVICE).and_then(|weight| match weight >= 0.0 {
            true => Ok(weight),
            false => Err(format!(
                "found {}, expected a weight from 0 up; correct it, 0 leaves a row out",
                shown(field)
            )),
        });
        let weight = weight.map_err(|message| self.error(row, column, &message))?;
        self.weights.push(weight);
        Ok(true)
    }

    /// Adds a label; `false` where a column of it is missing.
    fn push_label(
        &mut self,
        row: &dyn RowPlace,
        label: usize,
        fields: &[Cow<'_, str>],
    ) -> Result<bool> {
        for place in 0..self.labels[label].columns.len() {
            let column = self.labels[label].columns[place];
            let field = &fields[column];
            if self.options.looks_for_missing() && is_missing(field.trim()) {
                return Ok(false);
            }
            let pushed = self.labels[label].push(field);
            pushed.map_err(|message| self.error(row, column, &message))?;
        }
        Ok(true)
    }

    /// Adds the features of a column; `false` where they are missing and the row is left out for that.
    fn push_features(&mut self, row: &dyn RowPlace, chosen: usize, field: &str) -> Result<bool> {
        let looks_for_missing = self.options.looks_for_missing();
        let keeps = self.options.missing == MissingValues::Keep;
        let text = field.trim();
        match &self.chosen[chosen] {
            FeatureColumn::Number(_) if looks_for_missing && is_missing(text) => {
                self.features.push(f32::NAN);
                Ok(keeps)
            }
            FeatureColumn::Number(column) => {
                let value = number(field, ADVICE_FOR_FEATURES)
                    .map_err(|message| self.error(row, *column, &message))?;
                self.features.push(value);
                Ok(true)
            }
            FeatureColumn::Index(column, place) => {
                if self.options.missing == MissingValues::Drop && is_missing(text) {
                    return Ok(false);
                }
                let value = index(field).map_err(|message| self.error(row, *column, &message))?;
                self.indices[*place].push(value);
                Ok(true)
            }
            FeatureColumn::Text(column, place) => {
                if text.is_empty() && !keeps {
                    let is_dropped = self.options.missing == MissingValues::Drop;
                    return match is_dropped {
                        true => Ok(false),
                        false => Err(self.error(row, *column, NO_TEXT)),
                    };
                }
                self.texts[*place].push(field.to_owned());
                Ok(true)
            }
            FeatureColumn::Category(column, place) => {
                let is_there = !(text.is_empty() || looks_for_missing && is_missing(text));
                if !is_there && !looks_for_missing {
                    return Err(self.error(row, *column, NO_NAME));
                }
                self.texts[*place].push(if is_there { text } else { "" }.to_owned());
                Ok(is_there || keeps)
            }
            FeatureColumn::OneHot(column, values, places) => {
                let start = self.features.len();
                if looks_for_missing && is_missing(text) {
                    self.features.resize(start + values.len(), 0.0);
                    return Ok(keeps);
                }
                let Some(place) = places.get(text) else {
                    return Err(self.error(row, *column, &unknown_value(field, values)));
                };
                let hot = start + place;
                self.features.resize(start + values.len(), 0.0);
                self.features[hot] = 1.0;
                Ok(true)
            }
        }
    }

    fn error(&self, row: &dyn RowPlace, column: usize, message: &str) -> Error {
        let name = self.names.get(column).map_or("", String::as_str);
        row.error_at(column, name, message)
    }

    pub(super) fn finish(self, row: &dyn RowPlace) -> Result<CsvArrays> {
        if self.rows == 0 && self.dropped > 0 {
            return Err(row.error(&format!(
                "each of the {} rows has a missing value, so that none is left; fill the values, or choose other columns",
                self.dropped
            )));
        }
        if self.rows == 0 {
            return Err(row.error("found a header and no row, expected rows of numbers; check that the file is complete"));
        }
        let rows = self.rows;
        let dims = match &self.options.features[..] {
            [] => vec![rows, self.features.len() / rows],
            features => [&[rows], features].concat(),
        };
        let y = self.labels.iter().map(|label| label.array(rows));
        let weight = self.weight.map(|_| HostTensor::new([rows], &self.weights));
        let has_numbers = self.chosen.iter().any(|column| column.width() > 0);
        let numbers = has_numbers.then(|| HostTensor::new(dims, &self.features));
        let indices = self.indices.iter();
        let indices = indices.map(|list| HostTensor::new([rows], list));
        let feature_columns = self.chosen.iter().flat_map(|column| {
            let index = column.index();
            let name = self.names.get(index).map(|name| shown(name));
            let name = name.unwrap_or_else(|| format!("{index} (counted from 0)"));
            std::iter::repeat_n(name, column.width())
        });
        let one_hot = self.chosen.iter().flat_map(|column| {
            let is_one_hot = matches!(column, FeatureColumn::OneHot(..));
            std::iter::repeat_n(is_one_hot, column.width())
        });
        Ok(CsvArrays {
            feature_columns: feature_columns.collect(),
            one_hot: one_hot.collect(),
            names: self.names,
            rows: Batch {
                x: numbers.into_iter().chain(indices).collect(),
                y: y.collect(),
                weight,
                first: 0,
            },
            texts: self.texts,
            dropped: self.dropped,
        })
    }
}

/// The column of the weights, if there is one.
fn weight_column(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    options: &CsvOptions,
    labels: &[usize],
) -> Result<Option<usize>> {
    let weight = options.weight.iter();
    let weight = weight.map(|column| column_of(row, names, columns, column, "weight column"));
    let weight = weight.collect::<Result<Vec<usize>>>()?.pop();
    if weight.is_some_and(|weight| labels.contains(&weight)) {
        return Err(
            row.error("the column of the weights is also the label; say which column is the label")
        );
    }
    Ok(weight)
}

/// The columns of the features, which are neither the weights nor, unless it may be, the label.
fn columns_of_features(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    options: &CsvOptions,
    (labels, weight): (&[usize], Option<usize>),
) -> Result<Vec<usize>> {
    let chosen = options.columns.iter();
    let chosen = chosen.map(|column| column_of(row, names, columns, column, "column"));
    let mut chosen = chosen.collect::<Result<Vec<usize>>>()?;
    let labels = if options.label_is_feature {
        &[]
    } else {
        labels
    };
    let weights: Vec<usize> = weight.into_iter().collect();
    for (what, columns) in [("label is", labels), ("weights are", &weights)] {
        if columns.iter().any(|column| chosen.contains(column)) {
            return Err(row.error(&format!(
                "the {what} also among the columns of the features; leave the column out of them"
            )));
        }
    }
    let twice = (1..chosen.len()).find(|&at| chosen[..at].contains(&chosen[at]));
    if let Some(at) = twice {
        return Err(row.error(&format!(
            "column {} is among the columns of the features twice; name it once",
            chosen[at] + 1
        )));
    }
    if chosen.is_empty() {
        let is_feature = |column: &usize| !labels.contains(column) && weight != Some(*column);
        chosen = (0..columns).filter(is_feature).collect();
    }
    Ok(chosen)
}

pub(super) fn label_column(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    label: &LabelColumn,
) -> Result<Option<usize>> {
    match label {
        LabelColumn::None => Ok(None),
        LabelColumn::Last => Ok(Some(columns - 1)),
        LabelColumn::Index(index) if *index < columns => Ok(Some(*index)),
        LabelColumn::Index(index) => Err(row.error(&format!(
            "label column {index} (counted from 0) is not among the {columns} columns found; \
             choose an index below {columns}, or check the delimiter"
        ))),
        LabelColumn::Name(name) => named_column(row, names, name, "label column").map(Some),
    }
}

/// The index of a column; `what` it is in messages.
pub(super) fn column_of(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    column: &CsvColumn,
    what: &str,
) -> Result<usize> {
    match column {
        CsvColumn::Name(name) => named_column(row, names, name, what),
        CsvColumn::Index(index) if *index < columns => Ok(*index),
        CsvColumn::Index(index) => Err(row.error(&format!(
            "{what} {index} (counted from 0) is not among the {columns} columns found; choose indices below {columns}"
        ))),
    }
}

/// The column of this name; `what` it is in messages.
pub(super) fn named_column(
    row: &dyn RowPlace,
    names: &[String],
    name: &str,
    what: &str,
) -> Result<usize> {
    let found: Vec<usize> = (0..names.len())
        .filter(|&column| names[column] == name)
        .collect();
    match (&found[..], names) {
        ([column], _) => Ok(*column),
        ([], []) => Err(row.error(&format!(
            "{what} is named {name:?} but the first line holds numbers; give the column's index, or add a header"
        ))),
        ([], [only]) if only.contains([';', '\t', '|']) => Err(row.error(&format!(
            "found no column named {name:?}, but a single one, {}; say which character is between fields (`delimiter: \";\"`)",
            shown(only)
        ))),
        ([], _) => {
            Err(row.error(&format!(
                "found no column named {name:?}; choose the {what} among {}",
                first_names(names)
            )))
        }
        ([first, second, ..], _) => Err(row.error(&format!(
            "columns {} and {} are both named {name:?}; rename one, or give the {what} by index",
            first + 1,
            second + 1
        ))),
    }
}

fn check_features(row: &dyn RowPlace, columns: usize, options: &CsvOptions) -> Result<()> {
    let dims = &options.features;
    let product = dims
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim));
    if !dims.is_empty() && product != Some(columns) {
        let needed = product.map_or_else(|| "too many".into(), |product| product.to_string());
        return Err(row.error(&format!(
            "found {columns} feature columns, expected {needed} for dims {dims:?}; correct the dims, the label column or the delimiter"
        )));
    }
    Ok(())
}

pub(super) fn number(field: &str, about_words: &'static str) -> std::result::Result<f32, String> {
    let text = field.trim();
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => flag(text).map(f32::from).ok_or_else(|| {
            format!(
                "found {}, expected a number; {}",
                shown(field),
                advice(text, about_words)
            )
        }),
    }
}

/// What `true` and `false` are, as Python, R and JSON write them.
pub(super) fn flag(field: &str) -> Option<u8> {
    match field.trim() {
        "true" | "True" | "TRUE" => Some(1),
        "false" | "False" | "FALSE" => Some(0),
        _ => None,
    }
}

pub(super) fn class(field: &str) -> std::result::Result<i32, String> {
    let text = field.trim();
    if let Some(class) = flag(text) {
        return Ok(class.into());
    }
    let value = text.parse::<f64>().unwrap_or(f64::NAN);
    if value.fract() == 0.0 && value >= 0.0 && value <= f64::from(i32::MAX) {
        return Ok(value as i32);
    }
    let advice = if value.is_finite() {
        "number the classes from 0, or read the label as a value (regression)"
    } else {
        advice(text, ADVICE)
    };
    Err(format!(
        "found {}, expected a class from 0 to {}; {advice}",
        shown(field),
        i32::MAX
    ))
}

fn index(field: &str) -> std::result::Result<i32, String> {
    let text = field.trim();
    if let Ok(index @ 0..) = text.parse::<i32>() {
        return Ok(index);
    }
    let value = text.parse::<f64>().unwrap_or(f64::NAN);
    if value.fract() == 0.0 && (0.0..=f64::from(i32::MAX)).contains(&value) {
        return Ok(value as i32);
    }
    let advice = match value.is_finite() {
        true => {
            "number what the column names from 0, or give the input a list of columns of numbers"
        }
        false if is_missing(text) => "fill in the missing value, or leave such rows out",
        false => "number what the column names from 0",
    };
    Err(format!(
        "found {}, expected an index, a whole number from 0 to {}; {advice}",
        shown(field),
        i32::MAX
    ))
}

pub(super) fn unknown_class(field: &str, classes: &[String]) -> String {
    format!(
        "found {}, expected one of the classes {}; correct the label, or add it to the classes",
        shown(field),
        first_names(classes)
    )
}

/// The first ten of some names, for a message.
pub(super) fn first_names(names: &[String]) -> String {
    let listed: Vec<String> = names.iter().take(10).map(|name| shown(name)).collect();
    let more = if names.len() > 10 { ", .." } else { "" };
    listed.join(", ") + more
}

/// Whether a trimmed field stands for a value that is not there.
pub(super) fn is_missing(text: &str) -> bool {
    const WORDS: [&str; 7] = ["na", "nan", "n/a", "null", "none", "nil", "?"];
    text.is_empty() || WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

const NO_TEXT: &str = "found no text; write one, or leave such rows out (`missing: drop`), or read it as padding alone (`missing: 0`)";
const NO_NAME: &str = "found nothing that names something; fill it in, or leave such rows out (`missing: drop`), or read it as the number 0 (`missing: 0`)";
pub(super) const ADVICE: &str = "correct the value, or encode text as numbers";
const ADVICE_FOR_FEATURES: &str = "correct the value, or name the column in `one_hot` if it holds names, in `text` if it holds sentences, or leave it out by `columns`";

/// What to do about a field that is no finite number; `about_words` where it is some other word.
fn advice(text: &str, about_words: &'static str) -> &'static str {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    match text.to_ascii_lowercase().as_str() {
        "" => {
            "fill in the missing value or remove the row, or say what is done about such fields (`missing: mean` or `drop`)"
        }
        "nan" | "na" | "n/a" | "null" | "none" | "?" | "-nan" | "nil" => {
            "replace the missing value or remove the row, or say what is done about such fields (`missing: mean` or `drop`)"
        }
        "true" | "false" | "yes" | "no" | "t" | "f" | "y" | "n" => "write 1 and 0",
        lower if is_number(lower) => "bring the value into the range of f32 or remove the row",
        lower if lower.contains(',') && is_number(&lower.replace(',', ".")) => {
            "write decimals with a point, or say that they have a comma (`decimal: \",\"`)"
        }
        // A sentence has them between its words.
        lower if lower.contains(['\n', ' ']) => about_words,
        lower if lower.contains(['\t', ';', '|', ',']) => "check the delimiter",
        lower if lower.contains('\0') => "check that the file is text in utf-8",
        _ => about_words,
    }
}
