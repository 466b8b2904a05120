//! Jobs as AI Platform's REST interface shows them, with ours under `phalanx`.

use phalanx_launch::lifecycle::{Life, State, Trial, TrialState};
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
        "trials": life.trials.values().map(trial).collect::<Vec<_>>(),
    })
}

fn trial(trial: &Trial) -> Json {
    let metric = |(step, value): &(i64, f64)| json!({"trainingStep": step.to_string(), "objectiveValue": value});
    let mut json = json!({
        "trialId": trial.number.to_string(),
        "hyperparameters": trial.values,
        "state": trial.state.name(),
        "startTime": timestamp(trial.started),
        "allMetrics": trial.metrics.iter().map(metric).collect::<Vec<_>>(),
    });
    if let Some(value) = &trial.metric {
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

fn ours(life: &Life) -> Json {
    let mut all = life.job.phalanx.clone();
    if !all.is_object() {
        all = json!({});
    }
    let tasks: Vec<Json> = life
        .tasks
        .iter()
        .map(|(name, task)| {
            let mut json = json!({
                "task": name,
                "attempt": task.attempt,
                "place": task.place,
                "startTime": timestamp(task.started),
                "state": if task.end.is_some() { "ENDED" } else if life.state == State::Cancelling { "ENDING" } else { "RUNNING" },
            });
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
        })
        .collect();
    all["tasks"] = json!(tasks);
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
