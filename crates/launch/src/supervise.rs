//! The process that runs one job from PREPARING to its end: attempts, retries, wishes from outside, time limits.
//!
//! It is a process of its own, so that a job goes on when the daemon that started it is killed; and whoever kills it instead finds the
//! job where it was: the next supervisor goes on with the next attempt.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_store::ObjectUrl;

use crate::executor::{Job, Run, RunArgs, RunEnd, Stop, run_id};
use crate::lifecycle::{Budget, Event, Life, State, TaskEnd, Trial, TrialState, Verdict, verdict};
use crate::package;
use crate::spec::{ExecutorKind, Hyperparameters, JobName, Plan, Source, Spec};
use crate::store::{Store, StoreError, now};
use crate::transfer::{FOLDER, Transfer};

/// From SIGTERM to SIGKILL of a job that is cancelled.
const CANCEL_GRACE: Duration = Duration::from_millis(2500);
/// How often the log is looked at for wishes.
const LOOK_EVERY_MS: u64 = 50;

/// Runs a job until it has ended, or does nothing if another process runs it.
///
/// # Errors
/// The job's log cannot be read or written.
pub fn supervise(store: &Store, name: &JobName) -> Result<(), StoreError> {
    let Some(_held) = store.supervise(name)? else {
        return Ok(());
    };
    let job = Job::new(store.clone(), store.load(name)?);
    let life = job.life()?;
    match life.state {
        State::Cancelling => end_what_is_left(&job, &life),
        state if state.is_final() || state == State::Queued => Ok(()),
        _ => match prepare(&life) {
            Ok((spec, plan)) => drive(store, &job, &life, &spec, plan),
            Err(why) => job.append(Event::Failed { why }),
        },
    }
}

/// What the job asks for, and its tasks.
///
/// # Errors
/// It was written by another version.
pub fn prepare(life: &Life) -> Result<(Spec, Plan), String> {
    let spec = Spec::read(&Source::of_json(&tree(life)))?;
    let plan = Plan::new(&spec)?;
    Ok((spec, plan))
}

/// The job file that a job was submitted with.
fn tree(life: &Life) -> serde_json::Value {
    serde_json::json!({
        "trainingInput": life.job.training_input,
        "labels": life.labels,
        "phalanx": life.job.phalanx,
    })
}

/// A job whose supervisor was lost while it was being cancelled.
fn end_what_is_left(job: &Job, life: &Life) -> Result<(), StoreError> {
    crate::executor::cancel_in_slurm(life);
    if let Ok((spec, _)) = prepare(life)
        && spec.ours.executor == ExecutorKind::Kubernetes
    {
        crate::executor::cancel_in_kubernetes(life, &spec);
    }
    let trials = life.trials.keys().copied().map(Some);
    for trial in trials.chain([None]) {
        let id = run_id(job.folder(), life, trial);
        phalanx_cluster::launch::end_what_is_left(&id);
    }
    job.append(Event::Cancelled)
}

/// The spec and the plan with the job's package in a folder, fetched if it is in a bucket. Pods bring it themselves: here it is seen what
/// is in it.
fn with_package(job: &Job, life: &Life, spec: Spec, plan: Plan) -> Result<(Spec, Plan), String> {
    let Some(named) = &spec.package else {
        return Ok((spec, plan));
    };
    let folder = package::fetch(named, &life.job.directory, &job.folder().join("package"))?;
    if spec.ours.executor == ExecutorKind::Kubernetes && ObjectUrl::is_url(named) {
        let plan = plan.in_package(&folder, Path::new(&package::in_pods(named)));
        return Ok((spec, plan));
    }
    let plan = plan.in_package(&folder, &folder);
    let package = Some(folder.display().to_string());
    Ok((Spec { package, ..spec }, plan))
}

fn drive(store: &Store, job: &Job, life: &Life, spec: &Spec, plan: Plan) -> Result<(), StoreError> {
    let wishes = Wishes {
        job,
        spec,
        looked: AtomicU64::new(0),
    };
    let stop = || wishes.stop();
    let end = match Transfer::start(job, life, spec, &stop) {
        Err(end) => end,
        Ok(transfer) => {
            let end = match with_package(job, life, spec.clone(), plan) {
                Ok((spec, plan)) => tasks(store, job, &spec, &plan, &stop)?,
                Err(why) => RunEnd::Refused(why),
            };
            match transfer {
                Some(transfer) => transfer.finish(end),
                None => end,
            }
        }
    };
    match end {
        RunEnd::Succeeded => job
            .append(Event::Succeeded)
            .or_else(|error| settle(job, error)),
        RunEnd::Stopped => job.append(Event::Cancelled),
        RunEnd::Failed(failure) => {
            let why = failure.to_string();
            job.append(Event::Failed { why })
                .or_else(|error| settle(job, error))
        }
        RunEnd::Lost(why) | RunEnd::Refused(why) => job
            .append(Event::Failed { why })
            .or_else(|error| settle(job, error)),
    }
}

/// Runs the tasks of the job, or of all trials of its search.
fn tasks(
    store: &Store,
    job: &Job,
    spec: &Spec,
    plan: &Plan,
    stop: &(dyn Fn() -> Option<Stop> + Sync),
) -> Result<RunEnd, StoreError> {
    if let Some(search) = &spec.hyperparameters {
        return Ok(match resumed(store, search) {
            Ok(before) => crate::tune::search(job, spec, plan, search, before, stop),
            Err(why) => RunEnd::Refused(why),
        });
    }
    let life = job.life()?;
    // Nothing of this machine is seen by pods.
    let copied = in_bucket(&life, spec) && spec.ours.executor != ExecutorKind::Kubernetes;
    let folder = copied.then(|| results_folder(&life, spec, job.folder()));
    let args = RunArgs {
        job_dir: Some(job_dir(&life, spec)),
        results: folder.map(|folder| folder.display().to_string()),
        ..RunArgs::default()
    };
    Ok(attempts(job, spec, plan, &args, stop))
}

/// The trials of the search that this one goes on from.
fn resumed(store: &Store, search: &Hyperparameters) -> Result<Vec<Trial>, String> {
    let Some(name) = &search.resume else {
        return Ok(Vec::new());
    };
    let name: JobName = name
        .parse()
        .map_err(|error| format!("resumePreviousJobId: {error}"))?;
    let before = store
        .load(&name)
        .map_err(|error| format!("resumePreviousJobId: {error}"))?;
    let ended = before.life.trials.into_values();
    Ok(ended
        .filter(|trial| trial.state != TrialState::Running)
        .collect())
}

/// A job that ended by itself between the wish to end it and its hearing of it.
fn settle(job: &Job, error: StoreError) -> Result<(), StoreError> {
    match job.life()?.state {
        State::Cancelling => job.append(Event::Cancelled),
        _ => Err(error),
    }
}

/// Where a job's results go: `jobDir`, or a folder of the job's name under `runs`.
#[must_use]
pub fn job_dir(life: &Life, spec: &Spec) -> String {
    let given = spec.job_dir.clone();
    given.unwrap_or_else(|| format!("runs/{}", life.job.name))
}

/// Starts the tasks again and again until they succeed, or trying again does not help.
pub(crate) fn attempts(
    job: &Job,
    spec: &Spec,
    plan: &Plan,
    args: &RunArgs,
    stop: &(dyn Fn() -> Option<Stop> + Sync),
) -> RunEnd {
    let mut budget = Budget::default();
    let mut why = lost_before(job, args);
    loop {
        if stop().is_some() {
            return RunEnd::Stopped;
        }
        let attempt = match begin(job, why.take()) {
            Ok(attempt) => attempt,
            Err(error) => return RunEnd::Refused(error.to_string()),
        };
        let started = || {
            let _ = job.append(Event::Running);
        };
        let run = Run {
            job,
            spec,
            plan,
            args: args.clone(),
            attempt,
            stop,
            started: &started,
        };
        let end = match spec.ours.executor {
            ExecutorKind::Local => run.locally(),
            ExecutorKind::Slurm => run.by_slurm(),
            ExecutorKind::Kubernetes => run.in_kubernetes(),
        };
        let (end, cause, told) = match end {
            RunEnd::Failed(failure) => {
                let event = Event::FirstFailure {
                    failure: (*failure).clone(),
                };
                let _ = job.append(event);
                (failure.end, failure.to_string(), RunEnd::Failed(failure))
            }
            RunEnd::Lost(cause) => (TaskEnd::code(TRY_AGAIN), cause.clone(), RunEnd::Lost(cause)),
            end => return end,
        };
        match verdict(end, spec.ours.restarts, &mut budget) {
            Verdict::Over => return told,
            Verdict::Again(wait) => {
                let until = now() + wait.as_millis() as u64;
                while now() < until && stop().is_none() {
                    thread::sleep(Duration::from_millis(LOOK_EVERY_MS));
                }
                why = Some(cause);
            }
        }
    }
}

/// Whether a supervisor before this one was killed in the middle of an attempt.
fn lost_before(job: &Job, args: &RunArgs) -> Option<String> {
    let life = job.life().ok()?;
    let lost = life.attempt > 0 && args.trial.is_none();
    lost.then(|| "the process that ran the job was killed".to_owned())
}

fn begin(job: &Job, why: Option<String>) -> Result<u32, StoreError> {
    job.begin(why)
}

/// What may end a job from outside.
struct Wishes<'a> {
    job: &'a Job,
    spec: &'a Spec,
    /// Milliseconds since 1970 of the last look at the log, and whether the job is to end in the lowest bit.
    looked: AtomicU64,
}

impl Wishes<'_> {
    fn stop(&self) -> Option<Stop> {
        let stop = Some(Stop {
            grace: CANCEL_GRACE,
        });
        let (now, looked) = (now() << 1, self.looked.load(Ordering::Relaxed));
        if looked & 1 == 1 {
            return stop;
        }
        if now.saturating_sub(looked) < LOOK_EVERY_MS << 1 {
            return None;
        }
        let wished = self.look();
        self.looked
            .store(now | u64::from(wished), Ordering::Relaxed);
        stop.filter(|_| wished)
    }

    fn look(&self) -> bool {
        let Ok(life) = self.job.life() else {
            return false;
        };
        let most = self.spec.scheduling.max_running;
        let over = life
            .started
            .is_some_and(|at| now().saturating_sub(at) >= most.as_millis() as u64);
        if over && life.state == State::Running {
            let why = format!(
                "it ran for longer than maxRunningTime, {} s",
                most.as_secs()
            );
            return self.job.append(Event::Cancelling { why }).is_ok();
        }
        if let Some(why) = waited_too_long(&life, self.spec) {
            return self.job.append(Event::Cancelling { why }).is_ok();
        }
        life.state == State::Cancelling
    }
}

/// Why a job that has waited in the queue of another scheduler for longer than it may is to end.
fn waited_too_long(life: &Life, spec: &Spec) -> Option<String> {
    let most = spec.scheduling.max_wait?;
    let waits = life.state == State::Preparing && spec.ours.executor != ExecutorKind::Local;
    let is_over = now().saturating_sub(life.created) >= most.as_millis() as u64;
    let seconds = most.as_secs();
    (waits && is_over).then(|| format!("it waited for longer than maxWaitTime, {seconds} s"))
}

/// Whether a job's results go into a bucket.
#[must_use]
pub fn in_bucket(life: &Life, spec: &Spec) -> bool {
    ObjectUrl::is_url(&job_dir(life, spec))
}

/// The folder of a job's results as a path of this machine: below the job's own folder where they go on into a bucket.
#[must_use]
pub fn results_folder(life: &Life, spec: &Spec, folder: &Path) -> PathBuf {
    match in_bucket(life, spec) {
        true => folder.join(FOLDER),
        false => life.job.directory.join(job_dir(life, spec)),
    }
}
