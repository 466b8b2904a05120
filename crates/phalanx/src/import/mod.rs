//! Weights from elsewhere: files of Keras and PyTorch, and safetensors of our own.
//!
//! The format of a file is recognised by its contents: HDF5 (`.weights.h5`, and `.h5` of older versions), a `.keras`
//! archive, or safetensors, with our names (`dense/kernel`) or PyTorch's (`layer1.0.conv1.weight`). PyTorch's layouts are
//! transposed, the gates of recurrent layers put in our order, and what reads or makes flattened images in the order of ours, whose
//! channels are last; a model in which PyTorch's order cannot be known is refused. The module `lstm` of PyTorch with several layers is
//! our layers `lstm`, `lstm_1` .., with two directions each a [`Bidirectional`](crate::nn::Bidirectional). Layers of a file are paired
//! with the model's by names, by torchvision's names for [`ResNet50`](crate::models::ResNet50) and
//! [`MobileNetV2`](crate::models::MobileNetV2), by PyTorch's names in `nn.TransformerEncoder` (with modules `embedding`, `position` and
//! `logits` around it) for [`TransformerEncoder`](crate::models::TransformerEncoder), or by order: within their class,
//! as Keras does, or as our own files note it. A file says nothing of settings: PyTorch's encoder must be one with `norm_first=True`,
//! `activation="gelu"` and a last `norm`, and `epsilon` here its `layer_norm_eps`, 1e-5 by default. The rule by which most variables find
//! a value of their shape is used; names that Keras made, such as `dense_1`, number layers as they were created, and give way to the order
//! of the layers, by which Keras reads its files: of a model that Keras described, the order in the description. What this program wrote goes by names.
//!
//! ```no_run
//! use phalanx::import::LoadWeights;
//! use phalanx::models::ResNet50;
//! use phalanx::prelude::*;
//!
//! # fn main() -> phalanx::Result<()> {
//! let mut trainer = OneDeviceStrategy::new()?.compile(ResNet50::new(), Compile::default())?;
//! let report = trainer.load_weights("resnet50.weights.h5", LoadWeights::default())?;
//! println!("{report}");
//! # Ok(())
//! # }
//! ```

pub(crate) mod hdf5;
mod keras_layers;
mod keras_model;
pub(crate) mod model_layers;
mod pairing;
mod report;
mod safetensors_layers;
mod tensor_layout;
mod torch_recurrent;
mod weights_file;

use std::path::Path;

use phalanx_graph::HostTensor;
use serde_json::Value;

use crate::nn::{Model, PytorchOrders};
use crate::{Error, Result};
pub(crate) use keras_layers::WRITER;
pub use pairing::Matching;
pub use report::{LoadReport, Mismatch, PairedBy, VariableCounts};
pub(crate) use safetensors_layers::ORDER;
use weights_file::Convention;

/// How weights are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadWeights {
    /// Whether variables for which the file has no value, or a value of another shape, keep their current value; by default this
    /// is an error. It always is where no variable has a value, as of the wrong file.
    pub skip_mismatch: bool,
    /// How layers of the file are paired with the model's.
    pub matching: Matching,
}

/// Values by index of their variable, and the report.
type Loaded = (Vec<(usize, HostTensor)>, LoadReport);

/// Values for the variables of a model from a file.
pub(crate) fn load(model: &Model, path: &Path, options: LoadWeights) -> Result<Loaded> {
    let bytes = weights_file::contents(path)?;
    load_bytes(model, &path.display().to_string(), &bytes, options)
}

/// Values for the variables of a model from the contents of a file, which errors call `name`.
pub(crate) fn load_bytes(
    model: &Model,
    name: &str,
    bytes: &[u8],
    options: LoadWeights,
) -> Result<Loaded> {
    load_paired(model, name, bytes, options, model.is_of_keras())
}

/// As [`load_bytes`]; `is_described` where the model has the names by which Keras described it.
fn load_paired(
    model: &Model,
    name: &str,
    bytes: &[u8],
    options: LoadWeights,
    is_described: bool,
) -> Result<Loaded> {
    let values = model.variables().iter();
    let values: u64 = values
        .map(|variable| variable.shape.byte_len() as u64)
        .sum();
    let bytes = weights_file::unpacked(name, bytes, values)?;
    let opened = weights_file::WeightsFile::new(name, &bytes)?;
    let layers = opened.layers()?;
    let (pairs, report) = pairing::pair(model, &layers, options.matching, is_described);
    let is_enough = match options.skip_mismatch {
        true => !report.matched.is_empty() || model.variables().is_empty(),
        false => report.is_complete(),
    };
    if !is_enough {
        return Err(problem(name, "weights", report.refusal()));
    }
    let variables = model.variables();
    let is_of_pytorch = pairs
        .iter()
        .any(|pair| pair.convention == Convention::Torch);
    let orders = match is_of_pytorch {
        true => model.pytorch_orders(),
        false => PytorchOrders::default(),
    };
    if let (Some(unknown), false) = (orders.problem(), options.skip_mismatch) {
        return Err(problem(name, "weights", unknown));
    }
    let value = |pair: &pairing::VariableSource<'_>| {
        let raw = opened.read(pair.tensor)?;
        let variable = &variables[pair.variable];
        let mut value = tensor_layout::to_ours(pair.layout, &raw, &variable.shape);
        if pair.convention == Convention::Torch {
            let order = orders.of(&variable.name);
            for (dim, numbers) in order.map_err(|unknown| problem(name, "weights", unknown))? {
                value = tensor_layout::in_order(&value, *dim, numbers);
            }
        }
        Ok((pair.variable, value))
    };
    let values = pairs.iter().map(value).collect::<Result<_>>()?;
    Ok((values, report))
}

/// A model with the values of its variables from a file of a whole model of Keras.
pub(crate) fn load_keras(path: &Path) -> Result<(Model, Vec<HostTensor>)> {
    let bytes = weights_file::contents(path)?;
    keras_bytes(&path.display().to_string(), &bytes)
}

/// The model alone of such a file, or of a document that describes it; `own` reads a document that Keras did not write, if it is one.
pub(crate) fn architecture(
    path: &Path,
    own: impl FnOnce(&str, &[u8]) -> Option<Result<Model>>,
) -> Result<Model> {
    let (name, bytes) = (path.display().to_string(), weights_file::contents(path)?);
    let is_document = keras_model::is_document(&bytes);
    let model = is_document.then(|| own(&name, &bytes)).flatten();
    model.unwrap_or_else(|| keras_model::model(&name, &bytes))
}

/// The model alone, and what Keras noted that it was compiled with; none where it was not compiled.
pub(crate) fn keras_compilation(path: &Path) -> Result<Option<(Model, Value)>> {
    let (name, bytes) = (path.display().to_string(), weights_file::contents(path)?);
    let compiled = keras_model::compilation(&name, &bytes)?;
    if compiled.is_none() && keras_model::is_document(&bytes) {
        return Ok(None);
    }
    // A file without a whole model is told of before its lack of a compilation.
    let model = keras_model::model(&name, &bytes)?;
    Ok(compiled.map(|compiled| (model, compiled)))
}

/// As [`load_keras`] from the contents of a file, which errors call `name`.
pub(crate) fn keras_bytes(name: &str, bytes: &[u8]) -> Result<(Model, Vec<HostTensor>)> {
    let model = keras_model::model(name, bytes)?;
    if keras_model::is_document(bytes) {
        let message = "the file describes a model and has no values; read it by `SavedModel::architecture`, or save the model by `model.save(\"model.keras\")`";
        return Err(problem(name, "weights", message));
    }
    let (mut values, _) = load_paired(&model, name, bytes, LoadWeights::default(), true)?;
    values.sort_by_key(|(variable, _)| *variable);
    let values = values.into_iter().map(|(_, value)| value).collect();
    Ok((model, values))
}

/// The error of a file that is not as it must be; what it quotes of the file cannot flood or steer a terminal.
pub(crate) fn problem(name: &str, place: &str, message: impl Into<String>) -> Error {
    const LONGEST: usize = 2000;
    Error::Data {
        source_name: name.to_owned(),
        place: place.to_owned(),
        message: printable(&message.into(), LONGEST),
    }
}

/// A name in a file as it may be shown.
fn shown(name: &str) -> String {
    const LONGEST: usize = 100;
    printable(name, LONGEST)
}

/// Printable text, cut where it is too long.
fn printable(text: &str, longest: usize) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(longest).map(printable).collect();
    if text.chars().nth(longest).is_some() {
        short.push_str("..");
    }
    short
}
