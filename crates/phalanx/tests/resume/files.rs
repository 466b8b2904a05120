//! Checkpoints on disk: what is damaged is found, and nothing is lost by a save.

use std::fs;
use std::path::Path;

use phalanx::Error;
use phalanx::checkpoint::TrainingState;
use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx_testkit::Scratch;

use crate::{STEPS, batches, broken_off, compile, model, one, outcome, quiet, scratch, unbroken};

/// A launcher that begins the same program again must not lose what was learned.
#[test]
fn a_checkpoint_that_was_not_read_is_not_replaced() {
    let scratch = scratch("rerun");
    let path = scratch.join("checkpoint");
    let begin = || one().compile(model(), compile()).unwrap();
    let fit = quiet().checkpoint(&path);
    let mut trainer = begin();
    broken_off(&mut trainer, fit.clone(), 5);
    // The same trainer may begin anew.
    broken_off(&mut trainer, fit.clone(), 5);
    let state = TrainingState::load(&path).unwrap();
    for fit in [fit.clone(), fit.clone().resume()] {
        let error = begin().fit(&batches(), fit).unwrap_err().to_string();
        assert!(error.contains("neither read nor wrote"), "{error}");
        assert!(
            error.contains("`restore_checkpoint` and `Fit::resume`"),
            "{error}"
        );
    }
    assert_eq!(TrainingState::load(&path).unwrap(), state);
    let mut reader = begin();
    reader.restore_checkpoint(&path).unwrap();
    let error = reader.fit(&batches(), quiet().keep_checkpoints(0));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("keep_checkpoints is 0")
    );
    reader.fit(&batches(), fit.clone().resume()).unwrap();
    TrainingState::remove(&path).unwrap();
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    broken_off(&mut begin(), fit, 1);
}

#[test]
fn a_place_that_is_taken_ends_a_training_before_its_first_step() {
    let scratch = scratch("taken");
    let path = scratch.join("thesis");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("chapter"), "mine").unwrap();
    let mut trainer = one().compile(model(), compile()).unwrap();
    let fit = quiet().checkpoint(&path);
    let error = trainer.fit(&batches(), fit).unwrap_err().to_string();
    assert!(error.contains("has `chapter` in it"), "{error}");
    assert_eq!(trainer.training_state().unwrap().iterations(), 0);
}

/// The newest checkpoint that is whole is taken, and it is said which were left out.
#[test]
fn a_damaged_checkpoint_has_an_older_one_beside_it() {
    let scratch = scratch("fallback");
    let path = scratch.join("checkpoint");
    let whole = unbroken(&one(), &compile(), &quiet());
    let mut trainer = one().compile(model(), compile()).unwrap();
    let fit = quiet().checkpoint(&path).keep_checkpoints(3);
    broken_off(&mut trainer, fit.clone(), 2 * STEPS + 1);
    let step = |path: &Path| TrainingState::load(path).unwrap().iterations();
    let older = |number: usize| scratch.join(format!("checkpoint.{number}"));
    assert_eq!([step(&path), step(&older(1)), step(&older(2))], [8, 4, 0]);
    let cut = |path: &Path| {
        let weights = path.join("weights.safetensors");
        let bytes = fs::read(&weights).unwrap();
        fs::write(&weights, &bytes[..bytes.len() - 3]).unwrap();
    };
    cut(&path);
    let (state, left_out) = TrainingState::load_newest(&path).unwrap();
    assert_eq!(state.iterations(), 4);
    assert!(
        left_out[0].contains("checkpoint/weights.safetensors"),
        "{left_out:?}"
    );
    assert!(
        left_out[1].contains("checkpoint.1`, after step 4, is taken"),
        "{left_out:?}"
    );
    assert!(TrainingState::load(&path).is_err());
    let mut trainer = one().compile(model(), compile()).unwrap();
    trainer.restore_checkpoint(&path).unwrap();
    let history = trainer.fit(&batches(), fit.resume()).unwrap();
    assert_eq!(outcome(trainer, &history), whole);
    // The damaged one is an older one now, and not taken.
    for damaged in [&path, &older(1)] {
        cut(damaged);
    }
    let error = TrainingState::load_newest(&path).unwrap_err().to_string();
    assert!(error.contains("checkpoint/weights.safetensors"), "{error}");
    fs::remove_dir_all(&path).unwrap();
    assert!(TrainingState::is_at(&path).unwrap());
}

#[test]
fn values_that_are_not_numbers_replace_no_checkpoint() {
    let scratch = scratch("lost");
    let path = scratch.join("checkpoint");
    let mut trainer = one().compile(model(), compile()).unwrap();
    trainer.save_checkpoint(&path).unwrap();
    let state = TrainingState::load(&path).unwrap();
    let bad = HostTensor::new([4, 8], &[f32::NAN; 32]);
    trainer.set_variables(&[("dense/kernel", bad)]).unwrap();
    let error = trainer.save_checkpoint(&path).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Training(_)), "{text}");
    assert!(
        text.contains("`dense/kernel` has values that are infinite"),
        "{text}"
    );
    assert_eq!(TrainingState::load(&path).unwrap(), state);
    assert!(TrainingState::is_at(&path).unwrap());
    TrainingState::remove(&path).unwrap();
    assert!(!TrainingState::is_at(&path).unwrap() && !path.exists());
}

/// A small state, in the middle of an epoch, and the files of its checkpoint.
fn files(scratch: &Scratch, rate: f64) -> Vec<(String, Vec<u8>)> {
    let path = scratch.join("checkpoint");
    let compile = Compile {
        optimizer: Adam::new(rate).into(),
        ..compile()
    };
    let small = Sequential::new([4]).add(Dense::new(3)).build().unwrap();
    let mut trainer = one().compile(small, compile).unwrap();
    let fit = quiet().validation(&batches()).keep_best("val_loss");
    broken_off(&mut trainer, fit, 5);
    trainer.save_checkpoint(&path).unwrap();
    let entries = fs::read_dir(&path).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    let mut files: Vec<(String, Vec<u8>)> = entries.collect();
    files.sort();
    files
}

fn load(files: &[(String, Vec<u8>)]) -> phalanx::Result<TrainingState> {
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (&**name, &**bytes))
        .collect();
    TrainingState::from_bytes(&files)
}

#[test]
fn whatever_is_damaged_is_found() {
    let scratch = scratch("damaged");
    let whole = files(&scratch, 0.1);
    let names: Vec<&str> = whole.iter().map(|(name, _)| &**name).collect();
    let all = [
        "callbacks.safetensors",
        "checkpoint.json",
        "epoch.safetensors",
        "history.jsonl",
        "optimizer.safetensors",
        "weights.safetensors",
    ];
    assert_eq!(names, all);
    let state = load(&whole).unwrap();
    assert_eq!(
        state,
        TrainingState::load(scratch.join("checkpoint")).unwrap()
    );
    // The file that is damaged is named, and the place in it; the first that does not fit another manifest.
    let refuse = |files: &[(String, Vec<u8>)], file: &str, what: &str| {
        let error = load(files).expect_err(what).to_string();
        let file = match (file, what) {
            ("checkpoint.json", "of another") => "callbacks.safetensors",
            _ => file,
        };
        let place = error.strip_prefix(&format!("{file}: "));
        assert!(
            place.is_some_and(|place| place.contains(": ")),
            "{file}, {what}: {error}"
        );
    };
    for file in 0..whole.len() {
        let (name, bytes) = &whole[file];
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[file].1[at] ^= 1 << (at % 8);
            refuse(&damaged, name, &format!("byte {at} changed"));
        }
        for len in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = whole.clone();
            damaged[file].1.truncate(len);
            refuse(&damaged, name, &format!("{len} bytes left"));
        }
        let mut damaged = whole.clone();
        damaged.remove(file);
        refuse(&damaged, name, "gone");
    }
    // Another step's file in the place of one.
    let other = files(&scratch, 0.2);
    for file in 0..whole.len() {
        if whole[file].1 != other[file].1 {
            let mut mixed = whole.clone();
            mixed[file] = other[file].clone();
            refuse(&mixed, &whole[file].0, "of another");
        }
    }
}

/// An example of 1e15 overflows Adam's mean of squares and moves no variable: the training would be NaN two steps later.
#[test]
fn no_checkpoint_has_an_infinite_slot() {
    let scratch = scratch("infinite_slot");
    let model = Sequential::new([1]).add(Dense::new(1)).build().unwrap();
    let compile = Compile {
        optimizer: Adam::new(1e-3).into(),
        loss: MeanSquaredError.into(),
        ..Compile::default()
    };
    let mut trainer = one().compile(model, compile).unwrap();
    let path = scratch.join("checkpoint");
    trainer.save_checkpoint(&path).unwrap();
    let state = TrainingState::load(&path).unwrap();
    let huge = HostTensor::new([1, 1], &[1e15f32]);
    let batch = Batch {
        x: vec![huge.clone()],
        y: vec![huge],
        weight: None,
        first: 0,
    };
    trainer.train_on_batch(&batch).unwrap();
    let error = trainer.save_checkpoint(&path).unwrap_err().to_string();
    assert!(
        error.contains("velocity` has values that are infinite"),
        "{error}"
    );
    assert_eq!(TrainingState::load(&path).unwrap(), state);
}

#[test]
fn only_checkpoints_are_replaced() {
    let scratch = scratch("places");
    let strategy = one();
    let trainer = strategy.compile(model(), compile()).unwrap();
    let path = scratch.join("thesis");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("chapter"), "mine").unwrap();
    let error = trainer.save_checkpoint(&path).unwrap_err().to_string();
    assert!(
        error.contains("has `chapter` in it, which no checkpoint has"),
        "{error}"
    );
    let model = scratch.join("model");
    trainer.save(&model).unwrap();
    let error = trainer.save_checkpoint(&model).unwrap_err().to_string();
    assert!(
        error.contains("so it is not replaced by the checkpoint"),
        "{error}"
    );
    let error = TrainingState::load(&model).unwrap_err().to_string();
    assert!(error.contains("has no file `checkpoint.json`"), "{error}");
    let path = scratch.join("checkpoint");
    trainer.save_checkpoint(&path).unwrap();
    trainer.save_checkpoint(&path).unwrap();
    let error = trainer.save(&path).unwrap_err().to_string();
    assert!(error.contains("which no saved model has"), "{error}");
    // The one that was replaced is removed behind the training, which a trainer waits for at its end.
    drop(trainer);
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 3);
}
