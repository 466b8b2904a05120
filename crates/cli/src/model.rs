//! The model that a `train.yaml` describes.

use phalanx::models;
use phalanx::nn::{Model, Sequential, layer_from_config};

use crate::config::{Component, Problem, Problems, TrainConfig};

/// The model of the layers, for examples of these dims.
///
/// # Errors
/// A layer that does not take what the one before gives, at its line.
pub fn build(config: &TrainConfig, features: &[usize]) -> Result<Model, Problems> {
    let whole = stacked(&config.model, features);
    let failed = match whole {
        Ok(model) => return frozen(config, model),
        Err(error) => error,
    };
    // A stack that fails does so with any layers on top: the layer at fault ends the shortest one that fails.
    let good = (1..config.model.len())
        .collect::<Vec<_>>()
        .partition_point(|&count| stacked(&config.model[..count], features).is_ok());
    let fault = config.model[..=good].last();
    let (component, error) = match (fault, stacked(&config.model[..=good], features)) {
        (Some(component), Err(error)) => (component, error),
        _ => (&config.model[0], failed),
    };
    Err(config.problems(vec![problem(component, &error)]))
}

/// The model without the layers that are not trained.
fn frozen(config: &TrainConfig, mut model: Model) -> Result<Model, Problems> {
    let weights = config.first_weights.iter();
    for layer in weights.flat_map(|weights| &weights.frozen) {
        model.freeze(&layer.value).map_err(|error| {
            let problem = Problem::new(
                layer.at,
                error.to_string(),
                "write names as the summary of the model has them",
            );
            config.problems(vec![problem])
        })?;
    }
    Ok(model)
}

fn stacked(layers: &[Component], features: &[usize]) -> phalanx::Result<Model> {
    let mut stack = Sequential::new(features.to_vec());
    for layer in layers {
        let Component { name, settings, .. } = layer;
        stack = stack
            .clone()
            .add(if models::KINDS.contains(&name.as_str()) {
                let below = stack.build()?.outputs();
                models::layer_from_config(name, settings, &below[0].dims)?
            } else {
                layer_from_config(name, settings)?
            });
    }
    stack.build()
}

fn problem(layer: &Component, error: &phalanx::Error) -> Problem {
    // A mistake in a graph says where in the library's source it was found; the line that matters here is the layer's.
    let message = match error {
        phalanx::Error::Graph(error) => error.message.clone(),
        other => other.to_string(),
    };
    layer.problem(&message)
}
