//! Searches over hyperparameters, with shell scripts as trainings.

#![cfg(target_os = "linux")]

mod service;

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;
use service::Service;

/// The squared distance of --x from 3, as the file that Google's `cloudml-hypertune` writes.
const SCRIPT: &str =
    "for a; do case $a in --x=*) x=${a#--x=};; --kind=*) kind=${a#--kind=};; esac; done
v=$(awk \"BEGIN {print ($x - 3) ^ 2}\")
echo \"trial $CLOUD_ML_TRIAL_ID x $x\"
[ \"$kind\" != bad ] || exit 1
echo \"{\\\"global_step\\\": \\\"1\\\", \\\"loss\\\": \\\"$v\\\"}\" >> $CLOUD_ML_HP_METRIC_FILE";

fn config(extra: &str) -> String {
    format!(
        "trainingInput:
  jobDir: results
  args: [\"sh\", \"script.sh\"]
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: loss
    maxTrials: 16
    maxParallelTrials: 4
    params:
    - {{parameterName: x, type: DOUBLE, minValue: 0, maxValue: 10, scaleType: UNIT_LINEAR_SCALE}}
{extra}"
    )
}

/// Runs the search of a job file to its end, whatever that is.
fn search(service: &Service, config: &str) -> Json {
    fs::write(service.folder.join("script.sh"), SCRIPT).unwrap();
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    service.ok(&["submit", "training", "demo", "--config", "config.yaml"]);
    service.end("demo")
}

/// Runs a search for the loss of a script by `phalanx tune`, with options.
fn tune(service: &Service, script: &str, options: &str) -> Output {
    fs::write(service.folder.join("script.sh"), script).unwrap();
    let words = format!("tune {options} --metric loss -- sh script.sh");
    let output = service.run(&words.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output
}

fn trials(job: &Json) -> Vec<Json> {
    job["trainingOutput"]["trials"].as_array().unwrap().clone()
}

#[test]
fn a_search_waits_for_room_on_the_disk() {
    let service = Service::new("search-full");
    let script = "echo $CLOUD_ML_TRIAL_ID >> started; until [ -e go ]; do sleep 0.05; done
echo '{\"global_step\": \"1\", \"loss\": \"1\"}' >> $CLOUD_ML_HP_METRIC_FILE";
    fs::write(service.folder.join("script.sh"), script).unwrap();
    let trials = config("")
        .replace("16", "2")
        .replace("Trials: 4", "Trials: 1");
    fs::write(service.folder.join("config.yaml"), trials).unwrap();
    service.ok(&["submit", "training", "demo", "--config", "config.yaml"]);
    let started = || fs::read_to_string(service.folder.join("started")).unwrap_or_default();
    service.until("demo", |_| !started().is_empty());
    service.without_log("demo", || {
        fs::write(service.folder.join("go"), "").unwrap();
        thread::sleep(Duration::from_secs(2));
        assert_eq!(started(), "1\n");
    });
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let all = &job["trainingOutput"]["trials"];
    assert_eq!(
        [&all[0]["state"], &all[1]["state"]],
        ["SUCCEEDED"; 2],
        "{job:#}"
    );
    // The first was not lost, to be run once more.
    assert_eq!(started(), "1\n2\n");
}

#[test]
fn trials_run_in_parallel_with_values_of_their_own() {
    let service = Service::new("search");
    let job = search(&service, &config(""));
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let all = trials(&job);
    assert_eq!(all.len(), 16);
    assert_eq!(job["trainingOutput"]["completedTrialCount"], "16");
    for trial in &all {
        let number = trial["trialId"].as_str().unwrap();
        let x: f64 = trial["hyperparameters"]["x"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let value = trial["finalMetric"]["objectiveValue"].as_f64().unwrap();
        assert!((value - (x - 3.0).powi(2)).abs() < 1e-3, "{trial}");
        let log = fs::read_to_string(
            service
                .root()
                .join(format!("jobs/demo/logs/{number}/chief-0.log")),
        )
        .unwrap();
        assert!(log.contains(&format!("trial {number} x {x}")), "{log}");
        assert!(
            service
                .folder
                .join(format!("results/{number}/hypertune/output.metrics"))
                .is_file()
        );
    }
    // Which values are tried depends on which trials end first, so how near the best one comes is tested where the search is.
    // A search that goes on from this one knows its trials, and tries none of them again; the numbers go on, too.
    let again = config("    resumePreviousJobId: demo\n").replace("maxTrials: 16", "maxTrials: 2");
    fs::write(service.folder.join("again.yaml"), again).unwrap();
    service.ok(&["submit", "training", "again", "--config", "again.yaml"]);
    let more = trials(&service.end("again"));
    let numbers: Vec<&Json> = more.iter().map(|trial| &trial["trialId"]).collect();
    assert_eq!(numbers, ["17", "18"]);
    for trial in &more {
        assert!(
            all.iter()
                .all(|other| other["hyperparameters"] != trial["hyperparameters"])
        );
    }
    // Another one in the same folder would be given the values of these.
    service.ok(&["submit", "training", "other", "--config", "config.yaml"]);
    let other = service.end("other");
    assert_eq!(other["state"], "FAILED", "{other:#}");
    let why = other["errorMessage"].as_str().unwrap();
    assert!(why.starts_with("results/1,"), "{why}");
}

#[test]
fn a_search_knows_the_trials_of_all_searches_before_it() {
    let service = Service::new("search-chain");
    let grid = config("    algorithm: GRID_SEARCH\n")
        .replace(
            "type: DOUBLE, minValue: 0, maxValue: 10, scaleType: UNIT_LINEAR_SCALE",
            "type: DISCRETE, discreteValues: [1, 2, 3, 4, 5, 6]",
        )
        .replace("maxTrials: 16", "maxTrials: 2");
    let mut values: Vec<String> = Vec::new();
    let mut add = |job: &Json| {
        let x = |trial: &Json| trial["hyperparameters"]["x"].to_string();
        values.extend(trials(job).iter().map(x));
    };
    add(&search(&service, &grid));
    for (name, before) in [("second", "demo"), ("third", "second")] {
        let more = format!("{grid}    resumePreviousJobId: {before}\n");
        fs::write(service.folder.join("more.yaml"), more).unwrap();
        service.ok(&["submit", "training", name, "--config", "more.yaml"]);
        add(&service.end(name));
    }
    values.sort();
    let all = ["1", "2", "3", "4", "5", "6"].map(|x| format!("\"{x}\""));
    assert_eq!(values, all);
}

#[test]
fn failed_trials_end_a_search_when_there_are_as_many_as_it_allows() {
    let service = Service::new("failed");
    let kinds = "    - {parameterName: kind, type: CATEGORICAL, categoricalValues: [good, bad]}\n    algorithm: GRID_SEARCH\n    maxFailedTrials: 2\n";
    let grid = config(kinds)
        .replace(
            "type: DOUBLE, minValue: 0, maxValue: 10, scaleType: UNIT_LINEAR_SCALE",
            "type: DISCRETE, discreteValues: [1, 2, 3, 4]",
        )
        .replace("maxParallelTrials: 4", "maxParallelTrials: 1");
    let job = search(&service, &grid);
    assert_eq!(job["state"], "FAILED", "{job:#}");
    let states: Vec<Json> = trials(&job)
        .iter()
        .map(|trial| trial["state"].clone())
        .collect();
    assert_eq!(states, ["SUCCEEDED", "FAILED", "SUCCEEDED", "FAILED"]);
    assert_eq!(job["phalanx"]["firstFailure"]["task"], "4/chief-0");
}

#[test]
fn tune_prints_the_trials_with_the_best_first() {
    let service = Service::new("tune");
    let options = "--search x=1,2,3,4 --minimize --trials 4 --parallel 2";
    let table = String::from_utf8(tune(&service, SCRIPT, options).stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(
        lines[0].starts_with("TRIAL  STATE") && lines[0].contains("loss"),
        "{table}"
    );
    assert!(lines[1].ends_with("  0.0000  3"), "{table}");
}

#[test]
fn a_trial_that_diverged_has_failed_whatever_it_told_before() {
    let service = Service::new("search-diverged");
    let script = "say() { echo \"{\\\"global_step\\\": \\\"$1\\\", \\\"loss\\\": \\\"$2\\\"}\" >> $CLOUD_ML_HP_METRIC_FILE; }
case $1 in --x=1) say 1 0.1; say 2 nan;; *) say 1 0.5;; esac";
    tune(&service, script, "--name demo --search x=1,2 --trials 2");
    let all = trials(&service.job("demo"));
    let of = |x: &str| {
        let is_it = |trial: &&Json| trial["hyperparameters"]["x"] == x;
        all.iter().find(is_it).unwrap()
    };
    assert_eq!(of("1")["state"], "FAILED", "{all:#?}");
    assert_eq!(of("1")["finalMetric"], Json::Null, "{all:#?}");
    assert_eq!(of("2")["state"], "SUCCEEDED", "{all:#?}");
}

#[test]
fn the_first_start_of_a_later_trial_is_no_restart() {
    let service = Service::new("trial-counts");
    let script =
        "echo $CLOUD_ML_TRIAL_ID $PHALANX_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT >> counts
[ $CLOUD_ML_TRIAL_ID-$PHALANX_RESTART_COUNT != 2-0 ] || exit 143
echo '{\"loss\": \"1\"}' >> $CLOUD_ML_HP_METRIC_FILE";
    tune(&service, script, "--search x=1,2,3 --trials 3 --parallel 1");
    let counts = fs::read_to_string(service.folder.join("counts")).unwrap();
    assert_eq!(counts, "1 0 0\n2 0 0\n2 1 1\n3 0 0\n");
}

#[test]
fn a_list_of_values_has_no_empty_one_and_no_scale() {
    let service = Service::new("values");
    for values in ["16,32,", "", ",a", "0.001,0.01:log", "a:log,b"] {
        let search = format!("x={values}");
        let words = [
            "tune",
            "--search",
            &search,
            "--metric",
            "loss",
            "--dry-run",
            "--",
            "true",
        ];
        let (code, error) = service.fails(&words);
        assert!(
            code == 2 && error.contains("LEAST..MOST, and :log behind a range"),
            "{error}"
        );
    }
}

#[test]
fn a_trial_that_failed_is_not_the_best() {
    let service = Service::new("failed-best");
    let script = format!("{SCRIPT}\n[ $CLOUD_ML_TRIAL_ID != 1 ]\n");
    let options = "--search x=3 --minimize --trials 2 --parallel 1";
    let table = String::from_utf8(tune(&service, &script, options).stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[1].starts_with("2 ") && lines[1].contains("0.0000"),
        "{table}"
    );
    assert!(
        lines[2].starts_with("1 ") && !lines[2].contains("0.0000"),
        "{table}"
    );
}

/// The processors of each of two trials at the same time.
fn processors_of_two_trials(service: &Service) -> Vec<String> {
    // Each trial waits for the other, so that neither has the other's place.
    let script = "touch here$CLOUD_ML_TRIAL_ID
until [ -e here1 ] && [ -e here2 ]; do sleep 0.1; done
grep Cpus_allowed_list /proc/self/status > cpus$CLOUD_ML_TRIAL_ID
echo \"{\\\"loss\\\": 1}\" >> $CLOUD_ML_HP_METRIC_FILE\n";
    let options = "--name demo --search x=1,2 --trials 2 --parallel 2";
    tune(service, script, options);
    let of = |number: u32| {
        let text = fs::read_to_string(service.folder.join(format!("cpus{number}"))).unwrap();
        text.split_whitespace().last().unwrap().to_owned()
    };
    (1..=2).map(of).collect()
}

#[test]
fn trials_at_the_same_time_have_processors_of_their_own() {
    let count = thread::available_parallelism().unwrap().get();
    if count < 2 {
        phalanx_testkit::skip("this machine has one processor");
        return;
    }
    let service = Service::new("lanes");
    let lists = processors_of_two_trials(&service);
    let [one, other] = [numbers(&lists[0]), numbers(&lists[1])];
    assert!(!one.is_empty() && one.is_disjoint(&other), "{lists:?}");
}

/// The numbers of a list such as `0-2,5`.
fn numbers(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| -> std::ops::RangeInclusive<usize> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse().unwrap()..=to.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

#[test]
fn trials_that_do_not_fit_into_memory_run_one_after_the_other() {
    let service = Service::new("memory");
    // No two can be there: each takes most of what there is, whatever machine this is.
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let all: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let keys = format!("phalanx: {{memory: {}KiB}}\n", all / 4 * 3);
    fs::write(service.folder.join("memory.yaml"), keys).unwrap();
    // A trial that finds another in its place says so for ever.
    let script = "mkdir alone || touch together; sleep 0.3
[ -e alone ] && rmdir alone
echo \"{\\\"loss\\\": 1}\" >> $CLOUD_ML_HP_METRIC_FILE\n";
    let options = "--config memory.yaml --search x=1,2,3,4 --trials 4 --parallel 4";
    let output = tune(&service, script, options);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("1 of 4 trials run at the same time"),
        "{said}"
    );
    assert!(
        !service.folder.join("together").exists(),
        "two trials ran at the same time"
    );
}

/// A trial that tells its value, and ends well on SIGTERM.
const SAVES: &str = "for a; do case $a in --x=*) x=${a#--x=};; esac; done
echo \"{\\\"global_step\\\": \\\"1\\\", \\\"loss\\\": \\\"$x\\\"}\" >> $CLOUD_ML_HP_METRIC_FILE
trap 'exit 0' TERM; [ $x != 9 ] || { echo up > up; while :; do sleep 0.05; done; }";

/// A search through a list of values, one after the other.
fn list_config(values: &str, extra: &str) -> String {
    let range = "type: DOUBLE, minValue: 0, maxValue: 10, scaleType: UNIT_LINEAR_SCALE";
    let list = format!("type: DISCRETE, discreteValues: [{values}]");
    let all = config(&format!("    algorithm: GRID_SEARCH\n{extra}"));
    all.replace(range, &list).replace("Trials: 4", "Trials: 1")
}

#[test]
fn a_trial_that_is_ended_early_is_said_to_be_though_it_ends_well() {
    let service = Service::new("search-early");
    fs::write(service.folder.join("script.sh"), SAVES).unwrap();
    let early = list_config("1, 2, 3, 9", "    enableTrialEarlyStopping: true\n");
    fs::write(service.folder.join("config.yaml"), early).unwrap();
    service.ok(&["submit", "training", "demo", "--config", "config.yaml"]);
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let early: Vec<bool> = trials(&job)
        .iter()
        .map(|trial| trial["isTrialStoppedEarly"] == true)
        .collect();
    assert_eq!(early, [false, false, false, true], "{job:#}");
}

#[test]
fn a_trial_that_is_cancelled_has_no_result_and_is_run_again_by_the_next_search() {
    let service = Service::new("search-cancel");
    fs::write(service.folder.join("script.sh"), SAVES).unwrap();
    let submit = |name: &str, extra: &str| {
        fs::write(service.folder.join("config.yaml"), list_config("9", extra)).unwrap();
        service.ok(&["submit", "training", name, "--config", "config.yaml"]);
        service.until(name, |_| service.folder.join("up").exists());
        service.ok(&["cancel", name]);
        let job = service.end(name);
        assert_eq!(job["state"], "CANCELLED", "{job:#}");
        fs::remove_file(service.folder.join("up")).unwrap();
        trials(&job)
    };
    for (name, number, extra) in [
        ("demo", "1", ""),
        ("again", "2", "    resumePreviousJobId: demo\n"),
    ] {
        let all = submit(name, extra);
        assert_eq!(all.len(), 1, "{all:?}");
        let trial = &all[0];
        assert_eq!(
            [&trial["state"], &trial["trialId"]],
            ["CANCELLED", number],
            "{trial}"
        );
        assert!(trial["finalMetric"].is_null(), "{trial}");
        assert_eq!(trial["allMetrics"][0]["objectiveValue"], 9.0, "{trial}");
    }
    fs::write(
        service.folder.join("config.yaml"),
        list_config("9", "    resumePreviousJobId: dmo\n"),
    )
    .unwrap();
    let (code, why) = service.fails(&["submit", "training", "third", "--config", "config.yaml"]);
    assert!(
        code == 2 && why.contains("there is no search of that name"),
        "{why}"
    );
}

#[test]
fn a_search_that_cannot_write_its_results_says_so_at_its_first_trial() {
    let service = Service::new("search-unwritable");
    // In the place of a folder that is read-only: root writes into those that are closed.
    std::os::unix::fs::symlink("/proc/none", service.folder.join("results")).unwrap();
    let one = config("").replace("Trials: 4", "Trials: 1");
    let job = search(&service, &one);
    assert_eq!(job["state"], "FAILED", "{job:#}");
    let why = job["errorMessage"].as_str().unwrap();
    assert!(
        why.starts_with("cannot make") && why.contains("results/1"),
        "{why}"
    );
    assert_eq!(trials(&job).len(), 1, "{job:#}");
}

#[test]
fn what_no_trial_can_start_with_is_refused_before_the_first() {
    // A training file has the key `size`, with values to 9.
    let script = "for a; do case $a in
--*|size=[0-9]) ;; size=*) echo 'error: size is at most 9' >&2; exit 2;;
*=*) echo \"error: no key '${a%=*}'; did you mean \\`size\\`?\" >&2; exit 2;; esac; done
[ ! -e broken ] || { echo 'error: no model' >&2; exit 2; }
echo '{\"event\": \"data\"}'";
    let service = Service::new("search-key").with_phalanx(script);
    fs::write(service.folder.join("train.yaml"), "").unwrap();
    let words = |search: &str| format!("tune train.yaml --metric loss --dry-run --search {search}");
    let fails = |search: &str| {
        let (code, error) = service.fails(&words(search).split(' ').collect::<Vec<_>>());
        assert_eq!(code, 2, "{error}");
        error
    };
    let error = fails("sise=1..3 --search size=8");
    let expected =
        "a trial with sise=2 size=8 would not start: no key 'sise'; did you mean `size`?";
    assert!(error.contains(expected), "{error}");
    let error = fails("size=11..13");
    assert!(
        error.contains("a trial with size=12 would not start: size is at most 9"),
        "{error}"
    );
    service.ok(&words("size=1,2").split(' ').collect::<Vec<_>>());
    // Some trials can start.
    service.ok(&words("size=8..13").split(' ').collect::<Vec<_>>());
    fs::write(service.folder.join("broken"), "").unwrap();
    let error = fails("size=1,2");
    assert!(
        error.contains("no model") && !error.contains("a trial"),
        "{error}"
    );
}
