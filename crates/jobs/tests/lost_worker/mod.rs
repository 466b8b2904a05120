//! A worker of an elastic job that is lost, the same for all executors.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use super::digits;
use super::service::Service;

/// The job file.
pub(crate) const JOB: &str = "elastic.yaml";

/// What three workers do: the second is killed once, the third whenever it starts, and the chief waits for their second starts.
pub(crate) const SCRIPT: &str = "echo >> started-$RANK
case $RANK-$(wc -l < started-$RANK) in
1-1|2-1) kill -KILL $$;;
1-2) touch second;;
2-2) touch third; kill -KILL $$;;
0-*) until [ -e second ] && [ -e third ]; do sleep 0.05; done;;
esac";

/// Writes the job file of `SCRIPT`, with other keys of ours.
pub(crate) fn write(folder: &Path, more: &str) {
    let keys =
        format!("phalanx: {{elastic: {{minWorkers: 1, maxWorkers: 3}}, restarts: 1, {more}}}\n");
    fs::write(folder.join(JOB), keys).unwrap();
}

/// A task of a job.
pub(crate) fn task(job: &Json, name: &str) -> Json {
    let tasks = job["phalanx"]["tasks"].as_array().unwrap();
    let found = tasks.iter().find(|task| task["task"] == name);
    found.cloned().unwrap_or(Json::Null)
}

/// The job of `SCRIPT` has succeeded: its second worker in its second process, its third worker not.
pub(crate) fn was_replaced(service: &Service, name: &str) {
    let job = service.end(name);
    let logs = service.ok(&["logs", name]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
    let (second, third) = (task(&job, "worker-0"), task(&job, "worker-1"));
    assert_eq!(
        (&second["restarts"], &second["exitCode"]),
        (&1.into(), &0.into()),
        "{job:#}"
    );
    assert_eq!(
        (&third["restarts"], &third["signal"]),
        (&1.into(), &9.into()),
        "{job:#}"
    );
}

/// Trains the digits on two workers, of which the second is killed in the middle, and without that: the weights are equal to the bit.
pub(crate) fn costs_no_bit(service: &Service, more: &str, submit: impl Fn(&[&str])) {
    digits::write(&service.folder);
    let train = |name: &str, epochs: u32| {
        let keys = format!(
            "trainingInput: {{args: [--epochs, '{epochs}']}}
phalanx: {{program: examples/digits.yaml, elastic: {{minWorkers: 2, maxWorkers: 2}}, {more}}}
"
        );
        fs::write(service.folder.join(JOB), keys).unwrap();
        submit(&["submit", "training", name, "--config", JOB]);
    };
    // A training that was over too soon for this machine to kill in its middle is followed by a longer one.
    for epochs in [8, 40, 200] {
        let (broken, whole) = (format!("broken-{epochs}"), format!("whole-{epochs}"));
        train(&broken, epochs);
        let trains = format!("epoch 1/{epochs}");
        service.until(&broken, |job| {
            job["endTime"].is_string() || service.ok(&["logs", &broken]).contains(&trains)
        });
        if let Some(worker) = trainer(service, &broken) {
            let _ = kill_process(worker, Signal::KILL);
        }
        digits::succeeds(service, &broken);
        let job = service.job(&broken);
        let restarts = &task(&job, "worker-0")["restarts"];
        if job["phalanx"]["attempt"] == 1 && *restarts == 1 {
            train(&whole, epochs);
            digits::succeeds(service, &whole);
            return digits::equal(&service.folder, &whole, &broken);
        }
        eprintln!("the worker was not killed in the middle of {epochs} epochs: {job:#}");
    }
    panic!("no worker that was killed was replaced");
}

/// The process of rank 1 of a job of this service, wherever on this machine it is.
fn trainer(service: &Service, job: &str) -> Option<Pid> {
    let folder = service.folder.display().to_string();
    let is_it = |path: &Path| {
        let read = |name: &str| fs::read(path.join(name)).unwrap_or_default();
        let (words, variables) = (read("cmdline"), read("environ"));
        // Another run of these tests has jobs of the same names.
        let is_ours = String::from_utf8_lossy(&variables).contains(&folder);
        let variables = variables.split(|byte| *byte == 0);
        let has = |text: &str| variables.clone().any(|one| one == text.as_bytes());
        let name = format!("PHALANX_JOB_NAME={job}");
        let trains = words.split(|byte| *byte == 0).nth(1) == Some(b"train");
        trains && is_ours && has(&name) && has("RANK=1")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.map(|entry| entry.path()).find(|path| is_it(path));
    Pid::from_raw(found?.file_name()?.to_str()?.parse().ok()?)
}
