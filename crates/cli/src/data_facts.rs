//! What is known of data once they are read, and needed again wherever the model is used.

use phalanx::data::{Batch, Dataset, HostTensor};
use phalanx::nn::Input;
use phalanx::{DType, Result as Read};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::categories::CategoryFact;
use crate::output_labels::LabelFact;
use crate::scaling::Scaling;
use crate::texts::TextFact;
use crate::windows::WindowFact;

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

/// The column of the weights of rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightFact {
    /// Its position in the files.
    pub index: usize,
    /// Its name; empty without a header.
    pub name: String,
}

/// What the files of a training look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileLayout {
    /// Whether their first line names the columns.
    pub has_header: bool,
    /// How many columns they have, the label and the weights among them.
    pub columns: usize,
    /// The position of the label; `None` of trainings by a version that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<usize>,
}

/// An input of a model that has several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputFact {
    /// Its name.
    pub name: String,
    /// The names of its columns; empty without a header.
    pub columns: Vec<String>,
    /// How many numbers an example has; `None` where it is one index, a text or a category.
    pub width: Option<usize>,
    /// Which of the columns of texts it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<usize>,
    /// Which of the columns of categories it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<usize>,
    /// How many whole numbers an example has, if it is a sequence of a TFRecord file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// Whether the model takes sequences of any length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_length: bool,
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
    /// The columns of texts, with their words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextFact>,
    /// The columns that name something, with their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<CategoryFact>,
    /// The windows that rows are made, where they are a time series; `dims` are the dims of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowFact>,
    /// What the files look like; `None` of trainings by a version that did not keep it, and of data that are no CSV files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<FileLayout>,
    /// The name of the column of the label, if it has one.
    pub label: Option<String>,
    /// The column of the weights, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightFact>,
    /// The names of the classes; empty where they are numbers from 0, or labels are values.
    pub classes: Vec<String>,
    /// The labels of a model with several outputs, in their order; empty for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelFact>,
    /// What is done to features.
    pub scaling: Scaling,
    /// How many examples there were before a part was held out; `None` of trainings by a version that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examples: Option<usize>,
}

impl Facts {
    /// What has numbers, in the order of these.
    fn numbers(&self) -> [(&'static str, Vec<String>); 6] {
        let label = |fact: &LabelFact| format!("{}: {}", fact.name, fact.classes.join(", "));
        let word = |fact: &TextFact| format!("{}: {}", fact.shown(), fact.vectorizer.shown());
        let value = |fact: &OneHotFact| format!("{}: {}", fact.name, fact.values.join(", "));
        let name = |fact: &CategoryFact| match fact.hash {
            Some(bins) => format!("{} in {bins} bins", fact.shown()),
            None => format!("{}: {}", fact.shown(), fact.values.join(", ")),
        };
        [
            ("labels", self.labels.iter().map(label).collect()),
            ("classes", self.classes.clone()),
            ("words", self.texts.iter().map(word).collect()),
            ("one-hot values", self.one_hot.iter().map(value).collect()),
            ("categories", self.categories.iter().map(name).collect()),
            ("columns", self.columns.clone()),
        ]
    }

    /// A text of all that decides which numbers a model is given for an example: what was found in the training rows. How many rows there
    /// are, and where their columns stand, is no part of it.
    pub(crate) fn meaning(&self) -> String {
        let text = |text: &TextFact| TextFact {
            index: 0,
            any_length: false,
            ..text.clone()
        };
        let texts: Vec<TextFact> = self.texts.iter().map(text).collect();
        json!([self.scaling, self.numbers(), texts]).to_string()
    }

    /// What gives classes, words, names or features other numbers than these facts do, if anything.
    #[must_use]
    pub fn other_numbers(&self, now: &Self) -> Option<String> {
        let pairs = self.numbers().into_iter().zip(now.numbers());
        let mut lists = pairs.map(|((what, then), (_, now))| (what, then, now));
        let differs = |(_, then, now): &(&str, Vec<String>, Vec<String>)| {
            then != now && !then.is_empty() && !now.is_empty()
        };
        let (what, then, now) = lists.find(differs)?;
        let shown = |list: Vec<String>| {
            let text = list.join(", ");
            match text.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("{}..", &text[..end]),
                None => text,
            }
        };
        let (then, now) = (shown(then), shown(now));
        Some(format!(
            "the {what} of the data are {now}, and they were {then} in the training"
        ))
    }
}

/// Characters of a list that are shown.
const SHOWN: usize = 200;

impl Default for Facts {
    fn default() -> Self {
        Self {
            dims: Vec::new(),
            inputs: Vec::new(),
            columns: Vec::new(),
            one_hot: Vec::new(),
            texts: Vec::new(),
            categories: Vec::new(),
            window: None,
            layout: None,
            label: None,
            weight: None,
            classes: Vec::new(),
            labels: Vec::new(),
            scaling: Scaling {
                divide_by: 1.0,
                ..Scaling::default()
            },
            examples: None,
        }
    }
}

impl Facts {
    /// The inputs of a model for these data.
    #[must_use]
    pub fn model_inputs(&self) -> Vec<Input> {
        let words = |length: usize, any_length: bool| {
            let input = Input::new([length]).dtype(DType::I32);
            match any_length {
                true => input.any_length(),
                false => input,
            }
        };
        let text = |fact: &TextFact| words(fact.length(), fact.any_length);
        if self.inputs.is_empty() {
            let input = self.texts.first().map(text);
            return vec![input.unwrap_or_else(|| Input::new(self.example_dims()))];
        }
        let inputs = self.inputs.iter().map(|fact| {
            let input = match (fact.width, self.text(fact), fact.length) {
                (Some(width), ..) => Input::new([width]),
                (None, Some(fact), _) => text(fact),
                (None, None, Some(length)) => words(length, fact.any_length),
                (None, None, None) => Input::new([]).dtype(DType::I32),
            };
            input.named(&fact.name)
        });
        inputs.collect()
    }

    /// The dims of one example of numbers.
    pub(crate) fn example_dims(&self) -> Vec<usize> {
        let steps = self.window.map(|window| window.sequence_length);
        steps.into_iter().chain(self.dims.iter().copied()).collect()
    }

    /// The texts that an input is.
    fn text(&self, input: &InputFact) -> Option<&TextFact> {
        self.texts.get(input.text?)
    }

    /// The dims of one example as people read them.
    pub(crate) fn shown_dims(&self) -> String {
        let words = |fact: &TextFact| {
            let most = if fact.any_length { "up to " } else { "" };
            format!("{most}{} {}", fact.length(), fact.unit())
        };
        if self.inputs.is_empty() {
            let text = self.texts.first().map(words);
            return text.unwrap_or_else(|| format!("{:?}", self.example_dims()));
        }
        let shown = self.inputs.iter().map(|fact| {
            let what = match (fact.width, self.text(fact), fact.category) {
                (Some(width), ..) => format!("[{width}]"),
                (None, Some(text), _) => words(text),
                (None, None, Some(_)) => "a category".to_owned(),
                (None, None, None) => match fact.length {
                    Some(length) if fact.any_length => format!("up to {length} numbers"),
                    Some(length) => format!("{length} numbers"),
                    None => "an index".to_owned(),
                },
            };
            format!("{} {what}", fact.name)
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Rows as they are read, as the model takes them: numbers filled and scaled, in windows, and an array for each input. `texts` has the
    /// texts and then the categories of the files, column by column.
    ///
    /// # Errors
    /// When a row cannot be read, or there are too many texts.
    pub fn prepared(&self, rows: &Dataset, texts: &[Vec<String>]) -> Read<Dataset> {
        let rows = self.scaling.apply(rows)?;
        if let Some(window) = &self.window {
            return window.apply(&rows);
        }
        if self.inputs.is_empty() && self.texts.is_empty() {
            return Ok(rows);
        }
        let batch = rows.batch(rows.len().unwrap_or_default()).get(0, 0)?;
        let named = self.texts.len() + self.categories.len();
        let first = batch.x.len().saturating_sub(named);
        let texts = self.encoded(&batch.x[first..], texts)?;
        if self.inputs.is_empty() {
            return Dataset::from_batch(Batch { x: texts, ..batch });
        }
        let mut read = batch.x[..first].iter();
        let numbers = match self.inputs.iter().any(|fact| fact.width.is_some()) {
            true => read.next(),
            false => None,
        };
        let mut first = 0;
        let mut inputs = Vec::new();
        let behind = |category: usize| self.texts.len() + category;
        for fact in &self.inputs {
            match (fact.width, numbers, fact.text.or(fact.category.map(behind))) {
                (Some(width), Some(numbers), _) => {
                    inputs.push(columns(numbers, first, width));
                    first += width;
                }
                (_, _, Some(text)) => inputs.extend(texts.get(text).cloned()),
                _ => inputs.extend(read.next().cloned()),
            }
        }
        Dataset::from_batch(Batch { x: inputs, ..batch })
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
