//! Whether the first line of a CSV file names the columns.

use std::borrow::Cow;

use super::csv::{CsvColumn, CsvOptions, Header, LabelColumn, LabelKind};
use super::csv_lines::{CsvLines, RowPlace, shown};
use super::csv_table::{flag, is_missing};
use crate::Result;

/// The column names, empty when the first line is data.
pub(super) fn header(
    lines: &CsvLines<'_>,
    fields: &[Cow<'_, str>],
    options: &CsvOptions,
) -> Result<Vec<String>> {
    let named = match options.header {
        Header::Yes => true,
        Header::No => false,
        Header::Auto => is_header(lines, fields, options)?,
    };
    let names = fields.iter().map(|field| field.trim().to_owned());
    Ok(if named { names.collect() } else { Vec::new() })
}

/// Whether the first line holds text and no number. A row of numbers with a text as label, in a column that is one-hot, of texts or not used, or
/// in place of a missing value that is allowed is no header, unless the numbers count columns.
fn is_header(lines: &CsvLines<'_>, fields: &[Cow<'_, str>], options: &CsvOptions) -> Result<bool> {
    let Some(first) = fields.iter().position(|field| is_text(field)) else {
        return match count_columns(fields) {
            true => Err(lines.error_at(0, "", &may_be_names(fields))),
            false => Ok(false),
        };
    };
    if !fields
        .iter()
        .any(|field| is_number(field) || is_flag(field))
    {
        return Ok(true);
    }
    let may_be_text = may_be_text(fields, options);
    let mut texts = (first..fields.len()).filter(|&column| is_text(&fields[column]));
    let wrong = texts.find(|&column| !may_be_text(column));
    match wrong.or_else(|| count_columns(fields).then_some(first)) {
        None => Ok(false),
        Some(column) => Err(lines.error_at(column, "", &may_be_header(&fields[column]))),
    }
}

pub(super) fn is_number(field: &str) -> bool {
    field.trim().parse::<f64>().is_ok()
}

/// Whether a field says `true` or `false`, which are the numbers 1 and 0.
fn is_flag(field: &str) -> bool {
    flag(field).is_some()
}

fn is_text(field: &str) -> bool {
    !field.trim().is_empty() && !is_number(field) && !is_flag(field)
}

/// In which columns of the first line a text is no sign of a header.
fn may_be_text<'a>(
    fields: &'a [Cow<'_, str>],
    options: &'a CsvOptions,
) -> impl Fn(usize) -> bool + 'a {
    let label = match (&options.label, options.kind) {
        (LabelColumn::Last, LabelKind::Class) => fields.len().checked_sub(1),
        (LabelColumn::Index(index), LabelKind::Class) => Some(*index),
        _ => None,
    };
    let is_unused = |column: usize| {
        let by_index = |used: &CsvColumn| matches!(used, CsvColumn::Index(_));
        let all_by_index = !options.columns.is_empty() && options.columns.iter().all(by_index);
        all_by_index && !options.columns.contains(&CsvColumn::Index(column))
    };
    let is_one_hot = |column: usize| {
        let mut one_hot = options.one_hot.iter();
        one_hot.any(|one_hot| one_hot.column == CsvColumn::Index(column))
            || options.texts.contains(&CsvColumn::Index(column))
            || options.categories.contains(&CsvColumn::Index(column))
    };
    move |column| {
        let is_allowed = options.looks_for_missing() && is_missing(fields[column].trim());
        Some(column) == label || is_allowed || is_unused(column) || is_one_hot(column)
    }
}

/// Whether all numbers of the first line are whole and rise evenly with their columns, as positions (so pandas names columns), years and wave
/// lengths do. One or two may well be the values of a row, such as flags.
fn count_columns(fields: &[Cow<'_, str>]) -> bool {
    let numbers = (0i128..).zip(fields);
    let numbers = numbers.filter(|(_, field)| is_number(field));
    let whole = |field: &str| field.trim().parse::<u64>().ok().map(i128::from);
    let places: Option<Vec<(i128, i128)>> = numbers
        .map(|(column, field)| Some((column, whole(field)?)))
        .collect();
    match places.as_deref() {
        Some([(first, from), (second, to), rest @ ..]) if to > from && !rest.is_empty() => {
            rest.iter().all(|(column, number)| {
                (number - from) * (second - first) == (to - from) * (column - first)
            })
        }
        _ => false,
    }
}

/// Whether names stand above numbers in other columns than this one, of texts, so that there is no doubt. What stands for a missing number,
/// or above a column of texts, may be of a row.
pub(super) fn names_columns(
    names: &[String],
    row: &[Cow<'_, str>],
    texts: usize,
    options: &CsvOptions,
) -> bool {
    let first: Vec<Cow<'_, str>> = names.iter().map(Into::into).collect();
    let may_be_text = may_be_text(&first, options);
    let mut columns = names.iter().zip(row).enumerate();
    columns.any(|(column, (name, field))| {
        let is_name = is_text(name) && !is_missing(name.trim()) && !may_be_text(column);
        column != texts && is_name && (is_number(field) || is_flag(field))
    })
}

fn may_be_names(fields: &[Cow<'_, str>]) -> String {
    format!(
        "found numbers that count up from {}, which may be the names of columns or a row; \
         say whether there is a header (`header: true` or `header: false`)",
        shown(fields[0].trim())
    )
}

pub(super) fn is_value_too(found: &str) -> String {
    format!(
        "found {}, which is also a value in its column, where the first line holds no numbers; \
         say whether there is a header (`header: true` or `header: false`)",
        shown(found)
    )
}

pub(super) fn may_be_header(found: &str) -> String {
    format!(
        "found {} in a first line that also holds numbers, expected names or numbers alone; \
         correct the value, or say whether there is a header (`header: true` or `header: false`)",
        shown(found)
    )
}
