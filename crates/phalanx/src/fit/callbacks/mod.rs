//! What is called on the way of a [`fit`](super::Trainer::fit): Keras' callbacks, in Keras' order.
//!
//! A [`Callback`] implements the hooks that it needs; the others do nothing. The order of a `fit` is
//!
//! ```text
//! on_train_begin
//!   for each epoch: on_epoch_begin
//!     for each batch: on_train_batch_begin, the step, on_train_batch_end
//!     on_steps_done
//!     for its validation: on_test_begin, (on_test_batch_begin, on_test_batch_end) for each batch, on_test_end
//!   on_epoch_end
//! on_train_end
//! ```
//!
//! and callbacks are called in the order in which [`Fit::callback`](super::Fit::callback) was given them. Before them are
//! [`StragglerReport`] and [`KeepBest`], after them [`ProgressBar`] and [`TrainingCheckpoint`], by the settings of
//! [`Fit`](super::Fit) that they are named at.
//!
//! A step runs on the device while the host goes on, and hooks of batches do not wait for it: a callback that wants the
//! results so far asks with [`CallbackContext::logs`] and waits then, so that callbacks that do not ask cost nothing.
//!
//! **Several processes.** Each process has its own copy of each callback, and every hook runs in all of them with the same
//! logs, which are of all processes together. What a callback decides by them is the same everywhere, as is what it
//! decides by the numbers of epochs and batches; it must decide nothing that [`CallbackContext`] is asked for by a clock or by
//! anything else of one process. Files are written by the first process alone: [`CallbackContext::is_chief`].
//!
//! **Checkpoints.** What a callback remembers is part of a checkpoint ([`Callback::state`]), and a training that goes on
//! ([`Fit::resume`](super::Fit::resume)) gives it back ([`CallbackContext::restored`]): patience, cooldowns and best values
//! are as in an unbroken run. In Keras they begin anew.
//!
//! # Examples
//! ```
//! use phalanx::fit::Fit;
//! use phalanx::fit::callbacks::{CsvLogger, EarlyStopping, ReduceLrOnPlateau};
//! let fit = Fit::epochs(100)
//!     .callback(ReduceLrOnPlateau::new("val_loss").factor(0.5).patience(3))
//!     .callback(EarlyStopping::new("val_loss").patience(10).restore_best_weights(true))
//!     .callback(CsvLogger::new("training.csv"));
//! ```

mod backup_and_restore;
mod context;
mod csv_logger;
mod early_stopping;
mod keep_best;
mod kept_epochs;
mod lambda;
mod learning_rate_scheduler;
mod list;
mod model_checkpoint;
mod monitor;
mod named;
mod path_pattern;
mod progress_bar;
mod python_format;
mod reduce_lr_on_plateau;
mod remote_monitor;
mod straggler_report;
mod swap_ema_weights;
mod terminate_on_nan;
mod training_checkpoint;

use std::path::Path;

pub use backup_and_restore::BackupAndRestore;
pub use context::CallbackContext;
pub(super) use context::{HookPlace, SaveWish, Training, Wishes};
pub use csv_logger::CsvLogger;
pub use early_stopping::EarlyStopping;
pub use keep_best::KeepBest;
pub(super) use keep_best::better_of;
pub(super) use kept_epochs::{KeptEpochs, values_of};
pub use lambda::Lambda;
pub use learning_rate_scheduler::LearningRateScheduler;
pub(super) use list::Callbacks;
pub use list::IntoCallback;
pub use model_checkpoint::{ModelCheckpoint, SaveFreq};
pub use monitor::MonitorMode;
pub(in crate::fit) use named::ACT_TOGETHER;
pub(crate) use named::descriptions;
pub use named::{KINDS, SharedCallback, from_config};
pub use progress_bar::ProgressBar;
pub use reduce_lr_on_plateau::ReduceLrOnPlateau;
pub use remote_monitor::RemoteMonitor;
pub use straggler_report::StragglerReport;
pub use swap_ema_weights::SwapEmaWeights;
pub use terminate_on_nan::{NanPolicy, TerminateOnNan};
pub use training_checkpoint::TrainingCheckpoint;

use super::{EpochLogs, Logs};
use crate::Result;
pub use crate::checkpoint::CallbackState;
pub(super) use crate::checkpoint::CallbackStates;

/// Called on the way of a training; see the [module](self) for the order. An error ends the training.
#[expect(
    unused_variables,
    reason = "the names are for those who implement a hook"
)]
pub trait Callback: Send {
    /// The kind, such as `early_stopping`: by it and its position among callbacks of its kind, checkpoints find its state.
    fn kind(&self) -> &'static str;

    /// Training begins: what is remembered of another training is forgotten here, and what
    /// [`CallbackContext::restored`] has of this one taken over. [`ModelCheckpoint`] keeps its best value, as Keras' does.
    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Training ends, by its last epoch or by [`CallbackContext::stop`], not by an error or
    /// [`Fit::stop_when`](super::Fit::stop_when).
    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// An epoch begins, counted from 0, or is gone on with: where a training is resumed within it, this is called again.
    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// An epoch is done, its validation too. Logs that are added are seen by the callbacks after this one, by the history and
    /// by the line of the epoch.
    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A training step begins, counted from 0 in its epoch; the first of those that are
    /// [one program](crate::fit::Compile::steps_per_execution).
    fn on_train_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A training step was begun on the device, which may not be done with it; the last of those that are one program.
    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// After how many batches `on_train_batch_end` has something to do, if it ever has: steps that are one program end there. Where
    /// variables are on parameter servers the workers stop there together, and hooks of the batches since the last such stop are
    /// called one after the other.
    fn batches_until_due(&self) -> Option<usize> {
        None
    }

    /// A validation begins, or an evaluation by [`Trainer::evaluate_with`](super::Trainer::evaluate_with).
    fn on_test_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A batch of it begins, counted from 0.
    fn on_test_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A batch of it was begun on the device.
    fn on_test_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Steps are done of which something is read: the results of the epoch, or a checkpoint within it, before which this is called.
    /// Keras has no such hook.
    fn on_steps_done(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// It is done with these results, whose names do not begin with `val_`.
    fn on_test_end(&mut self, logs: &Logs, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A prediction by [`Trainer::predict_with`](super::Trainer::predict_with) begins.
    fn on_predict_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A batch of it begins, counted from 0.
    fn on_predict_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// A batch of it was begun on the device.
    fn on_predict_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// It is done.
    fn on_predict_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Training was interrupted by [`Fit::stop_when`](super::Fit::stop_when) and can go on later; Keras has no such hook.
    fn on_interrupted(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// The checkpoint that training goes on from, where it is there; asked before the training begins.
    fn backup(&self) -> Option<&Path> {
        None
    }

    /// A checkpoint that it replaces again and again: one of another training that is there is an error before this training begins.
    fn checkpoint(&self) -> Option<&Path> {
        None
    }

    /// Whether it may write something else under the name of this checkpoint with a dot and a number behind it: older checkpoints have such
    /// names, and are replaced and removed by them. An error before this training begins.
    fn takes_names_of_older(&self, checkpoint: &Path) -> bool {
        false
    }

    /// What a checkpoint keeps of it.
    fn state(&self) -> CallbackState {
        CallbackState::default()
    }
}

#[cfg(test)]
#[path = "keras_tests.rs"]
mod tests;
