//! `train`, `evaluate` and `predict` from end to end, on the CPU plugin.

use std::fs;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use phalanx_testkit::Scratch;

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

/// The folder with `pictures` of two classes, and an `i.yaml` that trains on them.
fn with_images(name: &str, data: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    let synth = "data synth --classes 2 --count 40 --width 12 --height 12 --to";
    let synth: Vec<&str> = synth.split(' ').collect();
    folder.succeed(&[&synth[..], &["pictures"]].concat());
    let text = format!(
        "data: {{image_folder: pictures, image_size: [8, 8]{data}}}\n\
         model: [flatten, {{dense: {{units: 2, activation: softmax}}}}]\n\
         optimizer: adam\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n\
         fit: {{epochs: 2, batch_size: 8, validation: {{split: 0.25}}, keep_best: val_loss}}\noutput: out\n"
    );
    fs::write(folder.0.join("i.yaml"), text).unwrap();
    folder
}

#[test]
fn a_model_of_images_is_tested_evaluated_and_predicts() {
    let folder = with_images("images", ", test: {split: 0.3}");
    let text = folder.succeed(&["train", "i.yaml", "--progress", "plain"]);
    let mut lines = text.lines();
    let tested = lines.find_map(|line| line.strip_prefix("test: ")).unwrap();
    let evaluated = folder.succeed(&["evaluate", "i.yaml"]);
    let evaluated = evaluated.trim_end().strip_prefix("evaluate: ");
    assert_eq!(evaluated, Some(tested));
    let predicted = folder.succeed(&["predict", "i.yaml"]);
    assert_eq!(predicted.lines().count(), 1 + 12, "{predicted}");

    // All images: the classes are the folders, in the order of predictions without them.
    let all = folder.succeed(&["evaluate", "i.yaml", "--images", "pictures"]);
    let predicted = folder.succeed(&["predict", "i.yaml", "--images", "pictures"]);
    assert_eq!(predicted.lines().count(), 1 + 40);
    assert!(
        predicted.starts_with("file,class,score_class_00,score_class_01\nclass_00/00000"),
        "{predicted}"
    );
    let right = |(i, line): &(usize, &str)| {
        let class = line.split(',').nth(1);
        class == Some(if *i < 20 { "class_00" } else { "class_01" })
    };
    let right = predicted.lines().skip(1).enumerate().filter(right).count();
    let accuracy = format!("accuracy {:.4}", right as f64 / 40.0);
    assert!(all.contains(&accuracy), "no {accuracy} in {all}");

    let wrong = [
        ("--csv", "a.csv", "name a folder of images with --images"),
        ("--images", "pictures/class_00", "has 0 folders"),
    ];
    for (option, value, next) in wrong {
        folder.fail(&["evaluate", "i.yaml", option, value], 2, &[next]);
    }
    fs::create_dir(folder.0.join("pictures/none")).unwrap();
    fs::create_dir_all(folder.0.join("new/class_00")).unwrap();
    let (from, to) = ("pictures/class_00/000000.jpg", "new/class_00/a.jpg");
    fs::copy(folder.0.join(from), folder.0.join(to)).unwrap();
    let classes =
        "the classes of new are class_00, expected those of the training, class_00, class_01;";
    folder.fail(&["evaluate", "i.yaml", "--images", "new"], 2, &[classes]);
    folder.succeed(&["predict", "i.yaml", "--images", "new"]);
}

#[test]
fn mixed_images_train_with_labels_as_shares() {
    let folder = with_images("mixed", ", test: {split: 0.3}, augment: {mix_up: 0.3}");
    let path = folder.0.join("i.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("sparse_", "")).unwrap();
    folder.succeed(&["train", "i.yaml", "--progress", "plain"]);
    let evaluated = folder.succeed(&["evaluate", "i.yaml"]);
    assert!(evaluated.contains("accuracy"), "{evaluated}");
    let all = folder.succeed(&["evaluate", "i.yaml", "--images", "pictures"]);
    assert!(all.contains("accuracy"), "{all}");

    let text = text.replace("sparse_", "").replace("units: 2", "units: 1");
    fs::write(&path, text).unwrap();
    let parts = [":1:", "the model has 1 output", "a unit for each class"];
    folder.fail(&["train", "i.yaml", "--overwrite"], 2, &parts);
}

#[test]
fn a_model_of_images_without_a_test_says_what_is_missing() {
    let folder = with_images("no-test", "");
    folder.succeed(&["train", "i.yaml", "--epochs", "1", "--quiet"]);
    for command in ["evaluate", "predict"] {
        let parts = [
            "i.yaml has no test images",
            "with --images, or add `test: {split: 0.1}` to data",
        ];
        folder.fail(&[command, "i.yaml"], 2, &parts);
    }
    folder.succeed(&["train", "t.yaml", "--epochs", "1", "--quiet", "--overwrite"]);
    folder.fail(
        &["predict", "t.yaml", "--images", "pictures"],
        2,
        &["name a CSV file with --csv"],
    );
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
    let largest = &event["largest"];
    assert_eq!(largest["memory"], 1 << 20);
    assert!(largest["batch_size"].as_u64().unwrap() > 1000, "{text}");
    assert!(
        (990_000..=1 << 20).contains(&largest["total_bytes"].as_u64().unwrap()),
        "{text}"
    );

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

/// Trains until a checkpoint of the second epoch is there, and is sent a signal then; how it ended, and what it said.
fn signalled(folder: &Folder, arguments: &[&str], signal: &str) -> (ExitStatus, String) {
    // A test that runs under `nohup` ignores SIGHUP, and so would the training.
    let mut command = Command::new("env");
    command.args([
        "--default-signal=INT,TERM,HUP,USR1",
        env!("CARGO_BIN_EXE_phalanx"),
    ]);
    command.args(arguments).current_dir(&folder.0);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let manifest = folder.0.join("out/checkpoint/checkpoint.json");
    let is_there =
        || fs::read_to_string(&manifest).is_ok_and(|text| !text.contains("\"epoch\": 0"));
    while child.try_wait().unwrap().is_none() && !is_there() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    // Nobody is there to get it where the training was quicker.
    let _ = Command::new("kill").args(["-s", signal, &id]).status();
    let (ended, end) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watch.join().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status, told)
}

#[test]
fn signals_end_a_training_with_a_checkpoint() {
    let folder = Folder::new("signals", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let endless = text.replace("epochs: 40", "epochs: 1000000, save_freq: epoch");
    fs::write(&file, endless).unwrap();
    for (signal, exit) in [("INT", 130), ("TERM", 143), ("HUP", 143), ("USR1", 143)] {
        let _ = fs::remove_dir_all(folder.0.join("out"));
        let (status, told) = signalled(&folder, &["train", "t.yaml"], signal);
        assert_eq!(status.code(), Some(exit), "{told}");
        let step: String = between(&told, "stopped after step ", ";").into();
        assert!(told.contains("go on with the same command"), "{told}");
        let output = folder.phalanx(&["train", "t.yaml", "--resume", "--epochs", "1"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(&format!("after step {step},")), "{told}");
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).map(|(_, rest)| rest);
    let found = rest.and_then(|rest| rest.split_once(after));
    found.unwrap_or_else(|| panic!("no {before:?} in {text}")).0
}

#[test]
fn a_training_that_was_killed_goes_on_to_the_same_end() {
    let folder = Folder::new("resume", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace(
        "epochs: 40",
        "epochs: 12, save_freq: 3, keep_best: val_loss, tensorboard: events",
    );
    fs::write(&file, &text).unwrap();
    signalled(&folder, &["train", "t.yaml", "--quiet"], "KILL");
    // The same command once more would begin anew, and what was learned be gone.
    let parts = [
        "out has the checkpoint of a training before",
        "go on with it with --resume",
    ];
    folder.fail(&["train", "t.yaml"], 2, &parts);
    let output = folder.phalanx(&["train", "t.yaml", "--resume"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("training goes on from out/checkpoint, after step "),
        "{told}"
    );
    // One file of the training that was killed, one of that which went on.
    let events = fs::read_dir(folder.0.join("events/train")).unwrap();
    assert_eq!(events.count(), 2);
    fs::write(&file, text.replace("save_freq: 3, ", "")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet", "--output", "whole"]);
    assert!(!folder.0.join("whole/checkpoint").exists());
    let read = |name: &str| fs::read(folder.0.join(name)).unwrap();
    let weights = "model/weights.safetensors";
    assert!(read(&format!("out/{weights}")) == read(&format!("whole/{weights}")));
    assert_eq!(read("out/test.json"), read("whole/test.json"));
    let logs = |name: &str| -> Vec<serde_json::Value> {
        let text = String::from_utf8(read(name)).unwrap();
        let lines = text.lines().map(|line| {
            let mut epoch: serde_json::Value = serde_json::from_str(line).unwrap();
            for measured in ["seconds", "times", "verdict"] {
                epoch[measured].take();
            }
            epoch
        });
        lines.collect()
    };
    assert_eq!(logs("out/history.jsonl"), logs("whole/history.jsonl"));
    assert_eq!(logs("out/history.jsonl").len(), 12);
    fs::write(&file, text.replace("epochs: 12", "epochs: 12, seed: 5")).unwrap();
    let parts = [
        "out/checkpoint is of the seed 0, and fit has 5",
        "write `seed: 0`",
    ];
    folder.fail(&["train", "t.yaml", "--resume"], 2, &parts);
    let told = folder.phalanx(&[
        "train", "t.yaml", "--resume", "--epochs", "1", "--output", "new",
    ]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        told.contains("no checkpoint at new/checkpoint yet"),
        "{told}"
    );
    assert!(folder.0.join("new/checkpoint/checkpoint.json").exists());
    // A later model has no checkpoint of an earlier training beside it.
    let text = text.replace("save_freq: 3, ", "");
    fs::write(&file, text).unwrap();
    folder.succeed(&[
        "train",
        "t.yaml",
        "--quiet",
        "--epochs",
        "1",
        "--output",
        "new",
        "--overwrite",
    ]);
    assert!(folder.0.join("new/model/model.json").exists());
    assert!(!folder.0.join("new/checkpoint").exists());
}

/// The value of a log in a line of results.
fn value_of(line: &str, log: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("{log} ")).unwrap();
    let end = rest.find(|c: char| !"0123456789.e-".contains(c));
    rest[..end.unwrap_or(rest.len())].parse().unwrap()
}

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

/// Sixty clicks of users 0 to 5 on items 0 to 3 at prices, those of users with a number above the item's.
fn with_inputs(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let row = |i: u32| {
        let (user, item, price) = (i % 6, (i / 6) % 4, (i * 7) % 10);
        format!("{price},{item},{user},{}\n", u8::from(user > item))
    };
    let rows: String = (0..60).map(row).collect();
    fs::write(
        folder.0.join("a.csv"),
        format!("price,item,user,clicked\n{rows}"),
    )
    .unwrap();
    let text = "data: {csv: a.csv, label: clicked, standardize: true, test: {last: 20}, inputs: {user: user, about: [price], item: item}}\n\
        model:\n\
        - embedding: {inputs: user, input_dim: 6, output_dim: 4, name: user_vector}\n\
        - embedding: {inputs: item, input_dim: 4, output_dim: 4, name: item_vector}\n\
        - dense: {inputs: about, units: 4, name: about_vector}\n\
        - concatenate: {inputs: [user_vector, about_vector, item_vector]}\n\
        - dense: {units: 16, activation: tanh}\n\
        - dense: {units: 1}\n\
        optimizer: {adagrad: {learning_rate: 0.3}}\nloss: {binary_crossentropy: {from_logits: true}}\n\
        metrics: [auc: {from_logits: true}]\n\
        fit: {epochs: 30, batch_size: 8, save_freq: epoch}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder
}

#[test]
fn a_model_of_several_inputs_trains_alike_alone_on_workers_and_on_servers() {
    let folder = with_inputs("inputs");
    let dry = folder.succeed(&["train", "t.yaml", "--dry-run"]);
    assert!(
        dry.contains("each of user an index, about [1], item an index"),
        "{dry}"
    );
    let test_line = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("test: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let one = test_line(&folder.succeed(&["train", "t.yaml", "--progress", "plain"]));
    assert!(value_of(&one, "auc") > 0.9, "{one}");
    // From the checkpoint of half of the way.
    let half = ["train", "t.yaml", "--output", "half", "--progress", "plain"];
    folder.succeed(&[&half[..], &["--epochs", "15"]].concat());
    let resumed = test_line(&folder.succeed(&[&half[..], &["--resume"]].concat()));
    assert_eq!(resumed, one);
    for run in ["out", "half"] {
        let evaluated = folder.succeed(&["evaluate", run]);
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    }
    let evaluated = folder.succeed(&["evaluate", "out", "--checkpoint"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    // Columns are found by their names, in any order and with others between them.
    fs::write(
        folder.0.join("as-was.csv"),
        "price,item,user,clicked\n3,1,0,1\n4,2,4,0\n",
    )
    .unwrap();
    fs::write(
        folder.0.join("other.csv"),
        "user,shop,price,item\n0,x,3,1\n4,y,4,2\n",
    )
    .unwrap();
    let predicted =
        ["as-was.csv", "other.csv"].map(|file| folder.succeed(&["predict", "out", file]));
    assert_eq!(predicted[0], predicted[1]);
    let values: Vec<f64> = predicted[0]
        .lines()
        .skip(1)
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(values[0] < 0.0 && values[1] > 0.0, "{values:?}");
    let program = env!("CARGO_BIN_EXE_phalanx");
    let workers = [
        "launch",
        "--workers",
        "2",
        "--",
        program,
        "train",
        "t.yaml",
        "--output",
        "two",
    ];
    let sync = "strategy={parameter_server: {mode: sync, table_bytes: 0}}";
    let servers = [
        "launch",
        "--workers",
        "1",
        "--ps",
        "2",
        "--",
        program,
        "train",
        "t.yaml",
        "--output",
        "ps",
        "--set",
        sync,
    ];
    for launch in [&workers[..], &servers[..]] {
        let several = test_line(&folder.succeed(&[launch, &["--progress", "plain"]].concat()));
        for log in ["loss", "auc"] {
            let (one, several) = (value_of(&one, log), value_of(&several, log));
            assert!((one - several).abs() <= 2e-4, "{log} {one} {several}");
        }
    }
    let beyond = "user,price,item\n6,3,1\n";
    fs::write(folder.0.join("beyond.csv"), beyond).unwrap();
    let parts = [
        "the index 6 of example 0",
        "of the layer `user_vector`, 0 to 5",
    ];
    folder.fail(&["predict", "out", "beyond.csv"], 2, &parts);
    // Another meaning of the inputs.
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("user: user,", "user: item,")
            .replace("item: item", "item: user"),
    )
    .unwrap();
    folder.fail(&["evaluate", "t.yaml"], 2, &["`columns` of t.yaml is"]);
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

/// The callbacks of a training file, over an interruption.
#[test]
fn callbacks_are_named_in_the_file() {
    let folder = Folder::new("callbacks", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let callbacks = "callbacks:\n  - EarlyStopping: {monitor: loss, min_delta: 1e6, patience: 3}\n  - csv_logger: {filename: log.csv, separator: \";\"}\n  - model_checkpoint: {filepath: \"saved/{epoch:02d}.safetensors\", monitor: loss, save_weights_only: true, keep: 2}\n";
    fs::write(&file, format!("{text}{callbacks}")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
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
}

#[test]
fn checkpoints_are_listed_checked_compared_and_removed() {
    let folder = Folder::new("ckpt", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("epochs: 40", "epochs: 3, save_freq: epoch");
    fs::write(&file, text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let path = "out/checkpoint";
    let run = |arguments: &[&str]| {
        let output = folder.phalanx(&[&["ckpt"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = run(&["ls", path]);
    assert_eq!((code, text.lines().count()), (Some(0), 2), "{text}");
    assert!(
        text.contains("out/checkpoint: step ") && text.contains("3 epochs done"),
        "{text}"
    );
    assert_eq!(run(&["verify", path]).0, Some(0));
    let (code, text) = run(&["diff", path, path]);
    assert_eq!((code, &*text), (Some(0), "equal\n"));
    let (code, text) = run(&["diff", path, "out/checkpoint.1"]);
    assert!(
        code == Some(1) && text.contains("differs by up to "),
        "{text}"
    );
    assert_eq!(run(&["export", path, "w.safetensors"]).0, Some(0));
    let weights = fs::read(folder.0.join("out/checkpoint/weights.safetensors")).unwrap();
    assert_eq!(fs::read(folder.0.join("w.safetensors")).unwrap(), weights);
    let damaged = folder.0.join("out/checkpoint.1/weights.safetensors");
    fs::write(damaged, &weights[1..]).unwrap();
    let (code, text) = run(&["verify", path]);
    assert!(
        code == Some(1) && text.contains("out/checkpoint.1: damaged: "),
        "{text}"
    );
    assert_eq!(run(&["prune", path]).0, Some(0));
    assert_eq!(run(&["ls", path]).1.lines().count(), 1);
    assert_eq!(run(&["ls", "nowhere"]).0, Some(2));
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
    assert!(
        folder
            .succeed(&["evaluate", "--follow", "out"])
            .starts_with("step 160")
    );
    fs::remove_file(folder.0.join("out/checkpoint.done")).unwrap();
    let waits = ["evaluate", "--follow", "out", "--wait", "1"];
    folder.fail(&waits, 75, &["after the one of step 160", "for 1 seconds"]);
    let nothing = ["evaluate", "--follow", "elsewhere", "--wait", "1"];
    folder.fail(&nothing, 2, &["elsewhere"]);
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
