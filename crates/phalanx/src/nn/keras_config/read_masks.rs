//! Masks of padding in models as Keras describes them: those that it noted, beside those that come along with the values here.
//!
//! Keras writes down how a mask that it gave to a layer was found, as operations. Here masks go along with values, so that these operations are left
//! out where they say the same, and are refused where they say anything else.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::read_calls::KerasCall;
use super::read_layer::{KerasLayer, cut};
use super::read_network::node;
use super::{MULTI_HEAD, Translated};
use crate::nn::layer::Body;
use crate::nn::layer_from_config;

/// Operations on masks that follow one another in longer chains are read as unknown.
const LONGEST_CHAIN: usize = 256;

/// The first inputs of attention, which may have masks.
const QUERY_VALUE_KEY: usize = 3;

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
    /// With one more dim.
    Deeper(usize),
    Joined(i64, Vec<usize>),
}

/// Masks by number: those that are made alike have the same.
#[derive(Default)]
pub(super) struct MaskTable {
    numbers: HashMap<MaskMaker, usize>,
    /// Of operations.
    noted: HashMap<String, usize>,
    /// The masks that values have here; for values of several outputs, by their calls.
    carried: HashMap<String, usize>,
    /// Those that they have in Keras when the model runs, where an attention takes them off.
    at_run: HashMap<String, usize>,
    /// Calls of models.
    models: HashSet<String>,
}

impl MaskTable {
    /// The number of the mask that a value has here.
    pub(super) fn of(&self, value: &str) -> Option<usize> {
        self.carried.get(self.masked(value)?).copied()
    }

    /// The call under which the mask of a value is noted; none of the states of a recurrent layer, which have no mask.
    fn masked<'v>(&self, value: &'v str) -> Option<&'v str> {
        let call = node(value);
        (!value.contains('.') || self.models.contains(call)).then_some(call)
    }

    /// The mask of each value, if it has one: here, and in Keras when the model runs.
    fn masks_of(&self, values: &[String]) -> [Vec<Option<usize>>; 2] {
        [&self.carried, &self.at_run].map(|all| {
            let masks = values
                .iter()
                .map(|value| all.get(self.masked(value)?).copied());
            masks.collect()
        })
    }

    /// Whether an attention's values have masks here that others before took off them in Keras.
    pub(super) fn are_taken(&self, name: &str, call: &KerasCall) -> Translated<bool> {
        let values = &call.inputs[..call.inputs.len().min(QUERY_VALUE_KEY)];
        let [here, at_run] = self.masks_of(values);
        if here == at_run || !call.masks.is_empty() {
            return Ok(false);
        }
        match at_run.iter().all(Option::is_none) {
            true => Ok(true),
            false => Err(format!(
                "layer `{}`: of its query, value and key Keras takes some without their masks of padding, which a layer before took off them; \
                 here it takes all of the masks or none",
                cut(name)
            )),
        }
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
            let own = value.and_then(|value| self.of(value));
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
        let Some((kind, settings)) = architecture
            .as_object()
            .and_then(|layer| layer.iter().next())
        else {
            return Ok(());
        };
        let [masks, _] = self.masks_of(inputs);
        let is_masked = masks.iter().any(Option::is_some);
        let differ = masks.iter().any(|mask| *mask != masks[0]);
        let is_other = match kind.as_str() {
            "add" | "subtract" | "average" => is_masked && differ,
            "multiply" | "maximum" | "minimum" => is_masked,
            // One step after the other, each with its own mask.
            "concatenate" if [Some(1), Some(-2)].contains(&settings["axis"].as_i64()) => {
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

    /// Notes the mask that the result of a call has here, and in Keras when the model runs.
    pub(super) fn carry(&mut self, value: &str, architecture: &Value, inputs: &[String]) {
        let layer = architecture
            .as_object()
            .and_then(|layer| layer.iter().next());
        let Some((kind, settings)) = layer else {
            return;
        };
        if kind == "model" {
            self.models.insert(value.to_owned());
        }
        let [here, at_run] = self.masks_of(inputs);
        if let Some(mask) = self.made(value, (kind, settings), inputs, here) {
            self.carried.insert(value.to_owned(), mask);
        }
        if let Some(mask) = self.made(value, (kind, settings), inputs, at_run) {
            self.at_run.insert(value.to_owned(), mask);
        }
        if kind == MULTI_HEAD {
            for taken in inputs.iter().take(QUERY_VALUE_KEY) {
                if let Some(call) = self.masked(taken) {
                    self.at_run.remove(call);
                }
            }
        }
    }

    /// The mask of what a layer makes of values with these masks, by Keras' rules, which are ours.
    fn made(
        &mut self,
        value: &str,
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
            "embedding" if settings["mask_zero"] == true => {
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
            "lstm" | "gru" | "simple_rnn" => first.filter(|_| has_steps(settings)),
            "bidirectional" => {
                let inner = settings["layer"].as_object()?.values().next()?;
                first.filter(|_| has_steps(inner))
            }
            // Which masks its values have is up to the layers in it.
            "model" => (makes_masks(settings) || given.iter().any(Option::is_some))
                .then(|| self.number(MaskMaker::Unknown(value.to_owned()))),
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
        self.number(MaskMaker::Any(joined))
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

/// Whether there is a layer in an architecture that finds padding.
fn makes_masks(architecture: &Value) -> bool {
    match architecture {
        Value::Object(fields) => {
            fields.contains_key("masking")
                || fields.get("mask_zero") == Some(&Value::Bool(true))
                || fields.values().any(makes_masks)
        }
        Value::Array(values) => values.iter().any(makes_masks),
        _ => false,
    }
}
