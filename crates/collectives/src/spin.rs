//! How long who waits looks again and again before it sleeps.
//!
//! A sleep costs a change of threads on both sides, some 50 microseconds, and small exchanges take one. But whoever looks keeps a processor
//! from others: perhaps from the very rank that is waited for, when the scheduler has put both on one. So a rank looks for a moment, then
//! gives its processor away between looks, and sleeps after some time.

use std::time::{Duration, Instant};

/// Looks at memory that are made at a time; one at a socket takes as long.
pub(crate) const LOOKS: u32 = 16;
/// Times before the processor is given away between them: a microsecond or two.
const ALONE: u32 = 6;
/// How long to look.
const LIMIT: Duration = Duration::from_micros(100);

/// Patience for one wait.
#[derive(Default)]
pub(crate) struct Patience {
    times: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Whether to look again; gives the processor away in between.
    pub(crate) fn lasts(&mut self) -> bool {
        if self.times < ALONE {
            self.times += 1;
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        std::thread::yield_now();
        since.elapsed() < LIMIT
    }
}
