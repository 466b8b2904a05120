//! The queue: which job starts next, and what becomes of jobs whose supervisor has gone.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_launch::executor::own_program;
use phalanx_launch::lifecycle::{Event, Life, State, Submitted};
use phalanx_launch::package;
use phalanx_launch::spec::JobName;
use phalanx_launch::store::{Age, Followed, Store, StoreError, now};
use phalanx_launch::supervise::{end_what_is_left, prepare};

use super::Shared;
use super::machine::{Machine, Share};
use crate::args::ServeArgs;

/// How often logs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(30);
/// How long after something could not be written it is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// A supervisor that ends this often without having ended its job, or cannot be started so often, will not do better.
const MOST_SUPERVISORS: u32 = 5;
/// How long after a supervisor was started the next one is, if that one has ended.
const SUPERVISE_AGAIN: Duration = Duration::from_millis(200);
/// How long after one could not be started: there may be too many processes, or no memory, for a while.
const SPAWN_AGAIN: Duration = Duration::from_secs(5);

/// All jobs of a store; those that cannot be read are left out, and told.
pub(super) fn load(store: &Store) -> BTreeMap<JobName, Followed> {
    let names = store.names().unwrap_or_default();
    let read = |name: JobName| match store.load(&name) {
        Ok(followed) => Some((name, followed)),
        Err(error) => {
            eprintln!("job {name} is left out: {error}");
            None
        }
    };
    names.into_iter().filter_map(read).collect()
}

/// What a job asks of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    priority: u32,
    max_wait: Option<Duration>,
    waited: Age,
}

impl Terms {
    /// Read from its file, which takes much longer than a look at them.
    pub(super) fn of(life: &Life) -> Self {
        let scheduling = prepare(life).map(|(spec, _)| spec.scheduling).ok();
        Self {
            priority: scheduling.map_or(0, |scheduling| scheduling.priority),
            max_wait: scheduling.and_then(|scheduling| scheduling.max_wait),
            waited: Age::since(life.created),
        }
    }
}

/// Jobs that wait, in the order in which they start: by priority, then by age.
pub(super) fn in_order(shared: &Shared, jobs: &BTreeMap<JobName, Followed>) -> Vec<JobName> {
    let waits = |followed: &&Followed| followed.life.state == State::Queued;
    let mut waiting: Vec<&Life> = jobs
        .values()
        .filter(waits)
        .map(|followed| &followed.life)
        .collect();
    waiting.sort_by_cached_key(|life| {
        let priority = shared.terms(life).priority;
        (Reverse(priority), life.created, &life.job.name)
    });
    waiting
        .into_iter()
        .map(|life| life.job.name.clone())
        .collect()
}

/// Keeps the queue on a thread of its own until the daemon stops.
pub(super) fn start(shared: &Arc<Shared>, args: &ServeArgs) -> io::Result<JoinHandle<()>> {
    let mut scheduler = Scheduler::of(
        shared,
        Machine::this(args.cpus, args.gpus.as_deref()),
        own_program,
        args.idle,
    );
    thread::Builder::new()
        .name("queue".to_owned())
        .spawn(move || scheduler.run())
}

struct Scheduler {
    shared: Arc<Shared>,
    machine: Machine,
    /// Where the program of supervisors is, which is this one.
    program: fn() -> io::Result<PathBuf>,
    /// Supervisors that this daemon has started and that run.
    supervisors: BTreeMap<JobName, Child>,
    /// The supervisors that jobs have had.
    tries: BTreeMap<JobName, Tries>,
    idle: u64,
    /// The queue that was looked at without starting a job of it.
    seen: Option<(Vec<JobName>, usize)>,
    /// When it is looked at again though it is the same, since something could not be read or written.
    again: Option<Instant>,
    /// How many jobs had ended when the copies of their packages were looked for.
    swept: usize,
}

/// The supervisors that a job has had.
struct Tries {
    count: u32,
    /// No other is started before.
    next: Instant,
    /// Why the last one could not be started.
    error: Option<io::Error>,
}

/// Has the daemon end, unless a job has come since its jobs were looked at. None comes after this.
fn end(shared: &Shared) {
    let jobs = shared.jobs();
    if jobs.values().all(|job| job.life.state.is_final()) {
        shared.stop.store(true, Ordering::Relaxed);
    }
}

/// The folders of the packages that a job names.
fn packages(job: &Submitted) -> Vec<PathBuf> {
    let uris = job.training_input["packageUris"].as_array();
    let uris = uris.into_iter().flatten().filter_map(|uri| uri.as_str());
    uris.map(|uri| job.directory.join(uri)).collect()
}

impl Scheduler {
    fn of(
        shared: &Arc<Shared>,
        machine: Machine,
        program: fn() -> io::Result<PathBuf>,
        idle: u64,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            machine,
            program,
            supervisors: BTreeMap::new(),
            tries: BTreeMap::new(),
            idle,
            seen: None,
            again: None,
            swept: 0,
        }
    }

    fn run(&mut self) {
        while !self.shared.is_ending() {
            self.look();
            thread::sleep(LOOK_EVERY);
        }
    }

    fn look(&mut self) {
        self.supervisors
            .retain(|_, child| matches!(child.try_wait(), Ok(None)));
        let mut changed = false;
        let mut active = Vec::new();
        for (name, followed) in self.shared.jobs().iter_mut() {
            // Nobody but this process writes of a job that waits.
            let waits = followed.life.state == State::Queued;
            if !waits && !followed.life.state.is_final() {
                changed |= self.shared.store.refresh(followed).unwrap_or(false);
            }
            if !followed.life.state.is_final() {
                active.push((name.clone(), followed.life.state));
            }
        }
        self.sweep();
        for (name, state) in &active {
            if *state != State::Queued && !self.supervisors.contains_key(name) {
                self.adopt(name);
            }
        }
        changed |= self.admit();
        if changed {
            self.shared.changed();
        }
        let asked = self.shared.asked.load(Ordering::Relaxed);
        let quiet = now().saturating_sub(asked) >= self.idle * 1000;
        if self.idle > 0
            && active.is_empty()
            && quiet
            && self.shared.answering.load(Ordering::Relaxed) == 0
        {
            end(&self.shared);
        }
    }

    /// Removes the copies of packages of jobs that have ended, but for those that another job names, which was submitted as the first was
    /// described.
    fn sweep(&mut self) {
        let is_final = |job: &Followed| job.life.state.is_final();
        let jobs = self.shared.jobs();
        let (over, others): (Vec<&Followed>, Vec<&Followed>) =
            jobs.values().partition(|job| is_final(job));
        if over.len() == self.swept {
            return;
        }
        self.swept = over.len();
        let used = others.into_iter().flat_map(|job| packages(&job.life.job));
        let used: Vec<PathBuf> = used.collect();
        drop(jobs);
        for (job, folder) in package::copied(self.shared.store.root()) {
            if self.shared.jobs().get(&job).is_some_and(is_final)
                && !used.iter().any(|package| package.starts_with(&folder))
                && let Err(error) = fs::remove_dir_all(&folder)
            {
                eprintln!("the package {} stays: {error}", folder.display());
            }
        }
    }

    /// Sees to a job that has begun and has no supervisor of ours: a daemon before has started one, or it has none.
    fn adopt(&mut self, name: &JobName) {
        let tries = self.tries.get(name);
        if tries.is_some_and(|tries| Instant::now() < tries.next) {
            return;
        }
        let count = tries.map_or(0, |tries| tries.count);
        match self.shared.store.supervise(name) {
            Ok(Some(free)) => drop(free),
            Ok(None) | Err(_) => return,
        }
        // It may have ended the job since we looked.
        let ended = self.with(name, |store, followed| {
            store.refresh(followed)?;
            Ok(followed.life.state.is_final())
        });
        if ended.unwrap_or(true) {
            return;
        }
        match count >= MOST_SUPERVISORS {
            true => self.give_up(name),
            false => self.supervise(name),
        }
    }

    /// Ends a job that no supervisor has brought to its end. What Slurm or Kubernetes has of it would go on.
    fn give_up(&self, name: &JobName) {
        let life = self.with(name, |_, followed| Ok(followed.life.clone()));
        let Ok(life) = life else { return };
        end_what_is_left(&self.shared.store.folder(name), &life);
        let error = self.tries.get(name).and_then(|tries| tries.error.as_ref());
        let why = match error {
            Some(error) => format!("its supervisor cannot be started: {error}"),
            None => format!(
                "its supervisor ended {MOST_SUPERVISORS} times without having ended it; supervisor.log in its folder says why"
            ),
        };
        let decide = |life: &Life| match life.state {
            State::Cancelling => Ok::<_, StoreError>(Some(Event::Cancelled)),
            _ => Ok(Some(Event::Failed { why })),
        };
        let _ = self.with(name, |store, followed| store.update(followed, decide));
    }

    fn with<T>(
        &self,
        name: &JobName,
        act: impl FnOnce(&Store, &mut Followed) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut jobs = self.shared.jobs();
        let followed = jobs
            .get_mut(name)
            .ok_or_else(|| StoreError::NoJob(name.clone()))?;
        act(&self.shared.store, followed)
    }

    /// Starts the jobs at the front of the queue for as long as there is room.
    fn admit(&mut self) -> bool {
        let Some((queue, active)) = self.waiting() else {
            return false;
        };
        self.expire(&queue);
        let is_seen = self.seen.as_ref() == Some(&(queue.clone(), active.len()));
        if is_seen && self.again.is_none_or(|again| Instant::now() < again) {
            return false;
        }
        let store = self.shared.store.clone();
        let mut unread = false;
        let share = |name: &JobName| {
            Share::read(&store.folder(name)).unwrap_or_else(|error| {
                if !is_seen {
                    eprintln!("what job {name} has, its share.json, cannot be read: {error}");
                }
                unread = true;
                Share::unknown()
            })
        };
        let mut taken: Vec<Share> = active.iter().map(share).collect();
        let (mut started, mut full, mut unwritten) = (false, None, false);
        for name in &queue {
            match self.begin(name, &mut taken, &mut full) {
                Ok(begun) => started |= begun,
                Err(error @ StoreError::Io { .. }) => {
                    if !is_seen {
                        eprintln!("job {name} waits: {error}");
                    }
                    unwritten = true;
                }
                // It has ended since the queue was read.
                Err(_) => {}
            }
        }
        self.shared.lacks(full);
        self.seen = (!started).then_some((queue, active.len()));
        self.again = (unwritten || unread).then(|| Instant::now() + WRITE_AGAIN);
        started
    }

    /// Starts a job if there is room for it beside what others have taken, or ends one that cannot run here; gives whether it has left the
    /// queue. The first that has no room keeps its place: those behind it wait, but for those that need nothing of this machine.
    fn begin(
        &mut self,
        name: &JobName,
        taken: &mut Vec<Share>,
        full: &mut Option<(JobName, String)>,
    ) -> Result<bool, StoreError> {
        let life = self.with(name, |_, followed| Ok(followed.life.clone()))?;
        let Ok((spec, plan)) = prepare(&life) else {
            return self.fail(
                name,
                "its job file cannot be read by this version".to_owned(),
            );
        };
        let wanted = match self.machine.wanted(&spec, &plan) {
            Ok(wanted) => wanted,
            Err(why) => return self.fail(name, why),
        };
        if full.is_some() && wanted.cpus > 0 {
            return Ok(false);
        }
        let Some(share) = self.machine.share(wanted, taken) else {
            *full = Some((name.clone(), self.machine.lacks(wanted, taken)));
            return Ok(false);
        };
        let folder = self.shared.store.folder(name);
        share.write(&folder).map_err(|source| StoreError::Io {
            action: "write into",
            path: folder,
            source,
        })?;
        self.with(name, |store, followed| {
            store.append(followed, Event::Prepared)
        })?;
        taken.push(share);
        self.supervise(name);
        Ok(true)
    }

    /// Ends a job that cannot run here, which leaves the queue so.
    fn fail(&self, name: &JobName, why: String) -> Result<bool, StoreError> {
        let failed = Event::Failed { why };
        self.with(name, |store, followed| store.append(followed, failed))?;
        Ok(true)
    }

    /// The queue, and the jobs that have begun; `None` without a queue.
    fn waiting(&self) -> Option<(Vec<JobName>, Vec<JobName>)> {
        let jobs = self.shared.jobs();
        let queued = |life: &Life| life.state == State::Queued;
        let begun = jobs
            .iter()
            .filter(|(_, job)| !job.life.state.is_final() && !queued(&job.life));
        let begun: Vec<JobName> = begun.map(|(name, _)| name.clone()).collect();
        let any = jobs.values().any(|job| queued(&job.life));
        any.then(|| (in_order(&self.shared, &jobs), begun))
    }

    /// Ends jobs that have waited for too long.
    fn expire(&self, queue: &[JobName]) {
        for name in queue {
            let _ = self.with(name, |store, followed| {
                let terms = self.shared.terms(&followed.life);
                match terms.max_wait {
                    Some(most) if terms.waited.elapsed() >= most => {
                        let why = format!(
                            "it waited for longer than maxWaitTime, {} s",
                            most.as_secs()
                        );
                        store.append(followed, Event::Cancelling { why })?;
                        store.append(followed, Event::Cancelled)
                    }
                    _ => Ok(()),
                }
            });
        }
    }

    /// Starts a supervisor. Where that fails, the job may be running all the same, and it is tried again.
    fn supervise(&mut self, name: &JobName) {
        let (pause, error) = match self.spawn(name) {
            Ok(child) => {
                self.supervisors.insert(name.clone(), child);
                (SUPERVISE_AGAIN, None)
            }
            Err(error) => {
                eprintln!("the supervisor of job {name} cannot be started: {error}");
                (SPAWN_AGAIN, Some(error))
            }
        };
        let before = self.tries.get(name).map_or(0, |tries| tries.count);
        let tries = Tries {
            count: before + 1,
            next: Instant::now() + pause,
            error,
        };
        self.tries.insert(name.clone(), tries);
    }

    fn spawn(&self, name: &JobName) -> io::Result<Child> {
        let path = self.shared.store.folder(name).join("supervisor.log");
        let log: File = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        Command::new((self.program)()?)
            .arg("--root")
            .arg(self.shared.store.root())
            .args(["supervise", name.as_str()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .env_remove("PHALANX_JOB_ID")
            .spawn()
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
