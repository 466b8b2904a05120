//! Jobs as AI Platform's REST interface shows them, with ours under `phalanx`.

use phalanx_launch::lifecycle::{Life, State, TaskLife, Trial, TrialState};
use phalanx_launch::logs::timestamp;
use phalanx_launch::supervise::{in_bucket, job_dir, prepare};
use serde_json::{Map, Value as Json, json};

/// A job. `position` is its place in the queue, from 1.
pub(super) fn job(life: &Life, position: Option<usize>) -> Json {
    let mut job = Map::new();
    let mut set = |name: &str, value: Json| job.insert(name.to_owned(), value);
    set("jobId", json!(life.job.name));
    set("state", json!(life.state.name()));
    set("createTime", json!(timestamp(life.created)));
    if let Some(at) = life.started {
        set("startTime", json!(timestamp(at)));
    }
    if let Some(at) = life.ended {
        set("endTime", json!(timestamp(at)));
    }
    if let Some(error) = &life.error {
        set("errorMessage", json!(error));
    }
    if !life.labels.is_empty() {
        set("labels", json!(life.labels));
    }
    if let Some(position) = position {
        set("jobPosition", json!(position.to_string()));
    }
    set("etag", json!(etag(life)));
    set("trainingInput", life.job.training_input.clone());
    set("trainingOutput", output(life));
    set("phalanx", ours(life));
    Json::Object(job)
}

/// What changes with every event of a job.
pub(super) fn etag(life: &Life) -> String {
    format!("{:x}-{:x}", life.created, life.revision)
}

fn output(life: &Life) -> Json {
    let Ok((spec, _)) = prepare(life) else {
        return json!({});
    };
    let Some(search) = &spec.hyperparameters else {
        return json!({});
    };
    let done = |trial: &&Trial| matches!(trial.state, TrialState::Succeeded | TrialState::Stopped);
    let completed = life.trials.values().filter(done).count();
    json!({
        "isHyperparameterTuningJob": true,
        "hyperparameterMetricTag": search.metric,
        "completedTrialCount": completed.to_string(),
        "trials": life.trials.values().map(|one| trial(one, life.state)).collect::<Vec<_>>(),
    })
}

/// A trial of a job in a state: one whose end nobody saw does not run any more after the job's.
fn trial(trial: &Trial, job: State) -> Json {
    let state = match trial.state {
        TrialState::Running if job == State::Cancelled => TrialState::Cancelled,
        TrialState::Running if job.is_final() => TrialState::Failed,
        state => state,
    };
    let metric = |(step, value): &(i64, f64)| json!({"trainingStep": step.to_string(), "objectiveValue": value});
    let mut json = json!({
        "trialId": trial.number.to_string(),
        "hyperparameters": trial.values,
        "state": state.name(),
        "startTime": timestamp(trial.started),
        "allMetrics": trial.metrics.iter().map(metric).collect::<Vec<_>>(),
    });
    // What a trial told before it failed or was cancelled is no result of it: it would be shown as the best.
    let counts = !matches!(trial.state, TrialState::Failed | TrialState::Cancelled);
    if let Some(value) = trial.metric.as_ref().filter(|_| counts) {
        json["finalMetric"] = metric(value);
    }
    if let Some(at) = trial.ended {
        json["endTime"] = json!(timestamp(at));
    }
    if trial.state == TrialState::Stopped {
        json["isTrialStoppedEarly"] = json!(true);
    }
    json
}

/// The tasks of a job.
fn tasks(life: &Life) -> Vec<Json> {
    let of = |(name, task): (&String, &TaskLife)| {
        let mut json = json!({
            "task": name,
            "attempt": task.attempt,
            "place": task.place,
            "startTime": timestamp(task.started),
            "state": match life.state {
                state if task.end.is_some() || state.is_final() => "ENDED",
                State::Cancelling => "ENDING",
                _ => "RUNNING",
            },
        });
        if life.state.is_final() {
            json["end"] = json!("ended, and nobody saw how");
        }
        if task.restarts > 0 {
            json["restarts"] = json!(task.restarts);
        }
        if let Some(end) = task.end {
            json["end"] = json!(end.to_string());
            if let Some(code) = end.code {
                json["exitCode"] = json!(code);
            }
            if let Some(signal) = end.signal {
                json["signal"] = json!(signal);
            }
        }
        json
    };
    let mut all: Vec<_> = life.tasks.iter().collect();
    all.sort_by_cached_key(|(name, _)| place(name));
    all.into_iter().map(of).collect()
}

/// Where a task stands in a list: by the number of its trial, its kind and its own number, the 10th behind the 9th.
fn place(task: &str) -> (u32, &str, u32) {
    let (trial, name) = task.split_once('/').unwrap_or(("", task));
    let (kind, number) = name.rsplit_once('-').unwrap_or((name, ""));
    let number_of = |text: &str| text.parse().unwrap_or(0);
    (number_of(trial), kind, number_of(number))
}

fn ours(life: &Life) -> Json {
    let mut all = life.job.phalanx.clone();
    if !all.is_object() {
        all = json!({});
    }
    all["tasks"] = json!(tasks(life));
    all["attempt"] = json!(life.attempt);
    all["directory"] = json!(life.job.directory);
    if let Ok((spec, _)) = prepare(life) {
        all["executor"] = json!(spec.ours.executor.name());
        let folder = job_dir(life, &spec);
        all["jobDir"] = match in_bucket(life, &spec) {
            true => json!(folder),
            false => json!(life.job.directory.join(folder)),
        };
    }
    if let Some(handle) = &life.handle {
        all["handle"] = json!(handle);
    }
    if let Some(failure) = &life.failure {
        all["firstFailure"] = json!({
            "task": failure.task,
            "rank": failure.rank,
            "attempt": failure.attempt,
            "end": failure.end.to_string(),
            "exitCode": failure.end.code,
            "signal": failure.end.signal,
            "lastLines": failure.last_lines,
            "log": failure.log,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use phalanx_launch::lifecycle::{Event, Submitted};

    use super::super::routes::submitted;
    use super::*;

    #[test]
    fn tasks_stand_in_the_order_of_their_numbers() {
        let mut names = [
            "10/chief-0",
            "worker-10",
            "2/worker-9",
            "2/worker-10",
            "2/chief-0",
            "worker-9",
        ];
        names.sort_by_key(|name| place(name));
        let expected = [
            "worker-9",
            "worker-10",
            "2/chief-0",
            "2/worker-9",
            "2/worker-10",
            "10/chief-0",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_is_shown_of_a_job_is_a_job_file() {
        let file = json!({"jobId": "demo", "trainingInput": {"args": ["true"]}, "phalanx": {"workers": 2, "directory": "/"}});
        let given = submitted("p", &file).unwrap();
        let life = Life::new(1, given.clone());
        let mut shown = job(&life, Some(1));
        for name in ["waitsFor", "handle", "firstFailure"] {
            shown["phalanx"][name] = json!({"of": "the first job"});
        }
        let again = submitted("p", &shown).unwrap();
        assert_eq!(again.phalanx["workers"], given.phalanx["workers"]);
        let keys: Vec<&String> = again.phalanx.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["directory", "executor", "workers"]);
        // In a file of somebody's own they are mistakes.
        for name in ["tasks", "attempt", "jobDir"] {
            let mut file = file.clone();
            file["phalanx"][name] = shown["phalanx"][name].clone();
            let why = submitted("p", &file).unwrap_err().message;
            let said = format!("phalanx has no field \"{name}\"");
            assert!(why.contains(&said), "{why}");
        }
    }

    #[test]
    fn nothing_of_a_job_that_has_ended_runs() {
        let params = json!([{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1]}]);
        let search = json!({"hyperparameterMetricTag": "loss", "params": params});
        let mut life = Life::new(
            1,
            Submitted {
                name: "demo".parse().unwrap(),
                project: "p".to_owned(),
                training_input: json!({"args": ["true"], "hyperparameters": search}),
                phalanx: json!({}),
                labels: Default::default(),
                directory: "/".into(),
                environment: Default::default(),
            },
        );
        let (task, place) = ("1/chief-0".to_owned(), String::new());
        let trial = Trial {
            number: 1,
            values: Default::default(),
            state: TrialState::Running,
            metric: None,
            metrics: Vec::new(),
            started: 1,
            ended: None,
        };
        let states = |life: &Life| {
            let shown = job(life, None);
            let task = &shown["phalanx"]["tasks"][0];
            let trial = &shown["trainingOutput"]["trials"][0];
            [&task["state"], &trial["state"], &task["end"]]
                .map(|state| state.as_str().unwrap_or_default().to_owned())
        };
        for event in [
            Event::Prepared,
            Event::Running,
            Event::TaskStarted {
                task,
                place,
                attempt: 1,
            },
            Event::Trial { trial },
        ] {
            life.apply(1, event).unwrap();
        }
        assert_eq!(states(&life), ["RUNNING", "RUNNING", ""]);
        life.apply(2, Event::Failed { why: String::new() }).unwrap();
        assert_eq!(
            states(&life),
            ["ENDED", "FAILED", "ended, and nobody saw how"]
        );
    }
}
