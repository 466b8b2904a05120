//! Models as Keras describes them, read: made into the JSON of architectures, from which they are built.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use phalanx_graph::DType;
use serde_json::{Value, json};

use super::cells::{has_cells, name_cells};
use super::of_keras2::{check_resizing, check_steps, is_of_keras2, name_activations};
use super::pictures::check_crops;
use super::read_layer::{KerasLayer, brief, cut, plain};
use super::read_masks::ModelMasks;
use super::read_network::Functional;
use super::read_stack::stack;
use super::{Settings, Translated, dtype_name};
use crate::nn::architecture::{MAX_DEPTH, OF_KERAS};
use crate::nn::context::MAX_CALLS;
use crate::nn::keras_order::KerasVersion;
use crate::nn::{Model, Policy};

/// The version of Keras whose files are written: from this one on a call that notes `training` is obeyed.
pub(crate) const WRITTEN: &str = "3.16.0";

/// The size of dims that are open in Keras, until inputs of others are given.
const OPEN_SIZE: usize = 128;

impl Model {
    /// The model that the `config.json` of an archive describes, which a `version` of Keras wrote.
    ///
    /// # Errors
    /// The first layer that has no like here, and why; or which layers do not fit together.
    pub(crate) fn from_keras_config(config: &Value, version: Option<&str>) -> Translated<Self> {
        let is_of_2 = is_of_keras2(config);
        let mut config = Cow::Borrowed(config);
        if is_of_2 {
            check_steps(&config)?;
            name_activations(config.to_mut());
        }
        if has_cells(&config) {
            name_cells(config.to_mut());
        }
        let config = &*config;
        let models = Cell::new(0);
        let (mut architecture, _) = model(config, ConfigReading::of(version, &models), &[])?;
        let mut is_mixed = false;
        each_layer(&mut architecture, &mut |layer| {
            let precision = layer.get("precision");
            is_mixed |= precision.is_some_and(|name| name != Policy::Float32.name());
        });
        if !is_mixed {
            // Layers of a model in f32 follow what it is compiled with here.
            each_layer(&mut architecture, &mut |layer| {
                drop(layer.remove("precision"));
            });
        }
        let read = Self::from_config(&architecture).map_err(|error| error.to_string())?;
        match is_of_2 {
            true => check_resizing(&read)?,
            false => check_crops(&read)?,
        }
        Ok(read)
    }
}

/// Of attentions by name whether a value of theirs has a mask.
pub(super) type MaskedAttentions = BTreeMap<String, bool>;

/// The architecture of a model that was written, in which only layers take masks off, and no outputs; and its attentions that may ignore padding.
pub(super) fn reread(config: &Value) -> Translated<(Value, MaskedAttentions)> {
    let (models, attentions) = (Cell::new(0), RefCell::default());
    let reading = ConfigReading {
        attentions: Some(&attentions),
        ..ConfigReading::of(Some(WRITTEN), &models)
    };
    let (read, _) = model(config, reading, &[])?;
    Ok((read, attentions.into_inner()))
}

/// The architecture of a model, and its masks.
pub(super) type ReadModel = (Value, ModelMasks);

/// How a description is read.
#[derive(Clone, Copy)]
pub(super) struct ConfigReading<'r> {
    /// In how many models the one is that is read.
    depth: usize,
    /// How many models were read: one in a model is read for each of the masks that it is called with.
    models: &'r Cell<usize>,
    /// Whether `training` in a call counts more than what the model is called with, as in Keras from 3.16 on.
    pub(super) obeys_training: bool,
    /// Where attentions are noted in a model that was written, and is read to compare it.
    attentions: Option<&'r RefCell<MaskedAttentions>>,
}

impl<'r> ConfigReading<'r> {
    fn of(version: Option<&str>, models: &'r Cell<usize>) -> Self {
        let numbers = version.unwrap_or_default().split('.');
        let mut numbers = numbers.map_while(|number| number.parse::<u64>().ok());
        Self {
            depth: 0,
            models,
            obeys_training: (numbers.next(), numbers.next()) >= (Some(3), Some(16)),
            attentions: None,
        }
    }

    /// A model in the one that is read.
    pub(super) const fn inside(self) -> Self {
        Self {
            depth: self.depth + 1,
            ..self
        }
    }

    /// Whether the loss takes what this model gives with the masks that are found in reading: it is in no other, and read to be used.
    pub(super) const fn is_for_loss(self) -> bool {
        self.depth == 0 && self.is_to_be_used()
    }

    /// Whether the model is read to be used, and not to find out what Keras would do with it.
    pub(super) const fn is_to_be_used(self) -> bool {
        self.attentions.is_none()
    }

    /// Whether nothing looks at the masks of what this model gives.
    pub(super) const fn ends_masks(self) -> bool {
        self.depth == 0 && self.attentions.is_some()
    }

    /// Notes whether an attention has masks in a call.
    pub(super) fn note_attention(self, name: &str, is_masked: bool) {
        if let Some(attentions) = self.attentions {
            let mut attentions = attentions.borrow_mut();
            *attentions.entry(name.to_owned()).or_default() |= is_masked;
        }
    }

    /// Counts a model.
    fn check(self) -> Translated<()> {
        if self.depth > MAX_DEPTH {
            return Err(format!("models are nested more than {MAX_DEPTH} deep"));
        }
        self.models.set(self.models.get() + 1);
        match self.models.get() > MAX_CALLS {
            true => Err(format!(
                "more than {MAX_CALLS} models in one; that is taken for a mistake"
            )),
            false => Ok(()),
        }
    }
}

/// Shows the settings of all layers of an architecture, also of the models in it.
fn each_layer(model: &mut Value, see: &mut impl FnMut(&mut Settings)) {
    let layers = model["layers"].as_array_mut().into_iter().flatten();
    for (kind, settings) in layers.flat_map(|layer| layer.as_object_mut().into_iter().flatten()) {
        match kind.as_str() {
            "model" => each_layer(settings, see),
            _ => settings.as_object_mut().into_iter().for_each(&mut *see),
        }
    }
}

/// The architecture of a model of Keras, whose inputs have masks where these are `given`.
pub(super) fn model(
    object: &Value,
    reading: ConfigReading<'_>,
    given: &[bool],
) -> Translated<ReadModel> {
    reading.check()?;
    let layer = KerasLayer::of(object)?;
    let (mut read, masks) = match layer.class {
        "Sequential" if layer.is_of_keras() => stack(&layer, object, reading, given)?,
        _ if layer.settings.contains_key("output_layers") => {
            Functional::read(&layer, reading, given)?
        }
        class => {
            return Err(format!(
                "`{}` is of class {}, which is no Sequential or functional model; Keras can write what such a model computes as weights alone: \
                 make the layers here and load its weights",
                cut(layer.name),
                cut(class)
            ));
        }
    };
    // Of all models that are not trainable this alone trains nothing once it is read: of others each layer is trained that says so.
    let is_of_keras3 = read[OF_KERAS] == KerasVersion::Three.number();
    if reading.depth == 0 && is_of_keras3 && layer.setting("trainable") == false {
        freeze(&mut read);
    }
    // The marks of values do no harm in the name of the whole.
    read["name"] = match reading.depth {
        0 => layer.name.replace('/', "_").into(),
        _ => plain(layer.name).into(),
    };
    Ok((read, masks))
}

/// Has no layer trained.
fn freeze(model: &mut Value) {
    each_layer(model, &mut |layer| {
        layer.insert("trainable".into(), false.into());
    });
}

/// What stands for a layer of a model that is no model.
pub(super) fn entry(object: &Value) -> Translated<Value> {
    let layer = KerasLayer::of(object)?;
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

pub(super) fn input_value(name: &str, dims: &[usize], dtype: &str, open: usize) -> Value {
    json!({"name": plain(name), "shape": dims, "dtype": dtype, "open_dims": open})
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
    let (dims, open) = dims(shape.unwrap_or(&Value::Null)).map_err(wrong)?;
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
    Ok(input_value(layer.name, &dims, dtype.name(), open))
}

/// The dims of an example of a shape with the batch, and how many of the first may be any; open ones behind a fixed one have one size.
pub(super) fn dims(shape: &Value) -> Translated<(Vec<usize>, usize)> {
    let wrong = || {
        let shape = brief(shape);
        format!("its shape is {shape}, expected the batch, and a size or null for each dimension")
    };
    let [_, sizes @ ..] = &shape.as_array().ok_or_else(wrong)?[..] else {
        return Err(wrong());
    };
    let open = sizes.iter().take_while(|size| size.is_null()).count();
    let are_first = !sizes[open..].contains(&Value::Null);
    let size = |size: &Value| match size {
        Value::Null => Ok(OPEN_SIZE),
        size => size
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(wrong),
    };
    let dims = sizes.iter().map(size).collect::<Translated<_>>()?;
    Ok((dims, if are_first { open } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Dense, Lstm, Sequential};

    fn of_keras(class: &str, name: &str, mut settings: Value) -> Value {
        settings["name"] = name.into();
        json!({"module": "keras.layers", "class_name": class, "config": settings})
    }

    fn pixels() -> Value {
        of_keras(
            "InputLayer",
            "x",
            json!({"batch_shape": [null, 4, 4, 2], "dtype": "float32"}),
        )
    }

    fn sequential(layers: &[Value]) -> Value {
        json!({"module": "keras", "class_name": "Sequential", "config": {"name": "stack", "layers": layers}})
    }

    fn refusal(config: &Value) -> String {
        Model::from_keras_config(config, None).unwrap_err()
    }

    /// What is wrong with one layer after the input.
    fn refused(class: &str, settings: Value) -> String {
        let refusal = refusal(&sequential(&[pixels(), of_keras(class, "y", settings)]));
        let own = format!("layer `y` ({class}): ");
        refusal.strip_prefix(&own).unwrap_or(&refusal).to_owned()
    }

    #[test]
    fn what_there_is_not_here_is_named() {
        let conv = |field: &str, value: Value| {
            refused(
                "Conv2D",
                json!({"filters": 2, "kernel_size": [1, 1], field: value}),
            )
        };
        assert_eq!(refused("Lambda", json!({})), "there is no such layer here");
        assert_eq!(
            conv("data_format", "channels_first".into()),
            "its `data_format` is \"channels_first\", and only \"channels_last\" has a like here"
        );
        assert_eq!(
            conv(
                "kernel_constraint",
                json!({"class_name": "RadialConstraint", "config": {}})
            ),
            "its constraint is `RadialConstraint`, expected MaxNorm, MinMaxNorm, NonNeg or UnitNorm"
        );
        assert_eq!(
            conv(
                "kernel_regularizer",
                json!({"class_name": "OwnRegularizer"})
            ),
            "its penalty is `OwnRegularizer`, expected L1, L2, L1L2 or OrthogonalRegularizer"
        );
        assert_eq!(
            conv(
                "activation",
                json!({"class_name": "function", "config": {"value": []}})
            ),
            "its activation is `function`, a function of your own program, which cannot be read from a file"
        );
        assert_eq!(
            conv(
                "dtype",
                json!({"class_name": "DTypePolicy", "config": {"name": "float64"}})
            ),
            "it computes in `float64`, expected one of float32, mixed_bfloat16, mixed_float16"
        );
        let eighths = json!({"class_name": "QuantizedDTypePolicy", "config": {"mode": "int8", "source_name": "float32"}});
        assert_eq!(
            conv("dtype", eighths),
            "it computes in `QuantizedDTypePolicy`, expected one of float32, mixed_bfloat16, mixed_float16"
        );
    }

    #[test]
    fn settings_that_there_are_not_here_are_named() {
        let below_zero = refused("ReLU", json!({"max_value": -1.0}));
        assert!(below_zero.contains("0 or more"), "{below_zero}");
        for axis in [json!(1), Value::Null] {
            let expected = format!("its `axis` is {axis}, expected the last one");
            assert_eq!(refused("Softmax", json!({"axis": axis})), expected);
        }
        let slope =
            json!({"class_name": "__tensor__", "config": {"value": 0.2, "dtype": "float32"}});
        assert_eq!(
            refused("LeakyReLU", json!({"negative_slope": slope})),
            "its `negative_slope` is `__tensor__`, expected a number"
        );
        let penalty =
            json!({"kernel_regularizer": {"class_name": "L2", "config": {"l2": 0.1}}, "seed": 1});
        for class in [
            "Activation",
            "ReLU",
            "LeakyReLU",
            "ELU",
            "Softmax",
            "Identity",
        ] {
            let penalized = refused(class, penalty.clone());
            let expected = "its `kernel_regularizer` is `L2`, which activations do not have here";
            assert_eq!(penalized, expected, "{class}");
        }
        let gates = |setting: &str| refused("LSTM", json!({"units": 2, setting: true}));
        for setting in ["stateful", "zero_output_for_mask"] {
            let expected = format!("its `{setting}` is true, and only false has a like here");
            assert_eq!(gates(setting), expected);
        }
        let conv = json!({"filters": 2, "kernel_size": [1, 1], "spread": 1});
        let unknown = refused("Conv2D", conv);
        assert!(unknown.contains("unknown field `spread`"), "{unknown}");
        let mut own = of_keras("Scaled", "y", json!({}));
        own["module"] = "my_program".into();
        assert_eq!(
            refusal(&sequential(&[pixels(), own])),
            "layer `y` (Scaled): it is a layer of your own program, which cannot be read from a file"
        );
    }

    /// In prediction Keras 3 leaves them as large as they are; Keras 2 takes the middle.
    #[test]
    fn crops_of_images_are_refused_where_they_cut() {
        let crop = |size: usize| of_keras("RandomCrop", "y", json!({"height": size, "width": 4}));
        let cuts = sequential(&[pixels(), crop(3)]);
        let refused = refusal(&sequential(&[pixels(), cuts.clone()]));
        let expected = "layer `y` (RandomCrop): in prediction Keras 3 leaves images";
        assert!(refused.starts_with(expected), "{refused}");
        Model::from_keras_config(&sequential(&[pixels(), crop(4)]), None).unwrap();
        let of_2 = cuts.to_string().replace("batch_shape", "batch_input_shape");
        Model::from_keras_config(&serde_json::from_str(&of_2).unwrap(), None).unwrap();
    }

    #[test]
    fn models_that_are_no_layers_are_refused() {
        let subclassed = json!({"module": "mine", "class_name": "Net", "config": {"name": "net"}});
        assert!(refusal(&subclassed).starts_with("`net` is of class Net, which is no Sequential"));
        let open = refusal(&sequential(&[of_keras("Dense", "y", json!({"units": 1}))]));
        assert!(open.contains("does not say what it takes"), "{open}");
        let texts = of_keras(
            "InputLayer",
            "x",
            json!({"batch_shape": [null], "dtype": "string"}),
        );
        let texts = refusal(&sequential(&[texts]));
        assert_eq!(
            texts,
            "layer `x` (InputLayer): its elements are `string`, expected numbers"
        );
        let mut deep = sequential(&[]);
        for _ in 0..40 {
            deep = sequential(&[pixels(), deep]);
        }
        assert_eq!(refusal(&deep), "models are nested more than 16 deep");
        for wrong in [
            json!(null),
            json!([]),
            json!({"class_name": 1}),
            json!({"class_name": "Sequential"}),
        ] {
            refusal(&wrong);
        }
    }

    #[test]
    fn layers_in_layers_say_whether_they_are_trained_and_in_what_they_compute() {
        let dense = |mut settings: Value| {
            settings["units"] = 3.into();
            of_keras("Dense", "inner", settings)
        };
        let stack = |inner: Value| {
            let steps = of_keras(
                "TimeDistributed",
                "steps",
                json!({"layer": inner, "trainable": true}),
            );
            let gates = |trainable: bool, back: bool| {
                let settings = json!({"units": 2, "trainable": trainable, "go_backwards": back});
                of_keras("LSTM", "inner", settings)
            };
            let both = json!({"layer": gates(false, false), "backward_layer": gates(false, true), "merge_mode": "concat"});
            let input = json!({"batch_shape": [null, 5, 4], "dtype": "float32"});
            let input = of_keras("InputLayer", "x", input);
            let both = of_keras("Bidirectional", "both", both);
            (sequential(&[input.clone(), steps, both]), input, gates)
        };
        let (frozen, input, gates) = stack(dense(json!({"trainable": false})));
        let frozen = Model::from_keras_config(&frozen, None).unwrap();
        assert!(
            frozen
                .variables()
                .iter()
                .all(|variable| !variable.trainable)
        );
        let one = json!({"layer": gates(false, false), "backward_layer": gates(true, true), "merge_mode": "concat"});
        let one = refusal(&sequential(&[
            input,
            of_keras("Bidirectional", "both", one),
        ]));
        assert!(
            one.contains("directions is frozen, and the other is not"),
            "{one}"
        );
        let half = dense(
            json!({"dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}}),
        );
        assert_eq!(
            refusal(&stack(half).0),
            "layer `steps` (TimeDistributed): its layer of class Dense computes in mixed_float16, and it does in float32; here both compute in the same"
        );
    }

    /// Keras gives a layer that begins with the last step its input's mask as it is, and here the mask is turned as the steps are.
    #[test]
    fn turned_steps_behind_a_mask_are_refused_where_the_mask_counts() {
        let words = |is_masked: bool| {
            let input = json!({"batch_shape": [null, 4], "dtype": "int32"});
            let embedding = json!({"input_dim": 9, "output_dim": 3, "mask_zero": is_masked});
            [
                of_keras("InputLayer", "x", input),
                of_keras("Embedding", "words", embedding),
            ]
        };
        let read = |is_masked, backwards: bool, last: Value| {
            let lstm = json!({"units": 4, "go_backwards": backwards, "return_sequences": true});
            let rest = [of_keras("LSTM", "steps", lstm), last];
            let layers = [&words(is_masked)[..], &rest].concat();
            Model::from_keras_config(&sequential(&layers), None)
        };
        let mean = || of_keras("GlobalAveragePooling1D", "mean", json!({}));
        let refused = read(true, true, mean()).unwrap_err();
        let expected = "layer `mean`: a value has another mask of padding in Keras";
        assert!(refused.starts_with(expected), "{refused}");
        let flat = of_keras("Flatten", "flat", json!({}));
        for (is_masked, backwards, last) in [
            (true, false, mean()),
            (false, true, mean()),
            (true, true, flat),
        ] {
            read(is_masked, backwards, last).unwrap();
        }
    }

    fn value(layer: &str, shape: &Value) -> Value {
        json!({"class_name": "__keras_tensor__", "config": {"shape": shape, "dtype": "float32", "keras_history": [layer, 0, 0]}})
    }

    fn functional(layers: &[Value], output: &str) -> Value {
        json!({"module": "keras.src.models.functional", "class_name": "Functional", "config": {"name": "net",
            "layers": layers, "input_layers": ["x", 0, 0], "output_layers": [output, 0, 0]}})
    }

    fn called(mut layer: Value, arguments: &Value, named: &Value) -> Value {
        layer["inbound_nodes"] = json!([{"args": arguments, "kwargs": named}]);
        layer
    }

    #[test]
    fn calls_that_there_are_not_here_are_named() {
        let x = || value("x", &json!([null, 4, 4, 2]));
        let dense = |arguments, named| {
            let layer = of_keras("Dense", "y", json!({"units": 1, "trainable": true}));
            called(layer, &arguments, &named)
        };
        let of_dense = |arguments: Value, named: Value| {
            refusal(&functional(&[pixels(), dense(arguments, named)], "y"))
        };
        assert_eq!(
            of_dense(json!([x()]), json!({"mask": x()})),
            "layer `y`: it is called with a mask of its own; here masks are found by `masking` and by `embedding` with `mask_zero`, \
             and go along with the values"
        );
        assert_eq!(
            of_dense(json!([x()]), json!({"factor": 2})),
            "layer `y` (Dense): it is called with `factor`, 2, which has no like here"
        );
        assert_eq!(
            of_dense(json!([value("z", &json!([null, 2]))]), json!({})),
            "layer `y`: it takes `z`, which no layer before it makes"
        );
        let mut sine = of_keras("Sin", "s", json!({}));
        sine["module"] = "keras.src.ops.numpy".into();
        let sine = called(sine, &json!([x()]), &json!({}));
        assert_eq!(
            refusal(&functional(&[pixels(), sine], "s")),
            "layer `s` (Sin): there is no such operation here; use layers of `keras.layers` in its place"
        );
        let missing = refusal(&functional(&[], "y"));
        assert_eq!(
            missing,
            "`x` is among the inputs, and no input has this name"
        );
    }

    #[test]
    fn stacks_have_no_place_for_states() {
        let input = json!({"batch_shape": [null, 5, 4], "dtype": "float32"});
        let input = of_keras("InputLayer", "x", input);
        let settings = json!({"units": 2, "return_state": true, "trainable": true});
        let gates = of_keras("LSTM", "y", settings);
        let both = json!({"layer": gates, "merge_mode": "concat", "trainable": true});
        for layer in [gates.clone(), of_keras("Bidirectional", "y", both)] {
            let refused = refusal(&sequential(&[input.clone(), layer]));
            assert!(refused.contains("it gives its states"), "{refused}");
        }
        let stack = Sequential::new([5, 4])
            .add(Lstm::new(2).return_state(true))
            .add(Dense::new(3));
        let config = stack.build().unwrap().keras_config().unwrap();
        assert_eq!(config["class_name"], "Functional");
        let again = Model::from_keras_config(&config, None).unwrap();
        assert_eq!(again.variables().len(), 5);
    }

    #[test]
    fn what_training_needs_is_kept() {
        let start = json!({"class_name": "VarianceScaling", "config": {"scale": 2.0, "mode": "fan_out", "distribution": "uniform", "seed": 3}});
        let conv = json!({"filters": 2, "kernel_size": [1, 1], "kernel_initializer": start, "trainable": false,
            "bias_regularizer": {"class_name": "L1L2", "config": {"l1": 0.1, "l2": 0.2}},
            "dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}});
        let norm =
            json!({"axis": [3], "momentum": 0.9, "gamma_initializer": {"class_name": "Mine"}});
        let model = sequential(&[
            pixels(),
            of_keras("Conv2D", "a.b", conv),
            of_keras("BatchNormalization", "norm", norm),
            of_keras(
                "Dropout",
                "drop",
                json!({"rate": 0.25, "seed": 1, "noise_shape": null}),
            ),
        ]);
        let model = Model::from_keras_config(&model, None).unwrap().config();
        let conv = &model["layers"][0]["conv2d"];
        let scaling = json!({"variance_scaling": {"scale": 2.0, "mode": "fan_out", "distribution": "uniform"}});
        assert_eq!(conv["kernel_initializer"], scaling);
        assert_eq!(
            conv["bias_regularizer"],
            json!({"l1_l2": {"l1": 0.1, "l2": 0.2}})
        );
        assert_eq!(
            (&conv["trainable"], &conv["precision"]),
            (&json!(false), &json!("mixed_bfloat16"))
        );
        assert_eq!(conv["name"], "a_b");
        let norm = &model["layers"][1]["batch_norm"];
        assert_eq!((&norm["momentum"], &norm["axis"]), (&json!(0.9), &json!(3)));
        assert_eq!(norm["gamma_initializer"], "ones");
        assert_eq!(model["layers"][2]["dropout"]["rate"], 0.25);
    }

    #[test]
    fn ranges_are_read_as_keras_reads_them() {
        let beyond = json!({"fill_mode": "wrap", "seed": 3, "rng_type": null});
        let with = |settings: Value| {
            let mut all = beyond.clone();
            all.as_object_mut()
                .unwrap()
                .extend(settings.as_object().cloned().unwrap());
            all
        };
        let resizing = json!({"height": 4, "width": 4, "fill_mode": "constant", "fill_value": 0.0, "antialias": false});
        let model = sequential(&[
            pixels(),
            of_keras("RandomRotation", "a", with(json!({"factor": [0.2, -0.1]}))),
            of_keras(
                "RandomZoom",
                "b",
                with(json!({"height_factor": -0.3, "width_factor": null})),
            ),
            of_keras(
                "RandomContrast",
                "c",
                json!({"factor": [0.3, 0.2], "value_range": [0, 1]}),
            ),
            of_keras("Resizing", "d", resizing),
        ]);
        let model = Model::from_keras_config(&model, None).unwrap().config();
        let layers = &model["layers"];
        assert_eq!(layers[0]["random_rotation"]["factor"], json!([-0.1, 0.2]));
        assert_eq!(layers[0]["random_rotation"]["fill_mode"], "wrap");
        assert_eq!(layers[1]["random_zoom"]["height_factor"], 0.3);
        assert_eq!(layers[2]["random_contrast"]["factor"], json!([0.3, 0.2]));
        assert_eq!(layers[3]["resizing"]["interpolation"], "bilinear");
    }

    #[test]
    fn a_layer_in_f32_stays_so_in_a_mixed_model_and_follows_otherwise() {
        let read = |dtype: &str| {
            let inner = sequential(&[
                pixels(),
                of_keras("Dense", "in", json!({"units": 3, "dtype": dtype})),
            ]);
            let outer = sequential(&[
                pixels(),
                inner,
                of_keras("Dense", "out", json!({"units": 2, "dtype": "float32"})),
            ]);
            Model::from_keras_config(&outer, None).unwrap().config()
        };
        let mixed = read("mixed_bfloat16");
        assert_eq!(mixed["layers"][1]["dense"]["precision"], "float32");
        let plain = read("float32");
        assert!(!plain.to_string().contains("precision"), "{plain}");
    }
}
