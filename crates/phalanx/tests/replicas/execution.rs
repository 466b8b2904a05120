//! Several training steps in one program do what as many programs do.

use std::sync::{Arc, Mutex};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::{BackupAndRestore, Lambda, SaveFreq};
use phalanx::prelude::*;
use phalanx::schedules::ExponentialDecay;
use phalanx::strategy::{CentralStorageStrategy, PipelineStrategy};
use phalanx_testkit::{Scratch, relative_difference as apart};

use crate::{cases, engine, names, pairs, quick_engine, values};

/// The same operations in another program may be rounded otherwise.
const TOLERANCE: f64 = 1e-6;

fn model() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(8).activation(tanh))
        .add(BatchNorm::new())
        .add(Dropout::new(0.25))
        .add(Dense::new(3))
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::on(quick_engine())
        .devices(names(replicas))
        .unwrap()
}

fn compile(optimizer: impl Into<Optimizer>, steps: usize) -> Compile {
    Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 5,
        steps_per_execution: steps,
        ..Compile::default()
    }
}

/// Seven batches: six of 4 rows, and one of 2; weights, some of them 0.
fn data() -> Batches {
    let weights: Vec<f32> = (0..26).map(|row| (row % 4) as f32 * 0.5).collect();
    let data = cases::rows(26).with_weights(&HostTensor::new([26], &weights));
    data.unwrap().shuffle(3).batch(4)
}

fn quietly(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// What a training leaves: its variables and its results.
type Trained = (Vec<f64>, Vec<(String, f64)>);

fn train(replicas: usize, compile: Compile) -> Trained {
    let model = model().build().unwrap();
    let mut trainer = mirrored(replicas).compile(model, compile).unwrap();
    let history = trainer.fit(&data(), quietly(3)).unwrap();
    let logs = history.epochs.iter().flat_map(|epoch| pairs(&epoch.logs));
    let logs = logs.collect();
    (flat(&trainer), logs)
}

fn flat(trainer: &Trainer) -> Vec<f64> {
    values(trainer).into_iter().flat_map(|(_, v)| v).collect()
}

fn assert_alike(expected: &Trained, found: &Trained, what: &str) {
    let difference = apart(&expected.0, &found.0);
    assert!(difference <= TOLERANCE, "{what}: {difference:e}");
    assert_eq!(expected.1.len(), found.1.len(), "{what}");
    for ((name, a), (_, b)) in expected.1.iter().zip(&found.1) {
        let is_near = (a - b).abs() <= TOLERANCE * a.abs().max(1.0);
        assert!(
            is_near || (a.is_nan() && b.is_nan()),
            "{what}: {name} is {a} and {b}"
        );
    }
}

#[test]
fn schedules_dropout_statistics_and_windows_are_those_of_single_steps() {
    let adam = || Adam::new(ExponentialDecay::new(0.05, 2, 0.9)).into();
    let momentum = || Optimizer::from(Sgd::new(0.1).momentum(0.9));
    let windows = || momentum().gradient_accumulation(2).ema(0.9);
    let long = || momentum().global_clipnorm(0.3).gradient_accumulation(5);
    // Seven steps an epoch are 2 + 2 + 2 + 1, or 3 + 3 + 1.
    let cases: [(&dyn Fn() -> Optimizer, usize, usize); 4] = [
        (&adam, 1, 2),
        (&adam, 2, 3),
        (&windows, 2, 3),
        (&long, 1, 2),
    ];
    for (case, (optimizer, replicas, steps)) in cases.into_iter().enumerate() {
        let expected = train(replicas, compile(optimizer(), 1));
        let found = train(replicas, compile(optimizer(), steps));
        assert_alike(&expected, &found, &format!("case {case}"));
    }
}

#[test]
fn steps_that_a_loss_scale_skips_are_skipped_one_by_one() {
    for replicas in [1, 2] {
        let run = |steps| {
            let compile = Compile {
                precision: Policy::MixedFloat16,
                // Too large at first, and doubled again and again.
                loss_scale: LossScale::Dynamic {
                    initial: 2f64.powi(24),
                    growth_steps: 2,
                },
                ..compile(Sgd::new(0.05), steps)
            };
            train(replicas, compile)
        };
        let (expected, found) = (run(1), run(3));
        let skipped = |trained: &Trained| {
            let mut logs = trained.1.iter().rev();
            logs.find(|(name, _)| name == "skipped_steps").unwrap().1
        };
        assert!(skipped(&expected) >= 2.0, "{expected:?}");
        assert_eq!(skipped(&expected), skipped(&found));
        let difference = apart(&expected.0, &found.0);
        // What is rounded to 16 bits, in the last of these bits.
        assert!(difference <= 2e-3, "{difference:e}");
    }
}

/// The numbers that the hooks of batches are called with, and for how many steps.
fn hooks(steps: usize, fit: impl FnOnce(Fit) -> Fit) -> Vec<(&'static str, usize, usize)> {
    let called = Arc::new(Mutex::new(Vec::new()));
    let [at_begin, at_end] = [0; 2].map(|_| Arc::clone(&called));
    let note = Lambda::new()
        .on_train_batch_begin(move |batch, cx| {
            at_begin
                .lock()
                .unwrap()
                .push(("begin", batch, cx.execution_steps()));
            Ok(())
        })
        .on_train_batch_end(move |batch, cx| {
            at_end
                .lock()
                .unwrap()
                .push(("end", batch, cx.execution_steps()));
            Ok(())
        });
    let model = model().build().unwrap();
    let mut trainer = mirrored(1)
        .compile(model, compile(Sgd::new(0.1), steps))
        .unwrap();
    trainer
        .fit(&data(), fit(quietly(1)).callback(note))
        .unwrap();
    assert_eq!(trainer.iterations(), 7);
    called.lock().unwrap().clone()
}

#[test]
fn hooks_of_batches_are_called_once_an_execution() {
    assert_eq!(
        hooks(3, |fit| fit),
        [
            ("begin", 0, 3),
            ("end", 2, 3),
            ("begin", 3, 3),
            ("end", 5, 3),
            ("begin", 6, 1),
            ("end", 6, 1)
        ]
    );
    assert_eq!(hooks(1, |fit| fit).len(), 14);
}

#[test]
fn an_execution_is_one_program_and_its_steps_are_counted() {
    let folder = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "execution-trace");
    let path = folder.join("trace.json");
    let model = model().build().unwrap();
    let mut trainer = mirrored(1)
        .compile(model, compile(Sgd::new(0.1), 2))
        .unwrap();
    // After the first execution, the next two.
    let fit = quietly(1).trace(&path, 2, 4);
    let history = trainer.fit(&data(), fit).unwrap();
    assert_eq!(history.epochs[0].steps, 7);
    assert_eq!(history.epochs[0].times.unwrap().steps, 7);
    let text = std::fs::read_to_string(&path).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let runs = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["name"] == "step");
    assert_eq!(runs.count(), 2, "{text}");
}

/// A trace within one execution is of the next ones.
#[test]
fn a_trace_that_begins_and_ends_within_an_execution_is_written() {
    let folder = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "execution-within");
    let path = folder.join("trace.json");
    let model = model().build().unwrap();
    let mut trainer = mirrored(1)
        .compile(model, compile(Sgd::new(0.1), 3))
        .unwrap();
    trainer.fit(&data(), quietly(1).trace(&path, 1, 1)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let runs = text.matches("\"name\":\"step\"").count();
    assert_eq!(runs, 1, "{text}");
}

/// A backup after every 2 batches cuts executions of 3; the training goes on from it as if there had been none.
#[test]
fn checkpoints_are_of_the_batch_that_they_are_due_at_and_go_on_exactly() {
    let folder = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "execution-backup");
    let backup = || {
        let backup = BackupAndRestore::new(folder.join("backup"));
        backup
            .save_freq(SaveFreq::Batches(2))
            .delete_checkpoint(false)
    };
    let ends: Vec<usize> = hooks(3, |fit| fit.callback(backup()))
        .into_iter()
        .filter_map(|(hook, batch, _)| (hook == "end").then_some(batch))
        .collect();
    assert_eq!(ends, [1, 3, 5, 6]);
    let state = TrainingState::load(folder.join("backup")).unwrap();
    assert_eq!(state.iterations(), 6);
    let go_on = |steps| {
        let model = model().build().unwrap();
        let compile = compile(Sgd::new(0.1), steps);
        let mut trainer = mirrored(1).compile(model, compile).unwrap();
        trainer.set_training_state(&state).unwrap();
        trainer.fit(&data(), quietly(3).resume()).unwrap();
        flat(&trainer)
    };
    let (expected, _) = train(1, compile(Sgd::new(0.1), 1));
    for steps in [1, 4] {
        let difference = apart(&expected, &go_on(steps));
        assert!(difference <= TOLERANCE, "{steps}: {difference:e}");
    }
}

fn refused(strategy: &impl Strategy) -> String {
    let model = model().build().unwrap();
    let compiled = strategy.compile(model, compile(Sgd::new(0.1), 4));
    compiled.unwrap_err().to_string()
}

#[test]
fn where_steps_are_run_by_themselves_it_is_refused() {
    let pipeline = PipelineStrategy::on(engine(), 2, 2).unwrap();
    for (error, place) in [
        (
            refused(&CentralStorageStrategy::on(engine())),
            "on a device of their own",
        ),
        (refused(&pipeline), "in stages"),
    ] {
        let is_told = error.contains("`steps_per_execution` is 4") && error.contains(place);
        assert!(is_told, "{error}");
    }
    let none = mirrored(1).compile(model().build().unwrap(), compile(Sgd::new(0.1), 0));
    let error = none.unwrap_err().to_string();
    assert!(error.contains("`steps_per_execution` is 0"), "{error}");
}
