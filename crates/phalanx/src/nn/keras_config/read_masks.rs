//! Masks of padding in models as Keras describes them: those that it noted, beside those that come along with the values here.
//!
//! Keras writes down how a mask that it gave to a layer was found, as operations. Here masks go along with values, so that these operations are left
//! out where they say the same, and are refused where they say anything else.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::read_calls::KerasCall;
use super::read_layer::{KerasLayer, cut};
use super::{MULTI_HEAD, Translated, WITH_HEADS};
use crate::nn::layer::Body;
use crate::nn::layer_from_config;
use crate::nn::masks::WITHOUT_MASK;
use crate::nn::recurrent::RECURRENT;

/// Operations on masks that follow one another in longer chains are read as unknown.
const LONGEST_CHAIN: usize = 256;

/// The first inputs of attention, which may have masks.
const QUERY_VALUE_KEY: usize = 3;

/// Layers beside recurrent ones that compute otherwise where their values have masks.
const DEPEND_ON_MASKS: [&str; 12] = [
    "additive_attention",
    "attention",
    "batch_norm",
    "bidirectional",
    "global_average_pool1d",
    "maximum",
    "minimum",
    "model",
    WITH_HEADS[0],
    WITH_HEADS[1],
    "multiply",
    "time_distributed",
];

/// Layers that give back the very value that they are given when Keras predicts: what takes its mask off takes it off both.
const GIVE_BACK: [&str; 7] = [
    "alpha_dropout",
    "dropout",
    "gaussian_dropout",
    "gaussian_noise",
    "spatial_dropout1d",
    "spatial_dropout2d",
    "stochastic_depth",
];

/// Layers whose results have no mask in Keras, which does not say that they support masks.
const LOSE_MASKS: [&str; 3] = ["layer_scale", "rms_norm", "scaled_add"];

/// An operation on masks, as Keras notes it.
pub(super) struct MaskOperation {
    class: String,
    /// The number that is compared with, or the dim along which it works.
    with: Value,
    pub(super) inputs: Vec<String>,
}

impl MaskOperation {
    pub(super) fn of(layer: &KerasLayer<'_>, node: &Value, inputs: Vec<String>) -> Self {
        let with = match layer.class {
            "NotEqual" => node["args"][1].clone(),
            _ if layer.setting("keepdims") == true => Value::Null,
            _ => layer.setting("axis").clone(),
        };
        Self {
            class: layer.class.to_owned(),
            with,
            inputs,
        }
    }
}

/// What makes a mask, or what a mask is made of. Numbers are of other makers.
#[derive(PartialEq, Eq, Hash)]
enum MaskMaker {
    /// A value or an operation that is not read as a mask.
    Unknown(String),
    /// Where a value differs from a number, by its bits.
    Differs(String, u64),
    Any(usize),
    Either(usize, usize),
    /// Of any dims: what is joined with it by `or` is stretched at most.
    Zeros,
    Ones(String),
    /// From the last step to the first.
    Turned(usize),
    /// With one more dim.
    Deeper(usize),
    Joined(i64, Vec<usize>),
}

/// The masks of a model that was read, of the values that it is called with.
#[derive(Clone, Default)]
pub(super) struct ModelMasks {
    /// Of each input whether its value has a mask in Keras after the call.
    inputs: Vec<bool>,
    /// Of each output whether it has one: here, and in Keras when the model runs.
    outputs: Vec<[bool; 2]>,
    /// Of each output which input it is.
    given_back: Vec<Option<usize>>,
}

impl ModelMasks {
    /// Of each output whether it has a mask here, and none in Keras.
    pub(super) fn only_here(&self) -> impl Iterator<Item = bool> {
        self.outputs.iter().map(|masks| *masks == [true, false])
    }
}

/// Masks by number: those that are made alike have the same. Values go by their names: outputs of models and layers each have their own.
#[derive(Default)]
pub(super) struct MaskTable {
    numbers: HashMap<MaskMaker, usize>,
    /// Of operations.
    noted: HashMap<String, usize>,
    /// The masks that values have here.
    carried: HashMap<String, usize>,
    /// Those that they have in Keras when the model runs, where attentions and layers without support of masks take them off.
    at_run: HashMap<String, usize>,
    /// The values that others are in Keras, by those: a layer gave them back, and `at_run` has them once.
    given_back: HashMap<String, String>,
    /// Masks in which all steps count.
    full: HashSet<usize>,
    /// Whether Keras 2 wrote the model, whose attentions take no masks off.
    is_of_keras2: bool,
}

/// The masks with which a call is made.
pub(super) struct CallMasks {
    here: Vec<Option<usize>>,
    in_keras: Vec<Option<usize>>,
}

impl MaskTable {
    /// The masks of a model whose inputs have one each where it is `given`.
    pub(super) fn of_inputs(inputs: &[String], given: &[bool], is_of_keras2: bool) -> Self {
        let mut table = Self {
            is_of_keras2,
            ..Self::default()
        };
        for (input, _) in inputs.iter().zip(given).filter(|(_, given)| **given) {
            let mask = Some(table.number(MaskMaker::Unknown(input.clone())));
            table.note(input.clone(), [mask; 2]);
        }
        table
    }

    /// What is known of the inputs and outputs of the model once all calls in it are; the outputs may have other masks in Keras where nothing looks
    /// at them.
    pub(super) fn of_model(
        &self,
        inputs: &[String],
        outputs: &[String],
        may_differ: bool,
    ) -> Translated<ModelMasks> {
        let of_output = |output: &String| {
            let masks = [
                self.carried.get(output),
                self.at_run.get(self.source(output)),
            ];
            match masks {
                [Some(here), Some(at_run)] if here != at_run && !may_differ => {
                    Err(other_mask(output))
                }
                masks => Ok(masks.map(|mask| mask.is_some())),
            }
        };
        let of_input = |input: &String| self.at_run.contains_key(self.source(input));
        let position = |output: &String| {
            let source = self.source(output);
            inputs.iter().position(|input| input == source)
        };
        Ok(ModelMasks {
            inputs: inputs.iter().map(of_input).collect(),
            outputs: outputs.iter().map(of_output).collect::<Translated<_>>()?,
            given_back: outputs.iter().map(position).collect(),
        })
    }

    /// The masks of values: here, and in Keras when the model runs.
    fn masks_of(&self, values: &[String]) -> [Vec<Option<usize>>; 2] {
        let values = values.iter();
        let here = values.clone().map(|value| self.carried.get(value).copied());
        let at_run = values.map(|value| self.at_run.get(self.source(value)).copied());
        [here.collect(), at_run.collect()]
    }

    /// The value that this one is in Keras, where layers give back what they are given.
    fn source<'v>(&'v self, value: &'v str) -> &'v str {
        self.given_back.get(value).map_or(value, String::as_str)
    }

    /// Notes that a value is another one in Keras.
    fn give_back(&mut self, value: String, given: &str) {
        let here = self.carried.get(given).copied();
        self.carried.extend(here.map(|mask| (value.clone(), mask)));
        let source = self.source(given).to_owned();
        self.given_back.insert(value, source);
    }

    fn take_off(&mut self, value: &str) {
        let source = self.source(value).to_owned();
        self.at_run.remove(&source);
    }

    /// The masks of a call: in Keras the noted ones, and elsewhere what the values have then, but for its first `unmasked` values, which
    /// are taken without.
    pub(super) fn of_call(&self, call: &KerasCall, unmasked: usize) -> CallMasks {
        let [here, mut in_keras] = self.masks_of(&call.inputs);
        for (at, _) in &call.masks {
            let at = (*at).min(here.len().saturating_sub(1));
            if let Some(mask) = in_keras.get_mut(at) {
                *mask = here[at];
            }
        }
        in_keras
            .iter_mut()
            .take(unmasked)
            .for_each(|mask| *mask = None);
        CallMasks { here, in_keras }
    }

    /// Refuses a call with masks other than those that its inputs have here.
    pub(super) fn check(
        &mut self,
        name: &str,
        call: &KerasCall,
        operations: &HashMap<String, MaskOperation>,
    ) -> Translated<()> {
        for (at, mask) in &call.masks {
            let value = call.inputs.get(*at).or(call.inputs.last());
            let own = value.and_then(|value| self.carried.get(value).copied());
            if own != Some(self.noted(operations, mask, 0)) {
                return Err(format!(
                    "layer `{}`: it is called with a mask of its own; here masks are found by `masking` and by `embedding` with `mask_zero`, and go along with the values",
                    cut(name)
                ));
            }
        }
        Ok(())
    }

    /// Refuses what merges values of which Keras 2 finds other masks: a step counts there where it does in all values that have a mask,
    /// and here, as in Keras 3, where it does in one of them, if all have one. Factors of padding are factors there, and not here.
    pub(super) fn check_merged(
        &self,
        name: &str,
        architecture: &Value,
        inputs: &[String],
    ) -> Translated<()> {
        let Some((kind, settings)) = kind_of(architecture) else {
            return Ok(());
        };
        let [masks, _] = self.masks_of(inputs);
        let is_masked = masks.iter().any(Option::is_some);
        let differ = masks.iter().any(|mask| *mask != masks[0]);
        let is_other = match kind {
            "add" | "subtract" | "average" => is_masked && differ,
            "multiply" | "maximum" | "minimum" => is_masked,
            // One step after the other, each with its own mask.
            "concatenate" if settings["axis"].as_i64().is_some_and(is_of_steps) => {
                is_masked && masks.iter().any(Option::is_none)
            }
            "concatenate" => is_masked && differ,
            _ => false,
        };
        match is_other {
            false => Ok(()),
            true => Err(format!(
                "layer `{}`: it merges values with masks of padding, of which Keras 2 makes another mask or other values than Keras 3 and this program",
                cut(name)
            )),
        }
    }

    /// Notes the mask that the result of a call has here, and in Keras when the model runs, which an attention takes off the values.
    pub(super) fn carry(
        &mut self,
        value: &str,
        architecture: &Value,
        inputs: &[String],
        masks: CallMasks,
    ) {
        let Some((kind, settings)) = kind_of(architecture) else {
            return;
        };
        let layer = (kind, settings);
        if let (true, [given]) = (gives_back(layer), inputs) {
            return self.give_back(value.to_owned(), given);
        }
        let mut here = self.made(layer, inputs, masks.here);
        // Keras turns the steps, and not their mask.
        if RECURRENT.contains(&kind) && settings["go_backwards"] == true {
            here = here.map(|mask| self.turned(mask));
        }
        let at_run = self.made(layer, inputs, masks.in_keras);
        let at_run = at_run.filter(|_| !LOSE_MASKS.contains(&kind));
        // To count everywhere is to have no mask.
        let at_run = at_run.filter(|mask| here == at_run || !self.full.contains(mask));
        self.note(value.to_owned(), [here, at_run]);
        if kind == MULTI_HEAD && !self.is_of_keras2 {
            for taken in inputs.iter().take(QUERY_VALUE_KEY) {
                self.take_off(taken);
            }
        }
    }

    /// Notes that what an embedding makes on the way back has the mask of its value here, and none in Keras.
    pub(super) fn carry_reversed(&mut self, value: &str, masks: &CallMasks) {
        self.note(
            value.to_owned(),
            [masks.here.first().copied().flatten(), None],
        );
    }

    /// Notes the masks that a call of a model leaves: of what it makes, and of what it is given, of which Keras takes them off there, too.
    pub(super) fn carry_model(&mut self, value: &str, inputs: &[String], masks: &ModelMasks) {
        for (at, output) in masks.outputs.iter().enumerate() {
            let output_name = match (at, value.contains(':')) {
                (0, _) => value.to_owned(),
                (at, true) => format!("{value}.{at}"),
                (at, false) => format!("{value}:0.{at}"),
            };
            let given = masks.given_back.get(at).copied().flatten();
            if let Some(given) = given.and_then(|given| inputs.get(given)) {
                self.give_back(output_name, given);
                continue;
            }
            let mask = self.number(MaskMaker::Unknown(output_name.clone()));
            self.note(output_name, output.map(|has_one| has_one.then_some(mask)));
        }
        for (input, has_one) in inputs.iter().zip(&masks.inputs) {
            match self.carried.get(input).copied().filter(|_| *has_one) {
                Some(mask) => drop(self.at_run.insert(self.source(input).to_owned(), mask)),
                None => self.take_off(input),
            }
        }
    }

    fn note(&mut self, value: String, [here, at_run]: [Option<usize>; 2]) {
        self.carried.extend(here.map(|mask| (value.clone(), mask)));
        self.at_run.extend(at_run.map(|mask| (value, mask)));
    }

    /// The mask of what a layer makes of values with these masks, by Keras' rules, which are ours.
    fn made(
        &mut self,
        (kind, settings): (&str, &Value),
        inputs: &[String],
        given: Vec<Option<usize>>,
    ) -> Option<usize> {
        let first = given.first().copied().flatten();
        match kind {
            "masking" => {
                let number = settings["mask_value"].as_f64().unwrap_or_default();
                let differs = self.differs(inputs.first()?, number);
                Some(self.number(MaskMaker::Any(differs)))
            }
            "embedding" | "reversible_embedding" if settings["mask_zero"] == true => {
                Some(self.differs(inputs.first()?, 0.0))
            }
            "add" | "subtract" | "multiply" | "average" | "maximum" | "minimum" | "scaled_add" => {
                let all: Option<Vec<usize>> = given.into_iter().collect();
                all?.into_iter()
                    .reduce(|mask, next| self.either(mask, next))
            }
            "concatenate" => {
                let axis = settings["axis"].as_i64().unwrap_or(-1);
                given
                    .iter()
                    .any(Option::is_some)
                    .then(|| self.joined(axis, inputs, &given))
            }
            kind if RECURRENT.contains(&kind) => first.filter(|_| has_steps(settings)),
            "bidirectional" => {
                let inner = settings["layer"].as_object()?.values().next()?;
                first.filter(|_| has_steps(inner))
            }
            _ => first.filter(|_| keeps_mask(kind, settings)),
        }
    }

    fn number(&mut self, maker: MaskMaker) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(maker).or_insert(next)
    }

    fn differs(&mut self, value: &str, number: f64) -> usize {
        // Of the two zeros the one.
        let bits = (number + 0.0).to_bits();
        self.number(MaskMaker::Differs(value.to_owned(), bits))
    }

    fn turned(&mut self, mask: usize) -> usize {
        match self.full.contains(&mask) {
            true => mask,
            false => self.number(MaskMaker::Turned(mask)),
        }
    }

    fn either(&mut self, a: usize, b: usize) -> usize {
        let zeros = self.number(MaskMaker::Zeros);
        match (a, b) {
            (a, b) if a == b || b == zeros => a,
            (a, b) if a == zeros => b,
            (a, b) => self.number(MaskMaker::Either(a.min(b), a.max(b))),
        }
    }

    /// The mask of values that are joined, of which those without one count everywhere.
    fn joined(&mut self, axis: i64, values: &[String], masks: &[Option<usize>]) -> usize {
        let part = |(value, mask): (&String, &Option<usize>)| match mask {
            Some(mask) => self.number(MaskMaker::Deeper(*mask)),
            None => self.number(MaskMaker::Ones(value.clone())),
        };
        let parts = values.iter().zip(masks).map(part).collect();
        let joined = self.number(MaskMaker::Joined(axis, parts));
        let mask = self.number(MaskMaker::Any(joined));
        if !is_of_steps(axis) && masks.contains(&None) {
            self.full.insert(mask);
        }
        mask
    }

    /// The number of what an operation makes.
    fn noted(
        &mut self,
        operations: &HashMap<String, MaskOperation>,
        name: &str,
        depth: usize,
    ) -> usize {
        if let Some(noted) = self.noted.get(name) {
            return *noted;
        }
        let operation = operations.get(name).filter(|_| depth < LONGEST_CHAIN);
        let Some(MaskOperation {
            class,
            with,
            inputs,
        }) = operation
        else {
            return self.number(MaskMaker::Unknown(name.to_owned()));
        };
        let mask = |table: &mut Self, input: &String| table.noted(operations, input, depth + 1);
        let number = match (class.as_str(), &inputs[..], with.as_f64()) {
            ("NotEqual", [value], Some(number)) => self.differs(value, number),
            ("Any", [of], Some(-1.0)) => {
                let of = mask(self, of);
                self.number(MaskMaker::Any(of))
            }
            ("LogicalOr", [a, b], _) => {
                let (a, b) = (mask(self, a), mask(self, b));
                self.either(a, b)
            }
            ("ExpandDims", [of], Some(-1.0)) => {
                let of = mask(self, of);
                self.number(MaskMaker::Deeper(of))
            }
            ("ConvertToTensor", [of], _) => mask(self, of),
            ("ZerosLike", [_], _) => self.number(MaskMaker::Zeros),
            ("OnesLike", [value], _) => self.number(MaskMaker::Ones(value.clone())),
            ("Concatenate", parts, Some(axis)) => {
                let parts = parts.iter().map(|part| mask(self, part)).collect();
                self.number(MaskMaker::Joined(axis as i64, parts))
            }
            _ => self.number(MaskMaker::Unknown(name.to_owned())),
        };
        self.noted.insert(name.to_owned(), number);
        number
    }
}

impl CallMasks {
    /// Of each value whether the call must take it without the mask that it has here, since Keras makes the call without.
    pub(super) fn bare(&self, name: &str) -> Translated<Vec<bool>> {
        let pairs = self.here.iter().zip(&self.in_keras);
        let is_bare = |(here, in_keras): (&Option<usize>, &Option<usize>)| match in_keras {
            _ if here == in_keras => Ok(false),
            None => Ok(true),
            Some(_) => Err(other_mask(name)),
        };
        pairs.map(is_bare).collect()
    }

    /// Whether an attention's values have masks here, and none in Keras.
    pub(super) fn are_taken(&self) -> bool {
        let [here, in_keras] =
            [&self.here, &self.in_keras].map(|masks| &masks[..masks.len().min(QUERY_VALUE_KEY)]);
        here.iter().any(Option::is_some) && in_keras.iter().all(Option::is_none)
    }

    /// Whether a value of an attention has a mask, here or in Keras.
    pub(super) fn are_there(&self) -> bool {
        let all = [&self.here, &self.in_keras].into_iter();
        let mut of_values = all.flat_map(|masks| masks.iter().take(QUERY_VALUE_KEY));
        of_values.any(Option::is_some)
    }

    /// Of each value whether Keras makes the call with a mask.
    pub(super) fn given(&self) -> Vec<bool> {
        self.in_keras.iter().map(Option::is_some).collect()
    }

    /// Without those that values are taken without.
    pub(super) fn without(mut self, bare: &[bool]) -> Self {
        let taken = self.here.iter_mut().zip(bare);
        taken
            .filter(|(_, bare)| **bare)
            .for_each(|(mask, _)| *mask = None);
        self
    }
}

/// Whether a layer computes otherwise where its values have masks.
pub(super) fn depends_on_masks(architecture: &Value) -> bool {
    kind_of(architecture)
        .is_some_and(|(kind, _)| DEPEND_ON_MASKS.contains(&kind) || RECURRENT.contains(&kind))
}

/// A layer that gives a value as it is, but without its mask; `shape` has the value's dims with the batch, where they are noted.
pub(super) fn without_mask(value: &str, shape: &Value) -> (String, Value) {
    let name = format!("{}{WITHOUT_MASK}", value.replace([':', '.'], "_"));
    let dims = shape.as_array().map_or(&[][..], Vec::as_slice);
    let rest = dims.iter().skip(2).map(Value::as_i64);
    let rest: Option<Vec<i64>> = rest.collect::<Option<_>>().filter(|_| dims.len() > 1);
    let layer = match rest {
        Some(rest) => {
            let target: Vec<i64> = [-1].into_iter().chain(rest).collect();
            json!({"reshape": {"target_shape": target}})
        }
        // Steps, none of which is cut off.
        None => json!({"cropping1d": {"cropping": 0}}),
    };
    (name, layer)
}

/// The kind of a layer and its settings.
pub(super) fn kind_of(architecture: &Value) -> Option<(&str, &Value)> {
    let (kind, settings) = architecture.as_object()?.iter().next()?;
    Some((kind, settings))
}

fn other_mask(name: &str) -> String {
    format!(
        "layer `{}`: a value has another mask of padding in Keras, where a layer before took one off a part of it, or turned its steps (`go_backwards`) and not the mask; make the layers here and load its weights",
        cut(name)
    )
}

/// Whether values that are joined along this dim follow each other step by step.
const fn is_of_steps(axis: i64) -> bool {
    axis == 1 || axis == -2
}

/// Whether a layer gives back what it is given when Keras predicts.
fn gives_back((kind, settings): (&str, &Value)) -> bool {
    GIVE_BACK.contains(&kind) || kind == "activation" && settings["activation"] == "linear"
}

fn has_steps(settings: &Value) -> bool {
    settings["return_sequences"] == true
}

/// Whether a layer of a kind gives its output the mask of its input.
fn keeps_mask(kind: &str, settings: &Value) -> bool {
    let spec = layer_from_config(kind, settings);
    spec.is_ok_and(|spec| match spec.body {
        Body::Layer { layer, .. } => layer.keeps_mask(),
        Body::Model(_) => false,
    })
}
