//! What users type to watch jobs, and the answer to each mistake in it.

#![cfg(target_os = "linux")]

mod service;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use service::{Service, ask, daemon};

/// The names in a list of jobs, in its order.
fn listed(service: &Service, options: &[&str]) -> Vec<String> {
    let text = service.ok(&[&["list", "--uri"], options].concat());
    let name = |line: &str| line.rsplit('/').next().unwrap_or_default().to_owned();
    text.lines().map(name).collect()
}

#[test]
fn jobs_are_sorted_by_fields_that_they_have() {
    let service = Service::new("sorted");
    for (name, label, code) in [("b", "n=2", "0"), ("a", "n=1", "1"), ("c", "n=2", "1")] {
        service.script(name, &["--labels", label], &format!("exit {code}"));
        service.end(name);
    }
    for (fields, expected) in [
        ("jobId", ["a", "b", "c"]),
        ("~jobId", ["c", "b", "a"]),
        ("createTime", ["b", "a", "c"]),
        ("state,~jobId", ["c", "a", "b"]),
        ("~state,createTime", ["b", "a", "c"]),
        ("~labels.n,jobId", ["b", "c", "a"]),
    ] {
        assert_eq!(
            listed(&service, &["--sort-by", fields]),
            expected,
            "{fields}"
        );
        let two = listed(&service, &["--sort-by", fields, "--limit", "2"]);
        assert_eq!(two, expected[..2], "{fields}");
    }
    let (code, error) = service.fails(&["list", "--sort-by", "jobId,~sate"]);
    assert_eq!(code, 2);
    assert!(error.contains("did you mean `state`?"), "{error}");
}

#[test]
fn stream_logs_follows_a_job_to_its_end() {
    let service = Service::new("stream");
    service.script(
        "demo",
        &[],
        "echo first; until [ -e go ]; do sleep 0.05; done; echo last",
    );
    let mut child = service
        .command()
        .args(["stream-logs", "demo", "--polling-interval", "5"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("first") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    fs::write(service.folder.join("go"), "").unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("last"), "{rest}");
    assert!(child.wait().unwrap().success());
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
}

#[test]
fn logs_are_of_the_tasks_that_are_asked_for() {
    let service = Service::new("tasks");
    // The chief ends last: its end is the job's.
    let script = "echo I am $RANK; touch said$RANK; [ $RANK = 0 ] || exit 0
        until [ -e said1 ] && [ -e said2 ]; do sleep 0.05; done";
    service.script("demo", &["--workers", "3"], script);
    service.end("demo");
    for (wanted, ranks) in [
        ("chief", &["0"][..]),
        ("chief-0", &["0"]),
        ("worker", &["1", "2"]),
        ("worker-1", &["2"]),
    ] {
        let text = service.ok(&["logs", "demo", "--task-name", wanted]);
        for rank in ["0", "1", "2"] {
            let is_there = text.contains(&format!("I am {rank}"));
            assert_eq!(is_there, ranks.contains(&rank), "{wanted}: {text}");
        }
    }
}

#[test]
fn a_task_or_a_change_that_is_none_is_a_mistake() {
    let service = Service::new("none");
    service.script("demo", &[], "echo hello");
    service.end("demo");
    let (code, error) = service.fails(&["logs", "demo", "--task-name", "worker-0"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("worker-0") && error.contains("chief-0"),
        "{error}"
    );
    let (code, error) = service.fails(&["update", "demo"]);
    assert_eq!(code, 2);
    assert!(error.contains("--update-labels"), "{error}");
}

#[test]
fn a_method_that_a_path_does_not_take_is_answered_as_an_error() {
    let service = Service::new("method");
    service.ok(&["list"]);
    let (address, token) = daemon(&service);
    let right = format!("Bearer {token}");
    let headers = [
        ("Host", address.as_str()),
        ("Authorization", right.as_str()),
    ];
    for path in ["/v1/projects/local/jobs", "/v1/projects/local/jobs/demo"] {
        let (status, answer) = ask(&address, "DELETE", path, &headers);
        assert_eq!(status, 405, "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], 405, "{answer}");
        assert_eq!(body["error"]["status"], "UNIMPLEMENTED", "{answer}");
    }
}
