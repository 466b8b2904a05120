//! Operations between layers, `x + y` or `keras.ops.relu(x)`, which Keras has among the layers of a model.

use serde_json::{Value, json};

use super::Translated;
use super::of_keras2::UNKNOWN_SHAPE;
use super::read_activations::{is_last, rectifier};
use super::read_layer::{KerasLayer, brief, plain};

/// Operations of two values that are layers here.
const OF_TWO: [(&str, &str); 5] = [
    ("Add", "add"),
    ("Subtract", "subtract"),
    ("Multiply", "multiply"),
    ("Maximum", "maximum"),
    ("Minimum", "minimum"),
];
/// Operations of one value that are activations here.
const ACTIVATIONS: [(&str, &str); 16] = [
    ("Relu", "relu"),
    ("Relu6", "relu6"),
    ("Sigmoid", "sigmoid"),
    ("HardSigmoid", "hard_sigmoid"),
    ("HardSilu", "hard_silu"),
    ("Silu", "silu"),
    ("Tanh", "tanh"),
    ("Softplus", "softplus"),
    ("Softsign", "softsign"),
    ("Selu", "selu"),
    ("Mish", "mish"),
    ("Exp", "exponential"),
    ("Softmax", "softmax"),
    ("LogSoftmax", "log_softmax"),
    ("LeakyRelu", "leaky_relu"),
    ("Elu", "elu"),
];

/// Operations that have to do with masks alone.
const OF_MASKS: [&str; 8] = [
    "NotEqual",
    "Any",
    "All",
    "LogicalAnd",
    "LogicalOr",
    "LogicalNot",
    "OnesLike",
    "ZerosLike",
];

/// An operation as a layer; without one where it is about masks, which go along with values here.
pub(super) struct KerasOperation<'a> {
    pub(super) layer: Option<Value>,
    /// The values that it takes.
    pub(super) inputs: Vec<&'a Value>,
}

impl<'a> KerasOperation<'a> {
    /// What an operation is here.
    pub(super) fn of(layer: &KerasLayer<'_>, node: &'a Value) -> Translated<Self> {
        let arguments = node["args"].as_array().map_or(&[][..], Vec::as_slice);
        let is_input = |argument: &&Value| is_value(argument) || argument.is_array();
        let inputs: Vec<&Value> = arguments.iter().filter(is_input).collect();
        // Of the masks of several values that are joined, all are in a list.
        let first = inputs.first().map(|input| match input.as_array() {
            Some(values) => values.first().unwrap_or(&Value::Null),
            None => input,
        });
        let is_mask = |value: &Value| is_value(value) && value["config"]["dtype"] == "bool";
        if OF_MASKS.contains(&layer.class) || first.is_some_and(is_mask) {
            return Ok(Self {
                layer: None,
                inputs,
            });
        }
        let (kind, mut settings) = match arguments {
            [x] | [x, Value::Null] if is_value(x) => of_one(layer, x)?,
            [x, y] if is_value(x) && is_value(y) => of_two(layer, x, y)?,
            [x, Value::Number(number)] if is_value(x) => {
                with_number(layer.class, number.as_f64(), false)?
            }
            [Value::Number(number), x] if is_value(x) => {
                with_number(layer.class, number.as_f64(), true)?
            }
            [Value::Array(_), ..] if layer.class == "Concatenate" => {
                let axis = layer.setting("axis").as_i64().unwrap_or(-1);
                ("concatenate", json!({"axis": axis}))
            }
            _ => return Err(unknown()),
        };
        settings["name"] = plain(layer.name).into();
        Ok(Self {
            layer: Some(json!({ kind: settings })),
            inputs,
        })
    }
}

type OperationLayer = (&'static str, Value);

fn unknown() -> String {
    "there is no such operation here; use layers of `keras.layers` in its place".into()
}

fn is_value(argument: &Value) -> bool {
    argument["class_name"] == "__keras_tensor__"
}

fn rank(argument: &Value) -> Option<usize> {
    argument["config"]["shape"].as_array().map(Vec::len)
}

fn of_one(layer: &KerasLayer<'_>, x: &Value) -> Translated<OperationLayer> {
    if layer.class == "Negative" {
        return Ok(("rescaling", json!({"scale": -1.0})));
    }
    let setting = |name: &str| layer.setting(name);
    if let axis @ (Value::Number(_) | Value::Array(_)) = setting("axis")
        && !is_last(axis, rank(x))
    {
        return Err(format!(
            "its `axis` is {}, expected the last one",
            brief(axis)
        ));
    }
    let is_whole = setting("axis").is_null() && layer.settings.get("axis").is_some();
    if is_whole && ["Softmax", "LogSoftmax"].contains(&layer.class) {
        return Err(
            "its `axis` is None, which is all numbers of a batch; expected the last one".into(),
        );
    }
    let known = ACTIVATIONS.iter().find(|(class, _)| *class == layer.class);
    let activation = match (layer.class, known) {
        ("Gelu", _) if setting("approximate") == false => json!("gelu"),
        ("Gelu", _) => json!("gelu_tanh"),
        ("LeakyRelu", _) if setting("negative_slope").is_number() => {
            json!({"leaky_relu": {"negative_slope": setting("negative_slope")}})
        }
        // `keras.activations.relu` with settings; of HDF5 files alone, others say where its class is.
        ("ReLU", _) => rectifier(layer.settings),
        ("Elu", _) if setting("alpha").is_number() => json!({"elu": {"alpha": setting("alpha")}}),
        (_, Some((_, name))) => json!(name),
        _ => return Err(unknown()),
    };
    Ok(("activation", json!({"activation": activation})))
}

/// Values of other ranks are aligned at their last dims by operations, and at the first by layers.
fn of_two(layer: &KerasLayer<'_>, x: &Value, y: &Value) -> Translated<OperationLayer> {
    let known = OF_TWO.iter().find(|(class, _)| *class == layer.class);
    let &(_, kind) = known.ok_or_else(unknown)?;
    // Those that Keras 2 does not note the layer compares.
    let is_unknown = |value: &Value| value["config"]["shape"] == UNKNOWN_SHAPE;
    let are_known = !is_unknown(x) || !is_unknown(y);
    if are_known && (rank(x).is_none() || rank(x) != rank(y)) {
        return Err("its values have shapes of other ranks, expected the same".into());
    }
    Ok((kind, json!({})))
}

/// An operation with a number, which is the first of the two or the second.
fn with_number(class: &str, number: Option<f64>, is_first: bool) -> Translated<OperationLayer> {
    let number = number.ok_or_else(unknown)?;
    let (scale, offset) = match (class, is_first) {
        ("Add", _) => (1.0, number),
        ("Subtract", false) => (1.0, -number),
        ("Subtract", true) => (-1.0, number),
        ("Multiply", _) => (number, 0.0),
        ("Divide" | "TrueDivide", false) if number != 0.0 => (number.recip(), 0.0),
        _ => return Err(unknown()),
    };
    Ok(("rescaling", json!({"scale": scale, "offset": offset})))
}
