//! The labels of a CSV file: one column, or of a model with several outputs the columns of each.

use std::collections::HashMap;

use phalanx_graph::HostTensor;

use super::csv::{CsvOptions, LabelKind};
use super::csv_lines::RowPlace;
use super::csv_table::{ADVICE, class, label_column, named_column, number, unknown_class};
use crate::Result;

/// The label of one output of a model that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvLabel {
    /// Its columns, by their names in the header: one of a class, one or more of values.
    pub columns: Vec<String>,
    /// What they hold. A class is i32 `[rows]`, values are f32 `[rows, columns]`.
    pub kind: LabelKind,
    /// The names of the classes, as [`CsvOptions::classes`].
    pub classes: Vec<String>,
}

/// What was read of one label.
pub(super) struct LabelValues<'a> {
    /// Its columns, at least one.
    pub(super) columns: Vec<usize>,
    kind: LabelKind,
    names: &'a [String],
    classes_by_name: HashMap<&'a str, i32>,
    is_list: bool,
    classes: Vec<i32>,
    values: Vec<f32>,
}

/// The label and the labels of outputs, in this order.
pub(super) fn label_values<'a>(
    row: &dyn RowPlace,
    names: &[String],
    columns: usize,
    options: &'a CsvOptions,
) -> Result<Vec<LabelValues<'a>>> {
    let one = label_column(row, names, columns, &options.label)?;
    let one = one.map(|column| LabelValues::new(vec![column], options.kind, &options.classes));
    let mut all: Vec<LabelValues<'_>> = one.into_iter().collect();
    for label in &options.labels {
        let columns = label.columns.iter();
        let columns = columns.map(|name| named_column(row, names, name, "label column"));
        let columns = columns.collect::<Result<Vec<usize>>>()?;
        let is_list = label.kind == LabelKind::Value;
        if columns.is_empty() || !is_list && columns.len() > 1 {
            let found = columns.len();
            return Err(row.error(&format!(
                "a label of an output has {found} columns, expected one of a class, or one or more of values; correct the labels"
            )));
        }
        let values = LabelValues::new(columns, label.kind, &label.classes);
        all.push(LabelValues { is_list, ..values });
    }
    Ok(all)
}

impl<'a> LabelValues<'a> {
    fn new(columns: Vec<usize>, kind: LabelKind, names: &'a [String]) -> Self {
        Self {
            columns,
            kind,
            names,
            classes_by_name: names.iter().map(String::as_str).zip(0..).collect(),
            is_list: false,
            classes: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Adds what a field of one of its columns says, or why it cannot be.
    pub(super) fn push(&mut self, field: &str) -> std::result::Result<(), String> {
        match self.kind {
            LabelKind::Value => self.values.push(number(field, ADVICE)?),
            LabelKind::Class if self.names.is_empty() => self.classes.push(class(field)?),
            LabelKind::Class => {
                let class = self.classes_by_name.get(field.trim());
                let class = class.ok_or_else(|| unknown_class(field, self.names))?;
                self.classes.push(*class);
            }
        }
        Ok(())
    }

    /// Takes back what is behind this number of rows.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.classes.truncate(rows * self.columns.len());
        self.values.truncate(rows * self.columns.len());
    }

    /// The label of all rows.
    pub(super) fn array(&self, rows: usize) -> HostTensor {
        match (self.kind, self.is_list) {
            (LabelKind::Class, _) => HostTensor::new([rows], &self.classes),
            (LabelKind::Value, false) => HostTensor::new([rows], &self.values),
            (LabelKind::Value, true) => HostTensor::new([rows, self.columns.len()], &self.values),
        }
    }
}
