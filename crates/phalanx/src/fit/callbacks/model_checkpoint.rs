//! Models and checkpoints written on the way.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::context::SaveWish;
use super::monitor::{MODE, MONITOR, Watched, improves};
use super::path_pattern::PathPattern;
use super::{Callback, CallbackContext, CallbackState, MonitorMode};
use crate::checkpoint::JsonFloat;
use crate::config::{Component, Described, Field, Kind, setters, write};
use crate::fit::{EpochLogs, Logs};
use crate::metrics::Better;
use crate::storage::foreign_ending::foreign_ending;
use crate::{Error, Result};

/// Writes a checkpoint, or the weights alone, after each epoch or every few batches: Keras' `ModelCheckpoint`, with its
/// decisions and names.
///
/// The path may have the number of the epoch, of the batch (both from 1) and logs in it, as in
/// `ckpt_{epoch:02d}-{val_loss:.2f}`. A checkpoint is a directory, which
/// [`Trainer::restore_checkpoint`](crate::fit::Trainer::restore_checkpoint) goes on from; weights are a file such as
/// `epoch_{epoch}.safetensors`. Both replace what this library wrote there before, in one step. Where Keras ends the training
/// with a `KeyError`, as an epoch has no such log, nothing is written and a notice says so. The best value stays over several trainings
/// with the same callback, as in Keras.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelCheckpoint {
    filepath: String,
    monitor: String,
    mode: MonitorMode,
    save_best_only: bool,
    save_weights_only: bool,
    save_freq: SaveFreq,
    initial_value_threshold: Option<f64>,
    keep: Option<usize>,
    keep_every: Option<usize>,
    #[serde(skip)]
    seen: CheckpointsWritten,
    #[serde(skip)]
    pattern: Option<PathPattern>,
    #[serde(skip)]
    better: Option<Better>,
}

/// When something is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveFreq {
    /// After each epoch.
    #[default]
    Epoch,
    /// After this number of batches since the last time, counted on from epoch to epoch.
    Batches(usize),
}

/// What it has seen and written in a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointsWritten {
    #[serde(default)]
    watched: Option<Watched>,
    best: Option<JsonFloat>,
    batches: usize,
    /// What it wrote and has not removed, where only some are kept.
    written: VecDeque<PathBuf>,
    /// How many it wrote, where only some are kept.
    #[serde(default)]
    count: usize,
}

/// The setting of all that save.
pub(super) const SAVE_FREQ: Field = Field::optional(
    "save_freq",
    Kind::Worded(
        "epoch, or a whole number of batches above 0",
        &Kind::Either(&[Kind::OneOf(&["epoch"]), Kind::POSITIVE]),
    ),
    "when: after each `epoch`, or after this number of batches",
);

impl Described for ModelCheckpoint {
    const COMPONENT: Component = Component {
        name: "model_checkpoint",
        doc: "writes checkpoints, or the weights alone, on the way",
        fields: &[
            Field::required(
                "filepath",
                Kind::Text,
                "the path, which may have the numbers of epoch and batch and logs in it",
            )
            .example("\"ckpt_{epoch:02d}-{val_loss:.2f}\""),
            MONITOR,
            MODE,
            Field::optional(
                "save_best_only",
                Kind::Bool,
                "whether only those are written that are better than all before",
            ),
            Field::optional(
                "save_weights_only",
                Kind::Bool,
                "whether the weights alone are written, as a file, in place of a whole checkpoint",
            ),
            SAVE_FREQ,
            Field::optional(
                "initial_value_threshold",
                Kind::REAL,
                "a value that the first that is written must be better than",
            ),
            Field::optional(
                "keep",
                Kind::POSITIVE,
                "how many stay: older ones are removed; all where it is left out",
            ),
            Field::optional(
                "keep_every",
                Kind::POSITIVE,
                "beside the last ones, each of which the number is a multiple of this stays for good",
            ),
        ],
    };
}

impl ModelCheckpoint {
    /// Writes a checkpoint to this path after each epoch.
    #[must_use]
    pub fn new(filepath: impl Into<String>) -> Self {
        Self {
            filepath: filepath.into(),
            monitor: "val_loss".to_owned(),
            mode: MonitorMode::Auto,
            save_best_only: false,
            save_weights_only: false,
            save_freq: SaveFreq::Epoch,
            initial_value_threshold: None,
            keep: None,
            keep_every: None,
            seen: CheckpointsWritten::default(),
            pattern: None,
            better: None,
        }
    }

    /// The log by which the best is found; `val_loss` by default.
    #[must_use]
    pub fn monitor(mut self, log: impl Into<String>) -> Self {
        self.monitor = log.into();
        self
    }

    /// A value that the first that is written must be better than.
    #[must_use]
    pub const fn initial_value_threshold(mut self, value: f64) -> Self {
        self.initial_value_threshold = Some(value);
        self
    }

    /// How many stay: older ones are removed. All by default.
    #[must_use]
    pub const fn keep(mut self, count: usize) -> Self {
        self.keep = Some(count);
        self
    }

    /// Beside those that [`keep`](Self::keep) keeps, the one with this number, counted from 1, stays for good, and each of which the number
    /// is a multiple of it: Orbax' `keep_period`. Keras has none; TensorFlow's `keep_checkpoint_every_n_hours` follows the clock, which
    /// gives no two trainings the same files.
    #[must_use]
    pub const fn keep_every(mut self, count: usize) -> Self {
        self.keep_every = Some(count);
        self
    }

    /// The best value so far.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.seen.best.map(|JsonFloat(best)| best)
    }

    /// Takes over what the checkpoint remembers that training goes on from, or this callback of a training before; the best value where it
    /// is of the same log.
    fn take_over(&mut self, cx: &CallbackContext<'_>) -> Result<()> {
        let first = self.initial_value_threshold.map(JsonFloat);
        self.seen = match cx.restored()? {
            Some(seen) => seen,
            // What another training has written is not removed.
            None => CheckpointsWritten {
                best: self.seen.best.or(first),
                batches: self.seen.batches,
                watched: self.seen.watched.take(),
                ..CheckpointsWritten::default()
            },
        };
        if !self.save_best_only {
            return Ok(());
        }
        let better = self.mode.better(self.kind(), &self.monitor, cx)?;
        let watched = Watched::new(&self.monitor, better);
        self.better = Some(better);
        if !watched.goes_on(self.seen.watched.as_ref(), self.kind(), cx) {
            self.seen.best = first;
        }
        self.seen.watched = Some(watched);
        Ok(())
    }

    /// Whether what has these logs is written.
    fn is_wanted(&mut self, logs: &Logs, cx: &CallbackContext<'_>) -> bool {
        if !self.save_best_only {
            return true;
        }
        // As in Keras, what cannot be judged is written; not in place of the best, as there, where only some epochs are validated.
        let Some(value) = cx.value_of(logs, &self.monitor) else {
            return self.save_freq != SaveFreq::Epoch || !cx.is_for_later(&self.monitor);
        };
        let better = self.better.unwrap_or(Better::Lower);
        let is_better = improves(better, value, 0.0, self.best());
        if is_better {
            self.seen.best = Some(JsonFloat(value));
        }
        is_better
    }

    fn save(
        &mut self,
        epoch: usize,
        batch: Option<usize>,
        logs: &Logs,
        cx: &mut CallbackContext<'_>,
    ) -> Result<()> {
        let Some(pattern) = &self.pattern else {
            return Ok(());
        };
        // A callback after this one may be the one to find it.
        if cx.is_state_lost() || cx.first_bad_step()?.is_some() {
            return Ok(());
        }
        let path = match pattern.path(epoch, batch, logs) {
            Ok(path) => path,
            Err(why) => {
                let (kind, path) = (self.kind(), &self.filepath);
                cx.notice(&format!(
                    "warning: {kind} writes nothing to `{path}` after epoch {}: {why}",
                    epoch + 1
                ));
                return Ok(());
            }
        };
        if !self.is_wanted(logs, cx) {
            return Ok(());
        }
        let removed = self.rotate(&path);
        if self.save_weights_only {
            cx.save_weights(&path)?;
        }
        cx.wish_save(SaveWish {
            path: (!self.save_weights_only).then_some(path),
            older: 0,
            removed,
            may_be_left_out: false,
        });
        Ok(())
    }

    /// What is removed when `path` is written.
    fn rotate(&mut self, path: &PathBuf) -> Vec<PathBuf> {
        let Some(keep) = self.keep else {
            return Vec::new();
        };
        self.seen.written.retain(|written| written != path);
        self.seen.written.push_back(path.clone());
        self.seen.count += 1;
        let first = self.seen.count - self.seen.written.len() + 1;
        let excess = self.seen.written.len().saturating_sub(keep);
        let numbered = (first..).zip(self.seen.written.drain(..excess));
        let stays = |number: usize| {
            self.keep_every
                .is_some_and(|every| number.is_multiple_of(every))
        };
        let removed = numbered.filter(|(number, _)| !stays(*number));
        removed.map(|(_, path)| path).collect()
    }
}

impl Default for ModelCheckpoint {
    fn default() -> Self {
        Self::new("checkpoint")
    }
}

setters!(ModelCheckpoint {
    /// Which values of the log are better.
    mode: MonitorMode,
    /// Whether only those are written that are better than all before.
    save_best_only: bool,
    /// Whether the weights alone are written, as a file, in place of a whole checkpoint.
    save_weights_only: bool,
    /// When something is written.
    save_freq: SaveFreq,
});

impl Callback for ModelCheckpoint {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let kind = self.kind();
        let wrong = |why: String| {
            let path = &self.filepath;
            Error::user(format!("{kind}: `filepath` is `{path}`: {why}"))
        };
        let pattern = PathPattern::parse(&self.filepath).map_err(wrong)?;
        if let Some(why) = foreign_ending(self.filepath.as_ref(), self.save_weights_only) {
            return Err(Error::User(format!("{kind}: {why}")));
        }
        let is_zero = self.keep == Some(0) || self.keep_every == Some(0);
        if is_zero || self.save_freq == SaveFreq::Batches(0) {
            return Err(Error::user(format!(
                "{kind}: `keep`, `keep_every` and `save_freq` must be at least 1, got 0"
            )));
        }
        if self.keep.is_none() && self.keep_every.is_some() {
            return Err(Error::user(format!(
                "{kind}: `keep_every` is set and `keep` is not, so all stay; give the number of the last ones that stay as `keep`, or leave `keep_every` out"
            )));
        }
        self.pattern = Some(pattern);
        self.take_over(cx)
    }

    fn batches_until_due(&self) -> Option<usize> {
        match self.save_freq {
            SaveFreq::Batches(freq) => Some(freq.saturating_sub(self.seen.batches).max(1)),
            SaveFreq::Epoch => None,
        }
    }

    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let SaveFreq::Batches(freq) = self.save_freq else {
            return Ok(());
        };
        self.seen.batches += cx.execution_steps();
        if self.seen.batches < freq {
            return Ok(());
        }
        self.seen.batches = 0;
        let logs = cx.logs()?;
        self.save(cx.epoch(), Some(batch), &logs, cx)
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        match self.save_freq {
            SaveFreq::Epoch => self.save(done.epoch, None, &done.logs, cx),
            SaveFreq::Batches(_) => Ok(()),
        }
    }

    fn takes_names_of_older(&self, checkpoint: &Path) -> bool {
        PathPattern::parse(&self.filepath).is_ok_and(|pattern| pattern.is_older_of(checkpoint))
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: write(self.kind(), &self.seen),
            tensors: Vec::new(),
        }
    }
}

impl Serialize for SaveFreq {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Epoch => serializer.serialize_str("epoch"),
            Self::Batches(count) => serializer.serialize_u64(*count as u64),
        }
    }
}

impl<'de> Deserialize<'de> for SaveFreq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Batches(usize),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Batches(count) => Ok(Self::Batches(count)),
            Written::Word(word) if word == "epoch" => Ok(Self::Epoch),
            Written::Word(word) => Err(serde::de::Error::custom(format!(
                "expected epoch or a number of batches, got {word:?}"
            ))),
        }
    }
}
