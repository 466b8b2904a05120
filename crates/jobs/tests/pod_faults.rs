//! Jobs in pods of a cluster that refuses and breaks off.

#![cfg(target_os = "linux")]

mod pods;
mod service;

use std::fs;

use pods::Cluster;
use service::Service;

/// Submits a job of one pod.
fn submit(service: &Service, cluster: &Cluster, script: &str) {
    let keys = "phalanx: {kubernetes: {image: img, claim: folder}}\n";
    fs::write(service.folder.join("job.yaml"), keys).unwrap();
    let start = "submit training demo --to kubernetes --config job.yaml -- sh -c";
    let mut command = service.command();
    command.env("KUBECONFIG", cluster.config(&service.folder));
    command.args(start.split(' ')).arg(script);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

#[test]
fn a_job_outlasts_lists_that_are_refused_for_a_while() {
    let service = Service::new("pod-refused");
    let cluster = Cluster::new(&service.folder);
    submit(&service, &cluster, "until [ -e go ]; do sleep 0.05; done");
    service.state("demo", "RUNNING");
    cluster.refuse_lists(4);
    fs::write(service.folder.join("go"), "").unwrap();
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
    assert!(cluster.left().is_empty(), "{:?}", cluster.left());
}

#[test]
fn a_job_that_ran_outlasts_a_cluster_that_is_away() {
    let service = Service::new("pod-away");
    let cluster = Cluster::new(&service.folder);
    let script =
        "[ $PHALANX_GENERATION = 2 ] || { until [ -e go ]; do sleep 0.05; done; exit 75; }";
    submit(&service, &cluster, script);
    service.state("demo", "RUNNING");
    // One more than a cluster that never took a job may refuse.
    cluster.make_none(7);
    fs::write(service.folder.join("go"), "").unwrap();
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 2, "{job:#}");
    assert!(cluster.left().is_empty(), "{:?}", cluster.left());
}

#[test]
fn a_log_that_ends_while_its_pod_runs_is_asked_for_again() {
    let service = Service::new("pod-log");
    let cluster = Cluster::new(&service.folder);
    cluster.break_logs();
    let script = "echo first; until [ -e go ]; do sleep 0.05; done; echo second; echo third";
    submit(&service, &cluster, script);
    let logs = || service.ok(&["logs", "demo"]);
    service.until("demo", |_| logs().contains("first"));
    fs::write(service.folder.join("go"), "").unwrap();
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    for line in ["first", "second", "third"] {
        assert_eq!(logs().matches(line).count(), 1, "{}", logs());
    }
}

#[test]
fn a_log_that_is_refused_says_so_and_is_whole_once_it_is_not() {
    let service = Service::new("pod-log-refused");
    let cluster = Cluster::new(&service.folder);
    cluster.refuse_logs(true);
    submit(
        &service,
        &cluster,
        "echo first; until [ -e go ]; do sleep 0.05; done; echo second",
    );
    let logs = || service.ok(&["logs", "demo"]);
    let why = "what the task writes is missing here: Kubernetes refuses GET pods/";
    service.until("demo", |_| logs().contains(why));
    cluster.refuse_logs(false);
    service.until("demo", |_| logs().contains("first"));
    fs::write(service.folder.join("go"), "").unwrap();
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    for line in [why, "pods/log is forbidden", "first", "second"] {
        assert_eq!(logs().matches(line).count(), 1, "{}", logs());
    }
}
