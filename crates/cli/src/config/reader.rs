//! Typed values out of a tree, with every mistake on the way collected.

use phalanx::config::{Field, Kind};

use super::aliases;
use phalanx_yaml::{Key, Node, Value};
use phalanx_yaml::{Position, Problem, shown, suggest};

/// Collects mistakes.
#[derive(Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
}

/// A mapping whose keys were checked.
pub(crate) struct Section<'n> {
    name: String,
    /// Its place.
    pub(crate) at: Position,
    entries: &'n [(Key, Node)],
    fields: &'static [Field],
}

impl Reader {
    /// Notes a mistake.
    pub(crate) fn problem(
        &mut self,
        at: Position,
        message: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.problems.push(Problem::new(at, message, next));
    }

    /// The mapping at a node (`name` in messages); unknown and missing keys are noted.
    pub(crate) fn section<'n>(
        &mut self,
        node: &'n Node,
        name: &str,
        fields: &'static [Field],
    ) -> Option<Section<'n>> {
        let Value::Map(entries) = &node.value else {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            let next = match &node.value {
                Value::Text(text) if text.contains(':') => "put a space after the colon".to_owned(),
                _ => format!("give it keys of {}, indented, one a line", names.join(", ")),
            };
            let found = node.describe();
            self.problem(
                node.at,
                format!("{name} is {found}, expected a mapping"),
                next,
            );
            return None;
        };
        let section = Section {
            name: name.to_owned(),
            at: node.at,
            entries,
            fields,
        };
        self.check_keys(&section);
        Some(section)
    }

    fn check_keys(&mut self, section: &Section<'_>) {
        let known = section.names();
        for (key, _) in section
            .entries
            .iter()
            .filter(|(key, _)| !known.contains(&key.name.as_str()))
        {
            self.problem(
                key.at,
                format!("{} has no key {}", section.name, shown(&key.name)),
                aliases::key_hint(&section.name, &key.name)
                    .unwrap_or_else(|| suggest(&key.name, &known)),
            );
        }
        for field in section
            .fields
            .iter()
            .filter(|field| field.is_required() && section.node(field.name).is_none())
        {
            self.lacks(section, field);
        }
    }

    /// Notes that a key is missing.
    pub(crate) fn lacks(&mut self, section: &Section<'_>, field: &Field) {
        self.problem(
            section.at,
            format!(
                "{} lacks the key `{}`, {}",
                section.name,
                field.name,
                field.kind.words()
            ),
            format!("add `{}: {}`", field.name, field.example),
        );
    }

    /// The value of a key, by a function that is given what the table allows, and may still return `None` for it.
    pub(crate) fn value<T>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        read: impl Fn(&Node) -> Option<T>,
    ) -> Option<T> {
        let (node, field) = (section.node(name)?, section.field(name)?);
        let allowed = node.to_json().is_some_and(|json| field.kind.accepts(&json));
        let value = if allowed { read(node) } else { None };
        if value.is_none() {
            self.unexpected(section, name, node);
        }
        value
    }

    /// Notes that the value of a key is not as its field expects.
    pub(crate) fn unexpected(&mut self, section: &Section<'_>, name: &str, node: &Node) {
        let Some(field) = section.field(name) else {
            return;
        };
        let of = &section.name;
        self.problem(
            node.at,
            format!(
                "`{name}` of {of} is {}, expected {}",
                node.describe(),
                field.kind.words()
            ),
            format!("write for example `{name}: {}`", field.example),
        );
    }
}

impl<'n> Section<'n> {
    /// The value of a key.
    pub(crate) fn node(&self, name: &str) -> Option<&'n Node> {
        self.entry(name).map(|(_, node)| node)
    }

    /// The name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The names of the keys it may hold.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.fields.iter().map(|field| field.name).collect()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Whether the table allows a list of this length.
    pub(crate) fn allows_length(&self, name: &str, length: usize) -> bool {
        let kind = self.field(name).map(|field| field.kind);
        let list = match kind {
            Some(Kind::Worded(_, Kind::Either([list, ..]))) => Some(*list),
            kind => kind,
        };
        matches!(list, Some(Kind::Components(_, least, most)) if (least..=most).contains(&length))
    }

    /// How many keys are written.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A key and its value.
    pub(crate) fn entry(&self, name: &str) -> Option<(&'n Key, &'n Node)> {
        self.entries
            .iter()
            .find(|(key, _)| key.name == name)
            .map(|(key, node)| (key, node))
    }
}

/// A whole number.
pub(crate) fn whole(node: &Node) -> Option<i64> {
    match node.value {
        Value::Int(value) => Some(value),
        _ => None,
    }
}

/// A number that is neither infinite nor NaN.
pub(crate) fn finite(node: &Node) -> Option<f64> {
    match node.value {
        Value::Int(value) => Some(value as f64),
        Value::Float(value) if value.is_finite() => Some(value),
        _ => None,
    }
}

/// True or false.
pub(crate) fn boolean(node: &Node) -> Option<bool> {
    match node.value {
        Value::Bool(value) => Some(value),
        _ => None,
    }
}

/// Text that is not empty and holds no control character.
pub(crate) fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) if !text.is_empty() && !text.contains(char::is_control) => Some(text),
        _ => None,
    }
}

/// A list.
pub(crate) fn list(node: &Node) -> Option<&[Node]> {
    match &node.value {
        Value::List(items) => Some(items),
        _ => None,
    }
}
