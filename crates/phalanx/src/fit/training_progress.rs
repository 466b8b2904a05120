//! How far a training is: its position in the data, and the epochs done.

use super::Fit;
use super::history::{EpochLogs, History};
use super::recovery::StepLog;
use crate::data::{Position, TrainingData};
use crate::engine::Engine;
use crate::{Error, Result};

/// What the host knows of the way that a [`Trainer`](super::Trainer) has gone; the device has the values.
pub(super) struct TrainingProgress {
    /// The position of the last `fit` in its data, and whether the epoch totals hold the sums of that epoch so far.
    pub(super) position: Position,
    pub(super) is_mid_epoch: bool,
    /// The number of examples of that data, where it is known, and the checksums of their settings and of what they mean.
    pub(super) examples: Option<u64>,
    pub(super) data_settings: Option<u32>,
    pub(super) data_meaning: Option<u32>,
    pub(super) history: History,
    /// The positions after the last steps begun, to go back to one of them.
    pub(super) step_log: StepLog,
    /// Steps of this `fit` that other generations of processes have made.
    pub(super) steps_before: u64,
    /// The number of the last `fit`, for the names of its phases on parameter servers.
    pub(super) fit_number: u64,
}

impl TrainingProgress {
    /// Nothing was trained.
    pub(super) fn new() -> Self {
        Self {
            position: Position::start(0),
            is_mid_epoch: false,
            examples: None,
            data_settings: None,
            data_meaning: None,
            history: History::default(),
            step_log: StepLog::default(),
            steps_before: 0,
            fit_number: 0,
        }
    }

    /// Begins a `fit` on data: where it goes on, and the first epoch.
    pub(super) fn begin(
        &mut self,
        engine: &Engine,
        data: &dyn TrainingData,
        fit: &Fit,
    ) -> Result<usize> {
        let examples = data.examples().map(|len| len as u64);
        self.check_resume(data, fit)?;
        if fit.resume {
            self.notice_other_data(engine, examples, fit.data_settings);
        }
        (self.examples, self.data_settings) = (examples, fit.data_settings);
        self.data_meaning = fit.data_meaning;
        if fit.resume {
            return Ok(usize::try_from(self.position.epoch).unwrap_or(usize::MAX));
        }
        self.position = match &fit.position {
            Some(position) => position.clone(),
            None => Position::start(fit.initial_epoch as u64),
        };
        self.is_mid_epoch = false;
        self.history = History::default();
        Ok(fit.initial_epoch)
    }

    /// Refuses data that a `fit` which goes on may not have.
    pub(super) fn check_resume(&self, data: &dyn TrainingData, fit: &Fit) -> Result<()> {
        if !fit.resume {
            return Ok(());
        }
        self.check_meaning(fit.data_meaning)?;
        let examples = data.examples().map(|len| len as u64);
        self.check_data(examples, fit.data_settings)
    }

    /// Refuses to give a model that has learnt from some numbers others in their place, wherever it is in an epoch.
    fn check_meaning(&self, meaning: Option<u32>) -> Result<()> {
        let known = self.data_meaning.zip(meaning);
        if known.is_none_or(|(there, here)| there == here) {
            return Ok(());
        }
        Err(Error::user(
            "the training to go on with was of data whose numbers meant something else: what was found in its training rows, such as means, classes or the order of words, is not what is found in these; give it the data of before, or begin anew",
        ))
    }

    fn is_read_otherwise(&self, settings: Option<u32>) -> bool {
        let known = self.data_settings.zip(settings);
        known.is_some_and(|(there, here)| there != here)
    }

    /// Tells between epochs that the data are others.
    fn notice_other_data(&self, engine: &Engine, examples: Option<u64>, settings: Option<u32>) {
        let is_resized = self.examples.is_some() && self.examples != examples;
        if self.position.segments.is_empty() && (is_resized || self.is_read_otherwise(settings)) {
            engine.notice("note: the data or their settings differ from the epochs before");
        }
    }

    /// Refuses to go on within an epoch of other data.
    fn check_data(&self, examples: Option<u64>, settings: Option<u32>) -> Result<()> {
        if self.position.segments.is_empty() {
            return Ok(());
        }
        let epoch = self.position.epoch.saturating_add(1);
        if self.examples != examples {
            let count = |examples: Option<u64>| match examples {
                Some(count) => format!("{count} examples"),
                None => "no known number of examples".to_owned(),
            };
            let (there, here) = (count(self.examples), count(examples));
            return Err(Error::User(format!(
                "the training to go on with was interrupted within epoch {epoch}, of data with {there}, and these have {here}; give it the data of before, or begin anew"
            )));
        }
        if self.is_read_otherwise(settings) {
            return Err(Error::User(format!(
                "the training to go on with was interrupted within epoch {epoch}, of data with other settings; give it the data and validation of before, or begin anew"
            )));
        }
        Ok(())
    }

    /// Whether the epoch was begun with batches of another size, so that its number of steps differs.
    pub(super) fn has_other_batches(&self, data: &dyn TrainingData, fit: &Fit) -> bool {
        let mut segments = self.position.segments.iter();
        fit.steps_per_epoch.is_none() && segments.any(|segment| segment.batch != data.batch_size())
    }

    /// Another step was begun, which ends at this position; whether the training can go back to it.
    pub(super) fn advance_to(&mut self, position: Position, is_begin: bool) {
        self.step_log.begun(&position, is_begin);
        self.position = position;
    }

    /// An epoch is done, and the next one is to begin.
    pub(super) fn end_epoch(&mut self, done: EpochLogs) {
        self.position = Position::start(done.epoch as u64 + 1);
        self.step_log.settled(&self.position);
        self.is_mid_epoch = false;
        self.history.epochs.push(done);
    }

    /// Begins the log of steps, before the first one; the device has counted this number of batches.
    pub(super) fn begin_step_log(&mut self, counted: i64) {
        self.step_log = StepLog::new(self.steps_before, counted, &self.position);
    }

    /// The state went back to an earlier one, at which the device has counted this number of batches, and the data go on where they are.
    pub(super) fn rolled_back(&mut self, counted: i64) {
        self.step_log.rolled_back(counted, &self.position);
    }

    /// Goes back to the step at which the device has counted this number of batches; returns its number in this `fit`.
    pub(super) fn rewind(&mut self, counted: i64) -> Result<u64> {
        let Some((steps, position)) = self.step_log.at(counted) else {
            return Err(Error::Bug(format!(
                "the device has counted {counted} batches, which is none of the last steps"
            )));
        };
        self.position = position.clone();
        Ok(steps)
    }

    /// Takes a place within the epoch, for a checkpoint.
    pub(super) fn hold_at(&mut self, position: Position) {
        self.position = position;
        self.is_mid_epoch = true;
    }
}
