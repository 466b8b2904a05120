//! What is known of data once they are read, and needed again wherever the model is used.

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

/// What is known of the data of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The dims of one example.
    pub dims: Vec<usize>,
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
