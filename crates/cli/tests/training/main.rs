//! `train`, `evaluate` and `predict` from end to end, on the CPU plugin.

mod bins;
mod categories;
mod checkpoints;
mod images;
mod inputs;
mod meanings;
mod outputs;
mod processes;
mod runs;
mod saved_models;
mod texts;
mod windows;

use std::fs;
use std::process::{Command, Output, Stdio};

use phalanx_testkit::Scratch;
use serde_json::json;

/// A folder with data and a `train.yaml`, removed at the end.
struct Folder(Scratch);

impl Folder {
    /// Sixty rows `x, y` of class 1 where x is greater; the last twenty test.
    fn new(name: &str, optimizer: &str) -> Self {
        let path = Scratch::temporary(&format!("train-{name}"));
        let row = |i: u32| {
            let (x, y) = ((i * 7) % 13, (i * 5) % 11);
            format!("{x},{y},{}\n", u8::from(x > y))
        };
        fs::write(path.join("a.csv"), (0..60).map(row).collect::<String>()).unwrap();
        let text = format!(
            "data: {{csv: a.csv, divide_by: 10, test: {{last: 20}}}}\n\
             model: [{{dense: {{units: 16, activation: tanh}}}}, {{dense: {{units: 2, activation: softmax}}}}]\n\
             optimizer: {optimizer}\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n\
             fit: {{epochs: 40, batch_size: 8, validation: {{split: 0.2}}}}\noutput: out\n"
        );
        fs::write(path.join("t.yaml"), text).unwrap();
        Self(path)
    }

    fn phalanx(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::null());
        command.output().unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.phalanx(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the record of a run knows of its data.
    fn facts(&self, run: &str) -> serde_json::Value {
        let record = fs::read(self.0.join(run).join("model/training.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["facts"].clone()
    }

    fn fail(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let output = self.phalanx(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        for part in parts {
            assert!(
                error.contains(part),
                "{arguments:?}: no {part:?} in {error}"
            );
        }
    }
}

#[test]
fn a_trained_model_is_saved_evaluated_and_predicts_the_same() {
    let folder = Folder::new("all", "{adam: {learning_rate: 0.05}}");
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    for part in [
        "dense_1 (dense)",
        "epoch 40/40: loss ",
        "val_accuracy ",
        "model: out/model",
        "logs:  out",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let tested = text
        .lines()
        .find(|line| line.starts_with("test: "))
        .unwrap();
    let evaluated = folder.succeed(&["evaluate", "t.yaml"]);
    assert_eq!(
        evaluated.trim_end().strip_prefix("evaluate: "),
        tested.strip_prefix("test: ")
    );
    let history = fs::read_to_string(folder.0.join("out/history.jsonl")).unwrap();
    assert_eq!(history.lines().count(), 40);
    let first: serde_json::Value = serde_json::from_str(history.lines().next().unwrap()).unwrap();
    assert_eq!(
        (
            first["epoch"].as_u64(),
            first["logs"]["val_loss"].is_number()
        ),
        (Some(1), true)
    );

    check_predictions(&folder);
}

/// Predictions are right as often as the test said, and the same in any format and file.
fn check_predictions(folder: &Folder) {
    let csv = folder.succeed(&["predict", "t.yaml"]);
    assert_eq!(
        (csv.lines().next(), csv.lines().count()),
        (Some("class,score_0,score_1"), 21)
    );
    let right = csv
        .lines()
        .skip(1)
        .zip(
            fs::read_to_string(folder.0.join("a.csv"))
                .unwrap()
                .lines()
                .skip(40),
        )
        .filter(|(predicted, row)| predicted[..1] == row[row.len() - 1..])
        .count();
    assert!(right >= 16, "{right} of 20 right");
    let test = fs::read_to_string(folder.0.join("out/test.json")).unwrap();
    let accuracy = serde_json::from_str::<serde_json::Value>(&test).unwrap()["accuracy"]
        .as_f64()
        .unwrap();
    assert!(
        (accuracy - right as f64 / 20.0).abs() < 1e-6,
        "{accuracy} and {right}"
    );
    fs::write(folder.0.join("new.csv"), "12,1\n1,10\n").unwrap();
    let lines = folder.succeed(&["predict", "t.yaml", "--csv", "new.csv", "--format", "jsonl"]);
    assert!(
        lines.starts_with("{\"class\":1,") && lines.contains("\n{\"class\":0,"),
        "{lines}"
    );
    folder.succeed(&["predict", "t.yaml", "--to", "p.csv"]);
    assert_eq!(fs::read_to_string(folder.0.join("p.csv")).unwrap(), csv);
}

#[test]
fn a_file_names_the_strategy_and_results_are_those_of_one_device() {
    let folder = Folder::new("strategies", "{adam: {learning_rate: 0.05}}");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let cut = text.replacen("tanh}", "tanh, sharding: {kernel: [null, model]}}", 1);
    let mut losses = Vec::new();
    for (strategy, start) in [
        ("one_device", "training on cpu:0: batch 8"),
        (
            "{mirrored: {devices: \"cpu:2\", verify_every: 2}}",
            "training on 2 replicas (cpu:0, cpu:1): global batch 8, 4 per replica; gradients by all-reduce",
        ),
        (
            "{mesh: {axes: {model: 2}}}",
            "training on mesh model=2 (cpu:0, cpu:1): batch 8",
        ),
        (
            "{pipeline: {stages: 2, micro_batches: 4, starting_at: [dense_1]}}",
            "training on 2 stages (cpu:0, cpu:1): batch 8, 4 micro-batches",
        ),
    ] {
        fs::write(
            folder.0.join("s.yaml"),
            format!("{cut}strategy: {strategy}\n"),
        )
        .unwrap();
        let output = folder.phalanx(&[
            "train",
            "s.yaml",
            "--epochs",
            "2",
            "--progress",
            "plain",
            "--overwrite",
        ]);
        let [said, told] = [output.stdout, output.stderr].map(|t| String::from_utf8(t).unwrap());
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(
            said.lines().any(|line| line == start),
            "no {start:?} in {said}"
        );
        let exchange = "replicas add in each step 4 gradients (328 B) in 1 pack";
        let is_told = told.lines().any(|line| line == exchange);
        assert_eq!(is_told, start.contains("replicas"), "{told}");
        let tested = fs::read_to_string(folder.0.join("out/test.json")).unwrap();
        let tested: serde_json::Value = serde_json::from_str(&tested).unwrap();
        losses.push(tested["loss"].as_f64().unwrap());
        folder.succeed(&["evaluate", "s.yaml"]);
        let rows = folder.succeed(&["predict", "s.yaml", "--csv", "a.csv"]);
        assert_eq!(rows.lines().count(), 61);
    }
    for loss in &losses {
        assert!((loss - losses[0]).abs() < 1e-5 * losses[0], "{losses:?}");
    }
}

/// Epochs of any length go on where one ended, batches may be for each replica, and a validation may be its start alone.
#[test]
fn epochs_batches_and_validations_have_the_sizes_that_the_file_says() {
    let folder = Folder::new("sizes", "adam");
    let trained = |name: &str, epochs: &str, settings: &[&str]| {
        let mut arguments = vec!["train", "t.yaml", "--quiet", "--devices", "cpu:2"];
        arguments.extend(["--epochs", epochs, "--output", name]);
        arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        folder.succeed(&arguments);
        let weights = fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap();
        let history = fs::read_to_string(folder.0.join(name).join("history.jsonl")).unwrap();
        let last = history.lines().last().unwrap();
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        (weights, last)
    };
    // Of 40 rows 32 are trained on, 8 a step.
    let (two, last) = trained("two", "2", &[]);
    assert_eq!(last["steps"], 4, "{last}");
    let (one, last) = trained("one", "1", &["fit.steps_per_epoch=8"]);
    assert_eq!(last["steps"], 8, "{last}");
    assert!(one == two, "an epoch of eight steps is two of four");
    let (short, _) = trained("short", "4", &["fit.steps_per_epoch=2"]);
    assert!(short == two, "four epochs of two steps are two of four");
    let (each, _) = trained("each", "2", &["fit.batch_size={per_replica: 4}"]);
    assert!(each == two, "4 rows for each of two replicas are 8");
    let wide = "fit.validation={split: 0.5}";
    let (_, all) = trained("all", "1", &[wide]);
    let (_, part) = trained("part", "1", &[wide, "fit.validation_steps=1"]);
    let loss = |logs: &serde_json::Value| logs["logs"]["val_loss"].as_f64().unwrap();
    assert!((loss(&all) - loss(&part)).abs() > 1e-6, "{all} {part}");
}

/// The logs of each epoch.
fn history(folder: &Folder, output: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.0.join(output).join("history.jsonl")).unwrap();
    let logs = text.lines().map(|line| {
        let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
        epoch["logs"].clone()
    });
    logs.collect()
}

#[test]
fn every_other_epoch_is_validated_and_three_checkpoints_stay() {
    let folder = Folder::new("every-other", "adam");
    let train =
        "train t.yaml --quiet --epochs 5 --set fit.save_freq=epoch --set fit.keep_checkpoints=3";
    let train: Vec<&str> = train.split(' ').collect();
    let more = [
        "--set",
        "fit.validation={split: 0.5}",
        "--set",
        "fit.validation_freq=2",
    ];
    folder.succeed(&[&train[..], &more].concat());
    let validated = history(&folder, "out").into_iter();
    let validated: Vec<bool> = validated.map(|logs| logs["val_loss"].is_f64()).collect();
    assert_eq!(validated, [false, true, false, true, false]);
    let kept = (1..5).map(|age| folder.0.join(format!("out/checkpoint.{age}")).exists());
    assert_eq!(kept.collect::<Vec<_>>(), [true, true, false, false]);
    assert!(folder.0.join("out/checkpoint").exists());
}

/// Eight steps: a scale that follows the gradients is doubled after the third and the sixth.
#[test]
fn the_loss_is_scaled_as_the_file_says() {
    let folder = Folder::new("loss-scale", "{sgd: {learning_rate: 0.01}}");
    let scale = |name: &str, precision: &str, scale: &str| {
        let (precision, scale) = (
            format!("precision={precision}"),
            format!("loss_scale={scale}"),
        );
        let train = [
            "train", "t.yaml", "--quiet", "--epochs", "2", "--output", name,
        ];
        folder.succeed(&[&train[..], &["--set", &precision, "--set", &scale]].concat());
        let last = history(&folder, name).pop().unwrap();
        last["loss_scale"].as_f64()
    };
    let dynamic = "{initial: 64, growth_steps: 3}";
    assert_eq!(scale("a", "mixed_float16", dynamic), Some(256.0));
    assert_eq!(scale("b", "float32", dynamic), Some(256.0));
    assert_eq!(scale("c", "mixed_float16", "off"), None);
    assert_eq!(scale("d", "float32", "8"), None);
    let weights = |name: &str| fs::read(folder.0.join(name).join("model/weights.safetensors"));
    // Powers of 2 change no bit of f32.
    assert!(weights("b").unwrap() == weights("d").unwrap());
}

#[test]
fn json_and_quiet_say_no_more_than_they_should() {
    let folder = Folder::new("json", "adam");
    let limits = [
        "train",
        "t.yaml",
        "--epochs",
        "1",
        "--steps-per-epoch",
        "2",
        "--output",
        "o2",
    ];
    let text = folder.succeed(&[&limits[..], &["--progress", "json"]].concat());
    let events: Vec<String> = text
        .lines()
        .map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["event"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(
        events.ends_with(&["epoch".into(), "test".into(), "saved".into()]),
        "{events:?}"
    );
    let text = folder.succeed(&[&limits[..], &["--quiet", "--overwrite"]].concat());
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(folder.0.join("o2/model").is_dir() && !folder.0.join("out").exists());
}

#[test]
fn what_goes_wrong_is_said_with_a_code_and_what_to_do() {
    let folder = Folder::new("wrong", "adam");
    folder.fail(&["train", "no.yaml"], 2, &["cannot read no.yaml", "next: "]);
    folder.fail(&["evaluate", "t.yaml"], 2, &["out/model", "train it first"]);
    folder.fail(
        &["train", "t.yaml", "--output", "a.csv"],
        1,
        &["a.csv", "--output"],
    );
    folder.fail(&["train", "t.yaml", "--epochs", "0"], 2, &["--epochs"]);
    folder.fail(
        &["train", "t.yaml", "--plugin", "a.csv"],
        3,
        &["a.csv", "next: "],
    );
    fs::write(folder.0.join("bad.yaml"), "data: {csv: a.csv}\nmodle: []\n").unwrap();
    folder.fail(
        &["train", "bad.yaml"],
        2,
        &["bad.yaml:2:1: ", "did you mean `model`?"],
    );
    let diverges = "data: {csv: a.csv, label_type: value}\nmodel: [{dense: {units: 1}}]\n\
                    optimizer: {sgd: {learning_rate: 1e30}}\nloss: mean_squared_error\n";
    fs::write(folder.0.join("nan.yaml"), diverges).unwrap();
    folder.fail(&["train", "nan.yaml"], 1, &["loss", "learning rate"]);
    let shapes = diverges
        .replace("units: 1}", "units: 3}")
        .replace("1e30", "0.1");
    fs::write(folder.0.join("shapes.yaml"), shapes).unwrap();
    folder.fail(&["train", "shapes.yaml"], 2, &["f32[32,3]"]);
}

#[test]
fn a_damaged_model_is_refused() {
    let folder = Folder::new("damaged", "adam");
    folder.succeed(&["train", "t.yaml", "--epochs", "1", "--quiet"]);
    let path = folder.0.join("out/model/weights.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    folder.fail(
        &["predict", "t.yaml"],
        2,
        &["weights.safetensors", "copy the file again"],
    );
}

#[test]
fn an_estimate_agrees_with_arithmetic_by_hand() {
    let folder = Folder::new("estimate", "adam");
    let text = folder.succeed(&[
        "estimate",
        "t.yaml",
        "--memory",
        "1MiB",
        "--progress",
        "json",
    ]);
    let event: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    let number = |name: &str| event[name].as_u64().unwrap();
    assert_eq!(event["event"], "estimate");
    // Kernels and biases of 2 x 16 and 16 x 2; two moments of each, and the rate.
    assert_eq!(number("parameters"), 48 + 34);
    assert_eq!(number("variable_bytes"), 82 * 4);
    assert_eq!(number("optimizer_bytes"), 82 * 2 * 4 + 4);
    // Eight rows of two features and a class; of 16 and 2 outputs.
    assert_eq!((number("batch_size"), number("batch_bytes")), (8, 8 * 12));
    assert_eq!(number("activation_bytes"), 8 * (16 + 2) * 4);
    let arguments = number("variable_bytes") + number("optimizer_bytes") + number("batch_bytes");
    let total = number("total_bytes");
    assert!(total >= arguments + number("temporary_bytes"), "{text}");
    assert!(
        total < arguments + number("temporary_bytes") + 1024,
        "{text}"
    );
    // Five products of 8 x 2 x 16 numbers, and the update of each parameter.
    assert!((2560..8000).contains(&number("flops")), "{text}");
    let of_data = ["per_replica", "steps_per_epoch", "batches"].map(|name| event[name].clone());
    assert_eq!(of_data, [json!(false), json!(null), json!(4)]);
    let largest = &event["largest"];
    assert_eq!(largest["memory"], 1 << 20);
    assert!(largest["batch_size"].as_u64().unwrap() > 1000, "{text}");
    assert!(
        (990_000..=1 << 20).contains(&largest["total_bytes"].as_u64().unwrap()),
        "{text}"
    );
}

#[test]
fn an_estimate_says_whose_batch_it_is_and_what_the_file_says_of_an_epoch() {
    let folder = Folder::new("estimate-replica", "adam");
    let sets = ["fit.batch_size={per_replica: 4}", "fit.steps_per_epoch=20"];
    let sets = sets.map(|set| ["--set", set]).concat();
    let start = ["estimate", "t.yaml", "--progress", "json"];
    let text = folder.succeed(&[&start[..], &sets].concat());
    let event: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    let names = ["per_replica", "batch_size", "steps_per_epoch", "batches"];
    let found = names.map(|name| event[name].clone());
    assert_eq!(found, [json!(true), json!(4), json!(20), json!(8)]);
}

#[test]
fn an_estimate_of_mixed_precision_is_in_words() {
    let folder = Folder::new("estimate-half", "adam");
    let half = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    fs::write(
        folder.0.join("half.yaml"),
        half + "precision: mixed_float16\n",
    )
    .unwrap();
    let text = folder.succeed(&["estimate", "half.yaml", "--batch-size", "16"]);
    for part in [
        "82 trained, mixed_float16",
        "the outputs of all layers are 576 B",
        "FLOP an example",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let trained = folder.succeed(&["train", "half.yaml", "--epochs", "2", "--progress", "plain"]);
    assert!(
        trained.contains("loss_scale 32768.0000, skipped_steps 0.0000"),
        "{trained}"
    );
    folder.fail(
        &["estimate", "t.yaml", "--memory", "much"],
        2,
        &["such as 8GiB"],
    );
}

/// The callbacks of a training file, over an interruption.
#[test]
fn callbacks_are_named_in_the_file() {
    let folder = Folder::new("callbacks", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let callbacks = "callbacks:\n  - EarlyStopping: {monitor: loss, min_delta: 1e6, patience: 3}\n  - csv_logger: {filename: log.csv, separator: \";\"}\n  - model_checkpoint: {filepath: \"saved/{epoch:02d}.safetensors\", monitor: loss, save_weights_only: true, keep: 2}\n";
    fs::write(&file, format!("{text}{callbacks}")).unwrap();
    let output = folder.phalanx(&["train", "t.yaml", "--progress", "json"]);
    let why = "`loss` has not improved on";
    let told = String::from_utf8(output.stderr).unwrap();
    let expected = format!("note: the training ends after 4 of 40 epochs: {why}");
    assert!(told.contains(&expected), "{told}");
    let events = String::from_utf8(output.stdout).unwrap();
    let stop = events.lines().find(|line| line.contains("\"stop\""));
    assert!(stop.is_some_and(|line| line.contains(why)), "{events}");
    let read = |name: &str| fs::read_to_string(folder.0.join(name)).unwrap();
    assert_eq!(read("out/history.jsonl").lines().count(), 4);
    let log = read("log.csv");
    assert_eq!(log.lines().count(), 5);
    assert!(log.starts_with("epoch;"), "{log}");
    let saved = fs::read_dir(folder.0.join("saved")).unwrap();
    let mut saved: Vec<_> = saved.map(|entry| entry.unwrap().file_name()).collect();
    saved.sort();
    assert_eq!(saved, ["03.safetensors", "04.safetensors"]);
    fs::write(
        &file,
        format!("{text}callbacks: [{{early_stopping: {{patince: 3}}}}]\n"),
    )
    .unwrap();
    let parts = ["unknown field `patince`", "did you mean `patience`?"];
    folder.fail(&["train", "t.yaml", "--overwrite"], 2, &parts);
    let nowhere = "callbacks: [{csv_logger: {filename: none/log.csv}}]\n";
    fs::write(&file, format!("{text}{nowhere}")).unwrap();
    let parts = [
        "csv_logger cannot open `none/log.csv`: ",
        "make its folder, or choose another `filename`",
    ];
    folder.fail(&["train", "t.yaml", "--overwrite"], 2, &parts);
}
