//! The state of a training between two steps, on the host and on disk: what [`Trainer`](crate::fit::Trainer) needs to go
//! on as if it had never stopped, on the same devices or on others.
//!
//! A checkpoint is a directory that is replaced as a whole:
//!
//! | file | holds |
//! |---|---|
//! | `weights.safetensors` | every variable of the model under its name, as in a [saved model](crate::saved) |
//! | `optimizer.safetensors` | slots of the optimizer and the loss scale |
//! | `epoch.safetensors` | sums of losses and metrics, a row for each replica; in the middle of an epoch only |
//! | `callbacks.safetensors` | tensors that [callbacks](crate::fit::callbacks) remember, where they do |
//! | `history.jsonl` | an object for each epoch that was done |
//! | `checkpoint.json` | steps, seed, replicas, processes and their generation, optimizer, position in the data, what callbacks remember; size and CRC-32C of each file, and of itself |
//!
//! Nothing in it depends on the strategy: a variable is there once, whole, and in the order of its dims, however it was
//! copied, cut or placed.
//!
//! Where a path is `s3://bucket/prefix` or `gs://bucket/prefix`, the same files are objects (feature `cloud`): each save under a name
//! of its own, `checkpoint.json` last. The newest that has it is the checkpoint at the path.

mod callbacks;
mod done;
mod files;
mod finite;
mod history;
mod manifest;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use phalanx_graph::HostTensor;
use serde_json::Value;

use crate::data::Position;
use crate::nn::{Model, Variable};
use crate::saved::SavedModel;
use crate::storage::atomic_dir::Replaced;
use crate::storage::store::Note;
use crate::{Error, Result};

pub(crate) use done::{is_marked_done, mark_done, unmark_done};
pub(crate) use files::{CheckpointId, rows};
pub(crate) use finite::{check_state, divergence_error_of, is_finite};
pub(crate) use history::{EpochRecord, JsonFloat};
pub(crate) use manifest::Manifest;
pub(crate) use writer::CheckpointWriterMark;

/// All that a training is between two steps: variables, slots of the optimizer, the loss scale, sums of the epoch begun,
/// the position in the data, the results so far, what callbacks remember.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingState {
    pub(crate) manifest: Manifest,
    pub(crate) variables: NamedTensors,
    pub(crate) slots: NamedTensors,
    /// A row for each replica.
    pub(crate) sums: Option<HostTensor>,
    pub(crate) history: Vec<EpochRecord>,
    /// What callbacks remember, by their names.
    pub(crate) callbacks: CallbackStates,
    pub(crate) source: ReadFrom,
}

/// The path that a state was read from, so that a training overwrites no checkpoint that it did not read. It is no part of
/// the state: two that are alike but for it are equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadFrom(Option<PathBuf>);

impl PartialEq for ReadFrom {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl ReadFrom {
    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

/// What a callback remembers between two steps, as checkpoints keep it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallbackState {
    /// Everything but tensors, as JSON, which has neither infinities nor NaN.
    pub values: Value,
    /// Tensors by name, such as the variables of the best epoch.
    pub tensors: NamedTensors,
}

/// States of callbacks by the names that checkpoints have for them.
pub(crate) type CallbackStates = Vec<(String, CallbackState)>;

/// Values by name.
pub(crate) type NamedTensors = Vec<(String, HostTensor)>;

impl TrainingState {
    /// Batches of training seen, those that a dynamic loss scale skipped left out.
    #[must_use]
    pub const fn iterations(&self) -> i64 {
        self.manifest.iterations
    }

    /// Where it is in its data.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.manifest.position
    }

    /// What initial values, the order of the model's random numbers and dropout follow from.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.manifest.seed
    }

    /// Processes that trained together when it was written.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.manifest.workers
    }

    /// The generation of these processes: how often they had met, at the start and after a loss.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// What the first [callback](crate::fit::callbacks::Callback) of a kind remembered beside tensors, if there was one.
    #[must_use]
    pub fn remembered(&self, kind: &str) -> Option<&Value> {
        let mut callbacks = self.callbacks.iter();
        let (_, state) = callbacks.find(|(name, _)| name == kind)?;
        Some(&state.values)
    }

    /// Names and values of the model's variables.
    #[must_use]
    pub fn variables(&self) -> &[(String, HostTensor)] {
        &self.variables
    }

    /// Names and values of what the optimizer and the loss scale carry from step to step.
    #[must_use]
    pub fn slots(&self) -> &[(String, HostTensor)] {
        &self.slots
    }

    /// The values of a custom training loop, which keeps everything else itself.
    pub(crate) fn of_values(variables: NamedTensors, seed: u64, replicas: usize) -> Self {
        Self {
            manifest: Manifest {
                iterations: 0,
                seed,
                replicas,
                workers: 1,
                generation: 0,
                optimizer: "custom training loop".to_owned(),
                settings: Value::Null,
                logs: Vec::new(),
                position: Position::default(),
                examples: None,
                data: None,
                meaning: None,
                skipped_before: JsonFloat(0.0),
                callbacks: Vec::new(),
            },
            variables,
            slots: Vec::new(),
            sums: None,
            history: Vec::new(),
            callbacks: CallbackStates::new(),
            source: ReadFrom::default(),
        }
    }

    /// Writes it to a directory in one step: a crash leaves what was there before.
    ///
    /// A checkpoint that is there already is replaced; anything else that is there is not touched. Directories above
    /// are made. When this returns, all of it is on disk.
    ///
    /// # Errors
    /// When something other than a checkpoint has that name, or the disk is full or may not be written; when a value of a variable or
    /// a slot is infinite or not a number. What was there before stays then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        check_state(self)?;
        files::write(path.as_ref(), 0, self, &|| Ok(()), &|| Ok(())).map(drop)
    }

    /// As [`save`](Self::save); the checkpoint that is replaced stays beside it as `path.1`, the one before as `path.2`, up
    /// to `older` of them. The old one stays where `check` refuses, which looks at the state while it is written, or `may_write`, which is
    /// asked when the new one is complete. The caller drops what is replaced and does not stay.
    pub(crate) fn save_keeping(
        &self,
        path: &Path,
        older: usize,
        check: &(dyn Fn() -> Result<()> + Sync),
        may_write: &dyn Fn() -> Result<()>,
    ) -> Result<Replaced> {
        files::write(path, older, self, check, may_write)
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// When the directory is no checkpoint, or one of a later version, or damaged: every byte of it is covered by a
    /// checksum. Nothing in it is trusted: sizes are checked before memory is taken.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Ok(files::read(path.as_ref())?.read_at(path.as_ref()))
    }

    /// Reads a checkpoint or, where it is damaged or gone, the newest of the older ones beside it
    /// ([`Fit::keep_checkpoints`](crate::fit::Fit::keep_checkpoints)) that is whole. The texts say what is wrong with each
    /// that was left out, and which one was taken; there are none when nothing was left out.
    ///
    /// # Errors
    /// As for [`load`](Self::load), of the newest one, when no other is whole.
    pub fn load_newest(path: impl AsRef<Path>) -> Result<(Self, Vec<String>)> {
        let (state, left_out) = files::read_newest(path.as_ref())?;
        Ok((state.read_at(path.as_ref()), left_out))
    }

    fn read_at(self, path: &Path) -> Self {
        let source = ReadFrom(Some(path.to_path_buf()));
        Self { source, ..self }
    }

    /// Whether a checkpoint or an older one is at the path.
    pub(crate) fn is_checkpoint(path: &Path) -> Result<bool> {
        files::store(path)?.is_ours()
    }

    /// Refuses a path at which no checkpoint can be written, since something else is there.
    pub(crate) fn check_replaceable(path: &Path) -> Result<()> {
        files::store(path)?.check_replaceable()
    }

    /// Whether something is at the path of a checkpoint, or a save that was interrupted has left one for it, or older ones
    /// are beside it.
    ///
    /// # Errors
    /// When a bucket cannot be asked; of a folder there are none.
    pub fn is_at(path: impl AsRef<Path>) -> Result<bool> {
        files::store(path.as_ref())?.is_there()
    }

    /// The paths of the checkpoint at a path and of the older ones that are kept with it, the newest first; there may be none.
    ///
    /// # Errors
    /// When a bucket cannot be asked; of a folder there are none.
    pub fn all_at(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        files::store(path.as_ref())?.all()
    }

    /// The model with the values of its variables.
    ///
    /// # Errors
    /// When a variable of the model has no value of its shape here.
    pub fn saved_model(&self, model: Model) -> Result<SavedModel> {
        let values: HashMap<&str, &HostTensor> = self
            .variables
            .iter()
            .map(|(name, value)| (&**name, value))
            .collect();
        let value = |variable: &Variable| {
            let value = values.get(&*variable.name).map(|value| (*value).clone());
            value.ok_or_else(|| {
                Error::user(format!(
                    "the checkpoint has no value for variable `{}`, expected one for each of the model; give the model that was trained",
                    variable.name
                ))
            })
        };
        let values = model.variables().iter().map(value);
        let values = values.collect::<Result<_>>()?;
        SavedModel::new(model, values)
    }

    /// Writes the model's variables to a safetensors file, in the place of one that is there, as
    /// [`SavedModel::save_weights`](crate::saved::SavedModel::save_weights) does.
    ///
    /// # Errors
    /// When the disk refuses; what was there before stays then. When the name is of a file of Keras, `.weights.h5`: there a checkpoint has
    /// too little of the layers, and [`saved_model`](Self::saved_model) has enough.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        files::write_weights(path.as_ref(), &self.variables)
    }

    /// Removes the checkpoint at the path and the older ones beside it, if there are any; anything else that is there stays.
    ///
    /// # Errors
    /// When it may not be removed.
    pub fn remove(path: impl AsRef<Path>) -> Result<()> {
        unmark_done(path.as_ref())?;
        let store = files::store(path.as_ref())?;
        store.discard()?;
        store.remove_note(Note::Writer)
    }

    /// The contents of the files of a checkpoint, with their names.
    pub(crate) fn to_bytes(&self) -> Result<Vec<(String, Vec<u8>)>> {
        files::write_bytes(self)
    }

    /// Reads a checkpoint from the contents of its files, by their names.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn from_bytes(contents: &[(&str, &[u8])]) -> Result<Self> {
        files::read_bytes(contents)
    }
}
