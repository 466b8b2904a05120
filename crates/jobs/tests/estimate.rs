//! What a job would take, as `--dry-run` shows it.

#![cfg(target_os = "linux")]

mod digits;
mod service;

use std::fs;

use serde_json::{Value as Json, json};
use service::Service;

const JOB: &str = "trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-4
  workerType: n1-highmem-8
  workerCount: 2
phalanx: {program: examples/digits.yaml, executor: slurm}
";
const PRICES: &str = "currency: EUR
machines:
  n1-standard-4: {hour: 0.5, flops: 1e9}
  n1-highmem-8: {hour: 1.0, flops: 2e9}
here: {hour: 0.25, flops: 5e8}
";

fn dry_run(service: &Service, options: &[&str], args: &[&str]) -> Json {
    let start = [
        "submit",
        "training",
        "demo",
        "--dry-run",
        "--format",
        "json",
        "--config",
        "job.yaml",
    ];
    let plan = service.ok(&[&start, options, &["--"], args].concat());
    serde_json::from_str::<Json>(&plan).unwrap()["estimate"].clone()
}

/// A service whose folder has the job, the training file and the prices; none where there is no program to estimate with.
fn service(name: &str) -> Option<Service> {
    if !digits::can_train() {
        return None;
    }
    let service = Service::new(name);
    digits::write(&service.folder);
    fs::write(service.folder.join("job.yaml"), JOB).unwrap();
    fs::write(service.folder.join("prices.yaml"), PRICES).unwrap();
    Some(service)
}

#[test]
fn a_training_file_that_cannot_be_trained_is_refused_at_submission() {
    let Some(service) = service("untrainable") else {
        return;
    };
    let good = fs::read_to_string(service.folder.join("examples/digits.yaml")).unwrap();
    let line = good.lines().find(|line| line.contains("csv:")).unwrap();
    for (name, text) in [
        ("good", good.clone()),
        ("broken", "a: [1".to_owned()),
        ("field", good.replace("epochs:", "epoch:")),
        ("data", good.replace(line, "  csv: none.csv")),
    ] {
        fs::write(service.folder.join(format!("examples/{name}.yaml")), text).unwrap();
    }
    for (words, said) in [
        ("examples/broken.yaml", "this is not yaml"),
        ("examples/field.yaml", "did you mean `epochs`?"),
        ("examples/data.yaml", "cannot open"),
        (
            "examples/good.yaml --nonsense",
            "unexpected argument '--nonsense' found",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let start = ["submit", "training", "demo", "--"];
        let (code, error) = service.fails(&[&start[..], &words].concat());
        assert!(code == 2 && error.contains(said), "{words:?}: {error}");
        // Other machines may have what this one has not.
        let start = [
            "submit",
            "training",
            "demo",
            "--to",
            "slurm",
            "--dry-run",
            "--",
        ];
        let output = service.run(&[&start[..], &words].concat());
        let notes = String::from_utf8_lossy(&output.stderr);
        let note = "note: on this machine the training would not start: ";
        assert!(output.status.success() && notes.contains(note), "{notes}");
    }
    let words = ["examples/good.yaml", "--epochs", "1", "--progress", "plain"];
    service.ok(&[&["submit", "training", "demo", "--"], &words[..]].concat());
    digits::succeeds(&service, "demo");
}

#[test]
fn a_training_file_is_read_with_the_variables_of_its_tasks() {
    let script =
        "[ \"$KEY in $PLACE\" = 'opener in bucket' ] || { echo 'error: no key' >&2; exit 2; }
[ $1 = train ] || echo '{\"event\": \"estimate\", \"total_bytes\": 5}'";
    let service = Service::new("variables").with_phalanx(script);
    fs::write(service.folder.join("train.yaml"), "").unwrap();
    fs::write(service.folder.join("key.txt"), "opener\n").unwrap();
    let write = |keys: &str| {
        let keys = format!("phalanx: {{{keys}}}\n");
        fs::write(service.folder.join("job.yaml"), keys).unwrap();
    };
    write("env: {PLACE: bucket}, secrets: {KEY: key.txt}");
    assert_eq!(dry_run(&service, &[], &["train.yaml"])["memoryBytes"], 5);
    for keys in ["env: {PLACE: bucket}", "secrets: {KEY: key.txt}"] {
        write(keys);
        let words = "submit training demo --config job.yaml -- train.yaml";
        let (code, error) = service.fails(&words.split(' ').collect::<Vec<_>>());
        assert!(code == 2 && error.contains("no key"), "{error}");
    }
}

#[test]
fn a_plan_is_of_the_file_in_the_package_that_the_job_names() {
    let script = "[ $1 = train ] || echo \"{\\\"event\\\": \\\"estimate\\\", \\\"total_bytes\\\": $(cat $2)}\"";
    let service = Service::new("named-package").with_phalanx(script);
    let packaged = service.folder.join("code/train.yaml");
    fs::create_dir(packaged.parent().unwrap()).unwrap();
    fs::write(service.folder.join("train.yaml"), "1").unwrap();
    fs::write(&packaged, "7").unwrap();
    let words = "submit training demo --dry-run --format json --packages code -- train.yaml";
    let plan = service.ok(&words.split(' ').collect::<Vec<_>>());
    let plan: Json = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["estimate"]["memoryBytes"], 7, "{plan:#}");
    let file = packaged.display().to_string();
    assert_eq!(plan["tasks"][0]["command"][2], file, "{plan:#}");
}

#[test]
fn memory_time_and_cost_are_estimated_from_flops_and_prices() {
    let Some(service) = service("estimate") else {
        return;
    };
    let estimate = dry_run(
        &service,
        &["--prices", "prices.yaml"],
        &["--epochs", "3", "--steps-per-epoch", "10"],
    );
    let number = |name: &str| {
        estimate[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {estimate:#}"))
    };
    assert_eq!(
        (number("steps"), &estimate["fits"]),
        (30.0, &Json::from(true)),
        "{estimate:#}"
    );
    assert_eq!(number("memoryThereBytes"), 15.0 * f64::from(1 << 30));
    assert!(
        number("memoryBytes") > 1e5 && number("memoryBytes") < 1e8,
        "{estimate:#}"
    );
    // Three trainers compute 5e9 FLOPs of a second together, and cost 2.5 an hour.
    let seconds = 30.0 * number("stepFlops") / 5e9;
    assert!(number("stepFlops") > 1e7);
    assert!(
        (number("seconds") - seconds).abs() < 1e-9 * seconds,
        "{estimate:#}"
    );
    let cost = 2.5 * seconds / 3600.0;
    assert!((number("cost") - cost).abs() < 1e-9 * cost, "{estimate:#}");
    assert_eq!(estimate["currency"], "EUR");
}

#[test]
fn workers_share_a_batch_unless_its_size_is_each_replicas() {
    // Ten bytes a row, as the event of this file says how many they are.
    let script = "[ $1 != train ] || exit 0
[ \"$5\" != --batch-size ] || { echo \"{\\\"event\\\": \\\"estimate\\\", \\\"total_bytes\\\": $((10 * $6))}\"; exit; }
cat $2";
    let service = Service::new("replicas").with_phalanx(script);
    fs::write(service.folder.join("job.yaml"), "phalanx: {workers: 4}").unwrap();
    let estimate = |per_replica: bool, steps: Option<u64>, args: &[&str]| {
        let event = json!({"event": "estimate", "batch_size": 64, "total_bytes": 640, "flops": 1000, "epochs": 2,
            "per_replica": per_replica, "steps_per_epoch": steps, "batches": 41});
        fs::write(service.folder.join("train.yaml"), event.to_string()).unwrap();
        let all = dry_run(&service, &[], &[&["train.yaml"], args].concat());
        ["memoryBytes", "stepFlops", "steps"].map(|name| all[name].as_u64().unwrap())
    };
    assert_eq!(estimate(false, None, &[]), [160, 1000, 82]);
    // Four times as many rows in a step, and a fourth of the steps.
    assert_eq!(estimate(true, None, &[]), [640, 4000, 22]);
    assert_eq!(estimate(true, Some(10), &[]), [640, 4000, 20]);
    for (steps, all) in [("20", 40), ("100", 200)] {
        let args = ["--steps-per-epoch", steps];
        assert_eq!(estimate(false, Some(10), &args), [160, 1000, all]);
    }
}

#[test]
fn trials_at_the_same_time_share_this_machine_and_its_price() {
    let Some(service) = service("estimate-trials") else {
        return;
    };
    let job = "trainingInput:
  hyperparameters:
    hyperparameterMetricTag: loss
    maxTrials: 4
    maxParallelTrials: 2
    params: [{parameterName: fit.seed, type: DISCRETE, discreteValues: [1]}]
phalanx: {program: examples/digits.yaml}
";
    fs::write(service.folder.join("job.yaml"), job).unwrap();
    let estimate = dry_run(
        &service,
        &["--prices", "prices.yaml", "--measure"],
        &["--epochs", "1"],
    );
    let number = |name: &str| {
        let number = estimate[name].as_f64().filter(|number| *number > 0.0);
        number.unwrap_or_else(|| panic!("{name}: {estimate:#}"))
    };
    // Two after two, each half as fast: this machine works for as long as for four in turn, and is paid for that.
    let trial = number("stepSeconds") * number("steps");
    assert!((number("seconds") / trial - 2.0).abs() < 1e-9);
    let cost = 0.25 * number("seconds") / 3600.0;
    assert!((number("cost") / cost - 1.0).abs() < 1e-9, "{estimate:#}");
}

#[test]
fn what_has_no_price_is_named_in_an_estimate() {
    let Some(service) = service("estimate-no-price") else {
        return;
    };
    let whole = dry_run(
        &service,
        &[],
        &["--set", "fit.batch_size=64", "--epochs", "2"],
    );
    assert_eq!(whole["steps"], 2 * 1293_u64.div_ceil(64), "{whole:#}");
    assert!(whole["seconds"].is_null(), "{whole:#}");

    fs::write(
        service.folder.join("job.yaml"),
        JOB.replace("n1-highmem-8", "n1-highmem-16"),
    )
    .unwrap();
    let missing = dry_run(
        &service,
        &["--prices", "prices.yaml", "--measure"],
        &["--epochs", "1"],
    );
    assert_eq!(
        missing["noCost"], "there is no price of n1-highmem-16",
        "{missing:#}"
    );
    assert!(missing["seconds"].as_f64().unwrap() > 0.0, "{missing:#}");
    fs::write(
        service.folder.join("prices.yaml"),
        "machines: {a: {hour: -1}}",
    )
    .unwrap();
    let (code, error) = service.fails(&[
        "submit",
        "training",
        "demo",
        "--dry-run",
        "--config",
        "job.yaml",
        "--prices",
        "prices.yaml",
    ]);
    assert!(code == 2 && error.contains("-1 is no price"), "{error}");
}

#[test]
fn what_is_no_training_file_is_not_estimated() {
    let service = Service::new("program");
    let plan = service.ok(&["submit", "training", "demo", "--dry-run", "--", "true"]);
    assert!(
        plan.contains("only a training file (train.yaml) is estimated"),
        "{plan}"
    );
}
