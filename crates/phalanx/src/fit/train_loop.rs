//! The loop of `fit`: epochs, their steps, their validation, and what is done around each.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use super::callback_calls::KeptStates;
use super::callbacks::{HookPlace, Wishes};
use super::divided_batch::DividedBatch;
use super::example_weights::lone_weight_warning;
use super::history::{EpochLogs, History, InputReport, Logs};
use super::in_flight::InFlight;
use super::recovery::Attempts;
use super::reports::{input_of, stopped_error};
use super::step_times::{StepPart, StepTimes, exchange_wait};
use super::tensorboard::Events;
use super::trace::StepTrace;
use super::workers::{agree_on_examples, finish_together, on_chief};
use super::{Fit, Trainer};
use crate::checkpoint::{TrainingState, mark_done, unmark_done};
use crate::data::{Batch, EpochBatches, TrainingData};
use crate::{Error, Result};

impl Trainer {
    /// Trains on batches for some epochs and reports the results of each. Batches come in the order that the data have: nothing is shuffled
    /// here, unlike arrays in Keras' `fit`; see [`Dataset::shuffle`](crate::data::Dataset::shuffle).
    ///
    /// The loss of an epoch is the mean over its examples by weight, while the variables change, as in Keras;
    /// weights count in the divisor too, where Keras divides by the number of examples. With an optimizer that averages
    /// the variables ([`Optimizer::ema`](crate::optim::Optimizer::ema)) the averages become the variables at the end, unless
    /// the variables of the best epoch are kept ([`Fit::keep_best`]), which are what that epoch was validated with.
    ///
    /// # Errors
    /// When the data do not fit the model, an epoch has no end, no batch or no weight, a source fails, the device does, a callback
    /// does, or the loss or, after the last step, a variable becomes infinite or not a number. [`Error::Stopped`]:
    /// [`Fit::stop_when`].
    pub fn fit(&mut self, data: &dyn TrainingData, fit: Fit) -> Result<History> {
        let world = self.placement().world().cloned();
        let _call = world.as_ref().map(|world| world.enter("trains in `fit`"));
        let Some(mut attempts) = Attempts::begin(self, fit) else {
            return Ok(History::default());
        };
        // Once, and again after each loss of another process.
        loop {
            let has_averages = self.replaced.uses_averages();
            let trained = attempts.own_part(data).and_then(|own| {
                let data = own.as_deref().unwrap_or(data);
                let mut run = FitRun::begin(self, data, &attempts.fit)?;
                while run.begin_epoch()? {
                    let results = run.train_epoch()?;
                    run.end_epoch(results)?;
                }
                run.take_results()
            });
            let trained = trained.inspect_err(|_| self.put_back(has_averages));
            let closed = self.close_fit(&attempts.fit, trained.is_ok());
            let trained = trained.and(closed).map(|()| self.progress.history.clone());
            if let Some(history) = attempts.end(self, trained)? {
                return Ok(history);
            }
        }
    }

    /// Ends what a `fit` has opened, whether or not it went to its end.
    fn close_fit(&mut self, fit: &Fit, has_succeeded: bool) -> Result<()> {
        let mut written = self.writer.finish();
        if let (Some(path), true, true) = (&fit.checkpoint, has_succeeded, written.is_ok()) {
            written = on_chief(self.placement(), "done", || mark_done(path));
        }
        self.compiled.watches_bad_steps = false;
        self.events.end(has_succeeded && written.is_ok());
        self.trace.end(&mut self.compiled, has_succeeded);
        self.take_states();
        written
    }
}

/// A `fit` while it runs.
pub(super) struct FitRun<'r> {
    pub(super) trainer: &'r mut Trainer,
    pub(super) data: &'r dyn TrainingData,
    pub(super) fit: Cow<'r, Fit>,
    /// The steps of an epoch, where that is known.
    steps: Option<usize>,
    /// The epochs to come.
    epochs: Range<usize>,
    epoch: CurrentEpoch,
    pub(super) place: HookPlace,
    pub(super) wishes: Wishes,
    /// What [`Wishes::rolls_back`] goes back to.
    snapshot: Option<TrainingState>,
    /// States that were to be copied and had values that are not finite, though no loss had.
    bad_states: u32,
    told: Told,
}

/// More of the states that are copied are not found to be bad before that is an error.
const MOST_BAD_STATES: u32 = 3;

/// What was told once.
#[derive(Default)]
struct Told {
    /// That epochs are shorter than asked for.
    is_short: bool,
    /// That weights change nothing.
    is_lone: bool,
}

/// The epoch that is being trained.
struct CurrentEpoch {
    begun: Instant,
    is_resumed: bool,
    /// Whether steps of it were undone.
    is_rolled_back: bool,
}

impl<'r> FitRun<'r> {
    /// Checks what is asked for and what it goes on from, and calls the callbacks for the first time.
    fn begin(trainer: &'r mut Trainer, data: &'r dyn TrainingData, fit: &'r Fit) -> Result<Self> {
        trainer.compiled.setup.objective.require_loss("train")?;
        let steps = fit.steps(data)?;
        fit.to_validate()?;
        let fit = trainer.restore_backup(fit)?;
        let callbacks = fit.all_callbacks();
        trainer
            .own_checkpoints
            .check(trainer.placement(), &callbacks)?;
        let first = begin_progress(trainer, data, &fit)?;
        let first = trainer.agree_on_start(first, &fit, data)?;
        trainer.agree_with_servers((first, &fit), data)?;
        let placement = &trainer.compiled.placement;
        trainer.writer.take_checkpoints(placement, &callbacks)?;
        trainer.callbacks = callbacks;
        // Until all have begun.
        trainer.kept_states = Some(KeptStates {
            states: trainer.callback_states.clone(),
            rate: None,
        });
        trainer.events = Events::begin(&trainer.compiled, &fit, first)?;
        trainer.trace = StepTrace::new(fit.trace_plan(trainer.placement())?);
        let mut run = Self {
            steps,
            epochs: first..fit.epochs,
            epoch: CurrentEpoch::begin(),
            place: HookPlace {
                epoch: first,
                epochs: fit.epochs,
                validates: fit.validation.is_some(),
                is_resumed: fit.resume,
                steps,
                steps_before: 0,
                batch_size: data.batch_size(),
                most_rows: data.most_rows(),
                execution: 1,
                ..HookPlace::default()
            },
            wishes: Wishes::default(),
            snapshot: None,
            bad_states: 0,
            told: Told::default(),
            trainer,
            data,
            fit,
        };
        run.call(|callback, cx| callback.on_train_begin(cx))?;
        // Given back, and out of date from now on.
        run.trainer.callback_states.clear();
        run.trainer.kept_states = None;
        if let Some(path) = &run.fit.checkpoint {
            on_chief(run.trainer.placement(), "begun", || unmark_done(path))?;
        }
        run.save_wished()?;
        run.warn_at_start();
        // Forgets the time before the training.
        run.take_times();
        Ok(run)
    }

    /// Begins the next epoch; whether there is one.
    fn begin_epoch(&mut self) -> Result<bool> {
        let Some(epoch) = self.epochs.next() else {
            return Ok(false);
        };
        let trainer = &mut *self.trainer;
        if trainer.is_stop_agreed(&self.fit, &mut InFlight::default())? {
            self.save_interrupted()?;
            return Err(self.stopped());
        }
        let has_others = (self.trainer.progress).has_other_batches(self.data, &self.fit);
        self.place.steps = self.steps.filter(|_| !has_others);
        self.place.epoch = epoch;
        self.place.skips_validation =
            self.place.validates && !(epoch + 1).is_multiple_of(self.fit.validation_freq);
        self.place.steps_before = self.trainer.progress.position.trained();
        (self.place.is_validated_by_averages, self.place.is_undone) = (false, false);
        self.call(|callback, cx| callback.on_epoch_begin(epoch, cx))?;
        if self.wants_stop() {
            return Ok(false);
        }
        self.snapshot_or_roll_back()?;
        self.epoch = CurrentEpoch::begin();
        Ok(true)
    }

    /// The rest of the epoch at the position: its results, its steps, and what reading its data cost.
    fn train_epoch(&mut self) -> Result<(Logs, usize, InputReport)> {
        if let Some(servers) = self.trainer.compiled.placement.servers().cloned() {
            return self.train_epoch_with_servers(&servers, self.place.steps);
        }
        self.begin_totals()?;
        self.trainer.compiled.begin_own_times();
        let (skipped, starved) = (
            self.data.skipped(),
            self.trainer.compiled.clock.of(StepPart::Input),
        );
        let mut batches = self.data.batches_from(&self.trainer.progress.position)?;
        if self.trainer.placement().world().is_none() {
            batches.pass_over_empty();
        }
        let (mut flight, mut done) = (InFlight::default(), 0);
        while self.has_steps_left(done) && !self.wants_stop() {
            let run = self.next_batches(&mut *batches, done)?;
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                break;
            };
            self.place.execution = run.len();
            self.warn_if_lone(&first.batch);
            self.before_steps(&first.batch, done, &mut flight)?;
            self.look_at_gradients(first, done, &mut flight)?;
            let model = &mut self.trainer.compiled;
            for batches in model.programs(&run) {
                let key = model.compile_steps(batches, &mut flight)?;
                model.run_steps(&key, batches, &mut flight)?;
            }
            model.clock.enter(StepPart::Callbacks);
            let is_begin = model.state.is_begin();
            (self.trainer.progress).advance_to(batches.data_position(), is_begin);
            done += run.len();
            self.after_steps(&last.batch, done, &mut flight)?;
        }
        self.trainer.compiled.clock.enter(StepPart::Compute);
        finish_together(self.trainer.placement(), &mut flight)?;
        self.trainer.exchange_sums()?;
        self.look_at_steps()?;
        if let Some(checksum) = batches.checksum() {
            agree_on_examples(self.trainer.placement(), checksum)?;
        }
        let starved = self.trainer.compiled.clock.of(StepPart::Input) - starved;
        let (stages, elapsed) = (batches.stage_times(), self.epoch.begun.elapsed());
        let input = input_of(self.data, stages, starved, elapsed, skipped);
        self.epoch_results(done, input)
    }

    /// Sums from the begin of the epoch, or from where it was interrupted.
    fn begin_totals(&mut self) -> Result<()> {
        self.epoch.is_resumed = self.trainer.progress.is_mid_epoch;
        if !self.epoch.is_resumed {
            self.trainer.compiled.reset_epoch_totals()?;
            self.trainer.progress.is_mid_epoch = true;
        }
        Ok(())
    }

    /// The batches of the next execution: fewer where the epoch ends, or a callback has something to do after fewer.
    fn next_batches(
        &mut self,
        batches: &mut dyn EpochBatches,
        done: usize,
    ) -> Result<Vec<DividedBatch>> {
        let most = match self.trainer.compiled.setup.steps_per_execution {
            1 => 1,
            steps => {
                let due = self.trainer.callbacks.batches_until_due();
                steps.min(due.unwrap_or(steps)).min(self.steps_left(done))
            }
        };
        let mut run = Vec::with_capacity(most);
        while run.len() < most {
            let model = &mut self.trainer.compiled;
            model.clock.enter(StepPart::Input);
            let Some(batch) = batches.next() else { break };
            model.clock.enter(StepPart::Transfer);
            let (mut batch, part) = (batch?, batches.worker_part()?);
            // Examples are numbered in the whole batch, of which this process may have a part.
            batch.first += part.map_or(0, |part| part.first_row as u64);
            let place = (part, batches.full_rows());
            let (partition, shape) = model.part_of(&batch, self.data, place)?;
            run.push(DividedBatch {
                batch,
                partition,
                shape,
            });
        }
        Ok(run)
    }

    /// Whether the epoch has more steps than those `done` in this `fit`.
    fn has_steps_left(&self, done: usize) -> bool {
        self.steps_left(done) > 0
    }

    /// The most steps that the epoch has after those `done` in this `fit`.
    fn steps_left(&self, done: usize) -> usize {
        let most = self.fit.steps_per_epoch.unwrap_or(usize::MAX);
        most.saturating_sub(self.place.steps_before)
            .saturating_sub(done)
    }

    /// What goes before the steps of an execution, which come after those `done` of this `fit` in the epoch.
    fn before_steps(&mut self, batch: &Batch, done: usize, flight: &mut InFlight) -> Result<()> {
        let number = self.place.steps_before + done;
        self.trainer.compiled.clock.enter(StepPart::Callbacks);
        self.call_in_flight((flight, Some(batch)), |callback, cx| {
            callback.on_train_batch_begin(number, cx)
        })?;
        self.trainer.compiled.clock.enter(StepPart::Transfer);
        Ok(())
    }

    /// Computes the gradients of the first batch of an epoch, where they are to be written.
    fn look_at_gradients(
        &mut self,
        first: &DividedBatch,
        done: usize,
        flight: &mut InFlight,
    ) -> Result<()> {
        let Trainer {
            compiled, events, ..
        } = &mut *self.trainer;
        let is_first = self.place.steps_before + done == 0;
        if !is_first || !events.wants_gradients(self.place.epoch) {
            return Ok(());
        }
        let before = compiled.clock.enter(StepPart::Callbacks);
        events.take_gradients(compiled.gradients(first, flight)?);
        compiled.clock.enter(before);
        Ok(())
    }

    /// What follows them: callbacks, checkpoints, and the end where one is asked for. The last of the `done` steps was on this batch.
    fn after_steps(&mut self, batch: &Batch, done: usize, flight: &mut InFlight) -> Result<()> {
        let (number, steps) = (self.place.steps_before + done - 1, self.place.execution);
        let trainer = &mut *self.trainer;
        let epoch = trainer.progress.position.epoch;
        let model = &mut trainer.compiled;
        trainer.events.write_batch(model, (epoch, steps), flight)?;
        trainer.trace.after_steps((model, steps), flight)?;
        self.call_in_flight((flight, Some(batch)), |callback, cx| {
            callback.on_train_batch_end(number, cx)
        })?;
        // A step whose exchange failed changes nothing and is no error, and quick ones are soon too many to be taken back.
        if let Some(world) = self.trainer.compiled.placement.world() {
            world.check()?;
        }
        let trainer = &mut *self.trainer;
        let (model, every) = (&mut trainer.compiled, self.fit.comparison);
        trainer
            .comparison
            .compare_with_workers(model, every, flight)?;
        if self.wishes.is_lost {
            return Ok(());
        }
        let wishes = &self.wishes;
        if wishes.rolls_back || wishes.takes_snapshot || !wishes.saves.is_empty() {
            flight.finish(self.trainer.compiled.placement.engine())?;
            self.trainer.exchange_sums()?;
            self.look_at_steps()?;
            self.save_wished()?;
        }
        if !self.trainer.is_stop_agreed(&self.fit, flight)? {
            return Ok(());
        }
        flight.finish(self.trainer.compiled.placement.engine())?;
        self.trainer.compiled.results(0.0)?;
        self.trainer.exchange_sums()?;
        self.look_at_steps()?;
        self.save_interrupted()?;
        Err(self.stopped())
    }

    /// Lets callbacks look at the steps done before something is read of them; no step is in flight.
    fn look_at_steps(&mut self) -> Result<()> {
        self.call(|callback, cx| callback.on_steps_done(cx))?;
        match self.wishes.is_lost {
            true => Ok(()),
            false => self.snapshot_or_roll_back(),
        }
    }

    /// The results of the epoch after `done` steps of this `fit`, with all its steps.
    fn epoch_results(
        &mut self,
        done: usize,
        input: InputReport,
    ) -> Result<(Logs, usize, InputReport)> {
        let logs = self.trainer.compiled.results(f64::NAN)?;
        let (before, is_resumed) = (self.place.steps_before, self.epoch.is_resumed);
        self.warn_if_short(before + done);
        let (model, is_rolled_back) = (&self.trainer.compiled, self.epoch.is_rolled_back);
        let is_nothing = !model.has_trained()?;
        if is_nothing && before == 0 && !is_rolled_back && !model.has_skipped()? {
            return Err(model.setup.empty_epoch_error(done, input.skipped));
        }
        self.place.is_undone = is_nothing && is_rolled_back;
        let done = if is_resumed { before + done } else { done };
        Ok((logs, done, input))
    }

    /// Warns once of a stream that has fewer batches than an epoch is to have.
    fn warn_if_short(&mut self, done: usize) {
        if self.told.is_short || self.wants_stop() {
            return;
        }
        if let Some(warning) = self.fit.short_epoch_warning(self.data, done) {
            self.told.is_short = true;
            self.trainer.engine().notice(&format!("warning: {warning}"));
        }
    }

    /// Warns once of weights that change nothing.
    fn warn_if_lone(&mut self, batch: &Batch) {
        if self.told.is_lone {
            return;
        }
        if let Some(warning) = lone_weight_warning(batch, self.data.batch_size()) {
            self.told.is_lone = true;
            self.trainer.engine().notice(&format!("warning: {warning}"));
        }
    }

    /// Validates after an epoch, and hands on its results: to callbacks, logs, and checkpoints.
    fn end_epoch(&mut self, results: (Logs, usize, InputReport)) -> Result<()> {
        let (mut logs, steps, mut input) = results;
        let epoch = self.place.epoch;
        self.trainer.compiled.clock.enter(StepPart::Callbacks);
        if let Some((tested, skipped)) = self.validate_if_due()? {
            logs.extend_validation(&tested);
            input.validation_skipped = skipped;
        }
        let times = self.take_times();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let verdict = times.verdict(&input, processors);
        let seconds = times.until().map(|until| until - self.epoch.begun);
        let seconds = seconds.map_or(0.0, |time| time.as_secs_f64());
        let mut done = EpochLogs {
            epoch,
            logs,
            steps,
            seconds,
            throughput: self.throughput(steps, seconds, &times),
            input,
            replica_times: None,
            slow_workers: self.trainer.slow_workers.end_epoch(),
            times: Some(times),
            verdict,
        };
        // Where one fails, all come here again.
        self.trainer.keep_states()?;
        self.call(|callback, cx| callback.on_epoch_end(&mut done, cx))?;
        let trainer = &mut *self.trainer;
        trainer.events.write_epoch(&trainer.compiled, &done)?;
        self.fit.call_after(&done)?;
        self.trainer.progress.end_epoch(done);
        self.trainer.kept_states = None;
        if self.wants_stop() {
            self.epochs = 0..0;
        }
        if self.epochs.is_empty() {
            self.leave_none_out();
        }
        self.save_wished()?;
        Ok(())
    }

    /// The results of the validation of an epoch that has one, and how many of its examples were left out. Where the training is
    /// to end in it, the epoch goes on with its validation when it is resumed.
    fn validate_if_due(&mut self) -> Result<Option<(Logs, u64)>> {
        let is_skipped = self.place.skips_validation;
        let Some(validation) = self.fit.to_validate()?.filter(|_| !is_skipped) else {
            return Ok(None);
        };
        self.trainer.compiled.clock.enter(StepPart::Validation);
        self.call(|callback, cx| callback.on_test_begin(cx))?;
        let stopped = self.stopped();
        let tested = self.test_with_hooks(&validation, stopped);
        if matches!(tested, Err(Error::Stopped(_))) {
            self.save_interrupted()?;
        }
        let (logs, skipped) = tested?;
        self.place.is_validated_by_averages = self.trainer.replaced.uses_averages();
        self.call(|callback, cx| callback.on_test_end(&logs, cx))?;
        self.trainer.compiled.clock.enter(StepPart::Callbacks);
        Ok(Some((logs, skipped)))
    }

    pub(super) fn stopped(&self) -> Error {
        stopped_error(
            self.trainer.compiled.iterations,
            &self.trainer.progress.position,
        )
    }

    /// Where the time went since the last time this was asked.
    fn take_times(&mut self) -> StepTimes {
        let model = &mut self.trainer.compiled;
        model.clock.take(exchange_wait(&model.placement))
    }

    pub(super) const fn wants_stop(&self) -> bool {
        self.wishes.stop.is_some()
    }

    /// Writes what an interrupted training goes on from.
    pub(super) fn save_interrupted(&mut self) -> Result<()> {
        self.call(|callback, cx| callback.on_interrupted(cx))?;
        self.leave_none_out();
        self.save_wished()?;
        self.trainer.writer.finish()
    }

    /// Goes back to the last good state, or copies the present one; no step is in flight.
    fn snapshot_or_roll_back(&mut self) -> Result<()> {
        let (trainer, wishes) = (&mut *self.trainer, &mut self.wishes);
        let takes_snapshot = std::mem::take(&mut wishes.takes_snapshot);
        if takes_snapshot && !wishes.rolls_back {
            match trainer.training_state() {
                Ok(state) => self.snapshot = Some(state),
                // Found before the next loss is: the last update was too much.
                Err(Error::Training(found)) if self.snapshot.is_some() => {
                    self.bad_states += 1;
                    if self.bad_states > MOST_BAD_STATES {
                        return Err(Error::Training(found));
                    }
                    let line = format!("warning: {found}; going back to the last good state");
                    trainer.engine().notice(&line);
                    wishes.rolls_back = true;
                }
                Err(error) => return Err(error),
            }
        }
        if !std::mem::take(&mut wishes.rolls_back) {
            return Ok(());
        }
        let Some(state) = &self.snapshot else {
            return Err(Error::Bug("there is no state to go back to".into()));
        };
        // The data go on where they are, and so does what was told of epochs.
        let position = trainer.progress.position.clone();
        let history = trainer.progress.history.clone();
        let is_mid_epoch = trainer.progress.is_mid_epoch;
        trainer.go_back_to(state)?;
        if is_mid_epoch && !trainer.progress.is_mid_epoch {
            trainer.compiled.reset_epoch_totals()?;
        }
        (trainer.progress.position, trainer.progress.is_mid_epoch) = (position, is_mid_epoch);
        trainer.progress.history = history;
        self.epoch.is_rolled_back = true;
        if trainer.placement().world().is_some() {
            let counted = trainer.compiled.counted_batches()?;
            trainer.progress.rolled_back(counted);
        }
        Ok(())
    }
}

/// Where a `fit` begins in its data; its first epoch.
fn begin_progress(trainer: &mut Trainer, data: &dyn TrainingData, fit: &Fit) -> Result<usize> {
    let engine = trainer.compiled.engine();
    let first = trainer.progress.begin(engine, data, fit)?;
    if fit.resume {
        trainer.replaced.put_back(&mut trainer.compiled)?;
    } else {
        trainer.replaced.last = None;
        trainer.callback_states.clear();
    }
    Ok(first)
}

impl CurrentEpoch {
    fn begin() -> Self {
        Self {
            begun: Instant::now(),
            is_resumed: false,
            is_rolled_back: false,
        }
    }
}
