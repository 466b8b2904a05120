//! Checkpoints by callbacks, and trainings that go on from them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use phalanx::Error;
use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::{
    BackupAndRestore, CsvLogger, EarlyStopping, Lambda, LearningRateScheduler, ModelCheckpoint,
    MonitorMode, ReduceLrOnPlateau, SaveFreq,
};
use phalanx::prelude::*;
use phalanx_testkit::Scratch;

use crate::{fit, rows, scratch, trainer, variables};

/// Everything that has a state.
fn all(scratch: &Scratch, name: &str) -> Fit {
    let path = |what: &str| scratch.join(format!("{name}-{what}"));
    let best = path("best_{epoch}.safetensors").display().to_string();
    fit(8)
        .callback(
            ReduceLrOnPlateau::new("loss")
                .min_delta(10.0)
                .patience(2)
                .factor(0.5),
        )
        .callback(
            EarlyStopping::new("val_loss")
                .min_delta(10.0)
                .patience(6)
                .restore_best_weights(true),
        )
        .callback(CsvLogger::new(path("log.csv")))
        .callback(
            ModelCheckpoint::new(best)
                .save_best_only(true)
                .save_weights_only(true)
                .monitor("loss")
                .keep(2)
                .keep_every(2),
        )
}

#[test]
fn an_interrupted_training_goes_on_with_what_callbacks_remember() {
    let scratch = scratch("resume");
    let mut whole = trainer();
    let history = whole.fit(&rows(12), all(&scratch, "a")).unwrap();
    assert_eq!(history.epochs.len(), 7, "patience is 6");
    let rate = whole.learning_rate().unwrap();
    assert!(rate < 0.05 * 0.3, "{rate}");
    for at in [1, 3, 4, 6] {
        let path = scratch.join("checkpoint");
        let mut first = trainer();
        let crash = Lambda::new().on_epoch_begin(move |epoch, _| match epoch == at {
            true => Err(Error::Training("a crash".to_owned())),
            false => Ok(()),
        });
        let fit = all(&scratch, "b").checkpoint(&path).callback(crash);
        first.fit(&rows(12), fit).unwrap_err();
        drop(first);
        let mut second = trainer();
        second.restore_checkpoint(&path).unwrap();
        let state = second.training_state().unwrap();
        assert_eq!(state, TrainingState::load(&path).unwrap());
        let fit = all(&scratch, "b").checkpoint(&path).resume();
        let again = second.fit(&rows(12), fit).unwrap();
        assert_eq!(again.epochs.len(), history.epochs.len(), "{at}");
        for (one, other) in history.epochs.iter().zip(&again.epochs) {
            assert_eq!(one.logs, other.logs, "{at}");
        }
        assert_eq!(variables(&whole), variables(&second), "{at}");
        assert_eq!(rate, second.learning_rate().unwrap(), "{at}");
        let text = |name: &str| fs::read(scratch.join(name)).unwrap();
        assert_eq!(text("a-log.csv"), text("b-log.csv"), "{at}");
        let names = |prefix: &str| -> Vec<String> {
            let names = scratch.names().into_iter();
            names
                .filter_map(|name| Some(name.strip_prefix(prefix)?.to_owned()))
                .collect()
        };
        assert_eq!(names("a-best"), names("b-best"), "{at}");
        TrainingState::remove(&path).unwrap();
    }
}

#[test]
fn checkpoints_are_written_under_their_names_and_the_last_are_kept() {
    let scratch = scratch("checkpoints");
    let pattern = scratch
        .join("ckpt_{epoch:02d}-{val_loss:.2f}")
        .display()
        .to_string();
    let batches = scratch.join("b{epoch}_{batch:03d}").display().to_string();
    let mut trainer = trainer();
    let plan = fit(4)
        .callback(ModelCheckpoint::new(pattern).keep(2))
        .callback(ModelCheckpoint::new(batches).save_freq(SaveFreq::Batches(3)));
    let history = trainer.fit(&rows(12), plan).unwrap();
    let named = |epoch: usize| {
        format!(
            "ckpt_{epoch:02}-{:.2}",
            history.epochs[epoch - 1].logs["val_loss"]
        )
    };
    assert_eq!(scratch.names(), ["b2_001", "b3_002", &named(3), &named(4)]);
    // Batch 3 is the first of the second epoch.
    let state = TrainingState::load(scratch.join("b2_001")).unwrap();
    assert_eq!((state.iterations(), state.position().epoch), (3, 1));
    let state = TrainingState::load(scratch.join(named(4))).unwrap();
    assert_eq!((state.iterations(), state.position().epoch), (8, 4));
    assert_eq!(state.variables(), variables(&trainer));
}

#[test]
fn of_older_checkpoints_every_third_stays() {
    let scratch = scratch("every_third");
    let path = |name: &str| scratch.join(name).display().to_string();
    let all = ModelCheckpoint::new(path("{epoch}")).keep(2).keep_every(3);
    trainer().fit(&rows(12), fit(8).callback(all)).unwrap();
    assert_eq!(scratch.names(), ["3", "6", "7", "8"]);
    let alone = ModelCheckpoint::new(path("{epoch}")).keep_every(3);
    let error = trainer().fit(&rows(12), fit(1).callback(alone));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("`keep` is not"), "{text}");
}

#[test]
fn older_checkpoints_and_those_of_epochs_have_names_of_their_own() {
    let scratch = scratch("mixed");
    let path = scratch.join("ckpt");
    let epochs = || ModelCheckpoint::new(scratch.join("ckpt.{epoch}").display().to_string());
    for plan in [
        fit(1).callback(epochs()).checkpoint(&path),
        fit(1)
            .callback(epochs())
            .callback(BackupAndRestore::new(&path)),
    ] {
        let error = trainer().fit(&rows(12), plan).unwrap_err().to_string();
        assert!(
            error.starts_with("model_checkpoint would write to paths such as `"),
            "{error}"
        );
    }
    assert!(scratch.names().is_empty());
}

/// As in Keras, also where it is of another trainer.
#[test]
fn the_best_value_stays_over_several_trainings() {
    let scratch = scratch("over-several");
    let path = scratch.join("best.safetensors");
    let best = ModelCheckpoint::new(path.display().to_string()).monitor("loss");
    let best = best.save_best_only(true).save_weights_only(true);
    let best = Arc::new(Mutex::new(best));
    let plan = |epochs| fit(epochs).callback(Arc::clone(&best));
    let history = trainer().fit(&rows(12), plan(6)).unwrap();
    let (value, written) = (best.lock().unwrap().best(), fs::read(&path).unwrap());
    let worse = trainer().fit(&rows(12), plan(1)).unwrap();
    assert!(worse.epochs[0].logs["loss"] > value.unwrap());
    assert_eq!(best.lock().unwrap().best(), value);
    assert_eq!(fs::read(&path).unwrap(), written);
    assert!(history.of("loss").contains(&value.unwrap()));
}

/// A path may have what a callback adds, which is not known before.
#[test]
fn logs_of_callbacks_are_watched_and_named() {
    let scratch = scratch("added");
    let adding = || {
        Lambda::new().on_epoch_end(|done, _| {
            done.logs.set("f1", 0.25 * (done.epoch + 1) as f64);
            Ok(())
        })
    };
    let path = scratch.join("{epoch}-{f1:.2f}").display().to_string();
    let saved = ModelCheckpoint::new(path);
    let early = EarlyStopping::new("f1").mode(MonitorMode::Min);
    let plan = fit(3).callback(adding()).callback(saved).callback(early);
    trainer().fit(&rows(12), plan).unwrap();
    assert_eq!(scratch.names(), ["1-0.25", "2-0.50"]);
    let plan = fit(1).callback(adding()).callback(EarlyStopping::new("f1"));
    let error = trainer().fit(&rows(12), plan).unwrap_err().to_string();
    let hint = "; of a log that a callback adds, say with `mode` which values are better";
    assert!(error.ends_with(hint), "{error}");
}

fn variables_after(epochs: usize) -> Vec<(String, HostTensor)> {
    let mut trainer = trainer();
    let plan = fit(epochs).callback(halved());
    trainer.fit(&rows(24), plan).unwrap();
    variables(&trainer)
}

/// From the second epoch on, half the rate of the epoch before.
fn halved() -> LearningRateScheduler {
    LearningRateScheduler::per_epoch(|epoch, rate| match epoch {
        0 => rate,
        _ => rate / 2.0,
    })
}

/// The same program run until it is done: each time it ends at another step, and what it has learned is that of one run.
fn run_again(is_resumed: bool) {
    let scratch = scratch(&format!("backup-{is_resumed}"));
    let path = scratch.join("backup");
    // As a job's script does.
    fs::create_dir(&path).unwrap();
    let mut runs = 0;
    let trained = loop {
        runs += 1;
        let mut trainer = trainer();
        let stop = Arc::new(AtomicBool::new(false));
        let (set, end) = (Arc::clone(&stop), 3 * runs + 1);
        let begun = Lambda::new().on_train_begin(move |cx| {
            assert!(cx.iterations() >= end - 4, "{} {end}", cx.iterations());
            Ok(())
        });
        let crash = begun.on_train_batch_end(move |_, cx| {
            if cx.iterations() == end {
                // By a signal and by a crash in turns.
                match end % 2 {
                    0 => return Err(Error::Training("a crash".to_owned())),
                    _ => set.store(true, Ordering::Relaxed),
                }
            }
            Ok(())
        });
        let backup = BackupAndRestore::new(&path).save_freq(SaveFreq::Batches(1));
        let plan = fit(4).callback(halved()).callback(crash);
        let plan = plan.callback(backup).stop_when(&stop);
        let plan = if is_resumed { plan.resume() } else { plan };
        if trainer.fit(&rows(24), plan).is_ok() {
            break trainer;
        }
        assert!(runs < 20);
    };
    assert!(runs > 3, "{runs}");
    assert_eq!(variables(&trained), variables_after(4));
    // All that it kept is gone at the end.
    assert!(scratch.names().is_empty(), "{:?}", scratch.names());
}

#[test]
fn a_program_that_is_run_again_goes_on_by_itself() {
    run_again(false);
}

#[test]
fn a_program_that_always_resumes_goes_on_from_its_backup() {
    run_again(true);
}

#[test]
fn a_training_that_is_further_than_a_backup_goes_on_from_what_it_has() {
    let scratch = scratch("further");
    let path = scratch.join("backup");
    let backup = || BackupAndRestore::new(&path).delete_checkpoint(false);
    let first = fit(1).callback(backup());
    trainer().fit(&rows(12), first).unwrap();
    let mut further = trainer();
    further.fit(&rows(12), fit(2)).unwrap();
    let begun = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&begun);
    let look = Lambda::new().on_train_begin(move |cx| {
        *noted.lock().unwrap() = Some(cx.iterations());
        Ok(())
    });
    let rest = fit(3).callback(look).callback(backup()).resume();
    further.fit(&rows(12), rest).unwrap();
    assert_eq!(*begun.lock().unwrap(), Some(4));
}

#[test]
fn checkpoints_within_an_epoch_stay_at_their_steps_after_a_resume() {
    let scratch = scratch("save_freq");
    let path = scratch.join("checkpoint");
    let in_threes = || {
        let strategy = OneDeviceStrategy::new().unwrap();
        let compile = Compile {
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            steps_per_execution: 3,
            ..Compile::default()
        };
        let model = Sequential::new([4]).add(Dense::new(3));
        strategy.compile(model, compile).unwrap()
    };
    let plan = || Fit::epochs(1).progress(Progress::Silent).checkpoint(&path);
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    let stopping = Lambda::new().on_train_batch_end(move |_, _| {
        set.store(true, Ordering::Relaxed);
        Ok(())
    });
    let first = plan().save_freq(4).callback(stopping).stop_when(&stop);
    in_threes().fit(&rows(60), first).unwrap_err();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, at) = (Arc::clone(&seen), path.clone());
    let look = Lambda::new().on_train_batch_begin(move |batch, _| {
        let saved = TrainingState::load(&at)?.iterations();
        noted.lock().unwrap().push((batch, saved));
        Ok(())
    });
    let mut second = in_threes();
    second.restore_checkpoint(&path).unwrap();
    let rest = plan().save_freq(4).callback(look).resume();
    second.fit(&rows(60), rest).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(3, 3), (4, 4), (7, 4), (8, 8)]);
}

/// The best of one log says nothing of another, or of the same log with other values for better.
#[test]
fn callbacks_that_watch_another_log_than_before_begin_anew() {
    let scratch = scratch("watched");
    let path = scratch.join("checkpoint");
    let watching = |log: &str, mode: MonitorMode| {
        let early = EarlyStopping::new(log).mode(mode).patience(9);
        let early = Arc::new(Mutex::new(early.restore_best_weights(true)));
        let saved = scratch.join("best.safetensors").display().to_string();
        let best = ModelCheckpoint::new(saved).monitor(log).mode(mode);
        let best = best.save_best_only(true).save_weights_only(true);
        let best = Arc::new(Mutex::new(best));
        let plateau = ReduceLrOnPlateau::new(log).mode(mode).patience(1);
        let plan = fit(3).checkpoint(&path).callback(Arc::clone(&early));
        let plan = plan.callback(Arc::clone(&best)).callback(plateau);
        (plan, early, best)
    };
    let (plan, ..) = watching("loss", MonitorMode::Auto);
    trainer().fit(&rows(12), plan).unwrap();
    for (log, mode, is_kept) in [
        ("loss", MonitorMode::Min, true),
        ("loss", MonitorMode::Max, false),
        ("accuracy", MonitorMode::Auto, false),
    ] {
        let (plan, early, best) = watching(log, mode);
        let mut trainer = trainer();
        trainer.restore_checkpoint(&path).unwrap();
        let before = variables(&trainer);
        trainer.fit(&rows(12), plan.resume()).unwrap();
        // No epoch was left to train, so that what they have is what they took over.
        assert_eq!(early.lock().unwrap().best().is_some(), is_kept, "{log}");
        assert_eq!(best.lock().unwrap().best().is_some(), is_kept, "{log}");
        let is_restored = variables(&trainer) != before;
        assert!(is_kept || !is_restored, "{log}");
    }
}

/// What callbacks did at the end of an epoch where a later one failed is not done, and counted, twice; nor is what they remember lost
/// where the training cannot begin.
#[test]
fn an_epoch_whose_end_fails_ends_once() {
    let scratch = scratch("ends-once");
    let run = |name: &str, fails: bool| {
        let csv = scratch.join(format!("{name}.csv"));
        let best = scratch.join(format!("{name}.safetensors"));
        let has_failed = Arc::new(AtomicBool::new(!fails));
        let plan = || {
            let has_failed = Arc::clone(&has_failed);
            let failing = Lambda::new().on_epoch_end(move |done, _| {
                match done.epoch == 2 && !has_failed.swap(true, Ordering::Relaxed) {
                    true => Err(Error::User("a full disk".into())),
                    false => Ok(()),
                }
            });
            let slower = ReduceLrOnPlateau::new("loss").min_delta(10.0).patience(1);
            let early = EarlyStopping::new("loss").min_delta(10.0).patience(4);
            let best = ModelCheckpoint::new(best.display().to_string());
            let best = best.save_best_only(true).save_weights_only(true);
            fit(9)
                .callback(slower.factor(0.5))
                .callback(early)
                .callback(best.monitor("val_loss"))
                .callback(CsvLogger::new(&csv))
                .callback(failing)
        };
        let mut trainer = trainer();
        let mut history = trainer.fit(&rows(12), plan());
        if fails {
            assert!(history.is_err());
            let refused = Lambda::new().on_train_begin(|_| Err(Error::User("not now".into())));
            let refused = plan().callback(refused).resume();
            assert!(trainer.fit(&rows(12), refused).is_err());
            history = trainer.fit(&rows(12), plan().resume());
        }
        let history = history.unwrap();
        let rates = history.of("learning_rate");
        let table = fs::read_to_string(csv).unwrap();
        let saved = fs::read(best).unwrap();
        (rates, variables(&trainer), table, saved)
    };
    let (unbroken, broken) = (run("unbroken", false), run("broken", true));
    assert_eq!(broken.0, unbroken.0);
    assert_eq!(broken.0.len(), 5);
    assert_eq!(broken.1, unbroken.1);
    assert_eq!(broken.2, unbroken.2);
    assert_eq!(broken.3, unbroken.3);
}
