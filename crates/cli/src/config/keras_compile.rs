//! What a training file leaves to the file of Keras that it names as its model: what the model was compiled with there.

use std::path::{Path, PathBuf};

use phalanx::data::BucketCopy;
use phalanx::fit::Compile;
use phalanx::saved::SavedModel;
use phalanx_yaml::{Position, Problem, Problems};

use super::{overrides, paths};

/// The keys that such a file has an answer to; metrics go with the loss.
pub(super) const ANSWERED: [&str; 2] = ["optimizer", "loss"];

/// Reads what the training file leaves out and its model of Keras was compiled with, in the form of `--set`; nothing where the file says all.
///
/// # Errors
/// The model was not compiled, or with what a training file cannot say. Other mistakes are left to the parser.
pub fn left_to_keras(
    bytes: &[u8],
    origin: &Path,
    overridden: &[String],
) -> Result<Vec<String>, Problems> {
    let Some((path, at, absent)) = model_and_absent(bytes, origin, overridden) else {
        return Ok(Vec::new());
    };
    let settings = Compile::of_keras(&path).and_then(|compile| {
        let outputs = SavedModel::architecture(&path)?.output_names();
        compile.settings(&outputs)
    });
    let settings = settings.map_err(|error| {
        let next = "add `optimizer: adam`, `loss: ...` and `metrics: [...]` to the training file, whichever the model was trained with";
        let problem = Problem::new(at, error.to_string(), next);
        Problems::new(&origin.display().to_string(), vec![problem])
    })?;
    let settings = settings
        .iter()
        .filter(|(key, _)| absent.contains(&key.as_str()));
    Ok(settings
        .map(|(key, value)| format!("{key}={value}"))
        .collect())
}

/// The file of Keras, its place, and the keys that are left to it; none where no key is, or there is no such file.
fn model_and_absent(
    bytes: &[u8],
    origin: &Path,
    overridden: &[String],
) -> Option<(PathBuf, Position, Vec<&'static str>)> {
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
    if absent.contains(&"loss") {
        absent.extend(
            ["loss_weights", "metrics", "weighted_metrics"]
                .iter()
                .filter(|key| is_absent(key)),
        );
    }
    Some((path, model.at, absent))
}
