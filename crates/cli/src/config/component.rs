//! Layers, losses, metrics and optimizers: a name and settings, whose meaning is the library's.

use serde_json::{Map, Number, Value as Json};

use super::problem::{Place, shown};
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

/// What the library knows of names and settings.
pub trait Catalog {
    /// Whether a name with these settings (an object) makes sense.
    ///
    /// # Errors
    /// In words: what is wrong, with a wrong setting's name between backticks, and what to do.
    fn check(&self, kind: Kind, name: &str, settings: &Json) -> Result<(), String>;
}

/// A name and settings that the catalog found good.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// The name, such as `dense`.
    pub name: String,
    /// The settings, an object.
    pub settings: Json,
    /// Where it is written.
    pub at: Place,
}

impl Reader {
    /// Reads `name`, `name: {settings}`, and asks the catalog.
    pub(crate) fn component(&mut self, node: &Node, kind: Kind, catalog: &dyn Catalog) -> Option<Component> {
        let (name, at, settings) = self.named(node, kind)?;
        let json = self.settings(name, settings)?;
        match catalog.check(kind, name, &json) {
            Ok(()) => Some(Component { name: name.to_owned(), settings: json, at }),
            Err(message) => {
                let (at, next) = blame(&message, name, at, settings);
                self.problem(at, message, next);
                None
            }
        }
    }

    fn named<'n>(&mut self, node: &'n Node, kind: Kind) -> Option<(&'n str, Place, &'n [(Key, Node)])> {
        let word = kind.word();
        let (name, at, settings) = match &node.value {
            Value::Text(name) => (name.as_str(), node.at, None),
            Value::Map(entries) => match &entries[..] {
                [(key, settings)] => (key.name.as_str(), key.at, Some(settings)),
                [] => {
                    self.problem(node.at, format!("a {word} is {{}}, expected a name"), format!("write the {word}'s name"));
                    return None;
                }
                [(first, _), (second, _), ..] => {
                    self.problem(
                        second.at,
                        format!("a {word} has the keys {} and {}, expected one name with settings below it", shown(&first.name), shown(&second.name)),
                        format!("indent {} further, or start a new line with `- `", shown(&second.name)),
                    );
                    return None;
                }
            },
            _ => {
                self.problem(
                    node.at,
                    format!("a {word} is {}, expected a name, or a name with settings", node.describe()),
                    "write `name` or `name: {setting: value}`",
                );
                return None;
            }
        };
        match settings.map(|node| (&node.value, node)) {
            None | Some((Value::Null, _)) => Some((name, at, &[])),
            Some((Value::Map(entries), _)) => Some((name, at, entries)),
            Some((_, node)) => {
                self.problem(
                    node.at,
                    format!("the settings of {word} {} are {}, expected a mapping", shown(name), node.describe()),
                    format!("write `{name}: {{setting: value}}`"),
                );
                None
            }
        }
    }

    fn settings(&mut self, name: &str, entries: &[(Key, Node)]) -> Option<Json> {
        let before = self.problems.len();
        let object = self.object(name, entries);
        (self.problems.len() == before).then_some(object)
    }

    fn object(&mut self, name: &str, entries: &[(Key, Node)]) -> Json {
        let pairs = entries.iter().map(|(key, node)| (key.name.clone(), self.json(name, node)));
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
                    self.problem(node.at, format!("a setting of {} is {value}, expected a finite number", shown(name)), "write a finite number");
                    Json::Null
                },
                Json::Number,
            ),
        }
    }
}

/// The place of the setting that a message names, and what to do.
fn blame(message: &str, name: &str, at: Place, settings: &[(Key, Node)]) -> (Place, String) {
    let quoted = message.split('`').skip(1).step_by(2);
    let key = quoted.into_iter().find_map(|quoted| settings.iter().find(|(key, _)| key.name == quoted));
    match key {
        Some((key, _)) => (key.at, format!("correct `{}` of `{name}`", key.name)),
        None => (at, format!("correct `{name}` or its settings")),
    }
}
