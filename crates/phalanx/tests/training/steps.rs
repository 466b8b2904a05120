//! Steps and their state: trainings in parts, seeds, dropout, layers that are frozen, learning rates.

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx_graph::DType;
use phalanx_testkit::assert_close;

use crate::{arrays, batch, dataset, message, mlp, notices, sgd, silent, trainer, values};

#[test]
fn fit_takes_the_same_steps_as_train_on_batch() {
    let batches = dataset(22).batch(8);
    let mut by_fit = trainer(mlp(), sgd(0.1));
    let history = by_fit.fit(&batches, silent(2)).unwrap();
    let mut by_step = trainer(mlp(), sgd(0.1));
    let mut loss = 0.0;
    for epoch in 0..2 {
        loss = 0.0;
        for batch in batches.iter(epoch, 0) {
            let batch = batch.unwrap();
            loss += by_step.train_on_batch(&batch).unwrap()["loss"] * batch.rows() as f64;
        }
    }
    assert_eq!(values(&by_fit), values(&by_step));
    assert!((history.epochs[1].logs["loss"] - loss / 22.0).abs() < 1e-9);
    assert_eq!((by_fit.iterations(), history.epochs[1].steps), (6, 3));
}

#[test]
fn a_run_in_two_parts_equals_an_unbroken_one() {
    let batches = dataset(20).shuffle(3).batch(8).prefetch(2);
    let compile = || Compile {
        optimizer: Adam::new(0.01).into(),
        ..sgd(0.1)
    };
    let model = || mlp().add(Dropout::new(0.3)).add(Dense::new(3));
    let mut whole = trainer(model(), compile());
    let unbroken = whole.fit(&batches, silent(4)).unwrap();
    let mut parts = trainer(model(), compile());
    parts.fit(&batches, silent(2)).unwrap();
    let second = parts.fit(&batches, silent(4).initial_epoch(2)).unwrap();
    assert_eq!(values(&whole), values(&parts));
    assert_eq!(unbroken.epochs[3].logs, second.epochs[1].logs);
    assert_eq!(second.epochs[0].epoch, 2);
}

#[test]
fn averages_of_the_variables_take_their_place_at_the_end_of_fit() {
    let compile = || Compile {
        optimizer: Optimizer::from(Sgd::new(0.5)).ema(0.5),
        ..sgd(0.1)
    };
    let batches = dataset(24).batch(8);
    let mut by_step = trainer(mlp(), compile());
    let mut averages: Option<Vec<f32>> = None;
    for batch in batches.iter(0, 0) {
        by_step.train_on_batch(&batch.unwrap()).unwrap();
        let now = values(&by_step);
        averages = Some(match averages {
            None => now,
            Some(before) => {
                let pairs = before.iter().zip(&now);
                pairs
                    .map(|(before, now)| 0.5 * before + 0.5 * now)
                    .collect()
            }
        });
    }
    let mut by_fit = trainer(mlp(), compile());
    by_fit.fit(&batches, silent(1)).unwrap();
    assert_close("values", &values(&by_fit), &averages.unwrap(), 1e-6);
}

/// One of two outputs has a loss: the other's layer keeps the values that it is given, before and after steps.
#[test]
fn averages_of_what_is_not_trained_are_its_values() {
    let mut net = Network::new();
    let x = net.input([6]);
    let outputs = ["trained", "idle"].map(|name| net.add(Dense::new(3).named(name), &[x]));
    let model = net.build(&[x], &outputs).unwrap();
    let loss = SparseCategoricalCrossentropy::from_logits();
    let compile = Compile {
        optimizer: Optimizer::from(Sgd::new(0.5)).ema(0.5),
        loss: Losses::default().and(0, loss, 1.0),
        ..sgd(0.1)
    };
    let mut trainer = trainer(model, compile);
    let values_of = |trainer: &Trainer, name: &str| {
        let variables = trainer.variables().unwrap();
        let found = variables.into_iter().find(|(variable, _)| variable == name);
        found.unwrap().1.f32s()
    };
    let batches = dataset(24).batch(8);
    for number in [7.0f32, 8.0] {
        let given = HostTensor::new([6, 3], &[number; 18]);
        trainer
            .set_variables(&[("idle/kernel", given.clone())])
            .unwrap();
        let before = values_of(&trainer, "trained/kernel");
        trainer.fit(&batches, silent(1)).unwrap();
        assert_eq!(values_of(&trainer, "idle/kernel"), given.f32s());
        assert_ne!(values_of(&trainer, "trained/kernel"), before);
    }
}

#[test]
fn trainers_from_the_same_values_do_not_share_them() {
    let saved = trainer(mlp(), sgd(0.1)).saved_model().unwrap();
    let before: Vec<f32> = saved.values().iter().flat_map(HostTensor::f32s).collect();
    let mut first = trainer(saved.clone(), sgd(0.1));
    let second = trainer(saved.clone(), sgd(0.1));
    first.train_on_batch(&batch(8, None)).unwrap();
    let after: Vec<f32> = saved.values().iter().flat_map(HostTensor::f32s).collect();
    assert_ne!(values(&first), before);
    assert_eq!(values(&second), before);
    assert_eq!(after, before);
}

#[test]
fn the_seed_decides_first_values_and_dropout() {
    let run = |seed| {
        let model = Sequential::new([6])
            .add(Dense::new(8))
            .add(Dropout::new(0.5))
            .add(Dense::new(3));
        let mut trainer = trainer(model, Compile { seed, ..sgd(0.1) });
        trainer.fit(&dataset(16).batch(8), silent(2)).unwrap();
        values(&trainer)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn dropout_differs_from_step_to_step() {
    let model = Sequential::new([6])
        .add(Dropout::new(0.5))
        .add(Dense::new(3));
    let mut trainer = trainer(
        model,
        Compile {
            optimizer: Sgd::new(0.0).into(),
            ..sgd(0.1)
        },
    );
    let mut losses: Vec<f64> = (0..4)
        .map(|_| trainer.train_on_batch(&batch(16, None)).unwrap()["loss"])
        .collect();
    losses.dedup();
    assert_eq!(losses.len(), 4);
}

#[test]
fn frozen_layers_stay_and_unused_variables_are_named() {
    let mut model = mlp().build().unwrap();
    model.freeze("dense").unwrap();
    let mut trainer = trainer(model, sgd(0.5));
    let before = trainer.variables().unwrap();
    trainer.fit(&dataset(16).batch(8), silent(1)).unwrap();
    let after = trainer.variables().unwrap();
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
}

#[test]
fn variables_that_the_loss_does_not_reach_are_named_and_stay() {
    let mut network = Network::new();
    let x = network.input([6]);
    let used = network.add(Dense::new(3).named("used"), &[x]);
    let unused = network.add(Dense::new(3).named("unused"), &[x]);
    let model = network.build(&[x], &[used, unused]).unwrap();
    let decayed = Optimizer::from(Sgd::new(0.1)).weight_decay(0.1);
    let mut trainer = trainer(
        model,
        Compile {
            optimizer: decayed,
            ..sgd(0.1)
        },
    );
    let before = trainer.variables().unwrap();
    // Batches of several shapes, each with a program of its own; and again for other layers that are trained.
    for rows in [8, 5, 3] {
        trainer.train_on_batch(&batch(rows, None)).unwrap();
    }
    let after = trainer.variables().unwrap();
    assert_eq!(before[2..], after[2..]);
    assert_ne!(before[0], after[0]);
    trainer.freeze("used").unwrap();
    trainer.unfreeze("used").unwrap();
    trainer.train_on_batch(&batch(8, None)).unwrap();
    let notices = notices().lock().unwrap();
    for variable in ["`unused/kernel`", "`unused/bias`"] {
        let told = notices.iter().filter(|line| line.contains(variable));
        assert_eq!(told.count(), 1, "{variable}: {notices:?}");
    }
}

#[test]
fn the_learning_rate_can_be_changed_between_steps() {
    let mut trainer = trainer(
        mlp(),
        Compile {
            optimizer: Sgd::new(0.1).into(),
            ..sgd(0.1)
        },
    );
    assert!((trainer.learning_rate().unwrap() - 0.1).abs() < 1e-7);
    trainer.set_learning_rate(0.0).unwrap();
    let before = values(&trainer);
    trainer.train_on_batch(&batch(8, None)).unwrap();
    assert_eq!(before, values(&trainer));
    assert!(message(trainer.set_learning_rate(f64::NAN)).contains("at least 0, got NaN"));
}

/// FTRL divides by the rate, and by the squares that it has seen.
#[test]
fn ftrl_rests_where_it_would_divide_by_zero() {
    let linear = |optimizer: Ftrl| {
        let layer = Dense::new(1).use_bias(false);
        let layer = layer.kernel_initializer(Initializer::Constant { value: 0.5 });
        let compile = Compile {
            optimizer: optimizer.into(),
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        trainer(Sequential::new([2]).add(layer), compile)
    };
    // No gradient ever reaches the second weight.
    let batch = |y: f32| Batch {
        x: vec![HostTensor::new([1, 2], &[1.0f32, 0.0])],
        y: vec![HostTensor::new([1, 1], &[y])],
        weight: None,
        first: 0,
    };
    // The schedule ends at 0.
    let mut ended = linear(Ftrl::new(CosineDecay::new(0.1, 1)));
    ended.train_on_batch(&batch(2.0)).unwrap();
    let before = values(&ended);
    assert!(before[0].is_finite() && before[0] > 0.5, "{before:?}");
    ended.train_on_batch(&batch(2.0)).unwrap();
    assert_eq!(values(&ended), before);
    // A step of rate 0 is as if it had not been.
    let [resting, steady] = [true, false].map(|rests| {
        let mut trainer = linear(Ftrl::new(0.1).l1_regularization_strength(0.01));
        trainer.train_on_batch(&batch(2.0)).unwrap();
        if rests {
            trainer.set_learning_rate(0.0).unwrap();
            trainer.train_on_batch(&batch(9.0)).unwrap();
            trainer.set_learning_rate(0.1).unwrap();
        }
        trainer.train_on_batch(&batch(2.0)).unwrap();
        values(&trainer)
    });
    assert_eq!(resting, steady);
    let mut unseen = linear(Ftrl::new(0.1).initial_accumulator_value(0.0));
    unseen.train_on_batch(&batch(2.0)).unwrap();
    let after = values(&unseen);
    assert!(after[0] > 0.5 && after[0].is_finite(), "{after:?}");
    assert_eq!(after[1], 0.5);
}

#[test]
fn inputs_are_converted_to_the_type_of_the_model() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let (x, _) = arrays(4);
    let halves = trainer.predict_on_batch(&[x.convert(DType::F64)]).unwrap();
    assert_eq!(halves, trainer.predict_on_batch(&[x]).unwrap());
}
