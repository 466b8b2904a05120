//! Trainings of which one epoch of several has a validation.

use std::sync::{Arc, Mutex};

use phalanx::Error;
use phalanx::fit::callbacks::{
    CsvLogger, EarlyStopping, Lambda, ModelCheckpoint, ReduceLrOnPlateau,
};
use phalanx::prelude::*;

use crate::{fit, rows, scratch, trainer, trainer_on, variables};

/// The results of one validation after another, where an epoch has one.
fn validated(values: &'static [f64]) -> Lambda {
    let mut values = values.iter();
    Lambda::new().on_epoch_end(move |done, _| {
        if done.logs.get("val_loss").is_some() {
            done.logs.set("val_loss", *values.next().unwrap());
        }
        Ok(())
    })
}

/// The numbers are those of Keras 3.15 with `validation_freq=3`, but for the epochs without a validation, in which its `ModelCheckpoint` writes
/// too.
#[test]
fn what_watches_a_validation_passes_over_the_epochs_without_one() {
    let scratch = scratch("some-validations");
    let best = scratch.join("best_{epoch}.safetensors");
    let best = ModelCheckpoint::new(best.display().to_string());
    let rates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rates);
    let fit = fit(30)
        .validation_freq(3)
        .callback(validated(&[1.0, 0.5, 0.6, 0.7, 0.8]))
        .callback(ReduceLrOnPlateau::new("val_loss").patience(2).factor(0.5))
        .callback(EarlyStopping::new("val_loss").patience(3))
        .callback(best.save_best_only(true).save_weights_only(true))
        .callback(CsvLogger::new(scratch.join("log.csv")))
        .callback(Lambda::new().on_epoch_end(move |_, cx| {
            noted.lock().unwrap().push(cx.learning_rate()? as f32);
            Ok(())
        }));
    let mut trainer = trainer();
    let history = trainer.fit(&rows(12), fit).unwrap();
    // Three validations after the best, which was the second.
    assert_eq!(history.epochs.len(), 15);
    assert_eq!(history.of("val_loss"), [1.0, 0.5, 0.6, 0.7, 0.8]);
    let halved: Vec<f32> = (1..=15)
        .map(|it| if it < 12 { 0.05 } else { 0.025 })
        .collect();
    assert_eq!(*rates.lock().unwrap(), halved);
    let names = scratch.names();
    assert_eq!(
        names,
        ["best_3.safetensors", "best_6.safetensors", "log.csv"]
    );
    let text = std::fs::read_to_string(scratch.join("log.csv")).unwrap();
    let rows: Vec<&str> = text.lines().collect();
    assert!(
        rows[2].ends_with(",NA,NA,NA") && rows[3].contains(",1.0"),
        "{text}"
    );
}

/// Each remembers validations; the model is the one of the best.
fn watched(name: &str) -> Fit {
    let stopping = EarlyStopping::new("val_loss").min_delta(10.0).patience(4);
    fit(9)
        .validation_freq(2)
        .keep_best("val_loss")
        .callback(
            ReduceLrOnPlateau::new("val_loss")
                .min_delta(10.0)
                .patience(2),
        )
        .callback(stopping)
        .callback(CsvLogger::new(name))
}

#[test]
fn an_interrupted_training_validates_after_the_same_epochs() {
    let scratch = scratch("some-resumed");
    let [whole_csv, csv] = ["a.csv", "b.csv"].map(|name| scratch.join(name).display().to_string());
    let mut whole = trainer();
    let history = whole.fit(&rows(12), watched(&whole_csv)).unwrap();
    let validated: Vec<usize> = history
        .epochs
        .iter()
        .filter(|epoch| epoch.logs.get("val_loss").is_some())
        .map(|epoch| epoch.epoch + 1)
        .collect();
    assert_eq!(validated, [2, 4, 6, 8]);
    // After an epoch with a validation and after one without.
    for at in [4, 5] {
        let path = scratch.join("checkpoint");
        let crash = Lambda::new().on_epoch_begin(move |epoch, _| match epoch == at {
            true => Err(Error::Training("a crash".to_owned())),
            false => Ok(()),
        });
        let fit = watched(&csv).checkpoint(&path).callback(crash);
        trainer().fit(&rows(12), fit).unwrap_err();
        let mut second = trainer();
        second.restore_checkpoint(&path).unwrap();
        let fit = watched(&csv).checkpoint(&path).resume();
        let again = second.fit(&rows(12), fit).unwrap();
        for (one, other) in history.epochs.iter().zip(&again.epochs) {
            assert_eq!(one.logs, other.logs, "{at}");
        }
        assert_eq!(again.epochs.len(), 9);
        assert_eq!(variables(&whole), variables(&second), "{at}");
        let text = |name: &str| std::fs::read(name).unwrap();
        assert_eq!(text(&whole_csv), text(&csv), "{at}");
        phalanx::checkpoint::TrainingState::remove(&path).unwrap();
    }
}

#[test]
fn a_validation_that_never_comes_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&told);
    let engine = phalanx::engine::Engine::new(&phalanx::engine::EngineOptions {
        notice: Arc::new(move |line| {
            // A busy machine says what it compiles.
            if !line.starts_with("compiling ") {
                lines.lock().unwrap().push(line.to_owned());
            }
        }),
        ..crate::any_device::options()
    });
    let mut trainer = trainer_on(&OneDeviceStrategy::on(&engine.unwrap()), 0.05);
    let mut warned = |fit: Fit| {
        told.lock().unwrap().clear();
        trainer.fit(&rows(12), fit).unwrap();
        told.lock().unwrap().join("\n")
    };
    let text = warned(fit(2).validation_freq(3));
    let expected = "warning: validation_freq is 3, and the training ends after epoch 2: nothing is validated from epoch 1 on; lower it";
    assert!(text.contains(expected), "{text}");
    let text = warned(fit(5).initial_epoch(3).validation_freq(3));
    assert!(
        text.contains("nothing is validated from epoch 4 on"),
        "{text}"
    );
    assert_eq!(warned(fit(4).initial_epoch(2).validation_freq(3)), "");
}
