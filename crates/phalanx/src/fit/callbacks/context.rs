//! What a hook knows and may ask for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::CallbackState;
use crate::checkpoint::NamedTensors;
use crate::data::{Batch, HostTensor};
use crate::fit::{Logs, ReplicaTimes, Watch};
use crate::metrics::Better;
use crate::storage::problem;
use crate::{Error, Result};

/// What a hook knows of the training, and what it may ask for.
pub struct CallbackContext<'a> {
    pub(super) training: &'a mut dyn Training,
    pub(super) place: HookPlace,
    pub(super) wishes: &'a mut Wishes,
    /// The name and the state of this callback in the checkpoint that training goes on from.
    pub(super) restored: Option<(&'a str, &'a CallbackState)>,
}

/// Where in its training a hook is called.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fit) struct HookPlace {
    pub(in crate::fit) epoch: usize,
    pub(in crate::fit) epochs: usize,
    /// Whether the epochs have a validation.
    pub(in crate::fit) validates: bool,
    /// Whether this epoch is one without a validation, where others have one.
    pub(in crate::fit) skips_validation: bool,
    /// Whether the training goes on from before.
    pub(in crate::fit) is_resumed: bool,
    /// Steps of the epoch, where that is known.
    pub(in crate::fit) steps: Option<usize>,
    /// Steps of the epoch that were made before this `fit`.
    pub(in crate::fit) steps_before: usize,
    /// Examples of a batch of the data, and the most that one has.
    pub(in crate::fit) batch_size: usize,
    pub(in crate::fit) most_rows: usize,
    /// Training steps that the hook of a batch is called for.
    pub(in crate::fit) execution: usize,
    /// Whether the validation of the epoch was by moving averages.
    pub(in crate::fit) is_validated_by_averages: bool,
    /// Whether all steps of the epoch were undone, so that it has no results.
    pub(in crate::fit) is_undone: bool,
}

/// What callbacks have asked for and the loop does when all of them were called.
#[derive(Default)]
pub(in crate::fit) struct Wishes {
    /// Why the training is to end, where it is.
    pub(in crate::fit) stop: Option<String>,
    pub(in crate::fit) saves: Vec<SaveWish>,
    /// Whether variables were replaced.
    pub(in crate::fit) has_set_variables: bool,
    /// Whether what was learned is lost, and nothing of it is kept.
    pub(in crate::fit) is_lost: bool,
    /// Whether a copy of the state is taken that `rolls_back` goes back to.
    pub(in crate::fit) takes_snapshot: bool,
    pub(in crate::fit) rolls_back: bool,
    /// Checkpoints that are removed when the training was a success.
    pub(in crate::fit) removed: Vec<PathBuf>,
}

/// A checkpoint that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fit) struct SaveWish {
    /// Where it goes; where there is none, only what follows is done.
    pub(in crate::fit) path: Option<PathBuf>,
    /// How many of before stay beside it.
    pub(in crate::fit) older: usize,
    /// Checkpoints and files of weights that are removed when this one is on disk.
    pub(in crate::fit) removed: Vec<PathBuf>,
    /// Whether it is left out while another is being written behind the training, where [`SaveBehind::Skip`](crate::fit::SaveBehind)
    /// asks for that.
    pub(in crate::fit) may_be_left_out: bool,
}

/// What callbacks act on: a trainer in the middle of its loop; tests have another.
pub(in crate::fit) trait Training {
    fn is_chief(&self) -> bool;
    fn iterations(&self) -> i64;
    /// Batches that were trained on, those skipped for their gradients among them; waits for the steps begun.
    fn counted_batches(&self) -> Result<i64>;
    fn logs(&mut self) -> Result<Logs>;
    fn learning_rate(&self) -> Result<f64>;
    fn set_learning_rate(&mut self, rate: f64) -> Result<()>;
    /// Whether the learning rate follows a schedule, and cannot be set.
    fn follows_schedule(&self) -> bool;
    fn variables(&self) -> Result<NamedTensors>;
    /// The variables after an epoch that has just ended, or that is gone through again since another process was there before this one.
    fn variables_after(&self, epoch: usize) -> Result<Option<NamedTensors>>;
    fn set_variables(&mut self, values: &[(String, HostTensor)]) -> Result<()>;
    fn save_weights(&mut self, path: &Path) -> Result<()>;
    fn save_model(&mut self, path: &Path) -> Result<()>;
    /// The logs of an epoch without validation, and which values of each are better.
    fn goals(&self) -> Vec<(String, Option<Better>)>;
    fn notice(&self, line: &str);
    /// The batch of the hook of a batch.
    fn batch(&self) -> Option<&Batch>;
    /// Lets losses that are not numbers be no errors; an error where steps have to be skipped and are not.
    fn watch_bad_steps(&mut self, are_skipped: bool) -> Result<()>;
    fn first_bad_step(&mut self) -> Result<Option<u64>>;
    fn first_bad_tensor(&mut self, batch: Option<&Batch>) -> Result<String>;
    fn use_averages(&mut self, are_used: bool) -> Result<()>;
    /// The moving averages in the place of the variables, or the variables themselves, whichever are there now.
    fn variables_of(&self, are_averages: bool) -> Result<NamedTensors>;
    /// Whether no other process takes part.
    fn is_alone(&self) -> bool;
    /// Copies of the model that the training was begun with.
    fn planned_replicas(&self) -> usize;
    /// Whether the variables are on parameter servers, and hooks of batches called behind them.
    fn has_servers(&self) -> bool;
    /// Where the training runs on batches of this size.
    fn describe(&self, batch_size: usize) -> String;
    /// Begins to decide when replicas are timed.
    fn watch_replicas(&mut self, watch: Watch);
    /// Notes a step of data whose batches have at most `full` rows.
    fn record_step(&mut self, full: usize, took: Duration);
    /// Times the replicas if an epoch that took this long makes it due.
    fn time_replicas_if_due(&mut self, took: Duration) -> Result<Option<ReplicaTimes>>;
}

impl CallbackContext<'_> {
    /// The number of the epoch, from 0.
    #[must_use]
    pub const fn epoch(&self) -> usize {
        self.place.epoch
    }

    /// The number of the epochs after which the training ends.
    #[must_use]
    pub const fn epochs(&self) -> usize {
        self.place.epochs
    }

    /// The number of steps of the epoch, where that is known.
    #[must_use]
    pub const fn steps(&self) -> Option<usize> {
        self.place.steps
    }

    /// Steps of the epoch that were made before the training went on within it; 0 where it goes on between epochs or does not.
    pub(super) const fn steps_before(&self) -> usize {
        self.place.steps_before
    }

    /// Whether the training goes on from before, by [`Fit::resume`](crate::fit::Fit::resume) or a
    /// [`BackupAndRestore`](super::BackupAndRestore).
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.place.is_resumed
    }

    /// Training steps that `on_train_batch_begin` and `on_train_batch_end` are called for at once: 1, or up to
    /// [`Compile::steps_per_execution`](crate::fit::Compile::steps_per_execution). The first hook has the number of the first step, the other
    /// the number of the last.
    #[must_use]
    pub const fn execution_steps(&self) -> usize {
        self.place.execution
    }

    /// Batches of training begun, in all epochs.
    #[must_use]
    pub fn iterations(&self) -> i64 {
        self.training.iterations()
    }

    /// Whether this process writes files: the first of those that train together.
    #[must_use]
    pub fn is_chief(&self) -> bool {
        self.training.is_chief()
    }

    /// The results of the epoch so far, over all batches and processes. Waits for the device; where several processes train
    /// together all must ask, at the same batch.
    ///
    /// # Errors
    /// When the device fails, or the loss of a step was not a number.
    pub fn logs(&mut self) -> Result<Logs> {
        self.training.logs()
    }

    /// The learning rate of the next step. Waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn learning_rate(&self) -> Result<f64> {
        self.training.learning_rate()
    }

    /// Changes the learning rate of the steps to come.
    ///
    /// # Errors
    /// As for [`Trainer::set_learning_rate`](crate::fit::Trainer::set_learning_rate).
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.training.set_learning_rate(rate)
    }

    /// Names and values of the model's variables. Waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn variables(&self) -> Result<Vec<(String, HostTensor)>> {
        self.training.variables()
    }

    /// The variables after the epoch of this hook. Parameter servers may be further than a first worker that came in the place of another:
    /// then there are those that a callback had kept in the checkpoint, or none.
    pub(super) fn variables_after_epoch(&self) -> Result<Option<NamedTensors>> {
        self.training.variables_after(self.place.epoch)
    }

    /// Tells which epoch's variables the model has now, and from which one on epochs were compared, from 1, where that is not the first.
    pub(super) fn notice_best(&self, epoch: usize, log: &str, since: Option<usize>) {
        let since = since.map_or_else(String::new, |since| format!(" since epoch {since}"));
        self.notice(&format!(
            "note: the model has the variables of epoch {epoch}, the best by `{log}`{since}"
        ));
    }

    /// Tells that the variables of the best epoch are gone.
    pub(super) fn notice_lost_best(&self, epoch: usize, log: &str) {
        self.notice(&format!(
            "warning: the variables of epoch {epoch}, the best by `{log}`, are not there: they were not kept then, or lost with the process that was the first worker; the model has the last ones"
        ));
    }

    /// Sets variables by name, the same in every process; the others stay.
    ///
    /// # Errors
    /// As for [`Trainer::set_variables`](crate::fit::Trainer::set_variables).
    pub fn set_variables(&mut self, values: &[(String, HostTensor)]) -> Result<()> {
        self.wishes.has_set_variables = true;
        self.training.set_variables(values)
    }

    /// Ends the training as if its epochs were done: after the step of a hook of a batch, with the validation and the end of the
    /// epoch, or after the epoch. A notice tells the user why.
    pub fn stop(&mut self, why: impl Into<String>) {
        self.wishes.stop.get_or_insert_with(|| why.into());
    }

    /// Why the training is to end, where a callback has asked for that.
    pub(super) fn stop_reason(&self) -> Option<&str> {
        self.wishes.stop.as_deref()
    }

    /// Writes a checkpoint, from which the training can go on, when all callbacks were called at this place.
    pub fn save_checkpoint(&mut self, path: impl Into<PathBuf>) {
        self.wishes.saves.push(SaveWish {
            path: Some(path.into()),
            older: 0,
            removed: Vec::new(),
            may_be_left_out: false,
        });
    }

    /// Writes the present values of the variables to a file, now; see
    /// [`Trainer::save_weights`](crate::fit::Trainer::save_weights).
    ///
    /// # Errors
    /// As for that.
    pub fn save_weights(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.training.save_weights(path.as_ref())
    }

    /// Writes the model and the present values of its variables to a directory, now; see
    /// [`Trainer::save`](crate::fit::Trainer::save).
    ///
    /// # Errors
    /// As for that.
    pub fn save_model(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.training.save_model(path.as_ref())
    }

    /// Tells the user something, in the first process.
    pub fn notice(&self, line: &str) {
        if self.is_chief() {
            self.training.notice(line);
        }
    }

    /// What this callback [remembered](super::Callback::state) when the checkpoint was written that training goes on from;
    /// nothing where a training begins.
    ///
    /// # Errors
    /// When the checkpoint has something else.
    pub fn restored<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some((name, state)) = self.restored else {
            return Ok(None);
        };
        let read = serde_json::from_value(state.values.clone());
        let read = read.map_err(|error| {
            let message = format!("expected the state of this callback: {error}; use the callbacks that it was saved with");
            problem("the checkpoint", &format!("callback `{name}`"), message)
        });
        read.map(Some)
    }

    /// The tensors of the same.
    #[must_use]
    pub fn restored_tensors(&self) -> &[(String, HostTensor)] {
        self.restored.map_or(&[], |(_, state)| &state.tensors)
    }

    /// The logs that an epoch can have, and which values of each are better.
    pub(super) fn goals(&self) -> Vec<(String, Option<Better>)> {
        let mut known = self.training.goals();
        if self.place.validates {
            let of_validation = known.clone().into_iter();
            known.extend(
                of_validation.map(|(name, better)| (format!("{}{name}", Logs::VALIDATION), better)),
            );
        }
        known
    }

    /// An error where a callback sets the learning rate and the optimizer has a schedule of its own.
    pub(super) fn check_rate_can_be_set(&self, who: &str) -> Result<()> {
        if !self.training.follows_schedule() {
            return Ok(());
        }
        Err(Error::user(format!(
            "{who} sets the learning rate, and the rate of the optimizer follows a schedule; give the optimizer a number as its rate, or leave {who} out"
        )))
    }

    /// The batch of a hook of a training batch, on this process.
    #[must_use]
    pub fn batch(&self) -> Option<&Batch> {
        self.training.batch()
    }

    /// Puts the moving averages of an optimizer that keeps them in the place of the variables, or back.
    ///
    /// # Errors
    /// When the optimizer keeps none, or the device fails.
    pub fn use_averages(&mut self, are_used: bool) -> Result<()> {
        self.training.use_averages(are_used)
    }

    /// Removes a checkpoint when the training has ended well.
    pub fn remove_checkpoint(&mut self, path: impl Into<PathBuf>) {
        self.wishes.removed.push(path.into());
    }

    /// Whether epochs have a validation.
    pub(super) const fn validates(&self) -> bool {
        self.place.validates
    }

    /// Whether no other process takes part.
    pub(super) fn is_alone(&self) -> bool {
        self.training.is_alone()
    }

    /// Where the training runs.
    pub(super) fn describe(&self) -> String {
        self.training.describe(self.place.batch_size)
    }

    pub(super) fn watch_bad_steps(&mut self, are_skipped: bool) -> Result<()> {
        self.training.watch_bad_steps(are_skipped)
    }

    /// Whether the state of the device is one to be kept no longer.
    pub(super) const fn is_state_lost(&self) -> bool {
        self.wishes.is_lost || self.wishes.rolls_back
    }

    pub(super) fn first_bad_step(&mut self) -> Result<Option<u64>> {
        self.training.first_bad_step()
    }

    pub(super) fn first_bad_tensor(&mut self, batch: Option<&Batch>) -> Result<String> {
        self.training.first_bad_tensor(batch)
    }

    /// The variables that the epoch was validated with: the moving averages where it was by these, else as
    /// [`variables_after_epoch`](Self::variables_after_epoch).
    pub(super) fn validated_variables(&self) -> Result<Option<NamedTensors>> {
        match self.place.is_validated_by_averages {
            true => self.training.variables_of(true).map(Some),
            false => self.variables_after_epoch(),
        }
    }

    /// The value of a log of an epoch; none of an epoch whose steps were all undone, which has a loss of nothing.
    pub(super) fn value_of(&self, logs: &Logs, name: &str) -> Option<f64> {
        let value = logs.get(name);
        value.filter(|value| !(self.place.is_undone && value.is_nan()))
    }

    /// Whether an epoch has no log of this name since it is one without a validation, where others have one.
    pub(super) fn is_for_later(&self, name: &str) -> bool {
        self.place.skips_validation && name.starts_with(Logs::VALIDATION)
    }

    /// Ends the training, whose state is worth nothing.
    pub(super) fn halt(&mut self, why: String) {
        self.wishes.is_lost = true;
        self.notice(&format!("warning: {why}; the training ends"));
        self.stop(why);
    }

    pub(super) const fn take_snapshot(&mut self) {
        self.wishes.takes_snapshot = true;
    }

    pub(super) const fn roll_back(&mut self) {
        self.wishes.rolls_back = true;
    }

    pub(super) fn wish_save(&mut self, wish: SaveWish) {
        self.wishes.saves.push(wish);
    }
}
