//! Calls of layers in functional models as Keras describes them, and the values that they take.

use serde_json::Value;

use super::read_layer::{brief, cut, plain};
use super::{CAUSAL, CLASSES_WITH_HEADS, Translated};

/// A value of a network: the layer that makes it, by which call, as which of its outputs.
pub(super) struct KerasValue<'a> {
    pub(super) layer: &'a str,
    pub(super) call: usize,
    output: usize,
    /// Its dims with the batch, null where they are open, as far as they are noted.
    pub(super) shape: &'a Value,
}

impl KerasValue<'_> {
    fn of(history: &Value) -> Option<KerasValue<'_>> {
        let number = |value: &Value| {
            value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
        };
        match &history.as_array()?[..] {
            [layer, call, output, ..] => Some(KerasValue {
                layer: layer.as_str()?,
                call: number(call)?,
                output: number(output)?,
                shape: &Value::Null,
            }),
            _ => None,
        }
    }

    /// As the JSON of architectures names it.
    pub(super) fn written(&self) -> String {
        let name = plain(self.layer);
        match (self.call, self.output) {
            (0, 0) => name,
            (call, 0) => format!("{name}:{call}"),
            (call, output) => format!("{name}:{call}.{output}"),
        }
    }
}

/// All sources in a value of any form, in the order in which Keras flattens it.
pub(super) fn sources<'a>(value: &'a Value, found: &mut Vec<KerasValue<'a>>) -> Translated<()> {
    match value {
        Value::Object(fields)
            if fields
                .get("class_name")
                .is_some_and(|class| class == "__keras_tensor__") =>
        {
            let source = KerasValue::of(&value["config"]["keras_history"]);
            let source = source.ok_or_else(|| {
                format!("expected a value with its history, got {}", brief(value))
            })?;
            let shape = &value["config"]["shape"];
            found.push(KerasValue { shape, ..source });
        }
        Value::Object(fields) if fields.contains_key("items") => sources(&fields["items"], found)?,
        Value::Object(fields) => fields
            .values()
            .try_for_each(|value| sources(value, found))?,
        Value::Array(items) if KerasValue::of(value).is_some() && items.len() <= 4 => {
            found.extend(KerasValue::of(value));
        }
        Value::Array(items) => items.iter().try_for_each(|value| sources(value, found))?,
        Value::Null => {}
        other => {
            return Err(format!(
                "it is called with {}, which is no value of the model",
                brief(other)
            ));
        }
    }
    Ok(())
}

/// The embedding that is also called the other way round.
pub(super) const REVERSIBLE: &str = "ReversibleEmbedding";

/// What a call of a layer takes.
pub(super) struct KerasCall {
    pub(super) inputs: Vec<String>,
    /// Of what it is called with, in Keras' order.
    pub(super) shapes: Vec<Value>,
    pub(super) is_causal: bool,
    /// Whether Keras runs it as in training, whatever the model does; Keras 3 before 3.16 takes what is noted for nothing.
    pub(super) training: Option<bool>,
    /// What it takes for the steps of padding, each beside the position of its value; what is left out is the value's own.
    pub(super) masks: Vec<(usize, String)>,
    /// Whether it is a call of an embedding the other way round.
    pub(super) is_reversed: bool,
}

impl KerasCall {
    /// A call with values alone.
    pub(super) const fn plain(inputs: Vec<String>, shapes: Vec<Value>) -> Self {
        Self {
            inputs,
            shapes,
            is_causal: false,
            training: None,
            masks: Vec::new(),
            is_reversed: false,
        }
    }

    /// Keras 2 obeys `training` in a call, and so does Keras 3 where it `obeys`.
    pub(super) fn of(class: &str, node: &Value, obeys: bool) -> Translated<Self> {
        let mut found = Vec::new();
        // Archives of Keras 2 have the values as a list, the arguments in the first of them.
        let (values, named) = match node {
            Value::Array(values) => (node, values.first().map_or(&Value::Null, |value| &value[3])),
            _ => (&node["args"], &node["kwargs"]),
        };
        sources(values, &mut found)?;
        let has_heads = CLASSES_WITH_HEADS.contains(&class);
        let (mut mask, mut padding) = (Vec::new(), Vec::new());
        let (mut is_causal, mut training) = (false, None);
        for (name, value) in named.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                ("training", Value::Bool(noted)) if obeys || node.is_array() => {
                    training = Some(*noted);
                }
                ("training", _) | (_, Value::Null) => {}
                ("reverse", Value::Bool(_)) if class == REVERSIBLE => {}
                (CAUSAL, Value::Bool(causal)) => is_causal = *causal,
                ("return_attention_scores", Value::Bool(false)) => {}
                ("attention_mask", mask_value) if has_heads => {
                    sources(mask_value, &mut mask)?;
                }
                ("query" | "value" | "key", _) if has_heads => {}
                ("mask" | "query_mask" | "value_mask" | "key_mask", mask) => {
                    let before = ["value_mask", "key_mask"].iter().position(|of| of == name);
                    let mut at = before.map_or(0, |before| before + 1);
                    masks(mask, &mut at, &mut padding)?;
                }
                ("initial_state", states) => sources(states, &mut found)?,
                (name, value) => {
                    return Err(format!(
                        "it is called with `{}`, {}, which has no like here",
                        cut(name),
                        brief(value)
                    ));
                }
            }
        }
        if has_heads {
            for name in ["query", "value", "key"] {
                sources(&named[name], &mut found)?;
            }
        }
        let is_reversed = class == REVERSIBLE && is_reversed(&node["args"][0], &named["reverse"])?;
        let inputs = match has_heads {
            true => attention(&found, &mask)?,
            false => found.iter().map(KerasValue::written).collect(),
        };
        Ok(Self {
            inputs,
            shapes: found.iter().map(|value| value.shape.clone()).collect(),
            is_causal,
            training,
            masks: padding,
            is_reversed,
        })
    }
}

/// Whether an embedding is called the other way round, which here the type of its value says.
fn is_reversed(value: &Value, reverse: &Value) -> Translated<bool> {
    let dtype = value["config"]["dtype"].as_str().unwrap_or_default();
    let (is_float, is_reversed) = (dtype.contains("float"), *reverse == true);
    match is_float == is_reversed {
        true => Ok(is_reversed),
        false => Err(format!(
            "it is called with `reverse` {is_reversed} and {}; here whole numbers are looked up and floats go the way back: declare indices as int32",
            cut(dtype)
        )),
    }
}

/// The masks of one value or of several in any form, from the position `at` on.
fn masks(value: &Value, at: &mut usize, found: &mut Vec<(usize, String)>) -> Translated<()> {
    match value {
        Value::Array(items) if KerasValue::of(value).is_none() => {
            return items.iter().try_for_each(|item| masks(item, at, found));
        }
        Value::Object(fields) if !fields.contains_key("class_name") => {
            return fields.values().try_for_each(|item| masks(item, at, found));
        }
        _ => {}
    }
    let mut mask = Vec::new();
    sources(value, &mut mask)?;
    found.extend(mask.iter().map(|mask| (*at, mask.written())));
    *at += 1;
    Ok(())
}

/// Query, value, key and mask. What is left out is the value for the key; of one alone all three.
fn attention(found: &[KerasValue<'_>], mask: &[KerasValue<'_>]) -> Translated<Vec<String>> {
    let mut inputs: Vec<String> = found.iter().map(KerasValue::written).collect();
    if !(2..=3).contains(&inputs.len()) || mask.len() > 1 {
        let count = inputs.len();
        return Err(format!(
            "it is called with {count} values, expected query, value and key"
        ));
    }
    if let [mask] = mask {
        inputs.resize_with(3, || found[1].written());
        inputs.push(mask.written());
    } else if inputs.iter().all(|input| *input == inputs[0]) {
        inputs.truncate(1);
    }
    Ok(inputs)
}
