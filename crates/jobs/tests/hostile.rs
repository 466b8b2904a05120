//! Names that point elsewhere: nothing outside the folder of all jobs is read or written for them.

#![cfg(target_os = "linux")]

mod service;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use service::{PATIENCE, Service, ask, daemon};

/// What stands in a file beside the folder of all jobs.
const CANARY: &str = "CANARY-7f3a";

/// 16 ways upwards or elsewhere, before 13 names.
fn names() -> Vec<String> {
    let ways = [
        "../",
        "../../",
        "../../../../../../",
        "/",
        "//",
        "./",
        "~/",
        "..\\",
        "..\\..\\",
        "....//",
        "..;/",
        "%2e%2e/",
        "%2e%2e%2f",
        "%252e%252e%252f",
        "..%c0%af",
        "a/../../",
    ];
    let ends = [
        "canary",
        "canary\0.log",
        "token",
        "root/token",
        "etc/passwd",
        "proc/self/environ",
        "demo",
        "jobs/demo/secret",
        ".",
        "..",
        "",
        " ",
        "a\nb",
    ];
    let of = |way: &str| ends.map(|end| format!("{way}{end}"));
    ways.into_iter().flat_map(of).collect()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// All files below a folder with their contents, but for those of the daemon.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match entry.file_type().unwrap().is_dir() {
            true if path.file_name().unwrap() == "root" => {}
            true => all.extend(files(&path)),
            false => {
                all.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

fn post(address: &str, token: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[test]
fn what_is_not_read_is_answered_as_an_error_of_the_interface() {
    let service = Service::new("unread");
    service.script("demo", &[], "true");
    service.end("demo");
    let (address, token) = daemon(&service);
    let jobs = "/v1/projects/local/jobs";
    let job = |directory: &str| {
        let keys = json!({"program": "true", "directory": directory});
        json!({"jobId": "other", "phalanx": keys}).to_string()
    };
    let log = service.root().join("jobs/demo/events.log");
    fs::write(&log, "no log\n".repeat(3)).unwrap();
    let pid = rustix::process::Pid::from_raw(service.daemon().unwrap()).unwrap();
    for (path, body, status, said) in [
        (jobs, job("relative"), 400, "expected the absolute path"),
        (jobs, job("/none/there"), 400, "a folder that is there"),
        (
            jobs,
            "x".repeat((4 << 20) + 1),
            413,
            "length limit exceeded",
        ),
        ("/v1/projects/%ff/jobs", job("/"), 400, "cannot be read"),
    ] {
        let (found, answer) = post(&address, &token, path, &body);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Json = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(said), "{answer}");
        assert_eq!(body["error"]["code"], status, "{answer}");
    }
    // A job whose log cannot be read is not one that there never was.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let (_, error) = service.fails(&["describe", "demo"]);
    assert!(error.contains("is damaged from byte 0 on"), "{error}");
}

#[test]
fn no_name_leads_out_of_the_folder_of_jobs() {
    let service = Service::new("hostile");
    fs::write(service.folder.join("canary"), CANARY).unwrap();
    service.script("demo", &["--job-dir", "results"], "echo said");
    service.end("demo");
    let (address, token) = daemon(&service);
    let secret = fs::read_to_string(service.root().join("jobs/demo/secret")).unwrap();
    let before = files(&service.folder);
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Host", address.as_str()),
        ("Authorization", bearer.as_str()),
    ];
    let names = names();
    assert!(names.len() >= 200, "{}", names.len());
    for name in &names {
        let (once, twice) = (encoded(name), encoded(&encoded(name)));
        for part in [&once, &twice] {
            for path in [
                format!("/v1/projects/local/jobs/{part}"),
                format!("/v1/projects/{part}/jobs/demo"),
                format!("/assets/{part}"),
                format!("/api/jobs/{part}"),
                format!("/api/jobs/{part}/metrics"),
                format!("/api/jobs/{part}/logs"),
                format!("/api/jobs/demo/logs?task={part}"),
            ] {
                let (status, answer) = ask(&address, "GET", &path, &headers);
                let refused = [400, 404, 405].contains(&status);
                // A task that there is not has no lines.
                assert!(refused || path.contains("?task="), "{path}: {answer}");
                for hidden in [CANARY, &token, &secret, "root:x:"] {
                    assert!(!answer.contains(hidden), "{path}: {answer}");
                }
            }
        }
        let job = |id: &str, input: Json| json!({"jobId": id, "trainingInput": input, "phalanx": {"program": "true"}});
        let jobs = "/v1/projects/local/jobs";
        let (status, answer) = post(&address, &token, jobs, &job(name, json!({})).to_string());
        assert!(status == 400, "{name:?}: {answer}");
        let input = json!({"pythonModule": name});
        let mut body = job("module", input);
        body["phalanx"] = json!({});
        let (status, answer) = post(&address, &token, jobs, &body.to_string());
        assert!(status == 400, "{name:?}: {answer}");
    }
    assert_eq!(files(&service.folder), before, "something was written");
    let jobs = fs::read_dir(service.root().join("jobs")).unwrap().flatten();
    let jobs: Vec<_> = jobs.map(|job| job.file_name()).collect();
    assert_eq!(jobs, ["demo"]);
}
