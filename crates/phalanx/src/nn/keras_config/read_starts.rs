//! How variables begin, in descriptions without values: what has no like here would begin otherwise than in Keras.

use serde_json::{Value, json};

use super::read::of_layer;
use super::read_layer::{KerasLayer, brief, snake_case};
use super::{Settings, Translated};
use crate::nn::Initializer;

/// Refuses a description in which a variable begins as none does here.
pub(crate) fn check_starts(description: &Value) -> Translated<()> {
    if let Ok(layer) = KerasLayer::of(description) {
        check(&layer).map_err(|message| of_layer(&layer, &message))?;
    }
    match description {
        Value::Object(fields) => fields.values().try_for_each(check_starts),
        Value::Array(items) => items.iter().try_for_each(check_starts),
        _ => Ok(()),
    }
}

fn check(layer: &KerasLayer<'_>) -> Translated<()> {
    let given = layer.settings.iter().filter(|(_, value)| !value.is_null());
    let mut given = given.filter(|(field, _)| field.ends_with("initializer"));
    if let Some((field, value)) = given.find(|(_, value)| initializer(value).is_none()) {
        return Err(other_start(
            field,
            value,
            "there is no such initializer here",
        ));
    }
    let start = |field: &str| initializer(layer.setting(field));
    let points = "pointwise_initializer";
    if start(points).is_some() && start(points) != start("depthwise_initializer") {
        return Err(other_start(
            points,
            layer.setting(points),
            "here both kernels begin as `depthwise_initializer` says",
        ));
    }
    let bias = "bias_initializer";
    let sets_forget_gate =
        layer.class.contains("LSTM") && layer.setting("unit_forget_bias") != false;
    if sets_forget_gate && start(bias).is_some_and(|start| start != "zeros") {
        return Err(other_start(
            bias,
            layer.setting(bias),
            "here the gates beside the forget gate begin at 0 where `unit_forget_bias` is true",
        ));
    }
    Ok(())
}

fn other_start(field: &str, value: &Value, instead: &str) -> String {
    format!(
        "its `{field}` is {}, and {instead}; set another one, or save the model with its values by `model.save(\"model.keras\")`",
        brief(value)
    )
}

/// How a variable begins; nothing for what is not known here.
pub(super) fn initializer(value: &Value) -> Option<Value> {
    let name = value.as_str().or_else(|| value["class_name"].as_str())?;
    let mut fields = Settings::new();
    for (field, value) in value["config"].as_object().into_iter().flatten() {
        let field = match field.as_str() {
            "minval" => "low",
            "maxval" => "high",
            "seed" | "input_axes" | "output_axes" => continue,
            other => other,
        };
        fields.insert(field.to_owned(), value.clone());
    }
    let name = snake_case(name);
    // Keras' classes had names such as `OrthogonalInitializer`.
    let name = name.strip_suffix("_initializer").unwrap_or(&name);
    let named = match fields.is_empty() {
        true => name.into(),
        false => json!({ name: fields }),
    };
    serde_json::from_value::<Initializer>(named.clone())
        .ok()
        .map(|_| named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_name_of_a_class_is_read() {
        let early =
            json!({"class_name": "OrthogonalInitializer", "config": {"gain": 1.0, "seed": null}});
        assert_eq!(
            initializer(&early),
            Some(json!({"orthogonal": {"gain": 1.0}}))
        );
    }
}
