//! The components of the library by name: what each is, what settings it takes and what they are by default.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Field, read_fields, suggest, write};
use crate::{Error, Result};

/// What a component is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A layer.
    Layer,
    /// A loss.
    Loss,
    /// A metric.
    Metric,
    /// An optimizer.
    Optimizer,
    /// A learning rate over time.
    Schedule,
    /// A strategy: on which devices to train, and how they work together.
    Strategy,
    /// An activation.
    Activation,
    /// An initializer of variables.
    Initializer,
    /// A regularizer.
    Regularizer,
}

/// A component: its name, what it does, and the settings it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// The name, such as `dense`.
    pub name: &'static str,
    /// What it does, as a phrase.
    pub doc: &'static str,
    /// The settings it takes.
    pub fields: &'static [Field],
}

/// A component with the defaults of its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The name, such as `dense`.
    pub name: &'static str,
    /// What it does, as a phrase.
    pub doc: &'static str,
    /// The settings it takes, its own before those of the whole family.
    pub settings: Vec<Setting>,
}

/// A setting of a component with its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The setting.
    pub field: Field,
    /// What it is where it is left out; `null` for nothing, and where it is required.
    pub default: Value,
}

/// A type that is read from settings and says which it takes.
pub(crate) trait Described: Serialize + DeserializeOwned {
    /// Its name, what it does, and its settings.
    const COMPONENT: Component;
    /// Settings that it has beside those of [`COMPONENT`](Self::COMPONENT), shared by its family.
    const SHARED: &'static [Field] = &[];
}

/// One component of a family: how it is made of settings, and its description.
pub(crate) struct Entry<T> {
    pub(crate) component: Component,
    make: Box<dyn Fn(&Value) -> Result<T>>,
    describe: Box<dyn Fn() -> Description>,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 9] = [
        Self::Layer,
        Self::Loss,
        Self::Metric,
        Self::Optimizer,
        Self::Schedule,
        Self::Strategy,
        Self::Activation,
        Self::Initializer,
        Self::Regularizer,
    ];

    /// The family in messages: `layer`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Loss => "loss",
            Self::Metric => "metric",
            Self::Optimizer => "optimizer",
            Self::Schedule => "schedule",
            Self::Strategy => "strategy",
            Self::Activation => "activation",
            Self::Initializer => "initializer",
            Self::Regularizer => "regularizer",
        }
    }

    /// One of the family, with its article: `a layer`.
    #[must_use]
    pub const fn one(self) -> &'static str {
        match self {
            Self::Layer => "a layer",
            Self::Loss => "a loss",
            Self::Metric => "a metric",
            Self::Optimizer => "an optimizer",
            Self::Schedule => "a schedule",
            Self::Strategy => "a strategy",
            Self::Activation => "an activation",
            Self::Initializer => "an initializer",
            Self::Regularizer => "a regularizer",
        }
    }

    /// Several of the family: `layers`.
    #[must_use]
    pub const fn many(self) -> &'static str {
        match self {
            Self::Layer => "layers",
            Self::Loss => "losses",
            Self::Metric => "metrics",
            Self::Optimizer => "optimizers",
            Self::Schedule => "schedules",
            Self::Strategy => "strategies",
            Self::Activation => "activations",
            Self::Initializer => "initializers",
            Self::Regularizer => "regularizers",
        }
    }

    /// The components of the family as training files name them.
    #[must_use]
    pub fn components(self) -> Vec<Description> {
        match self {
            Self::Layer => {
                let mut layers = crate::nn::Registry::standard().descriptions();
                layers.extend(crate::models::descriptions());
                layers
            }
            Self::Loss => crate::losses::Loss::descriptions(),
            Self::Metric => crate::metrics::Metric::descriptions(),
            Self::Optimizer => crate::optim::Rule::descriptions(),
            Self::Schedule => crate::schedules::Schedule::descriptions(),
            Self::Strategy => crate::strategy::NamedStrategy::descriptions(),
            Self::Activation => crate::nn::Activation::descriptions(),
            Self::Initializer => crate::nn::Initializer::descriptions(),
            Self::Regularizer => crate::nn::Regularizer::descriptions(),
        }
    }
}

impl Description {
    /// The description of a component, with defaults from a template's fields.
    pub(crate) fn new(component: &Component, shared: &[Field], template: &Value) -> Self {
        let settings = component.fields.iter().chain(shared).map(|field| Setting {
            field: *field,
            default: match template.get(field.name) {
                Some(default) if !field.is_required() => default.clone(),
                _ => Value::Null,
            },
        });
        Self {
            name: component.name,
            doc: component.doc,
            settings: settings.collect(),
        }
    }

    /// The description of a type.
    pub(crate) fn of<T: Described>(template: &T) -> Self {
        let component = T::COMPONENT;
        Self::new(&component, T::SHARED, &write(component.name, template))
    }
}

impl<T: 'static> Entry<T> {
    /// The entry of a type, with the defaults of `template`.
    pub(crate) fn new<C: Described + Clone + Into<T> + 'static>(template: C) -> Self {
        Self::with(C::COMPONENT, template, Into::into)
    }

    /// The entry of a component that is read as a `C`, which `finish` makes into one of the family.
    pub(crate) fn with<C: Described + Clone + 'static>(
        component: Component,
        template: C,
        finish: impl Fn(C) -> T + 'static,
    ) -> Self {
        let described = template.clone();
        Self {
            component,
            make: Box::new(move |given| {
                let declared = component.fields.iter().chain(C::SHARED);
                let declared: Vec<&Field> = declared.collect();
                let read = read_fields(component.name, &template, &declared, given)?;
                Ok(finish(read))
            }),
            describe: Box::new(move || {
                let defaults = write(component.name, &described);
                Description::new(&component, C::SHARED, &defaults)
            }),
        }
    }

    /// The component of a name and settings.
    pub(crate) fn read(entries: &[Self], family: Family, name: &str, given: &Value) -> Result<T> {
        match entries.iter().find(|entry| entry.component.name == name) {
            Some(entry) => (entry.make)(given),
            None => {
                let known = entries.iter().map(|entry| entry.component.name);
                let suggestion = suggest(name, known);
                let word = family.word();
                Err(Error::user(format!(
                    "unknown {word} `{name}`; {suggestion}"
                )))
            }
        }
    }

    /// The descriptions of all.
    pub(crate) fn descriptions(entries: &[Self]) -> Vec<Description> {
        entries.iter().map(|entry| (entry.describe)()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use serde_json::{Map, json};
    use std::ops::Bound;

    /// Reads a component as a training file would.
    fn read_component(family: Family, name: &str, settings: &Map<String, Value>) -> Result<()> {
        let fields = Value::Object(settings.clone());
        let variant = || json!({ name: settings });
        let user = |error: serde_json::Error| Error::user(error.to_string());
        match family {
            Family::Layer if crate::models::KINDS.contains(&name) => {
                crate::models::layer_from_config(name, &fields, &[64, 64, 3]).map(drop)
            }
            Family::Layer => crate::nn::layer_from_config(name, &fields).map(drop),
            Family::Loss => crate::losses::Loss::from_config(name, &fields).map(drop),
            Family::Metric => crate::metrics::Metric::from_config(name, &fields).map(drop),
            Family::Optimizer => crate::optim::Optimizer::from_config(name, &fields).map(drop),
            Family::Schedule => crate::schedules::Schedule::from_config(name, &fields).map(drop),
            Family::Strategy => {
                crate::strategy::NamedStrategy::from_config(name, &fields).map(drop)
            }
            Family::Activation => serde_json::from_value::<crate::nn::Activation>(variant())
                .map(drop)
                .map_err(user),
            Family::Initializer => serde_json::from_value::<crate::nn::Initializer>(variant())
                .map(drop)
                .map_err(user),
            Family::Regularizer => serde_json::from_value::<crate::nn::Regularizer>(variant())
                .map(drop)
                .map_err(user),
        }
    }

    /// Values of a kind, at its limits where it has some.
    fn samples(kind: &Kind) -> Vec<Value> {
        let inside = |bound: Bound<f64>, step: f64| match bound {
            Bound::Included(limit) => Some(limit),
            Bound::Excluded(limit) => Some(limit + step),
            Bound::Unbounded => None,
        };
        match kind {
            Kind::Null => vec![Value::Null],
            Kind::Bool => vec![json!(true), json!(false)],
            Kind::Whole(least, _) => vec![json!((*least).max(0)), json!((*least).max(0) + 1)],
            Kind::Number(least, most) => {
                let limits = [inside(*least, 1e-6), inside(*most, -1e-6)];
                let limits: Vec<Value> = limits.into_iter().flatten().map(Value::from).collect();
                if limits.is_empty() {
                    vec![json!(0)]
                } else {
                    limits
                }
            }
            Kind::Text => vec![json!("cpu")],
            Kind::OneOf(words) => words.iter().map(|word| json!(word)).collect(),
            Kind::List(kind, least, _) => {
                vec![vec![samples(kind)[0].clone(); *least].into()]
            }
            Kind::Map(kind) => vec![json!({"data": samples(kind)[0]})],
            Kind::Section(_) => vec![json!({})],
            Kind::Component(Family::Layer) => vec![json!({"lstm": {"units": 1}})],
            Kind::Component(Family::Schedule) => {
                vec![json!({"constant": {"learning_rate": 0.1}})]
            }
            Kind::Component(family) => vec![json!(family.components().last().unwrap().name)],
            Kind::Components(..) => vec![json!([])],
            Kind::Either(kinds) => kinds.iter().flat_map(samples).collect(),
            Kind::Worded(_, kind) => samples(kind),
        }
    }

    /// Settings that are refused alone, with what they need.
    fn beside(name: &str) -> Value {
        match name {
            "ema_overwrite_frequency" => json!({"use_ema": true}),
            "bias_initializer" => json!({"unit_forget_bias": false}),
            "groups" => json!({"filters": 2}),
            _ => json!({}),
        }
    }

    fn each(check: impl Fn(Family, &Description, &Map<String, Value>)) {
        for family in Family::ALL {
            for component in family.components() {
                let required = component.settings.iter().filter(|s| s.field.is_required());
                let required = required.map(|setting| {
                    let field = setting.field;
                    (field.name.to_owned(), samples(&field.kind)[0].clone())
                });
                check(family, &component, &required.collect());
            }
        }
    }

    #[test]
    fn every_declared_setting_is_read_and_no_other() {
        each(|family, component, required| {
            let read = |settings: &Map<_, _>| read_component(family, component.name, settings);
            read(required).unwrap();
            let mut unknown = required.clone();
            unknown.insert("no_such_setting".into(), json!(1));
            assert!(read(&unknown).is_err(), "{}", component.name);
            for setting in &component.settings {
                for value in samples(&setting.field.kind) {
                    let mut settings = required.clone();
                    for (name, value) in beside(setting.field.name).as_object().unwrap() {
                        if component.settings.iter().any(|s| s.field.name == name) {
                            settings.insert(name.clone(), value.clone());
                        }
                    }
                    settings.insert(setting.field.name.into(), value);
                    read(&settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
                }
            }
        });
    }

    #[test]
    fn defaults_are_of_their_kind_and_settings_are_documented() {
        each(|_, component, _| {
            assert!(!component.doc.is_empty(), "{}", component.name);
            for Setting { field, default } in &component.settings {
                let name = format!("{}.{}", component.name, field.name);
                assert!(default.is_null() || field.kind.accepts(default), "{name}");
                assert!(!field.doc.is_empty() && !field.doc.ends_with('.'), "{name}");
                assert!(!field.is_required() || !field.example.is_empty(), "{name}");
            }
        });
    }

    #[test]
    fn the_names_are_those_of_the_kinds() {
        let names = |family: Family| -> Vec<&str> {
            let components = family.components().into_iter();
            components.map(|component| component.name).collect()
        };
        assert_eq!(names(Family::Loss), crate::losses::Loss::KINDS);
        assert_eq!(names(Family::Metric), crate::metrics::Metric::KINDS);
        assert_eq!(names(Family::Optimizer), crate::optim::Rule::KINDS);
        assert_eq!(names(Family::Schedule), crate::schedules::Schedule::KINDS);
        assert_eq!(
            names(Family::Strategy),
            crate::strategy::NamedStrategy::KINDS
        );
        let registry = crate::nn::Registry::standard();
        let mut layers: Vec<&str> = registry.kinds().collect();
        layers.extend(crate::models::KINDS);
        assert_eq!(names(Family::Layer), layers);
    }
}
