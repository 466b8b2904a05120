//! The search for hyperparameters: trials in parallel, each a run of the job's tasks with values of its own.
//!
//! All that is known of a search is the list of trials in the job's log, so a search whose supervisor was killed goes on from there.

mod gaussian;
mod median;
mod metric;
mod space;
mod suggest;

use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::executor::{Job, Lane, RunArgs, RunEnd, Stop};
use crate::lifecycle::{Event, FirstFailure, Trial, TrialState};
use crate::spec::{Hyperparameters, Plan, Spec};
use crate::store::now;
use crate::supervise::{attempts, in_bucket, job_dir, results_folder, waiting_for_room};
use crate::usage::machine_memory;

/// How often a running trial's metric is read.
const READ_EVERY: Duration = Duration::from_millis(500);
/// From SIGTERM to SIGKILL of a trial that is worse than the others.
const GRACE: Duration = Duration::from_secs(30);
/// Where nothing is said of failed trials, a search whose first trials all fail ends.
const FIRST_FAILURES: usize = 3;

/// Runs trials until there are as many as were asked for. `before` are the trials of a search that this one resumes.
pub(crate) fn search(
    job: &Job,
    spec: &Spec,
    plan: &Plan,
    search: &Hyperparameters,
    before: Vec<Trial>,
    stop: &(dyn Fn() -> Option<Stop> + Sync),
) -> RunEnd {
    let life = match job.life() {
        Ok(life) => life,
        Err(error) => return RunEnd::Refused(error.to_string()),
    };
    let mut trials: Vec<Trial> = life.trials.values().cloned().collect();
    // A supervisor before this one was killed: what its trials did not do they do now, and those that Slurm has go on.
    let lost: Vec<Trial> = trials
        .extract_if(.., |trial| trial.state == TrialState::Running)
        .collect();
    let searching = Searching {
        job,
        spec,
        plan,
        search,
        before,
        stop,
        folder: job_dir(&life, spec),
        results: results_folder(&life, spec, job.folder()),
        in_bucket: in_bucket(&life, spec),
        seed: life.created,
        board: Mutex::new(Board {
            trials,
            lost,
            next: 0,
            failure: None,
        }),
        changed: Condvar::new(),
    };
    let of = plan.trials_at_once(spec, machine_memory().unwrap_or(u64::MAX));
    thread::scope(|scope| {
        for number in 0..of {
            let searching = &searching;
            scope.spawn(move || searching.run_trials(Lane { number, of }));
        }
    });
    searching.judge()
}

struct Searching<'a> {
    job: &'a Job,
    spec: &'a Spec,
    plan: &'a Plan,
    search: &'a Hyperparameters,
    before: Vec<Trial>,
    stop: &'a (dyn Fn() -> Option<Stop> + Sync),
    /// Where the results go.
    folder: String,
    /// Where they are on this machine, and whether they go on from there into a bucket.
    results: PathBuf,
    in_bucket: bool,
    seed: u64,
    board: Mutex<Board>,
    changed: Condvar,
}

/// What the lanes share.
struct Board {
    /// All trials that have begun.
    trials: Vec<Trial>,
    /// Trials to run again.
    lost: Vec<Trial>,
    next: u32,
    failure: Option<Box<FirstFailure>>,
}

impl Searching<'_> {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One trial after another.
    fn run_trials(&self, lane: Lane) {
        while (self.stop)().is_none() {
            let Some(trial) = self.begin() else { return };
            let ended = self.run(trial, lane);
            let mut board = self.board();
            put(&mut board.trials, ended);
            drop(board);
            self.changed.notify_all();
        }
    }

    /// The next trial, if there is to be one.
    fn begin(&self) -> Option<Trial> {
        let mut board = self.board();
        if self.has_failed(&board) {
            return None;
        }
        let trial = if let Some(lost) = board.lost.pop() {
            lost
        } else {
            let number = board
                .trials
                .iter()
                .map(|trial| trial.number)
                .max()
                .unwrap_or(0)
                .max(board.next)
                + 1;
            if number as usize > self.search.max_trials {
                return None;
            }
            board.next = number;
            let known: Vec<Trial> = self.before.iter().chain(&board.trials).cloned().collect();
            let values = suggest::next(self.search, &known, number, self.seed)?;
            Trial {
                number,
                values,
                state: TrialState::Running,
                metric: None,
                metrics: Vec::new(),
                started: now(),
                ended: None,
            }
        };
        board.next = board.next.max(trial.number);
        put(&mut board.trials, trial.clone());
        // The others' trials are watched meanwhile.
        drop(board);
        let event = Event::Trial {
            trial: trial.clone(),
        };
        let begun = waiting_for_room(|| match (self.stop)() {
            Some(_) => Ok(false),
            None => self.job.append(event.clone()).map(|()| true),
        });
        begun.ok()?.then_some(trial)
    }

    fn run(&self, mut trial: Trial, lane: Lane) -> Trial {
        let args = RunArgs {
            trial: Some(trial.number),
            values: trial.values.clone().into_iter().collect(),
            job_dir: Some(format!("{}/{}", self.folder, trial.number)),
            results: (self.in_bucket).then(|| self.local(trial.number).display().to_string()),
            lane: Some(lane),
        };
        let watch = Watch {
            searching: self,
            folder: self.local(trial.number),
            state: Mutex::new((Instant::now(), false)),
        };
        let wish = || watch.stop();
        let end = attempts(self.job, self.spec, self.plan, &args, &wish);
        let early = watch
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .1;
        trial.metrics = self.metrics(trial.number);
        trial.metric = trial.metrics.last().copied();
        trial.ended = Some(now());
        trial.state = match end {
            RunEnd::Stopped if early => TrialState::Stopped,
            RunEnd::Succeeded if trial.metric.is_some() => TrialState::Succeeded,
            RunEnd::Failed(failure) => {
                self.board().failure = Some(failure);
                TrialState::Failed
            }
            _ => TrialState::Failed,
        };
        let event = Event::Trial {
            trial: trial.clone(),
        };
        let _ = waiting_for_room(|| self.job.append(event.clone()));
        trial
    }

    fn local(&self, number: u32) -> PathBuf {
        self.results.join(number.to_string())
    }

    fn metrics(&self, number: u32) -> Vec<(i64, f64)> {
        metric::read(&self.local(number), &self.search.metric)
    }

    fn has_failed(&self, board: &Board) -> bool {
        let failed = board
            .trials
            .iter()
            .filter(|trial| trial.state == TrialState::Failed)
            .count();
        let ended = board
            .trials
            .iter()
            .filter(|trial| trial.state != TrialState::Running)
            .count();
        match self.search.max_failed {
            0 => failed >= FIRST_FAILURES && failed == ended,
            most => failed >= most,
        }
    }

    fn judge(&self) -> RunEnd {
        let board = self.board();
        if (self.stop)().is_some() {
            return RunEnd::Stopped;
        }
        let any = board
            .trials
            .iter()
            .any(|trial| trial.state == TrialState::Succeeded);
        if any && !self.has_failed(&board) {
            return RunEnd::Succeeded;
        }
        match &board.failure {
            Some(failure) => RunEnd::Failed(failure.clone()),
            None => RunEnd::Refused(format!(
                "no trial has told a finite value of the metric {:?}; write it with cloudml-hypertune, as a summary of that tag, or take a name of history.jsonl",
                self.search.metric
            )),
        }
    }
}

fn put(trials: &mut Vec<Trial>, trial: Trial) {
    match trials.iter_mut().find(|other| other.number == trial.number) {
        Some(place) => *place = trial,
        None => trials.push(trial),
    }
}

/// What ends one trial: what ends the job, and the others being better.
struct Watch<'a> {
    searching: &'a Searching<'a>,
    folder: PathBuf,
    /// When the metric was last read, and whether the trial is to end for it.
    state: Mutex<(Instant, bool)>,
}

impl Watch<'_> {
    fn stop(&self) -> Option<Stop> {
        if let Some(stop) = (self.searching.stop)() {
            return Some(stop);
        }
        if !self.searching.search.early_stopping {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.1 && state.0.elapsed() >= READ_EVERY {
            let own = metric::read(&self.folder, &self.searching.search.metric);
            state.0 = Instant::now();
            let board = self.searching.board();
            state.1 = median::is_worse(self.searching.search.goal, &own, &board.trials);
        }
        state.1.then_some(Stop { grace: GRACE })
    }
}
