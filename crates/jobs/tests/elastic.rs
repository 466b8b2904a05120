//! Elastic jobs: a worker that is lost is replaced while the others go on.

#![cfg(target_os = "linux")]

mod digits;
mod lost_worker;
mod service;

use std::fs;

use lost_worker::task;
use service::Service;

#[test]
fn a_lost_worker_is_started_again_by_itself() {
    let service = Service::new("elastic");
    lost_worker::write(&service.folder, "");
    service.script("demo", &["--config", lost_worker::JOB], lost_worker::SCRIPT);
    lost_worker::was_replaced(&service, "demo");
    let logs = service.ok(&["logs", "demo"]);
    for said in [
        "worker-0 was ended by SIGKILL",
        "is started again (1 of 1)",
        "others go on",
    ] {
        assert!(logs.contains(said), "{said:?} is not in\n{logs}");
    }
}

#[test]
fn a_worker_that_is_lost_when_the_others_have_ended_well_fails_no_job() {
    let service = Service::new("late");
    let keys = "phalanx: {elastic: {minWorkers: 1, maxWorkers: 2}}\n";
    fs::write(service.folder.join("elastic.yaml"), keys).unwrap();
    // The chief tells its process, and rank 1 is lost when it has gone, or is a zombie that nobody has looked at.
    let script = "case $RANK in
0) echo $$ > chief.new; mv chief.new chief; until [ -e seen ]; do sleep 0.05; done;;
1) until [ -e chief ]; do sleep 0.05; done; touch seen
   while grep -q '^State:.[^ZX]' /proc/$(cat chief)/status 2>/dev/null; do sleep 0.05; done
   kill -KILL $$;;
esac";
    service.script("demo", &["--config", "elastic.yaml"], script);
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
    assert_eq!(task(&job, "worker-0")["signal"], 9, "{job:#}");
}

#[test]
fn the_workers_of_another_attempt_know_that_it_is_another() {
    let service = Service::new("counts");
    let keys = "phalanx: {elastic: {minWorkers: 2, maxWorkers: 2}}\n";
    fs::write(service.folder.join("elastic.yaml"), keys).unwrap();
    // The chief is told to end once, and has saved.
    let script = "[ $RANK = 0 ] || exit 0
echo $PHALANX_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT >> counts; [ $(wc -l < counts) -gt 1 ] || exit 143";
    service.script("demo", &["--config", "elastic.yaml"], script);
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let counts = fs::read_to_string(service.folder.join("counts")).unwrap();
    assert_eq!(counts, "0 0\n1 1\n");
}

#[test]
fn a_mistake_of_one_worker_ends_an_elastic_job() {
    let service = Service::new("mistake");
    let keys = "phalanx: {elastic: {minWorkers: 1, maxWorkers: 2}}\n";
    fs::write(service.folder.join("elastic.yaml"), keys).unwrap();
    // The chief ends when somebody has looked at how rank 1 has ended.
    let script = "[ $RANK = 0 ] || { echo $$ > bad.new; mv bad.new bad; exit 2; }
until [ -e bad ]; do sleep 0.05; done
while [ -e /proc/$(cat bad) ]; do sleep 0.05; done; sleep 1";
    service.script("demo", &["--config", "elastic.yaml"], script);
    let job = service.end("demo");
    assert_eq!(job["state"], "FAILED", "{job:#}");
    assert_eq!(job["phalanx"]["firstFailure"]["exitCode"], 2, "{job:#}");
    let (code, error) = service.fails(&[
        "submit",
        "training",
        "more",
        "--config",
        "elastic.yaml",
        "--workers",
        "3",
        "--",
        "true",
    ]);
    assert!(
        code == 2 && error.contains("maxWorkers is 2, and the job has 3 workers"),
        "{error}"
    );
}

#[test]
fn a_killed_worker_costs_the_digits_no_bit() {
    if !digits::can_train() {
        return;
    }
    let service = Service::new("replaced");
    lost_worker::costs_no_bit(&service, "", |args| drop(service.ok(args)));
}
