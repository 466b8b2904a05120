//! What this machine has for jobs, and what of it is taken.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use phalanx_launch::spec::{ExecutorKind, Plan, Spec};
use phalanx_launch::usage::machine_memory;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// What a job takes of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    /// Processors, by the system's numbers.
    pub(super) cpus: BTreeSet<usize>,
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Whether the job is kept to these processors. One that says of no task how many it takes is not: they only count in the queue, and its
    /// tasks use what the jobs before and after it leave.
    #[serde(default)]
    pub(super) is_pinned: bool,
}

/// What a job wants of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) cpus: usize,
    pub(super) memory: u64,
    pub(super) is_pinned: bool,
}

/// All that this machine has for jobs.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    cpus: BTreeSet<usize>,
    memory: u64,
}

/// The file in a job's folder that says what it has.
const SHARE: &str = "share.json";

impl Machine {
    /// This machine, or one with another number of processors.
    pub(super) fn this(cpus: Option<u32>) -> Self {
        let allowed = sched_getaffinity(None).ok();
        let is_allowed = |cpu: &usize| allowed.is_none_or(|set| set.is_set(*cpu));
        let there: Vec<usize> = match allowed {
            Some(_) => (0..CpuSet::MAX_CPU).filter(is_allowed).collect(),
            None => vec![0],
        };
        let count = cpus.map_or(there.len(), |cpus| cpus as usize);
        // As many more as were asked for: they count, and nothing is kept to them.
        let more = CpuSet::MAX_CPU..;
        Self {
            cpus: there.into_iter().chain(more).take(count).collect(),
            memory: machine_memory().unwrap_or(u64::MAX),
        }
    }

    /// What a job wants: what its machine types have, and no more than there is, since they name machines of others.
    pub(super) fn wanted(&self, spec: &Spec, plan: &Plan) -> Wanted {
        if spec.ours.executor != ExecutorKind::Local {
            return Wanted {
                cpus: 0,
                memory: 0,
                is_pinned: false,
            };
        }
        let parallel = plan.trials_at_once(spec, self.memory);
        let cpus: usize = plan
            .tasks
            .iter()
            .map(|task| task.resources.cpus.max(1) as usize)
            .sum();
        let memory: u64 = plan.tasks.iter().map(|task| task.resources.memory).sum();
        Wanted {
            cpus: cpus.saturating_mul(parallel).min(self.cpus.len()),
            memory: memory.saturating_mul(parallel as u64).min(self.memory),
            is_pinned: plan.tasks.iter().any(|task| task.resources.cpus > 0),
        }
    }

    /// A share of what the others leave, if there is enough.
    pub(super) fn share(&self, wanted: Wanted, taken: &[Share]) -> Option<Share> {
        let used: BTreeSet<usize> = taken
            .iter()
            .flat_map(|share| share.cpus.iter().copied())
            .collect();
        let memory: u64 = taken.iter().map(|share| share.memory).sum();
        let free = self.cpus.difference(&used).copied();
        let cpus: BTreeSet<usize> = free.take(wanted.cpus).collect();
        let fits = cpus.len() == wanted.cpus && memory.saturating_add(wanted.memory) <= self.memory;
        fits.then_some(Share {
            cpus,
            memory: wanted.memory,
            is_pinned: wanted.is_pinned,
        })
    }
}

impl Share {
    /// What a job was given, also by a daemon before this one.
    pub(super) fn read(folder: &Path) -> Self {
        let text = fs::read(folder.join(SHARE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Has this process use these processors only, if the job is pinned. One that is not kept to them is unfair, not wrong.
    pub(super) fn keep_to(&self) {
        if !self.is_pinned {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else {
            return;
        };
        let mut set = CpuSet::new();
        let own = self
            .cpus
            .iter()
            .filter(|cpu| **cpu < CpuSet::MAX_CPU && allowed.is_set(**cpu));
        own.for_each(|cpu| set.set(*cpu));
        if set.count() > 0 {
            let _ = sched_setaffinity(None, &set);
        }
    }

    pub(super) fn write(&self, folder: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(folder.join(SHARE));
        file?.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_launch::spec::Source;

    use super::*;

    #[test]
    fn no_processor_is_given_twice_and_none_is_promised_that_there_is_not() {
        let machine = Machine {
            cpus: (0..4).collect(),
            memory: 100,
        };
        let wanted = |cpus, memory| Wanted {
            cpus,
            memory,
            is_pinned: true,
        };
        let first = machine.share(wanted(3, 60), &[]).unwrap();
        assert_eq!(first.cpus, BTreeSet::from([0, 1, 2]));
        assert_eq!(
            machine.share(wanted(2, 0), std::slice::from_ref(&first)),
            None
        );
        assert_eq!(
            machine.share(wanted(1, 41), std::slice::from_ref(&first)),
            None
        );
        let second = machine
            .share(wanted(1, 40), std::slice::from_ref(&first))
            .unwrap();
        assert_eq!(second.cpus, BTreeSet::from([3]));
        assert_eq!(machine.share(wanted(1, 0), &[first, second]), None);
    }

    #[test]
    fn a_job_that_says_not_how_many_processors_it_takes_is_kept_to_none() {
        let machine = Machine {
            cpus: (0..8).collect(),
            memory: 16 << 30,
        };
        let share = |keys: &str| {
            let job = format!("trainingInput: {{args: ['true']}}\nphalanx: {{workers: 2{keys}}}\n");
            let spec = Spec::read(&Source::of_file("job", job.as_bytes()).unwrap()).unwrap();
            let wanted = machine.wanted(&spec, &Plan::new(&spec).unwrap());
            let share = machine.share(wanted, &[]).unwrap();
            (share.cpus.len(), share.is_pinned)
        };
        assert_eq!(share(""), (2, false));
        assert_eq!(share(", memory: 1GiB"), (2, false));
        assert_eq!(share(", cpus: 3"), (6, true));
    }

    #[test]
    fn trials_at_the_same_time_are_accounted_and_never_more_than_fit() {
        let machine = Machine {
            cpus: (0..8).collect(),
            memory: 16 << 30,
        };
        let wanted = |keys: &str| {
            let job = format!(
                "trainingInput: {{args: ['true'], hyperparameters: {{maxTrials: 9, maxParallelTrials: 3, params: [{{parameterName: x, type: DISCRETE, discreteValues: [1]}}]}}}}\nphalanx: {{workers: 2{keys}}}\n"
            );
            let spec = Spec::read(&Source::of_file("job", job.as_bytes()).unwrap()).unwrap();
            let plan = Plan::new(&spec).unwrap();
            let wanted = machine.wanted(&spec, &plan);
            (
                plan.trials_at_once(&spec, machine.memory),
                wanted.cpus,
                wanted.memory >> 30,
            )
        };
        assert_eq!(wanted(""), (3, 6, 0));
        assert_eq!(wanted(", memory: 2GiB"), (3, 6, 12));
        assert_eq!(wanted(", memory: 2048M"), (3, 6, 12));
        // Two trials of two tasks fit, a third does not.
        assert_eq!(wanted(", memory: 4GiB"), (2, 4, 16));
        assert_eq!(wanted(", memory: 5GiB, cpus: 2"), (1, 4, 10));
        // One that does not fit runs alone, as a job without a search does.
        assert_eq!(wanted(", memory: 40GiB"), (1, 2, 16));
        assert_eq!(wanted(", memory: 40GiB, executor: slurm"), (3, 0, 0));
    }
}
