//! Models as Keras describes them, read: made into the JSON of architectures, from which they are built.

use phalanx_graph::DType;
use serde_json::{Value, json};

use super::read_layer::{KerasLayer, brief, cut, plain};
use super::read_network::Functional;
use super::{Settings, Translated, dtype_name};
use crate::nn::Model;

/// The size of dims that are open in Keras, until inputs of others are given.
const OPEN_SIZE: usize = 128;
/// Models in models deeper than this are taken for a mistake.
const MAX_DEPTH: usize = 16;

impl Model {
    /// The model that the `config.json` of an archive describes.
    ///
    /// # Errors
    /// The first layer that has no like here, and why; or which layers do not fit together.
    pub(crate) fn from_keras_config(config: &Value) -> Translated<Self> {
        let architecture = model(config, 0)?;
        Self::from_config(&architecture).map_err(|error| error.to_string())
    }
}

/// The architecture of a model of Keras.
fn model(object: &Value, depth: usize) -> Translated<Value> {
    if depth > MAX_DEPTH {
        return Err(format!("models are nested more than {MAX_DEPTH} deep"));
    }
    let layer = KerasLayer::of(object)?;
    let mut read = match layer.class {
        "Sequential" if layer.is_of_keras() => stack(&layer, object, depth)?,
        _ if layer.settings.contains_key("output_layers") => Functional::read(&layer, depth)?,
        class => {
            return Err(format!(
                "`{}` is of class {}, which is no Sequential or functional model; Keras can write what such a model computes as weights alone: \
                 make the layers here and load its weights",
                cut(layer.name),
                cut(class)
            ));
        }
    };
    if layer.setting("trainable") == false {
        freeze(&mut read);
    }
    // The marks of values do no harm in the name of the whole.
    read["name"] = match depth {
        0 => layer.name.replace('/', "_").into(),
        _ => plain(layer.name).into(),
    };
    Ok(read)
}

/// Has no layer trained, as a model of Keras that is not trainable.
fn freeze(model: &mut Value) {
    let layers = model["layers"].as_array_mut().into_iter().flatten();
    for settings in layers.flat_map(|layer| layer.as_object_mut().into_iter().flatten()) {
        settings.1["trainable"] = false.into();
    }
}

/// What stands for a layer of a model: a layer or a whole model.
pub(super) fn entry(object: &Value, depth: usize) -> Translated<Value> {
    let layer = KerasLayer::of(object)?;
    if layer.settings.contains_key("layers") {
        return Ok(json!({"model": model(object, depth + 1)?}));
    }
    layer
        .translated()
        .map_err(|message| of_layer(&layer, &message))
}

/// The message about a layer, by its name and class.
pub(super) fn of_layer(layer: &KerasLayer<'_>, message: &str) -> String {
    format!(
        "layer `{}` ({}): {message}",
        cut(layer.name),
        cut(layer.class)
    )
}

pub(super) fn list<'a>(settings: &'a Settings, field: &str) -> Translated<&'a [Value]> {
    let found = settings.get(field).and_then(Value::as_array);
    found
        .map(Vec::as_slice)
        .ok_or_else(|| format!("expected a list under `{field}`"))
}

/// A stack. Its input is a layer of its own, or said by the first layer or the model.
fn stack(model: &KerasLayer<'_>, object: &Value, depth: usize) -> Translated<Value> {
    let mut layers = list(model.settings, "layers")?;
    let input = match layers {
        [first, rest @ ..] if first["class_name"] == "InputLayer" => {
            layers = rest;
            input(&KerasLayer::of(first)?)?
        }
        _ => {
            let first = layers
                .first()
                .map(|layer| &layer["config"]["batch_input_shape"]);
            let places = [
                first.unwrap_or(&Value::Null),
                layers
                    .first()
                    .map_or(&Value::Null, |layer| &layer["build_config"]["input_shape"]),
                &object["build_config"]["input_shape"],
            ];
            let shape = places.into_iter().find(|shape| shape.is_array());
            let shape = shape.ok_or_else(|| {
                format!("`{}` does not say what it takes; call or build the model in Keras before it is saved", cut(model.name))
            })?;
            let (dims, any_length) = dims(shape)?;
            input_value("input", &dims, "f32", any_length)
        }
    };
    let layers = layers.iter().map(|layer| entry(layer, depth));
    let layers = layers.collect::<Translated<Vec<_>>>()?;
    Ok(json!({"input": input, "layers": layers}))
}

fn input_value(name: &str, dims: &[usize], dtype: &str, any_length: bool) -> Value {
    let mut value = json!({"name": plain(name), "shape": dims, "dtype": dtype});
    if any_length {
        value["any_length"] = true.into();
    }
    value
}

pub(super) fn input(layer: &KerasLayer<'_>) -> Translated<Value> {
    let wrong = |message: String| of_layer(layer, &message);
    for field in ["sparse", "ragged", "optional"] {
        if layer.setting(field) == true {
            return Err(wrong(format!("it is `{field}`, which inputs are not here")));
        }
    }
    let shapes = ["batch_shape", "batch_input_shape"].map(|field| layer.setting(field));
    let shape = shapes.into_iter().find(|shape| shape.is_array());
    let (dims, any_length) = dims(shape.unwrap_or(&Value::Null)).map_err(wrong)?;
    let name = layer.setting("dtype");
    let name = name
        .as_str()
        .or_else(|| name["config"]["name"].as_str())
        .unwrap_or("float32");
    let dtype = DType::ALL
        .into_iter()
        .find(|dtype| dtype_name(*dtype) == name);
    let dtype = dtype.ok_or_else(|| {
        wrong(format!(
            "its elements are `{}`, expected numbers",
            cut(name)
        ))
    })?;
    Ok(input_value(layer.name, &dims, dtype.name(), any_length))
}

/// The dims of an example of a shape with the batch, and whether the first of them may be any.
fn dims(shape: &Value) -> Translated<(Vec<usize>, bool)> {
    let wrong = || {
        let shape = brief(shape);
        format!("its shape is {shape}, expected the batch, and a size or null for each dimension")
    };
    let [_, sizes @ ..] = &shape.as_array().ok_or_else(wrong)?[..] else {
        return Err(wrong());
    };
    let open = sizes.iter().filter(|size| size.is_null()).count();
    let any_length = open == 1 && sizes[0].is_null();
    let size = |size: &Value| match size {
        Value::Null => Ok(OPEN_SIZE),
        size => size
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(wrong),
    };
    let dims = sizes.iter().map(size).collect::<Translated<_>>()?;
    Ok((dims, any_length))
}
