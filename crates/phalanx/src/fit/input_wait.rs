//! How long the devices wait for data.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::PendingRun;

/// How long the end of a run that is done may go untold.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Since when the devices have been idle. What the host waits for a batch counts as waiting for data only while they are.
#[derive(Clone, Debug, Default)]
pub(super) struct InputWait(Arc<(Mutex<Running>, Condvar)>);

#[derive(Debug, Default)]
struct Running {
    /// Runs of a device that were begun and are not done.
    runs: usize,
    /// When the last of them was done.
    ended: Option<Instant>,
    /// The beginnings and ends of runs, while a trace asks for them.
    spans: Option<Vec<(Instant, Instant)>>,
}

impl InputWait {
    /// Takes note of a step that was begun.
    pub(super) fn begin(&self, done: &PendingRun) -> Result<()> {
        self.began(done.runs());
        let (input_wait, begun) = (self.clone(), Instant::now());
        done.on_each_done(move || {
            let now = Instant::now();
            if let Some(spans) = &mut input_wait.lock().spans {
                spans.push((begun, now));
            }
            input_wait.ended(now);
        })
    }

    /// The beginnings and ends of runs since this was last asked; from now on they are noted, or not. All runs are done: this waits
    /// for those whose end was not told yet, for a second at most.
    pub(super) fn take_spans(&self, are_noted: bool) -> Vec<(Instant, Instant)> {
        let waited =
            (self.0.1).wait_timeout_while(self.lock(), TOLD_WITHIN, |running| running.runs > 0);
        let mut running = waited.unwrap_or_else(PoisonError::into_inner).0;
        let next = are_noted.then(Vec::new);
        std::mem::replace(&mut running.spans, next).unwrap_or_default()
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

    pub(super) fn began(&self, runs: usize) {
        self.lock().runs += runs;
    }

    pub(super) fn ended(&self, at: Instant) {
        let mut running = self.lock();
        running.runs = running.runs.saturating_sub(1);
        running.ended = Some(at);
        drop(running);
        self.0.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
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
