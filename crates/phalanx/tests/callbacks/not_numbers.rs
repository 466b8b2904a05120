//! Losses and steps that are not numbers.

use std::sync::{Arc, Mutex};

use phalanx::Result;
use phalanx::checkpoint::{CallbackState, TrainingState};
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::{
    BackupAndRestore, Callback, CallbackContext, EarlyStopping, Lambda, LearningRateScheduler,
    ModelCheckpoint, NanPolicy, SaveFreq, TerminateOnNan,
};
use phalanx::prelude::*;

use crate::{any_device, scratch, variables};

/// Rows of which one is infinite, in one batch of each epoch.
fn bad_rows(bad: f32) -> Batches {
    rows_with(bad, 15).batch(6)
}

fn rows_with(bad: f32, row: usize) -> Dataset {
    let mut x: Vec<f32> = (0..24 * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    x[row * 4 + 2] = bad;
    let y: Vec<i32> = (0..24).map(|i| i * i % 3).collect();
    let x = HostTensor::new([24, 4], &x);
    Dataset::from_arrays(x, HostTensor::new([24], &y)).unwrap()
}

/// Rows of which the last batch alone has one that is not a number.
fn bad_at_the_end() -> Batches {
    rows_with(f32::NAN, 21).batch(6)
}

fn with_loss_scale(loss_scale: LossScale) -> Trainer {
    compiled(loss_scale, 1)
}

fn compiled(loss_scale: LossScale, steps_per_execution: usize) -> Trainer {
    let strategy = OneDeviceStrategy::new().unwrap();
    compiled_on(&strategy, loss_scale, steps_per_execution)
}

fn compiled_on(
    strategy: &OneDeviceStrategy,
    loss_scale: LossScale,
    steps_per_execution: usize,
) -> Trainer {
    let model = Sequential::new([4]).add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        loss_scale,
        steps_per_execution,
        ..Compile::default()
    };
    strategy.compile(model, compile).unwrap()
}

fn are_finite(tensors: &[(String, HostTensor)]) -> bool {
    let mut values = tensors.iter().flat_map(|(_, value)| value.to_f64());
    values.all(f64::is_finite)
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

/// Rates depend neither on when results are read, nor on steps that are skipped, undone or would be one program.
#[test]
fn rates_of_steps_count_all_that_are_made() {
    let skipping = (LossScale::SkipNonFinite, NanPolicy::Skip);
    let rolling_back = (LossScale::Off, NanPolicy::Rollback);
    for (every, steps_per_execution, (loss_scale, policy)) in [
        (1, 1, skipping),
        (usize::MAX, 1, skipping),
        (usize::MAX, 3, skipping),
        (1, 1, rolling_back),
        (usize::MAX, 3, rolling_back),
    ] {
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
        let mut trainer = compiled(loss_scale, steps_per_execution);
        let fit = |epochs| Fit::epochs(epochs).progress(Progress::Silent);
        let scheduler = || LearningRateScheduler::per_step(|step| 0.5f64.powi(step as i32));
        for plan in [fit(1), fit(3).resume()] {
            let watch = TerminateOnNan::new().policy(policy);
            let plan = plan.callback(watch).callback(scheduler());
            trainer
                .fit(&bad_rows(f32::NAN), plan.callback(note()))
                .unwrap();
        }
        let expected: Vec<f64> = (0..12).map(|step| 0.5f64.powi(step)).collect();
        assert_eq!(*rates.lock().unwrap(), expected);
    }
}

/// Tells at each batch whether there is something to go on from.
struct Remembers(Arc<Mutex<Vec<Option<usize>>>>);

impl Callback for Remembers {
    fn kind(&self) -> &'static str {
        "remembers"
    }

    fn on_train_batch_end(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.0.lock().unwrap().push(cx.restored()?);
        Ok(())
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: serde_json::json!(7),
            ..CallbackState::default()
        }
    }
}

/// The last step of the first epoch makes variables infinite, though its loss is a number; the rate of the second is set before that is found.
#[test]
fn a_rollback_undoes_neither_the_rate_that_is_set_nor_what_callbacks_know() {
    let mut x = vec![0.0; 24 * 4];
    // Of one label: the logits of one of the two at least are the largest elsewhere.
    (x[22 * 4], x[23 * 4]) = (1e30, -1e30);
    let y: Vec<i32> = (0..24).map(|i| i * i % 3).collect();
    let y = HostTensor::new([24], &y);
    let rows = Dataset::from_arrays(HostTensor::new([24, 4], &x), y).unwrap();
    let compile = Compile {
        optimizer: Sgd::new(1.0).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::new().unwrap();
    let model = Sequential::new([4]).add(Dense::new(3));
    let mut trainer = strategy.compile(model, compile).unwrap();
    let rates = Arc::new(Mutex::new(Vec::new()));
    let (noted, restored) = (Arc::clone(&rates), Arc::default());
    let note = Lambda::new().on_train_batch_end(move |_, cx| {
        noted.lock().unwrap().push(cx.learning_rate()?);
        Ok(())
    });
    let scheduler = LearningRateScheduler::per_epoch(|epoch, _| [1e10, 0.5][epoch]);
    let plan = Fit::epochs(2)
        .progress(Progress::Silent)
        .callback(scheduler)
        .callback(TerminateOnNan::new().policy(NanPolicy::Rollback))
        .callback(Remembers(Arc::clone(&restored)))
        .callback(note);
    trainer.fit(&rows.batch(6), plan).unwrap();
    assert_eq!(*rates.lock().unwrap(), [[1e10; 4], [0.5; 4]].concat());
    assert_eq!(*restored.lock().unwrap(), [None; 8]);
    assert!(are_finite(&variables(&trainer)));
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

/// What no look has seen when the steps of an epoch are made is undone before the epoch has results, which callbacks decide by.
#[test]
fn an_epoch_has_no_results_of_steps_that_are_undone() {
    let train = |epochs, snapshot_every| {
        let early = EarlyStopping::new("loss").patience(3);
        let early = Arc::new(Mutex::new(early.restore_best_weights(true)));
        let rarely = TerminateOnNan::new().policy(NanPolicy::Rollback);
        let mut trainer = with_loss_scale(LossScale::Off);
        let before = variables(&trainer);
        let plan = Fit::epochs(epochs)
            .progress(Progress::Silent)
            .validation(&bad_rows(0.0))
            .callback(Arc::clone(&early))
            .callback(rarely.every(50).snapshot_every(snapshot_every));
        let history = trainer.fit(&bad_at_the_end(), plan).unwrap();
        let best = early.lock().unwrap().best();
        (history, best, before, variables(&trainer))
    };
    let (history, best, before, after) = train(3, 3);
    for done in &history.epochs {
        assert!(done.logs.iter().all(|(_, value)| value.is_finite()));
    }
    assert!(best.is_some_and(f64::is_finite), "{best:?}");
    assert!(are_finite(&after));
    assert_ne!(before, after);
    // Where all of it is undone it is no epoch to decide by.
    let (history, best, before, after) = train(1, 100);
    assert!(history.epochs[0].logs["loss"].is_nan());
    assert!(history.epochs[0].logs["val_loss"].is_finite());
    assert_eq!((best, before), (None, after));
}

/// Whichever callback is called first.
#[test]
fn a_state_that_is_lost_is_neither_written_nor_an_error() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    let options = EngineOptions {
        notice: Arc::new(move |line| kept.lock().unwrap().push(line.to_owned())),
        ..any_device::options()
    };
    let strategy = OneDeviceStrategy::on(&Engine::new(&options).unwrap());
    for policy in [NanPolicy::Halt, NanPolicy::Rollback] {
        for (freq, weights_only, is_first, every) in [
            (SaveFreq::Epoch, true, false, 50),
            (SaveFreq::Epoch, false, true, 1),
            (SaveFreq::Batches(1), true, true, 1),
            (SaveFreq::Batches(4), false, true, 50),
            (SaveFreq::Batches(4), true, true, 50),
        ] {
            let scratch = scratch("lost");
            let name = if weights_only {
                "{epoch}-{loss:.3f}.safetensors"
            } else {
                "{epoch}-{loss:.3f}"
            };
            let save = ModelCheckpoint::new(scratch.join(name).display().to_string());
            let save = save.save_weights_only(weights_only).save_freq(freq);
            let save = save.monitor("loss").save_best_only(true);
            let nan = TerminateOnNan::new().policy(policy).every(every);
            let nan = nan.snapshot_every(3);
            let plan = Fit::epochs(2)
                .progress(Progress::Silent)
                .checkpoint(scratch.join("own"))
                .save_freq(4);
            let plan = match is_first {
                true => plan.callback(save).callback(nan),
                false => plan.callback(nan).callback(save),
            };
            told.lock().unwrap().clear();
            let mut trainer = compiled_on(&strategy, LossScale::Off, 1);
            let history = trainer.fit(&bad_at_the_end(), plan).unwrap();
            let is_halted = policy == NanPolicy::Halt;
            assert_eq!(history.epochs.len(), if is_halted { 1 } else { 2 });
            let own = TrainingState::load(scratch.join("own")).unwrap();
            assert!(are_finite(own.variables()));
            assert_eq!(own.iterations(), if is_halted { 0 } else { 6 });
            let names = scratch.names();
            assert!(!names.iter().any(|name| name.contains("nan")), "{names:?}");
            let warnings = told.lock().unwrap();
            let warnings = warnings
                .iter()
                .filter(|line| line.contains("the loss of step"));
            assert_eq!(warnings.count(), history.epochs.len());
        }
    }
}

/// Removed at the end of a training is what nobody needs any more; nor are losses that are not numbers accepted after it.
#[test]
fn the_last_good_state_stays_where_a_later_one_is_lost() {
    let scratch = scratch("stays");
    let path = scratch.join("backup");
    let plan = |epochs| {
        let plan = Fit::epochs(epochs).progress(Progress::Silent);
        plan.callback(TerminateOnNan::new())
    };
    let backup = || BackupAndRestore::new(&path);
    let mut trainer = with_loss_scale(LossScale::Off);
    let first = plan(1).callback(backup().delete_checkpoint(false));
    trainer.fit(&bad_rows(0.0), first).unwrap();
    let second = plan(2).callback(backup()).resume();
    trainer.fit(&bad_rows(f32::NAN), second).unwrap();
    assert!(!are_finite(&variables(&trainer)));
    let state = TrainingState::load(&path).unwrap();
    assert_eq!((state.iterations(), state.position().epoch), (4, 1));
    assert!(are_finite(state.variables()));
    let batch = bad_rows(0.0).iter(0, 0).next().unwrap().unwrap();
    let error = trainer.train_on_batch(&batch).unwrap_err().to_string();
    assert!(error.starts_with("the loss of step 7"), "{error}");
}

#[test]
fn a_batch_that_is_no_longer_there_is_told_not_to_be() {
    let first = TerminateOnNan::new().policy(NanPolicy::Rollback);
    let plan = Fit::epochs(1)
        .progress(Progress::Silent)
        .callback(first.every(50).most_rollbacks(0));
    let mut trainer = with_loss_scale(LossScale::Off);
    let batches = rows_with(f32::NAN, 3).batch(1);
    let error = trainer.fit(&batches, plan).unwrap_err().to_string();
    let told = "the loss of step 3 (counted from 0) is infinite or not a number; its data were no longer there to be looked at; the first of the state that is, is `";
    assert!(error.starts_with(told), "{error}");
}

#[test]
fn an_epoch_without_weights_is_an_error_beside_it() {
    let weights = HostTensor::new([24], &[0.0f32; 24]);
    let rows = rows_with(0.0, 0).with_weights(&weights).unwrap();
    for policy in [NanPolicy::Halt, NanPolicy::Rollback] {
        let plan = Fit::epochs(1).progress(Progress::Silent);
        let plan = plan.callback(TerminateOnNan::new().policy(policy));
        let mut trainer = with_loss_scale(LossScale::Off);
        let error = trainer.fit(&rows.batch(6), plan).unwrap_err().to_string();
        assert!(error.contains("the epoch trained on nothing"), "{error}");
    }
}

/// Something to do after no batch is something to do after the next one.
#[test]
fn an_epoch_is_whole_where_something_is_always_due() {
    struct Due;
    impl Callback for Due {
        fn kind(&self) -> &'static str {
            "due"
        }
        fn batches_until_due(&self) -> Option<usize> {
            Some(0)
        }
    }
    let plan = Fit::epochs(1).progress(Progress::Silent).callback(Due);
    let history = compiled(LossScale::Off, 3)
        .fit(&bad_rows(0.0), plan)
        .unwrap();
    assert_eq!(history.epochs[0].steps, 4);
}
