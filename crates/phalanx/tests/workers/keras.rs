//! Trainings by `fit` whose settings have something to do with each other, on batches that workers cannot divide: numbers are Keras'
//! (`tests/golden/keras/make_fits.py`), of one worker, two and three.

use phalanx::fit::callbacks::{EarlyStopping, Lambda, ReduceLrOnPlateau};
use phalanx::metrics::BinaryAccuracy;
use phalanx::prelude::*;
use serde_json::Value;
use std::sync::{Arc, Mutex};

use crate::oracle::{array, arrays, name, records};
use crate::{apart, on_workers};

/// Both compute in f32, and sums are of other orders.
const NEAR: f64 = 2e-5;

fn network() -> Model {
    let penalty = Regularizer::L2 { l2: 0.01 };
    let model = Sequential::new([5])
        .add(Dense::new(7).activation(tanh).kernel_regularizer(penalty))
        .add(
            BatchNorm::new()
                .momentum(0.9)
                .epsilon(0.1)
                .synchronized(true),
        )
        .add(Dense::new(1).activation(sigmoid));
    model.build().unwrap()
}

fn optimizer(of: &str) -> Optimizer {
    match of {
        "accumulation" => {
            let rate = CosineDecay::new(0.2, 14);
            let sgd = Sgd::new(rate).momentum(0.9).nesterov(true);
            Optimizer::from(sgd)
                .global_clipnorm(0.1)
                .gradient_accumulation(3)
        }
        "averages" => Optimizer::from(Adam::new(0.03).epsilon(1e-3))
            .clipnorm(0.05)
            .weight_decay(0.01)
            .ema(0.8)
            .ema_overwrite_frequency(3),
        "callbacks" => Optimizer::from(RmsProp::new(0.05).epsilon(1e-3)).global_clipnorm(0.3),
        other => panic!("{other} is not in this test"),
    }
}

fn fit(of: &str, epochs: usize, tested: &Batches) -> Fit {
    let fit = match of {
        "callbacks" => {
            let plateau = ReduceLrOnPlateau::new("val_loss").factor(0.5).patience(1);
            let stopping = EarlyStopping::new("val_loss").min_delta(0.005).patience(3);
            Fit::epochs(30)
                .callback(plateau.min_delta(0.01))
                .callback(stopping.restore_best_weights(true))
        }
        _ => Fit::epochs(epochs),
    };
    fit.validation(tested).progress(Progress::Silent)
}

fn numbers(list: &Value) -> Vec<f64> {
    serde_json::from_value(list.clone()).unwrap()
}

fn check(what: &str, expected: &[f64], got: &[f64]) {
    assert_eq!(expected.len(), got.len(), "{what}");
    let apart = apart(expected, got);
    assert!(
        apart <= NEAR,
        "{what} is {apart:e} apart: {expected:?} and {got:?}"
    );
}

fn follow(strategy: &impl Strategy, record: &Value) {
    let of = name(record);
    let [x, y] = ["x", "y"].map(|name| array(&record[name]).unwrap());
    let data = Dataset::from_arrays(x, y).unwrap();
    let compile = Compile {
        optimizer: optimizer(of),
        loss: BinaryCrossentropy::from_probabilities().into(),
        metrics: vec![
            Auc::default().num_thresholds(50).into(),
            BinaryAccuracy::default().into(),
        ],
        ..Compile::default()
    };
    let saved = SavedModel::new(network(), arrays(&record["initial"])).unwrap();
    let mut trainer = strategy.compile(saved, compile).unwrap();
    let rates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rates);
    let note = Lambda::new().on_epoch_end(move |_, cx| {
        noted.lock().unwrap().push(cx.learning_rate()?);
        Ok(())
    });
    let expected = numbers(&record["rates"]);
    let fit = fit(of, expected.len(), &data.take(9).batch(4));
    let history = trainer.fit(&data.batch(6), fit.callback(note)).unwrap();
    check(&format!("{of}: rates"), &expected, &rates.lock().unwrap());
    for (log, values) in record["logs"].as_object().unwrap() {
        let got = history.epochs.iter();
        let got: Vec<f64> = got.map(|done| done.logs.get(log).unwrap()).collect();
        check(&format!("{of}: {log}"), &numbers(values), &got);
    }
    let variables = trainer.variables().unwrap();
    for ((variable, got), expected) in variables.iter().zip(arrays(&record["final"])) {
        check(
            &format!("{of}: {variable}"),
            &expected.to_f64(),
            &got.to_f64(),
        );
    }
}

#[test]
fn workers_train_as_keras_does() {
    for record in records("fits.json") {
        for workers in [1, 2, 3] {
            on_workers(workers, 1, |strategy| follow(&strategy, &record));
        }
    }
}
