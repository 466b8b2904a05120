//! Bytes that are no text, and memory that nobody is to read.

#![cfg(target_os = "linux")]

mod service;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value as Json;
use service::Service;

/// Lines of bytes that are no UTF-8, and some that a terminal obeys.
fn lines() -> Vec<Vec<u8>> {
    let all: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').collect();
    let mut lines: Vec<Vec<u8>> = all.chunks(16).map(<[u8]>::to_vec).collect();
    lines.extend([
        b"\xff\xfe\x00\x01".to_vec(),
        b"\xc3\x28 \xe2\x82 \xf0\x9f\x98".to_vec(),
        b"\x1b]0;title\x07\x1b[2J\x1b[31mred".to_vec(),
        b"\xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80".to_vec(),
        "two \u{202e}words\u{85}".as_bytes().to_vec(),
    ]);
    lines
}

#[test]
fn what_a_task_writes_is_kept_as_it_is_and_shown_as_text() {
    let service = Service::new("bytes");
    let lines = lines();
    let mut said = lines.join(&b'\n');
    said.push(b'\n');
    fs::write(service.folder.join("said"), &said).unwrap();
    // A file whose name is no text does not trouble anybody either.
    let odd = OsStr::from_bytes(b"odd-\xff\xfe");
    fs::create_dir(service.folder.join("runs")).unwrap();
    fs::create_dir(service.folder.join("runs/demo")).unwrap();
    fs::write(service.folder.join("runs/demo").join(odd), "x").unwrap();
    service.script("demo", &[], "cat said; exit 1");
    let job = service.end("demo");
    assert_eq!(job["state"], "FAILED", "{job:#}");
    let path = service.root().join("jobs/demo/logs/chief-0.log");
    let log = fs::read(path).unwrap();
    // `2026-11-23T12:00:00.000Z O ` is before each line.
    let kept: Vec<&[u8]> = log.split(|byte| *byte == b'\n').collect();
    let kept: Vec<&[u8]> = kept.iter().filter_map(|line| line.get(27..)).collect();
    let kept = &kept[..lines.len()];
    assert!(kept.iter().eq(lines.iter()), "other bytes are kept");
    let text = service.ok(&["logs", "demo"]);
    let is_bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!text.contains(is_bad), "{text:?}");
    let summary = service.ok(&["describe", "demo", "--summarize"]);
    assert!(!summary.contains(is_bad), "{summary:?}");
    let json = service.ok(&["logs", "demo", "--format", "json"]);
    let read: Vec<Json> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (line, read) in lines.iter().zip(&read) {
        assert_eq!(read["message"], String::from_utf8_lossy(line).as_ref());
    }
}

/// A command with these bytes as its last argument ends with 2, and says which argument it was.
fn refused(service: &Service, args: &[&str], last: &[u8]) {
    let mut command = service.command();
    let output = command.args(args).arg(OsStr::from_bytes(last)).output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{last:?}: {error}");
    let said = format!("argument {}, ", args.len() + 1);
    assert!(
        error.contains(&said) && error.contains("not in UTF-8"),
        "{error}"
    );
    assert!(
        !error.contains(|c: char| c.is_control() && c != '\n'),
        "{error:?}"
    );
}

#[test]
fn arguments_and_names_that_are_no_text_are_refused_and_nothing_is_made_of_them() {
    let service = Service::new("no-text");
    let submit = ["submit", "training"];
    refused(&service, &submit, b"de\xffmo");
    refused(&service, &["--root"], b"ro\xffot");
    refused(
        &service,
        &[&submit[..], &["demo", "--package-path"]].concat(),
        b"\xc0\xaf",
    );
    let with_words = [&submit[..], &["demo", "--", "sh", "-c", "touch executed"]].concat();
    for number in 0..60_u32 {
        // A byte that begins no character, wherever it stands, before and after what a shell would execute.
        let mut word = format!("$(touch executed{number}); `touch executed`").into_bytes();
        let at = number as usize * 7 % word.len();
        word.insert(at, 0xf8 + (number % 8) as u8);
        refused(&service, &with_words, &word);
    }
    assert!(
        !service.root().join("jobs").exists(),
        "something was submitted"
    );
    let odd = service.folder.join(OsStr::from_bytes(b"fol\xffder"));
    fs::create_dir(&odd).unwrap();
    let submit = ["submit", "training", "demo", "--", "true"];
    let mut command = service.command();
    let output = command.args(submit).current_dir(&odd).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("submit it from another"), "{error}");
    let mut command = service.command();
    command
        .arg("list")
        .env("PHALANX_JOBS_DIR", odd.join("root"));
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("--root"),
        "{error}"
    );
    // A variable of the submitter that is no text is left out.
    let mut command = service.command();
    command.env("PHALANX_ODD", OsStr::from_bytes(b"\xff"));
    let said = [
        "submit",
        "training",
        "good",
        "--",
        "sh",
        "-c",
        "echo odd ${PHALANX_ODD-none}",
    ];
    assert!(command.args(said).output().unwrap().status.success());
    assert_eq!(service.end("good")["state"], "SUCCEEDED");
    assert!(service.ok(&["logs", "good"]).contains("odd none"));
}

/// Starts a program that may leave a core dump of any size, or of the size that this user may allow.
fn with_core(service: &Service, words: &[&str]) -> Child {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -c unlimited 2>/dev/null; exec \"$@\"", "sh"])
        .args(words)
        .current_dir(&service.folder)
        .env("PHALANX_JOBS_DIR", service.root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Whether a process that is aborted leaves a core dump.
fn leaves_core(mut child: Child) -> bool {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::ABORT).unwrap();
    child.wait().unwrap().core_dumped()
}

#[test]
fn the_daemon_leaves_no_core_dump_with_the_token() {
    let service = Service::new("core");
    let other = with_core(&service, &["sleep", "1000"]);
    let words = format!("/proc/{}/cmdline", other.id());
    phalanx_testkit::wait_until("sleep starts", || {
        fs::read(&words).is_ok_and(|words| words.starts_with(b"sleep\0"))
    });
    if !leaves_core(other) {
        phalanx_testkit::skip("processes of this machine leave no core dumps");
        return;
    }
    let daemon = with_core(&service, &[env!("CARGO_BIN_EXE_phalanx-jobs"), "serve"]);
    phalanx_testkit::wait_until("the daemon starts", || service.daemon().is_some());
    assert!(!leaves_core(daemon), "the daemon has left a core dump");
}
