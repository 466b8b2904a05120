//! Settings of components, read from JSON with errors that name the setting that was meant.
//!
//! Each component declares its settings once, as [`Field`]s beside its type. They are the limits and the words of the
//! messages, and [`components`](crate::components) hands them on to the reference page and the JSON Schema of training files.

mod component;
mod field;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use component::{Component, Description, Family, Setting};
pub(crate) use component::{Described, Entry};
pub use field::{DefaultValue, Field, Kind};

use crate::{Error, Result};

/// `template` with the settings of `given` in place of its own; `owner` is the name in error messages.
///
/// # Errors
/// A setting that does not exist, lacks, or has a value that it cannot have.
pub(crate) fn read<T: Described>(owner: &str, template: &T, given: &Value) -> Result<T> {
    let declared = both(T::COMPONENT.fields, T::SHARED);
    read_fields(owner, template, &declared, given)
}

/// The settings of a component: its own and those that it shares with others.
fn both<'a>(own: &'a [Field], shared: &'a [Field]) -> Vec<&'a Field> {
    own.iter().chain(shared).collect()
}

/// As [`read`], of a type whose settings are these.
pub(crate) fn read_fields<T: Serialize + DeserializeOwned>(
    owner: &str,
    template: &T,
    declared: &[&Field],
    given: &Value,
) -> Result<T> {
    let known = fields(owner, template)?;
    let probe = |fields| parse::<T>(fields).map(drop);
    let merged = merged(owner, &known, declared, given, &probe)?;
    parse(merged).map_err(|error| Error::user(format!("{owner}: {error}")))
}

/// The fields with those given in the place of their own, each tried by itself; one function for all types, which are many.
fn merged(
    owner: &str,
    known: &Map<String, Value>,
    declared: &[&Field],
    given: &Value,
    probe: &dyn Fn(Map<String, Value>) -> serde_json::Result<()>,
) -> Result<Map<String, Value>> {
    let empty = Map::new();
    let given = match given {
        Value::Null => &empty,
        Value::Object(given) => given,
        other => {
            let message = format!("{owner}: expected fields with values, got {other}");
            return Err(Error::user(message));
        }
    };
    let mut merged = known.clone();
    for (field, value) in given {
        let declaration = declared.iter().find(|declared| declared.name == field);
        let (Some(slot), Some(declaration)) = (merged.get_mut(field), declaration) else {
            let suggestion = suggest(field, declared.iter().map(|declared| declared.name));
            let message = format!("{owner}: unknown field `{field}`; {suggestion}");
            return Err(Error::user(message));
        };
        // What is nothing by default may be given as nothing.
        if !(value.is_null() && slot.is_null()) {
            check_value(owner, declaration, value)?;
        }
        *slot = value.clone();
        let mut one = known.clone();
        one.insert(field.clone(), value.clone());
        probe(one).map_err(|error| Error::user(format!("{owner}: `{field}`: {error}")))?;
    }
    // After unknown fields: one of them may be meant to be the missing one.
    let mut required = declared.iter().filter(|field| field.is_required());
    if let Some(Field { name, .. }) = required.find(|field| !given.contains_key(field.name)) {
        return Err(Error::user(format!(
            "{owner}: field `{name}` is missing; add it"
        )));
    }
    Ok(merged)
}

/// Whether a setting may have this value, else what it may have.
fn check_value(owner: &str, field: &Field, value: &Value) -> Result<()> {
    if field.kind.accepts(value) {
        return Ok(());
    }
    let (name, words) = (field.name, field.kind.words());
    let message = format!("{owner}: `{name}` must be {words}, got {}", shown(value));
    let text = value.as_str();
    let near = text.and_then(|text| nearest(text, field.kind.choices()));
    Err(Error::user(match near {
        Some(near) => format!("{message}; {}", did_you_mean(near)),
        None => message,
    }))
}

/// A value as JSON, cut where it is long.
fn shown(value: &Value) -> String {
    const MAX_SHOWN: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// The fields of a configuration as a JSON object.
pub(crate) fn write<T: Serialize>(owner: &str, config: &T) -> Value {
    fields(owner, config).map_or(Value::Null, Value::Object)
}

/// The error for a kind that does not exist.
pub(crate) fn unknown_kind(what: &str, kind: &str, known: &[&str]) -> Error {
    let suggestion = suggest(kind, known.iter().copied());
    Error::user(format!("unknown {what} `{kind}`; {suggestion}"))
}

/// ``did you mean `..`?`` with the candidate nearest to a name that does not exist, or all of them when none
/// is near; case does not count.
#[must_use]
pub fn suggest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    suggest_of(name, &candidates.into_iter().collect::<Vec<_>>())
}

fn suggest_of(name: &str, candidates: &[&str]) -> String {
    match nearest(name, candidates) {
        Some(nearest) => did_you_mean(nearest),
        None if candidates.is_empty() => "it takes none".to_owned(),
        None => format!("known are {}", candidates.join(", ")),
    }
}

fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}

/// The candidate that a name is probably meant to be, if one is near.
fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let within = |longest: fn(&str) -> usize| {
        let distances = candidates
            .iter()
            .map(|candidate| (distance(name, candidate), *candidate));
        let near = distances.filter(|(distance, candidate)| *distance <= longest(candidate));
        near.min_by_key(|(distance, _)| *distance)
            .map(|(_, candidate)| candidate)
    };
    let begun = || {
        let mut candidates = candidates.iter().copied();
        candidates.find(|candidate| name.len() > 2 && candidate.starts_with(name))
    };
    let found = within(|_| 2).or_else(begun);
    found.or_else(|| within(|candidate| candidate.len().max(4) / 2))
}

/// Whether a number is at least 0, else what the field must be.
pub(crate) fn at_least_zero(field: &str, value: f64) -> std::result::Result<(), String> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!(
        "`{field}` must be a number of at least 0, got {value}"
    ))
}

/// Whether a number is above 0, else what the field must be.
pub(crate) fn above_zero(field: &str, value: f64) -> std::result::Result<(), String> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!("`{field}` must be a number above 0, got {value}"))
}

/// Whether a number is at least 0 and below 1, else what the field must be.
pub(crate) fn fraction(field: &str, value: f64) -> std::result::Result<(), String> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(format!(
        "`{field}` must be at least 0 and below 1, got {value}"
    ))
}

fn fields<T: Serialize>(owner: &str, config: &T) -> Result<Map<String, Value>> {
    fields_of(owner, serde_json::to_value(config))
}

fn fields_of(owner: &str, written: serde_json::Result<Value>) -> Result<Map<String, Value>> {
    match written {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(other) => Err(Error::Bug(format!("configuration of {owner} is {other}"))),
        Err(error) => Err(Error::Bug(format!("configuration of {owner}: {error}"))),
    }
}

/// No fields at all are a unit struct, which serde writes as null.
fn parse<T: DeserializeOwned>(fields: Map<String, Value>) -> serde_json::Result<T> {
    if fields.is_empty() {
        return serde_json::from_value(Value::Null);
    }
    serde_json::from_value(Value::Object(fields))
}

/// Letters to change, add, drop or swap with a neighbour; a long name is near to none.
fn distance(name: &str, candidate: &str) -> usize {
    const LONGEST: usize = 64;
    if name.len() > LONGEST {
        return usize::MAX;
    }
    strsim::osa_distance(&name.to_lowercase(), candidate)
}

/// Chained setters of a component's fields.
macro_rules! setters {
    ($rule:ident { $($(#[$doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        impl $rule {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
pub(crate) use setters;

/// Lists of settings as one, for a component whose settings are partly shared with others.
macro_rules! joined {
    ($($list:expr),* $(,)?) => {{
        const LISTS: &[&[crate::config::Field]] = &[$($list),*];
        const FIELDS: [crate::config::Field; crate::config::count(LISTS)] = crate::config::join(LISTS);
        &FIELDS
    }};
}
pub(crate) use joined;

/// The number of settings in all lists.
pub(crate) const fn count(lists: &[&[Field]]) -> usize {
    let (mut list, mut count) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

/// The settings of all lists, of which there are `N`: see [`joined`].
pub(crate) const fn join<const N: usize>(lists: &[&[Field]]) -> [Field; N] {
    let mut fields = [Field::optional("", Kind::Null, ""); N];
    let (mut list, mut done) = (0, 0);
    while list < lists.len() {
        let mut index = 0;
        while index < lists[list].len() {
            fields[done] = lists[list][index];
            (index, done) = (index + 1, done + 1);
        }
        list += 1;
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        rate: f64,
        steps: u64,
    }

    impl Described for Sample {
        const COMPONENT: Component = Component {
            name: "sample",
            doc: "A sample.",
            fields: &[
                Field::optional("rate", Kind::AT_LEAST_ZERO, "how fast"),
                Field::required("steps", Kind::POSITIVE, "how far"),
            ],
        };
    }

    fn read_sample(given: &Value) -> Result<Sample> {
        let template = Sample {
            rate: 0.5,
            steps: 1,
        };
        read("sample", &template, given)
    }

    #[test]
    fn given_fields_replace_the_template() {
        let sample = read_sample(&json!({"steps": 7})).unwrap();
        let expected = Sample {
            rate: 0.5,
            steps: 7,
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn mistakes_name_the_field() {
        let message = |given: Value| read_sample(&given).unwrap_err().to_string();
        let unknown = message(json!({"steps": 1, "rte": 2.0}));
        assert_eq!(unknown, "sample: unknown field `rte`; did you mean `rate`?");
        let missing = message(json!({"rate": 2.0}));
        assert_eq!(missing, "sample: field `steps` is missing; add it");
        let wrong = message(json!({"steps": 1, "rate": "high"}));
        assert_eq!(
            wrong,
            "sample: `rate` must be a number of at least 0, got \"high\""
        );
        assert!(message(json!([1])).starts_with("sample: expected fields"));
    }

    #[test]
    fn far_names_list_what_is_known() {
        let far = suggest("zzzzzzzz", ["rate", "steps"]);
        assert_eq!(far, "known are rate, steps");
        let kinds = ["constant", "cosine_decay"];
        assert_eq!(suggest("cosine", kinds), "did you mean `cosine_decay`?");
        assert_eq!(suggest("RTAE", ["rate"]), "did you mean `rate`?");
        assert_eq!(suggest(&"r".repeat(1 << 20), ["rate"]), "known are rate");
        assert_eq!(suggest("rate", []), "it takes none");
    }
}
