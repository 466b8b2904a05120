//! Jobs by a real Slurm of two nodes on this machine.

#![cfg(target_os = "linux")]

mod digits;
mod lost_worker;
mod service;
mod unrecorded;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch;
use rustix::process::{Pid, Signal, kill_process};
use service::Service;

const TOOL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/tools/slurm-two-nodes"
);

/// A Slurm of two nodes on this machine, which ends with this.
struct Slurm(PathBuf);

impl Slurm {
    /// None where its packages are not there, or this user may not start it.
    fn start(service: &Service) -> Option<Self> {
        Self::with_cpus(service, 2)
    }

    /// With nodes that say they have this many processors.
    fn with_cpus(service: &Service, cpus: u32) -> Option<Self> {
        let folder = service.folder.join("cluster");
        fs::create_dir_all(&folder).unwrap();
        // As tasks of this machine do, each has a half of the processors: then results are equal to the bit.
        let shares = launch::processor_shares(2);
        let mut command = Command::new(TOOL);
        command
            .arg("start")
            .arg(&folder)
            .args(["2", &cpus.to_string()]);
        let start = || command.output();
        let started = launch::on_processors(shares.first(), start).unwrap();
        if started.status.success() {
            return Some(Self(folder));
        }
        let said = String::from_utf8_lossy(&started.stderr);
        let missing = [
            "needs root",
            "unshare failed",
            "not found",
            "no slurm",
            "install",
        ];
        assert!(missing.iter().any(|why| said.contains(why)), "{said}");
        phalanx_testkit::skip(format_args!("{said}"));
        None
    }

    /// Runs a command that finds the cluster, and succeeds.
    fn ok(&self, service: &Service, args: &[&str]) {
        let mut command = service.command();
        command
            .args(args)
            .env("SLURM_CONF", self.0.join("slurm.conf"));
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
    }

    /// What Slurm says of its nodes.
    fn nodes(&self) -> String {
        let mut command = Command::new("scontrol");
        let conf = self.0.join("slurm.conf");
        command.args(["show", "node"]).env("SLURM_CONF", conf);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    /// How many jobs it has.
    fn jobs(&self) -> usize {
        let mut command = Command::new("squeue");
        let conf = self.0.join("slurm.conf");
        command.arg("--noheader").env("SLURM_CONF", conf);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    /// Waits until it has no job.
    fn until_empty(&self) {
        let until = Instant::now() + service::PATIENCE;
        while self.jobs() > 0 {
            assert!(Instant::now() < until, "a job goes on in Slurm");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Has its tool do something to a node.
    fn tool(&self, verb: &str, node: &str) {
        let mut command = Command::new(TOOL);
        let told = command.arg(verb).arg(&self.0).arg(node).output().unwrap();
        assert!(told.status.success(), "{told:?}");
    }

    /// Has a node vanish, and waits until it is missed.
    fn lose(&self, node: &str) {
        self.tool("lose", node);
        let until = Instant::now() + service::PATIENCE;
        while !self.nodes().contains("DOWN") {
            assert!(Instant::now() < until, "{}", self.nodes());
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn script(&self, service: &Service, name: &str, options: &[&str], script: &str) {
        let start = ["submit", "training", name];
        self.ok(
            service,
            &[&start, options, &["--", "sh", "-c", script]].concat(),
        );
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What they say of their end is no test's.
        let _ = Command::new(TOOL).arg("stop").arg(&self.0).output();
    }
}

const SLURM: [&str; 4] = ["--to", "slurm", "--workers", "2"];

#[test]
fn tasks_run_on_nodes_of_their_own_and_arguments_reach_them_unchanged() {
    let service = Service::new("slurm");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let odd = "it's \"$HOME\" `id` \\ $(touch executed)\n*";
    let script = "echo \"$TF_CONFIG\"; echo rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME at $MASTER_ADDR; printf %s \"$1\" > arg-$RANK";
    let start = ["submit", "training", "demo"];
    let words = ["--", "bash", "-c", script, "bash", odd];
    slurm.ok(&service, &[&start[..], &SLURM, &words].concat());
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let nodes: BTreeSet<String> = job["phalanx"]["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["place"].to_string())
        .collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    for rank in 0..2 {
        assert_eq!(
            fs::read_to_string(service.folder.join(format!("arg-{rank}"))).unwrap(),
            odd
        );
    }
    assert!(!service.folder.join("executed").exists());
    let logs = service.ok(&["logs", "demo"]);
    assert!(
        logs.contains("rank 0 of 2 on") && logs.contains("rank 1 of 2 on"),
        "{logs}"
    );
    assert!(
        logs.contains("\"task\":{\"index\":0,\"type\":\"worker\"}")
            && !logs.contains("phalanx-task"),
        "{logs}"
    );
}

#[test]
fn many_tasks_that_do_not_divide_evenly_are_where_the_others_look_for_them() {
    let service = Service::new("slurm-many");
    let Some(slurm) = Slurm::with_cpus(&service, 32) else {
        return;
    };
    let keys = "phalanx: {executor: slurm, workers: 59, slurm: {nodes: 2}}\n";
    fs::write(service.folder.join("many.yaml"), keys).unwrap();
    let script = "echo rank $RANK of $WORLD_SIZE; [ $(echo $TF_CONFIG | grep -o '127.0.1.[12]:[12][0-9]*' | sort -u | wc -l) = 59 ]";
    slurm.script(&service, "demo", &["--config", "many.yaml"], script);
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    for rank in 0..59 {
        let line = format!("rank {rank} of 59\n");
        assert_eq!(logs.matches(&line).count(), 1, "{line}: {logs}");
    }
}

/// Names of the script that starts tasks, of the shell and of Slurm, which all are any variable's to a job.
const NAMES: [&str; 24] = [
    "name",
    "log",
    "words",
    "code",
    "child",
    "hosts",
    "base",
    "own",
    "cluster",
    "at",
    "most",
    "chief",
    "engines",
    "phalanx_words",
    "phalanx_name",
    "phalanx_variables",
    "IFS",
    "UID",
    "RANDOM",
    "SHELLOPTS",
    "PHALANX_RUN",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "BASH_ENV",
];

#[test]
fn a_job_may_give_its_variables_any_name() {
    let service = Service::new("slurm-names");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let env: String = NAMES
        .iter()
        .map(|name| format!("    {name}: \"a 'b' of {name}\"\n"))
        .collect();
    let keys = format!(
        "phalanx:\n  executor: slurm\n  workers: 2\n  secrets: {{child_key: key.txt, name_key: key.txt}}\n  env:\n{env}"
    );
    fs::write(service.folder.join("names.yaml"), keys).unwrap();
    fs::write(service.folder.join("key.txt"), "hidden\n").unwrap();
    // Not a shell, which has variables of its own.
    let program = service.folder.join("a=b");
    fs::copy("/usr/bin/printenv", &program).unwrap();
    let start = ["submit", "training", "demo", "--config", "names.yaml", "--"];
    let words = ["./a=b", "child_key", "name_key", "RANK"];
    slurm.ok(&service, &[&start[..], &words, &NAMES].concat());
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    for (line, times) in [("hidden", 4), ("0", 1), ("1", 1)] {
        assert_eq!(lines(&logs, line), times, "{line}: {logs}");
    }
    for name in NAMES {
        assert_eq!(
            lines(&logs, &format!("a 'b' of {name}")),
            2,
            "{name}: {logs}"
        );
    }
}

#[test]
fn a_job_waits_in_slurms_queue_as_long_as_it_may() {
    let service = Service::new("slurm-wait");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let keys = "phalanx: {cpus: 2}\ntrainingInput: {scheduling: {maxWaitTime: 4s, priority: 9}}\n";
    fs::write(service.folder.join("wait.yaml"), keys).unwrap();
    fs::write(service.folder.join("all.yaml"), "phalanx: {cpus: 2}\n").unwrap();
    let all = [&SLURM[..], &["--config", "all.yaml"]].concat();
    slurm.script(&service, "first", &all, "exec sleep 1000");
    service.state("first", "RUNNING");
    let options = [&SLURM[..], &["--config", "wait.yaml"]].concat();
    slurm.script(&service, "second", &options, "true");
    let second = service.end("second");
    assert_eq!(second["state"], "CANCELLED", "{second:#}");
    let why = second["errorMessage"].as_str().unwrap();
    assert!(why.contains("longer than maxWaitTime, 4 s"), "{why}");
    let dry = [
        &["submit", "training", "third", "--dry-run"],
        &options[..],
        &["--", "true"],
    ]
    .concat();
    let output = service.run(&dry);
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(
        notes.contains("priority is kept; Slurm orders its queue itself"),
        "{notes}"
    );
}

/// How many lines of logs say this.
fn lines(logs: &str, said: &str) -> usize {
    logs.lines()
        .filter(|line| line.ends_with(&format!(" {said}")))
        .count()
}

#[test]
fn failures_retries_and_cancels_are_as_on_this_machine() {
    let service = Service::new("slurm-ends");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    slurm.script(
        &service,
        "bad",
        &SLURM,
        "if [ $RANK = 1 ]; then echo why; exit 1; fi; sleep 1000",
    );
    let job = service.end("bad");
    assert_eq!(
        (&job["state"], &job["errorMessage"]),
        (
            &"FAILED".into(),
            &"worker-0 (rank 1) ended with exit code 1".into()
        ),
        "{job:#}"
    );
    assert_eq!(
        job["phalanx"]["firstFailure"]["lastLines"],
        serde_json::json!(["why"])
    );
    slurm.script(
        &service,
        "lost",
        &SLURM[..2],
        "echo x >> lost; [ $(wc -l < lost) -gt 1 ] || exit 75",
    );
    let job = service.end("lost");
    assert_eq!(
        (&job["state"], job["phalanx"]["attempt"].as_u64()),
        (&"SUCCEEDED".into(), Some(2)),
        "{job:#}"
    );
    slurm.script(&service, "long", &SLURM, "trap 'echo saved > saved; exit 143' TERM; echo up >> up; for i in $(seq 1000); do sleep 0.2; done");
    service.until("long", |_| {
        let up = fs::read_to_string(service.folder.join("up"));
        up.is_ok_and(|text| text.lines().count() == 2)
    });
    service.ok(&["cancel", "long"]);
    assert_eq!(service.end("long")["state"], "CANCELLED");
    assert!(service.folder.join("saved").exists());
}

#[test]
fn a_job_that_is_cancelled_in_slurm_does_not_come_back() {
    let service = Service::new("slurm-scancel");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    slurm.script(&service, "gone", &SLURM, "echo up >> up; exec sleep 1000");
    service.until("gone", |_| {
        let up = fs::read_to_string(service.folder.join("up"));
        up.is_ok_and(|text| text.lines().count() == 2)
    });
    let mut command = Command::new("scancel");
    command
        .arg("--name=gone")
        .env("SLURM_CONF", slurm.0.join("slurm.conf"));
    assert!(command.status().unwrap().success());
    let job = service.end("gone");
    let why = job["errorMessage"].as_str().unwrap();
    assert!(why.contains("was cancelled in Slurm"), "{why}");
    assert_eq!(
        (&job["state"], job["phalanx"]["attempt"].as_u64()),
        (&"FAILED".into(), Some(1)),
        "{job:#}"
    );
}

#[test]
fn the_digits_have_the_same_weights_by_slurm_and_on_this_machine() {
    if !digits::can_train() {
        return;
    }
    let service = Service::new("slurm-digits");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    digits::write(&service.folder);
    for (name, to) in [("remote", "slurm"), ("here", "local")] {
        let args = [
            "submit",
            "training",
            name,
            "--to",
            to,
            "--config",
            digits::JOB,
        ];
        slurm.ok(&service, &args);
        digits::succeeds(&service, name);
    }
    digits::equal(&service.folder, "remote", "here");
}

#[test]
fn a_lost_worker_is_started_again_while_the_others_wait() {
    let service = Service::new("slurm-lost");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    lost_worker::write(&service.folder, "executor: slurm, slurm: {nodes: 2}");
    let options = ["--config", lost_worker::JOB];
    slurm.script(&service, "demo", &options, lost_worker::SCRIPT);
    lost_worker::was_replaced(&service, "demo");
    let logs = service.ok(&["logs", "demo"]);
    let said = "worker-0 ended with exit code 137, and is started again (1 of 1)";
    assert!(logs.contains(said), "{logs}");
}

#[test]
fn a_killed_worker_costs_the_digits_no_bit() {
    if !digits::can_train() {
        return;
    }
    let service = Service::new("slurm-killed");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    lost_worker::costs_no_bit(&service, "executor: slurm", |args| slurm.ok(&service, args));
}

/// An elastic job of two nodes whose tasks run until there is a file `go`, and the node of one of them.
fn on_two_nodes(service: &Service, slurm: &Slurm, script: &str, task: &str) -> String {
    let keys = "phalanx: {executor: slurm, elastic: {minWorkers: 1, maxWorkers: 2}, restarts: 1}\n";
    fs::write(service.folder.join("node.yaml"), keys).unwrap();
    slurm.script(service, "demo", &["--config", "node.yaml"], script);
    let job = service.state("demo", "RUNNING");
    let place = lost_worker::task(&job, task)["place"].to_string();
    let node = place.trim_matches('"').trim_start_matches("node ");
    node.to_owned()
}

#[test]
fn the_others_go_on_without_a_lost_node() {
    let service = Service::new("slurm-node");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let script = "until [ -e go ]; do sleep 0.1; done";
    let node = on_two_nodes(&service, &slurm, script, "worker-0");
    slurm.lose(&node);
    fs::write(service.folder.join("go"), "").unwrap();
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
    slurm.tool("back", &node);
}

#[test]
fn a_job_without_its_first_node_starts_again_as_soon_as_slurm_says_so() {
    let service = Service::new("slurm-first");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    // The worker that is left would stay for ten minutes.
    let script = "until [ -e go ]; do sleep 0.1; done; [ $PHALANX_GENERATION = 2 ] || exit 75";
    let node = on_two_nodes(&service, &slurm, script, "chief-0");
    slurm.lose(&node);
    fs::write(service.folder.join("go"), "").unwrap();
    service.until("demo", |job| job["phalanx"]["attempt"] == 2);
    let events = fs::read_to_string(service.root().join("jobs/demo/events.log")).unwrap();
    let why = format!("lost its first node, {node}");
    assert!(events.contains(&why), "{events}");
    slurm.tool("back", &node);
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
}

/// Kills the process that runs a job, once there is one, and waits for its end.
fn kill_supervisor(service: &Service, name: &str) {
    let until = Instant::now() + service::PATIENCE;
    let words = format!("supervise\0{name}");
    let find = || {
        assert!(Instant::now() < until, "{:?}", service.processes());
        thread::sleep(Duration::from_millis(20));
        let all = service.processes();
        all.into_iter().find(|process| process.contains(&words))
    };
    let process = loop {
        if let Some(process) = find() {
            break process;
        }
    };
    let pid = process.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    while find().as_ref() == Some(&process) {}
}

#[test]
fn the_trials_of_a_search_go_on_without_its_supervisor_and_end_with_a_cancel() {
    let service = Service::new("slurm-trials");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let keys = "trainingInput: {hyperparameters: {hyperparameterMetricTag: loss, maxTrials: 2, maxParallelTrials: 2, params: [{parameterName: x, type: DISCRETE, discreteValues: [1, 2]}]}}\nphalanx: {executor: slurm}\n";
    fs::write(service.folder.join("search.yaml"), keys).unwrap();
    let script = "echo $CLOUD_ML_TRIAL_ID >> started; until [ -e go ]; do sleep 0.1; done";
    slurm.script(&service, "demo", &["--config", "search.yaml"], script);
    let started = || fs::read_to_string(service.folder.join("started")).unwrap_or_default();
    service.until("demo", |_| started().lines().count() == 2);
    kill_supervisor(&service, "demo");
    // The next one has begun an attempt of each.
    service.until("demo", |job| job["phalanx"]["attempt"] == 4);
    assert_eq!(slurm.jobs(), 2);
    let daemon = Pid::from_raw(service.daemon().unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    kill_supervisor(&service, "demo");
    service.ok(&["cancel", "demo"]);
    assert_eq!(service.end("demo")["state"], "CANCELLED");
    slurm.until_empty();
    assert_eq!(started().lines().count(), 2, "{}", started());
}

#[test]
fn a_job_that_is_given_up_does_not_go_on_in_slurm() {
    let service = Service::new("slurm-given-up");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    slurm.script(&service, "demo", &SLURM[..2], "sleep 1000");
    service.state("demo", "RUNNING");
    for _ in 0..5 {
        kill_supervisor(&service, "demo");
    }
    let job = service.end("demo");
    let error = job["errorMessage"].as_str().unwrap();
    assert!(error.contains("its supervisor ended 5 times"), "{job:#}");
    slurm.until_empty();
}

#[test]
fn an_image_runs_by_the_engine_of_the_nodes() {
    let service = Service::new("slurm-image");
    let Some(slurm) = Slurm::start(&service) else {
        return;
    };
    let bin = service.folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    // It says what it was asked for, and what it was given.
    let engine = "#!/bin/bash\nprintf 'asked: %s\\n' \"$*\"; echo \"$TF_CONFIG\"; test -s \"$PHALANX_SECRET_FILE\"\n";
    fs::write(bin.join("apptainer"), engine).unwrap();
    fs::set_permissions(bin.join("apptainer"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = service.command();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    command
        .env("SLURM_CONF", slurm.0.join("slurm.conf"))
        .env("PATH", path);
    command.args([
        "submit",
        "training",
        "demo",
        "--master-image-uri",
        "registry/image",
    ]);
    let output = command
        .args(SLURM)
        .args(["--", "--epochs", "a b"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    let asked = " docker://registry/image --epochs a b --job-dir runs/demo";
    assert_eq!(logs.matches(asked).count(), 2, "{logs}");
    assert!(logs.contains("asked: run --pwd"), "{logs}");
    assert_eq!(
        logs.matches("\"environment\":\"cloud\"").count(),
        2,
        "{logs}"
    );
}
