//! Jobs as processes of this machine, by the commands that users type.

#![cfg(target_os = "linux")]

mod service;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use service::Service;

/// Two tasks, by machine types.
const CONFIG: &str = "trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-4
  workerType: n1-standard-4
  workerCount: 1
";

fn task<'a>(job: &'a Json, name: &str) -> &'a Json {
    let tasks = job["phalanx"]["tasks"].as_array().unwrap();
    tasks
        .iter()
        .find(|task| task["task"] == name)
        .unwrap_or_else(|| panic!("no {name} in {job:#}"))
}

#[test]
fn two_workers_know_who_they_are_and_are_seen() {
    let service = Service::new("two");
    fs::write(service.folder.join("config.yaml"), CONFIG).unwrap();
    let script = "echo rank $RANK of $WORLD_SIZE; echo \"$TF_CONFIG\"; echo \"$CLOUD_ML_JOB\"; pwd; test -s \"$PHALANX_SECRET_FILE\" && echo bad >&2";
    service.script(
        "demo",
        &["--config", "config.yaml", "--labels", "team=vision"],
        script,
    );
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["labels"]["team"], "vision");
    for name in ["chief-0", "worker-0"] {
        assert_eq!(task(&job, name)["exitCode"], 0, "{job:#}");
    }
    let logs = service.ok(&["logs", "demo", "--format", "json"]);
    let all: Vec<Json> = logs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| -> Vec<&Json> {
        all.iter() // The two streams of a task come by pipes of their own, in any order.
            .filter(|line| line["task"] == name && line["severity"] == "INFO")
            .collect()
    };
    for (name, rank, kind) in [("chief-0", 0, "chief"), ("worker-0", 1, "worker")] {
        let lines = of(name);
        assert_eq!(lines[0]["message"], format!("rank {rank} of 2"));
        let config: Json = serde_json::from_str(lines[1]["message"].as_str().unwrap()).unwrap();
        assert_eq!(config["task"]["type"], kind);
        assert_eq!(config["cluster"]["chief"].as_array().unwrap().len(), 1);
        assert_eq!(config["cluster"]["worker"].as_array().unwrap().len(), 1);
        let given: Json = serde_json::from_str(lines[2]["message"].as_str().unwrap()).unwrap();
        assert_eq!(given["workerCount"], 1);
        assert_eq!(lines[3]["message"], service.folder.display().to_string());
        let on_error = |line: &&Json| line["task"] == name && line["severity"] == "ERROR";
        assert_eq!(all.iter().filter(on_error).count(), 1, "{all:?}");
    }
    let secret = fs::metadata(service.root().join("jobs/demo/secret")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&secret.permissions()) & 0o777,
        0o600
    );
    let (code, error) = service.fails(&["submit", "training", "demo", "--", "true"]);
    assert_eq!(code, 2);
    assert!(error.contains("was submitted before"), "{error}");
    let list = service.ok(&["list", "--filter", "jobId:de* AND state:SUCCEEDED"]);
    assert!(
        list.lines()
            .nth(1)
            .unwrap()
            .starts_with("demo    SUCCEEDED"),
        "{list}"
    );
}

#[test]
fn a_job_has_all_processors_unless_it_says_how_many_it_takes() {
    let of = |status: &str| {
        let line = status
            .lines()
            .find_map(|line| line.split_once("Cpus_allowed_list:"));
        line.unwrap().1.trim().to_owned()
    };
    let all = of(&fs::read_to_string("/proc/thread-self/status").unwrap());
    if thread::available_parallelism().unwrap().get() < 2 {
        phalanx_testkit::skip("this machine has one processor");
        return;
    }
    let service = Service::new("processors");
    fs::write(service.folder.join("one.yaml"), "phalanx: {cpus: 1}\n").unwrap();
    for (name, options) in [("all", &[][..]), ("one", &["--config", "one.yaml"])] {
        service.script(name, options, "grep Cpus_allowed_list: /proc/self/status");
        assert_eq!(service.end(name)["state"], "SUCCEEDED");
        let allowed = of(&service.ok(&["logs", name]));
        assert_eq!(allowed == all, name == "all", "{name}: {allowed} of {all}");
    }
}

#[test]
fn a_job_that_ends_while_its_log_cannot_be_used_runs_once() {
    let service = Service::new("log-gone");
    service.script(
        "demo",
        &[],
        "echo x >> started; until [ -e go ]; do sleep 0.05; done; touch ended",
    );
    service.state("demo", "RUNNING");
    service.without_log("demo", || {
        fs::write(service.folder.join("go"), "").unwrap();
        phalanx_testkit::wait_until("its end", || service.folder.join("ended").exists());
        thread::sleep(Duration::from_secs(2));
    });
    let job = service.end("demo");
    let started = fs::read_to_string(service.folder.join("started")).unwrap();
    assert_eq!((&job["state"], &*started), (&"SUCCEEDED".into(), "x\n"));
    // The end of its task was seen, and there was no room for it, unless it was seen only when there was room again.
    let end = job["phalanx"]["tasks"][0]["end"].as_str().unwrap();
    let ends = ["ended, and nobody saw how", "ended with exit code 0"];
    assert!(ends.contains(&end), "{job:#}");
}

#[test]
fn a_cancelled_job_leaves_no_process_behind() {
    let service = Service::new("cancel");
    // A grandchild that leaves the group, and processes that do not hear of SIGTERM.
    let script = "trap '' TERM; setsid sleep 1000 & sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; wait";
    service.script("demo", &["--workers", "2"], script);
    service.state("demo", "RUNNING");
    service.until("demo", |_| {
        service.ok(&["logs", "demo"]).matches("up").count() == 2
    });
    let begun = Instant::now();
    service.ok(&["cancel", "demo"]);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(service.job("demo")["state"], "CANCELLING");
    service.ok(&["cancel", "demo"]);
    let job = service.end("demo");
    assert_eq!(job["state"], "CANCELLED", "{job:#}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    let left: Vec<_> = service
        .processes()
        .into_iter()
        .filter(|line| line.contains("sleep"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    let (code, error) = service.fails(&["cancel", "demo"]);
    assert_eq!(code, 2);
    assert!(error.contains("is CANCELLED"), "{error}");
    assert_eq!(service.run(&["wait", "demo"]).status.code(), Some(130));
}

#[test]
fn a_task_that_is_cancelled_has_time_to_save() {
    let service = Service::new("saves");
    // As a program whose step and checkpoint take a few seconds.
    let script =
        "trap 'sleep 4; echo saved > saved; exit 143' TERM; echo up; while :; do sleep 0.1; done";
    service.script("demo", &[], script);
    service.until("demo", |_| service.ok(&["logs", "demo"]).contains("up"));
    service.ok(&["cancel", "demo"]);
    assert_eq!(service.end("demo")["state"], "CANCELLED");
    assert!(service.folder.join("saved").exists());
}

#[test]
fn a_helper_that_holds_the_output_does_not_hold_the_job() {
    let service = Service::new("helper");
    // No variable of the job tells who started it, and it is in no group of the job's.
    service.script(
        "demo",
        &[],
        "env -i setsid sleep 120 & echo $! > helper; echo trained",
    );
    let start = Instant::now();
    let job = service.end("demo");
    let helper = fs::read_to_string(service.folder.join("helper")).unwrap();
    let helper = rustix::process::Pid::from_raw(helper.trim().parse().unwrap()).unwrap();
    let held = rustix::process::kill_process(helper, rustix::process::Signal::KILL);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert!(service.ok(&["logs", "demo"]).contains("trained"));
    assert!(held.is_ok(), "the helper ended by itself");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_task_that_failed_first_is_shown_with_its_last_lines() {
    let service = Service::new("first");
    let script = "if [ $RANK = 1 ]; then for i in $(seq 50); do echo line $i; done; exit 1; else sleep 1000; fi";
    service.script("demo", &["--workers", "3"], script);
    service.until("demo", |job| {
        job["phalanx"]["tasks"].to_string().contains("exitCode")
    });
    let job = service.end("demo");
    assert_eq!(job["state"], "FAILED");
    let failure = &job["phalanx"]["firstFailure"];
    assert_eq!(
        (&failure["task"], failure["rank"].as_u64()),
        (&Json::from("worker-0"), Some(1))
    );
    assert_eq!(failure["exitCode"], 1);
    let lines: Vec<_> = (31..=50).map(|n| Json::from(format!("line {n}"))).collect();
    assert_eq!(failure["lastLines"], Json::from(lines));
    assert_eq!(
        job["errorMessage"],
        "worker-0 (rank 1) ended with exit code 1"
    );
    assert_eq!(job["phalanx"]["attempt"], 1);
    let text = service.ok(&["describe", "demo", "--summarize"]);
    assert!(
        text.contains("first failure: worker-0 (rank 1) ended with exit code 1, attempt 1"),
        "{text}"
    );
    assert!(text.contains("    line 50\n"), "{text}");
    assert_eq!(service.run(&["wait", "demo"]).status.code(), Some(1));
}

#[test]
fn a_job_succeeds_when_its_chief_does_whatever_becomes_of_the_others_then() {
    let service = Service::new("after");
    let keys = "phalanx: {workers: 2, restarts: 2}\n";
    fs::write(service.folder.join("two.yaml"), keys).unwrap();
    // The worker ends when the chief has gone, or is a zombie that nobody has looked at.
    let script = |code: u32| {
        format!(
            "case $RANK in
0) echo $$ > $CLOUD_ML_JOB_ID.new; mv $CLOUD_ML_JOB_ID.new $CLOUD_ML_JOB_ID; until [ -e $CLOUD_ML_JOB_ID.seen ]; do sleep 0.05; done;;
1) until [ -e $CLOUD_ML_JOB_ID ]; do sleep 0.05; done; touch $CLOUD_ML_JOB_ID.seen
   while grep -q '^State:.[^ZX]' /proc/$(cat $CLOUD_ML_JOB_ID)/status 2>/dev/null; do sleep 0.05; done
   exit {code};;
esac"
        )
    };
    for (name, code) in [("failed", 1), ("lost", 75)] {
        service.script(name, &["--config", "two.yaml"], &script(code));
    }
    for (name, code) in [("failed", 1), ("lost", 75)] {
        let job = service.end(name);
        assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
        assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
        assert_eq!(task(&job, "worker-0")["exitCode"], code, "{job:#}");
    }
}

#[test]
fn exit_codes_lead_to_the_right_retry() {
    let service = Service::new("retry");
    fs::write(
        service.folder.join("twice.yaml"),
        "phalanx: {restarts: 2}\n",
    )
    .unwrap();
    // Ends with a code at first, and well once the file has as many lines as there were attempts to fail.
    let script = |code: u32, times: u32| {
        format!(
            "echo x >> $CLOUD_ML_JOB_ID; [ $(wc -l < $CLOUD_ML_JOB_ID) -gt {times} ] || exit {code}"
        )
    };
    for (name, code, times) in [
        ("one", 1, 1),
        ("two", 2, 1),
        ("three", 3, 1),
        ("lost", 75, 2),
        ("often", 75, 3),
        ("saved", 143, 5),
    ] {
        service.script(name, &["--config", "twice.yaml"], &script(code, times));
    }
    for (name, state, attempts) in [
        ("one", "FAILED", 1),
        ("two", "FAILED", 1),
        ("three", "FAILED", 1),
        ("lost", "SUCCEEDED", 3),
        ("often", "FAILED", 3),
        ("saved", "SUCCEEDED", 6),
    ] {
        let job = service.end(name);
        assert_eq!(
            (&job["state"], job["phalanx"]["attempt"].as_u64()),
            (&Json::from(state), Some(attempts)),
            "{job:#}"
        );
        let lines = fs::read_to_string(service.folder.join(name))
            .unwrap()
            .lines()
            .count();
        assert_eq!(lines as u64, attempts, "{name}");
    }
}

#[test]
fn a_python_module_is_found_in_its_package() {
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        phalanx_testkit::skip("install python3");
        return;
    }
    let service = Service::new("python");
    let package = service.folder.join("code/trainer");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("__init__.py"), "").unwrap();
    fs::write(package.join("task.py"), "import sys\nprint(sys.argv[1:])\n").unwrap();
    let options = [
        "--package-path",
        "code/trainer",
        "--module-name",
        "trainer.task",
        "--job-dir",
        "out",
        "--",
        "--epochs",
        "3",
    ];
    service.ok(&[&["submit", "training", "demo"][..], &options].concat());
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let logs = service.ok(&["logs", "demo"]);
    assert!(
        logs.contains("['--epochs', '3', '--job-dir', 'out']"),
        "{logs}"
    );
}

#[test]
fn a_program_of_a_package_runs_from_its_copy() {
    let service = Service::new("package");
    let package = service.folder.join("code");
    fs::create_dir_all(&package).unwrap();
    let program = |text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = package.join("train.sh");
        fs::write(
            &path,
            format!("#!/bin/sh\ncat \"$PHALANX_PACKAGE/{text}\"; pwd; echo $@\n"),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("data.txt");
    fs::write(package.join("data.txt"), "first\n").unwrap();
    fs::write(
        service.folder.join("config.yaml"),
        "phalanx: {program: train.sh, secrets: {KEY: code/key.txt}}\ntrainingInput: {args: [--epochs, '3']}\n",
    )
    .unwrap();
    fs::write(package.join("key.txt"), "secret").unwrap();
    let submit = ["submit", "training", "demo", "--config", "config.yaml"];
    let plan = service.ok(&[&submit[..], &["--package-path", "code", "--dry-run"]].concat());
    let copied = format!("copied to {}/packages/demo-", service.root().display());
    assert!(
        plan.contains("code (2 files, ") && plan.contains(&copied),
        "{plan}"
    );
    assert!(
        !service.root().join("packages").exists(),
        "a plan copies nothing"
    );
    service.ok(&[
        &submit[..],
        &["--package-path", "code", "--staging-bucket", "kept"],
    ]
    .concat());
    let job = service.job("demo");
    let copy = job["trainingInput"]["packageUris"][0].as_str().unwrap();
    assert!(
        copy.starts_with(&format!("{}/kept/demo-", service.folder.display())),
        "{copy}"
    );
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let copied = std::path::Path::new(copy);
    assert!(copied.join("train.sh").is_file() && !copied.join("key.txt").exists());
    let logs = service.ok(&["logs", "demo"]);
    for line in ["first", &service.folder.display().to_string(), "--epochs 3"] {
        assert!(logs.contains(line), "{logs}");
    }
}

/// Waits until the copies of packages are removed.
fn until_none(copies: impl Fn() -> usize) {
    let until = Instant::now() + service::PATIENCE;
    while copies() > 0 {
        assert!(
            Instant::now() < until,
            "the copy of a job that has ended stays"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_package_that_changes_after_its_submission_changes_no_job() {
    // One processor: the second job waits until the first has ended.
    let service = Service::with_cpus("package-queue", 1);
    let package = service.folder.join("code");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("text"), "first\n").unwrap();
    service.script("before", &[], "until [ -e go ]; do sleep 0.1; done");
    let options = ["--package-path", "code"];
    service.script("demo", &options, "cat \"$PHALANX_PACKAGE/text\"");
    let demo = service.job("demo");
    assert_eq!(demo["state"], "QUEUED");
    // As one submits what `describe` has shown: it has no copy of its own.
    let input = json!({"trainingInput": {"packageUris": demo["trainingInput"]["packageUris"]}});
    fs::write(service.folder.join("again.yaml"), input.to_string()).unwrap();
    let wait = "until [ -e end ]; do sleep 0.1; done; cat \"$PHALANX_PACKAGE/text\"";
    service.script("again", &["--config", "again.yaml"], wait);
    fs::write(package.join("text"), "second\n").unwrap();
    fs::write(service.folder.join("go"), "").unwrap();
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    assert_eq!(service.ok(&["logs", "demo"]).matches("first").count(), 1);
    fs::write(service.folder.join("end"), "").unwrap();
    assert_eq!(service.end("again")["state"], "SUCCEEDED");
    assert_eq!(service.ok(&["logs", "again"]).matches("first").count(), 1);
    // Its copy goes with its end, also where another daemon is there by then.
    let copies = || {
        fs::read_dir(service.root().join("packages"))
            .unwrap()
            .count()
    };
    until_none(copies);
    // The name was used: its copy is removed again.
    let (code, error) = service.fails(&[
        "submit",
        "training",
        "demo",
        "--package-path",
        "code",
        "--",
        "true",
    ]);
    assert_eq!(code, 2, "{error}");
    assert_eq!(copies(), 0);
    let (code, error) = service.fails(&[
        "submit",
        "training",
        "none",
        "--package-path",
        "nowhere",
        "--",
        "true",
    ]);
    assert!(
        code == 3 && error.contains("name the folder with the program"),
        "{error}"
    );
}

/// A small disk in the place of a folder, until this is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// None where this user may not mount one.
    fn mounted(folder: std::path::PathBuf) -> Option<Self> {
        fs::create_dir(&folder).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs"]);
        let done = mount.arg(&folder).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(Self(folder));
        }
        phalanx_testkit::skip(format_args!("no disk can be mounted"));
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn output_that_a_full_disk_does_not_take_is_missed_in_the_log() {
    let service = Service::new("full");
    let Some(_disk) = SmallDisk::mounted(service.root()) else {
        return;
    };
    // Room for what is told of the job's end: what fills the disk is the log alone.
    let ballast = service.root().join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let script = "seq 1000000; touch done; until [ -e go ]; do sleep 0.1; done";
    service.script("demo", &[], script);
    service.until("demo", |_| service.folder.join("done").exists());
    // What was on its way when the last line was written has been refused, too.
    thread::sleep(Duration::from_secs(2));
    fs::remove_file(&ballast).unwrap();
    fs::write(service.folder.join("go"), "").unwrap();
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let logs = service.ok(&["logs", "demo"]);
    let last = logs.lines().last().unwrap();
    assert!(last.contains("lines or more are missing here"), "{last}");
    let first = logs.lines().nth(1).unwrap();
    assert!(first.ends_with(" 1"), "{first}");
}
