//! Waits for what another thread or process does.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything waited for takes on a machine that is busy.
const WITHIN: Duration = Duration::from_secs(120);

/// Returns when something holds, looked at again and again.
///
/// # Panics
/// When it has not held for two minutes; `what` says what is missing.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WITHIN;
    while !holds() {
        assert!(Instant::now() < until, "not within {WITHIN:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
