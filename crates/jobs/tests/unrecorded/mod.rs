//! Jobs of Slurm's of which the supervisor, or `sbatch`, did not live to tell the number.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::service::{self, Service};
use super::{SLURM, Slurm, kill_supervisor};

/// Slurm's `sbatch`, which does its work and then, once, what comes here instead of answering.
fn sbatch_that_does_not_answer(service: &Service, instead: &str) -> PathBuf {
    let folder = service.folder.join("bin");
    fs::create_dir_all(&folder).unwrap();
    let real = Command::new("sh")
        .args(["-c", "command -v sbatch"])
        .output();
    let real = String::from_utf8(real.unwrap().stdout).unwrap();
    let done = folder.join("done");
    let text = format!(
        "#!/bin/sh\n[ -e {0} ] && exec {1} \"$@\"\n{1} \"$@\" >/dev/null || exit\ntouch {0}\n{instead}\n",
        done.display(),
        real.trim(),
    );
    fs::write(folder.join("sbatch"), text).unwrap();
    fs::set_permissions(folder.join("sbatch"), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn submit_with(service: &Service, slurm: &Slurm, tools: &Path, script: &str) {
    let mut command = service.command();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    command
        .args([
            "submit",
            "training",
            "demo",
            "--to",
            "slurm",
            "--workers",
            "1",
        ])
        .args(["--", "sh", "-c", script])
        .env("PATH", path)
        .env("SLURM_CONF", slurm.0.join("slurm.conf"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_job_goes_on_whose_supervisor_was_killed_before_it_had_its_number() {
    let service = Service::new("slurm-unrecorded");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let tools = sbatch_that_does_not_answer(&service, "kill -KILL $PPID");
    let script = "echo x >> started; until [ -e go ]; do sleep 0.1; done";
    submit_with(&service, &slurm, &tools, script);
    service.until("demo", |job| job["phalanx"]["attempt"] == 2);
    service.state("demo", "RUNNING");
    assert_eq!(slurm.jobs(), 1);
    fs::write(service.folder.join("go"), "").unwrap();
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let started = fs::read_to_string(service.folder.join("started")).unwrap();
    assert_eq!(started, "x\n");
}

#[test]
fn a_job_goes_on_of_which_slurm_did_not_tell_the_number() {
    let service = Service::new("slurm-untold");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let tools = sbatch_that_does_not_answer(&service, "echo Socket timed out >&2; exit 1");
    submit_with(&service, &slurm, &tools, "echo x >> started");
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let started = fs::read_to_string(service.folder.join("started")).unwrap();
    assert_eq!(started, "x\n");
}

#[test]
fn a_cancel_ends_a_job_of_which_nobody_has_the_number() {
    let service = Service::new("slurm-cancelled-unrecorded");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    // The daemon, which would start another supervisor, goes first.
    let daemon = service.folder.join("daemon-pid");
    let kill = format!("kill -KILL $(cat {}) $PPID", daemon.display());
    let tools = sbatch_that_does_not_answer(&service, &kill);
    slurm.script(&service, "first", &SLURM[..2], "true");
    service.end("first");
    let pid = service.daemon().unwrap();
    fs::write(&daemon, pid.to_string()).unwrap();
    let process_of_daemon = format!("/proc/{pid} ");
    submit_with(&service, &slurm, &tools, "sleep 1000");
    let until = Instant::now() + service::PATIENCE;
    let is_there = || {
        let all = service.processes();
        all.iter()
            .any(|process| process.starts_with(&process_of_daemon))
    };
    // The file is there before the daemon is killed.
    while !tools.join("done").exists() || is_there() {
        assert!(Instant::now() < until, "sbatch was not called");
        thread::sleep(Duration::from_millis(50));
    }
    service.ok(&["cancel", "demo"]);
    assert_eq!(service.end("demo")["state"], "CANCELLED");
    slurm.until_empty();
}

#[test]
fn a_job_that_slurm_has_forgotten_ended_as_it_did() {
    let service = Service::new("slurm-forgotten");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let path = slurm.0.join("slurm.conf");
    let conf = fs::read_to_string(&path).unwrap();
    fs::write(&path, conf.replace("MinJobAge=600", "MinJobAge=2")).unwrap();
    let tell = |name: &str, words: &[&str]| {
        let mut command = Command::new(name);
        let output = command.args(words).env("SLURM_CONF", &path).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    tell("scontrol", &["reconfigure"]);
    let script = "echo x >> started; until [ -e go ]; do sleep 0.1; done";
    slurm.script(&service, "demo", &SLURM[..2], script);
    service.state("demo", "RUNNING");
    let daemon = service.daemon().and_then(Pid::from_raw).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    kill_supervisor(&service, "demo");
    fs::write(service.folder.join("go"), "").unwrap();
    let until = Instant::now() + service::PATIENCE;
    while !tell("squeue", &["--noheader", "--states=all"]).is_empty() {
        assert!(Instant::now() < until, "Slurm does not forget the job");
        thread::sleep(Duration::from_millis(200));
    }
    service.ok(&["list"]);
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let started = fs::read_to_string(service.folder.join("started")).unwrap();
    assert_eq!(started, "x\n");
}
