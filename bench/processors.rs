//! Which processors a program of the benchmarks runs on.

use rustix::io::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this process on a number of the processors that it may use, as the peers do; before any thread starts. The first `skipped`
/// are left to other processes.
pub(crate) fn use_some(skipped: usize, count: usize) -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut chosen = CpuSet::new();
    let processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    for cpu in processors.skip(skipped).take(count) {
        chosen.set(cpu);
    }
    sched_setaffinity(None, &chosen)
}
