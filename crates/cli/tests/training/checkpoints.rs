//! Trainings that are interrupted and go on, and the commands for checkpoints.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::Folder;

/// Trains until a checkpoint of the second epoch is there, and is sent signals then; how it ended, and what it said.
fn signalled(folder: &Folder, arguments: &[&str], signals: &str) -> (ExitStatus, String) {
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
    phalanx_testkit::wait_until("a checkpoint after the first epoch", || {
        child.try_wait().unwrap().is_some() || is_there()
    });
    let id = child.id().to_string();
    // Nobody is there to get it where the training was quicker.
    let kill = "for signal in $1; do kill -s $signal $0; done";
    let _ = Command::new("sh").args(["-c", kill, &id, signals]).status();
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
    // What follows at once is the same wish: Slurm signals all processes of a task, and they each other.
    for (signal, exit) in [
        ("INT", 130),
        ("TERM", 143),
        ("HUP", 143),
        ("USR1", 143),
        ("TERM USR1", 143),
    ] {
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
    // A training may end before a signal that comes late.
    let was_killed = (0..5).any(|_| {
        for of_the_last in ["out", "events"] {
            let _ = fs::remove_dir_all(folder.0.join(of_the_last));
        }
        let (status, _) = signalled(&folder, &["train", "t.yaml", "--quiet"], "KILL");
        status.signal() == Some(9)
    });
    assert!(was_killed);
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
    let [out, whole] = ["out", "whole"].map(|name| logs(&folder, name));
    assert_eq!(out, whole);
    assert_eq!(out.len(), 12);
    check_seed_and_later_models(&folder, &text);
}

/// The epochs of a training, without what was measured.
fn logs(folder: &Folder, output: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.0.join(output).join("history.jsonl")).unwrap();
    let lines = text.lines().map(|line| {
        let mut epoch: serde_json::Value = serde_json::from_str(line).unwrap();
        for measured in ["seconds", "throughput", "times", "verdict"] {
            epoch[measured].take();
        }
        epoch
    });
    lines.collect()
}

/// A checkpoint goes on with its own seed only, and is removed by a training without one.
fn check_seed_and_later_models(folder: &Folder, text: &str) {
    let file = folder.0.join("t.yaml");
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
    fs::write(&file, text.replace("save_freq: 3, ", "")).unwrap();
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
        text.contains("out/checkpoint: step ")
            && text.contains("3 epochs done")
            && text.ends_with("by 1 worker\n"),
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
    // A folder is its newest.
    assert_eq!(run(&["diff", "out", path]), (Some(0), "equal\n".into()));
    assert_eq!(run(&["diff", "out/checkpoint.1", "out"]).0, Some(1));
    assert_eq!(run(&["export", "out", "w.safetensors"]).0, Some(0));
    let newest = fs::read(folder.0.join("w.safetensors")).unwrap();
    assert_eq!(run(&["export", path, "w.safetensors"]).0, Some(0));
    assert!(fs::read(folder.0.join("w.safetensors")).unwrap() == newest);
    let weights = fs::read(folder.0.join("out/checkpoint/weights.safetensors")).unwrap();
    assert_eq!(fs::read(folder.0.join("w.safetensors")).unwrap(), weights);
    let damaged = folder.0.join("out/checkpoint.1/weights.safetensors");
    let whole = fs::read(&damaged).unwrap();
    fs::write(&damaged, &weights[1..]).unwrap();
    let (code, text) = run(&["verify", path]);
    assert!(
        code == Some(1) && text.contains("out/checkpoint.1: damaged: "),
        "{text}"
    );
    // The newest whole one is never removed, and what is damaged does not count.
    let newest = folder.0.join("out/checkpoint/weights.safetensors");
    fs::write(&newest, &weights[1..]).unwrap();
    fs::write(&damaged, &whole).unwrap();
    // What is damaged is not the newest whole one.
    assert_eq!(run(&["diff", "out", "out/checkpoint.1"]).1, "equal\n");
    let (code, text) = run(&["prune", path]);
    assert!(code == Some(0) && text.contains("it stays"), "{text}");
    assert_eq!(run(&["ls", path]).1.lines().count(), 2);
    fs::write(&newest, &weights).unwrap();
    assert_eq!(run(&["prune", path]).0, Some(0));
    assert_eq!(run(&["ls", path]).1.lines().count(), 1);
    assert_eq!(run(&["ls", "nowhere"]).0, Some(2));
}

#[test]
fn weights_are_written_for_other_programs() {
    let folder = Folder::new("export", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace("epochs: 40", "epochs: 1, save_freq: epoch"),
    )
    .unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let text = folder.succeed(&["export", "out", "w.weights.h5"]);
    assert_eq!(
        text,
        "4 variables are in w.weights.h5; in Keras, with the same layers: model.load_weights(\"w.weights.h5\")\n"
    );
    let text = folder.succeed(&["export", "out/model", "w.safetensors", "--progress", "json"]);
    assert_eq!(text, "{\"exported\":\"w.safetensors\",\"variables\":4}\n");
    folder.succeed(&["export", "t.yaml", "c.weights.h5", "--checkpoint"]);
    let read = |name: &str| fs::read(folder.0.join(name)).unwrap();
    assert_eq!(read("w.weights.h5"), read("c.weights.h5"));
    assert_eq!(read("w.safetensors"), read("out/model/weights.safetensors"));
    let text = folder.succeed(&["export", "out", "m.keras"]);
    let hint = "4 variables are in m.keras; in Keras: keras.models.load_model(\"m.keras\")\n";
    assert_eq!(text, hint);
    let notes = |arguments: &[&str]| folder.phalanx(arguments).stderr;
    let note = String::from_utf8(notes(&["export", "out/model", "m.keras"])).unwrap();
    let says = "note: m.keras has the model alone: who calls it does to the data what the training file says (`divide_by`);";
    assert!(note.starts_with(says), "{note}");
    assert_eq!(notes(&["export", "out", "w.safetensors"]), b"");
    assert_eq!(notes(&["export", "out", "m.keras", "--quiet"]), b"");
    // What was written can be trained on.
    let text = fs::read_to_string(&file).unwrap();
    let again = text.replace("output: out", "output: again\nweights: w.weights.h5");
    fs::write(folder.0.join("again.yaml"), again).unwrap();
    folder.succeed(&["train", "again.yaml", "--quiet"]);
    let says = [
        "`w.h5` says no format",
        ".keras, .weights.h5 (Keras), .mlir (StableHLO), .onnx or .safetensors",
    ];
    folder.fail(&["export", "out", "w.h5"], 2, &says);
    let says = ["has only the names of variables", "`phalanx export"];
    folder.fail(
        &["ckpt", "export", "out/checkpoint", "w.weights.h5"],
        2,
        &says,
    );
}

/// The program of `phalanx export` with these arguments before `m.mlir`, and the first dim of what it takes.
fn program(folder: &Folder, arguments: &[&str]) -> (String, u64) {
    folder.succeed(&[&["export"], arguments, &["m.mlir"]].concat());
    let about = fs::read(folder.0.join("m.mlir.json")).unwrap();
    let about: serde_json::Value = serde_json::from_slice(&about).unwrap();
    let rows = &about["arguments"].as_array().unwrap().last().unwrap()["dims"][0];
    let text = fs::read_to_string(folder.0.join("m.mlir")).unwrap();
    (text, rows.as_u64().unwrap())
}

#[test]
fn a_program_for_serving_computes_as_the_model_was_trained() {
    let folder = Folder::new("export-program", "adam");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("epochs: 40", "epochs: 1, save_freq: epoch");
    fs::write(&file, format!("{text}precision: mixed_bfloat16\n")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let (text, rows) = program(&folder, &["out"]);
    assert!(
        text.contains("tensor<1x16xbf16>") && !text.contains("custom_call"),
        "{text}"
    );
    assert_eq!(rows, 1);
    let by_other_names = [
        &["out/model"][..],
        &["t.yaml"],
        &["t.yaml", "--checkpoint"],
        &["out", "--devices", "gpu"],
    ];
    for named in by_other_names {
        assert_eq!(program(&folder, named).0, text, "{named:?}");
    }
    assert_eq!(program(&folder, &["out", "--batch-size", "3"]).1, 3);
    // Of a model that a program saved nobody knows it.
    fs::remove_file(folder.0.join("out/model/training.json")).unwrap();
    assert!(!program(&folder, &["out/model"]).0.contains("bf16"));
    let onnx = |arguments: &[&str]| {
        let text = folder.succeed(&[&["export"], arguments, &["m.onnx"]].concat());
        let count = text.starts_with("4 variables are in m.onnx; in Python: onnxruntime.");
        assert!(count, "{text}");
        fs::read(folder.0.join("m.onnx")).unwrap()
    };
    let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(has(&onnx(&["out/model"]), b"batch"));
    assert!(!has(&onnx(&["out/model", "--batch-size", "3"]), b"batch"));
    let says = ["--batch-size is of a program", "`m.keras` takes any batch"];
    let arguments = ["export", "out/model", "m.keras", "--batch-size", "3"];
    folder.fail(&arguments, 2, &says);
}

/// In a folder of its own, and in the folder of the other training.
#[test]
fn a_checkpoint_is_of_one_training_at_a_time() {
    let folder = Folder::new("shared-checkpoint", "{adam: {learning_rate: 0.05}}");
    let elsewhere = ["--set", "checkpoint=runs/shared"];
    for (own, path) in [
        (&elsewhere[..], "runs/shared"),
        (&[], "runs/one/checkpoint"),
    ] {
        let endless = [
            "train", "t.yaml", "--quiet", "--epochs", "1000000", "--resume",
        ];
        let endless = [&endless[..], &["--output", "runs/one"], own].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(endless).current_dir(&folder.0);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let manifest = folder.0.join(path).join("checkpoint.json");
        phalanx_testkit::wait_until("a checkpoint", || {
            child.try_wait().unwrap().is_some() || manifest.exists()
        });
        let set = format!("checkpoint={path}");
        let other = ["train", "t.yaml", "--quiet", "--epochs", "1", "--resume"];
        let other = [&other[..], &["--output", "runs/two", "--set", &set]].concat();
        let refused = folder.phalanx(&other);
        child.kill().unwrap();
        child.wait().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        let parts = [
            format!("another training is writing to {path} now"),
            "choose another folder with `checkpoint`".to_owned(),
        ];
        for part in parts {
            assert!(told.contains(&part), "no {part:?} in {told}");
        }
        folder.succeed(&other);
    }
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_what_it_is() {
    let folder = Folder::new("ckpt-none", "adam");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let what = "no checkpoint at out/model: it is a model; give the directory of a checkpoint";
    folder.fail(
        &["ckpt", "verify", "out/model"],
        2,
        &[&what.replace("; ", "\n  next: ")],
    );
    let what = [
        "at out: it is the folder of a training that wrote no",
        "`save_freq`",
    ];
    for command in [
        &["ls", "out"][..],
        &["diff", "out", "out"],
        &["export", "out", "w"],
    ] {
        folder.fail(&[&["ckpt"], command].concat(), 2, &what);
    }
}

#[test]
fn checkpoints_of_epochs_in_a_folder_are_listed_and_removed() {
    let folder = Folder::new("ckpt-folder", "{adam: {learning_rate: 0.05}}");
    let file = folder.0.join("t.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("epochs: 40", "epochs: 3");
    let callbacks = "\ncallbacks: [{model_checkpoint: {filepath: 'saved/{epoch:02d}'}}]\n";
    fs::write(&file, text + callbacks).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let run = |arguments: &[&str]| {
        let output = folder.phalanx(&[&["ckpt"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let listed: Vec<String> = run(&["ls", "saved"]).lines().map(str::to_owned).collect();
    let begins = ["saved/03: step ", "saved/02: step ", "saved/01: step "];
    assert_eq!(listed.len(), begins.len(), "{listed:?}");
    for (line, begin) in listed.iter().zip(begins) {
        assert!(line.starts_with(begin), "{listed:?}");
    }
    assert_eq!(run(&["diff", "saved", "saved/03"]), "equal\n");
    let removed = run(&["prune", "saved", "--keep", "2"]);
    assert_eq!(removed, "removed saved/01\n");
    assert_eq!(run(&["verify", "saved"]).lines().count(), 2);
}
