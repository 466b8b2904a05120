//! Functional models as Keras describes them, read.
//!
//! What an operation makes has no mask of padding in Keras, and here every layer that stands for one passes masks on. So an operation takes values
//! through a layer that leaves them as they are, without their masks. So does a recurrent layer with first states, which Keras calls without the mask.
//!
//! When a model runs, Keras' `MultiHeadAttention` takes the masks off the values that it is given, so that a later one looks at their padding. It notes
//! other masks all the same, and layers that are given these leave padding out. So such an attention ignores masks here, and they stay; so does a
//! `GroupQueryAttention` behind it, which takes no masks off itself. All else that computes otherwise with a mask, and the loss, takes such values
//! without theirs.
//!
//! A model in a model is read where Keras calls it, with the masks that it is called with.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::of_keras2::in_form_of_3;
use super::operations::KerasOperation;
use super::read::{ConfigReading, ReadModel, entry, input, list, model, of_layer};
use super::read_calls::{KerasCall, KerasValue, sources};
use super::read_layer::{KerasLayer, cut, plain};
use super::read_masks::{MaskOperation, MaskTable, ModelMasks, depends_on_masks, without_mask};
use super::run_order::CallGraph;
use super::{ATTENTION, CAUSAL, NOTE, PADDING, Translated, WITH_HEADS};
use crate::nn::architecture::OF_KERAS;
use crate::nn::context::MAX_CALLS;
use crate::nn::keras_order::KerasVersion;
use crate::nn::recurrent::RECURRENT;

/// A functional model on its way here.
#[derive(Default)]
pub(super) struct Functional<'a> {
    inputs: HashMap<String, Value>,
    /// In Keras' order, and behind them those that only stand here.
    layers: Vec<ReadLayer<'a>>,
    masks: HashMap<String, MaskOperation>,
    /// Whether Keras 2 wrote it, whose attentions take no masks off.
    is_of_keras2: bool,
    /// Values without their masks, by the values.
    bare: HashMap<String, String>,
}

/// A layer with its calls.
#[derive(Default)]
struct ReadLayer<'a> {
    name: String,
    architecture: Value,
    calls: Vec<KerasCall>,
    /// A model, which is read when it is known with which masks it is called.
    model: Option<&'a Value>,
    /// The masks of that model, by which of its inputs have one.
    of_model: HashMap<Vec<bool>, ModelMasks>,
    /// Whether it is a functional model, whose calls Keras counts from 1 among the outputs.
    is_functional: bool,
    is_operation: bool,
    /// Whether it is noted that it looks at padding.
    looks_at_padding: bool,
}

/// A layer and the number of one of its calls.
type CallPlace = (usize, usize);

/// What calls do about the masks of their values.
#[derive(Default)]
struct MasksTaken {
    /// Of each value whether it is taken without its mask.
    bare: HashMap<CallPlace, Vec<bool>>,
    /// Calls of attention that look at padding.
    looking: HashSet<CallPlace>,
}

impl<'a> Functional<'a> {
    /// The architecture of the model, whose inputs have masks where these are `given`.
    pub(super) fn read(
        model: &KerasLayer<'_>,
        reading: ConfigReading<'_>,
        given: &[bool],
    ) -> Translated<ReadModel> {
        let of_2 = in_form_of_3(model.settings);
        let settings = of_2.as_ref().unwrap_or(model.settings);
        let objects = list(settings, "layers")?;
        if objects.len() > MAX_CALLS {
            return Err(too_many("layers"));
        }
        let mut network = Functional {
            is_of_keras2: of_2.is_some(),
            ..Functional::default()
        };
        for object in objects {
            network.add(object, reading)?;
        }
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        sources(model.setting("input_layers"), &mut inputs)?;
        sources(
            settings.get("output_layers").unwrap_or(&Value::Null),
            &mut outputs,
        )?;
        network.finish(&inputs, outputs, reading, given)
    }

    /// The architecture of what was added.
    fn finish(
        mut self,
        inputs: &[KerasValue<'_>],
        outputs: Vec<KerasValue<'_>>,
        reading: ConfigReading<'_>,
        given: &[bool],
    ) -> Translated<ReadModel> {
        let read = inputs.iter().map(|source| self.input(source.layer));
        let read = read.collect::<Translated<Vec<_>>>()?;
        let mut outputs = self.outputs(outputs);
        let order = self.ordered(inputs)?;
        let run_order = self.run_order(&order, &outputs);
        let names: Vec<String> = inputs.iter().map(|input| plain(input.layer)).collect();
        let mut masks = MaskTable::of_inputs(&names, given, self.is_of_keras2);
        let taken = self.take_masks(&run_order, &mut masks, reading)?;
        let masks = masks.of_model(&names, &outputs, reading.ends_masks())?;
        let mut calls = self.calls(order, &taken)?;
        if reading.is_for_loss() {
            // The loss counts steps as in Keras.
            let only_here = outputs.iter_mut().zip(masks.only_here());
            for (output, _) in only_here.filter(|(_, only_here)| *only_here) {
                *output = self.bare(output, &Value::Null, &mut calls);
            }
        }
        let layers = self.layers.into_iter();
        let layers: Vec<Value> = layers.map(|layer| layer.architecture).collect();
        let version = match self.is_of_keras2 {
            true => KerasVersion::Two,
            false => KerasVersion::Three,
        };
        let architecture = json!({OF_KERAS: version.number(), "inputs": read, "layers": layers, "calls": calls, "outputs": outputs});
        Ok((architecture, masks))
    }

    /// The values that the model gives. Keras 3 counts calls of functional models among them from 1.
    fn outputs(&self, mut outputs: Vec<KerasValue<'_>>) -> Vec<String> {
        for output in &mut outputs {
            let name = plain(output.layer);
            let mut layers = self.layers.iter().filter(|_| !self.is_of_keras2);
            let is_functional = layers.any(|layer| layer.name == name && layer.is_functional);
            output.call = output.call.saturating_sub(usize::from(is_functional));
        }
        outputs.iter().map(KerasValue::written).collect()
    }

    fn input(&self, name: &str) -> Translated<Value> {
        let input = self.inputs.get(name).cloned();
        input.ok_or_else(|| {
            let name = cut(name);
            format!("`{name}` is among the inputs, and no input has this name")
        })
    }

    fn add(&mut self, object: &'a Value, reading: ConfigReading<'_>) -> Translated<()> {
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
        let model = layer.is_model().then_some(object);
        let mut architecture = match model {
            Some(_) => json!({"model": {}}),
            None => entry(object)?,
        };
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
            model,
            is_functional: layer.settings.contains_key("output_layers"),
            looks_at_padding: reading.is_to_be_used() && object[NOTE][PADDING] == false,
            ..ReadLayer::default()
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
                is_operation: true,
                ..ReadLayer::default()
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

    /// What each call does about masks, in the order in which Keras makes them.
    fn take_masks(
        &mut self,
        run_order: &[CallPlace],
        masks: &mut MaskTable,
        reading: ConfigReading<'_>,
    ) -> Translated<MasksTaken> {
        let mut taken = MasksTaken::default();
        for &place in run_order {
            self.take_masks_of_call(place, (masks, &mut taken), reading)?;
        }
        let mut unread = self
            .layers
            .iter_mut()
            .filter(|layer| layer.of_model.is_empty());
        unread.try_for_each(|layer| layer.read_model(Vec::new(), reading).map(|_| ()))?;
        Ok(taken)
    }

    fn take_masks_of_call(
        &mut self,
        (at, number): CallPlace,
        (masks, taken): (&mut MaskTable, &mut MasksTaken),
        reading: ConfigReading<'_>,
    ) -> Translated<()> {
        let layer = &mut self.layers[at];
        let (value, call) = (layer.value(number), &layer.calls[number]);
        masks.check(&layer.name, call, &self.masks)?;
        // Keras 2 calls a recurrent layer with first states with the mask of its steps.
        let keeps_mask = self.is_of_keras2 && !layer.is_operation;
        let unmasked = if keeps_mask { 0 } else { layer.unmasked(call) };
        let of_call = masks.of_call(call, unmasked);
        if self.is_of_keras2 && !layer.is_operation {
            masks.check_merged(&layer.name, &layer.architecture, &call.inputs)?;
        }
        if layer.with_heads().is_some() {
            reading.note_attention(&layer.name, of_call.are_there());
        }
        let is_taken = call.masks.is_empty() && of_call.are_taken();
        let looks = layer.with_heads().is_some() && (layer.looks_at_padding || is_taken);
        let depends = layer.is_operation || depends_on_masks(&layer.architecture);
        let bare = match depends && !looks {
            true => of_call.bare(&layer.name)?,
            false => vec![false; call.inputs.len()],
        };
        if layer.model.is_some() {
            let of_model = layer.read_model(of_call.given(), reading)?;
            masks.carry_model(&value, &layer.calls[number].inputs, &of_model);
        } else if call.is_reversed {
            masks.carry_reversed(&value, &of_call);
        } else if !layer.is_operation {
            let of_call = of_call.without(&bare);
            masks.carry(&value, &layer.architecture, &call.inputs, of_call);
        }
        taken.looking.extend(looks.then_some((at, number)));
        taken.bare.insert((at, number), bare);
        Ok(())
    }

    /// The calls, each with masks that come along with its values, or on values without their masks.
    fn calls(&mut self, order: Vec<CallPlace>, taken: &MasksTaken) -> Translated<Vec<Value>> {
        let mut calls = Vec::with_capacity(order.len());
        for place @ (at, number) in order {
            let layer = &mut self.layers[at];
            layer.look_at_padding(taken.looking.contains(&place), number)?;
            let (name, call) = (layer.name.clone(), &layer.calls[number]);
            let (mut inputs, shapes) = (call.inputs.clone(), call.shapes.clone());
            let bare = taken.bare.get(&place).map_or(&[][..], Vec::as_slice);
            let bare = inputs.iter_mut().zip(bare).enumerate();
            for (at, (input, _)) in bare.filter(|(_, (_, bare))| **bare) {
                *input = self.bare(input, shapes.get(at).unwrap_or(&Value::Null), &mut calls);
            }
            calls.push(json!({"layer": name, "inputs": inputs}));
        }
        Ok(calls)
    }

    /// The value of this shape without its mask, as a layer gives it that only stands here.
    fn bare(&mut self, value: &str, shape: &Value, calls: &mut Vec<Value>) -> String {
        if let Some(bare) = self.bare.get(value) {
            return bare.clone();
        }
        let (mut name, mut architecture) = without_mask(value, shape);
        while self.inputs.contains_key(&name) || self.layers.iter().any(|layer| layer.name == name)
        {
            name.push('_');
        }
        name_layer(&mut architecture, &name);
        calls.push(json!({"layer": name, "inputs": [value]}));
        self.bare.insert(value.to_owned(), name.clone());
        self.layers.push(ReadLayer {
            architecture,
            name: name.clone(),
            ..ReadLayer::default()
        });
        name
    }
}

impl ReadLayer<'_> {
    /// The masks of the model that it is, called with masks where these are `given`; nothing where it is none.
    fn read_model(
        &mut self,
        given: Vec<bool>,
        reading: ConfigReading<'_>,
    ) -> Translated<ModelMasks> {
        if let Some(known) = self.of_model.get(&given) {
            return Ok(known.clone());
        }
        let Some(object) = self.model else {
            return Ok(ModelMasks::default());
        };
        let (mut read, masks) = model(object, reading.inside(), &given)?;
        if self.architecture["model"]["training"] == false {
            read["training"] = false.into();
        }
        if self.of_model.is_empty() {
            self.architecture["model"] = read;
        } else if self.architecture["model"] != read {
            return Err(self.called_otherwise());
        }
        self.of_model.insert(given, masks.clone());
        Ok(masks)
    }

    fn called_otherwise(&self) -> String {
        format!(
            "layer `{}`: it is called with masks of padding and without, and does otherwise with them in Keras than its layers do here; \
             make a model for each call",
            cut(&self.name)
        )
    }

    /// Its kind, where it is an attention that may ignore padding.
    fn with_heads(&self) -> Option<&'static str> {
        let mut kinds = WITH_HEADS.into_iter();
        kinds.find(|kind| self.architecture[*kind].is_object())
    }

    /// Notes whether attention looks at padding in this call, as it must in all.
    fn look_at_padding(&mut self, looks: bool, call: usize) -> Translated<()> {
        let Some(kind) = self.with_heads() else {
            return Ok(());
        };
        let before = self.architecture[kind][PADDING] == false;
        if call > 0 && looks != before {
            return Err(format!(
                "layer `{}`: of its calls Keras takes the masks of padding to some, since a layer before took them off their values, \
                 and here all calls look at padding or none does",
                cut(&self.name)
            ));
        }
        if looks {
            self.architecture[kind][PADDING] = false.into();
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

/// Gives a layer a name.
pub(super) fn name_layer(architecture: &mut Value, name: &str) {
    let settings = architecture.as_object_mut().into_iter().flatten();
    settings.for_each(|(_, settings)| settings["name"] = name.into());
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
