//! How long each replica takes, at the end of epochs.

use std::time::{Duration, Instant};

use super::{Callback, CallbackContext};
use crate::Result;
use crate::fit::{EpochLogs, StepPart, Watch};

/// Times the replicas one by one at the end of an epoch and puts the times into its [`EpochLogs`]: what
/// [`Fit::watch_replicas`](crate::fit::Fit::watch_replicas) sets, before all other callbacks. A replica that keeps the others waiting is
/// told by the [`ProgressBar`](super::ProgressBar).
#[derive(Clone, Debug)]
pub struct StragglerReport {
    watch: Watch,
    begun: Instant,
}

impl StragglerReport {
    /// Times the replicas as often as this says.
    #[must_use]
    pub fn new(watch: Watch) -> Self {
        Self {
            watch,
            begun: Instant::now(),
        }
    }
}

impl Callback for StragglerReport {
    fn kind(&self) -> &'static str {
        "straggler_report"
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.training.watch_replicas(self.watch);
        Ok(())
    }

    fn on_train_batch_begin(&mut self, _: usize, _: &mut CallbackContext<'_>) -> Result<()> {
        self.begun = Instant::now();
        Ok(())
    }

    fn on_train_batch_end(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let full = cx.place.most_rows;
        cx.training.record_step(full, self.begun.elapsed());
        Ok(())
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let tested = done.times.map(|times| times.of(StepPart::Validation));
        let took = Duration::from_secs_f64(done.seconds).saturating_sub(tested.unwrap_or_default());
        done.replica_times = cx.training.time_replicas_if_due(took)?;
        Ok(())
    }
}
