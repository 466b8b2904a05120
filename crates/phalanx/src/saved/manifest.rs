//! `model.json`: the architecture, and which program wrote it in which version of the format.

use serde_json::{Value, json};

use super::MODEL;
use crate::nn::{Activation, Cells, Model, Registry};
use crate::storage::document::Document;
use crate::storage::problem;
use crate::{Error, Result};

/// `model.json`.
pub(super) const DOCUMENT: Document = Document {
    format: "phalanx model",
    version: 1,
    fields: &["format", "version", "phalanx", "model"],
    what: "saved model",
    again: "copy the directory again, or save the model again",
};

/// The file of a model, which [`read`] is known to accept unless layers of other crates are in it.
pub(super) fn write(model: &Model) -> Result<Vec<u8>> {
    let manifest = json!({
        "format": DOCUMENT.format,
        "version": DOCUMENT.version,
        "phalanx": env!("CARGO_PKG_VERSION"),
        "model": model.config(),
    });
    let mut text = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| Error::Bug(format!("{}: {error}", MODEL)))?;
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
    let fields = DOCUMENT.read(name, text)?;
    let Some(config) = fields.get("model") else {
        let again = DOCUMENT.again;
        let message = format!("the field with the architecture is missing; {again}");
        return Err(problem(name, "model", message));
    };
    Model::from_config_with(config, registry).map_err(|error| {
        let error = error.to_string();
        let action = match is_known(config, registry) {
            _ if Activation::is_custom_in(config) => "",
            _ if Cells::are_own_in(config) => {
                "; a cell of your own is read by `SavedModel::load_with`, added by `Registry::with_cell`"
            }
            false => "; a layer of your own is read by `SavedModel::load_with`",
            true => "; correct it, or save the model again",
        };
        let error = error.strip_prefix("model: ").unwrap_or(&error);
        problem(name, "model", format!("{error}{action}"))
    })
}

/// Reads back what was written, before hours of training depend on it.
fn verify(model: &Model, config: &Value, text: &[u8]) -> Result<()> {
    let registry = Registry::standard();
    let own_parts = Activation::is_custom_in(config) || Cells::are_own_in(config);
    if own_parts || !is_known(config, &registry) {
        return DOCUMENT.parse(MODEL, text).map(|_| ());
    }
    let again = read(MODEL, text, &registry)?;
    if again.variables() == model.variables() {
        return Ok(());
    }
    Err(Error::Bug("a saved model has other variables".into()))
}

/// Whether the registry knows the kind of every layer.
fn is_known(config: &Value, registry: &Registry) -> bool {
    let layer_is_known = |layer: &Value| {
        let fields = layer.as_object().into_iter().flatten();
        fields
            .into_iter()
            .all(|(kind, settings)| match kind.as_str() {
                "model" => is_known(settings, registry),
                kind => registry.kinds().any(|known| known == kind),
            })
    };
    let layers = config.get("layers").and_then(Value::as_array);
    layers.into_iter().flatten().all(layer_is_known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Conv2d, Initializer, Input, Regularizer, Sequential};
    use crate::storage::document::{MAX_BYTES, MAX_VALUES, check};

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
        check(&text, MAX_VALUES / 100).unwrap();
    }
}
