//! Callbacks of several workers: all decide alike, one writes, and what they keep outlives the workers.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use phalanx::checkpoint::TrainingState;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::StepPart;
use phalanx::fit::callbacks::{
    BackupAndRestore, CsvLogger, EarlyStopping, Lambda, ModelCheckpoint, NanPolicy,
    ReduceLrOnPlateau, SaveFreq, TerminateOnNan,
};
use phalanx::prelude::*;
use phalanx::strategy::CentralStorageStrategy;
use phalanx_testkit::{Scratch, wait_until};

use crate::{TOLERANCE, apart, cases, engine, on_engines, on_workers};

/// Twenty rows in batches of six, the last of two.
const ROWS: usize = 20;
const STEPS: i64 = 4;

fn data() -> Batches {
    cases::rows(ROWS).shuffle(5).batch(6)
}

fn trainer(strategy: &impl Strategy) -> Trainer {
    let model = Sequential::new([6])
        .add(Dense::new(8).activation(tanh))
        .add(Dropout::new(0.25))
        .add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 11,
        ..Compile::default()
    };
    strategy.compile(model.build().unwrap(), compile).unwrap()
}

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("workers-{name}"))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What callbacks decided.
#[derive(Debug, PartialEq)]
struct Decided {
    rates: Vec<f32>,
    stopped: Option<usize>,
    best: usize,
    epochs: usize,
}

fn decide(strategy: &impl Strategy, folder: &Path) -> (Decided, Vec<(String, HostTensor)>) {
    if folder.file_name() != Some("other".as_ref()) {
        fs::create_dir(folder).unwrap();
    }
    let stopping = EarlyStopping::new("val_loss").min_delta(0.03).patience(2);
    let stopping = Arc::new(Mutex::new(stopping.restore_best_weights(true)));
    let rates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rates);
    let note = Lambda::new().on_epoch_end(move |_, cx| {
        noted.lock().unwrap().push(cx.learning_rate()? as f32);
        Ok(())
    });
    let pattern = folder.join("w_{epoch:02d}-{val_accuracy:.2f}.safetensors");
    let best = ModelCheckpoint::new(pattern.display().to_string())
        .save_weights_only(true)
        .save_best_only(true)
        .keep(2);
    let plateau = ReduceLrOnPlateau::new("val_loss")
        .min_delta(0.06)
        .patience(1);
    let fit = quiet(30)
        .validation(&cases::rows(10).batch(4))
        .callback(plateau.factor(0.5))
        .callback(Arc::clone(&stopping))
        .callback(best)
        .callback(CsvLogger::new(folder.join("log.csv")))
        .callback(note);
    let mut trainer = trainer(strategy);
    let history = trainer.fit(&data(), fit).unwrap();
    let stopping = stopping.lock().unwrap();
    let decided = Decided {
        rates: rates.lock().unwrap().clone(),
        stopped: stopping.stopped_epoch(),
        best: stopping.best_epoch(),
        epochs: history.epochs.len(),
    };
    (decided, trainer.variables().unwrap())
}

#[test]
fn workers_decide_alike_and_as_one_process_and_the_first_one_writes() {
    let scratch = scratch("decisions");
    let (one, _) = decide(&OneDeviceStrategy::on(engine(0, 1)), &scratch.join("one"));
    assert!(one.stopped.is_some() && one.epochs < 30, "{one:?}");
    assert!(one.rates.last() < one.rates.first(), "{one:?}");
    let all = on_workers(2, 1, |strategy| {
        let folder = if strategy.is_chief() {
            "chief"
        } else {
            "other"
        };
        decide(&strategy, &scratch.join(folder))
    });
    assert_eq!(all[0], all[1], "decisions and variables");
    assert_eq!(all[0].0, one);
    let written = names(&scratch.join("chief"));
    assert_eq!(written.len(), 3, "{written:?}");
    assert_eq!(written, names(&scratch.join("one")));
    assert_eq!(names(&scratch), ["chief", "one"]);
    let text = |folder: &str| fs::read_to_string(scratch.join(folder).join("log.csv")).unwrap();
    assert_eq!(text("chief").lines().count(), text("one").lines().count());
}

/// PHALANX_TEST_TRIALS tries more examples than the few of each test run.
#[test]
fn the_worker_with_the_bad_example_is_named_and_all_end() {
    let told = Arc::new(Mutex::new(Vec::<String>::new()));
    let notices = Arc::clone(&told);
    let chief = Engine::new(&EngineOptions {
        quick_compile: true,
        notice: Arc::new(move |line| notices.lock().unwrap().push(line.to_owned())),
        ..EngineOptions::default()
    })
    .unwrap();
    let trials = std::env::var("PHALANX_TEST_TRIALS").map_or(20, |text| text.parse().unwrap());
    for trial in 0..trials {
        // The last row of the second batch, which the second worker has; then others.
        let row = (11 + trial * 7) % (ROWS / 6 * 6);
        let (step, worker) = (row / 6, row % 6 / 3);
        let mut x = cases::wave(ROWS * 6, 0.37);
        x[row * 6 + trial % 6] = f32::NAN;
        let y = HostTensor::new([ROWS], &(0..ROWS as i32).map(|i| i % 3).collect::<Vec<_>>());
        let bad = Dataset::from_arrays(HostTensor::new([ROWS, 6], &x), y).unwrap();
        let pick = |worker| if worker == 0 { &chief } else { engine(1, 1) };
        told.lock().unwrap().clear();
        let all = on_engines(2, pick, |strategy| {
            let mut trainer = trainer(&strategy);
            let nan = TerminateOnNan::new().policy(NanPolicy::Halt);
            let history = trainer.fit(&bad.batch(6), quiet(3).callback(nan)).unwrap();
            (history.epochs.len(), trainer.iterations())
        });
        assert_eq!(all, [(1, step as i64 + 1); 2], "example {row}");
        let told = told.lock().unwrap().join("\n");
        assert!(
            told.contains(&format!("the loss of step {step} (counted from 0)"))
                && told.contains(&format!("in example {row} on worker {worker}")),
            "example {row}: {told}"
        );
    }
}

/// Breaks a training off before a step is counted, in one worker alone. Where that is not the one that writes, it waits until the
/// checkpoint of the step is there.
fn crash(is_here: bool, is_chief: bool, at: i64, checkpoint: &Path) -> Lambda {
    let checkpoint = checkpoint.to_path_buf();
    Lambda::new().on_train_batch_end(move |_, cx| {
        if !is_here || cx.iterations() != at {
            return Ok(());
        }
        if !is_chief {
            let is_there = || {
                let saved = TrainingState::load(&checkpoint);
                saved.is_ok_and(|saved| saved.iterations() == at)
            };
            wait_until("the checkpoint of the step", is_there);
        }
        Err(phalanx::Error::Training("a crash".to_owned()))
    })
}

fn unbroken() -> Vec<(String, HostTensor)> {
    let mut all = on_workers(2, 1, |strategy| {
        let mut trainer = trainer(&strategy);
        trainer.fit(&data(), quiet(3)).unwrap();
        trainer.variables().unwrap()
    });
    all.remove(0)
}

#[test]
fn workers_that_are_run_again_go_on_within_an_epoch_to_the_bit() {
    let scratch = scratch("backup");
    let path = scratch.join("backup");
    let mut trained = Vec::new();
    for (run, at) in [2, 6, 11, i64::MAX].into_iter().enumerate() {
        let ended = on_workers(2, 1, |strategy| {
            let is_chief = strategy.is_chief();
            let is_here = usize::from(!is_chief) == run % 2;
            let mut trainer = trainer(&strategy);
            let backup = BackupAndRestore::new(&path).save_freq(SaveFreq::Batches(1));
            let crash = crash(is_here, is_chief, at, &path);
            let fit = quiet(3).callback(crash).callback(backup);
            let fitted = trainer
                .fit(&data(), fit)
                .map(|history| history.epochs.len());
            fitted.and_then(|epochs| Ok((epochs, trainer.variables()?)))
        });
        if at < i64::MAX {
            assert!(ended.iter().all(Result::is_err), "{at}: {ended:?}");
            let saved = TrainingState::load(&path).unwrap();
            assert!((1..=at).contains(&saved.iterations()), "{at}");
            assert_ne!(saved.iterations() % STEPS, 0, "within an epoch");
            assert_eq!(saved.workers(), 2);
        } else {
            trained = ended.into_iter().map(Result::unwrap).collect();
        }
    }
    let whole = unbroken();
    for (epochs, variables) in &trained {
        assert_eq!(*epochs, 3);
        assert_eq!(*variables, whole);
    }
    assert_eq!(trained.len(), 2);
    assert_eq!(scratch.names(), [""; 0], "all is removed at the end");
}

/// Reads a checkpoint into a training by another strategy, and writes it from there.
fn passed_on(strategy: &impl Strategy, from: &Path, to: &Path) {
    let mut trainer = trainer(strategy);
    trainer.restore_checkpoint(from).unwrap();
    trainer.save_checkpoint(to).unwrap();
}

#[test]
fn a_checkpoint_goes_from_workers_to_one_process_to_central_storage_and_back() {
    let scratch = scratch("passed-on");
    let path = |name: &str| scratch.join(name);
    on_workers(2, 1, |strategy| {
        let save = ModelCheckpoint::new(path("a").display().to_string());
        let save = save.save_freq(SaveFreq::Batches(6));
        trainer(&strategy)
            .fit(&data(), quiet(2).callback(save))
            .unwrap();
    });
    passed_on(&OneDeviceStrategy::on(engine(0, 1)), &path("a"), &path("b"));
    passed_on(
        &CentralStorageStrategy::on(engine(0, 2)),
        &path("b"),
        &path("c"),
    );
    on_workers(2, 1, |strategy| {
        passed_on(&strategy, &path("c"), &path("d"));
    });
    let states = ["a", "b", "c", "d"].map(|name| TrainingState::load(path(name)).unwrap());
    for state in &states {
        assert_eq!(state.variables(), states[0].variables());
        assert_eq!(state.slots(), states[0].slots());
        assert_eq!(state.position(), states[0].position());
        assert_eq!(state.iterations(), 6);
        assert_eq!(state.seed(), states[0].seed());
    }
    assert_eq!(states.map(|state| state.workers()), [2, 1, 1, 2]);
    let whole = unbroken();
    let go_on = |mut trainer: Trainer| {
        trainer.restore_checkpoint(path("d")).unwrap();
        trainer.fit(&data(), quiet(3).resume()).unwrap();
        trainer.variables().unwrap()
    };
    for variables in on_workers(2, 1, |strategy| go_on(trainer(&strategy))) {
        assert_eq!(variables, whole);
    }
    let alone = go_on(trainer(&OneDeviceStrategy::on(engine(0, 1))));
    for ((name, one), (_, other)) in alone.iter().zip(&whole) {
        assert!(apart(&one.to_f64(), &other.to_f64()) <= TOLERANCE, "{name}");
    }
}

#[test]
fn what_waits_for_a_slower_worker_is_told_so_and_the_slower_one_for_its_data() {
    let bound = on_workers(2, 1, |strategy| {
        let is_chief = strategy.is_chief();
        let slow = data().map(move |batch| {
            if !is_chief {
                // Four of them an epoch are well above what is worth a word.
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
            Ok(batch)
        });
        let history = trainer(&strategy).fit(&slow.prefetch(0), quiet(2)).unwrap();
        let last = history.epochs.last().unwrap();
        let verdict = last.verdict.clone().unwrap_or_default();
        (last.times.unwrap().bound(), verdict)
    });
    let told = format!("{bound:?}");
    assert_eq!(bound[0].0, Some(StepPart::Exchange), "{told}");
    assert!(
        bound[0].1.contains("see whether another worker is slower"),
        "{told}"
    );
    assert_eq!(bound[1].0, Some(StepPart::Input), "{told}");
}
