//! Columns that name something: the names of the training rows, which are kept with the model, and rows as their numbers.

use phalanx::Result as Read;
use phalanx::data::{CsvColumns, Dataset, HostTensor, Vocabulary};
use serde::{Deserialize, Serialize};

use crate::config::{Csv, CsvCategory, Problem};
use crate::texts::{in_rows, position};

/// What Keras calls unknown values: as a name it is none of its own.
const UNKNOWN: &str = "[UNK]";

/// A column that names something, and the numbers of the names: Keras' `StringLookup` with `""` as `mask_token`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoryFact {
    /// Its position in the files.
    pub index: usize,
    /// Its name; empty without a header.
    pub name: String,
    /// The names that have numbers of their own, from 2 on.
    pub values: Vec<String>,
}

impl CategoryFact {
    /// The column as people call it.
    pub(crate) fn shown(&self) -> String {
        match self.name.is_empty() {
            true => format!("column {}", self.index),
            false => self.name.clone(),
        }
    }

    /// How many numbers there are.
    pub(crate) const fn size(&self) -> usize {
        self.values.len() + 2
    }

    /// The numbers of names, of which an empty one is missing: i32 `[names]`.
    pub(crate) fn encode(&self, names: &[&String]) -> Read<HostTensor> {
        let vocabulary = Vocabulary::new(self.values.iter().map(String::as_str))?;
        let number = |name: &&String| match name.is_empty() {
            true => Vocabulary::<&str>::PADDING,
            false => vocabulary.index(name.as_str()),
        };
        let numbers: Vec<i32> = names.iter().map(number).collect();
        Ok(HostTensor::new([numbers.len()], &numbers))
    }
}

/// The columns of categories, with the names of these rows, those to train on; `columns` has the texts of all.
///
/// # Errors
/// A row whose names are not there, at the line that names the column.
pub(crate) fn of_training(
    data: &Csv,
    header: &[String],
    train: &Dataset,
    columns: &CsvColumns,
) -> Result<Vec<CategoryFact>, Problem> {
    let of_column = |(place, category): (usize, &CsvCategory)| {
        let names = in_rows(train, data.text.len() + place, columns.texts());
        let names = names.map_err(|error| {
            let next = "correct the column";
            Problem::new(category.column.at, error.to_string(), next)
        })?;
        let own = |name: &&str| !name.is_empty() && *name != UNKNOWN;
        let names = names.into_iter().map(String::as_str).filter(own);
        let (limit, least) = (category.vocabulary, category.min_count);
        let index = position(header, &category.column.value);
        let values = Vocabulary::adapt_frequent(names, limit, least);
        Ok(CategoryFact {
            index,
            name: header.get(index).cloned().unwrap_or_default(),
            values: values.keys().iter().map(|&name| name.to_owned()).collect(),
        })
    };
    data.category.iter().enumerate().map(of_column).collect()
}
