//! The boundaries of layers `discretization` with `num_bins`, found in the training rows and kept with the model.

use phalanx::data::Dataset;
use phalanx::nn::{Discretization, Layer};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::{Component, ModelSource, Problem, Source, TrainConfig};
use crate::scaling::length;

/// The bins of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerBins {
    /// The place of the layer in the file.
    pub layer: usize,
    /// How many there are.
    pub num_bins: usize,
    /// Where one ends and the next begins.
    pub boundaries: Vec<f64>,
}

/// The bins for the layers that ask for some of the rows to train on, as the model is given them.
///
/// # Errors
/// A layer that takes what another one gives, or rows too few or that cannot be read.
pub(crate) fn found(config: &TrainConfig, rows: &Dataset) -> Result<Vec<LayerBins>, Problem> {
    let layers = config.layers().iter().enumerate();
    let asking = layers.filter_map(|(place, layer)| Some((place, layer.num_bins?)));
    let asking: Vec<_> = asking.collect();
    let Some((_, first)) = asking.first() else {
        return Ok(Vec::new());
    };
    let unreadable = |at, error: phalanx::Error| {
        Problem::new(at, error.to_string(), "correct the data, or `num_bins`")
    };
    let sources = config.sources().unwrap_or_default();
    let batch = rows.batch(length(rows)).get(0, 0);
    let batch = batch.map_err(|error| unreadable(first.at, error))?;
    let mut found = Vec::new();
    for (layer, number) in asking {
        let wrong = |message: String, next: &str| Problem::new(number.at, message, next);
        let Some([Source::Input(input)]) = sources.get(layer).map(Vec::as_slice) else {
            let message = "`num_bins` finds boundaries in the data, and this layer takes what another one gives";
            return Err(wrong(
                message.into(),
                "write `bin_boundaries`, or let the layer take an input",
            ));
        };
        let values = batch.x[*input]
            .to_f64()
            .into_iter()
            .map(|value| value as f32);
        let bins = Discretization::quantiles(values, number.value);
        let bins = bins.map_err(|error| unreadable(number.at, error))?;
        let boundaries = serde_json::from_value(bins.config()["bin_boundaries"].take());
        let boundaries =
            boundaries.map_err(|error| wrong(error.to_string(), "write `bin_boundaries`"))?;
        found.push(LayerBins {
            layer,
            num_bins: number.value,
            boundaries,
        });
    }
    Ok(found)
}

/// The file with the boundaries that were found in place of the numbers of bins.
///
/// # Errors
/// A layer whose boundaries are not among them.
pub(crate) fn filled_in(config: &TrainConfig, found: &[LayerBins]) -> Result<TrainConfig, Problem> {
    let mut config = config.clone();
    let ModelSource::Layers(layers) = &mut config.model else {
        return Ok(config);
    };
    for (place, layer) in layers.iter_mut().enumerate() {
        fill_in(place, layer, found)?;
    }
    Ok(config)
}

fn fill_in(place: usize, layer: &mut Component, found: &[LayerBins]) -> Result<(), Problem> {
    let Some(number) = layer.num_bins.take() else {
        return Ok(());
    };
    let mut bins = found.iter().filter(|bins| bins.layer == place);
    let Some(bins) = bins.find(|bins| bins.num_bins == number.value) else {
        let message = format!(
            "no boundaries of {} bins are known for this layer: they are found in the rows of CSV files as a training begins, and stay as they are",
            number.value
        );
        let next = "bring `num_bins` back to what it was, train without --resume, or write `bin_boundaries`";
        return Err(Problem::new(number.at, message, next));
    };
    layer.settings["bin_boundaries"] = json!(bins.boundaries);
    Ok(())
}
