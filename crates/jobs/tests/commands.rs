//! What users type to watch jobs, and the answer to each mistake in it.

#![cfg(target_os = "linux")]

mod service;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
fn scripts_for_gcloud_print_fields() {
    let service = Service::new("fields");
    service.script("demo", &["--quiet", "--labels", "team=vision"], "echo out");
    service.end("demo");
    let printed = |args: &str| service.ok(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(
        printed("describe demo --format value(state)"),
        "SUCCEEDED\n"
    );
    assert_eq!(
        printed("list --format=value(jobId,labels.team,endedBy)"),
        "demo\tvision\t\n"
    );
    assert_eq!(
        printed("logs demo --format value(task,message)"),
        "chief-0\tout\n"
    );
    // Its words for machines are the words of job files in small letters.
    let given = "submit training tier --scale-tier basic-gpu --format value(state) -- true";
    let state = printed(given);
    let begun = ["QUEUED\n", "PREPARING\n", "RUNNING\n", "SUCCEEDED\n"];
    assert!(begun.contains(&&*state), "{state}");
    let tier = "describe tier --format value(trainingInput.scaleTier)";
    assert_eq!(printed(tier), "BASIC_GPU\n");
    for wrong in ["value(", "value()", "table(state)"] {
        let (code, said) = service.fails(&["list", "--format", wrong]);
        assert!(code == 2 && said.contains("such as value(state)"), "{said}");
    }
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
fn a_reader_that_has_gone_ends_the_logs_and_output_that_is_lost_is_an_error() {
    let service = Service::new("readers");
    let script = "echo first; until [ -e go ]; do sleep 0.05; done; for i in $(seq 600); do echo more; sleep 0.1; done";
    service.script("demo", &[], script);
    let mut command = service.command();
    let command = command.args(["logs", "-f", "demo"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("first") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    drop(lines);
    fs::write(service.folder.join("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(service.job("demo")["state"], "RUNNING");
    for words in [&["list"][..], &["logs", "demo"], &["--help"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = service.command();
        let output = command.args(words).stdout(full.unwrap()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.contains("cannot write to standard output"), "{error}");
    }
    service.ok(&["cancel", "demo"]);
}

#[test]
fn logs_end_while_a_task_writes_on() {
    let service = Service::new("fast");
    service.script("demo", &[], "echo first; exec sleep 1000");
    service.until("demo", |_| service.ok(&["logs", "demo"]).contains("first"));
    let path = service.root().join("jobs/demo/logs/chief-0.log");
    let mut log = fs::OpenOptions::new().append(true).open(path).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let is_over = AtomicBool::new(false);
    let shown = thread::scope(|scope| {
        // In the place of a task that writes faster than its lines are shown.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
                log.write_all(b"more\n").unwrap();
            }
        });
        let shown = service.run(&["logs", "demo"]);
        is_over.store(true, Ordering::Relaxed);
        shown
    });
    assert!(shown.status.success() && Instant::now() < until);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("first"));
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
    // A time that no clock reaches is no time out.
    service.ok(&["wait", "demo", "--timeout", "18446744073709551615"]);
    for (words, part) in [
        (&["update", "demo"][..], "--update-labels"),
        (&["describe", ""], "the name of the job is empty"),
        (&["cancel", ""], "the name of the job is empty"),
        (
            &["update", "demo", "--update-labels", "a=b,a=c"],
            "--update-labels has the key \"a\" twice",
        ),
        (
            &["list", "--filter", "state=FALED"],
            "did you mean `FAILED`?",
        ),
    ] {
        let (code, error) = service.fails(words);
        assert_eq!(code, 2, "{words:?}: {error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn labels_of_a_job_that_changes_meanwhile_are_changed_all_the_same() {
    let service = Service::new("labels");
    service.script("demo", &[], "true");
    service.end("demo");
    let update = |number: u32| {
        let mut command = service.command();
        command.args([
            "update",
            "demo",
            "--update-labels",
            &format!("l{number}={number}"),
        ]);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..8).map(update).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let job = service.job("demo");
    assert_eq!(job["labels"].as_object().unwrap().len(), 8, "{job:#}");
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

#[test]
fn every_mistake_of_a_submission_is_said_at_once() {
    let service = Service::new("mistakes");
    let config = "trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-4
  masterConfig:
    diskConfig: {bootDiskType: pd-sdd, bootDiskSize: 10}
  schedulin: {priority: 1}
";
    fs::write(service.folder.join("job.yaml"), config).unwrap();
    let words = "submit training 1st --config job.yaml --dry-run --kms-keyring ring -- true";
    let (code, error) = service.fails(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(code, 2);
    for expected in [
        "\"1st\" is no name of a job",
        "job.yaml:5:32: trainingInput.masterConfig.diskConfig.bootDiskType",
        "did you mean `pd-ssd`?",
        "job.yaml:5:40: trainingInput.masterConfig.diskConfig has no field \"bootDiskSize\"; did you mean `bootDiskSizeGb`?",
        "job.yaml:6:3: trainingInput has no field \"schedulin\"; did you mean `scheduling`?",
        "--kms-keyring: trainingInput.encryptionConfig cannot be honoured",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(error.lines().count(), 5, "{error}");
}

#[test]
fn what_is_missing_is_no_mistake_of_another_flag() {
    let service = Service::new("missing");
    fs::write(
        service.folder.join("job.yaml"),
        "trainingInput: {scaleTier: CUSTM, masterType: n1-standard-4, workerCount: 1, workerType: n1-standard-4}",
    )
    .unwrap();
    for (words, expected) in [
        (
            "--config job.yaml",
            "job.yaml:1:28: trainingInput.scaleTier is the text \"CUSTM\"",
        ),
        ("--job-dir=", "--job-dir: trainingInput.jobDir is empty"),
        (
            "--region r --scale-tier CUSTOM",
            "--scale-tier: scaleTier CUSTOM needs",
        ),
        (
            "--region r --to kubernetes",
            "error: pods of Kubernetes need an image",
        ),
    ] {
        let words = format!("submit training demo {words} --dry-run -- true");
        let (code, error) = service.fails(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(code, 2);
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn what_a_job_needs_and_is_not_there_is_said_before_it_is_submitted() {
    let service = Service::new("needs");
    fs::create_dir(service.folder.join("folder")).unwrap();
    let secret = |file: &str| format!("phalanx: {{secrets: {{KEY: {file}}}}}\n");
    let plain = || "trainingInput: {}\n".to_owned();
    for (config, words, expected) in [
        (
            plain(),
            "trian --epochs 3",
            "the program \"trian\" is in none of the folders of PATH",
        ),
        (plain(), "./trian", "trian is not there"),
        (
            secret("key.txt"),
            "true",
            "the secret KEY cannot be read from ",
        ),
        (secret("folder"), "true", "folder: it is a folder"),
    ] {
        fs::write(service.folder.join("job.yaml"), config).unwrap();
        for dry_run in ["", " --dry-run"] {
            let words = format!("submit training demo --config job.yaml{dry_run} -- {words}");
            let (code, error) = service.fails(&words.split(' ').collect::<Vec<_>>());
            assert_eq!(code, 3, "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
    let slurm = "submit training demo --to slurm --dry-run -- trian";
    service.ok(&slurm.split(' ').collect::<Vec<_>>());
    assert_eq!(listed(&service, &[]), Vec::<String>::new());
}

#[test]
fn the_plan_says_what_follows_where_nothing_is_given() {
    let service = Service::new("origins");
    let config = "trainingInput: {scheduling: {maxRunningTime: 600s}}\n";
    fs::write(service.folder.join("job.yaml"), config).unwrap();
    let words = "submit training demo --config job.yaml --dry-run --format json -- true";
    let plan = service.ok(&words.split(' ').collect::<Vec<_>>());
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let values = plan["values"].as_array().unwrap();
    let of = |key: &str| {
        let found: Vec<_> = values.iter().filter(|value| value["key"] == key).collect();
        assert_eq!(found.len(), 1, "{key}: {plan:#}");
        let word = |name: &str| found[0][name].as_str().unwrap().to_owned();
        (word("value"), word("origin"))
    };
    for (key, value) in [
        ("trainingInput.jobDir", "\"runs/demo\""),
        ("trainingInput.scheduling.maxWaitTime", "\"without bound\""),
        ("trainingInput.useChiefInTfConfig", "true"),
        ("phalanx.restarts", "3"),
    ] {
        assert_eq!(of(key), (value.to_owned(), "default".to_owned()));
    }
    let (value, origin) = of("trainingInput.scheduling.maxRunningTime");
    assert_eq!(value, "\"600s\"");
    assert!(origin.contains("job.yaml:1"), "{origin}");
}

#[test]
fn slurm_is_asked_for_the_memory_of_all_tasks_of_a_node() {
    let service = Service::new("memory");
    let config = "phalanx: {executor: slurm, workers: 4, memory: 2GiB, slurm: {nodes: 2}}\n";
    fs::write(service.folder.join("job.yaml"), config).unwrap();
    let words = "submit training demo --config job.yaml --dry-run -- true";
    let plan = service.ok(&words.split(' ').collect::<Vec<_>>());
    assert!(plan.contains("#SBATCH --mem=4096M\n"), "{plan}");
}

#[test]
fn a_description_says_where_more_is_shown_beside_what_programs_read() {
    let service = Service::new("more");
    service.script("demo", &[], "true");
    service.end("demo");
    let output = service.run(&["describe", "demo"]);
    let (out, more) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        out.contains("jobId: demo") && !out.contains("http:"),
        "{out}"
    );
    assert!(
        more.contains("/#demo\n") && more.contains("$ phalanx jobs logs -f demo"),
        "{more}"
    );
    assert!(!more.contains("token"), "{more}");
    let json = service.run(&["describe", "demo", "--format", "json"]);
    assert!(json.stderr.is_empty());
}

#[test]
fn the_plan_says_which_accelerators_and_images_tasks_get() {
    let service = Service::new("accelerators");
    let plan = |words: &str| {
        let words = format!("submit training demo --dry-run {words}");
        service.run(&words.split(' ').collect::<Vec<_>>())
    };
    let gpu = "--scale-tier CUSTOM --master-machine-type n1-standard-8 --master-accelerator type=nvidia-tesla-t4,count=2 --master-image-uri img:1";
    for (executor, notice) in [
        ("local", "tasks get this number of the GPUs of this machine"),
        ("slurm", "tasks get this number of the GPUs"),
        ("kubernetes", "pods get the GPUs"),
    ] {
        let output = plan(&format!("--to {executor} {gpu}"));
        let (text, notes) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            text.contains("8 processors, 30.0 GiB, 2 GPUs, image img:1"),
            "{text}{notes}"
        );
        assert!(notes.contains(notice), "{notes}");
        let output = plan(&format!(
            "--to {executor} --scale-tier BASIC_TPU --master-image-uri i"
        ));
        let notes = String::from_utf8_lossy(&output.stderr);
        if executor == "local" {
            let notice = "a program finds the TPUs of this machine itself";
            assert!(output.status.success() && notes.contains(notice), "{notes}");
            assert!(!notes.contains("GPUs of this machine"), "{notes}");
        } else {
            assert_eq!(output.status.code(), Some(2));
            let refused = format!("asks for TPU_V2, and a job on {executor} gets GPUs only");
            assert!(notes.contains(&refused), "{notes}");
        }
    }
}

#[test]
fn pods_write_into_the_bucket_and_not_into_a_folder_of_this_machine() {
    let service = Service::new("pods-bucket");
    let plan = |executor: &str| {
        let words = format!(
            "submit training demo --to {executor} --master-image-uri i --job-dir s3://bucket/run --dry-run -- true"
        );
        let plan = service.ok(&words.split(' ').collect::<Vec<_>>());
        let (_, preview) = plan.split_once("would be given").unwrap();
        preview
            .replace('\\', "")
            .contains("s3://bucket/run/hypertune")
    };
    assert!(plan("kubernetes") && !plan("slurm"));
}

#[test]
fn slurm_is_given_what_the_job_says_of_it() {
    let service = Service::new("slurm-keys");
    let plan = |value: &str| {
        let keys = ["partition", "account", "qos", "constraint", "reservation"];
        let all: Vec<String> = keys
            .iter()
            .map(|key| format!("{key}: '{value}-{key}'"))
            .collect();
        let config = format!(
            "phalanx: {{executor: slurm, slurm: {{{}}}}}\n",
            all.join(", ")
        );
        fs::write(service.folder.join("config.yaml"), config).unwrap();
        let words = "submit training demo --config config.yaml --dry-run -- true";
        (keys, service.run(&words.split(' ').collect::<Vec<_>>()))
    };
    let (keys, output) = plan("a");
    let script = String::from_utf8_lossy(&output.stdout);
    for key in keys {
        let line = format!("\n#SBATCH --{key}=a-{key}\n");
        assert!(script.contains(&line), "{script}");
    }
    let (keys, output) = plan("a b");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    for key in keys {
        assert!(said.contains(&format!("{key} is \"a b-{key}\"")), "{said}");
    }
}

#[test]
fn pods_are_given_what_the_job_says_of_their_nodes() {
    let service = Service::new("pod-keys");
    let plan = |keys: &str| {
        let config = format!("phalanx: {{workers: 2, kubernetes: {{image: i{keys}}}}}\n");
        fs::write(service.folder.join("config.yaml"), config).unwrap();
        let words = "submit training demo --to kubernetes --config config.yaml --dry-run --format json -- true";
        let plan = service.ok(&words.split(' ').collect::<Vec<_>>());
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let preview = plan["preview"].as_str().unwrap().to_owned();
        let words: Vec<&str> = preview.split_whitespace().collect();
        words.join(" ").replace(['"', '\''], "")
    };
    let keys = ", nodeSelector: {spot: true}, imagePullSecrets: [registry], tolerations: [{key: spot, value: on, effect: NoExecute, tolerationSeconds: 60}, {operator: Exists}]";
    let (all, none) = (plan(keys), plan(""));
    for (field, text) in [
        ("nodeSelector", "nodeSelector: spot: true"),
        ("imagePullSecrets", "imagePullSecrets: - name: registry"),
        (
            "tolerations",
            "tolerations: - effect: NoExecute key: spot operator: Equal tolerationSeconds: 60 value: on - operator: Exists",
        ),
    ] {
        assert_eq!(all.matches(text).count(), 2, "{text}: {all}");
        assert!(!none.contains(field), "{none}");
    }
}
