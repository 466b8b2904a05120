//! Functional models as Keras describes them, read.
//!
//! Keras writes down how it found the masks of padding, as operations on what an embedding or a masking layer takes, and gives them to the
//! layers. Here masks go along with the values, so that these operations are left out where they say the same.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::operations::KerasOperation;
use super::read::{entry, input, list, of_layer};
use super::read_calls::{KerasCall, KerasValue, sources};
use super::read_layer::{KerasLayer, cut, plain};
use super::{ATTENTION, CAUSAL, Translated};
use crate::nn::context::MAX_CALLS;

/// A functional model on its way here.
#[derive(Default)]
pub(super) struct Functional {
    inputs: HashMap<String, Value>,
    layers: Vec<ReadLayer>,
    masks: HashMap<String, MaskOperation>,
}

/// A layer with its calls.
struct ReadLayer {
    name: String,
    architecture: Value,
    calls: Vec<KerasCall>,
    /// Whether it is a functional model, whose calls Keras counts from 1 among the outputs.
    is_functional: bool,
}

/// An operation on masks.
struct MaskOperation {
    /// Whether it finds the padding, not joins what others found.
    finds: bool,
    inputs: Vec<String>,
}

impl Functional {
    /// The architecture of the model.
    pub(super) fn read(model: &KerasLayer<'_>, depth: usize) -> Translated<Value> {
        let mut network = Self::default();
        let objects = list(model.settings, "layers")?;
        if objects.len() > MAX_CALLS {
            return Err(too_many("layers"));
        }
        for object in objects {
            network.add(object, depth)?;
        }
        let mut given = Vec::new();
        sources(model.setting("input_layers"), &mut given)?;
        let inputs = given.iter().map(|source| network.input(source.layer));
        let inputs = inputs.collect::<Translated<Vec<_>>>()?;
        let mut outputs = Vec::new();
        sources(model.setting("output_layers"), &mut outputs)?;
        for output in &mut outputs {
            let name = plain(output.layer);
            let mut layers = network.layers.iter();
            let is_functional = layers.any(|layer| layer.name == name && layer.is_functional);
            output.call = output.call.saturating_sub(usize::from(is_functional));
        }
        let outputs: Vec<String> = outputs.iter().map(KerasValue::written).collect();
        let calls = network.ordered(&given)?;
        network.check_masks()?;
        let layers = network.layers.into_iter();
        let layers: Vec<Value> = layers.map(|layer| layer.architecture).collect();
        Ok(json!({"inputs": inputs, "layers": layers, "calls": calls, "outputs": outputs}))
    }

    fn input(&self, name: &str) -> Translated<Value> {
        let input = self.inputs.get(name).cloned();
        input.ok_or_else(|| {
            let name = cut(name);
            format!("`{name}` is among the inputs, and no input has this name")
        })
    }

    fn add(&mut self, object: &Value, depth: usize) -> Translated<()> {
        let layer = KerasLayer::of(object)?;
        if layer.class == "InputLayer" {
            self.inputs.insert(layer.name.to_owned(), input(&layer)?);
            return Ok(());
        }
        let wrong = |message: String| of_layer(&layer, &message);
        let nodes = object["inbound_nodes"].as_array();
        let nodes = nodes.map_or(&[][..], Vec::as_slice);
        if layer.is_operation() {
            return self.add_operation(&layer, nodes).map_err(wrong);
        }
        let mut architecture = entry(object, depth)?;
        let calls = nodes.iter().map(|node| KerasCall::of(layer.class, node));
        let calls = calls.collect::<Translated<Vec<_>>>().map_err(wrong)?;
        if let Some(kind) = ATTENTION
            .iter()
            .find(|kind| architecture[**kind].is_object())
        {
            let is_causal = calls.first().is_some_and(|call| call.is_causal);
            if calls.iter().any(|call| call.is_causal != is_causal) {
                return Err(wrong(format!(
                    "its calls differ in `{CAUSAL}`, which is a setting of the layer here"
                )));
            }
            architecture[*kind][CAUSAL] = is_causal.into();
        }
        self.layers.push(ReadLayer {
            name: plain(layer.name),
            architecture,
            calls,
            is_functional: layer.settings.contains_key("output_layers"),
        });
        Ok(())
    }

    fn add_operation(&mut self, layer: &KerasLayer<'_>, nodes: &[Value]) -> Translated<()> {
        let [node] = nodes else {
            return Err(format!("it is called {} times, expected once", nodes.len()));
        };
        let operation = KerasOperation::of(layer, node)?;
        let mut found = Vec::new();
        for input in operation.inputs {
            sources(input, &mut found)?;
        }
        let inputs = found.iter().map(KerasValue::written).collect();
        let name = plain(layer.name);
        match operation.layer {
            Some(architecture) => self.layers.push(ReadLayer {
                name,
                architecture,
                calls: vec![KerasCall::plain(inputs)],
                is_functional: false,
            }),
            None => {
                let finds = layer.class == "NotEqual";
                self.masks.insert(name, MaskOperation { finds, inputs });
            }
        }
        Ok(())
    }

    /// The calls in an order in which each value is made before it is used; calls of one layer keep theirs.
    fn ordered(&self, inputs: &[KerasValue<'_>]) -> Translated<Vec<Value>> {
        let count: usize = self.layers.iter().map(|layer| layer.calls.len()).sum();
        if count > MAX_CALLS {
            return Err(too_many("calls"));
        }
        let mut known: HashSet<String> = inputs.iter().map(|input| plain(input.layer)).collect();
        let mut done = vec![0; self.layers.len()];
        let mut calls = Vec::new();
        while calls.len() < count {
            let before = calls.len();
            for (layer, done) in self.layers.iter().zip(&mut done) {
                let is_known = |input: &String| known.contains(node(input));
                let ready = layer.calls[*done..].iter();
                let ready = ready.take_while(|call| call.inputs.iter().all(is_known));
                for call in ready.collect::<Vec<_>>() {
                    known.insert(layer.value(*done));
                    calls.push(json!({"layer": layer.name, "inputs": call.inputs}));
                    *done += 1;
                }
            }
            if calls.len() == before {
                return Err(self.waiting(&done, &known));
            }
        }
        Ok(calls)
    }

    /// What is wrong where no call that is left has what it takes.
    fn waiting(&self, done: &[usize], known: &HashSet<String>) -> String {
        let waiting = self.layers.iter().zip(done);
        let calls = waiting.filter_map(|(layer, done)| Some((layer, layer.calls.get(*done)?)));
        let mut wanted =
            calls.flat_map(|(layer, call)| call.inputs.iter().map(move |input| (layer, input)));
        let Some((layer, input)) = wanted.find(|(_, input)| !known.contains(node(input))) else {
            return "a layer waits for itself".into();
        };
        let (name, input) = (cut(&layer.name), cut(input));
        match self.masks.contains_key(&input) {
            true => format!(
                "layer `{name}`: it takes `{input}`, an operation that is read as far as it makes masks"
            ),
            false => format!("layer `{name}`: it takes `{input}`, which no layer before it makes"),
        }
    }

    /// Refuses masks other than those that come along with the values here.
    fn check_masks(&self) -> Translated<()> {
        let calls = self.layers.iter().flat_map(|layer| {
            let calls = layer.calls.iter().enumerate();
            calls.map(move |(number, call)| (layer, layer.value(number), call))
        });
        let made: HashMap<String, &[String]> = calls
            .clone()
            .map(|(_, value, call)| (value, &*call.inputs))
            .collect();
        let makers: HashSet<&String> = self.layers.iter().flat_map(ReadLayer::masked).collect();
        for (layer, _, call) in calls.filter(|(_, _, call)| !call.masks.is_empty()) {
            let ancestors = reached(&call.inputs, |value| made.get(value).copied());
            let operations = reached(&call.masks, |value| {
                let operation = self.masks.get(value)?;
                (!operation.finds).then_some(&*operation.inputs)
            });
            let found = operations.iter().filter_map(|name| self.masks.get(*name));
            let mut found = found
                .filter(|operation| operation.finds)
                .flat_map(|operation| &operation.inputs);
            let is_foreign =
                |value: &&String| !ancestors.contains(node(value)) || !makers.contains(value);
            let is_none = call.masks.iter().any(|mask| !self.masks.contains_key(mask));
            if is_none || found.any(|value| is_foreign(&value)) {
                return Err(format!(
                    "layer `{}`: it is called with a mask of its own; here masks are found by `masking` and by `embedding` with `mask_zero`, and go along with the values",
                    cut(&layer.name)
                ));
            }
        }
        Ok(())
    }
}

impl ReadLayer {
    /// The name of what a call makes.
    fn value(&self, call: usize) -> String {
        match call {
            0 => self.name.clone(),
            call => format!("{}:{call}", self.name),
        }
    }

    /// The values in which it finds padding.
    fn masked(&self) -> impl Iterator<Item = &String> {
        let is_masking = self.architecture.get("masking").is_some()
            || self.architecture["embedding"]["mask_zero"] == true;
        let calls = self.calls.iter().filter(move |_| is_masking);
        calls.flat_map(|call| &call.inputs)
    }
}

/// The values themselves, and what they are made of.
fn reached<'a>(
    values: &'a [String],
    made_of: impl Fn(&str) -> Option<&'a [String]>,
) -> HashSet<&'a str> {
    let mut reached = HashSet::new();
    let mut left: Vec<&str> = values.iter().map(|value| node(value)).collect();
    while let Some(value) = left.pop() {
        if reached.insert(value) {
            let inputs = made_of(value).unwrap_or_default();
            left.extend(inputs.iter().map(|input| node(input)));
        }
    }
    reached
}

/// The call that makes a value, of whatever outputs: `tower:1` of `tower:1.2`, `tower` of `tower:0.2`.
fn node(value: &str) -> &str {
    let call = value.split('.').next().unwrap_or_default();
    call.strip_suffix(":0").unwrap_or(call)
}

fn too_many(what: &str) -> String {
    format!("more than {MAX_CALLS} {what} in one model; that is taken for a mistake")
}
