//! What a training file leaves to the file of Keras that it names as its model: what the model was compiled with there.

use std::path::{Path, PathBuf};

use phalanx::data::BucketCopy;
use phalanx::fit::{Compile, LossScale};
use phalanx::saved::SavedModel;
use phalanx_yaml::{Position, Problem, Problems, Value as YamlValue};
use serde_json::{Map, Value, json};

use super::{other_outputs, overrides, paths};

/// The keys that such a file has an answer to; metrics go with the loss.
pub(super) const ANSWERED: [&str; 2] = ["optimizer", "loss"];

/// What goes with the optimizer.
const LOSS_SCALE: &str = "loss_scale";

/// Reads what the training file leaves out and its model of Keras was compiled with, in the form of `--set`; nothing where the file says all.
///
/// # Errors
/// The model was not compiled, or with what a training file cannot say. Other mistakes are left to the parser.
pub fn left_to_keras(
    bytes: &[u8],
    origin: &Path,
    overridden: &[String],
) -> Result<Vec<String>, Problems> {
    let Some(left) = left(bytes, origin, overridden) else {
        return Ok(Vec::new());
    };
    let settings = settings(&left).map_err(|(message, next)| {
        let problem = Problem::new(left.at, message, next);
        Problems::new(&origin.display().to_string(), vec![problem])
    })?;
    let settings = settings
        .iter()
        .filter(|(key, _)| left.absent.contains(&key.as_str()));
    Ok(settings
        .map(|(key, value)| format!("{key}={value}"))
        .collect())
}

/// What Keras compiled the model with, of what is left to it; or what is wrong, and what to do.
fn settings(left: &LeftToKeras) -> Result<Map<String, Value>, (String, &'static str)> {
    let path = &left.path;
    let wrong = |error: phalanx::Error| {
        let next = "add `optimizer: adam`, `loss: ...` and `metrics: [...]` to the training file, whichever the model was trained with";
        (error.to_string(), next)
    };
    let compile = Compile::of_keras(path).map_err(wrong)?;
    let mut settings = Map::new();
    if left.absent.contains(&"optimizer") {
        let optimizer = compile.optimizer_settings().map_err(wrong)?;
        settings.insert("optimizer".to_owned(), optimizer);
        let scale = loss_scale(compile.loss_scale);
        settings.extend(scale.map(|scale| (LOSS_SCALE.to_owned(), scale)));
    }
    if !left.absent.contains(&"loss") {
        return Ok(settings);
    }
    let outputs = || SavedModel::architecture(path).map(|model| model.output_names());
    let named: Vec<&str> = left.labels.iter().map(String::as_str).collect();
    let losses = match &named[..] {
        // Of several losses the parser says that `data` names no outputs.
        [] => (compile.loss_settings(&[])).or_else(|one| match &outputs()?[..] {
            [_] => Err(one),
            outputs => compile.loss_settings(outputs).map_err(|_| one),
        }),
        named => {
            let outputs = outputs().map_err(wrong)?;
            match other_outputs(path, &outputs, named) {
                Some(wrong) => return Err(wrong),
                None => compile.loss_settings(&outputs),
            }
        }
    };
    settings.extend(losses.map_err(wrong)?);
    Ok(settings)
}

/// What the optimizer multiplies the loss by, as a training file has it.
fn loss_scale(scale: LossScale) -> Option<Value> {
    match scale {
        LossScale::Fixed(factor) => Some(json!(factor)),
        LossScale::Dynamic {
            initial,
            growth_steps,
        } => Some(json!({"initial": initial, "growth_steps": growth_steps})),
        LossScale::Auto | LossScale::Off | LossScale::SkipNonFinite => None,
    }
}

/// What a training file leaves to a file of Keras.
struct LeftToKeras {
    path: PathBuf,
    at: Position,
    /// The keys.
    absent: Vec<&'static str>,
    /// The outputs that `labels` of `data` names.
    labels: Vec<String>,
}

/// What is left to the file of Keras; nothing where no key is, or there is no such file.
fn left(bytes: &[u8], origin: &Path, overridden: &[String]) -> Option<LeftToKeras> {
    let (written, _) = phalanx_yaml::parse(bytes).ok()?;
    let mut root = written.clone();
    for text in overridden {
        overrides::apply(&mut root, text).ok()?;
    }
    let model = root.entry("model")?;
    let path = paths::path(model, origin.parent().unwrap_or(Path::new("")))?;
    let extension = path.extension()?.to_str()?;
    let is_of_keras = ["keras", "h5", "hdf5", "json"].contains(&extension);
    // `--set optimizer.adam.learning_rate=0.1` changes a setting of what Keras compiled it with.
    let is_set = |key: &str| {
        let mut paths = overridden.iter().filter_map(|text| text.split_once('='));
        paths.any(|(path, _)| path == key)
    };
    let is_absent = |key: &&str| written.entry(key).is_none() && !is_set(key);
    let mut absent: Vec<&str> = ANSWERED.into_iter().filter(is_absent).collect();
    if !is_of_keras || absent.is_empty() || BucketCopy::is_url(&path) {
        return None;
    }
    if absent.contains(&"optimizer") {
        absent.extend([LOSS_SCALE].iter().filter(|key| is_absent(key)));
    }
    if absent.contains(&"loss") {
        absent.extend(
            ["loss_weights", "metrics", "weighted_metrics"]
                .iter()
                .filter(|key| is_absent(key)),
        );
    }
    let labels = root.entry("data").and_then(|data| data.entry("labels"));
    let labels = match labels.map(|labels| &labels.value) {
        Some(YamlValue::Map(outputs)) => outputs.iter().map(|(key, _)| key.name.clone()).collect(),
        _ => Vec::new(),
    };
    Some(LeftToKeras {
        at: model.at,
        path,
        absent,
        labels,
    })
}
