//! What is known of data once they are read, and needed again wherever the model is used.

use phalanx::data::{Dataset, HostTensor};
use phalanx::nn::Input;
use phalanx::{DType, Result as Read};
use serde::{Deserialize, Serialize};

use crate::scaling::Scaling;

/// A column of which each value is a feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneHotFact {
    /// Its position in the files.
    pub index: usize,
    /// Its name; empty without a header.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
}

/// An input of a model that has several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputFact {
    /// Its name.
    pub name: String,
    /// The names of its columns; empty without a header.
    pub columns: Vec<String>,
    /// How many numbers an example has; `None` where it is one index.
    pub width: Option<usize>,
}

/// What is known of the data of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The dims of one example, of all inputs of numbers together.
    pub dims: Vec<usize>,
    /// The inputs of a model that has several, in their order; empty for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputFact>,
    /// The names of the columns of the features, in their order; empty without a header.
    pub columns: Vec<String>,
    /// The values of columns of which each is a feature of its own.
    #[serde(default)]
    pub one_hot: Vec<OneHotFact>,
    /// The name of the column of the label, if it has one.
    pub label: Option<String>,
    /// The names of the classes; empty where they are numbers from 0, or labels are values.
    pub classes: Vec<String>,
    /// What is done to features.
    pub scaling: Scaling,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            dims: Vec::new(),
            inputs: Vec::new(),
            columns: Vec::new(),
            one_hot: Vec::new(),
            label: None,
            classes: Vec::new(),
            scaling: Scaling {
                divide_by: 1.0,
                ..Scaling::default()
            },
        }
    }
}

impl InputFact {
    /// The dims of one example.
    fn dims(&self) -> Vec<usize> {
        self.width.into_iter().collect()
    }
}

impl Facts {
    /// The inputs of a model for these data.
    #[must_use]
    pub fn model_inputs(&self) -> Vec<Input> {
        if self.inputs.is_empty() {
            return vec![Input::new(self.dims.clone())];
        }
        let inputs = self.inputs.iter().map(|fact| {
            let input = Input::new(fact.dims()).named(&fact.name);
            match fact.width {
                None => input.dtype(DType::I32),
                Some(_) => input,
            }
        });
        inputs.collect()
    }

    /// The dims of one example as people read them.
    pub(crate) fn shown_dims(&self) -> String {
        if self.inputs.is_empty() {
            return format!("{:?}", self.dims);
        }
        let shown = self.inputs.iter().map(|fact| match fact.width {
            None => format!("{} an index", fact.name),
            Some(width) => format!("{} [{width}]", fact.name),
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Rows as they are read, as the model takes them: numbers filled and scaled, and an array for each input.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn prepared(&self, rows: &Dataset) -> Read<Dataset> {
        let rows = self.scaling.apply(rows)?;
        if self.inputs.is_empty() {
            return Ok(rows);
        }
        let batch = rows.batch(rows.len().unwrap_or_default()).get(0, 0)?;
        let mut read = batch.x.iter();
        let numbers = match self.inputs.iter().any(|fact| fact.width.is_some()) {
            true => read.next(),
            false => None,
        };
        let mut first = 0;
        let mut inputs = Vec::new();
        for fact in &self.inputs {
            match (fact.width, numbers) {
                (Some(width), Some(numbers)) => {
                    inputs.push(columns(numbers, first, width));
                    first += width;
                }
                _ => inputs.extend(read.next().cloned()),
            }
        }
        Dataset::from_arrays(inputs, batch.y)
    }
}

/// Columns of an array `[rows, columns]`, from the first of them on.
fn columns(numbers: &HostTensor, first: usize, width: usize) -> HostTensor {
    let values = numbers.f32s();
    let all = values.len() / numbers.rows().max(1);
    let rows = values.chunks_exact(all.max(1));
    let kept: Vec<f32> = rows
        .flat_map(|row| &row[first..first + width])
        .copied()
        .collect();
    HostTensor::new([numbers.rows(), width], &kept)
}
