//! Fields of configurations, read with errors that name the field that was meant.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// `template` with the fields of `given` put in its place.
///
/// `owner` is the kind in error messages; `required` are fields that the template only stands in for.
pub(crate) fn read<T: Serialize + DeserializeOwned>(
    owner: &str,
    template: &T,
    required: &[&str],
    given: &Value,
) -> Result<T> {
    let known = fields(owner, template)?;
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
        let Some(slot) = merged.get_mut(field) else {
            let suggestion = suggest(field, known.keys().map(String::as_str));
            let message = format!("{owner}: unknown field `{field}`; {suggestion}");
            return Err(Error::user(message));
        };
        *slot = value.clone();
        let mut probe = known.clone();
        probe.insert(field.clone(), value.clone());
        parse::<T>(probe).map_err(|error| Error::user(format!("{owner}: `{field}`: {error}")))?;
    }
    // After unknown fields: one of them may be meant to be the missing one.
    if let Some(missing) = required.iter().find(|&&field| !given.contains_key(field)) {
        return Err(Error::user(format!(
            "{owner}: field `{missing}` is missing; add it"
        )));
    }
    parse(merged).map_err(|error| Error::user(format!("{owner}: {error}")))
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
    let candidates: Vec<&str> = candidates.into_iter().collect();
    if candidates.is_empty() {
        return "it takes none".to_owned();
    }
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
    let nearest = within(|_| 2).or_else(begun);
    match nearest.or_else(|| within(|candidate| candidate.len().max(4) / 2)) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("known are {}", candidates.join(", ")),
    }
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
    match serde_json::to_value(config) {
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

    fn read_sample(given: &Value) -> Result<Sample> {
        let template = Sample {
            rate: 0.5,
            steps: 1,
        };
        read("sample", &template, &["steps"], given)
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
        assert!(wrong.starts_with("sample: `rate`: invalid type"), "{wrong}");
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
