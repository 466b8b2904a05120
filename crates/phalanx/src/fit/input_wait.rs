//! How long the devices wait for data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::PendingRun;

/// Since when the devices have been idle. What the host waits for a batch counts as waiting for data only while they are.
#[derive(Clone, Debug, Default)]
pub(super) struct InputWait(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    /// Runs of a device that were begun and are not done.
    runs: usize,
    /// When the last of them was done.
    ended: Option<Instant>,
}

impl InputWait {
    /// Takes note of a step that was begun.
    pub(super) fn begin(&self, done: &PendingRun) -> Result<()> {
        self.began(done.runs());
        let input_wait = self.clone();
        done.on_each_done(move || input_wait.ended(Instant::now()))
    }

    /// How long the devices were idle between `start` and `end`, if no step was begun in that time.
    pub(super) fn between(&self, start: Instant, end: Instant) -> Duration {
        let running = self.lock();
        if running.runs > 0 {
            return Duration::ZERO;
        }
        let from = running.ended.map_or(start, |ended| ended.max(start));
        end.saturating_duration_since(from)
    }

    fn began(&self, runs: usize) {
        self.lock().runs += runs;
    }

    fn ended(&self, at: Instant) {
        let mut running = self.lock();
        running.runs = running.runs.saturating_sub(1);
        running.ended = Some(at);
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_devices_wait_counts() {
        let (input_wait, start) = (InputWait::default(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let waited = |from, to| input_wait.between(at(from), at(to)).as_millis();
        // Before the first step.
        assert_eq!(waited(0, 10), 10);
        // A step of two devices, of which one is done before the other, in the middle of the waiting.
        input_wait.began(2);
        assert_eq!(waited(10, 20), 0);
        input_wait.ended(at(12));
        assert_eq!(waited(10, 20), 0);
        input_wait.ended(at(15));
        assert_eq!(waited(10, 20), 5);
        // Waiting that began when they were done, and that ended before.
        assert_eq!(waited(17, 20), 3);
        assert_eq!(waited(10, 14), 0);
    }
}
