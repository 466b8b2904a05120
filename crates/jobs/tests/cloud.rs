//! Jobs that keep packages and results in buckets, against servers that `cargo xtask check cloud` starts and names in the environment.
//!
//! PHALANX_TEST_STORES has the URLs of the buckets; without it each test says so and ends.
#![cfg(all(target_os = "linux", feature = "cloud"))]

mod digits;
mod pods;
mod service;

use std::fs;
use std::path::Path;
use std::time::Instant;

use phalanx_store::{Bucket, Limits, ObjectUrl};
use phalanx_testkit::{Answer, Gate, bucket_urls, put_empty_at};
use pods::Cluster;
use serde_json::Value as Json;
use service::{PATIENCE, Service};

fn bucket(url: &str) -> (ObjectUrl, Bucket) {
    let url = ObjectUrl::parse(url).unwrap();
    let bucket = Bucket::open(&url, Limits::default()).unwrap();
    (url, bucket)
}

fn names(url: &str) -> Vec<String> {
    let (url, bucket) = bucket(url);
    let objects = bucket.list(&url).unwrap().into_iter();
    objects.map(|object| object.name).collect()
}

fn text(url: &str, name: &str) -> String {
    let (url, bucket) = bucket(url);
    let bytes = bucket.read(&url.join(name), 0, 1 << 20).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The lines of a job file by which tasks may use the bucket: the key is in files, as secrets are.
fn secrets(folder: &Path) -> String {
    let mut lines = String::new();
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        let Ok(value) = std::env::var(name) else {
            continue;
        };
        fs::write(folder.join(name), value).unwrap();
        lines.push_str(&format!("{name}: {name}, "));
    }
    format!("secrets: {{{lines}}}")
}

/// A service whose daemon has no credentials of its own: only the job's secrets can be used.
fn service(name: &str) -> Service {
    let service = Service::new(name);
    let mut command = service.command();
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        command.env_remove(name);
    }
    assert!(command.arg("list").output().unwrap().status.success());
    service
}

#[test]
fn a_package_comes_back_from_a_bucket_as_it_was() {
    for url in bucket_urls("jobs-package") {
        let service = service("cloud-package");
        let package = service.folder.join("code");
        fs::create_dir_all(package.join("deep/er")).unwrap();
        fs::write(
            package.join("run.sh"),
            "#!/bin/sh\ncat \"$PHALANX_PACKAGE/deep/er/ü %b\"\n",
        )
        .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(package.join("run.sh"), mode).unwrap();
        fs::write(package.join("deep/er/ü %b"), "first\n").unwrap();
        fs::write(package.join("empty"), "").unwrap();
        let keys = format!("phalanx: {{{}}}\n", secrets(&service.folder));
        fs::write(service.folder.join("keys.yaml"), keys).unwrap();
        let submit = |name: &str| {
            let options = ["--config", "keys.yaml", "--package-path", "code"];
            let staging = ["--staging-bucket", url.as_str(), "--", "run.sh"];
            service.ok(&[&["submit", "training", name][..], &options, &staging].concat());
            let end = service.end(name);
            let copy = end["trainingInput"]["packageUris"][0].as_str().unwrap();
            assert!(copy.starts_with(&format!("{url}/{name}-")), "{copy}");
            (end.clone(), copy.to_owned())
        };
        let (end, copy) = submit("good");
        assert_eq!(end["state"], "SUCCEEDED", "{end:#}");
        assert!(service.ok(&["logs", "good"]).contains("first"));
        assert_eq!(names(&copy).len(), 4, "three files and their list");
        let own = service.root().join("jobs/good/package/code/empty");
        assert_eq!(fs::read(own).unwrap(), b"");
        // A job that names the package that is there, once as it was and once with other bytes.
        let job = format!(
            "phalanx: {{program: run.sh, {}}}\ntrainingInput: {{packageUris: ['{copy}']}}\n",
            secrets(&service.folder)
        );
        fs::write(service.folder.join("job.yaml"), job).unwrap();
        service.ok(&["submit", "training", "again", "--config", "job.yaml"]);
        assert_eq!(service.end("again")["state"], "SUCCEEDED");
        let (place, bucket) = bucket(&copy);
        bucket
            .put(&place.join("00000"), b"fIrst\n".to_vec())
            .unwrap();
        service.ok(&["submit", "training", "damaged", "--config", "job.yaml"]);
        let end = service.end("damaged");
        let why = end["errorMessage"].as_str().unwrap();
        assert!(
            end["state"] == "FAILED" && why.contains("is damaged"),
            "{end:#}"
        );
    }
}

/// The lines of a job file by which pods find the bucket: the submitter's variables are not theirs.
fn addresses() -> String {
    let names = [
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "STORAGE_EMULATOR_HOST",
        "NO_PROXY",
    ];
    let line = |name: &str| Some(format!("{name}: '{}', ", std::env::var(name).ok()?));
    let lines: String = names.into_iter().filter_map(line).collect();
    format!("env: {{{lines}}}")
}

/// Has pods run `run.sh` of the package `code`; gives the job at its end.
fn in_pods(service: &Service, cluster: &Cluster, name: &str, keys: &str, options: &[&str]) -> Json {
    let package = service.folder.join("code");
    fs::create_dir_all(package.join("deep")).unwrap();
    let script = "#!/bin/sh\ncat \"$PHALANX_PACKAGE/deep/words\"\necho \"$1 from $0\"\n";
    fs::write(package.join("run.sh"), script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(package.join("run.sh"), mode).unwrap();
    fs::write(package.join("deep/words"), "as it was\n").unwrap();
    let (secrets, addresses) = (secrets(&service.folder), addresses());
    let keys = format!("phalanx: {{kubernetes: {{image: img{keys}}}, {addresses}, {secrets}}}\n");
    fs::write(service.folder.join("keys.yaml"), keys).unwrap();
    let start = [
        "submit",
        "training",
        name,
        "--to",
        "kubernetes",
        "--workers",
        "2",
    ];
    let more = ["--config", "keys.yaml", "--package-path", "code"];
    let mut command = service.command();
    command.env("KUBECONFIG", cluster.config(&service.folder));
    command.args(start).args(more).args(options);
    let output = command.args(["--", "run.sh", name]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    // What pods get is what was there then.
    fs::write(package.join("deep/words"), "changed\n").unwrap();
    service.end(name)
}

#[test]
fn pods_bring_their_package_from_a_bucket() {
    for url in bucket_urls("jobs-pods") {
        let service = service("cloud-pods");
        let cluster = Cluster::new(&service.folder);
        let staging = format!("{url}/staging");
        for (name, options, place) in [
            ("staged", ["--staging-bucket", &staging], &staging),
            (
                "in-job-dir",
                ["--job-dir", &url],
                &format!("{url}/packages"),
            ),
        ] {
            let end = in_pods(&service, &cluster, name, "", &options);
            let logs = service.ok(&["logs", name]);
            assert_eq!(end["state"], "SUCCEEDED", "{end:#}\n{logs}");
            let copy = end["trainingInput"]["packageUris"][0].as_str().unwrap();
            assert!(copy.starts_with(&format!("{place}/{name}-")), "{copy}");
            assert_eq!(logs.matches("as it was\n").count(), 2, "{logs}");
            // Each pod has a copy of its own, and none sees the one of the submitting machine.
            let lines = logs.lines().filter_map(|line| line.split_once(" from "));
            let places: Vec<&str> = lines.map(|(_, place)| place).collect();
            let end = "/phalanx-package/code/run.sh";
            let is_own = |place: &&str| place.contains("/cluster/") && place.ends_with(end);
            assert!(places.len() == 2 && places.iter().all(is_own), "{logs}");
            assert_ne!(places[0], places[1]);
        }
        let options = ["--staging-bucket", &staging];
        let end = in_pods(&service, &cluster, "bare", ", packageImage: bare", &options);
        let why = end["errorMessage"].as_str().unwrap();
        let said = "its package did not come: exec: phalanx-jobs: not found";
        assert!(end["state"] == "FAILED" && why.contains(said), "{end:#}");
        assert_eq!(end["phalanx"]["attempt"], 1, "trying again would not help");
    }
}

#[test]
fn results_and_logs_go_into_a_bucket_while_tasks_run() {
    for url in bucket_urls("jobs-results") {
        let service = service("cloud-results");
        let keys = format!("phalanx: {{{}}}\n", secrets(&service.folder));
        fs::write(service.folder.join("keys.yaml"), keys).unwrap();
        // What the program itself has there stays there.
        let (place, objects) = bucket(&url);
        let put = objects.put(&place.join("deep/er/before"), b"of before".to_vec());
        put.unwrap();
        let script = "[ -e \"${CLOUD_ML_HP_METRIC_FILE%/hypertune/*}/deep\" ] && echo there; echo at $PHALANX_JOB_DIR; until [ -e go ]; do sleep 0.1; done; echo end";
        let options = ["--config", "keys.yaml", "--job-dir", url.as_str()];
        service.script("demo", &options, script);
        let log = "logs/demo/chief-0.log";
        let until = Instant::now() + PATIENCE;
        while !names(&url).iter().any(|name| name == log) || !text(&url, log).contains("at ") {
            assert!(Instant::now() < until, "{:?}", names(&url));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert!(text(&url, log).contains(&format!("at {url}\n")));
        assert!(!text(&url, log).contains("there"));
        fs::write(service.folder.join("go"), "").unwrap();
        assert_eq!(service.end("demo")["state"], "SUCCEEDED");
        assert!(
            text(&url, log).ends_with(" O end\n"),
            "the end of the log is not there"
        );
        assert_eq!(service.job("demo")["phalanx"]["jobDir"], url.as_str());
    }
}

#[test]
fn earlier_results_come_back_in_parts_and_marks_of_folders_are_no_files() {
    for url in bucket_urls("jobs-earlier") {
        let service = service("cloud-earlier");
        let (place, objects) = bucket(&url);
        let large: Vec<u8> = (0..(32 << 20) + 5_u32).map(|i| (i % 251) as u8).collect();
        for (name, bytes) in [("large", large.clone()), ("notes/empty", Vec::new())] {
            objects.put(&place.join(name), bytes).unwrap();
        }
        let variable = match url.starts_with("gs") {
            true => "STORAGE_EMULATOR_HOST",
            false => "AWS_ENDPOINT_URL",
        };
        if url.starts_with("gs") {
            put_empty_at(&format!("{url}/notes/"));
        }
        let gate = Gate::before(&std::env::var(variable).unwrap(), |_| Answer::Pass);
        let address = &gate.address;
        digits::write(&service.folder);
        let keys = format!(
            "phalanx: {{program: examples/digits.yaml, env: {{{variable}: '{address}'}}, {}}}\n",
            secrets(&service.folder)
        );
        fs::write(service.folder.join("keys.yaml"), keys).unwrap();
        let options = ["--config", "keys.yaml", "--job-dir", url.as_str()];
        let end = ["--", "--epochs", "1"];
        service.ok(&[&["submit", "training", "demo"][..], &options, &end].concat());
        digits::succeeds(&service, "demo");
        let results = service.root().join("jobs/demo/results");
        assert!(fs::read(results.join("large")).unwrap() == large);
        assert_eq!(fs::read(results.join("notes/empty")).unwrap(), b"");
        let reads = gate.requests("GET").into_iter();
        assert_eq!(reads.filter(|line| line.contains("large ")).count(), 2);
    }
}

#[test]
fn results_that_do_not_arrive_are_no_success() {
    for url in bucket_urls("jobs-refused") {
        let service = service("cloud-refused");
        // The key is none, and the bucket of Google is one that there is not.
        let env = "env: {AWS_ACCESS_KEY_ID: nobody, AWS_SECRET_ACCESS_KEY: wrong, PHALANX_STORE_RETRY: '1'}";
        fs::write(
            service.folder.join("keys.yaml"),
            format!("phalanx: {{{env}}}\n"),
        )
        .unwrap();
        let url = url.replace("gs://phalanx-test", "gs://phalanx-there-is-none");
        let options = ["--config", "keys.yaml", "--job-dir", url.as_str()];
        service.script("demo", &options, "touch ran");
        let end = service.end("demo");
        assert_eq!(end["state"], "FAILED", "{end:#}");
        let why = end["errorMessage"].as_str().unwrap();
        assert!(
            why.contains("phalanx-t") && !why.contains("wrong\""),
            "{why}"
        );
    }
}

/// The process that copies between a job of this service and its buckets.
fn transfer(service: &Service) -> rustix::process::Pid {
    let is_it = |line: &&String| line.contains("\0transfer\0");
    let processes = service.processes();
    let line = processes.iter().find(is_it);
    let line = line.unwrap_or_else(|| panic!("{processes:?}"));
    let number = line.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
    rustix::process::Pid::from_raw(number).unwrap()
}

#[test]
fn a_job_whose_results_are_left_behind_has_not_succeeded() {
    for url in bucket_urls("jobs-behind") {
        let service = service("cloud-behind");
        let keys = format!("phalanx: {{{}}}\n", secrets(&service.folder));
        fs::write(service.folder.join("keys.yaml"), keys).unwrap();
        let options = ["--config", "keys.yaml", "--job-dir", url.as_str()];
        service.script("demo", &options, "until [ -e go ]; do sleep 0.1; done");
        service.state("demo", "RUNNING");
        let signal = rustix::process::Signal::KILL;
        rustix::process::kill_process(transfer(&service), signal).unwrap();
        fs::write(service.folder.join("go"), "").unwrap();
        let end = service.end("demo");
        let why = end["errorMessage"].as_str().unwrap();
        let said = "did not reach jobDir: the process that copies was killed";
        assert!(end["state"] == "FAILED" && why.contains(said), "{end:#}");
    }
}

#[test]
fn a_training_keeps_its_checkpoints_in_a_bucket_and_another_machine_goes_on() {
    for url in bucket_urls("jobs-training") {
        let first = service("cloud-first");
        let train = |service: &Service, name: &str, epochs: &str| {
            digits::write(&service.folder);
            let keys = format!(
                "phalanx: {{program: examples/digits.yaml, {}}}\n",
                secrets(&service.folder)
            );
            fs::write(service.folder.join("keys.yaml"), keys).unwrap();
            let options = ["--config", "keys.yaml", "--job-dir", url.as_str()];
            let end = ["--", "--epochs", epochs];
            service.ok(&[&["submit", "training", name][..], &options, &end].concat());
            digits::succeeds(service, name);
            service.ok(&["logs", name])
        };
        train(&first, "one", "1");
        let all = names(&url);
        for part in ["history.jsonl", "model/model.json", "logs/one/chief-0.log"] {
            assert!(all.iter().any(|name| name == part), "{part}: {all:?}");
        }
        let is_last =
            |name: &String| name.starts_with("checkpoint/") && name.ends_with("/checkpoint.json");
        assert!(all.iter().any(is_last), "{all:?}");
        let before = text(&url, "history.jsonl");
        assert_eq!(before.lines().count(), 1);
        // Another folder of all jobs stands for another machine: it has nothing but the bucket.
        let second = service("cloud-second");
        let (place, objects) = bucket(&url);
        let put = objects.put(&place.join("deep/er/before"), b"of before".to_vec());
        put.unwrap();
        let logs = train(&second, "two", "2");
        let before_it = second.root().join("jobs/two/results/deep/er/before");
        assert_eq!(fs::read(before_it).unwrap(), b"of before");
        let results = second.root().join("jobs/two/results/history.jsonl");
        assert_eq!(
            fs::read_to_string(results).unwrap().lines().count(),
            2,
            "{logs}"
        );
        // The first epoch is the other machine's, with the seconds that it took there.
        let after = text(&url, "history.jsonl");
        assert_eq!(after.lines().count(), 2, "{after}");
        let first = |lines: &str| -> serde_json::Value {
            serde_json::from_str(lines.lines().next().unwrap()).unwrap()
        };
        assert_eq!(first(&after)["seconds"], first(&before)["seconds"]);
        assert!(!second.root().join("jobs/two/results/checkpoint").exists());
        assert!(!second.root().join("jobs/two/results/logs").exists());
    }
}

/// Has a search of two trials with its results at a URL; gives the job at its end.
fn search(service: &Service, url: &str) -> Json {
    let job = format!(
        "trainingInput: {{jobDir: '{url}', args: [sh, trial.sh], hyperparameters: {{hyperparameterMetricTag: loss, maxTrials: 2, maxParallelTrials: 2,
  algorithm: GRID_SEARCH, params: [{{parameterName: x, type: DISCRETE, discreteValues: [1, 2]}}]}}}}\nphalanx: {{{}}}\n",
        secrets(&service.folder)
    );
    fs::write(service.folder.join("job.yaml"), job).unwrap();
    let script = "echo \"{\\\"loss\\\": ${1#--x=}}\" > $CLOUD_ML_HP_METRIC_FILE\n";
    fs::write(service.folder.join("trial.sh"), script).unwrap();
    service.ok(&["submit", "training", "demo", "--config", "job.yaml"]);
    service.end("demo")
}

#[test]
fn a_search_reads_its_metric_where_results_go_into_a_bucket() {
    for url in bucket_urls("jobs-search") {
        let service = service("cloud-search");
        let end = search(&service, &url);
        assert_eq!(end["state"], "SUCCEEDED", "{end:#}");
        let mut values = Vec::new();
        for number in ["1", "2"] {
            let metric = text(&url, &format!("{number}/hypertune/output.metrics"));
            values.push(metric.trim().to_owned());
            assert!(names(&url).contains(&format!("logs/demo/{number}/chief-0.log")));
        }
        values.sort();
        assert_eq!(values, ["{\"loss\": 1}", "{\"loss\": 2}"]);
    }
}

#[test]
fn a_search_does_not_go_on_from_the_checkpoint_of_another() {
    for url in bucket_urls("jobs-taken") {
        let service = service("cloud-taken");
        let (place, objects) = bucket(&url);
        let put = objects.put(&place.join("1/checkpoint/x"), b"of another".to_vec());
        put.unwrap();
        let end = search(&service, &url);
        let why = end["errorMessage"].as_str().unwrap();
        let said =
            format!("{url}/1, where the results of trial 1 go, has the results of another job");
        assert!(end["state"] == "FAILED" && why.contains(&said), "{end:#}");
        assert!(names(&url).iter().all(|name| !name.contains("taken")));
    }
}
