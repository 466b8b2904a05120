//! Layers of categories as Keras describes them.

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(kind: &str, settings: serde_json::Value) -> Translated<serde_json::Value> {
        let mut settings = settings.as_object().unwrap().clone();
        of_keras(kind, &mut settings).map(|()| settings.into())
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
    fn an_early_name_of_an_output_is_read() {
        let binary = json!({"num_tokens": 3, "output_mode": "binary"});
        let expected = json!({"num_tokens": 3, "output_mode": "multi_hot"});
        assert_eq!(read("category_encoding", binary), Ok(expected));
    }
}
