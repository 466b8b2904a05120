//! Activations as Keras describes them, read: names, and layers with settings.

use serde_json::{Value, json};

use super::read_layer::brief;
use super::{SPARSEMAX, Settings, Translated};

/// An activation, by its name or as a layer with settings.
pub(super) fn activation(value: &Value) -> Translated<Value> {
    let class = value["class_name"].as_str().unwrap_or_default();
    let name = match value {
        Value::String(name) => Some(&**name),
        Value::Null => Some("linear"),
        _ if class == "function" => value["config"].as_str(),
        _ => None,
    };
    match name {
        Some("swish") => return Ok("silu".into()),
        Some("hard_swish") => return Ok("hard_silu".into()),
        Some("sparsemax") => return Err(SPARSEMAX.into()),
        Some(name) => return Ok(name.into()),
        None => {}
    }
    let layer = value["config"].as_object();
    let layer = layer.map(|settings| activation_layer(class, settings, None));
    let known = layer.transpose()?.flatten();
    known.ok_or_else(|| format!("its activation is {}, a function of your own program, which cannot be read from a file", brief(value)))
}

/// The activation that a layer of Keras is; `None` for other layers.
pub(super) fn activation_layer(
    class: &str,
    settings: &Settings,
    rank: Option<usize>,
) -> Translated<Option<Value>> {
    const NUMBERS: [&str; 4] = ["alpha", "max_value", "negative_slope", "threshold"];
    let is_other = |(field, value): &(&String, &Value)| {
        NUMBERS.contains(&field.as_str()) && !value.is_null() && !value.is_number()
    };
    if let Some((field, value)) = settings.iter().find(is_other) {
        return Err(format!(
            "its `{field}` is {}, expected a number",
            brief(value)
        ));
    }
    let given = |name: &str| settings.get(name).and_then(Value::as_f64);
    Ok(Some(match class {
        "ReLU" => rectifier(settings),
        "LeakyReLU" => {
            // Called `alpha` by Keras 2.
            let slope = given("negative_slope").or(given("alpha"));
            json!({"leaky_relu": {"negative_slope": slope.unwrap_or(0.3)}})
        }
        "ELU" => json!({"elu": {"alpha": given("alpha").unwrap_or(1.0)}}),
        "Softmax" => {
            // None is all numbers of a batch.
            let is_other = |axis: &&Value| axis.is_null() || !is_last(axis, rank);
            if let Some(axis) = settings.get("axis").filter(is_other) {
                return Err(format!(
                    "its `axis` is {}, expected the last one",
                    brief(axis)
                ));
            }
            "softmax".into()
        }
        _ => return Ok(None),
    }))
}

/// Keras' `ReLU`, which is another activation here without some of its settings.
pub(super) fn rectifier(settings: &Settings) -> Value {
    let given = |name: &str| settings.get(name).and_then(Value::as_f64);
    let slope = given("negative_slope").unwrap_or(0.0);
    let threshold = given("threshold").unwrap_or(0.0);
    match given("max_value") {
        None if slope == 0.0 && threshold == 0.0 => "relu".into(),
        Some(6.0) if slope == 0.0 && threshold == 0.0 => "relu6".into(),
        None if threshold == 0.0 => json!({"leaky_relu": {"negative_slope": slope}}),
        highest => {
            json!({"general_relu": {"negative_slope": slope, "max_value": highest, "threshold": threshold}})
        }
    }
}

/// Whether an axis is the last one, by its number where the rank is known.
pub(super) fn is_last(axis: &Value, rank: Option<usize>) -> bool {
    let axis = match axis.as_array().map(Vec::as_slice) {
        Some([one]) => one,
        _ => axis,
    };
    let last = rank.and_then(|rank| u64::try_from(rank).ok()?.checked_sub(1));
    axis.is_null() || axis.as_i64() == Some(-1) || last.is_some() && axis.as_u64() == last
}
