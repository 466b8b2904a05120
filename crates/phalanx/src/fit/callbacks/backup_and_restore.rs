//! A training that is begun again goes on by itself.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::context::SaveWish;
use super::model_checkpoint::SAVE_FREQ;
use super::{Callback, CallbackContext, SaveFreq};
use crate::Result;
use crate::config::{Component, Described, Field, Kind, setters};
use crate::fit::EpochLogs;

/// Writes a checkpoint on the way, and goes on from it where the same program is run again: Keras' `BackupAndRestore`, exact to the
/// bit and also in the middle of an epoch, which Keras begins anew.
///
/// The checkpoint is also written when [`Fit::stop_when`](crate::fit::Fit::stop_when) ends the training. At the end of the
/// training it is removed, unless [`TerminateOnNan`](super::TerminateOnNan) has ended it. A `fit` that is
/// [resumed](crate::fit::Fit::resume) goes on from it too, where another process wrote it and the trainer is not further.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupAndRestore {
    backup_dir: PathBuf,
    save_freq: SaveFreq,
    keep: usize,
    delete_checkpoint: bool,
    #[serde(skip)]
    batches: usize,
}

impl Described for BackupAndRestore {
    const COMPONENT: Component = Component {
        name: "backup_and_restore",
        doc: "writes a checkpoint on the way, and goes on from it where the training is begun again",
        fields: &[
            Field::required("backup_dir", Kind::Text, "the path of the checkpoint")
                .example("runs/backup"),
            SAVE_FREQ,
            Field::optional(
                "keep",
                Kind::POSITIVE,
                "how many checkpoints stay: older ones are taken where the newest is damaged",
            ),
            Field::optional(
                "delete_checkpoint",
                Kind::Bool,
                "whether it is removed at the end of the training",
            ),
        ],
    };
}

impl BackupAndRestore {
    /// Writes to this directory after each epoch.
    #[must_use]
    pub fn new(backup_dir: impl Into<PathBuf>) -> Self {
        Self {
            backup_dir: backup_dir.into(),
            save_freq: SaveFreq::Epoch,
            keep: 2,
            delete_checkpoint: true,
            batches: 0,
        }
    }

    fn save(&self, cx: &mut CallbackContext<'_>) {
        cx.wish_save(SaveWish {
            path: Some(self.backup_dir.clone()),
            older: self.keep.saturating_sub(1),
            removed: Vec::new(),
            may_be_left_out: false,
        });
    }
}

impl Default for BackupAndRestore {
    fn default() -> Self {
        Self::new("backup")
    }
}

setters!(BackupAndRestore {
    /// When it is written.
    save_freq: SaveFreq,
    /// How many checkpoints stay, 2 by default: where the newest is damaged the one before is taken.
    keep: usize,
    /// Whether it is removed at the end of the training; it is by default.
    delete_checkpoint: bool,
});

impl Callback for BackupAndRestore {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn backup(&self) -> Option<&Path> {
        Some(&self.backup_dir)
    }

    fn on_train_begin(&mut self, _: &mut CallbackContext<'_>) -> Result<()> {
        self.batches = 0;
        Ok(())
    }

    fn batches_until_due(&self) -> Option<usize> {
        match self.save_freq {
            SaveFreq::Batches(freq) => Some(freq.saturating_sub(self.batches).max(1)),
            SaveFreq::Epoch => None,
        }
    }

    fn on_train_batch_end(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        if let SaveFreq::Batches(freq) = self.save_freq {
            self.batches += cx.execution_steps();
            if self.batches >= freq {
                self.batches = 0;
                self.save(cx);
            }
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, _: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        if self.save_freq == SaveFreq::Epoch {
            self.save(cx);
        }
        Ok(())
    }

    fn on_interrupted(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.save(cx);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        if self.delete_checkpoint {
            cx.remove_checkpoint(&self.backup_dir);
        }
        Ok(())
    }
}
