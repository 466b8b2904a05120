//! Models as Keras 3 describes them: the `config.json` of its archives.
//!
//! Kinds and settings have Keras' names but for the few that are translated here. What a file with values does not need, how variables begin, is left
//! out, and Keras' defaults stand for it. A stack becomes a `Sequential` model, any other a `Functional` one, whose values are named as Keras
//! names them: layer, which call of it, which output.

mod call_shapes;
mod categories;
mod cells;
mod classes;
mod mask_names;
mod of_keras2;
mod operations;
mod pictures;
mod read;
mod read_activations;
mod read_calls;
mod read_layer;
mod read_limits;
mod read_masks;
mod read_network;
mod read_stack;
mod read_starts;
mod run_order;
mod write_masks;

use phalanx_graph::DType;
use serde_json::{Map, Value, json};

use self::call_shapes::{changes_dims, channels, dims_of, named_sizes};
use self::classes::CLASSES;
use super::input::NamedInput;
use super::keras_order::keras_order;
use super::layer::Body;
use super::model::{Call, Model, NamedLayer, Place};
use super::preprocess::Preprocess;
use super::recurrent::RECURRENT;
use crate::{Error, Result};

pub(crate) use read::WRITTEN;
pub(crate) use read_starts::check_starts;

type Settings = Map<String, Value>;
/// What Keras has for something of ours, or why it has nothing.
type Translated<T> = std::result::Result<T, String>;

/// A setting of attention here, an argument of its calls in Keras.
const CAUSAL: &str = "use_causal_mask";

/// A setting of attention here, which Keras' does not have.
const PADDING: &str = "use_padding_mask";

/// What Keras does not read of a layer's object: settings that it has not, where they change nothing there.
const NOTE: &str = "phalanx";

/// The attention that takes masks of padding off its values in Keras.
const MULTI_HEAD: &str = "multi_head_attention";

/// Keras 2's `hard_sigmoid`.
const HARD_SIGMOID: &str = "hard_sigmoid_keras2";

/// Of Keras' 3.15.
const SPARSEMAX: &str = "Keras' activation `sparsemax` gives other numbers where several elements have a share, which do not add up to 1";

/// The attentions that have the second setting, and the names of their classes, in whose calls query, value, key and mask are arguments by themselves.
const WITH_HEADS: [&str; 2] = [MULTI_HEAD, "group_query_attention"];
const CLASSES_WITH_HEADS: [&str; 2] = ["MultiHeadAttention", "GroupQueryAttention"];

/// Layers beside attentions, recurrent and random ones that do otherwise in training.
const TRAIN_OTHERWISE: [&str; 7] = [
    "aug_mix",
    "batch_norm",
    "bidirectional",
    "model",
    "rand_augment",
    "spectral_norm",
    "time_distributed",
];

/// The layers that have the first setting.
const ATTENTION: [&str; 4] = [
    WITH_HEADS[0],
    WITH_HEADS[1],
    "attention",
    "additive_attention",
];

impl Model {
    /// The architecture as Keras' archives have it.
    ///
    /// # Errors
    /// When Keras has no such layer, or no name for an activation.
    pub(crate) fn keras_config(&self) -> Result<Value> {
        model_object(self, &self.name)
    }
}

/// What Keras makes again by a class and its settings.
fn object(module: &str, class: &str, config: &Value) -> Value {
    json!({"module": module, "class_name": class, "config": config, "registered_name": null})
}

fn model_object(model: &Model, name: &str) -> Result<Value> {
    let model = &*mask_names::without_mask_names(model);
    if is_written_as_stack(model) {
        let mut layers = vec![input_object(&model.inputs[0])];
        for at in 0..model.layers.len() {
            layers.push(layer_object(model, at)?);
        }
        let config = json!({"name": name, "trainable": true, "layers": layers});
        return Ok(object("keras", "Sequential", &config));
    }
    let mut layers: Vec<Value> = model.inputs.iter().map(input_object).collect();
    for layer in &mut layers {
        layer["inbound_nodes"] = json!([]);
    }
    for at in keras_order(model) {
        let entry = &model.layers[at];
        let mut layer = layer_object(model, at)?;
        let calls = model.calls.iter().filter(|call| call.layer == at);
        let nodes = calls.map(|call| node(model, entry, call));
        layer["inbound_nodes"] = nodes.collect();
        layers.push(layer);
    }
    for layer in &mut layers {
        layer["name"] = layer["config"]["name"].clone();
    }
    let inputs = (0..model.inputs.len()).map(|node| Place { node, output: 0 });
    let config = json!({
        "name": name,
        "trainable": true,
        "layers": layers,
        "input_layers": one_or_all(inputs.map(|place| history(model, place)).collect()),
        "output_layers": one_or_all(model.outputs.iter().map(|&place| output(model, place)).collect()),
    });
    let mut object = object("keras.src.models.functional", "Functional", &config);
    object["registered_name"] = "Functional".into();
    Ok(object)
}

/// One value by itself, several as a list: so is what a model is called with, and what it returns.
fn one_or_all(mut values: Vec<Value>) -> Value {
    match values.len() {
        1 => values.remove(0),
        _ => values.into(),
    }
}

fn input_object(input: &NamedInput) -> Value {
    let mut dims: Vec<Value> = vec![Value::Null];
    dims.extend(input.shape.dims.iter().map(|&dim| Value::from(dim)));
    dims[1..=input.open].fill(Value::Null);
    let config =
        json!({"batch_shape": dims, "dtype": dtype_name(input.shape.dtype), "name": input.name});
    object("keras.layers", "InputLayer", &config)
}

const fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U32 => "uint32",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    }
}

/// Where a value comes from: the layer, which of its calls, which output of that.
fn history(model: &Model, place: Place) -> Value {
    let Some(at) = place.node.checked_sub(model.inputs.len()) else {
        return json!([model.inputs[place.node].name, 0, 0]);
    };
    let layer = model.calls[at].layer;
    let before = model.calls[..at].iter();
    let number = before.filter(|call| call.layer == layer).count();
    json!([model.layers[layer].name, number, place.output])
}

/// [`history`] of an output of the model, where Keras counts the calls of functional models from 1.
fn output(model: &Model, place: Place) -> Value {
    let mut history = history(model, place);
    let call = place.node.checked_sub(model.inputs.len());
    let layer = call.map(|call| &model.layers[model.calls[call].layer].body);
    if let (Some(Body::Model(inner)), Some(number)) = (layer, history[1].as_u64())
        && !is_written_as_stack(inner)
    {
        history[1] = (number + 1).into();
    }
    history
}

/// Whether Keras' class for the model is `Sequential`, whose layers take and give one value: here the first output of several goes on.
pub(super) fn is_sequential(model: &Model) -> bool {
    let gives_several = |entry: &NamedLayer| entry.body.outputs() > 1;
    let mut layers = model.layers.iter();
    model.is_stack() && !layers.any(|entry| takes_several(entry) || gives_several(entry))
}

/// Whether the model is written as a stack, which does not note what its layers are called with.
pub(super) fn is_written_as_stack(model: &Model) -> bool {
    let mut layers = model.layers.iter();
    let is_noted = |entry: &NamedLayer| !entry.training && obeys_training(entry);
    is_sequential(model) && !layers.any(is_noted)
}

fn tensor(model: &Model, place: Place) -> Value {
    let (dims, dtype) = dims_of(model, place);
    let mut shape = vec![Value::Null];
    shape.extend(dims.iter().map(|&dim| Value::from(dim)));
    let config =
        json!({"shape": shape, "dtype": dtype_name(dtype), "keras_history": history(model, place)});
    json!({"class_name": "__keras_tensor__", "config": config})
}

fn kind(entry: &NamedLayer) -> &str {
    match &entry.body {
        Body::Layer { layer, .. } => layer.kind(),
        Body::Model(_) => "model",
    }
}

/// Whether Keras calls the layer with several arguments, which no layer of a stack is.
fn takes_several(entry: &NamedLayer) -> bool {
    ATTENTION.contains(&kind(entry)) || kind(entry) == "reversible_embedding"
}

/// Whether a layer does otherwise in training.
fn obeys_training(entry: &NamedLayer) -> bool {
    let kind = kind(entry);
    let is_random = ["dropout", "noise", "random_", "stochastic"];
    let is_random = is_random.iter().any(|part| kind.contains(part));
    let others = [&TRAIN_OTHERWISE[..], &ATTENTION, &RECURRENT];
    is_random || others.iter().any(|kinds| kinds.contains(&kind))
}

/// The arguments of a call. Several values are one argument, a list; attention has one for each, and first states are their own.
fn node(model: &Model, entry: &NamedLayer, call: &Call) -> Value {
    let mut node = arguments(model, entry, call);
    if !entry.training && obeys_training(entry) {
        node["kwargs"]["training"] = false.into();
    }
    node
}

fn arguments(model: &Model, entry: &NamedLayer, call: &Call) -> Value {
    let values = call.inputs.iter().map(|&place| tensor(model, place));
    let mut values: Vec<Value> = values.collect();
    match kind(entry) {
        kind if WITH_HEADS.contains(&kind) => attention_node(entry, values),
        "reversible_embedding" => {
            let reverse = model.is_reversed(call);
            json!({"args": values, "kwargs": {"reverse": reverse}})
        }
        "attention" | "additive_attention" => {
            let mut node = attention_node(entry, values);
            node["args"] = json!([node["args"]]);
            node
        }
        kind if values.len() > 1 && (kind == "bidirectional" || RECURRENT.contains(&kind)) => {
            let states = values.split_off(1);
            json!({"args": values, "kwargs": {"initial_state": states}})
        }
        _ => json!({"args": [one_or_all(values)], "kwargs": {}}),
    }
}

fn attention_node(entry: &NamedLayer, mut values: Vec<Value>) -> Value {
    let mut named = match &entry.body {
        Body::Layer { layer, .. } => json!({CAUSAL: layer.config()[CAUSAL]}),
        Body::Model(_) => json!({}),
    };
    if values.len() > 3 {
        named["attention_mask"] = values.remove(3);
    }
    if values.len() == 1 {
        values.push(values[0].clone());
    }
    json!({"args": values, "kwargs": named})
}

fn layer_object(model: &Model, at: usize) -> Result<Value> {
    let entry = &model.layers[at];
    let (layer, trainable, precision) = match &entry.body {
        Body::Model(model) => return model_object(model, &entry.name),
        Body::Layer {
            layer,
            trainable,
            precision,
        } => (layer, *trainable, *precision),
    };
    let wrong = |message: String| {
        Error::user(format!(
            "layer `{}` ({}): {message}; write the weights alone, as `.weights.h5`, for a model that you make in Keras",
            entry.name,
            layer.kind()
        ))
    };
    let mut calls = model.calls.iter().filter(|call| call.layer == at);
    if layer.kind() == "subtract" && calls.any(|call| call.inputs.len() != 2) {
        return Err(wrong("Keras' `Subtract` takes two inputs".into()));
    }
    if layer.kind() == "random_crop" && changes_dims(model, at) {
        return Err(wrong(
            "Keras' `RandomCrop` cuts nothing out in prediction".into(),
        ));
    }
    if layer.kind() == "equalization" {
        // In prediction it gives back the very value that it is given, which Keras takes for a circle.
        return Err(wrong("Keras makes no model with its `Equalization`".into()));
    }
    let (class, mut settings) = class_of(layer.kind(), &layer.config()).map_err(wrong)?;
    settings.insert("name".into(), entry.name.as_str().into());
    if layer.kind() == "layer_scale" {
        settings.insert("projection_dim".into(), channels(model, at).into());
    }
    if let Some(sizes) = named_sizes(model, at, &settings) {
        settings.insert("output_shape".into(), sizes);
    }
    let mut object = object(module(class), class, &settings.into());
    set_inside(&mut object, "trainable", &trainable.into());
    if let Some(precision) = precision {
        set_inside(&mut object, "dtype", &precision.name().into());
    }
    if layer.config()[PADDING] == false {
        object[NOTE] = json!({PADDING: false});
    }
    Ok(object)
}

/// Where Keras has a class: a few layers beside the models that are made of them.
fn module(class: &str) -> &'static str {
    match class {
        "LayerScale" | "StochasticDepth" => "keras.src.applications.convnext",
        "CustomScaleLayer" => "keras.src.applications.inception_resnet_v2",
        _ => "keras.layers",
    }
}

/// Whether Keras' class does not know that it may be frozen, as all others do.
fn is_never_frozen(class: &str) -> bool {
    class.starts_with("SpatialDropout") || ["Discretization", "HashedCrossing"].contains(&class)
}

/// Sets what every layer of Keras has, also of the layer in a layer, which in Keras has it of its own.
fn set_inside(layer: &mut Value, field: &str, value: &Value) {
    let class = layer["class_name"].as_str().unwrap_or_default();
    // The type that a hash notes is of the numbers that it gives.
    let is_noted = match field {
        "trainable" => !is_never_frozen(class),
        _ => !class.starts_with("Hash"),
    };
    if is_noted {
        layer["config"][field] = value.clone();
    }
    if let Some(inside) = layer["config"].get_mut("layer") {
        set_inside(inside, field, value);
    }
}

/// Keras' class of a kind and its settings.
fn class_of(kind: &str, config: &Value) -> Translated<(&'static str, Settings)> {
    let known = CLASSES.iter().find(|(ours, ..)| *ours == kind);
    let &(_, class, has_channels) = known.ok_or(match kind {
        "rnn" => "layers around cells are not written for Keras",
        _ => "Keras has no such layer",
    })?;
    match (kind, &config["activation"]) {
        ("activation", Value::Object(named)) => {
            let (class, mut settings) = with_slope(named)?;
            let penalty = setting("activity_regularizer", &config["activity_regularizer"])?;
            settings.extend(penalty.map(|penalty| ("activity_regularizer".into(), penalty)));
            return Ok((class, settings));
        }
        ("preprocess", _) => return rescaling(config).map(|settings| (class, settings)),
        _ => {}
    }
    if kind.contains("conv")
        && [&config["strides"], &config["dilation_rate"]]
            .into_iter()
            .all(is_above_one)
    {
        return Err(
            "Keras has no convolution with both strides and a dilation rate above 1".into(),
        );
    }
    let mut settings = Settings::new();
    for (field, value) in config.as_object().into_iter().flatten() {
        if let Some(value) = setting(field, value)? {
            settings.insert(field.clone(), value);
        }
    }
    if has_channels {
        settings.insert("data_format".into(), "channels_last".into());
    }
    finish(kind, config, &mut settings)?;
    Ok((class, settings))
}

/// Settings of some kinds that are more than a name and a value.
fn finish(kind: &str, config: &Value, settings: &mut Settings) -> Translated<()> {
    match kind {
        "bidirectional" if goes_backwards(&config["layer"]) => {
            return Err(
                "Keras has no layer of both directions whose first one goes backwards".into(),
            );
        }
        "bidirectional" | "spectral_norm" | "time_distributed" => {
            settings.insert("layer".into(), inner_layer(&config["layer"])?);
        }
        kind if kind.starts_with("random_") => pictures::for_keras(kind, config, settings)?,
        "mel_spectrogram" => {
            // Keras' default is another.
            settings.insert("window".into(), config["window"].clone());
        }
        "integer_lookup" => categories::integer_lookup_for_keras(settings),
        "dot" if config["axes"][0] == config["axes"][1] => {
            settings.insert("axes".into(), config["axes"][0].clone());
        }
        "depthwise_conv1d" | "depthwise_conv2d" | "separable_conv1d" | "separable_conv2d" => {
            let parts = ["depthwise", "pointwise"];
            let parts = &parts[..if kind.starts_with("separable") { 2 } else { 1 }];
            for what in ["regularizer", "constraint"] {
                let of_both = settings.remove(&format!("kernel_{what}"));
                for part in parts.iter().filter(|_| of_both.is_some()) {
                    let of_both = of_both.clone().unwrap_or_default();
                    settings.entry(format!("{part}_{what}")).or_insert(of_both);
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// A setting as Keras has it; nothing where its default says the same, or it is about how variables begin.
fn setting(field: &str, value: &Value) -> Translated<Option<Value>> {
    if value.is_null() || field.ends_with("initializer") || [CAUSAL, PADDING].contains(&field) {
        return Ok(None);
    }
    if field.ends_with("regularizer") {
        return Ok(Some(regularizer(value)));
    }
    if field.ends_with("constraint") {
        return Ok(Some(constraint(value)));
    }
    if field.ends_with("activation") {
        return activation(value).map(Some);
    }
    Ok(Some(value.clone()))
}

/// Whether a size, or one of several, is above 1.
fn is_above_one(sizes: &Value) -> bool {
    match sizes {
        Value::Array(sizes) => sizes.iter().any(is_above_one),
        size => size.as_u64() > Some(1),
    }
}

/// Whether a recurrent layer, by its kind, begins with the last step.
fn goes_backwards(layer: &Value) -> bool {
    let mut settings = layer.as_object().into_iter().flatten();
    settings.any(|(_, settings)| settings["go_backwards"] == true)
}

/// The layer in a layer of both directions or of each step.
fn inner_layer(layer: &Value) -> Translated<Value> {
    let mut inner = layer.as_object().into_iter().flatten();
    let (kind, config) = inner.next().ok_or("it has no layer")?;
    if ATTENTION.contains(&kind.as_str()) {
        return Err("Keras' attention has several inputs, and a step is one".into());
    }
    if kind == "layer_scale" {
        return Err(
            "Keras' layer must be told the channels, which the layer inside another does not know"
                .into(),
        );
    }
    let (class, mut settings) = class_of(kind, config)?;
    settings.insert("name".into(), kind.as_str().into());
    Ok(object(module(class), class, &settings.into()))
}

/// An activation: a name, or a layer where it has settings. Functions have Keras' settings alone.
fn activation(value: &Value) -> Translated<Value> {
    const FUNCTIONS: [&str; 4] = ["celu", "hard_shrink", "soft_shrink", "squareplus"];
    match value {
        Value::Object(named) if FUNCTIONS.iter().any(|name| named.contains_key(*name)) => {
            let name = named.keys().next().cloned().unwrap_or_default();
            let read = |value: Value| serde_json::from_value::<super::Activation>(value).ok();
            match read(value.clone()) == read(name.as_str().into()) {
                true => Ok(name.into()),
                false => Err(format!(
                    "Keras' files have no place for the settings of its activation `{name}`"
                )),
            }
        }
        Value::Object(named) => {
            let (class, settings) = with_slope(named)?;
            Ok(object("keras.layers", class, &settings.into()))
        }
        Value::String(name) if name == "sparsemax" => Err(SPARSEMAX.into()),
        Value::String(name) if ["gelu_tanh", HARD_SIGMOID].contains(&name.as_str()) => Err(
            format!("Keras' files have no name for its activation `{name}`"),
        ),
        name => Ok(name.clone()),
    }
}

/// The layer that is an activation with settings, `{"leaky_relu": {"negative_slope": 0.1}}`.
fn with_slope(named: &Settings) -> Translated<(&'static str, Settings)> {
    let (name, settings) = named.iter().next().ok_or("its activation has no name")?;
    let class = match name.as_str() {
        "leaky_relu" => "LeakyReLU",
        "elu" => "ELU",
        "general_relu" => "ReLU",
        name => {
            // A function of the program has its name as the value.
            let name = settings.as_str().unwrap_or(name);
            return Err(format!(
                "Keras' files have no name for its activation `{name}`"
            ));
        }
    };
    let settings = settings.as_object().cloned();
    Ok((class, settings.unwrap_or_default()))
}

/// A penalty, `{"l2": {"l2": 0.01}}`.
fn regularizer(value: &Value) -> Value {
    let named = value.as_object().into_iter().flatten().next();
    named.map_or(Value::Null, |(name, factors)| {
        let class = match name.as_str() {
            "l1" => "L1",
            "l2" => "L2",
            "orthogonal" => "OrthogonalRegularizer",
            _ => "L1L2",
        };
        object("keras.regularizers", class, factors)
    })
}

/// A constraint, `{"max_norm": {"max_value": 2, "axis": 0}}` or `non_neg`.
fn constraint(value: &Value) -> Value {
    let named = value.as_object().into_iter().flatten().next();
    let none = Value::Object(Settings::new());
    let (name, settings) = named.map_or(("non_neg", &none), |(name, settings)| (name, settings));
    let class = match name {
        "max_norm" => "MaxNorm",
        "min_max_norm" => "MinMaxNorm",
        "unit_norm" => "UnitNorm",
        _ => "NonNeg",
    };
    object("keras.constraints", class, settings)
}

/// Preparation of images as a scale and an offset for each channel.
fn rescaling(config: &Value) -> Translated<Settings> {
    let preprocess = serde_json::from_value::<Preprocess>(config.clone());
    let preprocess = preprocess.map_err(|error| error.to_string())?;
    let (scale, offset) = (preprocess.scale_and_offset())
        .ok_or("Keras has no layer that turns the channels around as `caffe` does")?;
    let fields = [("scale", scale), ("offset", offset)];
    let fields = fields.map(|(name, values)| (name.to_owned(), values.to_vec().into()));
    Ok(fields.into_iter().collect())
}
