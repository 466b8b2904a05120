//! Mistakes of a first use, with what is said of each and how the program ends.
//!
//! `first_use/expected.txt` has the words; `PHALANX_UPDATE_EXPECTED=1 cargo test -p phalanx-cli --test first_use` writes it anew:
//! read the difference.

mod mistakes;

use std::fs;
use std::process::{Command, Output, Stdio};

use phalanx_testkit::Scratch;

/// A folder with data, removed at the end.
struct Folder(Scratch);

/// Sixty rows `x,y` of class 1 where x is greater.
fn rows() -> String {
    let row = |i: u32| {
        let (x, y) = ((i * 7) % 13, (i * 5) % 11);
        format!("{x},{y},{}\n", u8::from(x > y))
    };
    (0..60).map(row).collect()
}

/// A training file with these sections in place of those of a good one.
fn training(changes: &[(&str, &str)]) -> String {
    let mut sections = vec![
        ("data", "{csv: a.csv, test: {last: 20}}"),
        ("model", "[{dense: {units: 2, activation: softmax}}]"),
        ("optimizer", "adam"),
        ("loss", "sparse_categorical_crossentropy"),
        ("metrics", "[accuracy]"),
        ("fit", "{epochs: 1, batch_size: 8}"),
        ("output", "out"),
    ];
    for (name, value) in changes {
        match sections.iter_mut().find(|(other, _)| other == name) {
            Some(section) => section.1 = value,
            None => sections.push((name, value)),
        }
    }
    let line = |(name, value)| format!("{name}: {value}\n");
    sections.into_iter().map(line).collect()
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = Scratch::temporary(&format!("first-{name}"));
        let folder = Self(path);
        folder.write("a.csv", &rows());
        folder.write("t.yaml", &training(&[]));
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command
            .args(arguments.split(' '))
            .current_dir(&self.0)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn succeed(&self, arguments: &str) -> (String, String) {
        let output = self.run(arguments);
        let [said, told] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(0), "{arguments}: {told}");
        (said, told)
    }

    /// The exit code and what is told, without what differs from run to run.
    fn told(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        let kept = told
            .lines()
            .filter(|line| !line.starts_with("replicas add") && !line.contains("compiling"));
        let told: Vec<&str> = kept.collect();
        let code = output.status.code().unwrap();
        let here = self.0.display().to_string();
        format!("{code}: {}", told.join("\n")).replace(&here, "HERE")
    }
}

#[test]
fn a_training_begins_with_the_weights_of_another() {
    let folder = Folder::new("weights");
    let model = "[{dense: {units: 4, activation: tanh}}, {dense: {units: 2, activation: softmax}}]";
    folder.write("t.yaml", &training(&[("model", model)]));
    folder.succeed("train t.yaml --quiet");
    let variables = |output: &str| {
        let path = folder.0.join(output).join("model");
        let model = phalanx::saved::SavedModel::load(path).unwrap();
        let names = [
            "dense/kernel",
            "dense/bias",
            "dense_1/kernel",
            "dense_1/bias",
        ];
        names.map(|name| model.value(name).unwrap().to_f64())
    };
    let before = variables("out");
    let begin = |key: &str, value: &str, rate: &str| {
        let optimizer = format!("{{sgd: {{learning_rate: {rate}}}}}");
        let sections = [("model", model), ("optimizer", &optimizer), (key, value)];
        folder.write("m.yaml", &training(&sections));
        folder.succeed("train m.yaml --quiet --overwrite --output new --set fit.seed=8");
        variables("new")
    };
    let file = "out/model/weights.safetensors";
    assert_eq!(begin("weights", file, "0"), before);
    let tuning = format!("{{weights: {file}, freeze: [dense]}}");
    let tuned = begin("fine_tune", &tuning, "0.5");
    assert_eq!(tuned[..2], before[..2]);
    assert!(tuned[2] != before[2] && tuned[3] != before[3]);
    // The seed alone begins elsewhere.
    assert_ne!(begin("precision", "float32", "0"), before);
}

#[test]
fn a_run_keeps_what_its_model_is_used_with() {
    let folder = Folder::new("kept");
    let rows = rows().replace(",0\n", ",no\n").replace(",1\n", ",yes\n");
    folder.write("h.csv", &format!("x,y,c\n{rows}"));
    let turned: String = rows
        .lines()
        .map(|row| {
            let fields: Vec<&str> = row.split(',').collect();
            format!("{},{},{}\n", fields[1], fields[2], fields[0])
        })
        .collect();
    folder.write("turned.csv", &format!("y,c,x\n{turned}"));
    let data = "{csv: h.csv, standardize: true, test: {split: 0.25}}";
    folder.write("m.yaml", &training(&[("data", data), ("output", "runs/m")]));
    let (said, _) = folder.succeed("train m.yaml --progress plain --set fit.epochs=3");
    let data = "data: 45 examples to train on, 15 to test; each of [2]; 2 classes: no, yes\n";
    assert!(said.starts_with(data), "{said}");
    let tested = said
        .lines()
        .find_map(|line| line.strip_prefix("test: "))
        .unwrap();
    // From another folder, without the training file: the same test rows.
    fs::create_dir(folder.0.join("elsewhere")).unwrap();
    let mut command = folder.command("evaluate ../runs/m");
    let output = command
        .current_dir(folder.0.join("elsewhere"))
        .output()
        .unwrap();
    let evaluated = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        evaluated.trim_end().strip_prefix("evaluate: "),
        Some(tested)
    );
    // Columns in another order are found by their names.
    let (straight, _) = folder.succeed("predict runs/m h.csv");
    assert!(
        straight.starts_with("class,score_no,score_yes\n"),
        "{straight}"
    );
    assert_eq!(folder.succeed("predict runs/m turned.csv").0, straight);
    assert_eq!(
        folder.succeed("evaluate runs/m turned.csv"),
        folder.succeed("evaluate m.yaml --csv h.csv")
    );
    let kept: serde_json::Value =
        serde_json::from_str(&folder.read("runs/m/model/training.json")).unwrap();
    assert_eq!(kept["overrides"][0], "fit.epochs=3");
    assert_eq!(kept["facts"]["classes"], serde_json::json!(["no", "yes"]));
    assert_eq!(kept["seed"], 0);
}

#[test]
fn an_earlier_training_is_kept_until_it_is_said_to_be_replaced() {
    let folder = Folder::new("earlier");
    folder.succeed("train t.yaml --quiet --resume");
    let before = fs::read(folder.0.join("out/model/weights.safetensors")).unwrap();
    let told = folder.told("train t.yaml --quiet");
    let why = "out has the model and the checkpoint of a training before\n  next: go on with it with --resume, replace it with --overwrite, or choose another folder with --output";
    assert_eq!(told, format!("2: error: {why}"));
    assert_eq!(
        fs::read(folder.0.join("out/model/weights.safetensors")).unwrap(),
        before
    );
    assert!(folder.0.join("out/checkpoint").exists());
    // Nothing to do is said.
    let (_, told) = folder.succeed("train t.yaml --resume --progress plain");
    assert!(told.contains("nothing is trained: the checkpoint at out/checkpoint, after step 5, has 1 epochs done, and 1 are asked for"), "{told}");
    folder.succeed("train t.yaml --quiet --overwrite --set fit.seed=4");
    assert!(!folder.0.join("out/checkpoint").exists());
    assert_ne!(
        fs::read(folder.0.join("out/model/weights.safetensors")).unwrap(),
        before
    );
}

#[test]
fn a_folder_belongs_to_one_training_and_has_its_epochs_at_once() {
    let folder = Folder::new("lock");
    folder.write(
        "t.yaml",
        &training(&[("fit", "{epochs: 1000000, batch_size: 8}")]),
    );
    let mut child = folder
        .command("train t.yaml --quiet")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let path = folder.0.join("out/history.jsonl");
    let lines = || fs::read_to_string(&path).map_or(0, |text| text.lines().count());
    phalanx_testkit::wait_until("two epochs", || {
        child.try_wait().unwrap().is_some() || lines() >= 2
    });
    let told = folder.told("train t.yaml --quiet --overwrite");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        told.starts_with("2: error: another training is writing to out now"),
        "{told}"
    );
    assert!(lines() >= 2);
    assert!(!folder.0.join("out/model").exists());
    // A lock ends with its owner.
    folder.succeed("train t.yaml --quiet --epochs 1");
    assert_eq!(lines(), 1);
}

#[test]
fn a_stopped_training_is_evaluated_by_its_checkpoint() {
    let folder = Folder::new("stopped");
    folder.succeed("train t.yaml --quiet --resume");
    let model = folder.succeed("evaluate out").0;
    fs::remove_dir_all(folder.0.join("out/model")).unwrap();
    let told = folder.told("evaluate out");
    assert!(
        told.contains("use its checkpoint with --checkpoint"),
        "{told}"
    );
    assert_eq!(folder.succeed("evaluate out --checkpoint").0, model);
    assert_eq!(
        folder.succeed("predict out --checkpoint").0.lines().count(),
        21
    );
}

#[test]
fn an_estimate_needs_no_memory_for_the_model() {
    let folder = Folder::new("estimate");
    // 4 TB of parameters.
    let model = "[{dense: {units: 1000000}}, {dense: {units: 1000000}}, {dense: {units: 2, activation: softmax}}]";
    folder.write("t.yaml", &training(&[("model", model)]));
    let (said, _) = folder.succeed("estimate t.yaml --progress json");
    let event: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    let parameters = 3_000_000u64 + 1_000_001_000_000 + 2_000_002;
    assert_eq!(event["parameters"].as_u64(), Some(parameters));
    assert_eq!(event["variable_bytes"].as_u64(), Some(parameters * 4));
    folder.succeed("train t.yaml --dry-run --quiet");
    assert!(!folder.0.join("out").exists());
}

#[test]
fn replicas_without_rows_are_told_and_lists_of_names_are_short() {
    let folder = Folder::new("replicas");
    let (said, told) = folder.succeed("train t.yaml --devices cpu:20 --progress plain");
    let line = said
        .lines()
        .find(|line| line.starts_with("training on"))
        .unwrap();
    assert!(
        line.starts_with("training on 20 replicas (cpu:0, cpu:1, cpu:2, cpu:3, cpu:4, cpu:5, .., cpu:19): global batch 8, [1, 1, 1, 1, 1, 1, .., 0] per replica"),
        "{line}"
    );
    let warning = "warning: 12 of 20 replicas get no example of a batch of 8 rows, and compute for nothing; use fewer devices, or larger batches";
    assert!(told.lines().any(|line| line == warning), "{told}");
}

#[test]
fn an_accelerator_that_is_found_is_tried_and_this_is_told() {
    let folder = Folder::new("accelerator");
    folder.write("plugin.so", "no library");
    let mut train = folder.command("train t.yaml --progress plain");
    let output = train
        .env("PHALANX_PJRT_CUDA", "plugin.so")
        .output()
        .unwrap();
    let [said, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("warning: gpu does not start and is not used: "),
        "{told}"
    );
    assert!(said.contains("training on cpu:0"), "{said}");
}

#[test]
fn a_model_is_saved_before_it_is_tested() {
    let folder = Folder::new("saved");
    // The test rows are read first and found good; then their loss is infinite.
    folder.write("far.csv", "1e30,1e30,1e30\n");
    let data = "{csv: a.csv, label_type: value, test: {csv: far.csv}}";
    let changes = [
        ("data", data),
        ("model", "[{dense: {units: 1}}]"),
        ("loss", "mean_squared_error"),
        ("metrics", "[]"),
    ];
    folder.write("t.yaml", &training(&changes));
    let told = folder.told("train t.yaml --quiet");
    assert!(
        told.starts_with("1: error: the loss on the test rows is infinite"),
        "{told}"
    );
    assert!(folder.0.join("out/model/model.json").exists());
}

#[test]
fn shards_are_replaced_as_a_whole_and_found_in_their_folder() {
    let folder = Folder::new("shards");
    folder.succeed("data shard a.csv --to s --shards 3");
    folder.succeed("data shard a.csv --to s --shards 2 --overwrite");
    for data in ["s", "s/data-*"] {
        let (said, _) = folder.succeed(&format!("data inspect {data} --rows 1"));
        assert!(
            said.starts_with("tfrecord: 60 examples in 2 files\n"),
            "{said}"
        );
    }
    // What fails leaves nothing behind.
    folder.write("bad.csv", "1,2,3\n1,x,3\n");
    folder.run("data shard bad.csv --to t");
    assert!(fs::read_dir(folder.0.join("t")).is_err());
}
