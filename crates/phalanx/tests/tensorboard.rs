//! What a training writes for TensorBoard, read as TensorBoard does.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use phalanx::Error;
use phalanx::data::{IndexCache, Records, TfRecordOptions, TfRecords};
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::{HParam, TensorBoard, UpdateFreq};
use phalanx::prelude::*;
use phalanx_summary::Run;
use phalanx_testkit::Scratch;

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("tensorboard-{name}"))
}

fn trainer() -> Trainer {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| Engine::new(&EngineOptions::default()).unwrap());
    let compile = Compile {
        optimizer: Adam::new(CosineDecay::new(0.05, 12)).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 3,
        ..Compile::default()
    };
    let model = Sequential::new([2]).add(Dense::new(3)).build().unwrap();
    OneDeviceStrategy::on(engine)
        .compile(model, compile)
        .unwrap()
}

fn batches() -> Batches {
    let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
    let y: Vec<i32> = (0..12).map(|i| i % 3).collect();
    let rows = Dataset::from_arrays(HostTensor::new([12, 2], &x), HostTensor::new([12], &y));
    rows.unwrap().batch(4)
}

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// A field of a message: its number and what is in it, of a fixed or given length, or of a varint's bytes.
fn fields(mut message: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [key, rest @ ..] = message {
        let varint = rest.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (skip, len) = match key & 7 {
            0 => (0, varint),
            1 => (0, 8),
            // Fields longer than 127 bytes are those of the graph, which is no result.
            2 if varint > 1 => return found,
            2 => (1, usize::from(rest[0])),
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, rest[skip..skip + len].to_vec()));
        message = &rest[skip + len..];
    }
    found
}

fn field(message: &[u8], number: u8) -> Option<Vec<u8>> {
    let found = fields(message)
        .into_iter()
        .find(|(other, _)| *other == number);
    found.map(|(_, value)| value)
}

/// Tag, step and value.
type Scalar = (String, u8, f32);

/// What a run shows, and the steps of the sessions that have written it: events from a session's step on do not count
/// once it starts.
fn shown(run: &Path) -> (Vec<Scalar>, Vec<u8>) {
    let options = TfRecordOptions {
        index: IndexCache::Off,
        ..TfRecordOptions::default()
    };
    let mut files: Vec<_> = fs::read_dir(run)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let (mut scalars, mut sessions) = (Vec::<Scalar>::new(), Vec::new());
    for file in files {
        // Checks the checksums too.
        let records = TfRecords::open(file.to_str().unwrap(), &options).unwrap();
        let all: Vec<usize> = (0..records.len()).collect();
        let read = records.visit(&all, |at, event| {
            let event = event?;
            let step = field(event, 2).map_or(0, |step| step[0]);
            let version = field(event, 3);
            assert_eq!(at == 0, version == Some(b"brain.Event:2".to_vec()));
            if let Some(log) = field(event, 7) {
                assert_eq!(log, [8, 1]);
                scalars.retain(|(_, other, _)| *other < step);
                sessions.push(step);
            }
            if let Some(summary) = field(event, 5) {
                let entry = field(&summary, 1).unwrap();
                let tag = String::from_utf8(field(&entry, 1).unwrap()).unwrap();
                let value = field(&field(&entry, 8).unwrap(), 4).unwrap();
                if tag.starts_with("step_time_ms/") {
                    return Ok(());
                }
                scalars.push((tag, step, f32::from_le_bytes(value.try_into().unwrap())));
            }
            Ok(())
        });
        read.unwrap();
    }
    (scalars, sessions)
}

/// What Keras would show of these epochs.
fn expected(history: &History, is_validation: bool, rates: &[f64]) -> Vec<Scalar> {
    let mut scalars = Vec::new();
    for (done, rate) in history.epochs.iter().zip(rates) {
        let step = done.epoch as u8;
        for name in ["loss", "accuracy"] {
            let log = if is_validation {
                format!("val_{name}")
            } else {
                name.to_owned()
            };
            if let Some(value) = done.logs.get(&log) {
                scalars.push((format!("epoch_{name}"), step, value as f32));
            }
        }
        if !is_validation {
            scalars.push(("epoch_learning_rate".to_owned(), step, *rate as f32));
        }
    }
    scalars
}

/// The rate after each of four epochs of three steps.
fn rates() -> Vec<f64> {
    let at = |epoch: usize| {
        let mut trainer = trainer();
        trainer.fit(&batches(), quiet(epoch + 1)).unwrap();
        trainer.learning_rate().unwrap()
    };
    (0..4).map(at).collect()
}

#[test]
fn results_have_the_tags_and_folders_of_keras() {
    let scratch = scratch("tags");
    let logs = scratch.join("new/logs");
    let fit = quiet(4).validation(&batches()).validation_freq(2);
    let history = trainer().fit(&batches(), fit.tensorboard(&logs)).unwrap();
    let rates = rates();
    assert!(rates[0] > rates[1] && rates[1] > rates[2], "{rates:?}");
    let (train, sessions) = shown(&logs.join("train"));
    assert_eq!(train.len(), 12);
    assert_eq!(
        (train, sessions),
        (expected(&history, false, &rates), vec![0])
    );
    let (validation, sessions) = shown(&logs.join("validation"));
    let steps: Vec<_> = validation.iter().map(|scalar| scalar.1).collect();
    assert_eq!(steps, [1, 1, 3, 3]);
    assert_eq!(
        (validation, sessions),
        (expected(&history, true, &rates), vec![0])
    );
}

#[test]
fn a_training_that_goes_on_continues_the_curves() {
    let scratch = scratch("resumed");
    let (logs, checkpoint) = (scratch.join("logs"), scratch.join("checkpoint"));
    let fit = |epochs| quiet(epochs).validation(&batches()).tensorboard(&logs);
    // Three epochs are told, and the checkpoint has two: what is told of the third is not what is trained in the end.
    let mut first = trainer();
    first.fit(&batches(), fit(2)).unwrap();
    first.save_checkpoint(&checkpoint).unwrap();
    first.fit(&batches(), fit(3).initial_epoch(2)).unwrap();
    let mut second = trainer();
    second.restore_checkpoint(&checkpoint).unwrap();
    let history = second.fit(&batches(), fit(4).resume()).unwrap();
    let (train, sessions) = shown(&logs.join("train"));
    assert_eq!(sessions, [0, 2, 2]);
    assert_eq!(train, expected(&history, false, &rates()));
    let (validation, sessions) = shown(&logs.join("validation"));
    assert_eq!(sessions, [0, 2, 2]);
    assert_eq!(validation, expected(&history, true, &rates()));
}

#[test]
fn settings_of_keras_write_batches_histograms_images_and_the_graph() {
    let scratch = scratch("settings");
    let settings = || {
        TensorBoard::new(scratch.join("logs"))
            .histogram_freq(2)
            .write_images(true)
            .write_steps_per_second(true)
            .update_freq(UpdateFreq::Steps(2))
            .settings([("seed".to_owned(), HParam::Number(3.0))])
    };
    let fit = |epochs| {
        let fit = quiet(epochs).validation(&batches());
        fit.tensorboard(settings())
    };
    let mut first = trainer();
    let history = first.fit(&batches(), fit(2)).unwrap();
    let read = |name: &str| Run::read(scratch.join("logs").join(name)).unwrap();
    let steps_of = |run: &Run, tag: &str| -> Vec<i64> {
        run.scalars[tag].iter().map(|point| point.step).collect()
    };
    let train = read("train");
    assert_eq!(steps_of(&train, "epoch_steps_per_second"), [0, 1]);
    assert_eq!(steps_of(&train, "step_time_ms/compute"), [0, 1]);
    let kernel = &train.histograms["dense/kernel/histogram"];
    assert_eq!(kernel.len(), 1);
    assert_eq!((kernel[0].0, kernel[0].1.count()), (0, 6.0));
    assert_eq!(train.images["dense/bias/image"].len(), 1);
    let node = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    assert_eq!(
        train.nodes,
        [node("input", "input"), node("dense", "dense")]
    );
    // Three steps an epoch, told after every second of all.
    let batch = read("train_steps");
    assert_eq!(steps_of(&batch, "batch_loss"), [2, 4, 6]);
    assert_eq!(steps_of(&batch, "batch_steps_per_second"), [2, 4, 6]);
    let last = batch.scalars["batch_loss"][2].value;
    assert_eq!(last, f64::from(history.epochs[1].logs["loss"] as f32));
    let tested = read("validation_steps");
    let tested = &tested.scalars["evaluation_loss_vs_iterations"];
    assert_eq!(tested[1].step, 6);
    let logs = &history.epochs[1].logs;
    assert_eq!(tested[1].value, f64::from(logs["val_loss"] as f32));
    let machine = read("worker-0");
    assert!(cfg!(not(target_os = "linux")) || machine.scalars.contains_key("system/cpu_percent"));
    // What goes on after epoch 2 replaces nothing of before.
    first.fit(&batches(), fit(3).initial_epoch(2)).unwrap();
    assert_eq!(steps_of(&read("train_steps"), "batch_loss"), [2, 4, 6, 8]);
    assert_eq!(steps_of(&read("train"), "epoch_loss"), [0, 1, 2]);
    assert_eq!(read("train").histograms["dense/kernel/histogram"].len(), 2);
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_the_first_step() {
    let scratch = scratch("refused");
    let file = scratch.join("file");
    fs::write(&file, "").unwrap();
    let mut trainer = trainer();
    let error = trainer
        .fit(&batches(), quiet(1).tensorboard(&file))
        .unwrap_err();
    let Error::Io { path, action, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((path, action), (file.join("train"), "create"));
    assert_eq!(trainer.iterations(), 0);
}
