//! `/metrics`: what the service knows of its jobs, in the text format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use axum::extract::State as Shares;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use phalanx_launch::curves::{CurveReader, Pace, written};
use phalanx_launch::lifecycle::{Life, State, TrialState};
use phalanx_launch::spec::JobName;
use phalanx_launch::supervise::{prepare, results_folder};
use phalanx_launch::usage::usage_now;

use super::Shared;

const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Readers of the histories of the jobs that run.
pub(super) type Histories = BTreeMap<JobName, CurveReader>;

/// Every metric: its name, its type, and what it says.
const METRICS: &[(&str, &str, &str)] = &[
    (
        "phalanx_build_info",
        "gauge",
        "1, with the version of this service.",
    ),
    ("phalanx_jobs", "gauge", "Jobs by state."),
    ("phalanx_queue_length", "gauge", "Jobs that wait for room."),
    (
        "phalanx_queue_oldest_timestamp_seconds",
        "gauge",
        "When the job was submitted that has waited longest.",
    ),
    (
        "phalanx_tasks",
        "gauge",
        "Tasks of jobs that run, by whether they have ended.",
    ),
    (
        "phalanx_restarts_total",
        "counter",
        "Times that all tasks of a job were started again, over all jobs.",
    ),
    (
        "phalanx_job_start_timestamp_seconds",
        "gauge",
        "When the tasks of the job started first.",
    ),
    ("phalanx_job_tasks", "gauge", "Tasks of the job that run."),
    (
        "phalanx_job_restarts_total",
        "counter",
        "Times that all tasks of the job were started again.",
    ),
    (
        "phalanx_job_task_restarts_total",
        "counter",
        "Times that workers of the job were started again alone since all tasks were started.",
    ),
    (
        "phalanx_job_workers_lost",
        "gauge",
        "Tasks of the job that have ended otherwise than by exit code 0, while it runs.",
    ),
    (
        "phalanx_job_trials",
        "gauge",
        "Trials of a search by state.",
    ),
    (
        "phalanx_job_epochs_total",
        "counter",
        "Epochs that the training has done.",
    ),
    (
        "phalanx_job_steps_total",
        "counter",
        "Steps that the training has done, as far as it has written of them.",
    ),
    (
        "phalanx_job_steps_per_second",
        "gauge",
        "Steps a second of the last seconds of steps, or else of the last epoch, without compilation and validation.",
    ),
    (
        "phalanx_job_examples_per_second",
        "gauge",
        "Examples a second of the same time, over all workers.",
    ),
    ("phalanx_job_loss", "gauge", "The loss of the last epoch."),
    (
        "phalanx_job_last_epoch_timestamp_seconds",
        "gauge",
        "When the last epoch ended.",
    ),
    (
        "phalanx_job_checkpoint_timestamp_seconds",
        "gauge",
        "When the newest checkpoint in the folder of the results was written.",
    ),
    (
        "phalanx_task_memory_bytes",
        "gauge",
        "Memory of the processes of a task of this machine.",
    ),
    (
        "phalanx_task_processors",
        "gauge",
        "Processors that the processes of a task of this machine use.",
    ),
];

pub(super) async fn metrics(Shares(shared): Shares<Arc<Shared>>) -> Response {
    let text = tokio::task::block_in_place(|| exposition(&shared));
    ([(header::CONTENT_TYPE, KIND)], text).into_response()
}

fn exposition(shared: &Shared) -> String {
    let lives: Vec<Life> = {
        let mut jobs = shared.jobs();
        for followed in jobs.values_mut().filter(|one| !one.life.state.is_final()) {
            // What cannot be read now is as it was.
            let _ = shared.store.refresh(followed);
        }
        jobs.values().map(|one| one.life.clone()).collect()
    };
    let mut samples = Samples::default();
    let version = env!("CARGO_PKG_VERSION");
    samples.add("phalanx_build_info", &[("version", version)], 1.0);
    of_all(&mut samples, &lives);
    let running: Vec<&Life> = lives.iter().filter(|life| runs(life)).collect();
    let histories = shared.histories.lock();
    let mut histories = histories.unwrap_or_else(PoisonError::into_inner);
    histories.retain(|name, _| running.iter().any(|life| life.job.name == *name));
    for life in running {
        of_life(&mut samples, life);
        let reader = histories.entry(life.job.name.clone()).or_default();
        of_training(
            &mut samples,
            life,
            &shared.store.folder(&life.job.name),
            reader,
        );
    }
    samples.text()
}

fn runs(life: &Life) -> bool {
    life.started.is_some() && !life.state.is_final()
}

/// What is known of all jobs together.
fn of_all(samples: &mut Samples, lives: &[Life]) {
    for state in State::ALL {
        let count = lives.iter().filter(|life| life.state == state).count();
        samples.add("phalanx_jobs", &[("state", state.name())], count as f64);
    }
    let queued = || lives.iter().filter(|life| life.state == State::Queued);
    samples.add("phalanx_queue_length", &[], queued().count() as f64);
    if let Some(oldest) = queued().map(|life| life.created).min() {
        let name = "phalanx_queue_oldest_timestamp_seconds";
        samples.add(name, &[], seconds(oldest));
    }
    let tasks = || {
        lives
            .iter()
            .filter(|life| runs(life))
            .flat_map(|life| life.tasks.values())
    };
    let ended = tasks().filter(|task| task.end.is_some()).count();
    let running = tasks().count() - ended;
    for (state, count) in [("RUNNING", running), ("ENDED", ended)] {
        samples.add("phalanx_tasks", &[("state", state)], count as f64);
    }
    let restarts: u32 = lives.iter().map(restarts).sum();
    samples.add("phalanx_restarts_total", &[], f64::from(restarts));
}

/// How often all tasks of a job were started again; each trial of a search is started once.
fn restarts(life: &Life) -> u32 {
    let first = u32::try_from(life.trials.len()).unwrap_or(u32::MAX).max(1);
    life.attempt.saturating_sub(first)
}

/// What the log of a job that runs says. The label is not `job`, which Prometheus sets itself.
fn of_life(samples: &mut Samples, life: &Life) {
    let job = [("job_name", life.job.name.as_str())];
    if let Some(started) = life.started {
        samples.add(
            "phalanx_job_start_timestamp_seconds",
            &job,
            seconds(started),
        );
    }
    let running = life
        .tasks
        .values()
        .filter(|task| task.end.is_none())
        .count();
    samples.add("phalanx_job_tasks", &job, running as f64);
    samples.add(
        "phalanx_job_restarts_total",
        &job,
        f64::from(restarts(life)),
    );
    if !life.trials.is_empty() {
        for state in [
            TrialState::Running,
            TrialState::Succeeded,
            TrialState::Stopped,
            TrialState::Failed,
            TrialState::Cancelled,
        ] {
            let count = life
                .trials
                .values()
                .filter(|trial| trial.state == state)
                .count();
            let name = match state {
                TrialState::Stopped => "STOPPED",
                state => state.name(),
            };
            samples.add(
                "phalanx_job_trials",
                &[job[0], ("state", name)],
                count as f64,
            );
        }
        return;
    }
    let tasks = || {
        life.tasks
            .values()
            .filter(|task| task.attempt == life.attempt)
    };
    let again: u32 = tasks().map(|task| task.restarts).sum();
    samples.add("phalanx_job_task_restarts_total", &job, f64::from(again));
    let lost = tasks().filter(|task| task.end.is_some_and(|end| end.code != Some(0)));
    samples.add("phalanx_job_workers_lost", &job, lost.count() as f64);
}

/// What the files of a job that runs say.
fn of_training(samples: &mut Samples, life: &Life, folder: &Path, reader: &mut CurveReader) {
    let job = ("job_name", life.job.name.as_str());
    let runs = |task: &str| life.tasks.get(task).is_none_or(|task| task.end.is_none());
    for (task, used) in usage_now(folder) {
        if !runs(&task) {
            continue;
        }
        let task = [job, ("task", task.as_str())];
        samples.add("phalanx_task_memory_bytes", &task, used.memory);
        samples.add("phalanx_task_processors", &task, used.processors);
    }
    let Ok((spec, _)) = prepare(life) else {
        return;
    };
    let results = results_folder(life, &spec, folder);
    if let Some(pace) = reader.pace(&results) {
        of_pace(samples, job, &pace);
    }
    if let Some(at) = written(&results.join("checkpoint/checkpoint.json")) {
        samples.add("phalanx_job_checkpoint_timestamp_seconds", &[job], at);
    }
}

fn of_pace(samples: &mut Samples, job: (&'static str, &str), pace: &Pace) {
    let [train, validation] = ["training", "validation"].map(|data| [job, ("data", data)]);
    let job = [job];
    samples.add("phalanx_job_epochs_total", &job, pace.epochs as f64);
    samples.add("phalanx_job_steps_total", &job, pace.steps as f64);
    for (name, labels, value) in [
        (
            "phalanx_job_last_epoch_timestamp_seconds",
            &job[..],
            pace.at,
        ),
        ("phalanx_job_steps_per_second", &job, pace.steps_per_second),
        (
            "phalanx_job_examples_per_second",
            &job,
            pace.examples_per_second,
        ),
        ("phalanx_job_loss", &train, pace.loss),
        ("phalanx_job_loss", &validation, pace.val_loss),
    ] {
        if let Some(value) = value {
            samples.add(name, labels, value);
        }
    }
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1e3
}

/// The lines of each metric.
#[derive(Default)]
struct Samples(BTreeMap<&'static str, String>);

impl Samples {
    /// Adds a line; the labels of no two lines of a metric are the same.
    fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        // Writing to a text does not fail.
        let _ = writeln!(
            self.0.entry(name).or_default(),
            "{name}{labels} {}",
            shown(value)
        );
    }

    /// All lines, below what their metric is.
    fn text(&self) -> String {
        let of = |(name, kind, help): &(&str, &str, &str)| {
            let lines = self.0.get(name)?;
            Some(format!(
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}"
            ))
        };
        METRICS.iter().filter_map(of).collect()
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

fn shown(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use phalanx_launch::lifecycle::{Event, TaskEnd, Trial};
    use phalanx_testkit::Scratch;
    use serde_json::json;

    use super::super::routes::submitted;
    use super::*;

    /// The page of a job that runs, after more events.
    fn page_after(events: Vec<Event>) -> String {
        let body = json!({"jobId": "demo", "trainingInput": {"args": ["true"]}});
        let mut life = Life::new(1500, submitted("p", &body).unwrap());
        let first = vec![Event::Prepared, Event::Running];
        for event in first.into_iter().chain(events) {
            life.apply(2500, event).unwrap();
        }
        let mut samples = Samples::default();
        of_life(&mut samples, &life);
        of_all(&mut samples, &[life]);
        samples.text()
    }

    fn attempt(number: u32) -> Event {
        Event::Attempt { number, why: None }
    }

    fn assert_has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|other| other == *line), "{line}\n{page}");
        }
    }

    #[test]
    fn workers_that_are_lost_and_started_again_are_counted() {
        let started = |worker: u32, attempt| Event::TaskStarted {
            task: format!("worker-{worker}"),
            attempt,
            place: "1".to_owned(),
        };
        let ended = |worker: u32, code| Event::TaskEnded {
            task: format!("worker-{worker}"),
            end: TaskEnd::code(code),
        };
        let first = vec![attempt(1), started(9, 1), ended(9, 75), attempt(2)];
        // The first goes on, the second was lost and is back, the third is lost, and the last is done.
        let all = (0..4).map(|worker| started(worker, 2));
        let then = [ended(1, 75), started(1, 2), ended(2, 137), ended(3, 0)];
        let page = page_after(first.into_iter().chain(all).chain(then).collect());
        let lines = [
            r#"phalanx_job_start_timestamp_seconds{job_name="demo"} 2.5"#,
            r#"phalanx_job_tasks{job_name="demo"} 2"#,
            r#"phalanx_job_restarts_total{job_name="demo"} 1"#,
            r#"phalanx_job_task_restarts_total{job_name="demo"} 1"#,
            r#"phalanx_job_workers_lost{job_name="demo"} 1"#,
            r#"phalanx_tasks{state="RUNNING"} 2"#,
            r#"phalanx_tasks{state="ENDED"} 3"#,
            r#"phalanx_jobs{state="RUNNING"} 1"#,
        ];
        assert_has(&page, &lines);
    }

    #[test]
    fn tasks_that_have_ended_use_nothing() {
        let scratch = Scratch::temporary("jobs-usage");
        let at = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let used = json!({"1/chief-0": [100.0, 1.0], "2/chief-0": [100.0, 2.0]});
        let line = json!({"at": at as u64, "tasks": used});
        fs::write(scratch.join("usage.jsonl"), format!("{line}\n")).unwrap();
        let body = json!({"jobId": "demo", "trainingInput": {"args": ["true"]}});
        let mut life = Life::new(1500, submitted("p", &body).unwrap());
        let started = |task: &str| Event::TaskStarted {
            task: task.to_owned(),
            attempt: 1,
            place: "1".to_owned(),
        };
        let ended = Event::TaskEnded {
            task: "1/chief-0".to_owned(),
            end: TaskEnd::code(0),
        };
        for event in [started("1/chief-0"), started("2/chief-0"), ended] {
            life.apply(2500, event).unwrap();
        }
        let mut samples = Samples::default();
        of_training(&mut samples, &life, &scratch, &mut CurveReader::default());
        let page = samples.text();
        let line = r#"phalanx_task_memory_bytes{job_name="demo",task="2/chief-0"} 2097152"#;
        assert_has(&page, &[line]);
        assert!(!page.contains("1/chief-0"), "{page}");
    }

    #[test]
    fn a_trial_that_is_started_for_the_first_time_is_no_restart() {
        let trial = |number, state| Event::Trial {
            trial: Trial {
                number,
                values: BTreeMap::new(),
                state,
                metric: None,
                metrics: Vec::new(),
                started: 1,
                ended: None,
            },
        };
        let trials = [
            TrialState::Running,
            TrialState::Stopped,
            TrialState::Running,
        ];
        let trials = (1..)
            .zip(trials)
            .map(|(number, state)| trial(number, state));
        let page = page_after(trials.chain([attempt(4)]).collect());
        let lines = [
            r#"phalanx_job_trials{job_name="demo",state="RUNNING"} 2"#,
            r#"phalanx_job_trials{job_name="demo",state="STOPPED"} 1"#,
            r#"phalanx_job_trials{job_name="demo",state="FAILED"} 0"#,
            "phalanx_restarts_total 1",
        ];
        assert_has(&page, &lines);
        assert!(!page.contains("workers_lost"), "{page}");
    }

    #[test]
    fn labels_and_values_are_written_as_prometheus_reads_them() {
        let mut samples = Samples::default();
        let task = [("task", "a\\b \"c\"\nd{},="), ("job_name", "ü")];
        samples.add("phalanx_task_memory_bytes", &task, f64::INFINITY);
        samples.add("phalanx_task_memory_bytes", &[], f64::NAN);
        samples.add("phalanx_queue_length", &[], 1e21);
        let expected = r#"# HELP phalanx_queue_length Jobs that wait for room.
# TYPE phalanx_queue_length gauge
phalanx_queue_length 1000000000000000000000
# HELP phalanx_task_memory_bytes Memory of the processes of a task of this machine.
# TYPE phalanx_task_memory_bytes gauge
phalanx_task_memory_bytes{task="a\\b \"c\"\nd{},=",job_name="ü"} +Inf
phalanx_task_memory_bytes NaN
"#;
        assert_eq!(samples.text(), expected);
    }
}
