//! Layers, losses, metrics and optimizers: a name and settings, whose meaning is the library's.

use std::collections::HashMap;
use std::sync::OnceLock;

use phalanx::components::components;
use phalanx::config::{Description, Family};
use phalanx::fit::callbacks;
use phalanx::losses::Loss;
use phalanx::metrics::Metric;
use phalanx::models;
use phalanx::nn::{LayerSpec, layer_from_config};
use phalanx::optim::Optimizer;
use phalanx::strategy::NamedStrategy;
use serde_json::{Map, Number, Value as Json};

use super::Located;
use super::aliases;
use super::bins;
use super::inputs::OF_LAYERS;
use super::reader::Reader;
use phalanx_yaml::{Key, Node, Value};
use phalanx_yaml::{Position, Problem, shown};

/// Types as serde names them, and as a user does.
const SERDE_TYPES: [(&str, &str); 5] = [
    ("expected usize", "expected a whole number from 0"),
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("invalid type: sequence", "invalid type: a list"),
];

/// Most bytes of a name.
const MAX_NAME: usize = 64;

/// A name, its place, and settings.
type Named<'n> = (&'n str, Position, &'n [(Key, Node)]);

/// A name with settings, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// What the name stands for.
    pub family: Family,
    /// The name, such as `dense`.
    pub name: String,
    /// The settings, an object.
    pub settings: Json,
    /// Where the name is written.
    pub at: Position,
    /// What a layer takes, where it says so.
    pub inputs: Option<Vec<Located<String>>>,
    /// How many bins a layer has whose boundaries are found in the data.
    pub num_bins: Option<Located<usize>>,
    /// The name of every setting, also of inner mappings, and where it is written.
    keys: Vec<(String, Position)>,
}

impl Component {
    /// What the library makes of the name and the settings.
    ///
    /// # Errors
    /// What the library says of them, at its place.
    pub fn make<T>(
        &self,
        from_config: impl Fn(&str, &Json) -> phalanx::Result<T>,
    ) -> Result<T, Problem> {
        from_config(&self.name, &self.settings).map_err(|error| self.problem(&error.to_string()))
    }

    /// Where a setting is written; else where the name is.
    pub(super) fn place(&self, setting: &str) -> Position {
        let mut keys = self.keys.iter();
        keys.find(|(key, _)| key == setting)
            .map_or(self.at, |(_, at)| *at)
    }

    /// Whether the library knows the name and the settings.
    fn check(&self) -> Result<(), Problem> {
        if let Some((setting, hint)) = aliases::otherwise(self.family, &self.name, &self.settings) {
            let name = shown(&self.name);
            let message =
                format!("`{setting}` of PyTorch's {name} means something else here; {hint}");
            return Err(self.problem(&message));
        }
        let known: Vec<&str> = catalog(self.family).iter().map(|one| one.name).collect();
        if !known.contains(&self.name.as_str()) && self.family == Family::Layer {
            // The library reads layers and whole models apart, and here both are names of a list.
            let next = phalanx::config::suggest(&self.name, known.iter().copied());
            return Err(self.problem(&format!("unknown layer `{}`; {next}", self.name)));
        }
        match self.family {
            Family::Layer if models::KINDS.contains(&self.name.as_str()) => {
                self.make(any_image).map(drop)
            }
            Family::Layer => self.make(layer_from_config).map(drop),
            Family::Loss => self.make(Loss::from_config).map(drop),
            Family::Metric => self.make(Metric::from_config).map(drop),
            Family::Optimizer => self.make(Optimizer::from_config).map(drop),
            Family::Strategy => self.make(NamedStrategy::from_config).map(drop),
            Family::Callback => self.make(callbacks::from_config).map(drop),
            // These are only parts of other components, which read them.
            Family::Schedule
            | Family::Activation
            | Family::Initializer
            | Family::Regularizer
            | Family::Constraint => Ok(()),
        }
    }

    /// Puts the names of the library in place of other spellings that are understood.
    fn use_known_names(&mut self) {
        let all = catalog(self.family);
        let names: Vec<&str> = all.iter().map(|one| one.name).collect();
        if aliases::otherwise(self.family, &self.name, &self.settings).is_some() {
            return;
        }
        if let Some(name) = aliases::name(self.family, &self.name, &names) {
            name.clone_into(&mut self.name);
        }
        let known = self.known_settings();
        let Json::Object(settings) = &mut self.settings else {
            return;
        };
        let written: Vec<String> = settings.keys().cloned().collect();
        for written in written {
            let meant = aliases::setting(self.family, &written, &known);
            let Some(name) = meant.filter(|name| !settings.contains_key(*name)) else {
                continue;
            };
            if let Some(value) = settings.remove(&written) {
                settings.insert(name.to_owned(), value);
            }
            for (key, _) in self.keys.iter_mut().filter(|(key, _)| *key == written) {
                name.clone_into(key);
            }
        }
        if self.family == Family::Layer {
            self.use_known_names_inside();
        }
    }

    /// The same in the layer that is a setting of a layer.
    fn use_known_names_inside(&mut self) {
        let Some(inner) = self.settings.get_mut("layer") else {
            return;
        };
        let (name, settings) = match inner.take() {
            Json::String(name) => (name, Json::Object(Map::new())),
            Json::Object(mut one) if one.len() == 1 => {
                let name = one.keys().next().cloned().unwrap_or_default();
                let settings = one.remove(&name).unwrap_or_default();
                (name, settings)
            }
            other => return *inner = other,
        };
        let mut layer = Self {
            name,
            settings,
            keys: std::mem::take(&mut self.keys),
            inputs: None,
            num_bins: None,
            ..*self
        };
        layer.use_known_names();
        self.keys = layer.keys;
        self.settings["layer"] = serde_json::json!({layer.name: layer.settings});
    }

    /// The names of its settings; none where there is no such component.
    fn known_settings(&self) -> Vec<&'static str> {
        let mut all = catalog(self.family).iter();
        let described = all.find(|one| one.name == self.name);
        let settings = described.map_or(&[][..], |described| &described.settings[..]);
        settings.iter().map(|setting| setting.field.name).collect()
    }

    /// What to write in place of a spelling that the message calls unknown.
    fn hint(&self, message: &str) -> Option<String> {
        let named = |word: &str| {
            let (_, after) = message.split_once(&format!("unknown {word} `"))?;
            after.split_once('`').map(|(name, _)| name)
        };
        let twice = named("field").and_then(|written| {
            let name = aliases::setting(self.family, written, &self.known_settings())?;
            Some(format!(
                "it is `{name}`, which is given too; keep one of them"
            ))
        });
        if twice.is_some() {
            return twice;
        }
        let mut families = Family::ALL.into_iter();
        let of_name = families.find_map(|family| aliases::name_hint(family, named(family.word())?));
        of_name.or_else(|| aliases::setting_hint(self.family, named("field")?))
    }

    /// A mistake that the library found here.
    ///
    /// It is shown at the setting that the message names last between backticks. What follows a semicolon is taken as what to do.
    #[must_use]
    pub fn problem(&self, message: &str) -> Problem {
        let message = SERDE_TYPES
            .iter()
            .fold(printable(message), |text, (serde, ours)| {
                text.replace(serde, ours)
            });
        let (wrong, next) = match message.rsplit_once("; ") {
            Some((wrong, next)) => (wrong, Some(next.to_owned())),
            None => (message.as_str(), None),
        };
        let next = self.hint(wrong).or(next);
        let quoted = wrong.split('`').skip(1).step_by(2);
        let keys = quoted.filter_map(|quoted| self.keys.iter().find(|(key, _)| key == quoted));
        let (word, name) = (self.family.word(), shown(&self.name));
        let (at, correct) = match keys.last() {
            Some((key, at)) => (*at, format!("correct {} of {word} {name}", shown(key))),
            None => (self.at, format!("correct {word} {name} or its settings")),
        };
        Problem::new(at, wrong, next.unwrap_or(correct))
    }
}

/// The components of a family, described once.
pub(super) fn catalog(family: Family) -> &'static [Description] {
    static CATALOG: OnceLock<HashMap<Family, Vec<Description>>> = OnceLock::new();
    let catalog = CATALOG.get_or_init(|| {
        let families = Family::ALL.into_iter();
        families
            .map(|family| (family, components(family)))
            .collect()
    });
    catalog.get(&family).map_or(&[], Vec::as_slice)
}

/// The metric that a spelling of Keras or PyTorch stands for.
pub(super) fn metric(written: &str) -> Option<&'static str> {
    let known: Vec<&str> = catalog(Family::Metric).iter().map(|one| one.name).collect();
    aliases::name(Family::Metric, written, &known)
}

/// A model before the dims of its input are known: its settings alone count.
fn any_image(kind: &str, settings: &Json) -> phalanx::Result<LayerSpec> {
    models::layer_from_config(kind, settings, &[64, 64, 3])
}

impl Reader {
    /// Reads `name` or `name: {settings}`.
    pub(crate) fn component(&mut self, node: &Node, family: Family) -> Option<Component> {
        let (name, at, settings) = self.named(node, family)?;
        let before = self.problems.len();
        let mut keys = Vec::new();
        collect_keys(settings, &mut keys);
        self.check_names(name, at, &keys);
        let is_layer = family == Family::Layer;
        let inputs = is_layer.then(|| self.inputs_of_layer(name, settings));
        let mut object = self.object(name, settings);
        if let (true, Some(fields)) = (is_layer, object.as_object_mut()) {
            // The connections of layers are no settings of theirs.
            fields.remove(OF_LAYERS.name);
        }
        let mut component = Component {
            family,
            name: name.to_owned(),
            settings: object,
            at,
            inputs: inputs.flatten(),
            num_bins: None,
            keys,
        };
        component.use_known_names();
        if is_layer && component.name == bins::LAYER {
            self.num_bins(&mut component);
        }
        // The library is asked of what it can be asked of.
        if self.problems.len() == before {
            self.problems.extend(component.check().err());
        }
        (self.problems.len() == before).then_some(component)
    }

    /// Reads a list of components.
    pub(crate) fn components(&mut self, items: &[Node], family: Family) -> Vec<Component> {
        let read = items.iter().filter_map(|node| self.component(node, family));
        read.collect()
    }

    /// The library's messages repeat names, and its search for the nearest takes time with their length.
    fn check_names(&mut self, name: &str, at: Position, keys: &[(String, Position)]) {
        let all = keys.iter().map(|(key, at)| (key.as_str(), *at));
        for (name, at) in all.chain([(name, at)]) {
            if name.len() > MAX_NAME || name.contains(|c: char| c.is_control() || c == '`') {
                let message = format!(
                    "a name is {}, expected at most {MAX_NAME} letters, digits and signs",
                    shown(name)
                );
                self.problem(
                    at,
                    message,
                    "write the name of a setting, or of a layer, loss, metric or optimizer",
                );
            }
        }
    }

    fn named<'n>(&mut self, node: &'n Node, family: Family) -> Option<Named<'n>> {
        match &node.value {
            Value::Text(name) if !name.is_empty() => Some((name, node.at, &[])),
            Value::Map(entries) if entries.len() == 1 => {
                let (key, settings) = &entries[0];
                Some((
                    &key.name,
                    key.at,
                    self.settings(&key.name, settings, family)?,
                ))
            }
            Value::Map(entries) if entries.len() > 1 => {
                self.refuse_several(entries, family);
                None
            }
            _ => {
                let (one, found) = (family.one(), node.describe());
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
        family: Family,
    ) -> Option<&'n [(Key, Node)]> {
        match &node.value {
            Value::Null => Some(&[]),
            Value::Map(entries) => Some(entries),
            _ => {
                let (word, name, found) = (family.word(), shown(name), node.describe());
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
    fn refuse_several(&mut self, entries: &[(Key, Node)], family: Family) {
        let (first, second) = (shown(&entries[0].0.name), shown(&entries[1].0.name));
        let one = family.one();
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

/// A message that repeats what the user wrote, without what moves a cursor, and with an end.
fn printable(message: &str) -> String {
    /// The longest names an unknown layer and lists all layers.
    const LONGEST: usize = 6000;
    let mut text = String::new();
    for (index, character) in message.chars().enumerate() {
        match character {
            _ if index == LONGEST => {
                text.push_str("..");
                break;
            }
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text
}

fn collect_keys(entries: &[(Key, Node)], keys: &mut Vec<(String, Position)>) {
    for (key, node) in entries {
        keys.push((key.name.clone(), key.at));
        if let Value::Map(inner) = &node.value {
            collect_keys(inner, keys);
        }
    }
}
