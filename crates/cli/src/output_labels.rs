//! The labels of a model that has several outputs.

use std::collections::HashSet;

use phalanx::Result as Read;
use phalanx::data::{CsvLabel, CsvOptions, LabelColumn, LabelKind, csv_label_texts};
use serde::{Deserialize, Serialize};

use crate::config::{Csv, CsvOutput};

/// The label of one output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelFact {
    /// The name of the output.
    pub name: String,
    /// The names of its columns.
    pub columns: Vec<String>,
    /// Whether it is a class; else it is values.
    pub is_class: bool,
    /// The names of the classes; empty where they are numbers from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

/// The labels that `data` names, with the classes of those that are texts in the files.
pub(crate) fn found(data: &Csv, options: &CsvOptions) -> Read<Vec<LabelFact>> {
    let fact = |output: &CsvOutput| {
        let column = LabelColumn::Name(output.columns[0].clone());
        let options = CsvOptions {
            label: column,
            ..options.clone()
        };
        let paths = data.csv.iter().map(|path| &path.value);
        let classes = match output.is_class {
            true => csv_label_texts(paths, &options)?.unwrap_or_default(),
            false => Vec::new(),
        };
        Ok(LabelFact {
            name: output.name.clone(),
            columns: output.columns.clone(),
            is_class: output.is_class,
            classes,
        })
    };
    data.labels.value.iter().map(fact).collect()
}

/// How they are read.
pub(crate) fn options(labels: &[LabelFact]) -> Vec<CsvLabel> {
    let labels = labels.iter().map(|fact| CsvLabel {
        columns: fact.columns.clone(),
        kind: match fact.is_class {
            true => LabelKind::Class,
            false => LabelKind::Value,
        },
        classes: fact.classes.clone(),
    });
    labels.collect()
}

/// The different columns of the labels that `data` names.
pub(crate) fn columns(data: &Csv) -> HashSet<&String> {
    let outputs = data.labels.value.iter();
    outputs.flat_map(|output| &output.columns).collect()
}
