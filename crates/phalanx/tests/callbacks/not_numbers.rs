//! Losses and steps that are not numbers.

use std::sync::{Arc, Mutex};

use phalanx::fit::callbacks::{
    EarlyStopping, Lambda, LearningRateScheduler, NanPolicy, TerminateOnNan,
};
use phalanx::prelude::*;

use crate::variables;

/// Rows of which one is infinite, in one batch of each epoch.
fn bad_rows(bad: f32) -> Batches {
    let mut x: Vec<f32> = (0..24 * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    x[15 * 4 + 2] = bad;
    let y: Vec<i32> = (0..24).map(|i| i * i % 3).collect();
    let x = HostTensor::new([24, 4], &x);
    let rows = Dataset::from_arrays(x, HostTensor::new([24], &y)).unwrap();
    rows.batch(6)
}

fn with_loss_scale(loss_scale: LossScale) -> Trainer {
    compiled(loss_scale, 1)
}

fn compiled(loss_scale: LossScale, steps_per_execution: usize) -> Trainer {
    let model = Sequential::new([4]).add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        loss_scale,
        steps_per_execution,
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::new().unwrap();
    strategy.compile(model, compile).unwrap()
}

#[test]
fn a_loss_that_is_not_a_number_is_found_by_name() {
    let why = Arc::new(Mutex::new(String::new()));
    for every in [1, 2, 3, 50] {
        let mut trainer = with_loss_scale(LossScale::Off);
        let keep = EarlyStopping::new("loss")
            .patience(9)
            .restore_best_weights(true);
        let plan = Fit::epochs(3)
            .progress(Progress::Silent)
            .callback(keep)
            .callback(TerminateOnNan::new().every(every));
        let history = trainer.fit(&bad_rows(f32::INFINITY), plan).unwrap();
        assert_eq!(history.epochs.len(), 1, "{every}");
        assert_eq!(
            history.epochs[0].steps,
            (3_usize).next_multiple_of(every).min(4)
        );
        assert!(history.epochs[0].logs["loss"].is_nan());
    }
    // Without it the training is an error, as before.
    let mut trainer = with_loss_scale(LossScale::Off);
    let plan = Fit::epochs(3).progress(Progress::Silent);
    let error = trainer
        .fit(&bad_rows(f32::NAN), plan)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("the loss of step 2"), "{error}");
    // The error of too many rollbacks has what was found.
    let mut trainer = with_loss_scale(LossScale::Off);
    let once = TerminateOnNan::new()
        .policy(NanPolicy::Rollback)
        .most_rollbacks(1);
    let plan = Fit::epochs(3).progress(Progress::Silent).callback(once);
    let error = trainer
        .fit(&bad_rows(f32::NAN), plan)
        .unwrap_err()
        .to_string();
    *why.lock().unwrap() = error;
    // Found where a state was to be copied, and counted all the same.
    let rarely = TerminateOnNan::new()
        .policy(NanPolicy::Rollback)
        .every(50)
        .snapshot_every(1);
    let plan = Fit::epochs(9).progress(Progress::Silent).callback(rarely);
    let mut trainer = with_loss_scale(LossScale::Off);
    let error = trainer.fit(&bad_rows(f32::NAN), plan).unwrap_err();
    assert!(error.to_string().contains("after 3 rollbacks"), "{error}");
    assert_eq!(
        *why.lock().unwrap(),
        "the loss of step 3 (counted from 0) is infinite or not a number; input 0 of its batch has NaN in example 15, after 1 rollbacks; try a lower learning rate or gradient clipping (`clipnorm`), and look at these data"
    );
}

/// Rates depend neither on when results are read, nor on steps that are skipped or would be one program.
#[test]
fn rates_of_steps_count_skipped_ones() {
    for (every, steps_per_execution) in [(1, 1), (usize::MAX, 1), (usize::MAX, 3)] {
        let rates = Arc::new(Mutex::new(Vec::new()));
        let note = || {
            let noted = Arc::clone(&rates);
            Lambda::new().on_train_batch_end(move |batch, cx| {
                noted.lock().unwrap().push(cx.learning_rate()?);
                if batch % every == 0 {
                    cx.logs()?;
                }
                Ok(())
            })
        };
        let mut trainer = compiled(LossScale::SkipNonFinite, steps_per_execution);
        let fit = |epochs| Fit::epochs(epochs).progress(Progress::Silent);
        let scheduler = || LearningRateScheduler::per_step(|step| 0.5f64.powi(step as i32));
        for plan in [fit(1), fit(3).resume()] {
            let skip = TerminateOnNan::new().policy(NanPolicy::Skip);
            let plan = plan.callback(skip).callback(scheduler());
            trainer
                .fit(&bad_rows(f32::NAN), plan.callback(note()))
                .unwrap();
        }
        let expected: Vec<f64> = (0..12).map(|step| 0.5f64.powi(step)).collect();
        assert_eq!(*rates.lock().unwrap(), expected);
    }
}

/// Both are the training on the other batches alone: skipped steps change nothing, and a state of just before is gone back to.
#[test]
fn steps_that_are_not_numbers_are_skipped_or_gone_back_on() {
    let good = || {
        let mut trainer = with_loss_scale(LossScale::Off);
        for _ in 0..2 {
            let batches = bad_rows(0.0);
            for (number, batch) in batches.iter(0, 0).enumerate() {
                if number != 2 {
                    trainer.train_on_batch(&batch.unwrap()).unwrap();
                }
            }
        }
        variables(&trainer)
    };
    let trained = |loss_scale, callback: TerminateOnNan| {
        let mut trainer = with_loss_scale(loss_scale);
        let plan = Fit::epochs(2).progress(Progress::Silent).callback(callback);
        let history = trainer.fit(&bad_rows(f32::NAN), plan).unwrap();
        assert!(
            history
                .epochs
                .iter()
                .all(|epoch| epoch.logs["loss"].is_finite())
        );
        assert_eq!(trainer.iterations(), 6);
        variables(&trainer)
    };
    let rollback = TerminateOnNan::new()
        .policy(NanPolicy::Rollback)
        .snapshot_every(1);
    assert_eq!(trained(LossScale::Off, rollback), good());
    let skip = || TerminateOnNan::new().policy(NanPolicy::Skip);
    assert_eq!(trained(LossScale::SkipNonFinite, skip()), good());
    let mut trainer = with_loss_scale(LossScale::Off);
    let plan = Fit::epochs(1).callback(skip());
    let error = trainer.fit(&bad_rows(0.0), plan).unwrap_err().to_string();
    assert!(error.contains("LossScale::SkipNonFinite"), "{error}");
}
