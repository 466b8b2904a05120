//! Columns that name something: the names of the training rows, which are kept with the model, and rows as their numbers.

use phalanx::Result as Read;
use phalanx::data::{CsvColumns, Dataset, HostTensor, Vocabulary, hash_bucket};
use serde::{Deserialize, Serialize};

use crate::config::{Csv, CsvCategory, Problem};
use crate::texts::{in_rows, position};

/// What Keras calls unknown values: as a name it is none of its own.
const UNKNOWN: &str = "[UNK]";

/// A column that names something, and the numbers of the names: Keras' `StringLookup` with `""` as `mask_token`, or `Hashing` with `""` as
/// `mask_value`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoryFact {
    /// Its position in the files.
    pub index: usize,
    /// Its name; empty without a header.
    pub name: String,
    /// The names that have numbers of their own, from 2 on; none where they are hashed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// The number of bins, where names are hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<u32>,
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
        match self.hash {
            Some(bins) => bins as usize,
            None => self.values.len() + 2,
        }
    }

    /// The numbers of names, of which an empty one is missing: i32 `[names]`.
    pub(crate) fn encode(&self, names: &[&String]) -> Read<HostTensor> {
        let vocabulary = Vocabulary::new(self.values.iter().map(String::as_str))?;
        let number = |name: &&String| match (name.is_empty(), self.hash) {
            (true, _) => Vocabulary::<&str>::PADDING,
            (false, Some(bins)) => 1 + hash_bucket(name.as_bytes(), bins.saturating_sub(1)),
            (false, None) => vocabulary.index(name.as_str()),
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
        let index = position(header, &category.column.value);
        let fact = CategoryFact {
            index,
            name: header.get(index).cloned().unwrap_or_default(),
            values: Vec::new(),
            hash: category.hash,
        };
        if category.hash.is_some() {
            return Ok(fact);
        }
        let names = in_rows(train, data.text.len() + place, columns.texts());
        let names = names.map_err(|error| {
            let next = "correct the column";
            Problem::new(category.column.at, error.to_string(), next)
        })?;
        let own = |name: &&str| !name.is_empty() && *name != UNKNOWN;
        let names = names.into_iter().map(String::as_str).filter(own);
        let (limit, least) = (category.vocabulary, category.min_count);
        let values = Vocabulary::adapt_frequent(names, limit, least);
        let values = values.keys().iter().map(|&name| name.to_owned());
        Ok(CategoryFact {
            values: values.collect(),
            ..fact
        })
    };
    data.category.iter().enumerate().map(of_column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashed_as_keras_hashes_them() {
        let file = "../../tests/golden/keras/categories.json";
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let mut records = golden["records"].as_array().unwrap().iter();
        let record = records
            .find(|record| record["num_hashes"].is_number())
            .unwrap();
        let fact = CategoryFact {
            index: 0,
            name: String::new(),
            values: Vec::new(),
            hash: record["num_hashes"].as_u64().map(|bins| bins as u32),
        };
        let asked: Vec<String> = serde_json::from_value(record["asked"].clone()).unwrap();
        let numbers = fact.encode(&asked.iter().collect::<Vec<_>>()).unwrap();
        let numbers = serde_json::json!(numbers.values::<i32>().unwrap());
        assert_eq!(numbers, record["numbers"]["data"]);
        assert_eq!(fact.size(), 30);
    }
}
