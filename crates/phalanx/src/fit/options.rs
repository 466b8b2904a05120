//! How long to train and what to do on the way.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data::{Batches, EpochLength, Position, TrainingData};
use crate::replicas::Placement;
use crate::{Error, Result};

use super::callbacks::{
    Callbacks, IntoCallback, KeepBest, ProgressBar, StragglerReport, TrainingCheckpoint,
};
use super::evaluate::check_finite;
use super::trace::{TraceOutput, TracePlan};
use super::{EpochLogs, Progress, SaveBehind, TensorBoard};

/// How long to train and what to do on the way: the arguments of Keras' `fit`, of which
/// [`steps_per_epoch`](Self::steps_per_epoch) begins each epoch of the data anew.
///
/// There is no `shuffle`, which Keras' `fit` does to arrays unless `shuffle=False` is given: examples come in the order of the data, so shuffle
/// these ([`Dataset::shuffle`](crate::data::Dataset::shuffle)) before they are cut into batches.
#[derive(Clone, Debug)]
pub struct Fit {
    pub(super) epochs: usize,
    pub(super) initial_epoch: usize,
    pub(super) steps_per_epoch: Option<usize>,
    pub(super) validation: Option<Batches>,
    pub(super) validation_steps: Option<usize>,
    pub(super) validation_freq: usize,
    pub(super) progress: Progress,
    pub(super) keep_best: Option<String>,
    pub(super) position: Option<Position>,
    pub(super) resume: bool,
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) keep_checkpoints: usize,
    pub(super) save_freq: Option<usize>,
    pub(super) save_behind: Option<SaveBehind>,
    pub(super) comparison: Option<u64>,
    pub(super) data_settings: Option<u32>,
    pub(super) data_meaning: Option<u32>,
    pub(super) watch: Watch,
    pub(super) stop: Option<Arc<AtomicBool>>,
    pub(super) after_epoch: Option<AfterEpoch>,
    pub(super) tensorboard: Option<TensorBoard>,
    pub(super) trace: Option<TracePlan>,
    pub(super) callbacks: Callbacks,
}

/// What is called after each epoch.
#[derive(Clone)]
pub(super) struct AfterEpoch(pub(super) Arc<EpochCallback>);

type EpochCallback = dyn Fn(&EpochLogs) -> Result<()> + Send + Sync;

impl std::fmt::Debug for AfterEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a function")
    }
}

/// When the replicas are timed one by one at the end of an epoch, to find one that keeps the others waiting; see
/// [`Trainer::replica_times`](super::Trainer::replica_times). Workers of mirrored training are watched all the time, unless it is `Never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// As soon as the training since the last timing, in one or more fits, took 50 times as long as a timing does. If
    /// replicas cannot be timed, a notice says so once and training goes on.
    #[default]
    Auto,
    /// After each epoch; an error when they cannot be timed.
    EveryEpoch,
    /// Never.
    Never,
}

impl Fit {
    /// Trains until `epochs` epochs are done.
    #[must_use]
    pub const fn epochs(epochs: usize) -> Self {
        Self {
            epochs,
            initial_epoch: 0,
            steps_per_epoch: None,
            validation: None,
            validation_steps: None,
            validation_freq: 1,
            progress: Progress::Auto,
            keep_best: None,
            position: None,
            resume: false,
            checkpoint: None,
            keep_checkpoints: 2,
            save_freq: None,
            save_behind: None,
            comparison: None,
            data_settings: None,
            data_meaning: None,
            watch: Watch::Auto,
            stop: None,
            after_epoch: None,
            tensorboard: None,
            trace: None,
            callbacks: Callbacks::new(),
        }
    }

    /// Starts at this epoch, counted from 0: the order of shuffled data follows the number of the epoch.
    #[must_use]
    pub const fn initial_epoch(mut self, epoch: usize) -> Self {
        self.initial_epoch = epoch;
        self
    }

    /// Goes on at this position in the data ([`Trainer::position`](super::Trainer::position)), within its epoch: what was
    /// read of it before is not read again. It takes the place of `initial_epoch`.
    #[must_use]
    pub fn position(mut self, position: Position) -> Self {
        self.initial_epoch = usize::try_from(position.epoch).unwrap_or(usize::MAX);
        self.position = Some(position);
        self
    }

    /// Goes on where the `fit` before was left, by an error or in a checkpoint that was restored
    /// ([`Trainer::restore_checkpoint`](super::Trainer::restore_checkpoint)): with the rest of its epoch, whose results cover
    /// the whole epoch. The history begins with the epochs done before. It takes the place of `initial_epoch`
    /// and `position`. Keras' `BackupAndRestore` begins the epoch anew.
    ///
    /// Of the epoch it goes on with, `seconds` and all of `input` are of the part since then alone. The data must be those
    /// of before: within an epoch, others that have another number of examples or other
    /// [`data_settings`](Self::data_settings) are refused; of another [`data_meaning`](Self::data_meaning) everywhere.
    #[must_use]
    pub const fn resume(mut self) -> Self {
        self.resume = true;
        self
    }

    /// Writes a checkpoint to this directory at the start and after each epoch, in the place of the one before, which is
    /// [kept](Self::keep_checkpoints) beside it: Keras' `BackupAndRestore`, which does not keep the position within an
    /// epoch.
    ///
    /// A checkpoint that is there and that the trainer neither read
    /// ([`Trainer::restore_checkpoint`](super::Trainer::restore_checkpoint)) nor wrote is an error of `fit`, so that a
    /// program that is run again does not replace what it has learned by its first step.
    #[must_use]
    pub fn checkpoint(mut self, path: impl Into<PathBuf>) -> Self {
        self.checkpoint = Some(path.into());
        self
    }

    /// Keeps this number of the last [checkpoints](Self::checkpoint), 2 by default: the newest at the path, the one before at
    /// `path.1` and so on. Where the newest is damaged,
    /// [`Trainer::restore_checkpoint`](super::Trainer::restore_checkpoint) takes the newest that is whole.
    #[must_use]
    pub const fn keep_checkpoints(mut self, count: usize) -> Self {
        self.keep_checkpoints = count;
        self
    }

    /// Also writes the [`checkpoint`](Self::checkpoint) every `batches` batches of an epoch.
    #[must_use]
    pub const fn save_freq(mut self, batches: usize) -> Self {
        self.save_freq = Some(batches);
        self
    }

    /// Writes checkpoints behind the training, also for callbacks: a step waits for the copy from the device alone. All is on
    /// disk when `fit` returns, whatever it returns; an error of writing ends the training at the next checkpoint or at its end.
    #[must_use]
    pub const fn save_behind(mut self, behind: SaveBehind) -> Self {
        self.save_behind = Some(behind);
        self
    }

    /// Compares the variables of all workers every this many steps, and ends the training with an error that names who has other
    /// values, and of what; 0 never does. By default it is after 100 steps, or more where it would take more than half a per cent of the
    /// time. Workers have equal values, to the bit: others come from memory that failed or from variables that one worker sets alone.
    #[must_use]
    pub const fn compare_workers(mut self, steps: u64) -> Self {
        self.comparison = Some(steps);
        self
    }

    /// Ends the training with [`Error::Stopped`] after the step or the batch of the validation in which this flag is
    /// found set, for instance by a signal; the [`checkpoint`](Self::checkpoint), if there is one, is written then. It can go on with
    /// [`resume`](Self::resume) and loses no step, where Keras' `stop_training` ends as if all epochs were done.
    #[must_use]
    pub fn stop_when(mut self, flag: &Arc<AtomicBool>) -> Self {
        self.stop = Some(Arc::clone(flag));
        self
    }

    /// Calls a function with the results of each epoch when it is done, before its checkpoint is written: Keras'
    /// `on_epoch_end`. Its error ends the training.
    #[must_use]
    pub fn after_epoch(
        mut self,
        call: impl Fn(&EpochLogs) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.after_epoch = Some(AfterEpoch(Arc::new(call)));
        self
    }

    /// Writes event files that TensorBoard reads to a folder, or what else the settings ask for: the results of each epoch, before
    /// [`after_epoch`](Self::after_epoch) is called: Keras' `TensorBoard`, with its folders `train` and `validation`, its tags
    /// `epoch_loss`, `epoch_accuracy` and so on and `epoch_learning_rate`, the rate of the next step. The step is the number of the epoch, from 0. A
    /// file that cannot be written ends the training.
    ///
    /// What is in the folder already of the first epoch and later ones, TensorBoard no longer shows: a training that
    /// [goes on](Self::resume) continues the curves of before, and one that begins anew replaces them.
    #[must_use]
    pub fn tensorboard(mut self, settings: impl Into<TensorBoard>) -> Self {
        self.tensorboard = Some(settings.into());
        self
    }

    /// Adds a callback; see [`callbacks`](super::callbacks). They are called in the order in which they were added.
    ///
    /// To look at a callback after the training, give a copy of an `Arc<Mutex<_>>` of it, and keep the other.
    #[must_use]
    pub fn callback(mut self, callback: impl IntoCallback) -> Self {
        self.callbacks.push(callback);
        self
    }

    /// Writes a trace of `steps` steps, after `after` others, to a file that Perfetto and `chrome://tracing` open: what the host of each
    /// process does, and when its devices run steps, by one clock. The file's folder is made where there is none. Both are at least 1; the
    /// first step is compiled in its course. A training that ends before writes nothing. Training waits for the devices where the trace begins and where it ends. A training
    /// whose variables are on parameter servers is refused.
    #[must_use]
    pub fn trace(mut self, path: impl Into<PathBuf>, after: usize, steps: usize) -> Self {
        self.trace = Some(TracePlan {
            output: TraceOutput::Chrome(path.into()),
            after: after.max(1) as u64,
            steps: steps.max(1) as u64,
        });
        self
    }

    /// The trace to be written, if any: of these steps, or of those that TensorBoard's profiler is to show.
    pub(super) fn trace_plan(&self, placement: &Placement) -> Result<Option<TracePlan>> {
        let profile = self.tensorboard.as_ref().and_then(TensorBoard::profile);
        match (&self.trace, profile) {
            (None, None) => Ok(None),
            _ if placement.servers().is_some() => Err(Error::user(
                "steps are not traced where variables are on parameter servers; leave out `trace`, and `profile_batch` of TensorBoard",
            )),
            (Some(_), Some(_)) => Err(Error::user(
                "one `fit` makes one trace: leave out `trace` or `profile_batch` of TensorBoard",
            )),
            (trace, profile) => Ok(trace.clone().or(profile)),
        }
    }

    /// Calls what is to be called after an epoch.
    pub(super) fn call_after(&self, done: &EpochLogs) -> Result<()> {
        self.after_epoch
            .as_ref()
            .map_or(Ok(()), |call| (call.0)(done))
    }

    /// Whether the training is to end now.
    pub(super) fn is_stop_asked(&self) -> bool {
        let flag = self.stop.as_ref();
        flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// What the data are made by, in any words, such as the settings they are read with: checkpoints keep a checksum of the
    /// text, so that [`resume`](Self::resume) does not go on within an epoch of other data.
    #[must_use]
    pub fn data_settings(mut self, text: impl AsRef<str>) -> Self {
        self.data_settings = Some(crc32c::crc32c(text.as_ref().as_bytes()));
        self
    }

    /// What the numbers of an example mean, in any words, such as the means that features are scaled by and the order of a vocabulary:
    /// checkpoints keep a checksum of the text, and [`resume`](Self::resume) goes on with the same alone.
    #[must_use]
    pub fn data_meaning(mut self, text: impl AsRef<str>) -> Self {
        self.data_meaning = Some(crc32c::crc32c(text.as_ref().as_bytes()));
        self
    }

    /// The callbacks, among them those that other settings are short for.
    pub(super) fn all_callbacks(&self) -> Callbacks {
        let mut before = vec![StragglerReport::new(self.watch).into_shared()];
        if let Some(log) = &self.keep_best {
            before.push(KeepBest::new(log).into_shared());
        }
        let mut after = Vec::new();
        if !self.callbacks.has(ProgressBar::KIND) {
            after.push(ProgressBar::new(self.progress).into_shared());
        }
        if let Some(path) = &self.checkpoint {
            let mut checkpoint = TrainingCheckpoint::new(path).keep(self.keep_checkpoints);
            if let Some(freq) = self.save_freq {
                checkpoint = checkpoint.save_freq(freq);
            }
            after.push(checkpoint.into_shared());
        }
        self.callbacks.between(before, after)
    }

    /// Ends an epoch after `steps` batches. The next epoch starts with the first batch of its own order; epochs that go on where the one
    /// before ended, as Keras' do and `steps_per_epoch` of a training file, are [`Batches::epochs_of`](crate::data::Batches::epochs_of).
    /// Endless data need one or the other.
    #[must_use]
    pub const fn steps_per_epoch(mut self, steps: usize) -> Self {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Evaluates on these batches after each epoch; results are logged under names that begin with `val_`.
    #[must_use]
    pub fn validation(mut self, batches: &Batches) -> Self {
        self.validation = Some(batches.clone());
        self
    }

    /// Validates on the first `steps` batches alone, the same ones each time; endless data need it.
    #[must_use]
    pub const fn validation_steps(mut self, steps: usize) -> Self {
        self.validation_steps = Some(steps);
        self
    }

    /// Validates every `epochs` epochs only: with 2 after the second, the fourth and so on, whatever the training goes on from. The logs of
    /// the others have no results that begin with `val_`, and callbacks that watch one pass over them: their patience counts validations.
    /// Keras' [`ModelCheckpoint`](super::callbacks::ModelCheckpoint) of the best alone writes in them too, in place of the best.
    #[must_use]
    pub const fn validation_freq(mut self, epochs: usize) -> Self {
        self.validation_freq = epochs;
        self
    }

    /// Restores at the end the variables of the epoch with the best value of this log, such as `val_accuracy`: the greatest,
    /// of a loss or an error the least. Keras' `ModelCheckpoint(save_best_only)` and `EarlyStopping(restore_best_weights)`
    /// do this with files and with a stop; the optimizer's state is the one of the last epoch.
    #[must_use]
    pub fn keep_best(mut self, log: impl Into<String>) -> Self {
        self.keep_best = Some(log.into());
        self
    }

    /// When the replicas are timed. A straggler is reported at the end of the epoch and in its
    /// [`EpochLogs`](super::EpochLogs). Only replicas with their own copy of the variables are timed.
    ///
    /// Of several workers that train together one is named that takes twice the time of the others for its part of a step, in three votes
    /// on whether to go on in a row and for half a second in all, and again when it does so no more: in a notice of the first worker and its
    /// own, and in [`EpochLogs::slow_workers`](super::EpochLogs::slow_workers).
    #[must_use]
    pub const fn watch_replicas(mut self, watch: Watch) -> Self {
        self.watch = watch;
        self
    }

    /// How progress is shown.
    #[must_use]
    pub const fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// What is validated on, where anything is.
    pub(super) fn to_validate(&self) -> Result<Option<Batches>> {
        let steps = self.validation_steps;
        let Some(batches) = &self.validation else {
            return match steps {
                None => Ok(None),
                Some(_) => Err(Error::user(
                    "validation_steps is set, and there is nothing to validate on; say what with `validation`",
                )),
            };
        };
        if steps == Some(0) {
            return Err(Error::user(
                "validation_steps is 0; expected 1 or more batches",
            ));
        }
        let batches = steps.map_or_else(|| batches.clone(), |steps| batches.take(steps));
        if batches.len().is_none() {
            return Err(Error::user(
                "cannot validate on endless data; say on how many batches with validation_steps",
            ));
        }
        check_finite(&batches, "validate")?;
        Ok(Some(batches))
    }

    /// Number of steps in an epoch over the data; `None` is as many as a stream has.
    pub(super) fn steps(&self, data: &dyn TrainingData) -> Result<Option<usize>> {
        if self.validation_freq == 0 {
            return Err(Error::user(
                "validation_freq is 0; expected 1 or more epochs",
            ));
        }
        if self.keep_checkpoints == 0 {
            return Err(Error::user(
                "keep_checkpoints is 0; expected 1 or more, the newest among them",
            ));
        }
        match (self.save_freq, &self.checkpoint) {
            (Some(0), _) => {
                return Err(Error::user("save_freq is 0; expected 1 or more batches"));
            }
            (Some(_), None) => {
                return Err(Error::user(
                    "save_freq is set, and there is no checkpoint to write; say where with `checkpoint`",
                ));
            }
            _ => {}
        }
        check_batch_size(data.batch_size())?;
        if self.steps_per_epoch == Some(0) {
            return Err(Error::user(
                "steps_per_epoch is 0; expected 1 or more batches",
            ));
        }
        match data.epoch_length() {
            EpochLength::Known(len) => self.steps_of(Some(len)).map(Some),
            EpochLength::Endless => self.steps_of(None).map(Some),
            EpochLength::Unknown => Ok(self.steps_per_epoch),
        }
    }

    /// What is to be said of epochs that end before their data.
    pub(super) fn cut_epoch_warning(&self, data: &dyn TrainingData) -> Option<String> {
        let steps = self.steps_per_epoch?;
        match data.epoch_length() {
            EpochLength::Known(len) if steps < len => Some(format!(
                "each epoch trains on the first {steps} of its {len} batches, and without a shuffle the others are never seen; train on `batches.epochs_of({steps})` to go on where an epoch ended"
            )),
            EpochLength::Endless if !data.by_index()?.dataset().shuffles() => Some(format!(
                "each epoch begins the endless data anew and trains on their first {steps} batches; where they have other examples after these, they are never seen; train on `batches.epochs_of({steps})` to go on where an epoch ended"
            )),
            EpochLength::Known(_) | EpochLength::Endless | EpochLength::Unknown => None,
        }
    }

    /// What is to be said of a validation that never comes in the epochs from `first` on.
    pub(super) fn no_validation_warning(&self, first: usize) -> Option<String> {
        let (freq, epochs) = (self.validation_freq, self.epochs);
        let is_never = self.validation.is_some() && first / freq >= epochs / freq;
        (is_never && first < epochs).then(|| {
            format!(
                "validation_freq is {freq}, and the training ends after epoch {epochs}: nothing is validated from epoch {} on; lower it, or train for more epochs",
                first + 1
            )
        })
    }

    /// What is to be said of an epoch that a stream has ended after `done` steps.
    pub(super) fn short_epoch_warning(
        &self,
        data: &dyn TrainingData,
        done: usize,
    ) -> Option<String> {
        let steps = self.steps_per_epoch.filter(|steps| done < *steps)?;
        (data.epoch_length() == EpochLength::Unknown).then(|| {
            format!(
                "the data ended after {done} batches of an epoch, and steps_per_epoch is {steps}: epochs are shorter than asked for; lower steps_per_epoch, or let the stream go on"
            )
        })
    }

    fn steps_of(&self, len: Option<usize>) -> Result<usize> {
        match (self.steps_per_epoch, len) {
            (Some(steps), None) => Ok(steps),
            (Some(steps), Some(len)) if steps <= len => Ok(steps),
            (Some(steps), Some(len)) => Err(Error::user(format!(
                "steps_per_epoch is {steps}, but an epoch of the data has {len} batches; lower it, or train on `batches.epochs_of({steps})`"
            ))),
            (None, Some(0)) => Err(Error::user(
                "the data have no batch to train on; check the dataset and drop_remainder",
            )),
            (None, Some(len)) => Ok(len),
            (None, None) => Err(Error::user(
                "the data are endless; say where an epoch ends with `batches.epochs_of` or steps_per_epoch",
            )),
        }
    }
}

/// Refuses batches of no rows.
pub(super) fn check_batch_size(size: usize) -> Result<()> {
    if size == 0 {
        return Err(Error::user(
            "the batch size is 0; expected 1 or more examples",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, HostTensor};
    use crate::fit::callbacks::EarlyStopping;

    #[test]
    fn epochs_that_end_before_their_data_are_told() {
        let x = HostTensor::new([10], &[0.0f32; 10]);
        let five = Dataset::from_arrays(x, Vec::new()).unwrap().batch(2);
        let warned = |steps, data: &Batches| {
            let fit = Fit::epochs(2).steps_per_epoch(steps);
            fit.cut_epoch_warning(data)
        };
        let warning = warned(3, &five).unwrap();
        let expected = "each epoch trains on the first 3 of its 5 batches";
        assert!(warning.contains(expected), "{warning}");
        assert!(warning.contains("batches.epochs_of(3)"), "{warning}");
        assert_eq!(warned(5, &five), None);
        assert_eq!(warned(3, &five.epochs_of(3)), None);
        let endless = |data: &Dataset| data.repeat_forever().batch(2);
        let warning = warned(3, &endless(five.dataset())).unwrap();
        assert!(
            warning.contains("begins the endless data anew"),
            "{warning}"
        );
        assert_eq!(warned(3, &endless(&five.dataset().shuffle(1))), None);
    }

    #[test]
    fn settings_are_callbacks_around_those_of_the_user() {
        let of = |fit: &Fit| format!("{:?}", fit.all_callbacks());
        assert_eq!(
            of(&Fit::epochs(1)),
            r#"["straggler_report", "progress_bar"]"#
        );
        let fit = Fit::epochs(1)
            .callback(EarlyStopping::new("loss"))
            .keep_best("loss")
            .checkpoint("c");
        let all = r#"["straggler_report", "keep_best", "early_stopping", "progress_bar", "training_checkpoint"]"#;
        assert_eq!(of(&fit), all);
        assert_eq!(fit.all_callbacks().checkpoints(), [PathBuf::from("c")]);
        // One that is given takes the place of the default.
        let own = Fit::epochs(1).callback(ProgressBar::new(Progress::Silent));
        assert_eq!(of(&own), r#"["straggler_report", "progress_bar"]"#);
    }
}
