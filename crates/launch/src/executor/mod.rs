//! How the tasks of a job run: as processes of this machine, by Slurm, or in pods of Kubernetes.

mod command;
mod crew;
mod gpus;
mod kubernetes;
mod local;
mod quoted;
mod recipe;
mod slurm;
mod variables;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_proof::draw_hex;

pub(crate) use command::end_containers;
pub use command::{Lane, RunArgs, own_program, phalanx, words};
pub use gpus::{Gpus, Held};
pub(crate) use kubernetes::cancel as cancel_in_kubernetes;
pub use local::GUARD;
pub use quoted::quoted;
pub(crate) use slurm::cancel as cancel_in_slurm;
pub use variables::of_job as task_variables;

use crate::lifecycle::{Event, FirstFailure, Life, State, TaskEnd};
use crate::logs::{Logs, last_lines};
use crate::spec::{ExecutorKind, Plan, Spec};
use crate::store::{Followed, Store, StoreError};

/// How many lines of the task that failed first are shown.
const LAST_LINES: usize = 20;

/// A job as the process sees it that runs it; its threads share it.
#[derive(Debug)]
pub struct Job {
    store: Store,
    folder: PathBuf,
    followed: Mutex<Followed>,
    /// The GPUs of this machine that its tasks may use, where anything is known of them.
    gpus: Option<Gpus>,
}

impl Job {
    /// A job of a store.
    #[must_use]
    pub fn new(store: Store, followed: Followed) -> Self {
        let folder = store.folder(&followed.life.job.name);
        Self {
            store,
            folder,
            followed: Mutex::new(followed),
            gpus: None,
        }
    }

    /// The job with the GPUs of this machine that its tasks may use.
    #[must_use]
    pub(crate) fn with_gpus(self, gpus: Option<Gpus>) -> Self {
        Self { gpus, ..self }
    }

    /// The GPUs of this machine that its tasks may use; `None` where nothing is known of them.
    pub(crate) const fn gpus(&self) -> Option<&Gpus> {
        self.gpus.as_ref()
    }

    /// A job that is not submitted, to show what it would be.
    #[must_use]
    pub fn planned(root: &Path, life: Life) -> Self {
        Self::new(Store::at(root), Followed::new(life))
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job as it is now.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn life(&self) -> Result<Life, StoreError> {
        let mut followed = self.followed();
        self.store.refresh(&mut followed)?;
        Ok(followed.life.clone())
    }

    /// Adds an event.
    ///
    /// # Errors
    /// It cannot happen now, or the log cannot be written.
    pub fn append(&self, event: Event) -> Result<(), StoreError> {
        self.store.append(&mut self.followed(), event)
    }

    /// Adds what `decide` makes of the job as it is now, and gives the state after that.
    ///
    /// # Errors
    /// As of [`Job::append`].
    pub(crate) fn update(&self, decide: impl FnOnce(&Life) -> Event) -> Result<State, StoreError> {
        let mut followed = self.followed();
        let event = |life: &Life| Ok::<_, StoreError>(Some(decide(life)));
        self.store.update(&mut followed, event)?;
        Ok(followed.life.state)
    }

    /// Begins the next attempt: its number, which no other thread or process is given.
    ///
    /// # Errors
    /// As of [`Job::append`].
    pub fn begin(&self, why: Option<String>) -> Result<u32, StoreError> {
        let mut followed = self.followed();
        self.store.update(&mut followed, |life| {
            let number = life.attempt + 1;
            Ok::<_, StoreError>(Some(Event::Attempt { number, why }))
        })?;
        Ok(followed.life.attempt)
    }

    /// The folder of all jobs.
    pub(crate) fn root(&self) -> &Path {
        self.store.root()
    }

    /// The job's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Whether a task is started again by itself where the chief coordinates: a worker of an elastic job, and never the chief.
fn is_replaced(spec: &Spec, plan: &Plan, at: usize) -> bool {
    at > 0 && spec.ours.elastic.is_some() && plan.tasks[at].task.kind.trains()
}

/// One start of all tasks of a job or a trial.
pub struct Run<'a> {
    /// The job.
    pub job: &'a Job,
    /// What it asks for.
    pub spec: &'a Spec,
    /// Its tasks.
    pub plan: &'a Plan,
    /// What differs from trial to trial.
    pub args: RunArgs,
    /// The number of the attempt, over all trials.
    pub attempt: u32,
    /// How often these tasks were started before.
    pub restarts: u32,
    /// Whether the tasks are to end, asked again and again.
    pub stop: &'a (dyn Fn() -> Option<Stop> + Sync),
    /// Called once when all tasks have started.
    pub started: &'a (dyn Fn() + Sync),
}

/// Why tasks are to end, and how long they have to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// How long from SIGTERM to SIGKILL.
    pub grace: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// The chief ended as it should.
    Succeeded,
    /// A task failed first.
    Failed(Box<FirstFailure>),
    /// The tasks were told to end, and have.
    Stopped,
    /// The scheduler outside lost or preempted the tasks.
    Lost(String),
    /// The tasks could not be started, and starting them again would not help.
    Refused(String),
}

/// What tells the processes of a job, or of one of its trials, from all others of the machine. Two services may start jobs of one name in
/// the same millisecond, and each ends whatever has the name of its own; so the job's folder is part of it.
pub(crate) fn run_id(folder: &Path, life: &Life, trial: Option<u32>) -> String {
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let folder = crc32c::crc32c(folder.as_os_str().as_encoded_bytes());
    let id = format!("{}.{}.{folder:08x}", life.job.name, life.created);
    trial.map_or(id.clone(), |trial| format!("{id}.{trial}"))
}

impl Run<'_> {
    /// The name of a task of this run.
    #[must_use]
    pub fn task_name(&self, task: &str) -> String {
        match self.args.trial {
            Some(trial) => format!("{trial}/{task}"),
            None => task.to_owned(),
        }
    }

    /// What tells the processes of this run from all others of the machine.
    #[must_use]
    pub fn id(&self, life: &Life) -> String {
        run_id(self.job.folder(), life, self.args.trial)
    }

    /// Whether the others may go on after the end of a task: it was lost, and its executor may start it again.
    fn goes_on_without(&self, at: usize, end: TaskEnd) -> bool {
        is_replaced(self.spec, self.plan, at) && end.how().exit_code() == TRY_AGAIN
    }

    /// Whether the chief ended as it should by itself: one that was told to end may have saved, and ended well before its work was done.
    fn has_succeeded(&self, mut ends: impl Iterator<Item = (usize, TaskEnd)>) -> bool {
        ends.any(|(at, end)| at == 0 && end.code == Some(0) && !end.told)
    }

    /// The failure that made others fail, of the ends of tasks in their order: the first that did not merely lose another. What comes
    /// after the chief has ended as it should is none: then the work is done, and others may have lost it.
    fn first_failure(
        &self,
        ends: impl Iterator<Item = (usize, TaskEnd)> + Clone,
    ) -> Option<Box<FirstFailure>> {
        let before = ends.take_while(|(at, end)| *at > 0 || end.code != Some(0));
        let mut failed = before.filter(|(_, end)| end.failed());
        let own = |(_, end): &(usize, TaskEnd)| end.code != Some(TRY_AGAIN);
        let first = failed.clone().find(own).or_else(|| failed.next());
        let (at, end) = first?;
        let plan = &self.plan.tasks[at];
        let (task, folder) = (self.task_name(&plan.name()), self.job.folder());
        Some(Box::new(FirstFailure {
            rank: self.plan.rank(plan.task),
            attempt: self.attempt,
            end,
            last_lines: last_lines(folder, &task, LAST_LINES),
            log: Logs::path(folder, &task),
            task,
        }))
    }

    /// Adds an event; a log that cannot be written does not end the tasks.
    fn note(&self, event: Event) {
        let _ = self.job.append(event);
    }

    /// Runs the tasks until all have ended.
    #[must_use]
    pub fn run(&self) -> RunEnd {
        match self.spec.ours.executor {
            ExecutorKind::Local => local::run(self),
            ExecutorKind::Slurm => slurm::run(self),
            ExecutorKind::Kubernetes => kubernetes::run(self),
        }
    }
}

/// What a scheduler outside would be given for a job that is not submitted; `None` for this machine.
#[must_use]
pub fn preview(
    root: &Path,
    life: &Life,
    spec: &Spec,
    plan: &Plan,
    args: &RunArgs,
) -> Option<String> {
    let job = Job::planned(root, life.clone());
    let run = Run {
        job: &job,
        spec,
        plan,
        args: args.clone(),
        attempt: 1,
        restarts: 0,
        stop: &|| None,
        started: &|| (),
    };
    match spec.ours.executor {
        ExecutorKind::Local => None,
        ExecutorKind::Slurm => Some(slurm::shown(&run, life)),
        ExecutorKind::Kubernetes => Some(kubernetes::manifests(&run, life)),
    }
}

/// The file of the job's secret, which its tasks prove to each other that they know.
pub(crate) fn secret(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("secret");
    if path.exists() {
        return Ok(path);
    }
    // Whole before it has its name, and the first stays: trials that begin together have the same.
    let new = folder.join(format!(".secret-{}", draw_hex::<8>()?));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(draw_hex::<32>()?.as_bytes());
    let named = written.and_then(|()| fs::hard_link(&new, &path));
    fs::remove_file(&new)?;
    match named {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn trials_that_begin_together_have_one_secret() {
        for _ in 0..20 {
            let scratch = Scratch::new("secret");
            let together = Barrier::new(16);
            let read = || {
                together.wait();
                fs::read_to_string(secret(&scratch.0).unwrap()).unwrap()
            };
            let all: BTreeSet<String> = thread::scope(|scope| {
                let threads: Vec<_> = (0..16).map(|_| scope.spawn(read)).collect();
                let read = threads.into_iter().map(|thread| thread.join().unwrap());
                read.collect()
            });
            assert_eq!(all.len(), 1, "{all:?}");
            assert_eq!(all.first().unwrap().len(), 64);
            assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        }
    }
}
