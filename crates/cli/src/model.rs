//! The model that a `train.yaml` describes.

use std::path::Path;

use phalanx::models;
use phalanx::nn::{Input, LayerSpec, Model, Network, Node, Sequential, layer_from_config};
use phalanx::saved::SavedModel;

use crate::bins;
use crate::config::{
    Component, ModelSource, Problem, Problems, Source, TrainConfig, name_of, other_outputs,
};
use crate::data_facts::Facts;

/// The model for data of which these facts are known.
///
/// # Errors
/// As [`build`], and a layer whose bins were not found.
pub fn of_data(config: &TrainConfig, facts: &Facts) -> Result<Model, Problems> {
    let filled = bins::filled_in(config, &facts.scaling.bins);
    let filled = filled.map_err(|problem| config.problems(vec![problem]))?;
    build(&filled, &facts.model_inputs())
}

/// The model of the layers, or the saved one, for these inputs.
///
/// # Errors
/// A layer that does not take what it is given, at its line; or a model that cannot be read.
pub fn build(config: &TrainConfig, inputs: &[Input]) -> Result<Model, Problems> {
    if let ModelSource::Saved(file) = &config.model {
        let model = saved(&file.value, inputs, &config.output_names());
        let model = model.map_err(|(message, next)| {
            config.problems(vec![Problem::new(file.at, message, next)])
        })?;
        return frozen(config, model);
    }
    let layers = config.layers();
    let sources = match (config.is_stack(), inputs) {
        (true, [_]) => None,
        _ => Some(config.sources().map_err(|list| config.problems(list))?),
    };
    let first = |count: usize| match &sources {
        None => stacked(&layers[..count], &inputs[0]),
        Some(sources) => connected(&layers[..count], sources, inputs, &config.output_names()),
    };
    let failed = match first(layers.len()) {
        Ok(model) => return frozen(config, model),
        Err(error) => error,
    };
    // What fails does so with any layers after it: the layer at fault ends the shortest part that fails.
    let good = (1..layers.len())
        .collect::<Vec<_>>()
        .partition_point(|&count| first(count).is_ok());
    let fault = layers[..=good].last();
    let (component, error) = match (fault, first(good + 1)) {
        (Some(component), Err(error)) => (component, error),
        _ => (&layers[0], failed),
    };
    let index = match sources {
        Some(sources) => config.index_among(&sources[good]),
        None if good == 0 => config.index_among(&[Source::Input(0)]),
        None => None,
    };
    Err(config.problems(vec![problem(component, &error, index)]))
}

/// The architecture of a saved model, which takes what the data give; or what is wrong, and what to do.
fn saved(path: &Path, inputs: &[Input], outputs: &[&str]) -> Result<Model, (String, &'static str)> {
    let model = SavedModel::architecture(path).map_err(|error| {
        let next = "give the path of a model that Keras or this program saved, or list the layers";
        (error.to_string(), next)
    })?;
    let names: Vec<&str> = model.inputs().map(|(name, _)| name).collect();
    let given: Vec<&str> = inputs.iter().filter_map(Input::name).collect();
    let are_same = match inputs {
        [_] => names.len() == 1,
        _ => names == given,
    };
    if !are_same {
        let (names, path) = (names.join(", "), path.display());
        let message = format!(
            "{path} takes the inputs {names}, and the data give {}",
            inputs.len()
        );
        let next = "name the columns of these, in this order, by `inputs` of `data`";
        return Err((message, next));
    }
    let made = model.output_names();
    if let Some(wrong) = other_outputs(path, &made, outputs).filter(|_| !outputs.is_empty()) {
        return Err(wrong);
    }
    let model = model.with_inputs(inputs);
    model.map_err(|error| {
        let message = format!("{}: {error}", path.display());
        (
            message,
            "give the examples these dimensions, by `features`, `image_size` or `inputs` of `data`",
        )
    })
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

fn stacked(layers: &[Component], input: &Input) -> phalanx::Result<Model> {
    let mut stack = Sequential::new(input.clone());
    for component in layers {
        let below = || Ok(stack.clone().build()?.outputs()[0].dims.clone());
        let layer = layer(component, below)?;
        stack = stack.add(layer);
    }
    stack.build()
}

/// The model whose outputs are the layers of these names, and what no layer takes: the last layer, where the model is whole and no outputs are named.
fn connected(
    layers: &[Component],
    sources: &[Vec<Source>],
    inputs: &[Input],
    named: &[&str],
) -> phalanx::Result<Model> {
    let mut net = Network::new();
    let given: Vec<Node> = inputs
        .iter()
        .map(|input| net.input(input.clone()))
        .collect();
    let mut made: Vec<Node> = Vec::new();
    for (component, from) in layers.iter().zip(sources) {
        let nodes = from.iter().map(|source| match *source {
            Source::Input(place) => given[place],
            Source::Layer(place) => made[place],
        });
        let nodes: Vec<Node> = nodes.collect();
        let below = || match from[0] {
            Source::Input(place) => Ok(inputs[place].dims().to_vec()),
            Source::Layer(_) => Ok(net.build(&given, &nodes[..1])?.outputs()[0].dims.clone()),
        };
        let layer = layer(component, below)?;
        made.push(net.add(layer, &nodes));
    }
    let taken: Vec<Source> = sources[..layers.len()].concat();
    let of_name = |name: &&str| layers.iter().position(|layer| name_of(layer) == Some(name));
    let mut outputs: Vec<usize> = named.iter().filter_map(of_name).collect();
    let untaken = (0..made.len()).filter(|&place| !taken.contains(&Source::Layer(place)));
    let unnamed: Vec<usize> = untaken.filter(|place| !outputs.contains(place)).collect();
    outputs.extend(unnamed);
    let outputs: Vec<Node> = outputs.into_iter().map(|place| made[place]).collect();
    net.build(&given, &outputs)
}

/// A layer, or a whole model as one, which depends on the dims of what it is given.
fn layer(
    component: &Component,
    below: impl FnOnce() -> phalanx::Result<Vec<usize>>,
) -> phalanx::Result<LayerSpec> {
    let Component { name, settings, .. } = component;
    match models::KINDS.contains(&name.as_str()) {
        true => models::layer_from_config(name, settings, &below()?),
        false => layer_from_config(name, settings),
    }
}

fn problem(layer: &Component, error: &phalanx::Error, index: Option<String>) -> Problem {
    // A mistake in a graph says where in the library's source it was found; the line that matters here is the layer's.
    let message = match error {
        phalanx::Error::Graph(error) => error.message.clone(),
        other => other.to_string(),
    };
    let Some(index) = index else {
        return layer.problem(&message);
    };
    let (wrong, _) = message.split_once("; ").unwrap_or((&message, ""));
    layer.problem(&format!("{wrong}; {index}"))
}
