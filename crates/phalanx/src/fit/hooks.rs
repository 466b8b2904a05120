//! How `fit` calls its callbacks, and what it lets them do.

use std::path::Path;
use std::time::Duration;

use super::callbacks::{Callback, CallbackContext, HookPlace, Training, Wishes};
use super::evaluate::TestPlace;
use super::history::Logs;
use super::in_flight::InFlight;
use super::train_loop::FitRun;
use super::{ReplicaTimes, Trainer, Watch};
use crate::checkpoint::NamedTensors;
use crate::data::{Batch, Batches, HostTensor};
use crate::metrics::Better;
use crate::{Error, Result};

/// A trainer with its steps in flight, as callbacks see it.
struct Stepping<'a> {
    trainer: &'a mut Trainer,
    flight: &'a mut InFlight,
    batch: Option<&'a Batch>,
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
        self.trainer
            .call_hooks((self.place, &mut self.wishes), around, hook)
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
        let is_alone = self.trainer.placement.world().is_none();
        let mut stopped = Some(stopped);
        self.trainer
            .evaluate_with_skipped(validation, &mut |trainer, at| {
                let mut call = |hook: &mut HookCall<'_>| {
                    let around = (&mut InFlight::default(), None);
                    trainer.call_hooks((place, &mut *wishes), around, hook)
                };
                match at {
                    TestPlace::Begin(_) if is_alone && fit.is_stop_asked() => {
                        stopped.take().map_or(Ok(()), Err)
                    }
                    TestPlace::Begin(batch) => {
                        call(&mut |callback, cx| callback.on_test_batch_begin(batch, cx))
                    }
                    TestPlace::End(batch) => {
                        call(&mut |callback, cx| callback.on_test_batch_end(batch, cx))
                    }
                }
            })
    }

    /// Tells the callbacks of the end of the training; whether one of them has set the variables.
    pub(super) fn call_train_end(&mut self) -> Result<bool> {
        self.wishes.has_set_variables = false;
        self.call(|callback, cx| callback.on_train_end(cx))?;
        Ok(self.wishes.has_set_variables)
    }
}

/// A hook of a callback, called.
type HookCall<'h> = dyn FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()> + 'h;

impl Trainer {
    /// Calls a hook of each callback.
    fn call_hooks(
        &mut self,
        (place, wishes): (HookPlace, &mut Wishes),
        (flight, batch): (&mut InFlight, Option<&Batch>),
        hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.callbacks.is_empty() {
            return Ok(());
        }
        let callbacks = self.callbacks.clone();
        let states = std::mem::take(&mut self.callback_states);
        let mut training = Stepping {
            trainer: &mut *self,
            flight,
            batch,
        };
        let called = callbacks.each(&mut training, (place, wishes, &states), hook);
        self.callback_states = states;
        called
    }
}

impl Training for Stepping<'_> {
    fn is_chief(&self) -> bool {
        self.trainer.placement.is_chief()
    }

    fn iterations(&self) -> i64 {
        self.trainer.iterations
    }

    fn logs(&mut self) -> Result<Logs> {
        self.trainer.finish_together(self.flight)?;
        self.trainer.results(f64::NAN)
    }

    fn learning_rate(&self) -> Result<f64> {
        self.trainer.learning_rate()
    }

    fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.trainer.set_learning_rate(rate)
    }

    fn variables(&self) -> Result<NamedTensors> {
        self.trainer.variables()
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
        self.trainer.goals()
    }

    fn notice(&self, line: &str) {
        self.trainer.engine().notice(line);
    }

    fn batch(&self) -> Option<&Batch> {
        self.batch
    }

    fn watch_bad_steps(&mut self, are_skipped: bool) -> Result<()> {
        if are_skipped && !self.trainer.setup.loss_scale.is_dynamic() {
            return Err(Error::user(
                "terminate_on_nan is to skip steps that are not finite, which the compiled step does not: compile with `loss_scale: LossScale::SkipNonFinite`",
            ));
        }
        self.trainer.watches_bad_steps = true;
        Ok(())
    }

    fn first_bad_step(&mut self) -> Result<Option<u64>> {
        self.trainer.finish_together(self.flight)?;
        self.trainer.first_bad_step()
    }

    fn first_bad_tensor(&mut self, batch: Option<&Batch>) -> Result<String> {
        self.trainer.first_bad_tensor(batch)
    }

    fn use_averages(&mut self, are_used: bool) -> Result<()> {
        self.trainer.use_averages(are_used)
    }

    fn is_alone(&self) -> bool {
        let placement = &self.trainer.placement;
        placement.world().is_none() && placement.servers().is_none()
    }

    fn describe(&self, batch_size: usize) -> String {
        self.trainer.placement.describe(batch_size)
    }

    fn watch_replicas(&mut self, watch: Watch) {
        self.trainer.begin_straggler_checks(watch);
    }

    fn record_step(&mut self, full: usize, took: Duration) {
        if let Some(batch) = self.batch {
            self.trainer.stragglers.record_step(batch, full, took);
        }
    }

    fn time_replicas_if_due(&mut self, took: Duration) -> Result<Option<ReplicaTimes>> {
        self.trainer.time_replicas_if_due(took)
    }
}
