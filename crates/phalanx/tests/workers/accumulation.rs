//! Gradients that workers add up by themselves until a window of batches ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx_testkit::Scratch;

use crate::cases::{self, Case};
use crate::recovery::Run;
use crate::{TOLERANCE, apart, check, engine, on_workers};

/// The number of batches of a window, in a process that is a worker of [`Run`].
pub(crate) const WINDOW: &str = "PHALANX_TEST_WINDOW";
/// After how many batches the second worker dies.
const DIES_AFTER: &str = "PHALANX_TEST_DIES_AFTER";

fn momentum() -> Optimizer {
    Sgd::new(0.1).momentum(0.9).into()
}

/// Weighted rows in four batches an epoch, the last of which has fewer rows than there are workers; moving statistics of whole batches,
/// penalties, dropout, clipping and averages.
pub(crate) fn windows_of(batches: u64) -> Case {
    let l2 = Regularizer::L2 { l2: 0.01 };
    let model = Sequential::new([6])
        .add(Dense::new(8).activation(tanh).kernel_regularizer(l2))
        .add(BatchNorm::new().synchronized(true))
        .add(Dropout::new(0.25))
        .add(Dense::new(3));
    let mut case = cases::everything();
    let weights: Vec<f32> = (0..22).map(|row| (row % 4) as f32 * 0.5).collect();
    let rows = cases::rows(22).with_weights(&HostTensor::new([22], &weights));
    case.compile.optimizer = momentum()
        .global_clipnorm(0.3)
        .gradient_accumulation(batches)
        .ema(0.9);
    Case {
        model: model.build().unwrap(),
        data: rows.unwrap(),
        batch: 7,
        epochs: 5,
        ..case
    }
}

#[test]
fn windows_that_do_and_do_not_divide_an_epoch_train_as_in_one_process() {
    check(2, 1, || windows_of(2));
    check(3, 1, || windows_of(3));
    check(2, 2, || windows_of(5));
    // Longer than an epoch.
    check(2, 1, || windows_of(6));
}

#[test]
fn a_fixed_loss_scale_and_one_that_skips_do_too() {
    for scale in [LossScale::Fixed(8.0), LossScale::SkipNonFinite] {
        check(2, 1, || {
            let mut case = windows_of(3);
            case.compile.loss_scale = scale;
            case
        });
    }
}

/// Trains to a number of epochs, from a checkpoint if there is one; what is left, and the state.
fn go_on(
    strategy: &impl Strategy,
    from: Option<&TrainingState>,
    epochs: usize,
) -> (Vec<f64>, TrainingState) {
    let case = windows_of(3);
    let mut trainer = strategy.compile(case.model, case.compile).unwrap();
    let mut fit = Fit::epochs(epochs).progress(Progress::Silent);
    if let Some(state) = from {
        trainer.set_training_state(state).unwrap();
        fit = fit.resume();
    }
    trainer.fit(&case.data.batch(case.batch), fit).unwrap();
    let values = trainer.variables().unwrap().into_iter();
    let values = values.flat_map(|(_, value)| value.to_f64()).collect();
    (values, trainer.training_state().unwrap())
}

/// The sum of the gradients of a window that a state holds.
fn accumulated(state: &TrainingState) -> Vec<f64> {
    let slots = state.slots().iter();
    let sums = slots.filter(|(name, _)| name.ends_with("accumulated_gradient"));
    sums.flat_map(|(_, value)| value.to_f64()).collect()
}

/// Four batches an epoch: the first one ends within the second window of three.
#[test]
fn a_checkpoint_within_a_window_is_that_of_one_process_and_goes_on_with_any_number() {
    let alone = OneDeviceStrategy::on(engine(0, 1));
    let (unbroken, _) = go_on(&alone, None, 5);
    let (_, one) = go_on(&alone, None, 1);
    assert!(accumulated(&one).iter().any(|x| x.abs() > 1e-3));
    let states = [1, 2, 3].map(|workers| {
        let states = on_workers(workers, 1, |strategy| go_on(&strategy, None, 1).1);
        let sums: Vec<Vec<f64>> = states.iter().map(accumulated).collect();
        assert!(sums.iter().all(|other| *other == sums[0]));
        let apart = apart(&accumulated(&one), &sums[0]);
        assert!(apart <= TOLERANCE, "{workers} workers: {apart:e}");
        states.into_iter().next().unwrap()
    });
    for (before, after) in [(2, 3), (3, 2), (1, 2)] {
        let state = &states[before - 1];
        let all = on_workers(after, 1, |strategy| go_on(&strategy, Some(state), 5).0);
        assert!(all.iter().all(|other| *other == all[0]));
        let apart = apart(&unbroken, &all[0]);
        assert!(apart <= TOLERANCE, "{before} and {after}: {apart:e}");
    }
    let (values, _) = go_on(&alone, Some(&states[1]), 5);
    assert!(apart(&unbroken, &values) <= TOLERANCE);
}

/// Three epochs with a checkpoint after each step; what is left.
fn with_checkpoints(strategy: &impl Strategy, folder: PathBuf) -> Vec<f64> {
    let case = windows_of(3);
    let mut trainer = strategy.compile(case.model, case.compile).unwrap();
    let saving = Lambda::new().on_train_batch_end(move |_, cx| {
        cx.save_checkpoint(folder.join(cx.iterations().to_string()));
        Ok(())
    });
    let fit = Fit::epochs(3).progress(Progress::Silent).callback(saving);
    trainer.fit(&case.data.batch(case.batch), fit).unwrap();
    let values = trainer.variables().unwrap().into_iter();
    values.flat_map(|(_, value)| value.to_f64()).collect()
}

/// Within a window all workers add up what they have, and go on as if they had not.
#[test]
fn checkpoints_after_each_step_hold_the_sums_of_all_workers() {
    let folder = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "workers-windows");
    let alone = OneDeviceStrategy::on(engine(0, 1));
    let one = with_checkpoints(&alone, folder.join("one"));
    let all = on_workers(2, 1, |strategy| {
        with_checkpoints(&strategy, folder.join("two"))
    });
    assert_eq!(all[0], all[1]);
    assert!(apart(&one, &all[0]) <= TOLERANCE);
    for step in 1..=12 {
        let load = |name: &str| {
            let path = folder.join(name).join(step.to_string());
            TrainingState::load(path).unwrap()
        };
        let apart = apart(&accumulated(&load("one")), &accumulated(&load("two")));
        assert!(apart <= TOLERANCE, "step {step}: {apart:e}");
    }
}

/// Ends the process of the second worker after some batches, once; nothing where that is not asked for.
pub(crate) fn death(folder: &Path, rank: &str) -> Lambda {
    let after = std::env::var(DIES_AFTER).ok();
    let after = after.map(|text| text.parse::<i64>().unwrap());
    let (has_died, is_second) = (folder.join("died"), rank == "1");
    Lambda::new().on_train_batch_end(move |_, cx| {
        if is_second && after == Some(cx.iterations()) && !has_died.exists() {
            std::fs::write(&has_died, "").unwrap();
            let process = std::process::id().to_string();
            let killed = Command::new("kill").args(["-KILL", &process]).status();
            panic!("still there: {killed:?}");
        }
        Ok(())
    })
}

/// Trains two workers, of which the second dies after this many batches; what each is left with.
fn dying(window: usize, after: Option<i64>) -> Vec<String> {
    let run = Run::new(&format!("window-{window}-{after:?}"));
    let mut launch = run.launch(2);
    launch
        .program
        .insert(1, format!("{WINDOW}={window}").into());
    if let Some(after) = after {
        launch
            .program
            .insert(1, format!("{DIES_AFTER}={after}").into());
    }
    let outs = run.train_to_end(launch);
    let lines = run.lines();
    let (found, wanted) = (lines.contains("goes on from step"), after.is_some());
    assert_eq!(found, wanted, "{lines}");
    outs
}

/// Four batches an epoch in windows of three: after batch 5 the second window is open, and batch 8 is the last of an epoch whose sums
/// are exchanged within the third window.
#[test]
fn a_worker_that_dies_anywhere_in_a_window_takes_nothing_with_it() {
    let expected = dying(3, None);
    assert_eq!(expected[0], expected[1]);
    assert!(!expected[0].is_empty());
    for after in [4, 5, 6, 7, 8, 9] {
        assert_eq!(dying(3, Some(after)), expected, "dies after {after}");
    }
}
