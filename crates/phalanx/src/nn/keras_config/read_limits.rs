//! What Keras keeps variables small by, or within bounds: penalties and constraints, read.

use serde_json::{Value, json};

use super::Translated;
use super::read_layer::{brief, snake_case};

/// A penalty.
pub(super) fn regularizer(value: &Value) -> Translated<Value> {
    const KNOWN: [&str; 5] = ["l1", "l2", "l1_l2", "l1l2", "orthogonal_regularizer"];
    let name = value.as_str().or_else(|| value["class_name"].as_str());
    let known = name
        .map(snake_case)
        .filter(|name| KNOWN.contains(&name.as_str()));
    let Some(name) = known else {
        return Err(format!(
            "its penalty is {}, expected L1, L2, L1L2 or OrthogonalRegularizer",
            brief(value)
        ));
    };
    let name = match name.as_str() {
        "l1l2" => "l1_l2",
        "orthogonal_regularizer" => "orthogonal",
        name => name,
    };
    Ok(match &value["config"] {
        Value::Object(factors) => json!({ name: factors }),
        _ => name.into(),
    })
}

/// A constraint.
pub(super) fn constraint(value: &Value) -> Translated<Value> {
    const KNOWN: [&str; 4] = ["max_norm", "min_max_norm", "non_neg", "unit_norm"];
    let name = value.as_str().or_else(|| value["class_name"].as_str());
    let known = name
        .map(snake_case)
        .filter(|name| KNOWN.contains(&name.as_str()));
    let Some(name) = known else {
        return Err(format!(
            "its constraint is {}, expected MaxNorm, MinMaxNorm, NonNeg or UnitNorm",
            brief(value)
        ));
    };
    Ok(match &value["config"] {
        Value::Object(settings) if !settings.is_empty() => json!({ name: settings }),
        _ => name.into(),
    })
}
