//! Functional models as Keras describes them, read.
//!
//! What an operation makes has no mask of padding in Keras, and here every layer that stands for one passes masks on. So an operation takes values
//! through a layer that leaves them as they are, without their masks. So does a recurrent layer with first states, which Keras calls without the mask.
//!
//! When a model runs, Keras' `MultiHeadAttention` takes the masks off the values that it is given, so that a later one looks at their padding. It notes
//! other masks all the same, and layers that are given these leave padding out. So such an attention ignores masks here, and they stay.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::of_keras2::in_form_of_3;
use super::operations::KerasOperation;
use super::read::{ConfigReading, entry, input, list, of_layer};
use super::read_calls::{KerasCall, KerasValue, sources};
use super::read_layer::{KerasLayer, brief, cut, plain};
use super::read_masks::{MaskOperation, MaskTable};
use super::run_order::CallGraph;
use super::{ATTENTION, CAUSAL, MULTI_HEAD, PADDING, Translated};
use crate::nn::architecture::OF_KERAS;
use crate::nn::context::MAX_CALLS;
use crate::nn::keras_order::KerasVersion;

/// Layers that may be given first states.
const RECURRENT: [&str; 3] = ["gru", "lstm", "simple_rnn"];

/// A functional model on its way here.
#[derive(Default)]
pub(super) struct Functional {
    inputs: HashMap<String, Value>,
    /// In Keras' order, and behind them those that only stand here.
    layers: Vec<ReadLayer>,
    masks: HashMap<String, MaskOperation>,
    /// Whether Keras 2 wrote it, whose attentions take no masks off.
    is_of_keras2: bool,
}

/// A layer with its calls.
struct ReadLayer {
    name: String,
    architecture: Value,
    calls: Vec<KerasCall>,
    /// Whether it is a functional model, whose calls Keras counts from 1 among the outputs.
    is_functional: bool,
    is_operation: bool,
}

impl Functional {
    /// The architecture of the model.
    pub(super) fn read(model: &KerasLayer<'_>, reading: ConfigReading) -> Translated<Value> {
        let of_2 = in_form_of_3(model.settings);
        let mut network = Self {
            is_of_keras2: of_2.is_some(),
            ..Self::default()
        };
        let settings = of_2.as_ref().unwrap_or(model.settings);
        let objects = list(settings, "layers")?;
        if objects.len() > MAX_CALLS {
            return Err(too_many("layers"));
        }
        for object in objects {
            network.add(object, reading)?;
        }
        let mut given = Vec::new();
        sources(model.setting("input_layers"), &mut given)?;
        let inputs = given.iter().map(|source| network.input(source.layer));
        let inputs = inputs.collect::<Translated<Vec<_>>>()?;
        let mut outputs = Vec::new();
        sources(
            settings.get("output_layers").unwrap_or(&Value::Null),
            &mut outputs,
        )?;
        for output in &mut outputs {
            let name = plain(output.layer);
            let mut layers = network.layers.iter().filter(|_| of_2.is_none());
            let is_functional = layers.any(|layer| layer.name == name && layer.is_functional);
            output.call = output.call.saturating_sub(usize::from(is_functional));
        }
        let outputs: Vec<String> = outputs.iter().map(KerasValue::written).collect();
        let order = network.ordered(&given)?;
        let run_order = network.run_order(&order, &outputs);
        let calls = network.calls(order, &run_order)?;
        let layers = network.layers.into_iter();
        let layers: Vec<Value> = layers.map(|layer| layer.architecture).collect();
        let version = match of_2 {
            Some(_) => KerasVersion::Two,
            None => KerasVersion::Three,
        };
        Ok(
            json!({OF_KERAS: version.number(), "inputs": inputs, "layers": layers, "calls": calls, "outputs": outputs}),
        )
    }

    fn input(&self, name: &str) -> Translated<Value> {
        let input = self.inputs.get(name).cloned();
        input.ok_or_else(|| {
            let name = cut(name);
            format!("`{name}` is among the inputs, and no input has this name")
        })
    }

    fn add(&mut self, object: &Value, reading: ConfigReading) -> Translated<()> {
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
        let mut architecture = entry(object, reading)?;
        let obeys = reading.obeys_training;
        let calls = (nodes.iter()).map(|node| KerasCall::of(layer.class, node, obeys));
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
        note_training(&mut architecture, &calls).map_err(wrong)?;
        self.layers.push(ReadLayer {
            name: plain(layer.name),
            architecture,
            calls,
            is_functional: layer.settings.contains_key("output_layers"),
            is_operation: false,
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
        let shapes = found.iter().map(|value| value.shape.clone()).collect();
        let name = plain(layer.name);
        match operation.layer {
            Some(architecture) => self.layers.push(ReadLayer {
                name,
                architecture,
                calls: vec![KerasCall::plain(inputs, shapes)],
                is_functional: false,
                is_operation: true,
            }),
            None => {
                let operation = MaskOperation::of(layer, node, inputs);
                self.masks.insert(name, operation);
            }
        }
        Ok(())
    }

    /// Layers and numbers of their calls, in an order in which each value is made before it is used; calls of one layer keep theirs.
    fn ordered(&self, inputs: &[KerasValue<'_>]) -> Translated<Vec<(usize, usize)>> {
        let count: usize = self.layers.iter().map(|layer| layer.calls.len()).sum();
        if count > MAX_CALLS {
            return Err(too_many("calls"));
        }
        let mut known: HashSet<String> = inputs.iter().map(|input| plain(input.layer)).collect();
        let mut done = vec![0; self.layers.len()];
        let mut calls = Vec::new();
        while calls.len() < count {
            let before = calls.len();
            for (at, (layer, done)) in self.layers.iter().zip(&mut done).enumerate() {
                let is_known = |input: &String| known.contains(node(input));
                let ready = layer.calls[*done..].iter();
                let ready = ready.take_while(|call| call.inputs.iter().all(is_known));
                for _ in 0..ready.count() {
                    known.insert(layer.value(*done));
                    calls.push((at, *done));
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

    /// The calls in the order in which Keras runs them, before those that lead to no output.
    fn run_order(&self, order: &[(usize, usize)], outputs: &[String]) -> Vec<(usize, usize)> {
        let mut graph = CallGraph::default();
        for (name, operation) in &self.masks {
            graph.add(name.clone(), name, operation.inputs.iter());
        }
        let mut places = HashMap::new();
        for &(at, number) in order {
            let layer = &self.layers[at];
            let call = &layer.calls[number];
            let masks = call.masks.iter().map(|(_, mask)| mask);
            let name = layer.value(number);
            graph.add(name.clone(), &layer.name, call.inputs.iter().chain(masks));
            places.insert(name, (at, number));
        }
        let run = graph.run_order(outputs).into_iter();
        let mut run: Vec<_> = run.filter_map(|call| places.remove(call)).collect();
        let unused: HashSet<_> = places.into_values().collect();
        run.extend(order.iter().filter(|place| unused.contains(place)));
        run
    }

    /// What masks the values have, and the calls of attention that look at padding.
    fn masks_at_run(
        &self,
        run_order: &[(usize, usize)],
    ) -> Translated<(MaskTable, HashSet<(usize, usize)>)> {
        let (mut masks, mut looking) = (MaskTable::default(), HashSet::new());
        for &(at, number) in run_order {
            let layer = &self.layers[at];
            let (name, call) = (&layer.name, &layer.calls[number]);
            if layer.is_operation {
                continue;
            }
            masks.check(name, call, &self.masks)?;
            if self.is_of_keras2 {
                masks.check_merged(name, &layer.architecture, &call.inputs)?;
            }
            if layer.is_multi_head() && !self.is_of_keras2 && masks.are_taken(name, call)? {
                looking.insert((at, number));
            }
            masks.carry(&layer.value(number), &layer.architecture, &call.inputs);
        }
        Ok((masks, looking))
    }

    /// The calls, each with masks that come along with its values, or on values without their masks.
    fn calls(
        &mut self,
        order: Vec<(usize, usize)>,
        run_order: &[(usize, usize)],
    ) -> Translated<Vec<Value>> {
        let (masks, looking) = self.masks_at_run(run_order)?;
        let mut bare = HashMap::new();
        let mut calls = Vec::with_capacity(order.len());
        for (at, number) in order {
            let layer = &self.layers[at];
            let (name, call) = (layer.name.clone(), &layer.calls[number]);
            let (mut inputs, shapes) = (call.inputs.clone(), call.shapes.clone());
            let unmasked = layer.unmasked(call);
            if !layer.is_operation {
                let looks = looking.contains(&(at, number));
                self.layers[at].look_at_padding(looks, number)?;
            }
            let taken = inputs.iter_mut().zip(&shapes).take(unmasked);
            for (input, shape) in taken.filter(|(input, _)| masks.of(input).is_some()) {
                if !bare.contains_key(input) {
                    let layer = self.without_mask(input, shape);
                    let layer = layer.map_err(|message| format!("`{}`: {message}", cut(&name)))?;
                    calls.push(json!({"layer": layer, "inputs": [input]}));
                    bare.insert(input.clone(), layer);
                }
                input.clone_from(&bare[input]);
            }
            calls.push(json!({"layer": name, "inputs": inputs}));
        }
        Ok(calls)
    }

    /// Adds a layer that gives a value of this shape as it is, but without its mask.
    fn without_mask(&mut self, value: &str, shape: &Value) -> Translated<String> {
        let dims = shape.as_array().map_or(&[][..], Vec::as_slice);
        let rest = dims.iter().skip(2).map(Value::as_i64);
        let Some(rest) = rest
            .collect::<Option<Vec<i64>>>()
            .filter(|_| dims.len() > 1)
        else {
            return Err(format!(
                "it takes `{}`, which has a mask and dims {}, expected steps of known dims",
                cut(value),
                brief(shape)
            ));
        };
        let target: Vec<i64> = [-1].into_iter().chain(rest).collect();
        let mut name = format!("{}_without_mask", value.replace([':', '.'], "_"));
        while self.inputs.contains_key(&name) || self.layers.iter().any(|layer| layer.name == name)
        {
            name.push('_');
        }
        self.layers.push(ReadLayer {
            architecture: json!({"reshape": {"target_shape": target, "name": name}}),
            name: name.clone(),
            calls: Vec::new(),
            is_functional: false,
            is_operation: false,
        });
        Ok(name)
    }
}

impl ReadLayer {
    fn is_multi_head(&self) -> bool {
        self.architecture[MULTI_HEAD].is_object()
    }

    /// Notes whether attention looks at padding in this call, as it must in all.
    fn look_at_padding(&mut self, looks: bool, call: usize) -> Translated<()> {
        let before = self.architecture[MULTI_HEAD][PADDING] == false;
        if call > 0 && looks != before {
            return Err(format!(
                "layer `{}`: of its calls Keras takes the masks of padding to some, since a layer before took them off their values, \
                 and here all calls look at padding or none does",
                cut(&self.name)
            ));
        }
        if looks {
            self.architecture[MULTI_HEAD][PADDING] = false.into();
        }
        Ok(())
    }

    /// How many of the first values of a call are taken without their masks: all by an operation, and steps by a recurrent layer that is
    /// given first states, where it gives no steps. Of those that it gives, Keras keeps the mask.
    fn unmasked(&self, call: &KerasCall) -> usize {
        let of_both = &self.architecture["bidirectional"]["layer"];
        let layer = if of_both.is_object() {
            of_both
        } else {
            &self.architecture
        };
        let is_last = |kind: &&str| {
            let settings = &layer[*kind];
            settings.is_object() && settings["return_sequences"] != true
        };
        match self.is_operation {
            true => call.inputs.len(),
            false if call.inputs.len() < 2 || !call.masks.is_empty() => 0,
            false => usize::from(RECURRENT.iter().any(is_last)),
        }
    }

    /// The name of what a call makes.
    fn value(&self, call: usize) -> String {
        match call {
            0 => self.name.clone(),
            call => format!("{}:{call}", self.name),
        }
    }
}

/// The call that makes a value, of whatever outputs: `tower:1` of `tower:1.2`, `tower` of `tower:0.2`.
pub(super) fn node(value: &str) -> &str {
    let call = value.split('.').next().unwrap_or_default();
    call.strip_suffix(":0").unwrap_or(call)
}

fn too_many(what: &str) -> String {
    format!("more than {MAX_CALLS} {what} in one model; that is taken for a mistake")
}

/// Has a layer run in training as its calls say.
fn note_training(architecture: &mut Value, calls: &[KerasCall]) -> Translated<()> {
    let noted = calls.first().and_then(|call| call.training);
    if calls.iter().any(|call| call.training != noted) {
        return Err(
            "its calls differ in `training`, which is a setting of the layer here".to_owned(),
        );
    }
    match noted {
        None => Ok(()),
        Some(true) => Err("it is called with `training` true, also where the model predicts, which has no like here".into()),
        Some(false) => {
            let settings = architecture.as_object_mut().into_iter().flatten();
            settings.for_each(|(_, settings)| settings["training"] = false.into());
            Ok(())
        }
    }
}
