//! Models with masks of padding, written so that Keras finds the masks that values have here.
//!
//! When a model runs, Keras' `MultiHeadAttention` takes the masks off the values that it is given. Where something else takes these too, it is given
//! copies in the file, which a leaky rectifier of the slope 1 makes. What was written is read again, which says whether any mask is another one in Keras.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::read::reread;
use super::read_masks::kind_of;
use super::{ATTENTION, MULTI_HEAD, PADDING, Translated};
use crate::nn::masks::WITHOUT_MASK;
use crate::nn::model::Model;
use crate::{Error, Result};

/// How a layer is called after the attention that it makes a copy for.
const COPY: &str = "_unshared";

impl Model {
    /// The model that stands in an archive of Keras, and its architecture there.
    ///
    /// # Errors
    /// When Keras has no such layer, no name for an activation, or other masks of padding in whatever way it is written.
    pub(crate) fn for_keras(&self) -> Result<(Cow<'_, Self>, Value)> {
        let architecture = self.config();
        let written = self.keras_config()?;
        if !has_masks(&architecture) {
            return Ok((Cow::Borrowed(self), written));
        }
        let Err(reason) = check(&architecture, &written) else {
            return Ok((Cow::Borrowed(self), written));
        };
        let mut copying = architecture;
        copy_for_attention(&mut copying);
        let model = Self::from_config(&copying)?;
        let written = model.keras_config()?;
        match check(&copying, &written) {
            Ok(()) => Ok((Cow::Owned(model), written)),
            Err(_) => Err(Error::user(format!(
                "Keras would find other masks of padding in `{}` than there are here: {reason}; write the weights alone, as `.weights.h5`, for a model that you make in Keras",
                self.name
            ))),
        }
    }
}

/// Shows the layers of an architecture, also of the models in it, by kind and settings.
fn each_layer<'a>(model: &'a Value, see: &mut impl FnMut(&'a str, &'a Value)) {
    for layer in model["layers"].as_array().into_iter().flatten() {
        let Some((kind, settings)) = kind_of(layer) else {
            continue;
        };
        see(kind, settings);
        if kind == "model" {
            each_layer(settings, see);
        }
    }
}

/// Whether anything finds a mask.
fn has_masks(model: &Value) -> bool {
    let mut has_one = false;
    each_layer(model, &mut |kind, settings| {
        has_one |= kind == "masking" || settings["mask_zero"] == true;
    });
    has_one
}

/// Whether each attention leaves padding out, by names, which models in it may have alike; and how many layers there are.
fn uses_of_masks(model: &Value) -> (BTreeMap<&str, Vec<bool>>, usize) {
    let (mut looking, mut count) = (BTreeMap::<_, Vec<bool>>::new(), 0);
    each_layer(model, &mut |kind, settings| {
        count += 1;
        if ATTENTION.contains(&kind) {
            let name = settings["name"].as_str().unwrap_or(kind);
            let of_name = looking.entry(name).or_default();
            of_name.push(settings[PADDING] != false);
            of_name.sort_unstable();
        }
    });
    (looking, count)
}

/// Refuses what is read again with other masks than the architecture has.
fn check(architecture: &Value, written: &Value) -> Translated<()> {
    let (read, masked) = reread(written)?;
    let ((own, count), (theirs, others)) = (uses_of_masks(architecture), uses_of_masks(&read));
    // Without masks there is no padding to look at, or not.
    let mut compared = own
        .iter()
        .filter(|(name, _)| masked.get(**name) != Some(&false));
    let differs = compared.find(|(name, own)| theirs.get(*name) != Some(*own));
    if let Some((name, own)) = differs {
        return Err(match own.contains(&false) {
            false => format!(
                "attention `{name}` would look at padding, whose mask an attention before takes off"
            ),
            true => {
                format!("attention `{name}` would not look at padding, as its `{PADDING}` says")
            }
        });
    }
    if count == others {
        return Ok(());
    }
    let mut lost = "a value".to_owned();
    each_layer(&read, &mut |_, settings| {
        let name = settings["name"].as_str().unwrap_or_default();
        if let Some(value) = name.trim_end_matches('_').strip_suffix(WITHOUT_MASK) {
            lost = format!("`{value}`");
        }
    });
    Err(format!(
        "the mask of {lost} is lost there, and a layer behind it needs it"
    ))
}

/// Has attentions take copies of their values.
fn copy_for_attention(model: &mut Value) {
    let layers = model["layers"].as_array_mut().into_iter().flatten();
    for inner in layers.filter_map(|layer| layer.get_mut("model")) {
        copy_for_attention(inner);
    }
    match model["calls"].is_array() {
        true => copy_in_network(model),
        false => copy_in_stack(model),
    }
}

fn copy(name: &str) -> Value {
    json!({"activation": {"activation": {"leaky_relu": {"negative_slope": 1.0}}, "name": name}})
}

/// The name of an attention that takes masks off.
fn taker(layer: &Value) -> Option<&str> {
    layer[MULTI_HEAD]["name"].as_str()
}

fn copy_in_stack(model: &mut Value) {
    let Some(layers) = model["layers"].as_array_mut() else {
        return;
    };
    let with_copies = layers.drain(..).flat_map(|layer| {
        let name = taker(&layer).map(|name| copy(&format!("{name}{COPY}")));
        name.into_iter().chain([layer])
    });
    *layers = with_copies.collect();
}

fn copy_in_network(model: &mut Value) {
    let layers = model["layers"].as_array().into_iter().flatten();
    let takers: Vec<String> = layers.filter_map(taker).map(str::to_owned).collect();
    let (mut layers, mut calls) = (Vec::new(), Vec::new());
    for mut call in model["calls"].as_array().cloned().unwrap_or_default() {
        let attention = takers.iter().find(|name| call["layer"] == **name);
        let values = call["inputs"].as_array_mut();
        for (attention, values) in attention.into_iter().zip(values) {
            let mut copies: Vec<(Value, String)> = Vec::new();
            for value in values.iter_mut().take(3) {
                let known = copies.iter().find(|(copied, _)| copied == value);
                let name = known.map(|(_, name)| name.clone()).unwrap_or_else(|| {
                    let name = format!("{attention}{COPY}_{}", layers.len());
                    layers.push(copy(&name));
                    calls.push(json!({"layer": name, "inputs": [value]}));
                    copies.push((value.clone(), name.clone()));
                    name
                });
                *value = name.into();
            }
        }
        calls.push(call);
    }
    if let Some(all) = model["layers"].as_array_mut() {
        all.extend(layers);
    }
    model["calls"] = calls.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [Value; 2] {
        let input = json!({"name": "ids", "shape": [5], "dtype": "i32"});
        let table = json!({"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true, "name": "table"}});
        [input, table]
    }

    #[test]
    fn attention_without_masks_is_written_beside_masks() {
        let [ids, table] = words();
        let pixels = json!({"name": "pixels", "shape": [5, 4], "dtype": "f32"});
        let write = |seen: &str| {
            let model = json!({"name": "m", "inputs": [ids, pixels], "outputs": ["last", "seen"],
            "layers": [
                table,
                {"gru": {"units": 2, "name": "last"}},
                {"multi_head_attention": {"num_heads": 2, "key_dim": 3, "use_padding_mask": false, "name": "seen"}}
            ],
            "calls": [
                {"layer": "table", "inputs": ["ids"]},
                {"layer": "last", "inputs": ["table"]},
                {"layer": "seen", "inputs": [seen, seen]}
            ]});
            let model = Model::from_config(&model).unwrap();
            model
                .for_keras()
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        write("pixels").unwrap();
        let refused = write("table").unwrap_err();
        assert!(
            refused.contains("attention `seen` would not look at padding"),
            "{refused}"
        );
    }

    #[test]
    fn attentions_of_one_name_in_two_models_are_told_apart() {
        let [ids, table] = words();
        let tower = |name: &str, uses: bool| {
            let input = json!({"name": "steps", "shape": [5, 4], "dtype": "f32"});
            json!({"model": {"name": name, "inputs": [input], "outputs": ["heads"],
                "layers": [{"group_query_attention": {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 2,
                    "use_padding_mask": uses, "name": "heads"}}],
                "calls": [{"layer": "heads", "inputs": ["steps", "steps"]}]}})
        };
        let write = |first: bool| {
            let model = json!({"name": "m", "inputs": [ids], "outputs": ["one", "other"],
            "layers": [table, tower("one", first), tower("other", true)],
            "calls": [
                {"layer": "table", "inputs": ["ids"]},
                {"layer": "one", "inputs": ["table"]},
                {"layer": "other", "inputs": ["table"]}
            ]});
            let model = Model::from_config(&model).unwrap();
            let written = model.for_keras().map(|_| ());
            written.map_err(|error| error.to_string())
        };
        write(true).unwrap();
        let refused = write(false).unwrap_err();
        assert!(
            refused.contains("attention `heads` would not look"),
            "{refused}"
        );
    }

    #[test]
    fn the_mask_of_what_a_model_gives_may_be_another_one() {
        let [ids, table] = words();
        let gru = json!({"gru": {"units": 2, "return_sequences": true, "go_backwards": true}});
        let write = |last: &str| {
            let layers = json!([table, gru, {last: {"units": 2}}]);
            let model = Model::from_config(&json!({"name": "m", "input": ids, "layers": layers}));
            let model = model.unwrap();
            model
                .for_keras()
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        write("dense").unwrap();
        let refused = write("lstm").unwrap_err();
        assert!(refused.contains("another mask of padding"), "{refused}");
    }
}
