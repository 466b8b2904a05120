//! Functional models as Keras 2 describes them, brought into the form of Keras 3.
//!
//! Keras 2 notes a call as a list of the values that it takes, the other arguments in the last place of the first. Two things are noted otherwise
//! than the rest of reading expects: calls of a model that begins with an input are counted from 1, since its own making is call 0; and operations,
//! `x * 2.0` or `tf.nn.relu(x)`, are layers of the class `TFOpLambda`, which name the function.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::call_shapes::dims_of;
use super::read_layer::cut;
use super::{HARD_SIGMOID, Settings, Translated};
use crate::nn::Layer;
use crate::nn::layer::Body;
use crate::nn::model::{Model, NamedLayer};

/// The class of operations.
const LAMBDA: &str = "TFOpLambda";
/// What stands for the shape of a value, which Keras 2 does not note.
pub(super) const UNKNOWN_SHAPE: &str = "unknown";
/// What stands in the place of a value's layer where a number is given.
const CONSTANT: &str = "_CONSTANT_VALUE";

/// Functions of TensorFlow, and the operations of Keras 3 that they are.
const FUNCTIONS: [(&str, &str); 32] = [
    ("__operators__.add", "Add"),
    ("__operators__.radd", "Add"),
    ("math.add", "Add"),
    ("math.subtract", "Subtract"),
    ("math.multiply", "Multiply"),
    ("math.truediv", "TrueDivide"),
    ("math.divide", "TrueDivide"),
    ("math.maximum", "Maximum"),
    ("math.minimum", "Minimum"),
    ("math.negative", "Negative"),
    ("math.exp", "Exp"),
    ("math.sigmoid", "Sigmoid"),
    ("math.softplus", "Softplus"),
    ("math.tanh", "Tanh"),
    ("concat", "Concatenate"),
    ("nn.elu", "Elu"),
    ("nn.gelu", "Gelu"),
    ("nn.leaky_relu", "LeakyRelu"),
    ("nn.log_softmax", "LogSoftmax"),
    ("nn.relu", "Relu"),
    ("nn.relu6", "Relu6"),
    ("nn.selu", "Selu"),
    ("nn.sigmoid", "Sigmoid"),
    ("nn.silu", "Silu"),
    ("nn.softmax", "Softmax"),
    ("nn.softplus", "Softplus"),
    ("nn.softsign", "Softsign"),
    ("nn.swish", "Silu"),
    ("nn.tanh", "Tanh"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("exp", "Exp"),
];

/// Calls by another name what has another meaning in Keras 3 under the same.
pub(super) fn name_activations(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(name_activations),
        Value::Object(fields) => {
            for (field, value) in fields {
                match field.ends_with("activation") && value == "hard_sigmoid" {
                    true => *value = HARD_SIGMOID.into(),
                    false => name_activations(value),
                }
            }
        }
        _ => {}
    }
}

/// Whether Keras 2 wrote the description.
pub(super) fn is_of_keras2(model: &Value) -> bool {
    holds(model, &|field, _| field == "batch_input_shape")
}

/// Refuses layers of each step with a penalty on their output, which Keras 2 also divides by the number of steps.
pub(super) fn check_steps(value: &Value) -> Translated<()> {
    let penalty = &value["config"]["layer"]["config"]["activity_regularizer"];
    if value["class_name"] == "TimeDistributed" && !penalty.is_null() {
        let name = name(value).as_str().unwrap_or_default();
        return Err(format!(
            "layer `{}` (TimeDistributed): Keras 2 divides the `activity_regularizer` of its layer by the steps, which has no like here; \
             give it, divided by them, to an `ActivityRegularization` behind the layer",
            cut(name)
        ));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(check_steps),
        Value::Object(fields) => fields.values().try_for_each(check_steps),
        _ => Ok(()),
    }
}

/// Refuses a model of Keras 2, also in another, in which a `Resizing` that blends pixels is given whole numbers.
pub(super) fn check_resizing(model: &Model) -> Translated<()> {
    for call in &model.calls {
        let NamedLayer { name, body, .. } = &model.layers[call.layer];
        match body {
            Body::Model(inner) => check_resizing(inner)?,
            Body::Layer { layer, .. } if blends(&**layer) => {
                let (_, dtype) = dims_of(model, call.inputs[0]);
                if !dtype.is_float() {
                    return Err(format!(
                        "layer `{}`: a `Resizing` of Keras 2 makes parts of whole numbers, and here as in Keras 3 `resizing` rounds; make the input float32",
                        cut(name)
                    ));
                }
            }
            Body::Layer { .. } => {}
        }
    }
    Ok(())
}

/// Whether it is a `resizing`, of each step too, whose pixels are made of several.
fn blends(layer: &dyn Layer) -> bool {
    let settings = layer.config();
    let resizing = match layer.kind() {
        "resizing" => &settings,
        _ => &settings["layer"]["resizing"],
    };
    let interpolation = resizing["interpolation"].as_str();
    interpolation.is_some_and(|by| by != "nearest")
}

/// Whether a setting anywhere in a description is looked for.
pub(super) fn holds(value: &Value, wanted: &impl Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| holds(item, wanted)),
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.any(|(field, value)| wanted(field, value) || holds(value, wanted))
        }
        _ => false,
    }
}

/// The settings of a functional model in the form of Keras 3, where Keras 2 wrote them.
pub(super) fn in_form_of_3(settings: &Settings) -> Option<Settings> {
    let layers = settings.get("layers")?.as_array()?;
    let is_of_2 = |layer: &Value| layer["inbound_nodes"][0].is_array();
    if !layers.iter().any(is_of_2) {
        return None;
    }
    let begins_with_input =
        |layer: &&Value| layer["config"]["layers"][0]["class_name"] == "InputLayer";
    let counted_from_one = layers.iter().filter(begins_with_input);
    let names = counted_from_one.filter_map(|layer| name(layer).as_str());
    let names: HashSet<&str> = names.collect();
    let mut read = settings.clone();
    let mut objects = layers.clone();
    for object in &mut objects {
        if let Some(operation) = operation(object) {
            *object = operation;
        }
        if let Some(nodes) = object.get_mut("inbound_nodes") {
            count_from_zero(nodes, &names);
        }
    }
    read.insert("layers".into(), objects.into());
    if let Some(outputs) = read.get_mut("output_layers") {
        count_from_zero(outputs, &names);
    }
    Some(read)
}

fn name(layer: &Value) -> &Value {
    match &layer["config"]["name"] {
        Value::Null => &layer["name"],
        name => name,
    }
}

/// Whether it is the layer, the call and the output that a value comes from.
fn is_history(items: &[Value]) -> bool {
    matches!(items, [layer, call, output, ..] if layer.is_string() && call.is_u64() && output.is_u64())
}

/// Counts the calls of these layers from 0 wherever values come from them.
fn count_from_zero(value: &mut Value, names: &HashSet<&str>) {
    match value {
        Value::Array(items) => {
            let is_of_them = is_history(items) && names.contains(items[0].as_str().unwrap_or(""));
            if is_of_them && let Some(call) = items[1].as_u64() {
                items[1] = call.saturating_sub(1).into();
            }
            items
                .iter_mut()
                .for_each(|item| count_from_zero(item, names));
        }
        Value::Object(fields) => {
            fields
                .values_mut()
                .for_each(|field| count_from_zero(field, names));
        }
        _ => {}
    }
}

/// A function of TensorFlow that was applied to values, as an operation of Keras 3; nothing where there is none like it.
fn operation(object: &Value) -> Option<Value> {
    let function = object["config"]["function"].as_str();
    let function = function.filter(|_| object["class_name"] == LAMBDA)?;
    let (_, class) = FUNCTIONS.iter().find(|(name, _)| *name == function)?;
    let nodes = object["inbound_nodes"].as_array()?.iter();
    let mut config = Map::from_iter([("name".to_owned(), name(object).clone())]);
    let nodes = nodes.map(|node| {
        let (first, named) = first_argument(node)?;
        // What a function does by itself, and what an operation of Keras 3 does otherwise.
        let own = match *class {
            "Gelu" => {
                config.insert("approximate".into(), (named["approximate"] == true).into());
                "approximate"
            }
            "LeakyRelu" => {
                let slope = named["alpha"].as_f64().unwrap_or(0.2);
                config.insert("negative_slope".into(), slope.into());
                "alpha"
            }
            "Softmax" | "LogSoftmax" | "Concatenate" => {
                let axis = named["axis"].as_i64().unwrap_or(-1);
                config.insert("axis".into(), axis.into());
                "axis"
            }
            _ => "y",
        };
        let mut others = named.as_object().into_iter().flatten();
        if others.any(|(key, value)| !value.is_null() && key != "name" && key != own) {
            return None;
        }
        let second = second_argument(&named["y"])?;
        let arguments: Vec<Value> = [Some(first), second].into_iter().flatten().collect();
        Some(json!({"args": arguments, "kwargs": {}}))
    });
    let nodes = nodes.collect::<Option<Vec<Value>>>()?;
    Some(
        json!({"class_name": class, "module": "keras.src.ops", "config": config, "inbound_nodes": nodes}),
    )
}

/// The first argument of a call, and those with names.
fn first_argument(node: &Value) -> Option<(Value, &Value)> {
    let items = node.as_array()?;
    match &items[..] {
        [constant, _, number, named] if constant == CONSTANT => Some((number.clone(), named)),
        [.., named] if is_history(items) => Some((tensor(items), named)),
        [Value::Array(value), ..] => {
            let histories = items.iter().filter_map(Value::as_array);
            let values: Vec<Value> = histories
                .filter(|items| is_history(items))
                .map(|history| tensor(history))
                .collect();
            (values.len() == items.len()).then_some((values.into(), value.get(3)?))
        }
        _ => None,
    }
}

/// The second argument, where there is one; nothing where it is neither a number nor a value.
fn second_argument(value: &Value) -> Option<Option<Value>> {
    match value {
        Value::Null => Some(None),
        Value::Number(_) => Some(Some(value.clone())),
        Value::Array(items) if is_history(items) => Some(Some(tensor(items))),
        _ => None,
    }
}

/// A value as Keras 3 notes it, but for its shape.
fn tensor(history: &[Value]) -> Value {
    json!({"class_name": "__keras_tensor__", "config": {"keras_history": history[..3], "shape": UNKNOWN_SHAPE}})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that adds two values of these shapes.
    fn sum(shapes: [Value; 2]) -> Translated<Model> {
        let [a, b] = shapes.map(|shape| json!({"batch_input_shape": shape, "dtype": "float32"}));
        let input = |name: &str, mut config: Value| {
            config["name"] = name.into();
            json!({"class_name": "InputLayer", "name": name, "config": config, "inbound_nodes": []})
        };
        let add = json!({"class_name": "TFOpLambda", "name": "tf.math.add", "inbound_nodes": [["a", 0, 0, {"y": ["b", 0, 0], "name": null}]],
            "config": {"name": "tf.math.add", "trainable": true, "dtype": "float32", "function": "math.add"}});
        let config = json!({"name": "sum", "layers": [input("a", a), input("b", b), add],
            "input_layers": [["a", 0, 0], ["b", 0, 0]], "output_layers": [["tf.math.add", 0, 0]]});
        Model::from_keras_config(&json!({"class_name": "Functional", "config": config}), None)
    }

    #[test]
    fn values_of_other_ranks_are_not_added() {
        let shape = |dims: &[u32]| {
            json!(
                [
                    &[Value::Null],
                    &dims.iter().map(|&dim| dim.into()).collect::<Vec<Value>>()[..]
                ]
                .concat()
            )
        };
        let model = sum([shape(&[3, 4]), shape(&[3, 4])]).unwrap();
        assert_eq!(model.layers[0].name, "tf_math_add");
        let refused = sum([shape(&[3]), shape(&[3, 4])]).unwrap_err();
        let expected = "expected inputs of one type and rank, got f32[batch,3] and f32[batch,3,4]";
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn merged_values_of_which_it_makes_other_masks_are_refused() {
        let object = |class: &str, name: &str, mut config: Value, nodes: Value| {
            config["name"] = name.into();
            config["trainable"] = true.into();
            json!({"class_name": class, "name": name, "config": config, "inbound_nodes": nodes})
        };
        let table = |name: &str, mask_zero: bool| {
            let config = json!({"input_dim": 5, "output_dim": 2, "mask_zero": mask_zero});
            object("Embedding", name, config, json!([[["words", 0, 0, {}]]]))
        };
        let read = |class: &str, settings: Value, [a, b]: [bool; 2], named: Value| {
            let words = json!({"batch_input_shape": [null, 6], "dtype": "int32"});
            let last = json!([[["a", 0, 0, named], ["b", 0, 0, {}]]]);
            let config = json!({"name": "m", "layers": [object("InputLayer", "words", words, json!([])), table("a", a), table("b", b), object(class, "last", settings, last)],
                "input_layers": [["words", 0, 0]], "output_layers": [["last", 0, 0]]});
            Model::from_keras_config(&json!({"class_name": "Functional", "config": config}), None)
        };
        let merged = |class, settings, masked| read(class, settings, masked, json!({})).map(|_| ());
        let [last, steps] = [-1, 1].map(|axis| json!({"axis": axis}));
        for (class, settings) in [("Add", json!({})), ("Concatenate", last.clone())] {
            merged(class, settings.clone(), [true, true]).unwrap();
            merged(class, settings.clone(), [false, false]).unwrap();
            let refused = merged(class, settings, [true, false]).unwrap_err();
            assert!(
                refused.starts_with("layer `last`: it merges values"),
                "{refused}"
            );
        }
        merged("Concatenate", steps.clone(), [true, true]).unwrap();
        assert!(merged("Concatenate", steps, [true, false]).is_err());
        merged("Multiply", json!({}), [false, false]).unwrap();
        assert!(merged("Multiply", json!({}), [true, true]).is_err());
        let noted = |training: bool| json!({"training": training});
        let refused = read("Add", json!({}), [false, false], noted(true)).unwrap_err();
        assert!(refused.contains("called with `training` true"), "{refused}");
        let as_predicted = read("Add", json!({}), [false, false], noted(false)).unwrap();
        assert_eq!(as_predicted.config()["layers"][2]["add"]["training"], false);
    }

    #[test]
    fn its_penalties_on_steps_are_refused() {
        let read = |penalty: Value, is_of_2: bool| {
            let dense = json!({"class_name": "Dense", "config": {"units": 2, "name": "d", "activity_regularizer": penalty}});
            let steps = json!({"class_name": "TimeDistributed", "config": {"layer": dense, "name": "steps", "trainable": true}});
            let shape = ["batch_shape", "batch_input_shape"][usize::from(is_of_2)];
            let input = json!({shape: [null, 5, 4], "dtype": "float32", "name": "x"});
            let layers = json!([{"class_name": "InputLayer", "config": input}, steps]);
            let config =
                json!({"class_name": "Sequential", "config": {"name": "s", "layers": layers}});
            Model::from_keras_config(&config, None)
        };
        let penalty = json!({"class_name": "L2", "config": {"l2": 0.1}});
        let refused = read(penalty.clone(), true).map(|_| ()).unwrap_err();
        let expected =
            "layer `steps` (TimeDistributed): Keras 2 divides the `activity_regularizer`";
        assert!(refused.starts_with(expected), "{refused}");
        read(Value::Null, true).unwrap();
        // Keras 3 has no penalty there.
        let read = read(penalty, false).unwrap().config();
        assert!(!read.to_string().contains("\"l2\""), "{read}");
    }

    #[test]
    fn its_resizing_of_whole_numbers_is_refused() {
        let read = |dtype: &str, interpolation: &str| {
            let resizing =
                json!({"height": 5, "width": 6, "interpolation": interpolation, "name": "r"});
            let input = json!({"batch_input_shape": [null, 4, 4, 3], "dtype": dtype, "name": "x"});
            let layers = json!([{"class_name": "InputLayer", "config": input}, {"class_name": "Resizing", "config": resizing}]);
            let config =
                json!({"class_name": "Sequential", "config": {"name": "s", "layers": layers}});
            Model::from_keras_config(&config, None).map(|_| ())
        };
        let refused = read("uint8", "bilinear").unwrap_err();
        assert!(refused.contains("`Resizing` of Keras 2"), "{refused}");
        read("uint8", "nearest").unwrap();
        read("float32", "bilinear").unwrap();
    }

    #[test]
    fn its_resizing_of_floats_is_read_beside_whole_numbers() {
        let object = |class: &str, name: &str, mut config: Value, from: &str| {
            config["name"] = name.into();
            config["trainable"] = true.into();
            let nodes = if from.is_empty() {
                json!([])
            } else {
                json!([[[from, 0, 0, {}]]])
            };
            json!({"class_name": class, "name": name, "config": config, "inbound_nodes": nodes})
        };
        let read = |dtype: &str, class: &str, settings: Value| {
            let pixels = json!({"batch_input_shape": [null, 4, 4, 3], "dtype": dtype});
            let words = json!({"batch_input_shape": [null, 6], "dtype": "int32"});
            let layers = [
                object("InputLayer", "pixels", pixels, ""),
                object("InputLayer", "words", words, ""),
                object(class, "first", settings, "pixels"),
                object(
                    "Resizing",
                    "r",
                    json!({"height": 5, "width": 6, "interpolation": "bilinear"}),
                    "first",
                ),
                object(
                    "Embedding",
                    "table",
                    json!({"input_dim": 5, "output_dim": 2}),
                    "words",
                ),
            ];
            let config = json!({"name": "m", "layers": layers, "input_layers": [["pixels", 0, 0], ["words", 0, 0]],
                "output_layers": [["r", 0, 0], ["table", 0, 0]]});
            Model::from_keras_config(&json!({"class_name": "Functional", "config": config}), None)
                .map(|_| ())
        };
        let (rescaled, reshaped) = (json!({"scale": 0.5}), json!({"target_shape": [4, 4, 3]}));
        read("uint8", "Rescaling", rescaled).unwrap();
        read("float32", "Reshape", reshaped.clone()).unwrap();
        let refused = read("uint8", "Reshape", reshaped).unwrap_err();
        assert!(
            refused.starts_with("layer `r`: a `Resizing` of Keras 2"),
            "{refused}"
        );
    }

    #[test]
    fn its_hard_sigmoid_is_another_one() {
        let dense = json!({"units": 2, "activation": "hard_sigmoid", "batch_input_shape": [null, 3], "name": "d"});
        let mut config = json!({"class_name": "Sequential", "config": {"name": "s", "layers": [{"class_name": "Dense", "config": dense}]}});
        let read = |config: &Value| Model::from_keras_config(config, None);
        let of_2 = read(&config).unwrap();
        assert_eq!(
            of_2.config()["layers"][0]["dense"]["activation"],
            HARD_SIGMOID
        );
        let written = of_2.for_keras().map(|_| ()).unwrap_err().to_string();
        assert!(
            written.contains("no name for its activation `hard_sigmoid_keras2`"),
            "{written}"
        );
        let settings = &mut config["config"]["layers"][0]["config"];
        settings["batch_input_shape"] = Value::Null;
        settings["batch_shape"] = json!([null, 3]);
        let settings = settings.as_object_mut().unwrap();
        settings.remove("batch_input_shape");
        let of_3 = read(&config).map(|model| model.config().to_string());
        assert!(!of_3.is_ok_and(|config| config.contains(HARD_SIGMOID)));
    }
}
