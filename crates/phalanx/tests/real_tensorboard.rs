//! What a training writes, as TensorBoard itself and its profiler plug-in read it: the packages `tensorboard` and `xprof` of `python3`, or
//! of the interpreter that `PHALANX_TENSORBOARD_PYTHON` names. Without the package a test says so and passes.

use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::{HParam, TensorBoard, UpdateFreq};
use phalanx::prelude::*;
use phalanx_summary::Run;
use serde_json::Value;

fn trainer() -> Trainer {
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    };
    let inner = Sequential::new([4, 4, 1])
        .add(Conv2d::new(2, 3))
        .add(Flatten)
        .build()
        .unwrap();
    let model = Sequential::new([4, 4, 1])
        .add(inner)
        .add(Dense::new(3))
        .build()
        .unwrap();
    let strategy = OneDeviceStrategy::on(&engine);
    strategy.compile(model, compile).unwrap()
}

fn batches() -> Batches {
    let x: Vec<f32> = (0..16 * 24).map(|i| (i as f32 * 0.7).sin()).collect();
    let y: Vec<i32> = (0..24).map(|i| i % 3).collect();
    let x = HostTensor::new([24, 4, 4, 1], &x);
    let rows = Dataset::from_arrays(x, HostTensor::new([24], &y));
    rows.unwrap().batch(8)
}

/// What TensorBoard reads of a folder; none where it is not installed.
fn read(folder: &Path) -> Option<Value> {
    run("read_as_tensorboard.py", folder)
}

/// What a script prints of a folder; none where the package that it reads with is not installed.
fn run(script: &str, folder: &Path) -> Option<Value> {
    let python = std::env::var("PHALANX_TENSORBOARD_PYTHON").unwrap_or("python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/tensorboard")
        .join(script);
    let output = Command::new(&python).arg(script).arg(folder).output();
    let output = output
        .ok()
        .filter(|output| output.status.code() != Some(3))?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn tensorboard_reads_tags_values_histograms_images_settings_and_the_graph() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real-tensorboard");
    let _ = std::fs::remove_dir_all(&folder);
    let settings = TensorBoard::new(&folder)
        .histogram_freq(1)
        .write_images(true)
        .write_grads(true)
        .update_freq(UpdateFreq::Steps(1))
        .settings([("learning_rate".to_owned(), HParam::Number(0.05))]);
    let fit = |epochs| {
        let fit = Fit::epochs(epochs).progress(Progress::Silent);
        fit.validation(&batches()).tensorboard(settings.clone())
    };
    let mut trainer = trainer();
    trainer.fit(&batches(), fit(3)).unwrap();
    // The last epoch is trained again: its first results are to be forgotten.
    let again = trainer.fit(&batches(), fit(4).initial_epoch(2)).unwrap();
    let Some(theirs) = read(&folder) else {
        phalanx_testkit::skip("the Python package `tensorboard` is missing");
        return;
    };
    let runs = [
        "train",
        "train_steps",
        "validation",
        "validation_steps",
        "worker-0",
    ];
    for name in runs {
        check_run(&folder, name, &theirs["runs"][name]);
    }
    let train = &theirs["runs"]["train"];
    let losses: Vec<(i64, f64)> =
        serde_json::from_value(train["scalars"]["epoch_loss"].clone()).unwrap();
    let steps: Vec<i64> = losses.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 1, 2, 3], "no epoch twice");
    assert_eq!(losses[3].1, f64::from(again.epochs[1].logs["loss"] as f32));
    let histograms = train["histograms"].as_object().unwrap();
    let names: Vec<&str> = histograms.keys().map(String::as_str).collect();
    let of = |what: &str| names.iter().filter(|name| name.ends_with(what)).count();
    assert_eq!((of("/histogram"), of("/gradient")), (4, 4), "{names:?}");
    assert_eq!(
        train["images"]["dense/bias/image"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    check_graph(&train["graph"]);
    assert_eq!(theirs["hparams"]["learning_rate"], 0.05);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn check_graph(graph: &Value) {
    let names = graph.as_object().unwrap();
    assert_eq!(names.len(), 4, "{graph:?}");
    assert_eq!(
        graph["dense"]["inputs"][0]
            .as_str()
            .unwrap()
            .split_once('/')
            .unwrap()
            .1,
        "flatten"
    );
    assert_eq!(graph["dense"]["shape"], serde_json::json!([[-1, 3]]));
}

/// TensorBoard reads of a run what we read of it.
fn check_run(folder: &Path, name: &str, theirs: &Value) {
    let ours = Run::read(folder.join(name)).unwrap();
    let scalars = theirs["scalars"].as_object().unwrap();
    assert!(!scalars.is_empty() || name == "worker-0", "{name}");
    assert_eq!(scalars.len(), ours.scalars.len(), "{name}: {scalars:?}");
    for (tag, points) in &ours.scalars {
        let ours: Vec<_> = points.iter().map(|p| (p.step, p.value)).collect();
        let theirs: Vec<(i64, f64)> = serde_json::from_value(scalars[tag].clone()).unwrap();
        assert_eq!(ours, theirs, "{name} {tag}");
    }
    for (tag, histograms) in &ours.histograms {
        let ours: Vec<_> = histograms
            .iter()
            .map(|(step, histogram)| (*step, histogram.0.clone()))
            .collect();
        let theirs = theirs["histograms"][tag].clone();
        let theirs: Vec<(i64, Vec<[f64; 3]>)> = serde_json::from_value(theirs).unwrap();
        assert_eq!(ours, theirs, "{name} {tag}");
    }
}

/// The spans that the trace viewer of the plug-in shows: names by thread, and the steps of those of the devices.
#[test]
fn the_profiler_plug_in_shows_the_steps_that_are_profiled() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real-profile");
    let _ = std::fs::remove_dir_all(&folder);
    let settings = TensorBoard::new(&folder).profile_batch(3, 5);
    let fit = Fit::epochs(3).progress(Progress::Silent);
    let mut trainer = trainer();
    trainer.fit(&batches(), fit.tensorboard(settings)).unwrap();
    let file = folder.join("train/plugins/profile/step-5/worker-0.xplane.pb");
    assert!(file.exists());
    let Some(theirs) = run("read_as_xprof.py", &folder.join("train")) else {
        phalanx_testkit::skip("the Python package `xprof` is missing");
        return;
    };
    assert_eq!(theirs["runs"], serde_json::json!(["step-5"]));
    let tools = theirs["tools"].as_array().unwrap();
    let shows = |tool: &&Value| tool.as_str().unwrap().starts_with("trace_viewer");
    assert!(tools.iter().any(|tool| shows(&tool)), "{tools:?}");
    let spans: Vec<(String, String, f64, f64)> =
        serde_json::from_value(theirs["spans"].clone()).unwrap();
    let of = |thread: &str, name: &str| {
        let own = spans.iter();
        own.filter(|(of, what, ..)| of == thread && what == name)
            .count()
    };
    assert_eq!(of("devices", "step"), 3, "{spans:?}");
    assert!(of("host", "compute") > 0, "{spans:?}");
    // From the start of the profile on, in microseconds.
    let times = spans.iter().map(|(_, _, begin, length)| (*begin, *length));
    let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
    for (begin, length) in times {
        assert!(begin >= 0.0 && length >= 0.0, "{begin} {length}");
        first = first.min(begin);
        last = last.max(begin + length);
    }
    assert!(first < last && last < 1e9, "{first} {last}");
    std::fs::remove_dir_all(&folder).unwrap();
}
