//! The process that runs one job from PREPARING to its end: attempts, retries, wishes from outside, time limits.
//!
//! It is a process of its own, so that a job goes on when the daemon that started it is killed; and whoever kills it instead finds the
//! job where it was: the next supervisor goes on with the next attempt.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_store::ObjectUrl;

use crate::executor::{Gpus, Job, Run, RunArgs, RunEnd, Stop, run_id};
use crate::lifecycle::{Budget, Event, Life, State, Submitted, TaskEnd, Trial, Verdict, verdict};
use crate::package;
use crate::spec::{ExecutorKind, JobName, Plan, Program, Source, Spec};
use crate::store::{Age, Store, StoreError};
use crate::transfer::{FOLDER, Transfer};

/// From SIGTERM to SIGKILL of a job that is cancelled for the first time, as pods have by default: a training ends its step and saves.
const CANCEL_GRACE: Duration = Duration::from_secs(30);
/// How often the log is looked at for wishes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it is tried to write what nobody else knows.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Runs a job until it has ended, or does nothing if another process runs it. `gpus` is what it may use of this machine, where anything
/// is known of it.
///
/// # Errors
/// The job's log cannot be read or written.
pub fn supervise(store: &Store, name: &JobName, gpus: Option<Gpus>) -> Result<(), StoreError> {
    let Some(_held) = store.supervise(name)? else {
        return Ok(());
    };
    let job = Job::new(store.clone(), store.load(name)?).with_gpus(gpus);
    let life = job.life()?;
    match life.state {
        State::Cancelling => {
            end_what_is_left(job.folder(), &life);
            record(&job, &Event::Cancelled)
        }
        state if state.is_final() || state == State::Queued => Ok(()),
        _ => match prepare(&life) {
            Ok((spec, plan)) => drive(store, &job, &life, &spec, plan),
            Err(why) => record(&job, &Event::Failed { why }),
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

/// Ends what runs of a job that has no supervisor any more, here and by schedulers outside.
pub fn end_what_is_left(folder: &Path, life: &Life) {
    crate::executor::cancel_in_slurm(folder, life);
    let prepared = prepare(life);
    if let Ok((spec, _)) = &prepared {
        end_pods(life, spec);
    }
    let contained = prepared.is_ok_and(|(spec, plan)| {
        spec.ours.executor == ExecutorKind::Local && plan.program == Program::Image
    });
    let trials = life.trials.keys().copied().map(Some);
    for trial in trials.chain([None]) {
        let id = run_id(folder, life, trial);
        phalanx_cluster::launch::end_what_is_left(&id);
        if contained {
            crate::executor::end_containers(&id);
        }
    }
}

/// Ends the pods of a job that has any.
fn end_pods(life: &Life, spec: &Spec) {
    if spec.ours.executor == ExecutorKind::Kubernetes {
        crate::executor::cancel_in_kubernetes(life, spec);
    }
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
    let wishes = Wishes::of(job, spec);
    let stop = || wishes.stop();
    let end = match Transfer::start(job, life, spec, &stop) {
        Err(end) => end,
        Ok(transfer) => {
            let end = match with_package(job, life, spec.clone(), plan) {
                Ok((spec, plan)) => tasks(store, job, &spec, &plan, &stop)?,
                Err(why) => RunEnd::Refused(why),
            };
            wishes.have_tasks_ended.store(true, Ordering::Release);
            match transfer {
                Some(transfer) => transfer.finish(end, &stop),
                None => end,
            }
        }
    };
    // What others have still, such as trials of before whose turn did not come again. A log that cannot be read now may be when the end is
    // written.
    if let Ok(life) = job.life() {
        crate::executor::cancel_in_slurm(job.folder(), &life);
        if life.handle.is_some() || spec.hyperparameters.is_some() {
            end_pods(&life, spec);
        }
    }
    let event = match end {
        RunEnd::Succeeded => Event::Succeeded,
        RunEnd::Stopped => Event::Cancelled,
        RunEnd::Failed(failure) => {
            let why = failure.to_string();
            Event::Failed { why }
        }
        RunEnd::Lost(why) | RunEnd::Refused(why) => Event::Failed { why },
    };
    record(job, &event)
}

/// Writes how the job ended, however long the disk has no room for it: nobody else knows, and another supervisor would begin once more.
fn record(job: &Job, end: &Event) -> Result<(), StoreError> {
    let next = |life: &Life| match (life.state, end) {
        // It ended by itself between the wish to end it and its hearing of it.
        (State::Cancelling, _) => Event::Cancelled,
        // There was no room for this either.
        (State::Preparing, Event::Succeeded) => Event::Running,
        _ => end.clone(),
    };
    while !waiting_for_room(|| job.update(next))?.is_final() {}
    Ok(())
}

/// Writes to the job's log what nobody else knows, however long the disk has no room for it.
pub(crate) fn waiting_for_room<T>(
    mut write: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    loop {
        match write() {
            Err(StoreError::Io { .. }) => thread::sleep(RECORD_EVERY),
            written => return written,
        }
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
    let life = job.life()?;
    if let Some(search) = &spec.hyperparameters {
        return Ok(match resumed(store, &life) {
            Ok(before) => crate::tune::search(job, spec, plan, search, before, stop),
            Err(why) => RunEnd::Refused(why),
        });
    }
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

/// The trials of the searches that this one goes on from: of the one that it names, and of all that this one goes on from itself, as far as they
/// are still there.
fn resumed(store: &Store, life: &Life) -> Result<Vec<Trial>, String> {
    let mut trials = Vec::new();
    // They may name each other in a circle.
    let mut known = BTreeSet::from([life.job.name.clone()]);
    let mut next = resumes(&life.job);
    while let Some(name) = next {
        let name: JobName = name
            .parse()
            .map_err(|error| format!("resumePreviousJobId: {error}"))?;
        if !known.insert(name.clone()) {
            break;
        }
        let is_named_here = known.len() == 2;
        let before = match store.load(&name) {
            Ok(before) => before,
            Err(error) if is_named_here => return Err(format!("resumePreviousJobId: {error}")),
            Err(_) => break,
        };
        next = resumes(&before.life.job);
        trials.extend(before.life.trials.into_values());
    }
    Ok(trials)
}

/// The search that a search goes on from, as it was submitted.
#[must_use]
pub fn resumes(job: &Submitted) -> Option<String> {
    let search = &job.training_input["hyperparameters"];
    search["resumePreviousJobId"].as_str().map(str::to_owned)
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
    let mut restarts = starts_before(job, args);
    let mut why = lost_before(job, args);
    loop {
        let next = || match stop() {
            Some(_) => Ok(None),
            None => job.begin(why.clone()).map(Some),
        };
        let attempt = match waiting_for_room(next) {
            Ok(Some(attempt)) => attempt,
            Ok(None) => return RunEnd::Stopped,
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
            restarts,
            stop,
            started: &started,
        };
        restarts += 1;
        let end = run.run();
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
                let begun = Instant::now();
                while begun.elapsed() < wait && stop().is_none() {
                    thread::sleep(LOOK_EVERY);
                }
                why = Some(cause);
            }
        }
    }
}

/// How often the tasks were started by supervisors before this one, which were killed. Of a trial it is known only that they may have been.
fn starts_before(job: &Job, args: &RunArgs) -> u32 {
    match args.trial {
        Some(_) => u32::from(args.was_begun),
        None => job.life().map_or(0, |life| life.attempt),
    }
}

/// Whether a supervisor before this one was killed in the middle of an attempt.
fn lost_before(job: &Job, args: &RunArgs) -> Option<String> {
    let life = job.life().ok()?;
    let lost = life.attempt > 0 && args.trial.is_none();
    lost.then(|| "the process that ran the job was killed".to_owned())
}

/// What may end a job from outside.
struct Wishes<'a> {
    job: &'a Job,
    spec: &'a Spec,
    looked: Mutex<Looked>,
    /// How long its tasks have run, and how long it has waited for them to.
    ran: OnceLock<Age>,
    waited: OnceLock<Age>,
    /// What copies results after them is no running time.
    have_tasks_ended: AtomicBool,
}

impl<'a> Wishes<'a> {
    /// Before the first look.
    fn of(job: &'a Job, spec: &'a Spec) -> Self {
        Self {
            job,
            spec,
            looked: Mutex::default(),
            ran: OnceLock::new(),
            waited: OnceLock::new(),
            have_tasks_ended: AtomicBool::new(false),
        }
    }
}

/// The last look at the log for wishes.
#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    found: Option<Stop>,
}

impl Wishes<'_> {
    fn stop(&self) -> Option<Stop> {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            looked.found = self.look().or(looked.found);
            looked.at = Some(Instant::now());
        }
        looked.found
    }

    fn look(&self) -> Option<Stop> {
        let life = self.job.life().ok()?;
        let most = self.spec.scheduling.max_running;
        let ran = |at| self.ran.get_or_init(|| Age::since(at)).elapsed();
        let over = life.started.is_some_and(|at| ran(at) >= most);
        let mut cancelled = life.state == State::Cancelling;
        let is_copying = self.have_tasks_ended.load(Ordering::Acquire);
        if over && !is_copying && life.state == State::Running {
            let why = format!(
                "it ran for longer than maxRunningTime, {} s",
                most.as_secs()
            );
            cancelled = self.job.append(Event::Cancelling { why }).is_ok();
        }
        if let Some(why) = self.waited_too_long(&life) {
            cancelled = self.job.append(Event::Cancelling { why }).is_ok();
        }
        let grace = match life.hurried {
            true => Duration::ZERO,
            false => CANCEL_GRACE,
        };
        cancelled.then_some(Stop { grace })
    }

    /// Why a job that has waited in the queue of another scheduler for longer than it may is to end.
    fn waited_too_long(&self, life: &Life) -> Option<String> {
        let most = self.spec.scheduling.max_wait?;
        let waits =
            life.state == State::Preparing && self.spec.ours.executor != ExecutorKind::Local;
        let waited = self.waited.get_or_init(|| Age::since(life.created));
        let is_over = waits && waited.elapsed() >= most;
        let seconds = most.as_secs();
        is_over.then(|| format!("it waited for longer than maxWaitTime, {seconds} s"))
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::lifecycle::TrialState;
    use crate::testing::{Scratch, submitted};

    /// A job that was given room.
    fn prepared(store: &Store) -> Job {
        let job = submitted(Path::new("/"), json!({}), json!({}));
        let job = Job::new(store.clone(), store.create(job).unwrap());
        job.append(Event::Prepared).unwrap();
        job
    }

    #[test]
    fn how_a_job_ended_is_written_as_soon_as_the_disk_takes_it() {
        let scratch = Scratch::new("record");
        let store = Store::open(&scratch.0).unwrap();
        let job = prepared(&store);
        let log = job.folder().join("events.log");
        let aside = job.folder().join("aside");
        // In the place of a disk that is full: a folder that cannot be written as a file.
        fs::rename(&log, &aside).unwrap();
        fs::create_dir(&log).unwrap();
        thread::scope(|scope| {
            let recorded = scope.spawn(|| record(&job, &Event::Succeeded));
            thread::sleep(Duration::from_millis(100));
            assert!(!recorded.is_finished());
            fs::remove_dir(&log).unwrap();
            fs::rename(&aside, &log).unwrap();
            recorded.join().unwrap().unwrap();
        });
        let life = store.load(&"demo".parse().unwrap()).unwrap().life;
        assert_eq!(life.state, State::Succeeded);
        // That it ran was not written while there was no room.
        assert!(life.started.is_some());
    }

    #[test]
    fn searches_that_name_each_other_are_known_once() {
        let scratch = Scratch::new("resumed");
        let store = Store::open(&scratch.0).unwrap();
        let search = |name: &str, resumes: &str, number: u32| {
            let input = json!({"hyperparameters": {"resumePreviousJobId": resumes}});
            let mut job = submitted(Path::new("/"), input, json!({}));
            job.name = name.parse().unwrap();
            let job = Job::new(store.clone(), store.create(job).unwrap());
            let trial = Trial {
                number,
                values: Default::default(),
                state: TrialState::Succeeded,
                metric: None,
                metrics: Vec::new(),
                started: 0,
                ended: None,
            };
            job.append(Event::Trial { trial }).unwrap();
            job.life().unwrap()
        };
        let first = search("first", "second", 1);
        let first_name = first.job.name.clone();
        let second = search("second", "first", 2);
        let third = search("third", "second", 3);
        for (life, known) in [(first, &[2][..]), (second, &[1]), (third, &[2, 1])] {
            let trials = resumed(&store, &life).unwrap();
            let numbers: Vec<u32> = trials.iter().map(|trial| trial.number).collect();
            assert_eq!(numbers, known);
        }
        // Of one that is gone nothing more is known, but where it is the one that was named.
        fs::remove_dir_all(store.folder(&first_name)).unwrap();
        let fourth = search("fourth", "second", 4);
        assert_eq!(resumed(&store, &fourth).unwrap().len(), 1);
        let fifth = search("fifth", "first", 5);
        let refused = resumed(&store, &fifth).unwrap_err();
        assert!(refused.starts_with("resumePreviousJobId: "), "{refused}");
    }

    #[test]
    fn a_second_cancel_leaves_no_time() {
        let scratch = Scratch::new("hurried");
        let job = prepared(&Store::open(&scratch.0).unwrap());
        let source = json!({"trainingInput": {"args": ["true"]}});
        let spec = Spec::read(&Source::of_json(&source)).unwrap();
        let wishes = Wishes::of(&job, &spec);
        assert_eq!(wishes.look(), None);
        let why = String::new();
        job.append(Event::Cancelling { why }).unwrap();
        let stop = |grace| Some(Stop { grace });
        assert_eq!(wishes.look(), stop(CANCEL_GRACE));
        job.append(Event::Hurried).unwrap();
        assert_eq!(wishes.look(), stop(Duration::ZERO));
    }

    #[test]
    fn a_clock_that_is_set_back_gives_a_job_no_more_time() {
        let scratch = Scratch::new("set-back");
        let job = prepared(&Store::open(&scratch.0).unwrap());
        job.append(Event::Running).unwrap();
        let input = json!({"args": ["true"], "scheduling": {"maxRunningTime": "1s"}});
        let spec = Spec::read(&Source::of_json(&json!({"trainingInput": input}))).unwrap();
        let wishes = Wishes {
            // As if this process had seen it begin at a time that is to come again.
            ran: Age::since(crate::store::now() + 86_400_000).into(),
            ..Wishes::of(&job, &spec)
        };
        thread::sleep(Duration::from_secs(1));
        assert!(wishes.look().is_some());
    }

    #[test]
    fn copies_after_the_tasks_are_no_running_time() {
        let scratch = Scratch::new("copied");
        let job = prepared(&Store::open(&scratch.0).unwrap());
        let source =
            json!({"trainingInput": {"args": ["true"], "scheduling": {"maxRunningTime": "1s"}}});
        let mut spec = Spec::read(&Source::of_json(&source)).unwrap();
        spec.scheduling.max_running = Duration::ZERO;
        job.append(Event::Running).unwrap();
        let wishes = |ended| Wishes {
            have_tasks_ended: AtomicBool::new(ended),
            ..Wishes::of(&job, &spec)
        };
        assert_eq!(wishes(true).look(), None);
        let grace = CANCEL_GRACE;
        assert_eq!(wishes(false).look(), Some(Stop { grace }));
    }
}
