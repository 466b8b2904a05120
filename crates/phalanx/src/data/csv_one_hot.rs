//! Columns of a CSV file that are no numbers: indices, texts, and names of which each is a feature of its own, 1 where a row has it.

use std::collections::{BTreeSet, HashMap};

use super::csv::{CsvColumn, CsvOptions, LabelColumn};
use super::csv_header::is_number;
use super::csv_lines::{RowPlace, shown};
use super::csv_table::{column_of, first_names, is_missing, label_column};
use crate::Result;

/// A column whose values are texts or numbers that name something, and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneHotColumn {
    /// The column.
    pub column: CsvColumn,
    /// Its values, each of which is a feature in place of the column: 1 in the rows that have the value, 0 in all others.
    pub values: Vec<String>,
}

/// Where a row's features come from.
pub(super) enum FeatureColumn<'a> {
    Number(usize),
    /// A column, and its place among the columns of indices.
    Index(usize, usize),
    /// A column, and its place among the columns of texts.
    Text(usize, usize),
    /// A column of categories, and its place behind the columns of texts.
    Category(usize, usize),
    /// A column, its values, and where each is among them.
    OneHot(usize, &'a [String], HashMap<&'a str, usize>),
}

impl FeatureColumn<'_> {
    pub(super) const fn index(&self) -> usize {
        match self {
            Self::Number(index)
            | Self::Index(index, _)
            | Self::Text(index, _)
            | Self::Category(index, _)
            | Self::OneHot(index, ..) => *index,
        }
    }

    /// Number of features; an index, a text or a category is none.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Index(..) | Self::Text(..) | Self::Category(..) => 0,
            Self::Number(_) => 1,
            Self::OneHot(_, values, _) => values.len(),
        }
    }
}

/// The columns at these positions, as the options say what they hold.
pub(super) fn feature_columns<'a>(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    chosen: &[usize],
    options: &'a CsvOptions,
) -> Result<Vec<FeatureColumn<'a>>> {
    let find = |column: &CsvColumn, what: &str| {
        let found = column_of(row, names, columns, column, &format!("{what} column"))?;
        if chosen.contains(&found) {
            return Ok(found);
        }
        let name = names
            .get(found)
            .map_or_else(|| found.to_string(), |name| shown(name));
        Err(row.error(&format!(
            "column {name} is {what} and none of the features; add it to the columns, or leave it out of both"
        )))
    };
    let mut values = HashMap::new();
    for OneHotColumn { column, values: of } in &options.one_hot {
        values.insert(find(column, "one-hot")?, of);
    }
    let mut places = HashMap::new();
    for (place, column) in options.indices.iter().enumerate() {
        let found = find(column, "index")?;
        if values.contains_key(&found) || places.insert(found, place).is_some() {
            return Err(row.error(&format!(
                "column {} of the indices is named twice, or one-hot too; name it once",
                found + 1
            )));
        }
    }
    let mut texts = HashMap::new();
    let of_texts = options.texts.iter().map(|column| (column, "text", "texts"));
    let of_names = options.categories.iter();
    let of_names = of_names.map(|column| (column, "category", "categories"));
    for (place, (column, what, many)) in of_texts.chain(of_names).enumerate() {
        let found = find(column, what)?;
        let is_other = values.contains_key(&found) || places.contains_key(&found);
        if is_other || texts.insert(found, place).is_some() {
            return Err(row.error(&format!(
                "column {} of the {many} is named twice, or an index or one-hot too; name it once",
                found + 1
            )));
        }
    }
    let feature = |&column: &usize| match (values.get(&column), places.get(&column)) {
        (Some(of), _) => {
            FeatureColumn::OneHot(column, of, of.iter().map(String::as_str).zip(0..).collect())
        }
        (None, Some(&place)) => FeatureColumn::Index(column, place),
        (None, None) => match texts.get(&column) {
            Some(&place) if place < options.texts.len() => FeatureColumn::Text(column, place),
            Some(&place) => FeatureColumn::Category(column, place),
            None => FeatureColumn::Number(column),
        },
    };
    Ok(chosen.iter().map(feature).collect())
}

pub(super) fn unknown_value(field: &str, values: &[String]) -> String {
    format!(
        "found {}, expected one of the values {}; correct the value, or train with rows that have it",
        shown(field),
        first_names(values)
    )
}

/// A column whose different texts are collected.
#[derive(Clone, Copy)]
pub(super) enum TextColumn<'a> {
    Label(&'a LabelColumn),
    Feature(&'a CsvColumn),
}

impl TextColumn<'_> {
    /// The column's index, `None` where there is no label.
    pub(super) fn index(
        self,
        row: &dyn RowPlace,
        names: &[String],
        columns: usize,
    ) -> Result<Option<usize>> {
        match self {
            Self::Label(label) => label_column(row, names, columns, label),
            Self::Feature(column) => {
                column_of(row, names, columns, column, "one-hot column").map(Some)
            }
        }
    }

    /// Adds the text of a field to those before; `false` where it is the label and the first one is a number.
    ///
    /// # Errors
    /// A message where there are too many.
    pub(super) fn add(
        self,
        field: &str,
        options: &CsvOptions,
        texts: &mut BTreeSet<String>,
    ) -> std::result::Result<bool, String> {
        let text = field.trim();
        if self.is_missing(text, options) || texts.contains(text) {
            return Ok(true);
        }
        if self.is_label() && texts.is_empty() && is_number(text) {
            return Ok(false);
        }
        texts.insert(text.to_owned());
        let (most, what) = (self.most(), self.too_many());
        match texts.len() > most {
            true => Err(format!("found more than {most} different texts in {what}")),
            false => Ok(true),
        }
    }

    /// Whether the texts that were found say what the values are, which they do not where labels are missing.
    pub(super) fn are_whole(self, texts: &BTreeSet<String>) -> bool {
        !self.is_label() || !texts.is_empty()
    }

    /// Whether the first text may be the column's name: all other labels are numbers, or it is the only text of those that are there `once`.
    pub(super) fn is_alone(
        self,
        first: &str,
        once: &BTreeSet<String>,
        texts: &BTreeSet<String>,
    ) -> bool {
        let mut others = texts.iter().filter(|text| *text != first);
        let has_first = texts.contains(first) && !is_number(first);
        let is_only = once.len() == 1 && once.contains(first);
        self.is_label()
            && has_first
            && texts.len() > 1
            && (is_only || others.all(|text| is_number(text)))
    }

    const fn is_label(self) -> bool {
        matches!(self, Self::Label(_))
    }

    /// The most different texts.
    const fn most(self) -> usize {
        match self {
            Self::Label(_) => 1 << 16,
            Self::Feature(_) => 1 << 12,
        }
    }

    const fn too_many(self) -> &'static str {
        match self {
            Self::Label(_) => {
                "the label column, expected the names of classes; say which column is the label"
            }
            Self::Feature(_) => {
                "a one-hot column, each of which becomes a feature; leave the column out, or number its values"
            }
        }
    }

    /// Whether a field has no text to collect.
    fn is_missing(self, text: &str, options: &CsvOptions) -> bool {
        match self {
            Self::Label(_) => is_missing(text),
            // Words such as `none` are values unless missing values are looked for.
            Self::Feature(_) => text.is_empty() || options.looks_for_missing() && is_missing(text),
        }
    }
}
