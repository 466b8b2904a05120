//! What the folder of a training says of it, and what is said of folders with parts of two.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Folder;

/// What `compare` prints of the settings, as words of lines.
fn differing(folder: &Folder, runs: &[&str]) -> Vec<Vec<String>> {
    let text = folder.succeed(&[&["compare"], runs].concat());
    let lines = text.lines().take_while(|line| !line.is_empty());
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    lines.skip(1).map(words).collect()
}

#[test]
fn what_the_command_line_set_is_recorded_and_compared() {
    let folder = Folder::new("recorded", "adam");
    let train = |output: &str, settings: &[&str]| {
        let mut arguments = vec!["train", "t.yaml", "--quiet", "--output", output];
        arguments.extend(settings);
        folder.succeed(&arguments);
    };
    train("one", &["--epochs", "1"]);
    train("same", &["--set", "fit.epochs=1"]);
    let short = ["--set", "fit.epochs=7", "--epochs", "2"];
    let short = [&short[..], &["--steps-per-epoch", "3"]].concat();
    train("short", &[&short[..], &["--devices", "cpu:2"]].concat());
    let same = folder.succeed(&["compare", "one", "same"]);
    assert!(same.starts_with("no setting differs"), "{same}");
    assert_eq!(
        differing(&folder, &["one", "short"]),
        [
            ["devices", "-", "cpu:2"],
            ["fit.epochs", "1", "2"],
            ["fit.steps_per_epoch", "-", "3"]
        ]
    );
    let record = fs::read_to_string(folder.0.join("short/model/training.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["devices"], "cpu:2");
    // Where it trained is not where it must be used.
    let told = folder.phalanx(&["evaluate", "short", "--devices", "cpu"]);
    assert_eq!(told.status.code(), Some(0), "{told:?}");
}

#[test]
fn a_model_beside_a_later_training_that_failed_is_told_from_it() {
    let folder = Folder::new("replaced", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let before = folder.succeed(&["evaluate", "out"]);
    let worse = [
        "optimizer={sgd: {learning_rate: 1e30}}",
        "data.label_type=value",
        "model.1.dense={units: 1}",
        "loss=mean_squared_error",
        "metrics=[]",
    ];
    let again = ["train", "t.yaml", "--overwrite", "--epochs", "3"];
    let worse = worse.iter().flat_map(|set| ["--set", *set]);
    let worse: Vec<&str> = again.into_iter().chain(worse).collect();
    folder.fail(&worse, 1, &["loss"]);
    let evaluated = folder.phalanx(&["evaluate", "out"]);
    let told = String::from_utf8(evaluated.stderr).unwrap();
    assert_eq!(String::from_utf8(evaluated.stdout).unwrap(), before);
    let warning = "warning: out/model is of a training with other settings than out/training.json";
    assert!(told.contains(warning), "{told}");
    assert!(!folder.0.join("out/test.json").exists());
    folder.succeed(&again);
    let evaluated = folder.phalanx(&["evaluate", "out"]);
    let told = String::from_utf8(evaluated.stderr).unwrap();
    assert!(!told.contains("warning"), "{told}");
}

#[test]
fn a_model_is_used_by_its_own_folder_too() {
    let folder = Folder::new("model-alone", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let evaluated = folder.succeed(&["evaluate", "out"]);
    assert_eq!(folder.succeed(&["evaluate", "out/model"]), evaluated);
    fs::rename(folder.0.join("out/model"), folder.0.join("moved")).unwrap();
    assert_eq!(folder.succeed(&["evaluate", "moved"]), evaluated);
    let other = ["evaluate", "t.yaml", "--output", "moved"];
    assert_eq!(folder.succeed(&other), evaluated);
    folder.fail(&["evaluate", "out"], 2, &["no trained model"]);
    let parts = ["neither a folder nor a file none", "or the training file"];
    folder.fail(&["evaluate", "none"], 2, &parts);
}

#[test]
fn the_epoch_whose_variables_are_kept_is_told() {
    let folder = Folder::new("kept", "{adam: {learning_rate: 0.05}}");
    let keep = ["train", "t.yaml", "--epochs", "2"];
    let keep = [&keep[..], &["--set", "fit.keep_best=val_acc"]].concat();
    let output = folder.phalanx(&keep);
    let told = String::from_utf8(output.stderr).unwrap();
    let history = fs::read_to_string(folder.0.join("out/history.jsonl")).unwrap();
    let of = |line: &str| {
        let epoch: Value = serde_json::from_str(line).unwrap();
        epoch["logs"]["val_accuracy"].as_f64().unwrap()
    };
    let values: Vec<f64> = history.lines().map(of).collect();
    let best = if values[1] > values[0] { 2 } else { 1 };
    let note = format!("the variables of epoch {best}, the best by `val_accuracy`");
    assert!(told.contains(&note), "{told}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("; next rate 0.05"), "{said}");
}

/// Epochs before that were not compared may have been better.
#[test]
fn the_best_epoch_is_one_of_those_that_were_compared() {
    let folder = Folder::new("kept-since", "{adam: {learning_rate: 0.05}}");
    let stops = "{early_stopping: {monitor: val_loss, patience: 9, restore_best_weights: true";
    for (keep, since) in [
        ("fit.keep_best=val_loss".to_owned(), 3),
        (format!("callbacks=[{stops}}}}}]"), 3),
        (format!("callbacks=[{stops}, start_from_epoch: 3}}}}]"), 4),
    ] {
        folder.succeed(&[
            "train",
            "t.yaml",
            "--quiet",
            "--overwrite",
            "--epochs",
            "2",
            "--set",
            "fit.save_freq=epoch",
        ]);
        for epochs in ["4", "5"] {
            let resume = [
                "train", "t.yaml", "--resume", "--epochs", epochs, "--set", &keep,
            ];
            let told = String::from_utf8(folder.phalanx(&resume).stderr).unwrap();
            let best = format!("the best by `val_loss` since epoch {since}");
            assert!(told.contains(&best), "{keep}: {told}");
        }
    }
}

#[test]
fn settings_that_change_where_training_goes_on_are_told() {
    let folder = Folder::new("changed", "{adam: {learning_rate: 0.05}}");
    let resumed = |more: &[&str]| {
        let resume = ["train", "t.yaml", "--resume"];
        let output = folder.phalanx(&[&resume[..], more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{told}");
        told
    };
    resumed(&["--epochs", "1"]);
    let told = resumed(&["--epochs", "2", "--set", "optimizer.adam.learning_rate=0.1"]);
    assert!(!told.contains("note: settings differ from what"), "{told}");
    let changed = [
        "model.0.dense.activation=relu",
        "fit.batch_size=4",
        "precision=mixed_bfloat16",
    ];
    let changed = changed.iter().flat_map(|set| ["--set", *set]);
    let changed: Vec<&str> = ["--epochs", "3"].into_iter().chain(changed).collect();
    let told = resumed(&changed);
    let note = "trained with: `fit.batch_size` was 8, and is 4; `model.0.dense.activation` was tanh, and is relu; `precision` was float32, and is mixed_bfloat16; training";
    assert!(told.contains(note), "{told}");
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = Folder::new("own-files", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    fs::hard_link(folder.0.join("a.csv"), folder.0.join("link.csv")).unwrap();
    let weights = folder.0.join("out/model/weights.safetensors");
    fs::hard_link(weights, folder.0.join("keras.safetensors")).unwrap();
    fs::create_dir_all(folder.0.join("events/train")).unwrap();
    fs::write(folder.0.join("events/train/events.tfevents.1"), "x").unwrap();
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let logs = format!("{text}callbacks: [{{csv_logger: {{filename: a.csv}}}}]\n");
    fs::write(folder.0.join("logs.yaml"), logs).unwrap();
    let cases = [
        ("predict out a.csv --to a.csv", "a.csv"),
        ("predict out link.csv --to a.csv", "a.csv"),
        ("predict out --to a.csv", "a.csv"),
        ("predict t.yaml --to t.yaml", "t.yaml"),
        ("predict out --to out/training.json", "out/training.json"),
        (
            "predict out --to out/model/weights.safetensors",
            "out/model/weights.safetensors",
        ),
        (
            "export out out/model/weights.safetensors",
            "out/model/weights.safetensors",
        ),
        (
            "export out/model out/model/weights.safetensors",
            "out/model/weights.safetensors",
        ),
        (
            "export out out/model/weights.mlir",
            "out/model/weights.safetensors",
        ),
        ("export t.yaml keras.safetensors", "keras.safetensors"),
        ("plot out --output out/history.jsonl", "out/history.jsonl"),
        (
            "plot events --output events/train/events.tfevents.1",
            "events/train/events.tfevents.1",
        ),
        ("trace t.yaml --output t.yaml", "t.yaml"),
        ("trace t.yaml --output link.csv", "link.csv"),
        ("train logs.yaml --overwrite", "a.csv"),
        ("train logs.yaml --dry-run", "a.csv"),
    ];
    for (command, target) in cases {
        let before = fs::read(folder.0.join(target)).unwrap();
        let arguments: Vec<&str> = command.split(' ').collect();
        let says = format!("{target} is one of the files that are read here");
        folder.fail(&arguments, 2, &[&says]);
        assert!(
            fs::read(folder.0.join(target)).unwrap() == before,
            "{command}"
        );
    }
}

#[test]
fn where_no_file_can_be_written_is_seen_before_the_work() {
    let folder = Folder::new("targets", "adam");
    let train = "train t.yaml --quiet --epochs 1 --set fit.save_freq=epoch";
    folder.succeed(&train.split(' ').collect::<Vec<_>>());
    fs::create_dir(folder.0.join("made.onnx")).unwrap();
    let commands = [
        "predict out --to",
        "export out",
        "plot out --output",
        "trace t.yaml --output",
        "ckpt export out",
    ];
    let cases = [
        ("made.onnx", "it is a folder, and expected is a file"),
        ("new.onnx/", "it is a folder, and expected is a file"),
        ("a.csv/new.onnx", "a.csv is no folder"),
        ("s3://bucket/new.onnx", "it is no file of this machine"),
    ];
    let closed = folder.0.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    // Not for root, who writes there.
    let is_closed = fs::write(closed.join("probe"), "").is_err();
    let closed = is_closed.then_some(("closed/new/new.onnx", "closed: Permission denied"));
    for command in commands {
        for (target, why) in cases.into_iter().chain(closed) {
            let arguments: Vec<&str> = command.split(' ').chain([target]).collect();
            let target = format!("cannot write {target}: ");
            folder.fail(&arguments, 2, &[&target, why, "choose another "]);
        }
    }
    // Of another file the folder is made, and the next one takes its place.
    for command in [
        "predict out --to",
        "export out",
        "plot out --output",
        "trace t.yaml --output",
    ] {
        for _ in 0..2 {
            let arguments: Vec<&str> = command.split(' ').chain(["made/here/new.onnx"]).collect();
            folder.succeed(&arguments);
        }
        fs::remove_dir_all(folder.0.join("made")).unwrap();
    }
}

/// Rows are gone through several times, of which a pipe has the first alone.
#[test]
fn a_pipe_is_no_file_of_rows() {
    let folder = Folder::new("pipes", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let set = [
        "train",
        "t.yaml",
        "--overwrite",
        "--set",
        "data.csv=/dev/stdin",
    ];
    let piped = [
        &["predict", "out", "/dev/stdin"][..],
        &["evaluate", "out", "/dev/stdin"],
        &set,
    ];
    for arguments in piped {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(arguments).current_dir(&folder.0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // Dropping its end ends the pipe.
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        let what = "/dev/stdin is a pipe, and is read more than once; write it to a file first";
        assert!(
            told.contains(&what.replace("; ", "\n  next: ")) || told.contains(what),
            "{told}"
        );
    }
    let what = ["- would be standard input, which is read more than once"];
    folder.fail(&["predict", "out", "-"], 2, &what);
}

#[test]
fn an_epoch_says_how_fast_it_was() {
    let folder = Folder::new("speed", "adam");
    // Of 40 rows 32 are trained on: in batches of 12, 12 and 8, and in four of 8.
    for (size, steps) in [(12, 3.0), (8, 4.0)] {
        let size = format!("fit.batch_size={size}");
        let train = [
            "train",
            "t.yaml",
            "--epochs",
            "2",
            "--overwrite",
            "--set",
            &size,
        ];
        let said = folder.succeed(&train);
        let history = fs::read_to_string(folder.0.join("out/history.jsonl")).unwrap();
        let told = said.lines().filter(|line| line.starts_with("epoch "));
        assert_eq!(history.lines().count(), 2);
        for (line, epoch) in told.zip(history.lines()) {
            let epoch: Value = serde_json::from_str(epoch).unwrap();
            let rate = |name: &str| epoch["throughput"][name].as_f64().unwrap();
            let part = |name: &str| epoch["times"][name].as_f64().unwrap();
            let all = epoch["seconds"].as_f64().unwrap();
            let seconds = all - part("compile") - part("validation");
            let made = rate("steps_per_second") * seconds;
            assert!((made - steps).abs() < 1e-6, "{epoch}");
            let examples = rate("examples_per_second") * seconds;
            assert!((examples - 32.0).abs() < 1e-6, "{epoch}");
            // Between them are the FLOPs of a second, on a machine that does enough of them.
            for part in [" examples/s", "; next rate "] {
                assert!(line.contains(part), "{line}");
            }
            let estimate = ["estimate", "t.yaml", "--progress", "json", "--set", &size];
            let estimate: Value = serde_json::from_str(&folder.succeed(&estimate)).unwrap();
            let counted =
                estimate["flops"].as_f64().unwrap() / estimate["batch_size"].as_f64().unwrap();
            let flops = rate("flops_per_second") / rate("examples_per_second");
            assert!((flops / counted - 1.0).abs() < 0.01, "{flops} {counted}");
        }
    }
}

#[test]
fn a_training_that_goes_on_keeps_what_was_measured_of_its_epochs() {
    let folder = Folder::new("measured", "adam");
    let path = folder.0.join("out/history.jsonl");
    let train = |epochs: &str, more: &[&str]| {
        let save = ["--set", "fit.save_freq=epoch"];
        let train = ["train", "t.yaml", "--epochs", epochs];
        folder.succeed(&[&train[..], &save, more].concat());
        fs::read_to_string(&path).unwrap()
    };
    let written = || fs::metadata(&path).unwrap().modified().unwrap();
    let first = train("3", &[]);
    assert_eq!(first.matches("examples_per_second").count(), 3, "{first}");
    let at = written();
    assert_eq!(train("3", &["--resume"]), first);
    assert_eq!(written(), at, "it was written though nothing was trained");
    // An epoch that the checkpoint does not have, another of a training before, and one that was cut off.
    let lines: Vec<&str> = first.lines().collect();
    let other = lines[1].replace("\"loss\":", "\"loss\":1");
    assert_ne!(other, lines[1]);
    let fourth = lines[2].replace("\"epoch\":3", "\"epoch\":4");
    fs::write(
        &path,
        [lines[0], &other, lines[2], &fourth, "{\"epo"].join("\n"),
    )
    .unwrap();
    let all = train("5", &["--resume"]);
    let all: Vec<&str> = all.lines().collect();
    assert_eq!((all.len(), all[0], all[2]), (5, lines[0], lines[2]));
    let logs = |line: &str| serde_json::from_str::<Value>(line).unwrap()["logs"].clone();
    assert_eq!(logs(all[1]), logs(lines[1]));
    let measured = |line: &str| line.contains("\"throughput\":") && line.contains("\"times\":");
    let measured: Vec<bool> = all.iter().map(|line| measured(line)).collect();
    assert_eq!(measured, [true, false, true, true, true]);
    assert_ne!(all[3], fourth);
}

#[test]
fn devices_that_a_mesh_has_no_place_for_are_told() {
    let folder = Folder::new("idle", "adam");
    let mesh = ["--set", "strategy={mesh: {axes: {data: 2}}}"];
    let train = ["train", "t.yaml", "--epochs", "1", "--devices", "cpu:3"];
    let told = folder.phalanx(&[&train[..], &mesh].concat()).stderr;
    let told = String::from_utf8(told).unwrap();
    let warning = "there are 3, of which cpu:2 stay idle";
    assert!(told.contains(warning), "{told}");
}

/// A training file is tried without leaving anything, whether or not it is sound.
#[test]
fn a_file_is_tried_in_a_folder_that_is_removed() {
    let folder = Folder::new("smoke", "{sgd: {learning_rate: 0.1}}");
    let temporary = folder.0.join("tmp");
    fs::create_dir(&temporary).unwrap();
    let before = fs::read_dir(&folder.0).unwrap().count();
    let run = |more: &[&str]| {
        let arguments = [&["train", "t.yaml", "--smoke", "--progress", "plain"], more].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let command = command
            .args(arguments)
            .current_dir(&folder.0)
            .env("TMPDIR", &temporary);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{more:?}");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), before, "{more:?}");
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), said.concat())
    };
    // Steps of several batches, a schedule of validations and a callback change nothing of it.
    let long = [
        "--set",
        "fit.steps_per_execution=8",
        "--set",
        "fit.validation_freq=3",
    ];
    let logger = ["--set", "callbacks=[csv_logger: {filename: log.csv}]"];
    for more in [&[][..], &long, &logger] {
        let (code, said) = run(more);
        assert_eq!(code, Some(0), "{said}");
        let told = "smoke: t.yaml is sound: 2 steps were trained, validated on a batch, a checkpoint and the model written";
        assert!(
            said.contains(told) && said.contains("epoch 1/1: loss"),
            "{said}"
        );
    }
    let logits = "loss={sparse_categorical_crossentropy: {from_logits: true}}";
    let (code, said) = run(&[
        "--set",
        logits,
        "--set",
        "model.1.dense.activation=linear",
        "--set",
        "optimizer.sgd.learning_rate=1e38",
    ]);
    assert!(code == Some(1) && !said.contains("sound"), "{said}");
    let (code, said) = run(&["--set", "model.1.dense.units=1"]);
    assert!(code == Some(2) && said.contains("the class 1"), "{said}");
    let json = folder.succeed(&["train", "t.yaml", "--smoke", "--progress", "json"]);
    let last: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(
        last,
        serde_json::json!({"event": "smoke", "steps": 2, "validated": true})
    );
    folder.fail(
        &["train", "t.yaml", "--smoke", "--resume"],
        2,
        &["cannot be used with"],
    );
}

#[test]
fn a_model_is_the_first_weights_by_its_folder() {
    let folder = Folder::new("first", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let first = ["--set", "weights=out/model", "--output", "next"];
    let said = folder.succeed(&[&["train", "t.yaml", "--epochs", "1"], &first[..]].concat());
    assert!(said.contains("4 of 4 variables have values"), "{said}");
}

#[test]
fn a_trace_of_few_steps_warns_of_nothing() {
    let folder = Folder::new("trace", "adam");
    let output = folder.phalanx(&["trace", "t.yaml", "--steps", "1", "--after", "1"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(!told.contains("warning"), "{told}");
    assert!(folder.0.join("trace.json").exists());
}

#[test]
fn a_test_on_a_part_of_other_rows_than_the_training_had_is_refused() {
    let folder = Folder::new("grown", "adam");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let file = |test: &str| {
        let text = text.replace("test: {last: 20}", test);
        fs::write(folder.0.join("t.yaml"), text).unwrap();
    };
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    let train = ["train", "t.yaml", "--quiet", "--overwrite", "--epochs", "1"];
    let told = ["t.yaml:1:", "a part of 61 examples", "held it out of 60"];
    file("test: {split: 0.2}");
    folder.succeed(&[&train[..], &["--set", "fit.save_freq=epoch"]].concat());
    fs::write(folder.0.join("a.csv"), format!("{rows}5,3,1\n")).unwrap();
    folder.fail(&["evaluate", "out"], 2, &told);
    folder.fail(&["predict", "out"], 2, &told);
    folder.fail(
        &["train", "t.yaml", "--resume", "--epochs", "2"],
        2,
        &told[1..],
    );
    folder.succeed(&["evaluate", "out", "a.csv"]);
    // The last rows are new where rows came to them, and were trained on where some of them went.
    fs::write(folder.0.join("a.csv"), &rows).unwrap();
    file("test: {last: 20}");
    folder.succeed(&train);
    fs::write(folder.0.join("a.csv"), format!("{rows}5,3,1\n")).unwrap();
    folder.succeed(&["evaluate", "out"]);
    let fewer = &rows[..rows.trim_end().rfind('\n').unwrap() + 1];
    fs::write(folder.0.join("a.csv"), fewer).unwrap();
    folder.fail(&["evaluate", "out"], 2, &["a part of 59 examples"]);
    // So is the validation by its share of them, where a training goes on.
    fs::write(folder.0.join("a.csv"), &rows).unwrap();
    file("test: {first: 5}");
    let validated = ["--set", "fit.validation={split: 0.2}"];
    let saved = ["--set", "fit.save_freq=epoch"];
    folder.succeed(&[&train[..], &validated, &saved].concat());
    let resume = ["train", "t.yaml", "--quiet", "--resume", "--epochs", "2"];
    fs::write(folder.0.join("a.csv"), fewer).unwrap();
    let all = [&resume[..], &validated, &saved].concat();
    folder.fail(&all, 2, &["a part of 59 examples", "held it out of 60"]);
    fs::write(folder.0.join("a.csv"), format!("{rows}5,3,1\n")).unwrap();
    folder.succeed(&all);
}
