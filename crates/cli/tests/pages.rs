//! The commands of `docs/observability.md` and `docs/serving.md`, run in a folder with the training file of the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx_testkit::Scratch;
use serde_json::{Value, json};

/// The blocks of a page of this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let parts = page.split("```").skip(1).step_by(2);
    let own = parts.filter_map(|part| part.strip_prefix(&format!("{language}\n")));
    own.map(str::to_owned).collect()
}

fn run(folder: &Path, line: &str) -> String {
    let phalanx = env!("CARGO_BIN_EXE_phalanx");
    let words = line.split_whitespace().skip(1);
    // `launch` is given the program itself too.
    let words = words.map(|word| if word == "phalanx" { phalanx } else { word });
    let output = Command::new(phalanx)
        .args(words)
        .current_dir(folder)
        .output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}\n{text}{told}");
    text
}

/// The commands of a page of `docs` and what each printed, and the folder in which they ran.
fn run_page(name: &str) -> (Scratch, Vec<(String, String)>) {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(repository.join("docs").join(name)).unwrap();
    let folder = Scratch::temporary(name);
    let data = repository.join("crates/phalanx/data/digits.csv.gz");
    fs::copy(data, folder.join("digits.csv.gz")).unwrap();
    fs::write(folder.join("digits.yaml"), &blocks(&page, "yaml")[0]).unwrap();
    let lines = blocks(&page, "sh").concat();
    let lines = lines.lines();
    let told = lines.map(|line| (line.to_owned(), run(&folder, line)));
    let told = told.collect();
    (folder, told)
}

#[test]
fn the_commands_of_observability_do_what_it_says() {
    let (folder, told) = run_page("observability.md");
    assert_eq!(told.len(), 9);
    let of = |command: &str| {
        let found = told.iter().find(|(line, _)| line.contains(command));
        &found.unwrap().1
    };
    for run in [
        "train",
        "validation",
        "train_steps",
        "validation_steps",
        "worker-0",
    ] {
        assert!(folder.join("events/digits").join(run).exists(), "{run}");
    }
    let compared = of("compare");
    let rate = compared
        .lines()
        .find(|line| line.starts_with("optimizer.adam.learning_rate"));
    let values: Vec<&str> = rate.unwrap().split_whitespace().skip(1).collect();
    assert_eq!(values, ["0.002", "0.0005"], "{compared}");
    assert!(compared.contains("val_loss"), "{compared}");
    let plotted = of("plot runs/digits runs/slow --log loss");
    assert!(
        plotted.starts_with("loss\n") && plotted.contains("B  runs/slow (learning_rate 0.0005)"),
        "{plotted}"
    );
    let picture = fs::read_to_string(folder.join("curves.svg")).unwrap();
    assert_eq!(
        picture.matches(r#"stroke-width="1.8""#).count(),
        16,
        "lines and legends of two logs of two trainings with validations"
    );
    let picture = fs::read(folder.join("curves.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
    let profile = folder.join("events/digits/train/plugins/profile/step-15/worker-0.xplane.pb");
    assert!(fs::metadata(profile).unwrap().len() > 500);
    assert!(of("step_time_ms").starts_with("step_time_ms/compute\n"));
    check_files(&folder);
}

/// What the commands of the page have written, and the words for a log that no run has.
fn check_files(folder: &Path) {
    let history = fs::read_to_string(folder.join("runs/digits/history.jsonl")).unwrap();
    let last: Value = serde_json::from_str(history.lines().last().unwrap()).unwrap();
    assert!(last["times"]["compute"].as_f64().unwrap() > 0.0);
    for (name, workers) in [("trace.json", 1), ("trace-of-two.json", 2)] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        let steps = trace["traceEvents"].as_array().unwrap().iter();
        let steps = steps.filter(|event| event["name"] == "step").count();
        assert_eq!(steps, 10 * workers, "{name}");
    }
    let failed = Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(["plot", "runs/digits", "--log", "los"])
        .current_dir(folder)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(2), "{told}");
    assert!(
        told.contains("no run has a log `los`; there are accuracy, loss"),
        "{told}"
    );
}

#[test]
fn the_commands_of_serving_do_what_it_says() {
    let (folder, told) = run_page("serving.md");
    assert_eq!(told.len(), 4);
    let onnx = "4 variables are in digits.onnx; in Python: onnxruntime.InferenceSession(\"digits.onnx\").run(None, {..})\n";
    assert_eq!(told[1].1, onnx);
    assert!(folder.join("digits.onnx").is_file());
    assert_eq!(
        told[2].1,
        "4 variables are in digits.safetensors; digits.mlir.json says what digits.mlir takes and gives\n"
    );
    for (name, rows) in [("digits", 1), ("digits-64", 64)] {
        let text = fs::read_to_string(folder.join(format!("{name}.mlir.json"))).unwrap();
        let about: Value = serde_json::from_str(&text).unwrap();
        let of = |list: &str| {
            let list = about[list].as_array().unwrap().iter();
            let one = list.map(|one| json!([one["source"], one["name"], one["dims"]]));
            one.collect::<Vec<Value>>()
        };
        let expected = [
            json!(["weights", "conv2d/kernel", [3, 3, 1, 4]]),
            json!(["weights", "conv2d/bias", [4]]),
            json!(["weights", "dense/kernel", [144, 10]]),
            json!(["weights", "dense/bias", [10]]),
            json!(["input", "input", [rows, 8, 8, 1]]),
        ];
        assert_eq!(of("arguments"), expected);
        assert_eq!(of("results"), [json!([null, "dense", [rows, 10]])]);
        let read = |path: &str| fs::read(folder.join(path)).unwrap();
        assert_eq!(
            read(&format!("{name}.safetensors")),
            read("runs/digits/model/weights.safetensors")
        );
    }
}
