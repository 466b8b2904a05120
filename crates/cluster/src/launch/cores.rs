//! Processors of their own for workers that share a machine.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use, divided into shares that differ by one at most, neighbours (threads of one core, cores of
/// one package) together. Empty if there are fewer than shares.
#[must_use]
pub fn shares(count: usize) -> Vec<CpuSet> {
    let Ok(allowed) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let mut processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    if processors.len() < count {
        return Vec::new();
    }
    processors.sort_by_key(|&cpu| {
        (
            place(cpu, "physical_package_id"),
            place(cpu, "core_id"),
            cpu,
        )
    });
    let share = |at: usize| {
        let bound = |at| at * processors.len() / count;
        let mut set = CpuSet::new();
        processors[bound(at)..bound(at + 1)]
            .iter()
            .for_each(|&cpu| set.set(cpu));
        set
    };
    (0..count).map(share).collect()
}

/// A number of the topology of the machine; 0 where the system does not tell.
fn place(cpu: usize, name: &str) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
    let number = fs::read_to_string(path).ok();
    number
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Calls `start` on these processors: what it starts stays on them, this thread does not.
pub fn on<T>(processors: Option<&CpuSet>, start: impl FnOnce() -> T) -> T {
    let before = processors.and_then(|_| sched_getaffinity(None).ok());
    if let (Some(processors), Some(_)) = (processors, &before) {
        // A worker that is not pinned is slower, not wrong.
        let _ = sched_setaffinity(None, processors);
    }
    let started = start();
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors(set: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect()
    }

    #[test]
    fn shares_are_disjoint_and_leave_nothing() {
        let allowed = processors(&sched_getaffinity(None).unwrap());
        for count in 1..=allowed.len() {
            let shares = shares(count);
            let mut all: Vec<_> = shares.iter().flat_map(processors).collect();
            all.sort_unstable();
            assert_eq!(all, allowed, "{count}");
            let sizes = shares.iter().map(|share| share.count() as usize);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
        assert_eq!(shares(allowed.len() + 1).len(), 0);
    }

    #[test]
    fn what_is_started_is_pinned_and_this_thread_is_not() {
        let before = processors(&sched_getaffinity(None).unwrap());
        let one = shares(before.len()).swap_remove(0);
        let inside = on(Some(&one), || processors(&sched_getaffinity(None).unwrap()));
        assert_eq!(inside, processors(&one));
        assert_eq!(processors(&sched_getaffinity(None).unwrap()), before);
    }
}
