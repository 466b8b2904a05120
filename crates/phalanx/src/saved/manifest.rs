//! `model.json`: the architecture, and which program wrote it in which version of the format.

use serde_json::{Map, Value, json};

use super::{folder, json, problem};
use crate::config::suggest;
use crate::nn::{Model, Registry};
use crate::{Error, Result};

const FORMAT: &str = "phalanx model";
/// Counts up when a reader of the old version could not read the new one.
const VERSION: u64 = 1;
const FIELDS: [&str; 4] = ["format", "version", "phalanx", "model"];
/// Ten thousand layers, the most a model has, take half of it.
pub(super) const MAX_BYTES: usize = 8 << 20;
const MAX_VALUES: usize = 1 << 19;
const SAVE_AGAIN: &str = "copy the directory again, or save the model again";

/// The file of a model, which [`read`] is known to accept unless layers of other crates are in it.
pub(super) fn write(model: &Model) -> Result<Vec<u8>> {
    let manifest = json!({
        "format": FORMAT,
        "version": VERSION,
        "phalanx": env!("CARGO_PKG_VERSION"),
        "model": model.config(),
    });
    let mut text = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| Error::Bug(format!("{}: {error}", folder::MODEL)))?;
    text.push(b'\n');
    verify(model, &manifest["model"], &text).map_err(|error| {
        let name = model.name();
        Error::user(format!(
            "model `{name}` is not saved, because it could not be read back: {error}"
        ))
    })?;
    Ok(text)
}

/// The model that the file describes; `name` is the file in errors.
pub(super) fn read(name: &str, text: &[u8], registry: &Registry) -> Result<Model> {
    let fields = parse(name, text)?;
    check_format(name, &fields)?;
    if let Some(field) = fields
        .keys()
        .find(|field| !FIELDS.contains(&field.as_str()))
    {
        let hint = suggest(field, FIELDS);
        let message = format!("is no field of version {VERSION}; {hint}");
        return Err(problem(
            name,
            &format!("field `{}`", super::brief(field)),
            message,
        ));
    }
    let Some(config) = fields.get("model") else {
        let message = format!("the field with the architecture is missing; {SAVE_AGAIN}");
        return Err(problem(name, "model", message));
    };
    Model::from_config_with(config, registry).map_err(|error| {
        let error = error.to_string();
        let action = match error.contains("unknown layer `") {
            true => "a layer of your own is read by `SavedModel::load_with`",
            false => "correct it, or save the model again",
        };
        let error = error.strip_prefix("model: ").unwrap_or(&error);
        problem(name, "model", format!("{error}; {action}"))
    })
}

/// Whether the file is one of ours, of whatever version.
pub(super) fn is_ours(text: &[u8]) -> bool {
    parse(folder::MODEL, text).is_ok_and(|fields| has_format(&fields))
}

fn has_format(fields: &Map<String, Value>) -> bool {
    fields.get("format").is_some_and(|format| format == FORMAT)
}

fn parse(name: &str, text: &[u8]) -> Result<Map<String, Value>> {
    if text.len() > MAX_BYTES {
        let message = format!(
            "more than {MAX_BYTES} bytes, which no saved model has; check that it is the right directory"
        );
        return Err(problem(name, "size", message));
    }
    if text.is_empty() {
        return Err(problem(
            name,
            "size",
            format!("the file is empty; {SAVE_AGAIN}"),
        ));
    }
    let broken = |error: serde_json::Error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let cause = match error.is_eof() {
            true => "the file ends in the middle".to_owned(),
            false => format!("expected the JSON of a saved model: {error}"),
        };
        problem(name, &place, format!("{cause}; {SAVE_AGAIN}"))
    };
    json::check(text, MAX_VALUES).map_err(broken)?;
    match serde_json::from_slice(text).map_err(broken)? {
        Value::Object(fields) => Ok(fields),
        _ => {
            let message = format!(
                "expected an object with the fields {}; check that it is the right directory",
                FIELDS.join(", ")
            );
            Err(problem(name, "line 1", message))
        }
    }
}

fn check_format(name: &str, fields: &Map<String, Value>) -> Result<()> {
    if !has_format(fields) {
        let got = fields.get("format").map_or("nothing".to_owned(), shown);
        let message = format!(
            "expected {FORMAT:?}, got {got}: it was not written by phalanx; check that it is the right directory"
        );
        return Err(problem(name, "format", message));
    }
    match fields.get("version").and_then(Value::as_u64) {
        Some(VERSION) => Ok(()),
        Some(later) if later > VERSION => {
            let writer = fields
                .get("phalanx")
                .map_or("of a later version".to_owned(), shown);
            let ours = env!("CARGO_PKG_VERSION");
            let message = format!(
                "expected up to {VERSION}, got {later}: phalanx {writer} wrote it, and this is phalanx {ours}; update phalanx"
            );
            Err(problem(name, "version", message))
        }
        _ => {
            let got = fields.get("version").map_or("nothing".to_owned(), shown);
            let message = format!("expected {VERSION}, got {got}; {SAVE_AGAIN}");
            Err(problem(name, "version", message))
        }
    }
}

/// A value in few letters.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.len() > LONGEST => {
            format!("a text of {} bytes", text.len())
        }
        other => other.to_string(),
    }
}

/// Reads back what was written, before hours of training depend on it.
fn verify(model: &Model, config: &Value, text: &[u8]) -> Result<()> {
    let registry = Registry::standard();
    if !is_standard(config, &registry) {
        return parse(folder::MODEL, text).map(|_| ());
    }
    let again = read(folder::MODEL, text, &registry)?;
    if again.variables() == model.variables() {
        return Ok(());
    }
    Err(Error::Bug("a saved model has other variables".into()))
}

/// Whether every layer is of this library, so that the model can be read without the user's own.
fn is_standard(config: &Value, registry: &Registry) -> bool {
    let is_known = |layer: &Value| {
        let fields = layer.as_object().into_iter().flatten();
        fields
            .into_iter()
            .all(|(kind, settings)| match kind.as_str() {
                "model" => is_standard(settings, registry),
                kind => registry.kinds().any(|known| known == kind),
            })
    };
    let layers = config.get("layers").and_then(Value::as_array);
    layers.into_iter().flatten().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Conv2d, Initializer, Input, Regularizer, Sequential};

    #[test]
    fn the_largest_models_fit_the_limits() {
        let layers = |count: usize| {
            let conv = || {
                Conv2d::new(1, 1)
                    .kernel_initializer(Initializer::TruncatedNormal {
                        mean: 0.0,
                        stddev: 0.02,
                    })
                    .kernel_regularizer(Regularizer::L2 { l2: 1e-4 })
            };
            let stack = Sequential::new(Input::new([1, 1, 1]));
            let stack = (0..count).fold(stack, |stack, _| stack.add(conv()));
            stack.build().unwrap()
        };
        let text = write(&layers(100)).unwrap();
        assert!(text.len() < MAX_BYTES / 100, "{} bytes", text.len());
        json::check(&text, MAX_VALUES / 100).unwrap();
    }
}
