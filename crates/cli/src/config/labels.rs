//! Models with several outputs: the key `labels` of tables, and what losses and metrics say of each output.

use std::path::Path;

use phalanx::config::{DefaultValue, Family, Field, Kind, suggest};
use phalanx_yaml::{Key, Node, Position, Problem, Value, shown};

use super::aliases;
use super::component::{Component, catalog};
use super::inputs::MAX_INPUTS;
use super::reader::{Reader, Section, finite, list, text};
use super::training_file::{LOSS_WEIGHT, MAX_FEATURES};
use super::{Csv, Data, Located, TrainConfig};

/// `labels` of tables.
pub(super) const OF_CSV: Field = Field::new(
    "labels",
    Kind::Worded(
        "names of outputs, each with a column or a list of columns, by their names",
        &Kind::Map(&Kind::Either(&[
            Kind::Text,
            Kind::List(&Kind::Text, 1, MAX_FEATURES as usize),
        ])),
    ),
    DefaultValue::Words("one label, which `label` says"),
    "the labels of a model that has several outputs, in place of `label`, `label_type` and `classes`; the outputs are layers by their `name`, and `loss` has one for each. A column alone holds a class for each example: a whole number from 0, or a text, of which the classes are all in the files, in alphabetical order. A list of columns holds values. `test: {split: ..}` draws of each class of the first of them the same share",
)
.example("{kind: species, size: [length, width]}");

/// The label of an output that `data` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOutput {
    /// The name of the output.
    pub name: String,
    /// Its columns, at least one.
    pub columns: Vec<String>,
    /// Whether it is one column of classes.
    pub is_class: bool,
}

/// A loss or a metric, and the output that it is of.
#[derive(Debug, Clone, PartialEq)]
pub struct OfOutput {
    /// The output, by its position.
    pub output: usize,
    /// What is made of it.
    pub component: Component,
}

impl TrainConfig {
    /// The outputs that `data` names; none where there is one without a name.
    pub(crate) fn outputs(&self) -> &[CsvOutput] {
        outputs(&self.data).map_or(&[], |labels| &labels.value)
    }

    /// Where `data` names outputs.
    pub(crate) fn outputs_at(&self) -> Position {
        outputs(&self.data).map_or(Position::START, |labels| labels.at)
    }

    /// The names of outputs, for messages.
    pub(crate) fn output_names(&self) -> Vec<&str> {
        self.outputs().iter().map(|output| &*output.name).collect()
    }
}

/// The labels by the outputs that `data` names.
pub(super) const fn outputs(data: &Data) -> Option<&Located<Vec<CsvOutput>>> {
    match data {
        Data::Csv(csv) => Some(&csv.labels),
        Data::Images(_) | Data::Examples(_) => None,
    }
}

impl Reader {
    /// The key `labels` of tables.
    pub(super) fn csv_labels(&mut self, section: &Section<'_>) -> Located<Vec<CsvOutput>> {
        let read = |node: &Node| {
            let Value::Map(entries) = &node.value else {
                return None;
            };
            let outputs: Vec<CsvOutput> = entries.iter().map(output).collect::<Option<_>>()?;
            let fits = (1..=MAX_INPUTS).contains(&outputs.len());
            fits.then_some(Located {
                value: outputs,
                at: node.at,
            })
        };
        let Some(labels) = self.value(section, OF_CSV.name, read) else {
            return Located {
                value: Vec::new(),
                at: section.at,
            };
        };
        for other in ["label", "label_type", "classes", "window"] {
            if let Some((key, _)) = section.entry(other) {
                let message =
                    format!("`labels` has a label for each output, and `{other}` is about one");
                self.problem(key.at, message, "keep one of them");
            }
        }
        labels
    }

    /// What `labels` of tables does not go with.
    pub(super) fn check_labels(&mut self, csv: &Csv, class_weight: Option<Position>) {
        let Located { value, at } = &csv.labels;
        if value.is_empty() {
            return;
        }
        if csv.header == Some(false) {
            let next = "name the columns in the first line, and set `header: true`";
            self.problem(*at, "`labels` names columns, and `header` is false", next);
        }
        if let Some(at) = class_weight {
            let message =
                "`class_weight` weighs the classes of one output, and `labels` has several";
            let next = "remove it; `weight` of `data` is a column of the weights of rows";
            self.problem(at, message, next);
        }
    }

    /// The loss, or one for each output.
    pub(super) fn losses(
        &mut self,
        file: &Section<'_>,
        outputs: &[CsvOutput],
    ) -> Option<Vec<OfOutput>> {
        let node = file.node("loss")?;
        if outputs.is_empty() {
            self.refuse_losses(node)?;
            let component = self.component(node, Family::Loss)?;
            return Some(vec![OfOutput {
                output: 0,
                component,
            }]);
        }
        let each = self.by_output(file, "loss", outputs)?;
        let of_outputs = outputs.iter().enumerate();
        for (_, lacking) in of_outputs.filter(|(place, _)| each.iter().all(|(of, _)| of != place)) {
            let name = &lacking.name;
            let message = format!("`loss` has none for the output {}", shown(name));
            let next = format!("add `{name}: mean_squared_error`, or another loss");
            self.problem(node.at, message, next);
        }
        let mut losses = Vec::new();
        for (output, node) in each {
            let component = self.component(node, Family::Loss)?;
            losses.push(OfOutput { output, component });
        }
        losses.sort_by_key(|loss| loss.output);
        Some(losses)
    }

    /// Losses of several outputs where the data name none.
    fn refuse_losses(&mut self, node: &Node) -> Option<()> {
        let known: Vec<&str> = catalog(Family::Loss).iter().map(|loss| loss.name).collect();
        let is_loss = |name: &str| {
            known.contains(&name) || aliases::name(Family::Loss, name, &known).is_some()
        };
        match &node.value {
            Value::Map(entries)
                if entries.len() > 1 && !entries.iter().any(|(key, _)| is_loss(&key.name)) =>
            {
                let names: Vec<String> = entries.iter().map(|(key, _)| shown(&key.name)).collect();
                let message = format!(
                    "`loss` has the keys {}, as of several outputs, and `data` names none",
                    names.join(", ")
                );
                let next = "name the columns of the label of each output by `labels` of `data`";
                self.problem(node.at, message, next);
                None
            }
            _ => Some(()),
        }
    }

    /// The metrics under a key, or a list for each output.
    pub(super) fn metrics(
        &mut self,
        file: &Section<'_>,
        name: &str,
        outputs: &[CsvOutput],
    ) -> Option<Vec<OfOutput>> {
        file.node(name)?;
        if outputs.is_empty() {
            let all = self.list_of(file, name, Family::Metric)?.into_iter();
            return Some(
                all.map(|component| OfOutput {
                    output: 0,
                    component,
                })
                .collect(),
            );
        }
        let mut all = Vec::new();
        let mut each = self.by_output(file, name, outputs)?;
        each.sort_by_key(|(output, _)| *output);
        for (output, node) in each {
            let nodes = list(node).unwrap_or(std::slice::from_ref(node));
            let components = self.components(nodes, Family::Metric).into_iter();
            all.extend(components.map(|component| OfOutput { output, component }));
        }
        Some(all)
    }

    /// What the loss of each output counts in the total.
    pub(super) fn loss_weights(
        &mut self,
        file: &Section<'_>,
        outputs: &[CsvOutput],
    ) -> Option<Vec<f64>> {
        let (key, _) = file.entry("loss_weights")?;
        if outputs.is_empty() {
            let next =
                "remove it, or name the columns of the label of each output by `labels` of `data`";
            self.problem(
                key.at,
                "`loss_weights` weighs the losses of outputs, and `data` names none",
                next,
            );
            return None;
        }
        let mut weights = vec![1.0; outputs.len()];
        for (output, node) in self.by_output(file, "loss_weights", outputs)? {
            let json = node.to_json().filter(|json| LOSS_WEIGHT.accepts(json));
            match json.and_then(|_| finite(node)) {
                Some(weight) => weights[output] = weight,
                None => self.unexpected(file, "loss_weights", node),
            }
        }
        Some(weights)
    }

    /// The values of a mapping by outputs, each with the position of its output.
    fn by_output<'n>(
        &mut self,
        file: &Section<'n>,
        name: &str,
        outputs: &[CsvOutput],
    ) -> Option<Vec<(usize, &'n Node)>> {
        let node = file.node(name)?;
        let names = || outputs.iter().map(|output| &*output.name);
        let Value::Map(entries) = &node.value else {
            let all: Vec<&str> = names().collect();
            let (found, all, first) = (node.describe(), all.join(", "), &outputs[0].name);
            let message = format!(
                "`{name}` is {found}, expected a mapping of the outputs {all}, which `labels` of `data` names"
            );
            self.problem(
                node.at,
                message,
                format!("write it as `{name}: {{{first}: ..}}`"),
            );
            return None;
        };
        let mut found = Vec::new();
        for (key, node) in entries {
            match names().position(|output| output == key.name) {
                Some(place) => found.push((place, node)),
                None => {
                    let all: Vec<&str> = names().collect();
                    let (wrong, all) = (shown(&key.name), all.join(", "));
                    let message = format!(
                        "`{name}` names {wrong}, and the outputs are {all}, which `labels` of `data` names"
                    );
                    self.problem(key.at, message, suggest(&key.name, names()));
                }
            }
        }
        Some(found)
    }
}

/// What follows the name of an output in a log, the longest where several fit: of `size` and `size_b` the log `size_b_mae` is of the second.
pub(super) fn of_log<'l>(outputs: &[CsvOutput], log: &'l str) -> Option<&'l str> {
    let rest = |output: &CsvOutput| log.strip_prefix(&*output.name)?.strip_prefix('_');
    outputs
        .iter()
        .filter_map(rest)
        .min_by_key(|rest| rest.len())
}

/// What is wrong where a saved model at this path has made outputs of other names than `data`, and what to do.
pub(crate) fn other_outputs(
    path: &Path,
    made: &[String],
    named: &[&str],
) -> Option<(String, &'static str)> {
    if made == named {
        return None;
    }
    let (made, named, path) = (made.join(", "), named.join(", "), path.display());
    let message = format!("{path} has the outputs {made}, and the data have labels of {named}");
    let next =
        "name the columns of the label of each of these, in this order, by `labels` of `data`";
    Some((message, next))
}

/// What is wrong with the layers that `labels` names, among layers of these names.
pub(super) fn check_layers(config: &TrainConfig, layers: &[&str]) -> Vec<Problem> {
    let unknown = config.outputs().iter();
    let unknown = unknown.filter(|output| !layers.contains(&&*output.name));
    let problems = unknown.map(|output| {
        let message = format!(
            "`labels` names the output {}, and no layer has this `name`",
            shown(&output.name)
        );
        let next = match layers {
            [] => format!("write `name: {}` in the layer that makes it", output.name),
            layers => suggest(&output.name, layers.iter().copied()),
        };
        Problem::new(config.outputs_at(), message, next)
    });
    problems.collect()
}

fn output((key, node): &(Key, Node)) -> Option<CsvOutput> {
    let column = |node: &Node| text(node).map(str::to_owned);
    let columns = match list(node) {
        Some(items) => items.iter().map(column).collect::<Option<Vec<_>>>()?,
        None => vec![column(node)?],
    };
    Some(CsvOutput {
        name: key.name.clone(),
        columns,
        is_class: list(node).is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_of_the_output_with_the_longest_name_that_fits() {
        let outputs = ["size", "size_b", "kind"].map(|name| CsvOutput {
            name: name.into(),
            columns: vec![name.into()],
            is_class: true,
        });
        for (log, rest) in [
            ("size_b_mae", Some("mae")),
            ("size_mae", Some("mae")),
            ("size_b", Some("b")),
            ("sizes_mae", None),
        ] {
            assert_eq!(of_log(&outputs, log), rest, "{log}");
        }
    }
}
