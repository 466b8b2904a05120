//! What this machine has for jobs, and what of it is taken.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use phalanx_launch::executor::{Gpus, Held};
use phalanx_launch::spec::{ExecutorKind, Plan, Spec};
use phalanx_launch::usage::machine_memory;
use phalanx_yaml::Bytes;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::replace;

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
    /// The GPUs that its tasks may use. `None` where nothing is known of them, or the tasks run elsewhere.
    #[serde(default)]
    pub(super) gpus: Option<Gpus>,
    /// Whether a job has begun with what cannot be read now: any GPU may be its own.
    #[serde(skip)]
    pub(super) is_unknown: bool,
}

/// What a job wants of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) cpus: usize,
    pub(super) memory: u64,
    pub(super) is_pinned: bool,
    pub(super) gpus: WantedGpus,
}

/// The GPUs that a job wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedGpus {
    /// It runs elsewhere.
    Elsewhere,
    /// It says nothing of GPUs: it sees those that are left, and holds none.
    Left,
    /// This number for itself.
    Own(usize),
}

impl Wanted {
    /// The GPUs that it wants for itself.
    const fn own_gpus(self) -> usize {
        match self.gpus {
            WantedGpus::Own(count) => count,
            WantedGpus::Left | WantedGpus::Elsewhere => 0,
        }
    }
}

/// All that this machine has for jobs.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    cpus: BTreeSet<usize>,
    memory: u64,
    gpus: Option<Gpus>,
}

/// The file in a job's folder that says what it has.
const SHARE: &str = "share.json";

impl Machine {
    /// This machine, or one with another number of processors, or with these GPUs as CUDA_VISIBLE_DEVICES has them.
    pub(super) fn this(cpus: Option<u32>, gpus: Option<&str>) -> Self {
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
            gpus: Gpus::of_machine(gpus),
        }
    }

    fn gpus(&self) -> &[String] {
        self.gpus.as_ref().map_or(&[], |gpus| &gpus.names)
    }

    /// What a job wants: what its machine types have, and no more than there is, since they name machines of others.
    ///
    /// # Errors
    /// There are fewer GPUs than tasks that ask for some.
    pub(super) fn wanted(&self, spec: &Spec, plan: &Plan) -> Result<Wanted, String> {
        if spec.ours.executor != ExecutorKind::Local {
            return Ok(Wanted {
                cpus: 0,
                memory: 0,
                is_pinned: false,
                gpus: WantedGpus::Elsewhere,
            });
        }
        let gpus = match spec.names_gpus() {
            true => self.gpus().len(),
            false => 0,
        };
        let each: usize = plan.gpus_of_tasks(gpus)?.into_iter().sum();
        let parallel = plan.trials_at_once(spec, self.memory, gpus);
        let cpus: usize = plan
            .tasks
            .iter()
            .map(|task| task.resources.cpus.max(1) as usize)
            .sum();
        let memory: u64 = plan.tasks.iter().map(|task| task.resources.memory).sum();
        Ok(Wanted {
            cpus: cpus.saturating_mul(parallel).min(self.cpus.len()),
            memory: memory.saturating_mul(parallel as u64).min(self.memory),
            is_pinned: plan.tasks.iter().any(|task| task.resources.cpus > 0),
            gpus: match spec.names_gpus() {
                true => WantedGpus::Own(each * parallel),
                false => WantedGpus::Left,
            },
        })
    }

    /// A share of what the others leave, if there is enough.
    pub(super) fn share(&self, wanted: Wanted, taken: &[Share]) -> Option<Share> {
        let free = self.free(taken);
        let cpus: BTreeSet<usize> = free.cpus.iter().copied().take(wanted.cpus).collect();
        let fits = cpus.len() == wanted.cpus
            && wanted.memory <= free.memory
            && wanted.own_gpus() <= free.gpus().len();
        let own = |gpus: Gpus| Gpus {
            names: gpus.names.into_iter().take(wanted.own_gpus()).collect(),
            are_own: true,
            held: Held::Nothing,
            ..gpus
        };
        fits.then(|| Share {
            cpus,
            memory: wanted.memory,
            is_pinned: wanted.is_pinned,
            gpus: match wanted.gpus {
                WantedGpus::Elsewhere => None,
                WantedGpus::Left => free.gpus,
                WantedGpus::Own(_) => free.gpus.map(own),
            },
            is_unknown: false,
        })
    }

    /// What others leave of this machine.
    fn free(&self, taken: &[Share]) -> Self {
        let used: BTreeSet<usize> = taken
            .iter()
            .flat_map(|share| share.cpus.iter().copied())
            .collect();
        let memory = taken.iter().map(|share| share.memory).sum();
        let gpus = self.gpus.clone().map(|gpus| left_of(gpus, taken));
        Self {
            cpus: self.cpus.difference(&used).copied().collect(),
            memory: self.memory.saturating_sub(memory),
            gpus,
        }
    }

    /// What a job that has no share waits for, for people.
    pub(super) fn lacks(&self, wanted: Wanted, taken: &[Share]) -> String {
        let free = self.free(taken);
        let mut all = Vec::new();
        let mut lacks = |what: &str, wanted: usize, free: usize, there: usize| {
            if wanted > free {
                all.push(format!("{wanted} {what} (free: {free} of {there})"));
            }
        };
        let gpus = (free.gpus().len(), self.gpus().len());
        lacks("GPUs", wanted.own_gpus(), gpus.0, gpus.1);
        lacks("processors", wanted.cpus, free.cpus.len(), self.cpus.len());
        let is_any = |gpus: &Gpus| gpus.held == Held::Any;
        if wanted.own_gpus() > 0 && free.gpus.as_ref().is_some_and(is_any) {
            all.push("the end of a job that has GPUs by other names than this daemon's, or whose share.json cannot be read".to_owned());
        }
        if wanted.memory > free.memory {
            let [wanted, there, free] = [wanted.memory, self.memory, free.memory].map(Bytes);
            all.push(format!("{wanted} of memory (free: {free} of {there})"));
        }
        all.join("; ")
    }
}

impl Share {
    /// What a job was given, also by a daemon before this one; nothing where that is not noted.
    ///
    /// # Errors
    /// The note cannot be read.
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        match fs::read(folder.join(SHARE)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Of a job that has begun with what cannot be read.
    pub(super) fn unknown() -> Self {
        Self {
            is_unknown: true,
            ..Self::default()
        }
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

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        replace(&folder.join(SHARE), &serde_json::to_vec(self)?)
    }
}

/// What others leave of GPUs. Where some have what this list does not name, as a daemon before this one had another, none is known to be free.
fn left_of(mut gpus: Gpus, taken: &[Share]) -> Gpus {
    let own = taken.iter().filter_map(|share| share.gpus.as_ref());
    let own: Vec<&Gpus> = own.filter(|gpus| gpus.are_own).collect();
    let is_known = own.iter().all(|own| gpus.know(own));
    let held: Vec<String> = own.iter().flat_map(|own| own.names.clone()).collect();
    if !is_known || taken.iter().any(|share| share.is_unknown) {
        gpus.names.clear();
        gpus.held = Held::Any;
    } else if !held.is_empty() {
        gpus.names.retain(|name| !held.contains(name));
        gpus.held = Held::These(held);
    }
    gpus
}

#[cfg(test)]
mod tests {
    use phalanx_launch::spec::Source;

    use super::*;

    /// A machine of processors, GiB of memory and GPUs.
    fn machine(cpus: usize, memory: u64, gpus: Option<&str>) -> Machine {
        Machine {
            cpus: (0..cpus).collect(),
            memory: memory << 30,
            gpus: gpus.and_then(|list| Gpus::of_machine(Some(list))),
        }
    }

    /// The job with more keys of AI Platform's, and with these of ours.
    fn job(input: &str, ours: &str) -> (Spec, Plan) {
        let job = format!("trainingInput: {{args: ['true']{input}}}\nphalanx: {{{ours}}}\n");
        let spec = Spec::read(&Source::of_file("job", job.as_bytes()).unwrap()).unwrap();
        let plan = Plan::new(&spec).unwrap();
        (spec, plan)
    }

    const SEARCH: &str = ", hyperparameters: {maxTrials: 9, maxParallelTrials: 3, params: [{parameterName: x, type: DISCRETE, discreteValues: [1]}]}";

    fn names(share: &Share) -> Vec<&str> {
        let names = share.gpus.iter().flat_map(|gpus| &gpus.names);
        names.map(String::as_str).collect()
    }

    #[test]
    fn no_processor_is_given_twice_and_none_is_promised_that_there_is_not() {
        let machine = machine(4, 100, None);
        let wanted = |cpus, memory: u64| Wanted {
            cpus,
            memory: memory << 30,
            is_pinned: true,
            gpus: WantedGpus::Left,
        };
        let first = machine.share(wanted(3, 60), &[]).unwrap();
        assert_eq!(first.cpus, BTreeSet::from([0, 1, 2]));
        let taken = std::slice::from_ref(&first);
        for (cpus, memory, lacks) in [
            (2, 0, "2 processors (free: 1 of 4)"),
            (1, 41, "41.0 GiB of memory (free: 40.0 GiB of 100 GiB)"),
        ] {
            let wanted = wanted(cpus, memory);
            assert_eq!(machine.share(wanted, taken), None);
            assert_eq!(machine.lacks(wanted, taken), lacks);
        }
        let second = machine.share(wanted(1, 40), taken).unwrap();
        assert_eq!(second.cpus, BTreeSet::from([3]));
        assert_eq!(machine.share(wanted(1, 0), &[first, second]), None);
    }

    #[test]
    fn no_gpu_is_given_twice_and_a_job_that_asks_for_none_holds_none() {
        let machine = machine(64, 1, Some("4,5,6,7"));
        let share = |gpus, taken: &[Share]| {
            let wanted = Wanted {
                cpus: 1,
                memory: 0,
                is_pinned: false,
                gpus,
            };
            let share = machine.share(wanted, taken);
            share.ok_or_else(|| machine.lacks(wanted, taken))
        };
        let (own, left) = (WantedGpus::Own, WantedGpus::Left);
        let first = share(own(3), &[]).unwrap();
        assert_eq!(names(&first), ["4", "5", "6"]);
        let second = share(left, std::slice::from_ref(&first)).unwrap();
        assert_eq!(names(&second), ["7"]);
        let elsewhere = share(WantedGpus::Elsewhere, &[]).unwrap();
        assert_eq!(elsewhere.gpus, None);
        let mut taken = vec![first, second, elsewhere];
        let lacks = "2 GPUs (free: 1 of 4)".to_owned();
        assert_eq!(share(own(2), &taken), Err(lacks));
        let third = share(own(1), &taken).unwrap();
        assert_eq!(names(&third), ["7"]);
        taken.push(third);
        let none = share(left, &taken).unwrap();
        assert_eq!(none.gpus.as_ref().map(|gpus| gpus.names.len()), Some(0));
        assert_eq!(
            share(own(0), &taken).map(|share| names(&share).len()),
            Ok(0)
        );
        // What the first has had is given again, to one job.
        taken.remove(0);
        let next = share(own(2), &taken).unwrap();
        assert_eq!(names(&next), ["4", "5"]);
        taken.push(next);
        assert_eq!(names(&share(own(1), &taken).unwrap()), ["6"]);
    }

    #[test]
    fn none_is_given_while_a_job_has_gpus_of_which_nobody_knows_which_they_are() {
        let wanted = |gpus| Wanted {
            cpus: 1,
            memory: 0,
            is_pinned: false,
            gpus,
        };
        let own = wanted(WantedGpus::Own(1));
        let given = |list: &str, order: &str| {
            let gpus = Gpus::of_machine(Some(list)).map(|gpus| Gpus {
                are_own: true,
                order: order.to_owned(),
                ..gpus
            });
            Share {
                gpus,
                ..Share::default()
            }
        };
        let numbers = machine(64, 1, Some("0,1"));
        for foreign in [
            given("GPU-8f", "PCI_BUS_ID"),
            given("2", "PCI_BUS_ID"),
            given("0", "FASTEST_FIRST"),
            Share::unknown(),
        ] {
            let taken = [foreign];
            assert_eq!(numbers.share(own, &taken), None, "{taken:?}");
            let lacks = numbers.lacks(own, &taken);
            let said = "1 GPUs (free: 0 of 2); the end of a job that has GPUs by other names";
            assert!(lacks.starts_with(said), "{lacks}");
            let left = numbers.share(wanted(WantedGpus::Left), &taken);
            let left = left.and_then(|share| share.gpus).unwrap();
            assert_eq!((left.names.len(), left.held), (0, Held::Any));
            assert!(numbers.share(wanted(WantedGpus::Own(0)), &taken).is_some());
        }
        // UUIDs are the same in any order.
        let uuids = machine(64, 1, Some("GPU-1,GPU-2"));
        let next = uuids.share(own, &[given("GPU-1", "FASTEST_FIRST")]);
        assert_eq!(names(&next.unwrap()), ["GPU-2"]);
    }

    #[test]
    fn gpus_are_wanted_as_the_job_says_and_no_more_than_there_are() {
        let wanted = |gpus: Option<&str>, input: &str, ours: &str| {
            let (spec, plan) = job(input, ours);
            machine(8, 16, gpus).wanted(&spec, &plan).map(|w| w.gpus)
        };
        let two = Some("0,1");
        let gpu = ", masterConfig: {acceleratorConfig: {count: 2, type: NVIDIA_TESLA_T4}}";
        let own = |count| Ok(WantedGpus::Own(count));
        assert_eq!(wanted(two, "", "workers: 2"), Ok(WantedGpus::Left));
        assert_eq!(wanted(two, "", "gpus: 0"), own(0));
        assert_eq!(wanted(two, gpu, ""), own(2));
        // What tasks of a role do not ask for they do not get.
        assert_eq!(wanted(Some("0,1,2"), gpu, "workers: 3"), own(2));
        assert_eq!(wanted(two, ", scaleTier: BASIC_GPU", ""), own(1));
        assert_eq!(
            wanted(two, ", scaleTier: BASIC_TPU", ""),
            Ok(WantedGpus::Left)
        );
        assert_eq!(wanted(two, gpu, "gpus: 1"), own(1));
        assert_eq!(wanted(two, "", "gpus: 8"), own(2));
        assert_eq!(wanted(None, "", "workers: 2, gpus: 8"), own(0));
        // As many as tasks see, none that is left over.
        assert_eq!(wanted(Some("0,1,2"), "", "workers: 2, gpus: 2"), own(2));
        let none = ", masterConfig: {acceleratorConfig: {count: 0}}";
        assert_eq!(wanted(two, none, ""), own(0));
        let itself = "workers: 3, gpus: 1, env: {CUDA_VISIBLE_DEVICES: '0'}";
        assert_eq!(wanted(two, "", itself), Ok(WantedGpus::Left));
        let elsewhere = wanted(two, gpu, "executor: slurm");
        assert_eq!(elsewhere, Ok(WantedGpus::Elsewhere));
        // Each trial has its own.
        let eight = Some("0,1,2,3,4,5,6,7");
        assert_eq!(wanted(eight, SEARCH, "gpus: 1"), own(3));
        assert_eq!(wanted(eight, SEARCH, "workers: 2, gpus: 2"), own(8));
        assert_eq!(wanted(Some("0,1,2"), SEARCH, "workers: 2, gpus: 1"), own(2));
        assert_eq!(wanted(two, SEARCH, "gpus: 4"), own(2));
        let why = wanted(two, "", "workers: 3, gpus: 1").unwrap_err();
        let said = "3 of its tasks ask for GPUs, 3 in all, and this machine has 2";
        assert!(why.contains(said), "{why}");
    }

    #[test]
    fn a_job_that_says_not_how_many_processors_it_takes_is_kept_to_none() {
        let machine = machine(8, 16, None);
        let share = |ours: &str| {
            let (spec, plan) = job("", &format!("workers: 2{ours}"));
            let wanted = machine.wanted(&spec, &plan).unwrap();
            let share = machine.share(wanted, &[]).unwrap();
            (share.cpus.len(), share.is_pinned)
        };
        assert_eq!(share(""), (2, false));
        assert_eq!(share(", memory: 1GiB"), (2, false));
        assert_eq!(share(", cpus: 3"), (6, true));
    }

    #[test]
    fn trials_at_the_same_time_are_accounted_and_never_more_than_fit() {
        let machine = machine(8, 16, None);
        let wanted = |ours: &str| {
            let (spec, plan) = job(SEARCH, &format!("workers: 2{ours}"));
            let wanted = machine.wanted(&spec, &plan).unwrap();
            (
                plan.trials_at_once(&spec, machine.memory, 0),
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
