//! Settings that a training which goes on has otherwise than it began with.

use std::collections::BTreeMap;

use serde_json::json;

use crate::config::{Component, ModelSource, TrainConfig};
use crate::runs::flatten;

/// Settings that are named; the others are counted.
const SHOWN: usize = 5;

/// A note of what differs of the model, the loss, the precision and the batch size, if anything does. The checkpoint fits either way, and what it
/// was trained with is not what training goes on with.
pub(crate) fn changed_settings(then: &TrainConfig, now: &TrainConfig) -> Option<String> {
    let (then, now) = (settings(then), settings(now));
    let mut keys: Vec<&String> = then.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| then.get(*key) != now.get(*key));
    let value = |of: &BTreeMap<String, String>, key: &str| {
        of.get(key)
            .map_or_else(|| "not set".to_owned(), Clone::clone)
    };
    let shown = keys.iter().take(SHOWN);
    let shown = shown.map(|key| {
        format!(
            "`{key}` was {}, and is {}",
            value(&then, key),
            value(&now, key)
        )
    });
    let shown: Vec<String> = shown.collect();
    let more = match keys.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    (!keys.is_empty()).then(|| {
        format!(
            "note: settings differ from what the checkpoint was trained with: {}{more}; training goes on with the new ones",
            shown.join("; ")
        )
    })
}

/// What a step computes, by the paths of keys: `model.0.dense.units`.
fn settings(config: &TrainConfig) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    match &config.model {
        ModelSource::Layers(layers) => {
            for (index, layer) in layers.iter().enumerate() {
                add(&format!("model.{index}"), layer, &mut all);
            }
        }
        // The folder may have moved, and a bucket has a copy here.
        ModelSource::Saved(file) => {
            let name = file.value.file_name().unwrap_or_default();
            all.insert("model".to_owned(), name.to_string_lossy().into_owned());
        }
    }
    for loss in &config.losses {
        let path = match config.losses.len() {
            1 => "loss".to_owned(),
            _ => format!("loss.{}", loss.output),
        };
        add(&path, &loss.component, &mut all);
    }
    all.insert("precision".to_owned(), config.precision.name().to_owned());
    all.insert(
        "fit.batch_size".to_owned(),
        config.fit.batch_size.to_string(),
    );
    all
}

fn add(path: &str, component: &Component, all: &mut BTreeMap<String, String>) {
    let name = &component.name;
    all.insert(path.to_owned(), name.clone());
    flatten(&format!("{path}.{name}"), &component.settings, all);
    let inputs = component.inputs.iter().flatten();
    let inputs: Vec<&String> = inputs.map(|input| &input.value).collect();
    flatten(&format!("{path}.inputs"), &json!(inputs), all);
}
