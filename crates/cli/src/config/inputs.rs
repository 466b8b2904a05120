//! Models with several inputs: the key `inputs` of CSV files, and the key `inputs` of layers, which says what a layer takes.

use std::collections::BTreeMap;

use phalanx::config::{DefaultValue, Field, Kind, suggest};
use phalanx_yaml::{Key, Node, Problem, Value, shown};

use super::component::Component;
use super::labels::check_layers;
use super::reader::{Reader, Section, list, text};
use super::training_file::MAX_FEATURES;
use super::{
    Column, Csv, Data, FeatureInput, InputFeatures, Located, Missing, ModelSource, TrainConfig,
};

/// Most inputs of a model, and most values that a layer takes.
pub(super) const MAX_INPUTS: usize = 1024;

/// A column by its position or name.
pub(super) const COLUMN: Kind = Kind::Either(&[Kind::Whole(0, MAX_FEATURES - 1), Kind::Text]);

/// `inputs` of CSV files.
pub(super) const INPUTS: Field = Field::new(
    "inputs",
    Kind::Worded(
        "names of inputs, each with a column or a list of columns, by their names or positions from 0",
        &Kind::Map(&Kind::Either(&[
            COLUMN,
            Kind::List(&COLUMN, 1, MAX_FEATURES as usize),
        ])),
    ),
    DefaultValue::Words("one input of all features"),
    "the inputs of a model that has several, in place of `columns` and `features`; layers name them by their own `inputs`. A column alone holds an index for each example, a whole number from 0, as `embedding` takes it, or is a `text` or a `category`; `missing: mean`, `standardize` and `divide_by` leave it as it is. A list of columns holds numbers",
)
.example("{user: user, item: item, about: [age, price]}");

/// `inputs` of layers.
pub(super) const OF_LAYERS: Field = Field::new(
    "inputs",
    Kind::Worded(
        "the name of an input or of an earlier layer, or a list of them",
        &Kind::Either(&[Kind::Text, Kind::List(&Kind::Text, 1, MAX_INPUTS)]),
    ),
    DefaultValue::Words("the layer before; for the first layer the only input"),
    "what the layer takes, in this order: inputs by the names that `data` gives them, one that has no name as `input`, and earlier layers by their `name`. Everything but the last layer must be taken by a layer",
)
.example("[user, item]");

/// An input that `data` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvInput {
    /// Its name.
    pub name: String,
    /// Its columns, at least one.
    pub columns: Vec<Column>,
    /// Whether it is one column of indices, or of texts.
    pub is_index: bool,
}

/// What a layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The input at a position.
    Input(usize),
    /// What the layer at a position gives.
    Layer(usize),
}

impl TrainConfig {
    /// The names of the model's inputs where `data` names them.
    fn named_inputs(&self) -> Option<Located<Vec<&str>>> {
        match &self.data {
            Data::Csv(csv) if !csv.inputs.value.is_empty() => Some(Located {
                value: csv.inputs.value.iter().map(|input| &*input.name).collect(),
                at: csv.inputs.at,
            }),
            Data::Examples(examples) => examples.inputs().map(|inputs| Located {
                value: inputs.value.iter().map(|input| &*input.name).collect(),
                at: inputs.at,
            }),
            Data::Csv(_) | Data::Images(_) => None,
        }
    }

    /// Whether each layer takes what the one before gives, and the first the only input, which has no name.
    pub(crate) fn is_stack(&self) -> bool {
        let is_in_line = self.layers().iter().all(|layer| layer.inputs.is_none());
        is_in_line && self.named_inputs().is_none() && self.outputs().is_empty()
    }

    /// What each layer takes.
    ///
    /// # Errors
    /// Names of nothing, and inputs and layers that no layer takes.
    pub(crate) fn sources(&self) -> Result<Vec<Vec<Source>>, Vec<Problem>> {
        if let ModelSource::Saved(_) = self.model {
            // Its layers know what they take.
            return Ok(Vec::new());
        }
        let inputs = self.named_inputs();
        let names = inputs.map_or_else(|| vec!["input"], |inputs| inputs.value);
        let named = names.iter().enumerate();
        let mut known: BTreeMap<&str, Source> = named
            .map(|(place, name)| (*name, Source::Input(place)))
            .collect();
        let (mut sources, mut problems) = (Vec::new(), Vec::new());
        for (place, layer) in self.layers().iter().enumerate() {
            match sources_of(layer, place, &names, &known) {
                Ok(found) => sources.push(found),
                Err(found) => problems.extend(found),
            }
            if let Some(name) = name_of(layer) {
                known.entry(name).or_insert(Source::Layer(place));
            }
        }
        let layers: Vec<&str> = self.layers().iter().filter_map(name_of).collect();
        problems.extend(check_layers(self, &layers));
        if problems.is_empty() {
            problems = self.untaken(&sources);
        }
        match problems.is_empty() {
            true => Ok(sources),
            false => Err(problems),
        }
    }

    /// What an index or a text among what a layer takes is, and how it is given numbers.
    pub(crate) fn index_among(&self, taken: &[Source]) -> Option<String> {
        let mut taken = taken.iter().filter_map(|source| match source {
            Source::Input(place) => Some(*place),
            Source::Layer(_) => None,
        });
        let csv = match &self.data {
            Data::Csv(csv) => csv,
            Data::Examples(examples) => {
                let inputs = &examples.inputs()?.value;
                let mut inputs = taken.filter_map(|place| inputs.get(place));
                let index = |input: &&FeatureInput| !matches!(input.of, InputFeatures::Numbers(_));
                let name = &inputs.find(index)?.name;
                return Some(format!(
                    "the input `{name}` is whole numbers, as `embedding` takes them: for other numbers give the input a list of features"
                ));
            }
            Data::Images(_) => return None,
        };
        if csv.inputs.value.is_empty() {
            let text = csv.text.get(taken.next()?)?;
            let column = shown_column(&text.column.value);
            return Some(format!(
                "the texts of {column} are the numbers of their words, as `embedding` takes them: put one first"
            ));
        }
        let mut inputs = taken.filter_map(|place| csv.inputs.value.get(place));
        let input = inputs.find(|input| input.is_index)?;
        let name = &input.name;
        Some(match (csv.text_of(input), csv.category_of(input)) {
            (None, None) => format!(
                "the input `{name}` is an index, as `embedding` takes it: for numbers give the input a list of columns"
            ),
            (None, Some(_)) => {
                format!("the input `{name}` is the number of a category, as `embedding` takes it")
            }
            (Some(_), _) => {
                format!("the input `{name}` is the numbers of words, as `embedding` takes them")
            }
        })
    }

    /// Inputs and layers that no layer takes.
    fn untaken(&self, sources: &[Vec<Source>]) -> Vec<Problem> {
        let is_taken = |source: Source| sources.iter().flatten().any(|taken| *taken == source);
        let mut problems = Vec::new();
        if let Some(inputs) = self.named_inputs() {
            for (place, name) in inputs.value.iter().enumerate() {
                if !is_taken(Source::Input(place)) {
                    let message = format!("no layer takes the input {}", shown(name));
                    let next = format!("write `inputs: {name}` in a layer, or remove it");
                    problems.push(Problem::new(inputs.at, message, next));
                }
            }
        }
        let outputs = self.output_names();
        let last = self.layers().len().saturating_sub(1);
        for (place, layer) in self.layers().iter().enumerate() {
            let is_output = match outputs.is_empty() {
                true => place == last,
                false => name_of(layer).is_some_and(|name| outputs.contains(&name)),
            };
            if !is_output && !is_taken(Source::Layer(place)) {
                let next = match name_of(layer) {
                    Some(name) => format!("name it in the `inputs` of a later layer: {name}"),
                    None => "give it a `name`, and name it in the `inputs` of a later layer".into(),
                };
                let next = match outputs.is_empty() {
                    true => next,
                    false => format!(
                        "{next}; or in `labels` of `data`, which has {}",
                        outputs.join(", ")
                    ),
                };
                let message = format!("no layer takes what this {} gives", shown(&layer.name));
                problems.push(Problem::new(layer.at, message, next));
            }
        }
        problems
    }
}

/// What a layer takes, by the names that are known before it.
fn sources_of(
    layer: &Component,
    place: usize,
    inputs: &[&str],
    known: &BTreeMap<&str, Source>,
) -> Result<Vec<Source>, Vec<Problem>> {
    let Some(written) = &layer.inputs else {
        return match place.checked_sub(1) {
            Some(before) => Ok(vec![Source::Layer(before)]),
            None if inputs.len() == 1 => Ok(vec![Source::Input(0)]),
            None => {
                let message = format!(
                    "the first layer does not say which of the inputs {} it takes",
                    inputs.join(", ")
                );
                let next = format!("add `inputs: {}` to it", inputs[0]);
                Err(vec![Problem::new(layer.at, message, next)])
            }
        };
    };
    let find = |name: &Located<String>| {
        known.get(name.value.as_str()).copied().ok_or_else(|| {
            let message = format!(
                "`inputs` names {}, which is no input and no earlier layer with this `name`",
                shown(&name.value)
            );
            Problem::new(
                name.at,
                message,
                suggest(&name.value, known.keys().copied()),
            )
        })
    };
    let (found, problems): (Vec<_>, Vec<_>) = written.iter().map(find).partition(Result::is_ok);
    match problems.is_empty() {
        true => Ok(found.into_iter().flatten().collect()),
        false => Err(problems.into_iter().filter_map(Result::err).collect()),
    }
}

/// The name that the file gives a layer.
pub(crate) fn name_of(layer: &Component) -> Option<&str> {
    layer.settings.get("name").and_then(|name| name.as_str())
}

impl Reader {
    /// The key `inputs` of a layer among its settings.
    pub(super) fn inputs_of_layer(
        &mut self,
        layer: &str,
        settings: &[(Key, Node)],
    ) -> Option<Vec<Located<String>>> {
        let (_, node) = settings
            .iter()
            .find(|(key, _)| key.name == OF_LAYERS.name)?;
        let name = |node: &Node| {
            let value = text(node)?.to_owned();
            Some(Located { value, at: node.at })
        };
        let names: Option<Vec<_>> = match list(node) {
            Some(items) => items.iter().map(name).collect(),
            None => name(node).map(|name| vec![name]),
        };
        let names = names.filter(|names| (1..=MAX_INPUTS).contains(&names.len()));
        if names.is_none() {
            let (found, words) = (node.describe(), OF_LAYERS.kind.words());
            let layer = shown(layer);
            let message = format!("`inputs` of layer {layer} is {found}, expected {words}");
            let next = format!("write for example `inputs: {}`", OF_LAYERS.example);
            self.problem(node.at, message, next);
        }
        names
    }

    /// The key `inputs` of CSV files.
    pub(super) fn csv_inputs(&mut self, section: &Section<'_>) -> Located<Vec<CsvInput>> {
        let read = |node: &Node| {
            let Value::Map(entries) = &node.value else {
                return None;
            };
            let inputs: Vec<CsvInput> = entries.iter().map(input).collect::<Option<_>>()?;
            let fits = (1..=MAX_INPUTS).contains(&inputs.len());
            fits.then_some(Located {
                value: inputs,
                at: node.at,
            })
        };
        let inputs = self.value(section, INPUTS.name, read);
        let Some(inputs) = inputs else {
            return Located {
                value: Vec::new(),
                at: section.at,
            };
        };
        for other in ["columns", "features"] {
            if let Some((key, _)) = section.entry(other) {
                let message =
                    format!("`inputs` has the columns of each input, and `{other}` is there too");
                self.problem(key.at, message, "keep one of them");
            }
        }
        inputs
    }

    /// What `inputs` of CSV files does not go with.
    pub(super) fn check_inputs(&mut self, csv: &Csv) {
        let Located { value: inputs, at } = &csv.inputs;
        let mut seen: Vec<&Column> = Vec::new();
        for column in inputs.iter().flat_map(|input| &input.columns) {
            if seen.contains(&column) {
                let message = format!("`inputs` has the column {} twice", shown_column(column));
                self.problem(
                    *at,
                    message,
                    "name it once: several layers may take one input",
                );
            }
            seen.push(column);
        }
        let names = inputs.iter().map(|input| &input.name);
        for name in names.filter(|name| name.contains([':', '.', '/'])) {
            let message = format!("an input is named {}, with `:`, `.` or `/`", shown(name));
            self.problem(*at, message, "choose another name");
        }
        let indices = inputs.iter().filter(|input| csv.is_plain_index(input));
        for input in indices.filter(|input| csv.one_hot.value.contains(&input.columns[0])) {
            let column = shown_column(&input.columns[0]);
            let message =
                format!("the column {column} is an index, and `one_hot` makes features of it");
            let next = format!("write `{}: [{column}]` for features", input.name);
            self.problem(csv.one_hot.at, message, next);
        }
        let has_numbers = inputs.iter().any(|input| !input.is_index);
        // An empty text or category may be filled too.
        let is_filled = is_filled(csv.missing) && csv.text.is_empty() && csv.category.is_empty();
        let changes = csv.standardize || csv.divide_by != 1.0 || is_filled;
        if !inputs.is_empty() && !has_numbers && changes {
            self.problem(
                *at,
                "all inputs are indices, and `standardize`, `divide_by` and filled `missing` values are about numbers",
                "remove these keys, or give an input a list of columns, which holds numbers",
            );
        }
    }

    /// What layers take, where that is not just what the one before gives.
    pub(super) fn check_sources(&mut self, config: &TrainConfig) {
        // Layers with mistakes are left out of the model, and what they take with them.
        if self.problems.is_empty() && !config.is_stack() {
            self.problems
                .extend(config.sources().err().into_iter().flatten());
        }
    }
}

const fn is_filled(missing: Missing) -> bool {
    matches!(missing, Missing::Mean | Missing::Number(_))
}

pub(super) fn shown_column(column: &Column) -> String {
    match column {
        Column::Index(index) => index.to_string(),
        Column::Name(name) => shown(name),
    }
}

fn input((key, node): &(Key, Node)) -> Option<CsvInput> {
    let columns = match list(node) {
        Some(items) => items.iter().map(column).collect::<Option<Vec<_>>>()?,
        None => vec![column(node)?],
    };
    Some(CsvInput {
        name: key.name.clone(),
        columns,
        is_index: list(node).is_none(),
    })
}

/// A column by its position or name.
pub(super) fn column(node: &Node) -> Option<Column> {
    match &node.value {
        Value::Int(index) => usize::try_from(*index).ok().map(Column::Index),
        _ => text(node).map(|name| Column::Name(name.to_owned())),
    }
}
