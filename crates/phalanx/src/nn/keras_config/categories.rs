//! Layers of categories as Keras describes them.

use serde_json::Value;

use super::read_layer::brief;
use super::{Settings, Translated};

/// Makes settings of a layer of categories, as Keras notes them, ours.
pub(super) fn of_keras(kind: &str, settings: &mut Settings) -> Translated<()> {
    if settings
        .get("output_mode")
        .is_some_and(|mode| mode == "binary")
    {
        // As early versions of Keras called it.
        settings.insert("output_mode".into(), "multi_hot".into());
    }
    match kind {
        "discretization" => discretization(settings),
        "hashing" => without(settings, &[("salt", "null")]),
        "integer_lookup" => integer_lookup(settings),
        _ => Ok(()),
    }
}

fn discretization(settings: &mut Settings) -> Translated<()> {
    for of_adapt in ["num_bins", "epsilon"] {
        settings.remove(of_adapt);
    }
    match settings.contains_key("bin_boundaries") {
        true => Ok(()),
        false => Err(
            "it has no `bin_boundaries`, which its `adapt` finds; call that before the model is saved".into(),
        ),
    }
}

/// Settings of a lookup, and the value at which each changes nothing.
const OF_OTHER_LOOKUPS: [(&str, &str); 5] = [
    ("invert", "false"),
    ("oov_method", "\"floormod\""),
    ("pad_to_max_tokens", "false"),
    ("salt", "null"),
    ("vocabulary_dtype", "\"int64\""),
];

/// Takes settings out that there are not here, and refuses other values of them than these.
fn without(settings: &mut Settings, neutral: &[(&str, &str)]) -> Translated<()> {
    for (name, neutral) in neutral {
        let value = settings.remove(*name).unwrap_or_default();
        let text = value.to_string();
        if !value.is_null() && text != *neutral {
            return Err(format!(
                "its `{name}` is {}, and only {neutral} has a like here",
                brief(&value)
            ));
        }
    }
    Ok(())
}

fn integer_lookup(settings: &mut Settings) -> Translated<()> {
    without(settings, &OF_OTHER_LOOKUPS)?;
    // What limited the vocabulary as it was found, and how large it is.
    for of_vocabulary in ["max_tokens", "vocabulary_size"] {
        settings.remove(of_vocabulary);
    }
    let unknown = settings.remove("oov_token").unwrap_or_default();
    let special = special_tokens(settings, &unknown);
    let Some(Value::Array(values)) = settings.get_mut("vocabulary") else {
        return Err(
            "it has no `vocabulary` among its settings, as one that its `adapt` found is not; give it `vocabulary=layer.get_vocabulary()`".into(),
        );
    };
    if values.starts_with(&special) {
        values.drain(..special.len());
    }
    Ok(())
}

/// What may stand before the values of a vocabulary in Keras: a token for each number of its own.
fn special_tokens(settings: &Settings, unknown: &Value) -> Vec<Value> {
    let setting = |name: &str| settings.get(name).unwrap_or(&Value::Null);
    let is_counted = setting("output_mode")
        .as_str()
        .is_none_or(|mode| mode == "int");
    let mask = Some(setting("mask_token")).filter(|mask| is_counted && !mask.is_null());
    let count = setting("num_oov_indices").as_u64().unwrap_or(1);
    let unknown = (0..count).map(|_| unknown.clone());
    mask.cloned().into_iter().chain(unknown).collect()
}

/// Writes the tokens before the vocabulary: Keras would take its first values for them where they are the same.
pub(super) fn integer_lookup_for_keras(settings: &mut Settings) {
    let unknown = Value::from(-1);
    let mut vocabulary = special_tokens(settings, &unknown);
    if let Some(Value::Array(values)) = settings.remove("vocabulary") {
        vocabulary.extend(values);
    }
    settings.insert("oov_token".into(), unknown);
    settings.insert("vocabulary".into(), vocabulary.into());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(kind: &str, mut settings: Value) -> Translated<Value> {
        of_keras(kind, settings.as_object_mut().unwrap()).map(|()| settings)
    }

    #[test]
    fn what_adapt_was_told_goes_and_what_it_found_stays() {
        let adapted = json!({"bin_boundaries": [0.5], "num_bins": 2, "epsilon": 0.01});
        assert_eq!(
            read("discretization", adapted),
            Ok(json!({"bin_boundaries": [0.5]}))
        );
        let wrong = read("discretization", json!({"num_bins": 2})).unwrap_err();
        assert!(wrong.starts_with("it has no `bin_boundaries`"), "{wrong}");
    }

    #[test]
    fn tokens_before_a_vocabulary_are_no_values_of_it() {
        let of = |vocabulary: &[i64], mode: &str| {
            json!({"vocabulary": vocabulary, "oov_token": -1, "mask_token": 0,
            "num_oov_indices": 2, "output_mode": mode, "max_tokens": 9, "vocabulary_size": 5, "oov_method": "floormod"})
        };
        let read = |vocabulary: &[i64], mode: &str| {
            read("integer_lookup", of(vocabulary, mode)).unwrap()["vocabulary"].take()
        };
        assert_eq!(read(&[0, -1, -1, 5, 6], "int"), json!([5, 6]));
        assert_eq!(read(&[-1, -1, 5, 6], "int"), json!([-1, -1, 5, 6]));
        assert_eq!(read(&[-1, -1, 5, 6], "one_hot"), json!([5, 6]));
        // Written, values that could be taken for tokens are none.
        for mode in ["int", "count"] {
            let mut settings = json!({"vocabulary": [-1, -2], "num_oov_indices": 1, "mask_token": null, "output_mode": mode});
            let settings = settings.as_object_mut().unwrap();
            integer_lookup_for_keras(settings);
            assert_eq!(settings["vocabulary"], json!([-1, -1, -2]));
            of_keras("integer_lookup", settings).unwrap();
            assert_eq!(settings["vocabulary"], json!([-1, -2]));
        }
    }

    #[test]
    fn lookups_that_there_are_not_here_are_named() {
        let wrong = |field: &str, value: Value| {
            let settings = json!({"vocabulary": [1], field: value});
            read("integer_lookup", settings).unwrap_err()
        };
        assert_eq!(
            wrong("invert", true.into()),
            "its `invert` is true, and only false has a like here"
        );
        let salted = json!({"num_bins": 3, "salt": [133, 137]});
        assert_eq!(
            read("hashing", salted).unwrap_err(),
            "its `salt` is [133,137], and only null has a like here"
        );
        assert!(wrong("oov_method", "farmhash".into()).contains("\"floormod\" has a like"));
        assert!(wrong("vocabulary", Value::Null).contains("layer.get_vocabulary()"));
    }

    #[test]
    fn an_early_name_of_an_output_is_read() {
        let binary = json!({"num_tokens": 3, "output_mode": "binary"});
        let expected = json!({"num_tokens": 3, "output_mode": "multi_hot"});
        assert_eq!(read("category_encoding", binary), Ok(expected));
    }
}
