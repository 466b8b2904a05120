//! Layers, losses, metrics and optimizers: a name and settings, whose meaning is the library's.

use serde_json::{Map, Number, Value as Json};

use super::problem::{Place, Problem, shown};
use super::reader::Reader;
use super::yaml::{Key, Node, Value};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A layer.
    Layer,
    /// A loss.
    Loss,
    /// A metric.
    Metric,
    /// An optimizer.
    Optimizer,
}

/// A name, its place, and settings.
type Named<'n> = (&'n str, Place, &'n [(Key, Node)]);

/// A name with settings, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// What the name stands for.
    pub kind: Kind,
    /// The name, such as `dense`.
    pub name: String,
    /// The settings, an object.
    pub settings: Json,
    /// Where the name is written.
    pub at: Place,
    /// The name of every setting, those of inner mappings too, and where it is written.
    keys: Vec<(String, Place)>,
}

impl Kind {
    /// The kind in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Loss => "loss",
            Self::Metric => "metric",
            Self::Optimizer => "optimizer",
        }
    }
}

impl Kind {
    /// The kind with its article.
    fn one(self) -> &'static str {
        match self {
            Self::Layer => "a layer",
            Self::Loss => "a loss",
            Self::Metric => "a metric",
            Self::Optimizer => "an optimizer",
        }
    }
}

impl Component {
    /// A mistake that the library found here, at the setting whose name its message holds between backticks.
    #[must_use]
    pub fn problem(&self, message: &str) -> Problem {
        let mut quoted = message.split('`').skip(1).step_by(2);
        let key = quoted.find_map(|quoted| self.keys.iter().find(|(key, _)| key == quoted));
        let (word, name) = (self.kind.word(), shown(&self.name));
        match key {
            Some((key, at)) => Problem::new(
                *at,
                message,
                format!("correct {} of {word} {name}", shown(key)),
            ),
            None => Problem::new(
                self.at,
                message,
                format!("correct {word} {name} or its settings"),
            ),
        }
    }
}

impl Reader {
    /// Reads `name` or `name: {settings}`.
    pub(crate) fn component(&mut self, node: &Node, kind: Kind) -> Option<Component> {
        let (name, at, settings) = self.named(node, kind)?;
        let before = self.problems.len();
        let json = self.object(name, settings);
        let mut keys = Vec::new();
        collect_keys(settings, &mut keys);
        (self.problems.len() == before).then(|| Component {
            kind,
            name: name.to_owned(),
            settings: json,
            at,
            keys,
        })
    }

    /// Reads a list of components.
    pub(crate) fn components(&mut self, items: &[Node], kind: Kind) -> Vec<Component> {
        let read = items.iter().filter_map(|node| self.component(node, kind));
        read.collect()
    }

    fn named<'n>(&mut self, node: &'n Node, kind: Kind) -> Option<Named<'n>> {
        match &node.value {
            Value::Text(name) if !name.is_empty() => Some((name, node.at, &[])),
            Value::Map(entries) if entries.len() == 1 => {
                let (key, settings) = &entries[0];
                Some((&key.name, key.at, self.settings(&key.name, settings, kind)?))
            }
            Value::Map(entries) if entries.len() > 1 => {
                self.refuse_several(entries, kind);
                None
            }
            _ => {
                let (one, found) = (kind.one(), node.describe());
                self.problem(
                    node.at,
                    format!("{one} is {found}, expected a name, or a name with settings"),
                    "write `name` or `name: {setting: value}`",
                );
                None
            }
        }
    }

    fn settings<'n>(
        &mut self,
        name: &str,
        node: &'n Node,
        kind: Kind,
    ) -> Option<&'n [(Key, Node)]> {
        match &node.value {
            Value::Null => Some(&[]),
            Value::Map(entries) => Some(entries),
            _ => {
                let (word, name, found) = (kind.word(), shown(name), node.describe());
                self.problem(
                    node.at,
                    format!("the settings of {word} {name} are {found}, expected a mapping"),
                    "write them as `{setting: value}`",
                );
                None
            }
        }
    }

    /// The usual cause is settings that are not indented below their name.
    fn refuse_several(&mut self, entries: &[(Key, Node)], kind: Kind) {
        let (first, second) = (shown(&entries[0].0.name), shown(&entries[1].0.name));
        let one = kind.one();
        let next = match (entries[0].0.name.as_str(), &entries[0].1.value) {
            ("type" | "kind" | "name" | "class_name", Value::Text(name)) => {
                format!(
                    "write the name as the key, {}: {{setting: value}}",
                    shown(name)
                )
            }
            _ => format!(
                "indent {second} further if it is a setting of {first}, else write it as {one} of its own"
            ),
        };
        let message = format!(
            "{one} has the keys {first} and {second}, expected one name with settings below it"
        );
        self.problem(entries[1].0.at, message, next);
    }

    fn object(&mut self, name: &str, entries: &[(Key, Node)]) -> Json {
        let pairs = entries
            .iter()
            .map(|(key, node)| (key.name.clone(), self.json(name, node)));
        Json::Object(pairs.collect::<Map<_, _>>())
    }

    fn json(&mut self, name: &str, node: &Node) -> Json {
        match &node.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => Json::from(*value),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(|item| self.json(name, item)).collect(),
            Value::Map(entries) => self.object(name, entries),
            Value::Float(value) => Number::from_f64(*value).map_or_else(
                || {
                    let name = shown(name);
                    self.problem(
                        node.at,
                        format!("a setting of {name} is {value}, expected a finite number"),
                        "write a finite number",
                    );
                    Json::Null
                },
                Json::Number,
            ),
        }
    }
}

fn collect_keys(entries: &[(Key, Node)], keys: &mut Vec<(String, Place)>) {
    for (key, node) in entries {
        keys.push((key.name.clone(), key.at));
        if let Value::Map(inner) = &node.value {
            collect_keys(inner, keys);
        }
    }
}
