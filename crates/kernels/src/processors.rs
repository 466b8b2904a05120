//! Which processors the thread of a replica runs on.
//!
//! A system that wakes a thread likes to put it beside the one that woke it: two replicas that wake each other at every step end up
//! on one processor, one after the other, while others idle or serve what is less urgent. So each of several replicas has its
//! share of the processors, which its threads keep to. XLA's threads serve one replica now and another later: they stay where they
//! are as long as the replicas of a step are apart.

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;

thread_local! {
    /// Of how many shares which one this thread keeps to.
    static SHARE: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// How many processors this process had when this was first asked.
pub(crate) fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// The share that this thread keeps to, where it is one of so many.
pub(crate) fn share(of: usize) -> Option<usize> {
    SHARE
        .get()
        .and_then(|(share, shares)| (shares == of).then_some(share))
}

/// Keeps this thread to one of so many shares, where there are processors enough; a system that refuses is as fast as before.
pub(crate) fn keep_to(share: usize, of: usize) {
    if (2..=count()).contains(&of) {
        SHARE.set(Some((share, of)));
        system::keep_to(|processors| part(processors, share, of));
    }
}

/// One of equal parts of so many things.
fn part(things: usize, part: usize, of: usize) -> Range<usize> {
    things * part / of..things * (part + 1) / of
}

#[cfg(target_os = "linux")]
mod system {
    use std::ops::Range;
    use std::sync::OnceLock;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Keeps this thread to some of the processors that the process has, by their positions.
    pub(super) fn keep_to(range: impl Fn(usize) -> Range<usize>) {
        // Those of the thread that asks first, which kept to nothing before.
        static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
        let allowed = ALLOWED.get_or_init(|| {
            let Ok(allowed) = sched_getaffinity(None) else {
                return Vec::new();
            };
            (0..CpuSet::MAX_CPU)
                .filter(|&processor| allowed.is_set(processor))
                .collect()
        });
        let mut kept = CpuSet::new();
        for &processor in &allowed[range(allowed.len())] {
            kept.set(processor);
        }
        // An empty set is refused.
        let _ = sched_setaffinity(None, &kept);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn keep_to(_: impl Fn(usize) -> std::ops::Range<usize>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_things_once() {
        assert_eq!(
            (0..3).map(|i| part(7, i, 3)).collect::<Vec<_>>(),
            [0..2, 2..4, 4..7]
        );
        assert_eq!(part(0, 1, 2), 0..0);
    }

    #[test]
    fn a_thread_keeps_to_its_share() {
        let thread = std::thread::spawn(|| {
            assert_eq!(share(2), None);
            keep_to(1, 2);
            (share(2), share(3), count())
        });
        let (kept, other, before) = thread.join().unwrap();
        assert_eq!((kept, other), ((before > 1).then_some(1), None));
    }
}
