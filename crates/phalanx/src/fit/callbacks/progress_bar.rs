//! What a user sees while training runs.

use super::{Callback, CallbackContext};
use crate::Result;
use crate::fit::progress::ProgressReporter;
use crate::fit::{EpochLogs, Progress};

/// Shows the progress of a training on standard output, in the first process: Keras' `ProgbarLogger`. A `fit` has one as its last
/// callback but for its checkpoint, with the setting of [`Fit::progress`](crate::fit::Fit::progress), unless it is given one.
pub struct ProgressBar {
    progress: Progress,
    reporter: ProgressReporter,
}

impl ProgressBar {
    pub(in crate::fit) const KIND: &'static str = "progress_bar";

    /// Shows it this way.
    #[must_use]
    pub fn new(progress: Progress) -> Self {
        Self {
            progress,
            reporter: ProgressReporter::new(Progress::Silent, 0),
        }
    }
}

impl Callback for ProgressBar {
    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let progress = match cx.is_chief() {
            true => self.progress,
            false => Progress::Silent,
        };
        self.reporter = ProgressReporter::new(progress, cx.epochs());
        self.reporter.start(&cx.describe());
        Ok(())
    }

    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.reporter.begin(epoch, cx.steps());
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let done = batch + 1;
        // A clock of one process decides nothing that the others take part in.
        if cx.is_alone() && Some(done) != cx.steps() && self.reporter.is_due() {
            let logs = cx.logs()?;
            self.reporter.step(done, &logs, cx.learning_rate()?);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.reporter.end(done, cx.learning_rate()?);
        if let Some(times) = &done.replica_times {
            self.reporter.straggler(times);
        }
        self.reporter.slow_workers(&done.slow_workers);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        if let Some(reason) = cx.stop_reason() {
            self.reporter.stop(cx.iterations(), reason);
        }
        Ok(())
    }
}
