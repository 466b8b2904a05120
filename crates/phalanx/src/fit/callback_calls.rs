//! How `fit` calls its callbacks, and what it lets them do.

use std::path::Path;
use std::time::Duration;

use super::callbacks::{
    Callback, CallbackContext, CallbackStates, Callbacks, HookPlace, IntoCallback, Training, Wishes,
};
use super::end_of_fit::first_bad_tensor;
use super::evaluate::{Evaluation, TestPlace};
use super::history::Logs;
use super::in_flight::InFlight;
use super::train_loop::FitRun;
use super::workers::finish_together;
use super::{ReplicaTimes, Trainer, Watch};
use crate::checkpoint::{NamedTensors, TrainingState};
use crate::data::{Batch, Batches, HostTensor, TrainingData};
use crate::metrics::Better;
use crate::{Error, Result};

/// A trainer with its steps in flight, as callbacks see it.
struct Stepping<'a> {
    trainer: &'a mut Trainer,
    flight: &'a mut InFlight,
    batch: Option<&'a Batch>,
}

/// What callbacks remember before a place that they come to again if one of them fails there, and the learning rate.
pub(super) struct KeptStates {
    pub(super) states: CallbackStates,
    pub(super) rate: Option<f64>,
}

impl Trainer {
    /// Keeps what callbacks remember before the end of an epoch.
    pub(super) fn keep_states(&mut self) -> Result<()> {
        self.kept_states = Some(KeptStates {
            states: self.callbacks.states(),
            rate: self.settable_rate()?,
        });
        Ok(())
    }

    /// The learning rate, where callbacks may have set it.
    fn settable_rate(&self) -> Result<Option<f64>> {
        let is_set = !self.callbacks.is_empty() && !self.compiled.follows_schedule();
        is_set.then(|| self.learning_rate()).transpose()
    }

    /// Goes back to a state, but for what callbacks have set and remember since.
    pub(super) fn go_back_to(&mut self, state: &TrainingState) -> Result<()> {
        let rate = self.settable_rate()?;
        self.set_training_state(state)?;
        self.callback_states.clear();
        rate.map_or(Ok(()), |rate| self.set_learning_rate(rate))
    }

    /// Takes what callbacks remember out of a `fit` that has ended, for one that goes on.
    pub(super) fn take_states(&mut self) {
        let callbacks = std::mem::take(&mut self.callbacks);
        match self.kept_states.take() {
            Some(kept) => {
                self.callback_states = kept.states;
                // Where the device has failed, there is no rate to go on with.
                let _ = kept.rate.map(|rate| self.set_learning_rate(rate));
            }
            None if callbacks.is_empty() => {}
            None => self.callback_states = callbacks.states(),
        }
    }
}

impl FitRun<'_> {
    /// Calls a hook of each callback, with no step in flight.
    pub(super) fn call(
        &mut self,
        hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
    ) -> Result<()> {
        self.call_in_flight((&mut InFlight::default(), None), hook)
    }

    /// Calls a hook of each callback around a step on this batch.
    pub(super) fn call_in_flight(
        &mut self,
        around: (&mut InFlight, Option<&Batch>),
        hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = (self.place, &mut self.wishes);
        call_hooks(self.trainer, place, around, hook)
    }

    /// Loss and metrics of the validation data, and how many examples were left out, with the callbacks around its batches;
    /// `stopped` where the training is asked to stop.
    pub(super) fn test_with_hooks(
        &mut self,
        validation: &Batches,
        stopped: Error,
    ) -> Result<(Logs, u64)> {
        let (fit, place, wishes) = (&self.fit, self.place, &mut self.wishes);
        // One of several processes does not leave the validation alone.
        let is_alone = self.trainer.compiled.placement.world().is_none();
        let mut stopped = Some(stopped);
        let mut watch = |trainer: &mut Trainer, at| {
            let asks = is_alone && matches!(at, TestPlace::Begin(_)) && fit.is_stop_asked();
            if let Some(stopped) = stopped.take_if(|_| asks) {
                return Err(stopped);
            }
            let around = (&mut InFlight::default(), None);
            call_hooks(trainer, (place, &mut *wishes), around, at_test(at))
        };
        Evaluation {
            trainer: self.trainer,
            watch: &mut watch,
        }
        .run(validation)
    }

    /// Tells the callbacks of the end of the training, and takes note of whether one of them sets the variables.
    pub(super) fn call_train_end(&mut self) -> Result<()> {
        self.wishes.has_set_variables = false;
        self.call(|callback, cx| callback.on_train_end(cx))
    }
}

/// A hook of a callback, called.
type HookCall<'h> = dyn FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()> + 'h;

/// The hook of a place in a test.
pub(super) fn at_test(
    at: TestPlace,
) -> impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()> {
    move |callback, cx| match at {
        TestPlace::Begin(batch) => callback.on_test_batch_begin(batch, cx),
        TestPlace::End(batch) => callback.on_test_batch_end(batch, cx),
    }
}

/// The callbacks of an evaluation or a prediction outside of a training. What they ask for beside their hooks, such as the end of
/// the training, is nothing there.
pub(super) struct OwnHooks {
    callbacks: Callbacks,
    place: HookPlace,
}

impl OwnHooks {
    pub(super) fn new(callbacks: impl IntoIterator<Item: IntoCallback>, batches: &Batches) -> Self {
        let mut all = Callbacks::new();
        callbacks
            .into_iter()
            .for_each(|callback| all.push(callback));
        let place = HookPlace {
            steps: batches.len(),
            batch_size: batches.size(),
            most_rows: batches.most_rows(),
            execution: 1,
            ..HookPlace::default()
        };
        Self {
            callbacks: all,
            place,
        }
    }

    /// Calls a hook of each.
    pub(super) fn call(&mut self, trainer: &mut Trainer, hook: &mut HookCall<'_>) -> Result<()> {
        let mut training = Stepping {
            trainer,
            flight: &mut InFlight::default(),
            batch: None,
        };
        let around = (self.place, &mut Wishes::default(), &CallbackStates::new());
        self.callbacks.each(&mut training, around, hook)
    }
}

/// Calls a hook of each callback.
fn call_hooks(
    trainer: &mut Trainer,
    (place, wishes): (HookPlace, &mut Wishes),
    (flight, batch): (&mut InFlight, Option<&Batch>),
    hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
) -> Result<()> {
    if trainer.callbacks.is_empty() {
        return Ok(());
    }
    let callbacks = trainer.callbacks.clone();
    let states = std::mem::take(&mut trainer.callback_states);
    let mut training = Stepping {
        trainer: &mut *trainer,
        flight,
        batch,
    };
    let called = callbacks.each(&mut training, (place, wishes, &states), hook);
    trainer.callback_states = states;
    called
}

impl Training for Stepping<'_> {
    fn is_chief(&self) -> bool {
        self.trainer.compiled.placement.is_chief()
    }

    fn iterations(&self) -> i64 {
        self.trainer.compiled.iterations
    }

    fn counted_batches(&self) -> Result<i64> {
        self.trainer.compiled.counted_batches()
    }

    fn logs(&mut self) -> Result<Logs> {
        finish_together(self.trainer.placement(), self.flight)?;
        self.trainer.compiled.results(f64::NAN)
    }

    fn learning_rate(&self) -> Result<f64> {
        self.trainer.learning_rate()
    }

    fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.trainer.set_learning_rate(rate)
    }

    fn follows_schedule(&self) -> bool {
        self.trainer.compiled.follows_schedule()
    }

    fn variables(&self) -> Result<NamedTensors> {
        self.trainer.variables()
    }

    fn variables_after(&self, epoch: usize) -> Result<Option<NamedTensors>> {
        let servers = self.trainer.placement().servers();
        match servers.map_or(Ok(false), |servers| servers.is_behind())? {
            true => Ok(self.trainer.kept_epochs.find(epoch).cloned()),
            false => self.trainer.variables().map(Some),
        }
    }

    fn set_variables(&mut self, values: &[(String, HostTensor)]) -> Result<()> {
        self.trainer.set_variables(values)
    }

    fn save_weights(&mut self, path: &Path) -> Result<()> {
        self.trainer.save_weights(path)
    }

    fn save_model(&mut self, path: &Path) -> Result<()> {
        self.trainer.save(path)
    }

    fn goals(&self) -> Vec<(String, Option<Better>)> {
        self.trainer.compiled.setup.goals()
    }

    fn notice(&self, line: &str) {
        self.trainer.engine().notice(line);
    }

    fn batch(&self) -> Option<&Batch> {
        self.batch
    }

    fn watch_bad_steps(&mut self, are_skipped: bool) -> Result<()> {
        if are_skipped && !self.trainer.compiled.setup.loss_scale.is_dynamic() {
            return Err(Error::user(
                "terminate_on_nan is to skip steps that are not finite, which the compiled step does not: compile with `loss_scale: LossScale::SkipNonFinite`",
            ));
        }
        self.trainer.compiled.watches_bad_steps = true;
        Ok(())
    }

    fn first_bad_step(&mut self) -> Result<Option<u64>> {
        finish_together(self.trainer.placement(), self.flight)?;
        self.trainer.compiled.first_bad_step()
    }

    fn first_bad_tensor(&mut self, batch: Option<&Batch>) -> Result<String> {
        first_bad_tensor(&self.trainer.compiled, batch)
    }

    fn use_averages(&mut self, are_used: bool) -> Result<()> {
        let trainer = &mut *self.trainer;
        trainer
            .replaced
            .use_averages(&mut trainer.compiled, are_used)
    }

    fn variables_of(&self, are_averages: bool) -> Result<NamedTensors> {
        let trainer = &*self.trainer;
        trainer
            .replaced
            .variables_of(&trainer.compiled, are_averages)
    }

    fn has_servers(&self) -> bool {
        self.trainer.placement().servers().is_some()
    }

    fn is_alone(&self) -> bool {
        let placement = &self.trainer.compiled.placement;
        placement.world().is_none() && placement.servers().is_none()
    }

    fn planned_replicas(&self) -> usize {
        self.trainer.compiled.placement.planned_replicas()
    }

    fn describe(&self, batch_size: usize) -> String {
        self.trainer.compiled.placement.describe(batch_size)
    }

    fn watch_replicas(&mut self, watch: Watch) {
        let trainer = &mut *self.trainer;
        trainer.stragglers.begin(watch, &trainer.compiled.placement);
        trainer.slow_workers.begin(watch);
    }

    fn record_step(&mut self, full: usize, took: Duration) {
        if let Some(batch) = self.batch {
            self.trainer.stragglers.record_step(batch, full, took);
        }
    }

    fn time_replicas_if_due(&mut self, took: Duration) -> Result<Option<ReplicaTimes>> {
        let trainer = &mut *self.trainer;
        (trainer.stragglers).time_replicas_if_due(&trainer.compiled, took)
    }
}
