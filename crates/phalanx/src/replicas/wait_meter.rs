//! How long a process has waited for the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a process has waited for the others in its life; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitMeter {
    /// Nanoseconds within programs, which others count.
    programs: Arc<AtomicU64>,
    /// Nanoseconds between programs.
    host: Arc<AtomicU64>,
}

impl WaitMeter {
    /// A meter of nanoseconds that are counted within programs, and of what is waited between these.
    pub(super) fn of_programs(programs: Arc<AtomicU64>) -> Self {
        Self {
            programs,
            host: Arc::default(),
        }
    }

    /// Counts the time that an exchange between programs takes.
    pub(super) fn while_waiting<T>(&self, exchange: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let exchanged = exchange();
        let waited = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.host.fetch_add(waited, Ordering::Relaxed);
        exchanged
    }

    /// What was waited within programs.
    pub(super) fn of_programs_alone(&self) -> Duration {
        Duration::from_nanos(self.programs.load(Ordering::Relaxed))
    }

    /// What was waited in all.
    pub(crate) fn total(&self) -> Duration {
        self.of_programs_alone() + Duration::from_nanos(self.host.load(Ordering::Relaxed))
    }
}
