//! Checkpoints that do not fit a training are refused, and what differs is named; some settings may differ.

use std::path::Path;

use phalanx::prelude::*;

use crate::{STEPS, batches, broken_off, compile, model, one, quiet, rows, scratch};

/// A checkpoint is refused with these words, and the training is as it was.
fn check_refused(path: &Path, model: Model, compile: Compile, parts: &[&str]) {
    let mut trainer = one().compile(model, compile).unwrap();
    let before = trainer.training_state().unwrap();
    let error = trainer.restore_checkpoint(path).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    assert_eq!(trainer.training_state().unwrap(), before);
}

#[test]
fn what_does_not_fit_is_named_and_nothing_is_changed() {
    let scratch = scratch("other");
    let path = scratch.join("checkpoint");
    let strategy = one();
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    broken_off(&mut trainer, quiet(), 2);
    trainer.save_checkpoint(&path).unwrap();
    let refuse = |model, compile, parts: &[&str]| check_refused(&path, model, compile, parts);
    let sgd = Compile {
        optimizer: Sgd::new(0.1).into(),
        ..compile()
    };
    refuse(
        model(),
        sgd,
        &[
            "resume-other/checkpoint`: it is of the optimizer `adam`, and this training has `sgd`",
            "use `adam`",
        ],
    );
    let plain = Compile {
        optimizer: Adam::new(0.1).into(),
        ..compile()
    };
    refuse(
        model(),
        plain,
        &[
            "it has no `learning_rate` of the optimizer",
            "the optimizer has no `dense/kernel/accumulated_gradient`",
            "more of it",
        ],
    );
    let wider = Sequential::new([4])
        .add(Dense::new(9).use_bias(false))
        .add(Dense::new(3).named("last"));
    refuse(
        wider.build().unwrap(),
        compile(),
        &[
            "it has no `last/kernel`, `last/bias` of the model",
            "the model has no `",
            "`dense/kernel` is f32[4,8], expected f32[4,9]",
            "the weights alone, which are in `weights.safetensors`",
        ],
    );
    let unmeasured = Compile {
        metrics: Vec::new(),
        ..compile()
    };
    refuse(
        model(),
        unmeasured,
        &["the middle of an epoch with the results loss, accuracy, and this training has loss"],
    );
}

/// As a version leaves that kept other sums of an epoch.
#[test]
fn sums_of_an_epoch_that_are_others_are_refused() {
    let scratch = scratch("other-sums");
    let path = scratch.join("checkpoint");
    let mut trainer = one().compile(model(), compile()).unwrap();
    broken_off(&mut trainer, quiet(), 2);
    trainer.save_checkpoint(&path).unwrap();
    let other_sums = Compile {
        metrics: vec![Metric::from(Auc::default()).named("accuracy").into()],
        ..compile()
    };
    let told = "whose sums are f64[1,7], expected 405 numbers for each replica: another version of Phalanx wrote it";
    check_refused(&path, model(), other_sums, &[told]);
}

#[test]
fn a_checkpoint_that_is_not_there_is_named() {
    let missing = scratch("missing").join("nothing");
    let mut trainer = one().compile(model(), compile()).unwrap();
    let error = trainer
        .restore_checkpoint(&missing)
        .unwrap_err()
        .to_string();
    assert!(error.contains("there is no checkpoint at `"), "{error}");
}

#[test]
fn settings_that_do_not_fit_a_training_are_named() {
    let strategy = one();
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    let fit = quiet().validation(&batches()).keep_best("val_loss");
    broken_off(&mut trainer, fit, 2);
    let fit = quiet().keep_best("loss").resume();
    let error = trainer.fit(&batches(), fit).unwrap_err().to_string();
    assert!(
        error.contains("keeps the best epoch by `val_loss`"),
        "{error}"
    );
    let error = trainer.fit(&batches(), quiet().save_freq(2)).unwrap_err();
    assert!(
        error.to_string().contains("say where with `checkpoint`"),
        "{error}"
    );
}

#[test]
fn an_epoch_goes_on_with_its_own_data_only() {
    let strategy = one();
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    let fit = quiet().data_settings("shuffled");
    broken_off(&mut trainer, fit.clone(), 2);
    let state = trainer.training_state().unwrap();
    let refuse = |data: &Batches, fit: Fit, part: &str| {
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        trainer.set_training_state(&state).unwrap();
        let error = trainer.fit(data, fit.resume()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(trainer.training_state().unwrap(), state);
    };
    let fewer = rows().take(18).batch(6);
    refuse(&fewer, fit, "data with 20 examples, and these have 18");
    let other = quiet().data_settings("in order");
    refuse(
        &batches(),
        other,
        "within epoch 1, of data with other settings",
    );
}

#[test]
fn a_training_goes_on_with_numbers_of_the_same_meaning_only() {
    let strategy = one();
    let scratch = scratch("meaning");
    let fit = quiet().data_meaning("mean 1");
    // Within an epoch, and between two of them.
    for steps in [2, STEPS] {
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        broken_off(&mut trainer, fit.clone(), steps);
        let path = scratch.join(format!("checkpoint-{steps}"));
        trainer.save_checkpoint(&path).unwrap();
        let resumed = |fit: Fit| {
            let mut trainer = strategy.compile(model(), compile()).unwrap();
            trainer.restore_checkpoint(&path).unwrap();
            trainer.fit(&batches(), fit.resume())
        };
        let error = resumed(quiet().data_meaning("mean 2")).unwrap_err();
        assert!(
            error.to_string().contains("numbers meant something else"),
            "{error}"
        );
        resumed(fit.clone()).unwrap();
        // Who does not say it is believed.
        resumed(quiet()).unwrap();
    }
}

/// Steps that another setting has counted are not too many for the scale to grow ever again.
#[test]
fn a_loss_scale_that_is_to_grow_sooner_than_before_grows() {
    let trainer = |growth_steps| {
        let compile = Compile {
            optimizer: Adam::new(0.05).into(),
            loss_scale: LossScale::Dynamic {
                initial: 4.0,
                growth_steps,
            },
            ..compile()
        };
        one().compile(model(), compile).unwrap()
    };
    let mut first = trainer(100);
    let one_epoch = Fit::epochs(1).progress(Progress::Silent);
    first.fit(&batches(), one_epoch).unwrap();
    let mut second = trainer(2);
    let state = first.training_state().unwrap();
    second.set_training_state(&state).unwrap();
    let history = second.fit(&batches(), quiet().resume()).unwrap();
    // After the first step, and then after each second one, of four in an epoch.
    assert_eq!(history.of("loss_scale"), [4.0, 16.0, 64.0]);
}
