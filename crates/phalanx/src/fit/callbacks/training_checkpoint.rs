//! The checkpoint of a training.

use std::path::{Path, PathBuf};

use super::context::SaveWish;
use super::{Callback, CallbackContext};
use crate::fit::EpochLogs;
use crate::{Error, Result};

/// Writes a checkpoint at the start, after each epoch, every few batches and where the training is interrupted: what
/// [`Fit::checkpoint`](crate::fit::Fit::checkpoint) adds, after all other callbacks.
///
/// Training goes on from it where the program says so; [`BackupAndRestore`](super::BackupAndRestore) does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingCheckpoint {
    path: PathBuf,
    keep: usize,
    save_freq: Option<usize>,
    /// Batches of the epoch that are done.
    done: usize,
}

impl TrainingCheckpoint {
    /// Writes to this directory, and keeps the checkpoint before.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            keep: 2,
            save_freq: None,
            done: 0,
        }
    }

    /// How many of the last checkpoints stay.
    #[must_use]
    pub const fn keep(mut self, count: usize) -> Self {
        self.keep = count;
        self
    }

    /// Also writes every `batches` batches of an epoch.
    #[must_use]
    pub const fn save_freq(mut self, batches: usize) -> Self {
        self.save_freq = Some(batches);
        self
    }

    fn save(&self, cx: &mut CallbackContext<'_>) {
        cx.wish_save(SaveWish {
            path: Some(self.path.clone()),
            older: self.keep.saturating_sub(1),
            removed: Vec::new(),
            may_be_left_out: true,
        });
    }
}

impl Callback for TrainingCheckpoint {
    fn kind(&self) -> &'static str {
        "training_checkpoint"
    }

    fn checkpoint(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        if self.keep == 0 || self.save_freq == Some(0) {
            let kind = self.kind();
            return Err(Error::user(format!(
                "{kind}: `keep` and `save_freq` must be at least 1, got 0"
            )));
        }
        if !cx.is_resumed() {
            self.save(cx);
        }
        Ok(())
    }

    fn on_epoch_begin(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.done = cx.steps_before();
        Ok(())
    }

    fn batches_until_due(&self) -> Option<usize> {
        self.save_freq.map(|freq| freq - self.done % freq)
    }

    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let done = batch + 1;
        self.done = done;
        // The end of the epoch writes one anyway.
        let is_due = self.save_freq.is_some_and(|freq| done.is_multiple_of(freq));
        if is_due && Some(done) != cx.steps() {
            self.save(cx);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, _: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.save(cx);
        Ok(())
    }

    fn on_interrupted(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.save(cx);
        Ok(())
    }
}
