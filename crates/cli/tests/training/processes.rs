//! Trainings of several processes: workers, servers, an evaluator.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use phalanx::checkpoint::TrainingState;

use crate::Folder;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn two_workers_train_a_training_file_as_one_process_does() {
    let folder = Folder::new("workers", "{adam: {learning_rate: 0.05}}");
    let program = env!("CARGO_BIN_EXE_phalanx");
    let test_line = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("test: "));
        line.unwrap().to_owned()
    };
    let one = test_line(&folder.succeed(&["train", "t.yaml", "--progress", "plain"]));
    let launch = ["launch", "--workers", "2", "--", program, "train", "t.yaml"];
    let text = folder.succeed(&[&launch[..], &["--output", "two", "--progress", "plain"]].concat());
    assert!(
        text.contains("training on 2 workers, each on cpu:0: global batch 8"),
        "{text}"
    );
    assert_eq!(
        text.matches("epoch 40/40").count(),
        1,
        "one worker shows progress: {text}"
    );
    let two = test_line(&text);
    for log in ["loss", "accuracy"] {
        let (one, two) = (value_of(&one, log), value_of(&two, log));
        assert!(
            (one - two).abs() <= 2e-4 * one.abs().max(1.0),
            "{log} {one} {two}"
        );
    }
    let predicted = [["out", "predict"], ["two", "predict"]]
        .map(|[run, command]| folder.succeed(&[command, run, "a.csv", "--format", "jsonl"]));
    assert_eq!(predicted[0].lines().count(), predicted[1].lines().count());
    // A model is there already, which neither worker may replace.
    let again = [&launch[..], &["--output", "two"]].concat();
    folder.fail(&again, 2, &["two has the model", "--overwrite"]);
}

#[test]
fn a_worker_that_is_started_again_after_its_model_was_saved_does_not_train_again() {
    let folder = Folder::new("over", "{adam: {learning_rate: 0.05}}");
    let train = |job: &str, restarts: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let train = ["train", "t.yaml", "--epochs", "2"];
        command.args(train).args(more).current_dir(&folder.0);
        command
            .env("PHALANX_JOB_ID", job)
            .env("PHALANX_RESTART_COUNT", restarts);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    let weights = || fs::read(folder.0.join("out/model/weights.safetensors")).unwrap();
    assert_eq!(train("j", "0", &[]).0, Some(0));
    let saved = weights();
    // As one that was killed in the test of its model.
    fs::remove_file(folder.0.join("out/test.json")).unwrap();
    let other = ["--overwrite", "--set", "fit.seed=9"];
    for more in [&[][..], &other, &["--resume"]] {
        let (code, told) = train("j", "1", more);
        assert_eq!(code, Some(1), "{more:?}: {told}");
        for part in [
            "the training is over",
            "out/model",
            "`phalanx evaluate out`",
        ] {
            assert!(told.contains(part), "{more:?}: no {part:?} in {told}");
        }
        assert!(weights() == saved, "{more:?}");
    }
    folder.succeed(&["evaluate", "out"]);
    // The model is of another job, or of one before that is to be replaced.
    let (code, told) = train("j2", "1", &[]);
    assert_eq!(code, Some(2), "{told}");
    fs::write(folder.0.join("out/.job"), "j2").unwrap();
    assert_eq!(train("j2", "1", &other).0, Some(0));
    assert!(weights() != saved);
    assert_eq!(train("j", "0", &["--overwrite"]).0, Some(0));
}

#[test]
fn a_strategy_of_one_process_is_refused_among_workers() {
    let folder = Folder::new("mesh", "sgd");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap() + "strategy: one_device\n";
    fs::write(&path, text).unwrap();
    let program = env!("CARGO_BIN_EXE_phalanx");
    let launch = ["launch", "--workers", "2", "--", program, "train", "t.yaml"];
    folder.fail(
        &launch,
        2,
        &["`one_device` is for one process", "multi_worker"],
    );
}

/// A batch is of all workers where they step together, and else one worker's.
#[test]
fn a_batch_size_of_a_replica_is_one_on_servers_too() {
    let folder = Folder::new("per-replica", "sgd");
    let program = env!("CARGO_BIN_EXE_phalanx");
    for (mode, batch) in [("sync", 8), ("bounded_staleness", 4), ("async", 4)] {
        let strategy = format!("strategy={{parameter_server: {{mode: {mode}}}}}");
        let launch = ["launch", "--workers", "2", "--ps", "1", "--", program];
        let train = ["train", "t.yaml", "--progress", "plain", "--epochs", "1"];
        let set = ["--output", mode, "--set", "fit.batch_size={per_replica: 4}"];
        let text = folder.succeed(&[&launch[..], &train, &set, &["--set", &strategy]].concat());
        let wanted = format!("each on cpu:0: batch {batch}\n");
        assert!(text.contains(&wanted), "no {wanted:?} in {text}");
    }
}

/// The launch passes the signal on to the servers too, which are there until the workers have saved.
#[test]
fn a_signal_to_a_launch_with_servers_ends_all_with_a_checkpoint() {
    let folder = Folder::new("signal", "sgd");
    let path = folder.0.join("t.yaml");
    // An epoch is of both workers, so that both watch for signals when one is over.
    let text = fs::read_to_string(&path).unwrap() + "strategy: {parameter_server: {mode: sync}}\n";
    fs::write(&path, text.replace("epochs: 40", "epochs: 100000")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    let launch = ["launch", "--workers", "2", "--ps", "2", "--logs", "logs"];
    command
        .args(launch)
        .args(["--", "phalanx", "train", "t.yaml"]);
    command.current_dir(&folder.0).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let history = folder.0.join("out/history.jsonl");
    let start = Instant::now();
    while !fs::metadata(&history).is_ok_and(|file| file.len() > 0) {
        assert_eq!(running.try_wait().unwrap(), None, "it has ended");
        assert!(start.elapsed() < LONG, "it does not train");
        thread::sleep(Duration::from_millis(10));
    }
    let id = running.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
    assert!(sent.unwrap().success());
    let output = running.wait_with_output().unwrap();
    let mut said = String::new();
    for file in fs::read_dir(folder.0.join("logs")).unwrap() {
        said += &fs::read_to_string(file.unwrap().path()).unwrap();
    }
    assert_eq!(output.status.code(), Some(143), "{said}");
    let state = TrainingState::load(folder.0.join("out/checkpoint")).unwrap();
    let stopped = format!("stopped after step {};", state.iterations());
    assert_eq!(said.matches(&stopped).count(), 2, "{said}");
    assert_eq!(said.matches("asked to end").count(), 2, "{said}");
}

#[test]
fn a_server_beside_mirrored_workers_says_which_strategy_it_is_for() {
    let folder = Folder::new("no-servers", "sgd");
    let program = env!("CARGO_BIN_EXE_phalanx");
    let launch = [
        "launch",
        "--workers",
        "1",
        "--ps",
        "1",
        "--",
        program,
        "train",
        "t.yaml",
    ];
    folder.fail(
        &launch,
        2,
        &["this process is ps:0", "train with `parameter_server`"],
    );
}

/// What an evaluator wrote for TensorBoard: loss by step.
fn evaluated_losses(folder: &Folder) -> Vec<(i64, f64)> {
    let run = phalanx_summary::Run::read(folder.0.join("out/evaluation/validation")).unwrap();
    let points = &run.scalars["evaluation_loss_vs_iterations"];
    points
        .iter()
        .map(|point| (point.step, point.value))
        .collect()
}

/// Each checkpoint is evaluated as it comes, the last as the training's own test, and the best is kept.
#[test]
fn an_evaluator_follows_a_training_to_its_end() {
    let folder = Folder::new("follow", "{adam: {learning_rate: 0.05}}");
    let mut evaluator = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    evaluator
        .args([
            "evaluate", "--follow", "out", "--each", "--best", "accuracy", "--wait", "300",
        ])
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let evaluator = evaluator.spawn().unwrap();
    let trained = folder.succeed(&["train", "t.yaml", "--set", "fit.save_freq=epoch"]);
    let output = evaluator.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}\n{error}");
    let last = said.lines().last().unwrap();
    // 40 epochs of four batches of 32 rows.
    assert!(last.starts_with("step 160, epoch 40: "), "{last}");
    let tested = trained
        .lines()
        .find(|line| line.starts_with("test: "))
        .unwrap();
    let tested = tested.strip_prefix("test: ").unwrap();
    assert!(last.contains(tested), "{last} {tested}");
    let mut best = said
        .lines()
        .filter(|line| line.ends_with("(the best so far)"));
    let best = value_of(best.next_back().unwrap(), "accuracy");
    let most = said.lines().map(|line| value_of(line, "accuracy"));
    assert_eq!(best, most.fold(0.0, f64::max));
    let again = folder.succeed(&["evaluate", "out/best"]);
    assert_eq!(value_of(&again, "accuracy"), best, "{again}");
    let losses = evaluated_losses(&folder);
    assert_eq!(losses.len(), said.lines().count());
    assert_eq!(losses.last().unwrap().0, 160);
    // What comes later finds the training done; where that was never said it waits no longer than it is asked to.
    check_default_of_best(&folder);
    fs::remove_file(folder.0.join("out/checkpoint.done")).unwrap();
    let waits = ["evaluate", "--follow", "out", "--wait", "1"];
    folder.fail(&waits, 75, &["after the one of step 160", "for 1 seconds"]);
    let nothing = ["evaluate", "--follow", "elsewhere", "--wait", "1"];
    folder.fail(&nothing, 2, &["elsewhere"]);
}

/// Without `--best` the best is kept by the log that the training keeps its best epoch by.
fn check_default_of_best(folder: &Folder) {
    let (file, best) = (
        folder.0.join("t.yaml"),
        folder.0.join("out/best/model.json"),
    );
    for (from, to, log) in [
        ("", "", "\"loss\""),
        (
            "epochs:",
            "keep_best: val_accuracy, epochs:",
            "\"accuracy\"",
        ),
    ] {
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let said = folder.succeed(&["evaluate", "--follow", "t.yaml"]);
        assert!(said.starts_with("step 160"), "{said}");
        let best = fs::read_to_string(&best).unwrap();
        assert!(best.contains(log), "{best}");
    }
}

#[test]
fn an_evaluator_is_launched_beside_workers_and_servers() {
    let folder = Folder::new("beside", "{adam: {learning_rate: 0.05}}");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap() + "strategy: parameter_server\n";
    fs::write(&path, text.replace("epochs: 40", "epochs: 6")).unwrap();
    folder.succeed(&[
        "launch",
        "--workers",
        "2",
        "--ps",
        "1",
        "--evaluator",
        "--logs",
        "logs",
        "--",
        "phalanx",
        "train",
        "t.yaml",
    ]);
    let logs = fs::read_dir(folder.0.join("logs")).unwrap();
    let of_it = logs.map(|file| file.unwrap().path()).find(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.contains("evaluator-0") && name.contains("out")
    });
    let said = fs::read_to_string(of_it.unwrap()).unwrap();
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("step 24, epoch 6: "), "{said}");
    assert_eq!(evaluated_losses(&folder).last().unwrap().0, 24);
    // What several trained is used by one.
    for run in ["out", "out/best"] {
        assert!(folder.succeed(&["evaluate", run]).contains("accuracy"));
    }
}

/// The value of a log in a line of results.
pub(crate) fn value_of(line: &str, log: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("{log} ")).unwrap();
    let end = rest.find(|c: char| !"0123456789.e-".contains(c));
    rest[..end.unwrap_or(rest.len())].parse().unwrap()
}
