//! GPUs of this machine, divided between jobs, tasks and trials: by the names of a list, without a GPU.

#![cfg(target_os = "linux")]

mod service;

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use service::Service;

/// Says what a task sees, and waits for the file `go` of its job.
const SEE: &str = "echo task $RANK sees [$CUDA_VISIBLE_DEVICES] by $CUDA_DEVICE_ORDER, $LOCAL_RANK of $LOCAL_WORLD_SIZE here
until [ -e go_$CLOUD_ML_JOB_ID ]; do sleep 0.05; done";

impl Service {
    /// Submits a job of the script above with our keys, and variables of the submission.
    fn see(&self, name: &str, keys: &str, variables: &[(&str, &str)]) {
        let config = format!("phalanx: {{{keys}}}\n");
        fs::write(self.folder.join("config.yaml"), config).unwrap();
        let mut command = self.command();
        let words = ["submit", "training", name, "--config", "config.yaml"];
        command.args(words).args(["--", "sh", "-c", SEE]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    fn go(&self, name: &str) {
        fs::write(self.folder.join(format!("go_{name}")), "").unwrap();
    }

    /// What the tasks of a job that ends have seen, sorted.
    fn seen(&self, name: &str) -> Vec<String> {
        self.go(name);
        let job = self.end(name);
        assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
        let logs = self.ok(&["logs", name]);
        let lines = logs
            .lines()
            .filter_map(|line| line.split_once("task ").map(|(_, seen)| seen.to_owned()));
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    }
}

/// Where the tasks of a job run.
fn places(job: &Json) -> Vec<&str> {
    let tasks = job["phalanx"]["tasks"].as_array().unwrap().iter();
    tasks
        .filter_map(|task| task["place"].as_str()?.split_once(", "))
        .map(|(_, gpu)| gpu)
        .collect()
}

#[test]
fn tasks_have_gpus_of_their_own_and_the_next_job_waits_for_them() {
    let service = Service::new("gpus").with_gpus("GPU-2,GPU-5,GPU-7");
    service.see("first", "workers: 2, gpus: 1", &[]);
    let first = service.state("first", "RUNNING");
    assert_eq!(places(&first), ["GPU GPU-2", "GPU GPU-5"]);
    // A job that says nothing sees what is left, and holds nothing.
    service.see("left", "workers: 2", &[]);
    service.state("left", "RUNNING");
    // A list of the submission loses what others have, and nothing that the daemon does not know.
    let narrow = [("CUDA_VISIBLE_DEVICES", "GPU-2,GPU-9")];
    service.see("narrow", "cpus: 1", &narrow);
    let numbered = [("CUDA_VISIBLE_DEVICES", "1")];
    service.see("numbered", "cpus: 1", &numbered);
    service.see("none", "gpus: 0", &[]);
    service.see("itself", "env: {CUDA_VISIBLE_DEVICES: '9'}", &[]);
    service.see("single", "gpus: 1", &[]);
    for name in ["narrow", "numbered", "none", "itself", "single"] {
        service.state(name, "RUNNING");
    }
    service.see("next", "gpus: 2", &[]);
    let waits = |job: &Json| job["phalanx"]["waitsFor"] == "2 GPUs (free: 0 of 3)";
    service.until("next", waits);
    let queue = service.ok(&["queue"]);
    assert!(queue.contains("2 GPUs (free: 0 of 3)"), "{queue}");
    // Another daemon knows who has what.
    let daemon = service.daemon().and_then(Pid::from_raw).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    let next = service.until("next", waits);
    assert_eq!(next["state"], "QUEUED");
    assert_ne!(service.daemon(), Some(daemon.as_raw_nonzero().get()));
    assert_eq!(
        service.seen("first"),
        [
            "0 sees [GPU-2] by , 0 of 1 here",
            "1 sees [GPU-5] by , 0 of 1 here"
        ]
    );
    for (name, seen) in [
        ("next", "0 sees [GPU-2,GPU-5] by , 0 of 1 here"),
        ("single", "0 sees [GPU-7] by , 0 of 1 here"),
        ("narrow", "0 sees [GPU-9] by , 0 of 1 here"),
        ("numbered", "0 sees [1] by , 0 of 1 here"),
        ("none", "0 sees [] by , 0 of 1 here"),
        ("itself", "0 sees [9] by , 0 of 1 here"),
    ] {
        assert_eq!(service.seen(name), [seen], "{name}");
    }
    let logs = service.ok(&["logs", "numbered"]);
    assert!(logs.contains("some may be other jobs'"), "{logs}");
    assert_eq!(
        service.seen("left"),
        [
            "0 sees [GPU-7] by , 0 of 2 here",
            "1 sees [GPU-7] by , 1 of 2 here"
        ]
    );
}

#[test]
fn a_job_is_given_no_more_gpus_than_there_are_and_one_for_each_task_at_least() {
    let service = Service::new("few-gpus").with_gpus("GPU-0,GPU-1");
    service.see("large", "gpus: 8", &[]);
    let large = service.seen("large");
    assert_eq!(large, ["0 sees [GPU-0,GPU-1] by , 0 of 1 here"]);
    service.see("many", "workers: 3, gpus: 1", &[]);
    let many = service.end("many");
    assert_eq!(many["state"], "FAILED");
    let why = many["errorMessage"].as_str().unwrap();
    let said = "3 of its tasks ask for GPUs, 3 in all, and this machine has 2 for jobs";
    assert!(why.contains(said), "{why}");
    let config = "phalanx: {gpus: 1, env: {CUDA_VISIBLE_DEVICES: '0'}}\n";
    fs::write(service.folder.join("both.yaml"), config).unwrap();
    let words = "submit training both --config both.yaml --dry-run -- true";
    let output = service.run(&words.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    let notice = "phalanx.env.CUDA_VISIBLE_DEVICES says which GPUs tasks see";
    assert!(output.status.success() && said.contains(notice), "{said}");
    let plan = "submit training plan --config config.yaml --dry-run -- true";
    let output = service.run(&plan.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the job will fail: 3 of its tasks"), "{said}");
}

#[test]
fn trials_at_the_same_time_have_gpus_of_their_own() {
    let service = Service::new("trial-gpus").with_gpus("GPU-4,GPU-5,GPU-6,GPU-7,GPU-8");
    fs::write(service.folder.join("two.yaml"), "phalanx: {gpus: 2}\n").unwrap();
    // A trial that finds another with one of its own says so for ever; the first two wait for each other.
    let script = "for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do mkdir gpu$gpu || touch together; done
touch here$CLOUD_ML_TRIAL_ID; until [ -e here1 ] && [ -e here2 ]; do sleep 0.05; done
echo trial sees $CUDA_VISIBLE_DEVICES
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do rmdir gpu$gpu; done
echo \"{\\\"loss\\\": 1}\" >> $CLOUD_ML_HP_METRIC_FILE\n";
    fs::write(service.folder.join("script.sh"), script).unwrap();
    let words = "tune --name demo --config two.yaml --search x=1,2,3,4,5,6 --trials 6 --parallel 3 --metric loss -- sh script.sh";
    let output = service.run(&words.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let notice = "2 of 3 trials run at the same time: each is to have GPUs of its own, 2 in all, and this machine has 5";
    assert!(said.contains(notice), "{said}");
    assert!(
        !service.folder.join("together").exists(),
        "two trials had the same GPU"
    );
    let logs = service.ok(&["logs", "demo"]);
    let counts =
        ["trial sees GPU-4,GPU-5", "trial sees GPU-6,GPU-7"].map(|seen| logs.matches(seen).count());
    assert!(counts.iter().all(|count| *count > 0), "{logs}");
    assert_eq!(counts.iter().sum::<usize>(), 6, "{logs}");
}

#[test]
fn numbers_are_counted_in_one_order_and_a_list_of_other_things_is_refused() {
    let service = Service::new("numbered-gpus").with_gpus("0");
    service.see("demo", "gpus: 1", &[]);
    let seen = service.seen("demo");
    assert_eq!(seen, ["0 sees [0] by PCI_BUS_ID, 0 of 1 here"]);
    let order = "gpus: 1, env: {CUDA_DEVICE_ORDER: FASTEST_FIRST}";
    service.see("other", order, &[]);
    let other = service.end("other");
    let why = other["errorMessage"].as_str().unwrap();
    let said = "phalanx.env.CUDA_DEVICE_ORDER is FASTEST_FIRST, and the GPUs";
    assert!(why.contains(said), "{why}");
    let service = Service::new("no-gpus").with_gpus("-1");
    service.see("demo", "gpus: 2", &[]);
    assert_eq!(service.seen("demo"), ["0 sees [] by , 0 of 1 here"]);
    let logs = service.ok(&["logs", "demo"]);
    let said = "the job asks for 2 GPUs, and runs without: this machine has none";
    assert!(logs.contains(said), "{logs}");
    let (code, said) = Service::new("bad-gpus").with_gpus("all").fails(&["list"]);
    let why = "PHALANX_JOBS_GPUS: \"all\" names no GPU";
    assert!(code == 2 && said.contains(why), "{said}");
}
