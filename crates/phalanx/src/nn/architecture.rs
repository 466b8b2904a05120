//! Models as JSON: layers, settings, connections and names; no values of variables.
//!
//! An input is `{"name", "shape", "dtype"}`, `"any_length": true` where its examples have any, or how many of the first dims are open
//! as `"open_dims"`.
//! A stack is `{"name", "input", "layers"}`, any other model `{"name", "inputs", "layers", "calls", "outputs"}`.
//! A layer is `{kind: settings}`; a model as a layer has the kind `model`. A call is `{"layer", "inputs"}`. A value
//! is the name of an input or of a layer, of which `name:1` is the second call, and `name:1.2` its third output.
//! `"of_keras": 3`, or 2, is in a model that this Keras described as a functional one, with the layers in its order.

use std::collections::HashMap;

use phalanx_graph::DType;
use serde_json::{Map, Value, json};

use super::context::MAX_CALLS;
use super::input::{Input, NamedInput};
use super::keras_order::KerasVersion;
use super::layer::{Body, LayerSpec};
use super::model::{Call, Model, NamedLayer, Place, Plan};
use super::registry::{MODEL_KIND, Outer, Registry};
use crate::config::suggest;
use crate::{Error, Result};

/// Models in models deeper than this are taken for a mistake.
pub(super) const MAX_DEPTH: usize = 16;
/// What names may not hold in such a model, because values are written with them.
const MARKS: [char; 2] = [':', '.'];
/// Which Keras described the model.
pub(super) const OF_KERAS: &str = "of_keras";

impl Model {
    /// Refuses names that the JSON of the architecture could not hold, before anybody trains under them.
    pub(super) fn check_names(&self) -> Result<()> {
        let inputs = self.inputs.iter().map(|input| &input.name);
        let mut names = inputs.chain(self.layers.iter().map(|layer| &layer.name));
        match names.find(|name| !self.is_stack() && name.contains(MARKS)) {
            None => Ok(()),
            Some(name) => Err(Error::user(format!(
                "`{name}` cannot name a layer or input of a network: `:` and `.` mark values in its file; choose another name"
            ))),
        }
    }

    /// The architecture as JSON, from which [`from_config`](Self::from_config) makes the model again.
    #[must_use]
    pub fn config(&self) -> Value {
        let mut config = self.graph_config();
        if let Some(version) = self.of_keras {
            config[OF_KERAS] = version.number().into();
        }
        config
    }

    fn graph_config(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(layer_value).collect();
        if self.is_stack() {
            let input = input_value(&self.inputs[0]);
            return json!({"name": self.name, "input": input, "layers": layers});
        }
        let names = value_names(self);
        let name = |place: &Place| names.of(*place);
        let call = |call: &Call| {
            let inputs: Vec<String> = call.inputs.iter().map(name).collect();
            json!({"layer": self.layers[call.layer].name, "inputs": inputs})
        };
        json!({
            "name": self.name,
            "inputs": self.inputs.iter().map(input_value).collect::<Vec<_>>(),
            "layers": layers,
            "calls": self.calls.iter().map(call).collect::<Vec<_>>(),
            "outputs": self.outputs.iter().map(name).collect::<Vec<_>>(),
        })
    }

    /// The model that [`config`](Self::config) describes, of layers of this library.
    ///
    /// # Errors
    /// Names the field by its path, `layers[3].dense`, with the nearest valid name where one is unknown; or says which
    /// layers do not fit together.
    pub fn from_config(config: &Value) -> Result<Self> {
        Self::from_config_with(config, &Registry::standard())
    }

    /// [`from_config`](Self::from_config) with layers of your own.
    ///
    /// # Errors
    /// As for [`from_config`](Self::from_config).
    pub fn from_config_with(config: &Value, registry: &Registry) -> Result<Self> {
        let mut reader = Reader {
            registry,
            layers: 0,
        };
        reader.model(&Path(String::new()), config, 0)
    }

    /// The paths of the layers that switch a setting on, or hold layers that do.
    pub(crate) fn layers_with(&self, setting: &str) -> Vec<String> {
        let of_layer = |entry: &NamedLayer| match &entry.body {
            Body::Layer { layer, .. } if switches_on(&layer.config(), setting) => {
                vec![entry.name.clone()]
            }
            Body::Layer { .. } => Vec::new(),
            Body::Model(model) => {
                let inner = model.layers_with(setting).into_iter();
                inner.map(|path| format!("{}/{path}", entry.name)).collect()
            }
        };
        self.layers.iter().flat_map(of_layer).collect()
    }

    /// Whether every layer is called once, with the output of the one before.
    pub(super) fn is_stack(&self) -> bool {
        let first = |node| Place { node, output: 0 };
        let mut calls = self.calls.iter().enumerate();
        self.inputs.len() == 1
            && self.layers.len() == self.calls.len()
            && calls.all(|(i, call)| call.layer == i && call.inputs == [first(i)])
            && self.outputs == [first(self.calls.len())]
    }
}

/// Whether a setting is true in a configuration, at any depth.
fn switches_on(config: &Value, setting: &str) -> bool {
    match config {
        Value::Object(fields) => {
            fields.get(setting) == Some(&Value::Bool(true))
                || fields.values().any(|value| switches_on(value, setting))
        }
        Value::Array(values) => values.iter().any(|value| switches_on(value, setting)),
        _ => false,
    }
}

fn input_value(input: &NamedInput) -> Value {
    let shape = &input.shape;
    let mut value = json!({"name": input.name, "shape": shape.dims, "dtype": shape.dtype.name()});
    match input.open {
        0 => {}
        1 => value["any_length"] = true.into(),
        open => value["open_dims"] = open.into(),
    }
    value
}

fn layer_value(entry: &NamedLayer) -> Value {
    let (kind, mut settings, trainable, precision) = match &entry.body {
        Body::Layer {
            layer,
            trainable,
            precision,
        } => (layer.kind(), layer.config(), *trainable, *precision),
        Body::Model(model) => (MODEL_KIND, model.config(), true, None),
    };
    if !settings.is_object() {
        settings = json!({});
    }
    if let Some(fields) = settings.as_object_mut() {
        // Few layers have one, and a file has a limit.
        fields.retain(|name, value| !(value.is_null() && name.ends_with("_constraint")));
        Outer::put(fields, entry, trainable, precision);
    }
    json!({ kind: settings })
}

/// How each node is written.
pub(super) struct ValueNames(Vec<String>);

pub(super) fn value_names(model: &Model) -> ValueNames {
    let mut uses = vec![0; model.layers.len()];
    let mut names: Vec<String> = model
        .inputs
        .iter()
        .map(|input| input.name.clone())
        .collect();
    for call in &model.calls {
        let name = &model.layers[call.layer].name;
        names.push(match uses[call.layer] {
            0 => name.clone(),
            number => format!("{name}:{number}"),
        });
        uses[call.layer] += 1;
    }
    ValueNames(names)
}

impl ValueNames {
    pub(super) fn of(&self, place: Place) -> String {
        let name = &self.0[place.node];
        match place.output {
            0 => name.clone(),
            output if name.contains(':') => format!("{name}.{output}"),
            output => format!("{name}:0.{output}"),
        }
    }
}

/// Where in the JSON an error is: `layers[3].dense`.
struct Path(String);

impl Path {
    fn field(&self, name: &str) -> Self {
        match self.0.as_str() {
            "" => Self(name.to_owned()),
            path => Self(format!("{path}.{name}")),
        }
    }

    fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    fn error(&self, message: impl std::fmt::Display) -> Error {
        let path = if self.0.is_empty() { "model" } else { &self.0 };
        Error::user(format!("{path}: {message}"))
    }
}

struct Reader<'a> {
    registry: &'a Registry,
    /// The number of layers read, including layers of nested models.
    layers: usize,
}

impl Reader<'_> {
    fn model(&mut self, path: &Path, config: &Value, depth: usize) -> Result<Model> {
        if depth > MAX_DEPTH {
            let message = format!("models are nested more than {MAX_DEPTH} deep; flatten them");
            return Err(path.error(message));
        }
        let fields = object(path, config)?;
        let stack = fields.contains_key("input");
        let mut known = if stack {
            vec!["name", OF_KERAS, "input", "layers"]
        } else {
            vec!["name", OF_KERAS, "inputs", "layers", "calls", "outputs"]
        };
        // What a layer has; see `Outer`.
        known.extend(
            (depth > 0)
                .then_some([
                    "trainable",
                    "training",
                    "precision",
                    "checkpointed",
                    "sharding",
                ])
                .into_iter()
                .flatten(),
        );
        check_fields(path, fields, &known)?;
        let default = if stack { "sequential" } else { "functional" };
        let name = fields
            .get("name")
            .filter(|name| depth == 0 || !name.is_null())
            .map_or(Ok(default), |name| text(&path.field("name"), name))?;
        let layers = self.layers(path, fields, depth)?;
        let mut plan = if stack {
            let input = read_input(&path.field("input"), &fields["input"])?;
            Plan::stack(name.to_owned(), input, layers)
        } else {
            read_graph(path, name, fields, layers)?
        };
        plan.of_keras = read_version(path, fields)?;
        Model::build(plan).map_err(|error| match error {
            Error::User(message) if !path.0.is_empty() => path.error(message),
            other => other,
        })
    }

    fn layers(
        &mut self,
        path: &Path,
        fields: &Map<String, Value>,
        depth: usize,
    ) -> Result<Vec<LayerSpec>> {
        let path = path.field("layers");
        let items = list(&path, fields.get("layers"))?;
        self.layers = self.layers.saturating_add(items.len());
        if self.layers > MAX_CALLS {
            let message =
                format!("more than {MAX_CALLS} layers in one model; that is taken for a mistake");
            return Err(path.error(message));
        }
        let layer = |(i, item)| self.layer(&path.item(i), item, depth);
        items.iter().enumerate().map(layer).collect()
    }

    /// `"flatten"`, or `{"dense": {"units": 10}}`.
    fn layer(&mut self, path: &Path, item: &Value, depth: usize) -> Result<LayerSpec> {
        let (kind, settings) = match item {
            Value::String(kind) => (kind, &Value::Null),
            Value::Object(fields) if fields.len() == 1 => fields
                .iter()
                .next()
                .ok_or_else(|| path.error("expected a layer"))?,
            _ => {
                return Err(path.error(format!(
                    "expected a layer such as {{\"dense\": {{\"units\": 10}}}}, got {}",
                    brief(item)
                )));
            }
        };
        if kind != MODEL_KIND {
            let owner = path.field(&kind.chars().take(40).collect::<String>());
            return self.registry.layer(&owner.0, kind, settings);
        }
        let path = path.field(kind);
        // Without a copy: models in models would be copied once for every one they are in.
        let outer = Outer::of(object(&path, settings)?);
        let model = self.model(&path, settings, depth + 1)?;
        outer.apply(&path.0, model.into())
    }
}

fn read_graph(
    path: &Path,
    name: &str,
    fields: &Map<String, Value>,
    layers: Vec<LayerSpec>,
) -> Result<Plan> {
    let input_path = path.field("inputs");
    let inputs = list(&input_path, fields.get("inputs"))?.iter().enumerate();
    let inputs = inputs.map(|(i, input)| read_input(&input_path.item(i), input));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let mut values = CallTable::new(path, &inputs, &layers)?;
    let call_path = path.field("calls");
    let items = list(&call_path, fields.get("calls"))?;
    if items.len() > MAX_CALLS {
        let message = format!("more than {MAX_CALLS} calls; that is taken for a mistake");
        return Err(call_path.error(message));
    }
    let calls = items.iter().enumerate();
    let calls = calls.map(|(i, item)| values.call(&call_path.item(i), item));
    let calls = calls.collect::<Result<_>>()?;
    let outputs = values.places(&path.field("outputs"), fields.get("outputs"))?;
    let name = name.to_owned();
    Ok(Plan {
        name,
        inputs,
        layers,
        calls,
        outputs,
        of_keras: None,
    })
}

fn read_version(path: &Path, fields: &Map<String, Value>) -> Result<Option<KerasVersion>> {
    let Some(number) = fields.get(OF_KERAS) else {
        return Ok(None);
    };
    let version = number.as_u64().and_then(KerasVersion::of);
    version.map(Some).ok_or_else(|| {
        let message = format!("expected 2 or 3, got {}", brief(number));
        path.field(OF_KERAS).error(message)
    })
}

/// The values that calls may use: inputs and results of earlier calls.
struct CallTable<'a> {
    layers: HashMap<&'a str, usize>,
    /// Results per layer.
    results: Vec<usize>,
    nodes: HashMap<String, usize>,
    /// Results of each node.
    outputs: Vec<usize>,
    uses: Vec<usize>,
}

impl<'a> CallTable<'a> {
    fn new(path: &Path, inputs: &'a [Input], layers: &'a [LayerSpec]) -> Result<Self> {
        let mut named = HashMap::new();
        for (i, layer) in layers.iter().enumerate() {
            let path = path.field("layers").item(i);
            let name = layer.name.as_deref();
            let name = name.ok_or_else(|| path.error("field `name` is missing; calls need it"))?;
            check_marks(&path, name)?;
            named.insert(name, i);
        }
        let mut nodes = HashMap::new();
        for (i, input) in inputs.iter().enumerate() {
            let path = path.field("inputs").item(i);
            let name = input.name.as_deref();
            let name = name.ok_or_else(|| path.error("field `name` is missing; calls need it"))?;
            check_marks(&path, name)?;
            nodes.insert(name.to_owned(), i);
        }
        Ok(Self {
            layers: named,
            results: layers.iter().map(|layer| layer.body.outputs()).collect(),
            nodes,
            outputs: vec![1; inputs.len()],
            uses: vec![0; layers.len()],
        })
    }

    fn call(&mut self, path: &Path, item: &Value) -> Result<Call> {
        let fields = object(path, item)?;
        check_fields(path, fields, &["layer", "inputs"])?;
        let layer_path = path.field("layer");
        let name = fields.get("layer").unwrap_or(&Value::Null);
        let name = text(&layer_path, name)?;
        let Some(&layer) = self.layers.get(name) else {
            let hint = suggest(name, self.layers.keys().copied());
            return Err(layer_path.error(format!("no layer is named `{name}`; {hint}")));
        };
        let inputs = self.places(&path.field("inputs"), fields.get("inputs"))?;
        let node = match self.uses[layer] {
            0 => name.to_owned(),
            number => format!("{name}:{number}"),
        };
        self.uses[layer] += 1;
        self.nodes.insert(node, self.outputs.len());
        self.outputs.push(self.results[layer]);
        Ok(Call { layer, inputs })
    }

    fn places(&self, path: &Path, value: Option<&Value>) -> Result<Vec<Place>> {
        let items = list(path, value)?.iter().enumerate();
        items
            .map(|(i, item)| self.place(&path.item(i), item))
            .collect()
    }

    /// The value written `name`, `name:call` or `name:call.output`.
    fn place(&self, path: &Path, item: &Value) -> Result<Place> {
        let written = text(path, item)?;
        let (node, output) = match written.split_once('.') {
            Some((node, output)) => (node.strip_suffix(":0").unwrap_or(node), output.parse().ok()),
            None => (written, Some(0)),
        };
        let Some(&node) = self.nodes.get(node) else {
            let made = if self.layers.contains_key(node) {
                "is used before the call that makes it; put calls in order, a model has no cycles"
                    .to_owned()
            } else {
                let known = self.nodes.keys().map(String::as_str);
                format!(
                    "is no input and no result of an earlier call; {}",
                    suggest(node, known)
                )
            };
            return Err(path.error(format!("`{written}` {made}")));
        };
        match output.filter(|&output| output < self.outputs[node]) {
            Some(output) => Ok(Place { node, output }),
            None => {
                let count = self.outputs[node];
                Err(path.error(format!(
                    "`{written}` is no value: it has {count} outputs, counted from 0"
                )))
            }
        }
    }
}

fn check_marks(path: &Path, name: &str) -> Result<()> {
    if name.contains(MARKS) {
        let message = format!("`name` `{name}` must not hold `:` or `.` here");
        return Err(path.error(message));
    }
    Ok(())
}

fn read_input(path: &Path, value: &Value) -> Result<Input> {
    let fields = object(path, value)?;
    check_fields(
        path,
        fields,
        &["name", "shape", "dtype", "any_length", "open_dims"],
    )?;
    let shape = path.field("shape");
    let size = |(i, item): (usize, &Value)| {
        let size = item.as_u64().and_then(|size| usize::try_from(size).ok());
        let message = format!("expected a positive whole number, got {}", brief(item));
        size.filter(|&size| size > 0)
            .ok_or_else(|| shape.item(i).error(message))
    };
    let dims = list(&shape, fields.get("shape"))?
        .iter()
        .enumerate()
        .map(size);
    let mut input = Input::new(dims.collect::<Result<Vec<_>>>()?);
    if let Some(dtype) = fields.get("dtype") {
        let path = path.field("dtype");
        let name = text(&path, dtype)?;
        let known = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        input = input.dtype(known.ok_or_else(|| {
            let hint = suggest(name, DType::ALL.iter().map(|dtype| dtype.name()));
            path.error(format!("unknown type `{name}`; {hint}"))
        })?);
    }
    match fields.get("any_length") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => input = input.any_length(),
        Some(other) => {
            let message = format!("expected true or false, got {}", brief(other));
            return Err(path.field("any_length").error(message));
        }
    }
    if let Some(count) = fields.get("open_dims") {
        let open = count.as_u64().and_then(|count| usize::try_from(count).ok());
        let message = format!(
            "expected how many of the first dims are open, got {}",
            brief(count)
        );
        input = input.open_dims(open.ok_or_else(|| path.field("open_dims").error(message))?);
    }
    match fields.get("name") {
        Some(name) => Ok(input.named(text(&path.field("name"), name)?)),
        None => Ok(input),
    }
}

fn object<'v>(path: &Path, value: &'v Value) -> Result<&'v Map<String, Value>> {
    let found = value.as_object();
    found.ok_or_else(|| path.error(format!("expected fields with values, got {}", brief(value))))
}

fn list<'v>(path: &Path, value: Option<&'v Value>) -> Result<&'v [Value]> {
    match value {
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(path.error(format!("expected a list, got {}", brief(other)))),
        None => Err(path.error("is missing; add it")),
    }
}

fn text<'v>(path: &Path, value: &'v Value) -> Result<&'v str> {
    let found = value.as_str();
    found.ok_or_else(|| path.error(format!("expected text, got {}", brief(value))))
}

fn check_fields(path: &Path, fields: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match fields.keys().find(|field| !known.contains(&field.as_str())) {
        Some(field) => {
            let hint = suggest(field, known.iter().copied());
            Err(path.error(format!("unknown field `{field}`; {hint}")))
        }
        None => Ok(()),
    }
}

/// A value in few characters.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        other => other.to_string().chars().take(60).collect(),
    }
}
