//! `speed.jsonl`: how fast steps are, every two seconds, within epochs too.

use std::time::{Duration, Instant};

use phalanx::Result;
use phalanx::data::Batch;
use phalanx::fit::callbacks::{Callback, CallbackContext};
use serde_json::json;

use crate::run_folder::RunFolder;

/// The time of steps that a line is of, at least.
const EVERY: Duration = Duration::from_secs(2);

/// Writes the speed of the last steps, by the host's clock alone: it waits for no result. The number of steps in flight is
/// bounded, so over seconds the host is as fast as the device.
pub(crate) struct SpeedLog {
    folder: RunFolder,
    /// Of all workers.
    batch_size: usize,
    /// Whether batches are whole here, and not divided between workers.
    is_alone: bool,
    /// The end of the step before, in this epoch. The first step of an epoch is not measured: it may be compiled in its course.
    last: Option<Instant>,
    took: Duration,
    steps: usize,
    examples: usize,
}

impl SpeedLog {
    pub(crate) const fn new(folder: RunFolder, batch_size: usize, is_alone: bool) -> Self {
        Self {
            folder,
            batch_size,
            is_alone,
            last: None,
            took: Duration::ZERO,
            steps: 0,
            examples: 0,
        }
    }

    /// Counts steps that ended now, and gives the speed of all that were counted once they took long enough: steps and examples a second.
    fn count(&mut self, now: Instant, steps: usize, examples: usize) -> Option<(f64, f64)> {
        let last = self.last.replace(now)?;
        self.took += now.duration_since(last);
        self.steps += steps;
        self.examples += examples;
        if self.took < EVERY {
            return None;
        }
        let seconds = self.took.as_secs_f64();
        let speed = (self.steps as f64 / seconds, self.examples as f64 / seconds);
        (self.took, self.steps, self.examples) = (Duration::ZERO, 0, 0);
        Some(speed)
    }
}

impl Callback for SpeedLog {
    fn kind(&self) -> &'static str {
        "speed_log"
    }

    fn on_epoch_begin(&mut self, _: usize, _: &mut CallbackContext<'_>) -> Result<()> {
        self.last = None;
        Ok(())
    }

    fn on_train_batch_end(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let steps = cx.execution_steps();
        // The last batch of an epoch may be shorter.
        let rows = cx.batch().filter(|_| self.is_alone).map(Batch::rows);
        let last = rows.unwrap_or(self.batch_size);
        let examples = steps.saturating_sub(1) * self.batch_size + last;
        if let Some((steps, examples)) = self.count(Instant::now(), steps, examples) {
            let line = json!({
                "step": cx.iterations(), "steps_per_second": steps, "examples_per_second": examples,
            });
            // Training does not depend on a line of it, and an epoch says that the folder cannot be written to.
            let _ = self.folder.append_speed(&line);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_step_of_an_epoch_and_what_is_between_epochs_are_not_counted() {
        let mut log = SpeedLog::new(RunFolder::of(Path::new("none")), 32, true);
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        // Compiled for ten seconds, then half a second each.
        assert_eq!(log.count(at(10.0), 1, 32), None);
        for step in [10.5, 11.0, 11.5] {
            assert_eq!(log.count(at(step), 1, 32), None, "{step}");
        }
        // A validation.
        log.last = None;
        assert_eq!(log.count(at(60.0), 1, 32), None);
        // Two steps of one program, the last of them of 16 examples: 5 steps and 144 examples in 2.5 s.
        assert_eq!(log.count(at(61.0), 2, 48), Some((2.0, 57.6)));
        assert_eq!(log.count(at(63.0), 4, 128), Some((2.0, 64.0)));
    }
}
