//! Checkpoints of 100 MB: `bench-checkpoints FOLDER SAVES`, the protocol of `bench/peers/README.md`; `bench-checkpoints FOLDER behind STEPS`
//! trains with and without saving behind the training, which is ours alone.
#![forbid(unsafe_code)]

mod processors;
mod program;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::Lambda;
use phalanx::fit::{SaveBehind, StepPart};
use phalanx::prelude::*;
use phalanx_graph::HostTensor;
use serde_json::json;

type Done = Result<(), Box<dyn Error>>;

/// As every framework has.
const THREADS: usize = 2;
/// Variables of 395 x 395 numbers: 100 MB of f32.
const VARIABLES: usize = 160;
const WIDTH: usize = 395;
/// Rows of a batch where training goes on beside the saves: a step takes a few tenths of a second.
const BATCH: usize = 256;
/// At the start, in the middle and at the end.
const SAVES_OF_A_FIT: f64 = 3.0;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    processors::use_some(0, THREADS)?;
    match &arguments[..] {
        [folder, saves] => at_once(Path::new(folder), saves.parse()?),
        [folder, word, steps] if word == "behind" => behind(Path::new(folder), steps.parse()?),
        _ => Err("usage: bench-checkpoints FOLDER SAVES, or FOLDER behind STEPS".into()),
    }
}

/// Saves and restores in turns, the first of each not counted. What a save replaces is removed behind it, and nothing is timed until then: of
/// other frameworks it is removed between the turns.
fn at_once(folder: &Path, saves: usize) -> Done {
    let mut trainer = trainer()?;
    let (mut saved, mut restored) = (Vec::new(), Vec::new());
    for _ in 0..=saves {
        let path = folder.join("phalanx");
        saved.push(seconds(|| trainer.save_checkpoint(&path))?);
        while removes(folder)? {
            std::thread::sleep(Duration::from_millis(1));
        }
        restored.push(seconds(|| trainer.restore_checkpoint(&path))?);
    }
    emit("save", &saved[1..]);
    emit("restore", &restored[1..]);
    Ok(())
}

/// Whether what a save has replaced is still there, under a hidden name.
fn removes(folder: &Path) -> std::io::Result<bool> {
    let mut names = std::fs::read_dir(folder)?.flatten();
    Ok(names.any(|entry| entry.file_name().as_encoded_bytes().starts_with(b".")))
}

/// Epochs without checkpoints and with one that is written behind the steps in the middle, in turns. What is printed: how long a save keeps
/// the steps waiting, a copy of as many bytes, and the steps around the save with and without it.
fn behind(folder: &Path, steps: usize) -> Done {
    let mut trainer = trainer()?;
    let rows = rows(BATCH * steps)?.batch(BATCH);
    let (mut blocked, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..8 {
        let ends = Arc::new(Mutex::new(Vec::new()));
        let epoch = Fit::epochs(turn + 1)
            .initial_epoch(turn)
            .progress(Progress::Silent)
            .callback(watch(&ends));
        if turn % 2 == 0 {
            trainer.fit(&rows, epoch)?;
            without.push(around_the_middle(&ends));
            continue;
        }
        let path = folder.join(format!("behind-{turn}"));
        let epoch = epoch
            .checkpoint(&path)
            .save_freq(steps / 2)
            .save_behind(SaveBehind::Wait);
        let history = trainer.fit(&rows, epoch)?;
        with.push(around_the_middle(&ends));
        let last = history.epochs.last().and_then(|epoch| epoch.times);
        let times = last.ok_or("an epoch has no times")?;
        blocked.push(times.of(StepPart::Checkpoint).as_secs_f64() / SAVES_OF_A_FIT);
        for path in TrainingState::all_at(&path)? {
            TrainingState::remove(path)?;
        }
    }
    emit("blocked", &blocked);
    emit("copy", &copies());
    emit("steps with a save", &with[1..]);
    emit("steps without", &without[1..]);
    Ok(())
}

/// Notes when each step has ended.
fn watch(ends: &Arc<Mutex<Vec<Instant>>>) -> Lambda {
    let ends = Arc::clone(ends);
    Lambda::new().on_train_batch_end(move |_, _| {
        if let Ok(mut ends) = ends.lock() {
            ends.push(Instant::now());
        }
        Ok(())
    })
}

/// The seconds of all steps but the first quarter, beside which the first save is written, and the last step.
fn around_the_middle(ends: &Mutex<Vec<Instant>>) -> f64 {
    let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, last) = (ends[ends.len() / 4], ends[ends.len() - 2]);
    last.duration_since(first).as_secs_f64()
}

/// Copies of as many bytes in host memory, into memory that is fresh as a save's is.
fn copies() -> Vec<f64> {
    let values = vec![1f32; VARIABLES * WIDTH * WIDTH];
    let copy = || {
        let start = Instant::now();
        let copied = std::hint::black_box(values.clone());
        let seconds = start.elapsed().as_secs_f64();
        drop(copied);
        seconds
    };
    (0..5).map(|_| copy()).collect()
}

fn trainer() -> phalanx::Result<Trainer> {
    let mut model = Sequential::new([WIDTH]);
    for _ in 0..VARIABLES {
        model = model.add(Dense::new(WIDTH).use_bias(false));
    }
    let compile = Compile {
        // The variables are all there is to save.
        optimizer: Sgd::new(1e-9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let mut trainer = OneDeviceStrategy::new()?.compile(model, compile)?;
    let batch = rows(BATCH)?.batch(BATCH).get(0, 0)?;
    trainer.train_on_batch(&batch)?;
    Ok(trainer)
}

fn rows(count: usize) -> phalanx::Result<Dataset> {
    let values: Vec<f32> = (0..count * WIDTH)
        .map(|index| (index % 1013) as f32 / 506.0 - 1.0)
        .collect();
    let classes: Vec<i32> = (0..count as i32).map(|row| row % WIDTH as i32).collect();
    let x = HostTensor::new([count, WIDTH], &values);
    Dataset::from_arrays(x, HostTensor::new([count], &classes))
}

fn seconds(once: impl FnOnce() -> phalanx::Result<()>) -> phalanx::Result<f64> {
    let start = Instant::now();
    once()?;
    Ok(start.elapsed().as_secs_f64())
}

fn emit(work: &str, seconds: &[f64]) {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median_ms = sorted[sorted.len() / 2] * 1e3;
    let line = json!({
        "framework": "phalanx",
        "version": env!("CARGO_PKG_VERSION"),
        "variant": "",
        "work": work,
        "median_ms": (median_ms * 1e2).round() / 1e2,
        "n": sorted.len(),
    });
    println!("{line}");
}
