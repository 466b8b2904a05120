//! A layer as Keras describes it, read: its kind here and its settings.

use serde_json::{Map, Value, json};

use super::cells::OF_CELL;
use super::classes::CLASSES;
use super::read_activations::{activation, activation_layer};
use super::read_limits::{constraint, regularizer};
use super::read_starts::initializer;
use super::{Settings, Translated, categories, is_never_frozen, pictures};
use crate::nn::Policy;

/// Settings that change nothing of what a layer computes.
const IGNORED: [&str; 12] = [
    "rng_type",
    "key_shape",
    "query_shape",
    "value_shape",
    "seed",
    "unroll",
    "implementation",
    "autocast",
    "input_length",
    "batch_input_shape",
    "renorm_clipping",
    "renorm_momentum",
];

/// Settings that no layer here has, and the value at which they change nothing; so does null, and so does false.
const WITHOUT_LIKE: [(&str, &str); 14] = [
    ("attention_axes", "[1]"),
    ("data_format", "\"channels_last\""),
    // Keras 2 notes it of convolutions that have none.
    ("groups", "1"),
    ("quantization_config", "null"),
    ("renorm", "false"),
    ("reverse_dtype", "null"),
    ("rms_scaling", "false"),
    ("sliding_window", "null"),
    ("softmax_robust_masking", "false"),
    ("sparse", "false"),
    ("stateful", "false"),
    ("time_major", "false"),
    ("use_gate", "false"),
    ("zero_output_for_mask", "false"),
];

/// Settings of layers that are activations, which are read.
const OF_ACTIVATIONS: [&str; 9] = [
    "activation",
    "activity_regularizer",
    "alpha",
    "axis",
    "l1",
    "l2",
    "max_value",
    "negative_slope",
    "threshold",
];

/// A layer as Keras describes it.
pub(super) struct KerasLayer<'a> {
    pub(super) class: &'a str,
    /// Where its class is; HDF5 files do not say.
    module: Option<&'a str>,
    pub(super) name: &'a str,
    pub(super) settings: &'a Settings,
    /// The dims of what it is called with, with the batch, as far as they are known.
    rank: Option<usize>,
}

impl<'a> KerasLayer<'a> {
    /// The layer of an object with a class and a configuration.
    pub(super) fn of(object: &'a Value) -> Translated<Self> {
        let class = object["class_name"].as_str();
        let class = class.ok_or_else(|| {
            format!(
                "expected a layer with a `class_name`, got {}",
                brief(object)
            )
        })?;
        let class = match class {
            // The name of the class in Python, which HDF5 files have.
            "GroupedQueryAttention" => "GroupQueryAttention",
            other => other,
        };
        let settings = object["config"].as_object();
        let settings = settings.ok_or_else(|| {
            format!(
                "layer of class {}: expected its settings under `config`",
                cut(class)
            )
        })?;
        let name = settings
            .get("name")
            .or(object.get("name"))
            .and_then(Value::as_str);
        let shape = object["build_config"]["input_shape"].as_array();
        let called = object.pointer("/inbound_nodes/0/args/0/config/shape");
        let shape = shape.or(called.and_then(Value::as_array));
        Ok(Self {
            class,
            module: object["module"].as_str(),
            name: name.unwrap_or(class),
            settings,
            rank: shape.map(Vec::len),
        })
    }

    /// A setting, null where it has none of this name.
    pub(super) fn setting(&self, name: &str) -> &'a Value {
        self.settings.get(name).unwrap_or(&Value::Null)
    }

    /// Whether it is a model.
    pub(super) fn is_model(&self) -> bool {
        self.settings.contains_key("layers")
    }

    /// Whether it is one of Keras' own, not of a user's program.
    pub(super) fn is_of_keras(&self) -> bool {
        let is_inside = |module: &str| module == "keras" || module.starts_with("keras.");
        self.module.is_none_or(is_inside)
    }

    /// Whether it is no layer, but an operation that was applied to values.
    pub(super) fn is_operation(&self) -> bool {
        match self.module {
            Some(module) => module.starts_with("keras.src.ops"),
            // Alone of Keras' layers these do not note whether they are frozen.
            None if self.class == "InputLayer" || is_never_frozen(self.class) => false,
            // Nor do models of Keras 2.
            None if self.is_model() => false,
            None => !self.settings.contains_key("trainable"),
        }
    }

    /// The layer here: `{"dense": {"units": 10, "name": "top"}}`.
    pub(super) fn translated(&self) -> Translated<Value> {
        let (kind, mut settings) = self.kind_and_settings()?;
        settings.insert("name".into(), plain(self.name).into());
        if self.is_frozen()? {
            settings.insert("trainable".into(), false.into());
        }
        if let Some(policy) = self.precision()? {
            settings.insert("precision".into(), policy.name().into());
        }
        Ok(json!({ kind: settings }))
    }

    /// Whether none of its variables is trained: it says so itself, or all layers in it do.
    fn is_frozen(&self) -> Translated<bool> {
        if self.setting("trainable") == false {
            return Ok(true);
        }
        let inside = self.inside()?;
        let frozen = inside.iter().map(Self::is_frozen);
        let frozen = frozen.collect::<Translated<Vec<_>>>()?;
        if frozen.contains(&true) && frozen.contains(&false) {
            return Err(
                "one of its layers of both directions is frozen, and the other is not; here both are trained, or none".into(),
            );
        }
        Ok(frozen.contains(&true))
    }

    /// The layers in it, of both directions or of each step.
    fn inside(&self) -> Translated<Vec<Self>> {
        let fields = ["layer", "backward_layer"].map(|field| self.setting(field));
        let given = fields.into_iter().filter(|layer| !layer.is_null());
        given.map(KerasLayer::of).collect()
    }

    /// Refuses layers in it that compute in other types than it does.
    fn check_precision_inside(&self) -> Translated<()> {
        let own = self.precision()?.unwrap_or_default();
        for layer in self.inside()? {
            let said = layer.precision()?.filter(|&said| said != own);
            if let Some(other) = said {
                return Err(format!(
                    "its layer of class {} computes in {}, and it does in {}; here both compute in the same",
                    cut(layer.class),
                    other.name(),
                    own.name()
                ));
            }
        }
        Ok(())
    }

    /// Refuses what layers that are activations cannot have here, such as penalties.
    fn check_activation(&self) -> Translated<()> {
        let more = self.settings.iter();
        for (field, value) in more.filter(|(field, _)| !OF_ACTIVATIONS.contains(&field.as_str())) {
            if setting("activation", field, value)?.is_some() {
                return Err(format!(
                    "its `{}` is {}, which activations do not have here",
                    cut(field),
                    brief(value)
                ));
            }
        }
        Ok(())
    }

    /// What it computes in, where it says so.
    pub(super) fn precision(&self) -> Translated<Option<Policy>> {
        let dtype = self.setting("dtype");
        let name = dtype.as_str().or_else(|| dtype["config"]["name"].as_str());
        let unknown = |name: &str| {
            let known = Policy::NAMES.join(", ");
            format!("it computes in `{}`, expected one of {known}", cut(name))
        };
        match name {
            // Layers that number categories note the type of the numbers.
            Some(name) if name.starts_with("int") => Ok(None),
            Some(name) => Policy::from_name(name).map(Some).map_err(|_| unknown(name)),
            None if dtype.is_null() => Ok(None),
            // Of whole numbers, or of another type for each part.
            None => Err(unknown(dtype["class_name"].as_str().unwrap_or("no type"))),
        }
    }

    fn kind_and_settings(&self) -> Translated<(&'static str, Settings)> {
        if self.class == OF_CELL && self.is_of_keras() {
            return Err(
                "its cell is read where it is Keras' own `LSTMCell`, `GRUCell` or `SimpleRNNCell`, or several of them without states in or out, and computes in the type of the layer; make it so in Keras, or make the layers here and load its weights".into(),
            );
        }
        if !self.is_of_keras() {
            return Err(
                "it is a layer of your own program, which cannot be read from a file".into(),
            );
        }
        let activation = match self.class {
            "Activation" => Some(activation(self.setting("activation"))?),
            "Identity" | "ActivityRegularization" => Some("linear".into()),
            class => activation_layer(class, self.settings, self.rank)?,
        };
        if let Some(activation) = activation {
            self.check_activation()?;
            let mut settings = object_of("activation", activation);
            if let Some(penalty) = self.activity_penalty()? {
                settings.insert("activity_regularizer".into(), penalty);
            }
            return Ok(("activation", settings));
        }
        self.check_precision_inside()?;
        // The last one: a preparation of images is a rescaling in Keras, and not the other way round.
        let mut known = CLASSES.iter().rev();
        let Some(&(kind, ..)) = known.find(|(_, class, _)| *class == self.class) else {
            return Err("there is no such layer here".into());
        };
        let mut settings = Settings::new();
        for (field, value) in self.settings {
            if let Some((field, value)) = setting(kind, field, value)? {
                settings.insert(field, value);
            }
        }
        self.finish(kind, &mut settings)?;
        Ok((kind, settings))
    }

    /// The penalty on the output of an activation, or of the layer that is nothing else.
    fn activity_penalty(&self) -> Translated<Option<Value>> {
        if self.class == "ActivityRegularization" {
            let factors = ["l1", "l2"].map(|name| (name.to_owned(), self.setting(name).clone()));
            let factors: Settings = factors.into_iter().collect();
            return Ok(Some(json!({"l1_l2": factors})));
        }
        match self.setting("activity_regularizer") {
            Value::Null => Ok(None),
            penalty => regularizer(penalty).map(Some),
        }
    }

    /// Settings of some kinds that are more than a name and a value.
    fn finish(&self, kind: &str, settings: &mut Settings) -> Translated<()> {
        match kind {
            "category_encoding" | "discretization" | "hashing" | "hashed_crossing"
            | "integer_lookup" => {
                categories::of_keras(kind, settings)?;
            }
            "lstm" | "conv_lstm1d" | "conv_lstm2d" | "conv_lstm3d"
                if self.setting("unit_forget_bias") != false =>
            {
                // Which starts the other gates otherwise than zeros do has no like here, and the values are in the file.
                settings.remove("bias_initializer");
            }
            "bidirectional" => self.finish_bidirectional(settings)?,
            "layer_scale" => {
                // Its weights have as many.
                settings.remove("projection_dim");
            }
            "spectral_norm" => {
                settings.insert("layer".into(), inner_layer(self.setting("layer"))?);
            }
            "time_distributed" => {
                let mut inner = inner_layer(self.setting("layer"))?;
                // Keras 3 calls the layer past what adds its penalty.
                let all = inner.as_object_mut().into_iter().flat_map(Map::values_mut);
                for settings in all.filter_map(Value::as_object_mut) {
                    settings.remove("activity_regularizer");
                }
                settings.insert("layer".into(), inner);
            }
            "resizing" => {
                // Keras has no other but `constant`.
                settings.remove("fill_mode");
            }
            "mel_spectrogram" | "stft_spectrogram" => self.finish_spectrogram(settings),
            _ if kind.starts_with("random_") => pictures::of_keras(kind, settings),
            "dot" => {
                let axes = self.setting("axes");
                if axes.is_number() {
                    settings.insert("axes".into(), json!([axes, axes]));
                }
            }
            "separable_conv2d" | "separable_conv1d" => self.finish_separable(settings)?,
            "multi_head_attention" => {
                if let Some(Value::Array(shape)) = settings.get("output_shape") {
                    let [features] = &shape[..] else {
                        return Err(
                            "its `output_shape` has several dimensions, expected one".into()
                        );
                    };
                    let features = features.clone();
                    settings.insert("output_shape".into(), features);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Penalties of both kernels, where these differ.
    fn finish_separable(&self, settings: &mut Settings) -> Translated<()> {
        const FIELDS: [&str; 2] = ["depthwise_regularizer", "pointwise_regularizer"];
        let [of_depth, of_points] = FIELDS.map(|field| self.setting(field));
        if of_depth != of_points {
            settings.remove("kernel_regularizer");
            for field in FIELDS {
                let penalty = Some(self.setting(field)).filter(|value| !value.is_null());
                let penalty = penalty.map(regularizer).transpose()?;
                settings.extend(penalty.map(|penalty| (field.into(), penalty)));
            }
        }
        Ok(())
    }

    /// No window is none.
    fn finish_spectrogram(&self, settings: &mut Settings) {
        for field in ["window", "scaling"] {
            if self.settings.get(field).is_some_and(Value::is_null) {
                settings.insert(field.into(), Value::Null);
            }
        }
    }

    /// A layer of both directions is one layer here, which reads both ways.
    fn finish_bidirectional(&self, settings: &mut Settings) -> Translated<()> {
        if self.setting("merge_mode").is_null() {
            return Err("it has no `merge_mode`: two outputs have no like here".into());
        }
        let forward = recurrent_layer(self.setting("layer"))?;
        if is_true(&forward, "go_backwards") {
            return Err("its first layer goes backwards, which has no like here".into());
        }
        let backward = self.setting("backward_layer");
        if !backward.is_null() {
            let mut backward = recurrent_layer(backward)?;
            for settings in backward
                .as_object_mut()
                .into_iter()
                .flat_map(Map::values_mut)
            {
                settings["go_backwards"] = false.into();
            }
            if backward != forward {
                return Err(
                    "its layers of both directions differ; here they have the same settings".into(),
                );
            }
        }
        settings.insert("layer".into(), forward);
        Ok(())
    }
}

/// Whether the layer `{kind: settings}` switches a setting on.
fn is_true(layer: &Value, setting: &str) -> bool {
    let mut settings = layer.as_object().into_iter().flat_map(Map::values);
    settings.any(|settings| settings[setting] == true)
}

/// The layer in a layer of both directions or of each step.
fn inner_layer(object: &Value) -> Translated<Value> {
    let layer = KerasLayer::of(object)?;
    let within = |message| format!("its layer of class {}: {message}", cut(layer.class));
    let (kind, settings) = layer.kind_and_settings().map_err(within)?;
    Ok(json!({ kind: settings }))
}

/// The layer of one direction. Keras has it give zeros at steps of padding, as the layer of both directions does here.
fn recurrent_layer(object: &Value) -> Translated<Value> {
    let mut object = object.clone();
    if let Some(settings) = object.get_mut("config").and_then(Value::as_object_mut) {
        settings.remove("zero_output_for_mask");
    }
    inner_layer(&object)
}

/// A setting under its name here; nothing where it changes nothing.
fn setting(kind: &str, field: &str, value: &Value) -> Translated<Option<(String, Value)>> {
    const OF_EVERY_LAYER: [&str; 3] = ["name", "trainable", "dtype"];
    // Keras 2 notes of a separable convolution what it has of any other, and does nothing with it.
    let is_unused =
        kind.starts_with("separable") && field.starts_with("kernel_") && field != "kernel_size";
    let is_nothing =
        value.is_null() || is_unused || IGNORED.contains(&field) || OF_EVERY_LAYER.contains(&field);
    // Layers in layers are read where all of the outer one is known.
    if is_nothing || ["layer", "backward_layer"].contains(&field) {
        return Ok(None);
    }
    let has_groups = kind == "group_norm" || ["conv1d", "conv2d", "conv3d"].contains(&kind);
    let without_like = WITHOUT_LIKE
        .iter()
        .find(|(name, _)| *name == field && !(field == "groups" && has_groups));
    if let Some((_, neutral)) = without_like {
        return match value.to_string() {
            text if text == *neutral || value == &Value::Bool(false) => Ok(None),
            text => Err(format!(
                "its `{field}` is {}, and only {neutral} has a like here",
                cut(&text)
            )),
        };
    }
    if field.ends_with("_constraint") {
        let name = match kind {
            "depthwise_conv1d" | "depthwise_conv2d" => field.replace("depthwise_", "kernel_"),
            _ => field.to_owned(),
        };
        return constraint(value).map(|constraint| Some((name, constraint)));
    }
    let (name, value) = if field.ends_with("initializer") {
        (
            field.replace("depthwise_", "kernel_"),
            initializer(value).unwrap_or(Value::Null),
        )
    } else if field.ends_with("regularizer") {
        (field.replace("depthwise_", "kernel_"), regularizer(value)?)
    } else if field.ends_with("activation") {
        (field.to_owned(), activation(value)?)
    } else {
        (field.to_owned(), number_or_list(kind, field, value))
    };
    // The second convolution of two begins as the first, and what begins otherwise than anything here begins by default: the values are in the file.
    let is_left_out = value.is_null() || name.starts_with("pointwise_");
    Ok((!is_left_out).then_some((name, value)))
}

/// One size of a layer of sequences, and one axis, which Keras has as a list; the values of an array of numpy.
fn number_or_list(kind: &str, field: &str, value: &Value) -> Value {
    if value["class_name"] == "__numpy__" {
        return numbers(&value["config"]["value"]);
    }
    match value.as_array().map(Vec::as_slice) {
        Some([one])
            if kind.contains("1d")
                || field == "axis" && !["layer_norm", "rms_norm"].contains(&kind) =>
        {
            one.clone()
        }
        _ => value.clone(),
    }
}

/// Lists in lists of one element as one list.
fn numbers(value: &Value) -> Value {
    match value.as_array().map(Vec::as_slice) {
        Some([inner @ Value::Array(_)]) => numbers(inner),
        _ => value.clone(),
    }
}

/// `GlorotUniform` as `glorot_uniform`.
pub(super) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars().take(100) {
        if letter.is_ascii_uppercase()
            && snake.ends_with(|before: char| before.is_ascii_lowercase())
        {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// A name without the marks that names of values have here.
pub(super) fn plain(name: &str) -> String {
    let plain = |letter: char| {
        if matches!(letter, '/' | ':' | '.') {
            '_'
        } else {
            letter
        }
    };
    name.chars().map(plain).collect()
}

pub(super) fn object_of(field: &str, value: Value) -> Settings {
    Settings::from_iter([(field.to_owned(), value)])
}

/// A value in few characters.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Object(fields) => match fields.get("class_name").and_then(Value::as_str) {
            Some(class) => format!("`{}`", cut(class)),
            None => format!("an object of {} fields", fields.len()),
        },
        Value::Array(items) if items.len() > 8 => format!("a list of {}", items.len()),
        other => cut(&other.to_string()),
    }
}

/// The beginning of a text.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}
