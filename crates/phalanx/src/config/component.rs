//! The components of the library by name: what each is, what settings it takes and what they are by default.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Field, both, read_fields, suggest, write};
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
    /// A constraint.
    Constraint,
    /// A callback of a training.
    Callback,
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
    /// The settings it takes, its own before the family's.
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
    /// Settings shared by its family, beside its own in [`COMPONENT`](Self::COMPONENT).
    const SHARED: &'static [Field] = &[];
}

/// Makes a component of settings.
type MakeComponent<T> = Box<dyn Fn(&Value) -> Result<T>>;

/// One component of a family: how it is made of settings, and its description.
pub(crate) struct Entry<T> {
    pub(crate) component: Component,
    make: MakeComponent<T>,
    describe: Box<dyn Fn() -> Description>,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 11] = [
        Self::Layer,
        Self::Loss,
        Self::Metric,
        Self::Optimizer,
        Self::Schedule,
        Self::Strategy,
        Self::Activation,
        Self::Initializer,
        Self::Regularizer,
        Self::Constraint,
        Self::Callback,
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
            Self::Constraint => "constraint",
            Self::Callback => "callback",
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
            Self::Constraint => "a constraint",
            Self::Callback => "a callback",
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
            Self::Constraint => "constraints",
            Self::Callback => "callbacks",
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
                let declared = both(component.fields, C::SHARED);
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
