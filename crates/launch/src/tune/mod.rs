//! The search for hyperparameters: trials in parallel, each a run of the job's tasks with values of its own.
//!
//! All that is known of a search is the list of trials in the job's log, so a search whose supervisor was killed goes on from there.

mod gaussian;
mod median;
mod metric;
mod space;
mod suggest;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
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
    mut before: Vec<Trial>,
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
    // The numbers go on, and so do the folders of trials in `jobDir`: both searches may have the same.
    let last = before.iter().map(|trial| trial.number).max().unwrap_or(0);
    // Those that were ended with it say nothing of their values.
    before.retain(|trial| !matches!(trial.state, TrialState::Running | TrialState::Cancelled));
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
        begun_before: lost.iter().map(|trial| trial.number).collect(),
        board: Mutex::new(Board {
            trials,
            lost,
            next: last,
            failure: None,
            cause: None,
            refused: None,
        }),
        changed: Condvar::new(),
    };
    let gpus = job.gpus().map_or(0, |gpus| gpus.names.len());
    let of = plan.trials_at_once(spec, machine_memory().unwrap_or(u64::MAX), gpus);
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
    /// Trials that a supervisor before this one began, whose tasks may have run without its word.
    begun_before: BTreeSet<u32>,
    board: Mutex<Board>,
    changed: Condvar,
}

/// What the lanes share.
struct Board {
    /// All trials that have begun.
    trials: Vec<Trial>,
    /// Trials to run again.
    lost: Vec<Trial>,
    /// The last number that was given, also by the search before.
    next: u32,
    failure: Option<Box<FirstFailure>>,
    /// Why a trial ended that was lost, or ended by a scheduler outside; the last one.
    cause: Option<String>,
    /// Why no other trial can run.
    refused: Option<String>,
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
        if board.refused.is_some() || self.has_failed(&board) {
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
            if board.trials.len() >= self.search.max_trials {
                return None;
            }
            if let Err(why) = self.has_place(number) {
                board.refused = Some(why);
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
            was_begun: self.begun_before.contains(&trial.number),
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
        let values = metric::read(&self.local(trial.number), &self.search.metric);
        trial.metrics = values.finite;
        trial.metric = trial.metrics.last().copied();
        trial.ended = Some(now().max(trial.started));
        trial.state = match end {
            RunEnd::Stopped | RunEnd::Succeeded if values.has_diverged => TrialState::Failed,
            RunEnd::Stopped if early => TrialState::Stopped,
            // What it told so far is of no end of its training.
            RunEnd::Stopped => TrialState::Cancelled,
            RunEnd::Succeeded if trial.metric.is_some() => TrialState::Succeeded,
            RunEnd::Failed(failure) => {
                self.board().failure = Some(failure);
                TrialState::Failed
            }
            RunEnd::Refused(why) if !self.has_started() => {
                self.board().refused = Some(why);
                TrialState::Failed
            }
            RunEnd::Refused(why) | RunEnd::Lost(why) => {
                self.board().cause = Some(why);
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

    /// Whether a task of any trial has started, or a scheduler outside was given one. Where none could, the tasks of other trials cannot either.
    fn has_started(&self) -> bool {
        let life = self.job.life();
        life.is_ok_and(|life| !life.tasks.is_empty() || !life.trial_handles.is_empty())
    }

    /// Whether nothing is where a trial's results go. What is there is of other values: the trial would be given its metric, and go on with
    /// its checkpoint.
    fn has_place(&self, number: u32) -> Result<(), String> {
        let why = match fs::read_dir(self.local(number)).map(|mut found| found.next()) {
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Ok(Some(_)) => "has the results of another job".to_owned(),
            Err(error) => format!("cannot be read: {error}"),
        };
        Err(format!(
            "{}/{number}, where the results of trial {number} go, {why}; give the search a jobDir of its own, or remove that folder",
            self.folder
        ))
    }

    fn local(&self, number: u32) -> PathBuf {
        self.results.join(number.to_string())
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
        if let Some(why) = &board.refused {
            return RunEnd::Refused(why.clone());
        }
        if any && !self.has_failed(&board) {
            return RunEnd::Succeeded;
        }
        match (&board.failure, &board.cause) {
            (Some(failure), _) => RunEnd::Failed(failure.clone()),
            (None, Some(why)) => RunEnd::Lost(why.clone()),
            (None, None) => RunEnd::Refused(format!(
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
            state.1 = median::is_worse(self.searching.search.goal, &own.finite, &board.trials);
        }
        state.1.then_some(Stop { grace: GRACE })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lifecycle::Submitted;
    use crate::spec::Source;
    use crate::store::Store;
    use crate::testing::{Scratch, submitted, written};

    /// A search of four trials by Slurm, whose commands are in a folder `programs`, after the trials of another: how it ended, and its trials.
    fn searched(scratch: &Scratch, before: Vec<Trial>) -> (RunEnd, Vec<Trial>) {
        let params =
            json!([{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]);
        let input = json!({
            "args": ["true"],
            "jobDir": "results",
            "hyperparameters": {"goal": "MINIMIZE", "maxTrials": 4, "params": params},
        });
        let phalanx = json!({"executor": "slurm"});
        let source = json!({"trainingInput": input, "phalanx": phalanx});
        let spec = Spec::read(&Source::of_json(&source)).unwrap();
        let plan = Plan::new(&spec).unwrap();
        let path = scratch.0.join("programs").display().to_string();
        let job = Submitted {
            environment: [("PATH".to_owned(), path)].into(),
            ..submitted(&scratch.0, input, phalanx)
        };
        let store = Store::open(scratch.0.join("jobs")).unwrap();
        let job = Job::new(store.clone(), store.create(job).unwrap());
        job.append(Event::Prepared).unwrap();
        let of = spec.hyperparameters.as_ref().unwrap();
        let end = search(&job, &spec, &plan, of, before, &|| None);
        let trials = job.life().unwrap().trials;
        (end, trials.into_values().collect())
    }

    fn refusal(end: &RunEnd) -> &str {
        match end {
            RunEnd::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_trial_takes_no_results_of_another_job_for_its_own() {
        let scratch = Scratch::new("trial-place");
        fs::create_dir_all(scratch.0.join("results/1/checkpoint")).unwrap();
        let (end, trials) = searched(&scratch, Vec::new());
        let why = refusal(&end);
        assert!(
            why.starts_with("results/1,") && why.contains("give the search a jobDir of its own"),
            "{why}"
        );
        assert!(trials.is_empty(), "{trials:?}");
    }

    #[test]
    fn where_no_trial_can_start_the_search_ends_at_the_first_and_says_why() {
        let scratch = Scratch::new("trial-start");
        fs::create_dir_all(scratch.0.join("results/1")).unwrap();
        let (end, trials) = searched(&scratch, Vec::new());
        assert!(refusal(&end).starts_with("cannot start sbatch"), "{end:?}");
        assert_eq!(trials.len(), 1, "{trials:?}");
        assert_eq!(trials[0].state, TrialState::Failed);
    }

    #[test]
    fn a_trial_that_cannot_start_ends_no_search_whose_others_did() {
        let scratch = Scratch::new("trial-refused");
        // Each trial but the second has ended by the time at which it has a number.
        let sbatch = "for word; do case $word in --output=*) folder=${word#--output=}; folder=${folder%/*};; esac; done
number=${folder##*/trial-}; number=${number%%-*}
[ $number != 2 ] || { echo Invalid qos specification >&2; exit 1; }
mkdir -p \"$folder/r0\" \"$OUT/$number/hypertune\"
echo n1 >\"$folder/r0/chief-0.start\"; echo 0 1795 >\"$folder/r0/chief-0.exit\"
echo '{\"training/hptuning/metric\": 1}' >\"$OUT/$number/hypertune/output.metrics\"
echo $number";
        let out = scratch.0.join("results");
        let sbatch = format!("PATH=/usr/bin:/bin OUT='{}'\n{sbatch}", out.display());
        let all = [
            ("sbatch", &*sbatch),
            ("squeue", "exit 0"),
            ("scontrol", "echo JobState=COMPLETED"),
        ];
        written(&scratch.0.join("programs"), &all);
        let (end, trials) = searched(&scratch, Vec::new());
        assert_eq!(end, RunEnd::Succeeded, "{trials:?}");
        let states: Vec<TrialState> = trials.iter().map(|trial| trial.state).collect();
        use TrialState::{Failed, Succeeded};
        assert_eq!(states, [Succeeded, Failed, Succeeded, Succeeded]);
    }

    #[test]
    fn the_numbers_of_trials_go_on_from_the_search_before() {
        let scratch = Scratch::new("trial-numbers");
        fs::create_dir_all(scratch.0.join("results/7/checkpoint")).unwrap();
        let before = |number, state| Trial {
            number,
            values: Default::default(),
            state,
            metric: None,
            metrics: Vec::new(),
            started: 0,
            ended: None,
        };
        let before = vec![
            before(6, TrialState::Failed),
            // Its supervisor was killed, and its folder is there.
            before(7, TrialState::Running),
        ];
        let (end, trials) = searched(&scratch, before);
        assert!(refusal(&end).starts_with("cannot start sbatch"), "{end:?}");
        assert_eq!(trials[0].number, 8);
    }
}
