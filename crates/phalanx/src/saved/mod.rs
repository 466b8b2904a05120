//! Models with their values on disk: a directory with `model.json` and `weights.safetensors`.
//!
//! `model.json` is `{"format", "version", "phalanx", "model"}`, where `model` is what [`Model::config`] gives.
//! `weights.safetensors` has every variable under its name; other programs read it as any file of that format.
//! `phalanx train` adds `training.json`: the training file, and what was found out about its data.
//!
//! ```no_run
//! use phalanx::prelude::*;
//!
//! # fn main() -> phalanx::Result<()> {
//! let strategy = OneDeviceStrategy::new()?;
//! let model = Sequential::new([4]).add(Dense::new(1));
//! let trainer = strategy.compile(model, Compile::default())?;
//! trainer.save("line.phx")?;
//! let again = strategy.compile(SavedModel::load("line.phx")?, Compile::default())?;
//! # Ok(())
//! # }
//! ```

mod keras_archive;
mod keras_weights;
mod manifest;
pub(crate) mod weights;

use std::io::Read;
use std::path::Path;

use phalanx_graph::HostTensor;

use crate::Result;
use crate::import::hdf5::writer::Hdf5File;
use crate::import::{self, LoadReport, LoadWeights};
use crate::nn::{Input, IntoModel, KerasFile, Model, Registry};
use crate::storage::atomic_dir::{self, DirectoryKind, WEIGHTS};
use crate::storage::foreign_ending::is_of_keras;

/// The architecture.
const MODEL: &str = "model.json";
/// How the model was trained: `phalanx train` adds it, to use the model in the same way.
const TRAINING: &str = "training.json";
/// The directory of a saved model.
pub(crate) const MODEL_DIR: DirectoryKind = DirectoryKind {
    what: "saved model",
    short: "model",
    writer: "save",
    example: "digits.phx",
    files: &[MODEL, WEIGHTS, TRAINING],
    is_ours: |text| manifest::DOCUMENT.is_ours(text),
};

/// A model with the values of its variables.
#[derive(Clone, Debug)]
pub struct SavedModel {
    model: Model,
    values: Vec<HostTensor>,
}

impl SavedModel {
    /// A model with values for its variables, in the order of [`Model::variables`].
    ///
    /// # Errors
    /// When the values are not as many or not of the shapes that the model has variables.
    pub fn new(model: Model, values: Vec<HostTensor>) -> Result<Self> {
        model.check_values(&values)?;
        Ok(Self { model, values })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The values, in the order of [`Model::variables`].
    #[must_use]
    pub fn values(&self) -> &[HostTensor] {
        &self.values
    }

    /// The same for inputs of other dims or elements, as [`Model::with_inputs`].
    ///
    /// # Errors
    /// As for [`Model::with_inputs`].
    pub fn with_inputs(self, inputs: &[Input]) -> Result<Self> {
        let model = self.model.with_inputs(inputs)?;
        Self::new(model, self.values)
    }

    /// The value of a variable by its name, `dense/kernel`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&HostTensor> {
        let mut variables = self.model.variables().iter();
        let index = variables.position(|variable| variable.name == name)?;
        self.values.get(index)
    }

    /// Takes values from a file of weights of this library, Keras or PyTorch; see [`import`].
    ///
    /// # Errors
    /// When the file cannot be read, or a variable finds no value of its shape in it and `skip_mismatch` is not set;
    /// nothing is changed then.
    pub fn load_weights(
        &mut self,
        path: impl AsRef<Path>,
        options: LoadWeights,
    ) -> Result<LoadReport> {
        let loaded = import::load(&self.model, path.as_ref(), options)?;
        Ok(self.take(loaded))
    }

    /// [`load_weights`](Self::load_weights) from the contents of a file, which errors call `name`.
    ///
    /// # Errors
    /// As for [`load_weights`](Self::load_weights).
    pub fn load_weights_from(
        &mut self,
        name: &str,
        bytes: &[u8],
        options: LoadWeights,
    ) -> Result<LoadReport> {
        let loaded = import::load_bytes(&self.model, name, bytes, options)?;
        Ok(self.take(loaded))
    }

    fn take(&mut self, (values, report): (Vec<(usize, HostTensor)>, LoadReport)) -> LoadReport {
        for (variable, value) in values {
            self.values[variable] = value;
        }
        report
    }

    /// Writes the values alone to a file: one that Keras 3 reads by `Model.load_weights` where the name ends in `.weights.h5`, else
    /// safetensors, each value under the name of its variable.
    ///
    /// Keras finds values by the classes and the order of the layers, so that its model must have the same layers, and be the one that was read where
    /// one was; values of bf16 are widened to f32.
    ///
    /// # Errors
    /// When the file cannot be written, or a variable is in no layer that Keras' files have a place for; a file that was there
    /// before stays then.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if is_of_keras(path) {
            let tree = keras_weights::tree(&self.model, &self.values, KerasFile::Weights)?;
            let file = Hdf5File::new(&tree);
            return atomic_dir::replace_file(&MODEL_DIR, path, file.len(), |out| file.write(out));
        }
        let tensors = weights::Tensors::new(self.named())?;
        let len = tensors.len();
        atomic_dir::replace_file(&MODEL_DIR, path, len, |file| tensors.write(file))
    }

    /// Writes the model to an archive that Keras 3 reads by `keras.models.load_model("digits.keras")`: architecture and values, without how
    /// variables began, and not compiled. Where a layer differs from Keras' on purpose, which its documentation says, it is Keras' there, but for masks
    /// of padding: attentions are given copies of values whose masks they would take off there, and where a layer would find another mask all the same,
    /// the model is refused. Steps of an output whose mask Keras loses, or leaves unturned behind `go_backwards`, are counted otherwise by the loss
    /// there; a file with the latter is for predictions in Keras, and is not read here. `training` false of a layer is noted in its calls, which
    /// Keras obeys from 3.16 on.
    ///
    /// # Errors
    /// When Keras has no such layer ([`PositionEmbedding`](crate::nn::PositionEmbedding), or one of your own), no name for an activation, or other masks, or the
    /// file cannot be written; one that was there before stays then.
    pub fn save_keras(&self, path: impl AsRef<Path>) -> Result<()> {
        let (model, config) = self.model.for_keras()?;
        let tree = keras_weights::tree(&model, &self.values, KerasFile::Archive)?;
        let weights = Hdf5File::new(&tree);
        atomic_dir::replace_file(&MODEL_DIR, path.as_ref(), weights.len(), |out| {
            keras_archive::write(out, &config, &weights)
        })
    }

    /// Reads a whole model that Keras wrote, `model.save("model.keras")` or `.h5`: architecture and values, from which it can be trained on
    /// with any strategy.
    ///
    /// Stacks and functional models are read, models in models among them, of layers that there are here, with the operations
    /// between them that are layers here (`x + y`, `x * 2`, `keras.ops.relu`), whose results have no padding mask. A mask that a layer is called with
    /// must be the one that its values have here anyway, and a model in the model that is called with masks and without must be the same here for both. `training=False` in a call counts where Keras 2 or one from 3.16 on wrote the file. Optimizer, loss and metrics are what
    /// [`Compile::of_keras`](crate::fit::Compile::of_keras) reads. Dims of inputs that are open in Keras are
    /// shown as 128, and examples may have any there, where they are the first ones ([`Input::open_dims`](crate::nn::Input::open_dims));
    /// [`with_inputs`](Self::with_inputs) fixes them. A model in another that gives it other dims takes those. How variables begin is kept where there is such an initializer. Unlike in Keras, a model whose
    /// layers are a Python program cannot be read, and no code in a file is run.
    ///
    /// # Errors
    /// The first layer that there is not here, or a setting of it, and why; or a damaged file. Nothing in it is trusted.
    pub fn load_keras(path: impl AsRef<Path>) -> Result<Self> {
        let (model, values) = import::load_keras(path.as_ref())?;
        Self::new(model, values)
    }

    /// The model of what [`load`](Self::load) or [`load_keras`](Self::load_keras) reads, the folder of a model or a file of Keras, without its
    /// values; or of a description alone: `model.json` in the folder of a model, or a file with what Keras' `model.to_json()` gives, in which
    /// every variable must begin as one can here.
    ///
    /// # Errors
    /// As for these.
    pub fn architecture(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        if !path.is_dir() {
            return import::architecture(path, |name, text| {
                let is_ours = manifest::DOCUMENT.is_ours(text);
                is_ours.then(|| manifest::read(name, text, &Registry::standard()))
            });
        }
        let mut manifest = MODEL_DIR.open(path, |files| files.file(MODEL))?;
        let text = manifest.contents()?;
        manifest::read(&manifest.name, &text, &Registry::standard())
    }

    /// [`load_keras`](Self::load_keras) from the contents of a file, which errors call `name`.
    ///
    /// # Errors
    /// As for [`load_keras`](Self::load_keras).
    pub fn from_keras_bytes(name: &str, bytes: &[u8]) -> Result<Self> {
        let (model, values) = import::keras_bytes(name, bytes)?;
        Self::new(model, values)
    }

    /// Writes the model to a directory, such as `digits.phx`, in one step: a crash leaves what was there before.
    ///
    /// A saved model that is there already is replaced. Anything else that is there is not touched. Directories above
    /// are made.
    ///
    /// # Errors
    /// When something other than a saved model has that name, the disk is full or may not be written, or the model
    /// could not be read back: a layer of its own kind with a setting that JSON cannot hold, for instance.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let manifest = manifest::write(&self.model)?;
        MODEL_DIR.replace(path.as_ref(), 0, |staging| {
            staging.write(MODEL, 0, |file| file.write_all(&manifest))?;
            let tensors = weights::Tensors::new(self.named())?;
            staging.write(WEIGHTS, tensors.len(), |file| tensors.write(file))
        })
    }

    fn named(&self) -> impl Iterator<Item = (&str, &HostTensor)> {
        let names = self.model.variables().iter();
        let names = names.map(|variable| &*variable.name);
        names.zip(&self.values)
    }

    /// Reads a saved model made of layers of this library.
    ///
    /// # Errors
    /// When the directory is no saved model, or one of a later version, or is damaged. Nothing in it is trusted: sizes
    /// are checked before memory is taken.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, &Registry::standard())
    }

    /// [`load`](Self::load) with layers of your own.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_with(path: impl AsRef<Path>, registry: &Registry) -> Result<Self> {
        let (mut manifest, mut weights) = MODEL_DIR.open(path.as_ref(), |files| {
            Ok((files.file(MODEL)?, files.file(WEIGHTS)?))
        })?;
        let text = manifest.contents()?;
        let model = manifest::read(&manifest.name, &text, registry)?;
        Self::with_weights(model, &weights.name, &mut weights.bytes, weights.len)
    }

    /// Reads a saved model from the contents of its two files.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn from_bytes(manifest: &[u8], mut weights: &[u8], registry: &Registry) -> Result<Self> {
        let model = manifest::read(MODEL, manifest, registry)?;
        let len = weights.len() as u64;
        Self::with_weights(model, WEIGHTS, &mut weights, len)
    }

    fn with_weights(model: Model, name: &str, source: &mut dyn Read, len: u64) -> Result<Self> {
        let values = weights::read(name, source, len, model.variables())?;
        Self::new(model, values)
    }
}

impl IntoModel for SavedModel {
    fn into_parts(self) -> Result<(Model, Option<Vec<HostTensor>>)> {
        Ok((self.model, Some(self.values)))
    }
}

/// The model without its values, to train it anew.
impl From<SavedModel> for Model {
    fn from(saved: SavedModel) -> Self {
        saved.model
    }
}
