//! Reading the fields of a mapping, each mistake noted with its place.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_yaml::{Node, Position, Problem, Value, suggest};

use super::units::seconds;

/// The longest duration, ten years.
const MOST_SECONDS: u64 = 10 * 365 * 86_400;

/// The mistakes found so far, and things a user should know of.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) problems: Vec<Problem>,
    pub(super) notices: Vec<String>,
}

impl Notes {
    pub(super) fn wrong(
        &mut self,
        at: Position,
        message: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.problems.push(Problem::new(at, message, next));
    }
}

/// A mapping at a path, whose keys are known.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    node: &'a Node,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// Takes a node for a mapping with these keys; others are mistakes.
    pub(super) fn of(node: &'a Node, path: &'a str, known: &[&str], notes: &mut Notes) -> Self {
        match &node.value {
            Value::Map(entries) => {
                for (key, _) in entries {
                    if !known.contains(&key.name.as_str()) {
                        let message = format!("{path} has no field {:?}", key.name);
                        notes.wrong(key.at, message, suggest(&key.name, known));
                    }
                }
            }
            Value::Null => {}
            _ => notes.wrong(
                node.at,
                format!("{path} is {}, expected a mapping", node.describe()),
                "write its fields below it, indented",
            ),
        }
        Self { node, path }
    }

    /// The place of the mapping.
    pub(super) const fn at(&self) -> Position {
        self.node.at
    }

    /// The node of a field, if it is there and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        let found = self.node.entry(name);
        found.filter(|node| node.value != Value::Null)
    }

    /// The place of a field, or of the mapping where it has none.
    pub(super) fn place(&self, name: &str) -> Position {
        self.get(name).map_or(self.node.at, |node| node.at)
    }

    fn expected(&self, name: &str, what: &str, node: &Node, notes: &mut Notes) {
        let message = format!(
            "{}.{name} is {}, expected {what}",
            self.path,
            node.describe()
        );
        notes.wrong(node.at, message, "correct the value");
    }

    fn read<T>(
        &self,
        name: &str,
        what: &str,
        notes: &mut Notes,
        of: impl FnOnce(&'a Node) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        let value = of(node);
        if value.is_none() {
            self.expected(name, what, node, notes);
        }
        value
    }

    /// Text; a number or `true` counts as its text.
    pub(super) fn text(&self, name: &str, notes: &mut Notes) -> Option<String> {
        self.read(name, "text", notes, text_of)
    }

    /// A whole number from `least` to `most`; Google's interfaces write large ones as text.
    pub(super) fn whole(
        &self,
        name: &str,
        least: i64,
        most: i64,
        notes: &mut Notes,
    ) -> Option<i64> {
        let what = if most == i64::MAX {
            format!("a whole number from {least}")
        } else {
            format!("a whole number from {least} to {most}")
        };
        self.read(name, &what, notes, |node| {
            let number = match &node.value {
                Value::Int(number) => *number,
                Value::Text(text) => text.parse().ok()?,
                _ => return None,
            };
            (least..=most).contains(&number).then_some(number)
        })
    }

    /// A finite number.
    pub(super) fn number(&self, name: &str, notes: &mut Notes) -> Option<f64> {
        self.read(name, "a number", notes, number_of)
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, name: &str, notes: &mut Notes) -> Option<bool> {
        self.read(name, "true or false", notes, |node| match &node.value {
            Value::Bool(value) => Some(*value),
            Value::Text(text) if text == "True" || text == "TRUE" => Some(true),
            Value::Text(text) if text == "False" || text == "FALSE" => Some(false),
            _ => None,
        })
    }

    /// A duration such as `3600s`, at least `least` long.
    pub(super) fn duration(&self, name: &str, least: u64, notes: &mut Notes) -> Option<Duration> {
        let what = format!("seconds such as `3600s`, from {least}s to {MOST_SECONDS}s");
        let range = Duration::from_secs(least)..=Duration::from_secs(MOST_SECONDS);
        self.read(name, &what, notes, |node| match &node.value {
            Value::Text(text) => seconds(text).filter(|time| range.contains(time)),
            _ => None,
        })
    }

    /// A list of texts.
    pub(super) fn texts(&self, name: &str, notes: &mut Notes) -> Vec<String> {
        let items = self.read(name, "a list of texts", notes, |node| match &node.value {
            Value::List(items) => Some(items),
            _ => None,
        });
        let mut texts = Vec::new();
        for (index, item) in items.into_iter().flatten().enumerate() {
            match text_of(item) {
                Some(text) => texts.push(text),
                None => self.expected(&format!("{name}[{index}]"), "text", item, notes),
            }
        }
        texts
    }

    /// A mapping of names to texts.
    pub(super) fn map(&self, name: &str, notes: &mut Notes) -> BTreeMap<String, String> {
        let what = "a mapping of names to texts";
        let entries = self.read(name, what, notes, |node| match &node.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        });
        let mut map = BTreeMap::new();
        for (key, node) in entries.into_iter().flatten() {
            match text_of(node) {
                Some(text) => drop(map.insert(key.name.clone(), text)),
                None => self.expected(&format!("{name}.{}", key.name), "text", node, notes),
            }
        }
        map
    }

    /// One of some words.
    pub(super) fn word<'w>(
        &self,
        name: &str,
        words: &[&'w str],
        notes: &mut Notes,
    ) -> Option<&'w str> {
        let node = self.get(name)?;
        let text = text_of(node).unwrap_or_default();
        let found = words.iter().find(|word| **word == text);
        if found.is_none() {
            let message = format!(
                "{}.{name} is {}, expected one of {}",
                self.path,
                node.describe(),
                words.join(", ")
            );
            notes.wrong(node.at, message, suggest(&text, words));
        }
        found.copied()
    }
}

/// The text of a scalar.
pub(super) fn text_of(node: &Node) -> Option<String> {
    Some(match &node.value {
        Value::Text(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null | Value::List(_) | Value::Map(_) => return None,
    })
}

/// The number of a scalar, if it is finite.
pub(super) fn number_of(node: &Node) -> Option<f64> {
    let number = match &node.value {
        Value::Int(number) => *number as f64,
        Value::Float(number) => *number,
        Value::Text(text) => text.parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}
