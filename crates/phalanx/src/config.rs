//! Fields of configurations as JSON values, read with errors that name the field meant.

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

/// `did you mean ..?` with the nearest candidate, or all of them when none is near.
pub(crate) fn suggest<'a>(name: &str, candidates: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = candidates
        .clone()
        .min_by_key(|candidate| edit_distance(name, candidate));
    match nearest {
        Some(nearest) if edit_distance(name, nearest) <= name.len().max(4) / 2 => {
            format!("did you mean `{nearest}`?")
        }
        Some(_) => format!("known are {}", candidates.collect::<Vec<_>>().join(", ")),
        None => "it takes none".to_owned(),
    }
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

/// Levenshtein distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
        let far = suggest("zzzzzzzz", ["rate", "steps"].into_iter());
        assert_eq!(far, "known are rate, steps");
    }
}
