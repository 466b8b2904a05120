//! Whole training: against Keras' curves, and against what must not make a difference.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use phalanx::data::{
    AutoShardPolicy, Batch, CorruptPolicy, Example, IndexCache, Position, Segment, Stream,
    TfRecordOptions, Worker, write_tfrecord,
};
use phalanx::engine::{Engine, EngineOptions};
use phalanx::metrics::Better;
use phalanx::prelude::*;
use phalanx::{Error, metrics};
use phalanx_graph::{DType, Shape};
use phalanx_testkit::assert_close;
use serde_json::Value;

fn notices() -> &'static Arc<Mutex<Vec<String>>> {
    static NOTICES: OnceLock<Arc<Mutex<Vec<String>>>> = OnceLock::new();
    NOTICES.get_or_init(Arc::default)
}

fn strategy() -> OneDeviceStrategy {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        Engine::new(&EngineOptions {
            notice: Arc::new(|line| notices().lock().unwrap().push(line.to_owned())),
            ..EngineOptions::default()
        })
        .unwrap()
    });
    OneDeviceStrategy::on(engine)
}

/// `rows` examples of 6 numbers in 3 classes, from a formula.
fn arrays(rows: usize) -> (HostTensor, HostTensor) {
    let x: Vec<f32> = (0..rows * 6)
        .map(|i| ((i * 37 + i / 6 * 11) % 29) as f32 / 14.5 - 1.0)
        .collect();
    let y: Vec<i32> = (0..rows).map(|i| (i * i % 7 % 3) as i32).collect();
    (HostTensor::new([rows, 6], &x), HostTensor::new([rows], &y))
}

fn dataset(rows: usize) -> Dataset {
    let (x, y) = arrays(rows);
    Dataset::from_arrays(x, y).unwrap()
}

fn batch(rows: usize, weights: Option<&[f32]>) -> Batch {
    let (x, y) = arrays(rows);
    Batch {
        x: vec![x],
        y: vec![y],
        weight: weights.map(|weights| HostTensor::new([rows], weights)),
        first: 0,
    }
}

fn mlp() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(5).activation(tanh))
        .add(Dense::new(3))
}

fn sgd(rate: f64) -> Compile {
    Compile {
        optimizer: Sgd::new(rate).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

fn trainer(model: impl IntoModel, compile: Compile) -> Trainer {
    strategy().compile(model, compile).unwrap()
}

fn silent(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

fn values(trainer: &Trainer) -> Vec<f32> {
    let variables = trainer.variables().unwrap();
    variables
        .iter()
        .flat_map(|(_, value)| value.f32s())
        .collect()
}

#[track_caller]
fn message<T>(result: phalanx::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

mod curves {
    use super::*;

    fn golden(name: &str) -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/keras")
            .join(name);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn tensor(value: &Value) -> HostTensor {
        let dims: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
        let data: Vec<f32> = serde_json::from_value(value["data"].clone()).unwrap();
        HostTensor::new(dims, &data)
    }

    /// Ours by position: both list kernels before biases, and gamma, beta, mean, variance.
    fn set_initial(trainer: &mut Trainer, golden: &Value) {
        let names: Vec<String> = trainer
            .model()
            .variables()
            .iter()
            .map(|v| v.name.clone())
            .collect();
        let weights = golden["initial_weights"].as_array().unwrap();
        assert_eq!(names.len(), weights.len());
        let given = names
            .into_iter()
            .zip(weights)
            .map(|(name, weight)| (name, tensor(&weight["value"])));
        trainer.set_variables(&given.collect::<Vec<_>>()).unwrap();
    }

    fn data(golden: &Value) -> (Vec<f32>, Vec<i32>) {
        let dims: Vec<usize> = serde_json::from_value(golden["input_shape"].clone()).unwrap();
        let row = dims.iter().product::<usize>();
        let x = |i: usize, j: usize| {
            (((i * 7919 + j * 104_729 + i * j * 613) % 1000) as f64 / 1000.0 - 0.5) as f32
        };
        let x: Vec<f32> = (0..64 * row).map(|at| x(at / row, at % row)).collect();
        let y: Vec<i32> = (0..64).map(|i| (i * i + 3 * i + i / 7) % 5).collect();
        let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
        assert!((sum - golden["input_sum"].as_f64().unwrap()).abs() < 1e-6);
        assert_eq!(serde_json::to_value(&y).unwrap(), golden["labels"]);
        (x, y)
    }

    fn follow(name: &str, model: Sequential, optimizer: Optimizer, dims: &[usize]) {
        let golden = golden(name);
        let mut trainer = trainer(
            model,
            Compile {
                optimizer,
                loss: SparseCategoricalCrossentropy::from_logits().into(),
                ..Compile::default()
            },
        );
        set_initial(&mut trainer, &golden);
        let (x, y) = data(&golden);
        let row = x.len() / 64;
        let losses: Vec<f64> = serde_json::from_value(golden["losses"].clone()).unwrap();
        for (step, expected) in losses.iter().enumerate() {
            let start = step * 16 % 64;
            let batch = Batch {
                x: vec![HostTensor::new(
                    [&[16], dims].concat(),
                    &x[start * row..(start + 16) * row],
                )],
                y: vec![HostTensor::new([16], &y[start..start + 16])],
                weight: None,
                first: 0,
            };
            let loss = trainer.train_on_batch(&batch).unwrap()["loss"];
            assert!(
                (loss - expected).abs() <= 1e-4 * expected,
                "step {step}: {loss} is not {expected}"
            );
        }
        let weights = golden["final_weights"].as_array().unwrap();
        for ((name, value), expected) in trainer.variables().unwrap().iter().zip(weights) {
            let expected = tensor(&expected["value"]).f32s();
            println!("{name}");
            assert_close("values", &value.f32s(), &expected, 1e-3);
        }
        let first = HostTensor::new([&[4], dims].concat(), &x[..4 * row]);
        let logits = trainer.predict_on_batch(&[first]).unwrap();
        assert_close(
            "values",
            &logits[0].f32s(),
            &tensor(&golden["final_logits"]).f32s(),
            1e-3,
        );
    }

    #[test]
    fn an_mlp_follows_keras_for_50_steps() {
        let model = Sequential::new([20])
            .add(Dense::new(16).activation(relu))
            .add(Dense::new(5));
        follow(
            "curve_mlp.json",
            model,
            Sgd::new(0.1).momentum(0.9).into(),
            &[20],
        );
    }

    #[test]
    fn a_cnn_with_batch_normalization_follows_keras_for_50_steps() {
        let model = Sequential::new([8, 8, 1])
            .add(Conv2d::new(4, 3).padding(Padding::Same).use_bias(false))
            .add(BatchNorm::new())
            .add(ActivationLayer::new(relu))
            .add(MaxPool2d::new(2))
            .add(Flatten)
            .add(Dense::new(5));
        follow("curve_cnn.json", model, Adam::new(1e-3).into(), &[8, 8, 1]);
    }
}

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
fn evaluation_does_not_depend_on_the_batch_size() {
    let mut trainer = trainer(
        mlp(),
        Compile {
            metrics: vec![
                Accuracy.into(),
                metrics::SparseTopKCategoricalAccuracy::new(2).into(),
            ],
            weighted_metrics: vec![Accuracy.into()],
            ..sgd(0.1)
        },
    );
    let weights: Vec<f32> = (0..23).map(|i| (i % 4) as f32 * 0.5).collect();
    let data = dataset(23)
        .with_weights(&HostTensor::new([23], &weights))
        .unwrap();
    let whole = trainer.evaluate(&data.batch(23)).unwrap();
    let names: Vec<&str> = whole.iter().map(|(name, _)| name).collect();
    let top = "sparse_top_k_categorical_accuracy";
    assert_eq!(names, ["loss", "accuracy", top, "weighted_accuracy"]);
    for size in [1, 7, 16, 40] {
        let logs = trainer.evaluate(&data.batch(size)).unwrap();
        for (name, value) in logs.iter() {
            assert!(
                (value - whole[name]).abs() < 1e-6,
                "{size}: {name} {value}, not {}",
                whole[name]
            );
        }
    }
}

#[test]
fn evaluation_agrees_with_the_formulas() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let weights: Vec<f32> = (0..9).map(|i| i as f32).collect();
    let batch = batch(9, Some(&weights));
    let logs = trainer.test_on_batch(&batch).unwrap();
    let logits = trainer.predict_on_batch(&batch.x).unwrap()[0].to_f64();
    let labels = batch.y[0].to_f64();
    let (mut loss, mut right) = (0.0, 0.0);
    for (row, label) in labels.iter().enumerate() {
        let scores = &logits[row * 3..][..3];
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        let chosen = scores[*label as usize];
        loss += (total.ln() - chosen) * row as f64;
        right += f64::from(u8::from(scores.iter().all(|&score| score <= chosen)));
    }
    assert!((logs["loss"] - loss / 36.0).abs() < 1e-6);
    assert!((logs["accuracy"] - right / 9.0).abs() < 1e-6);
}

#[test]
fn prediction_does_not_depend_on_the_batch_size() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let (x, _) = arrays(11);
    let whole = trainer.predict_on_batch(std::slice::from_ref(&x)).unwrap();
    let unlabelled = Dataset::from_arrays(x, Vec::new()).unwrap();
    for size in [1, 4, 11, 20] {
        let outputs = trainer.predict(&unlabelled.batch(size)).unwrap();
        assert_eq!(outputs[0].dims(), [11, 3]);
        assert_close("values", &outputs[0].f32s(), &whole[0].f32s(), 1e-6);
    }
}

#[test]
fn a_stage_may_change_the_rows_of_a_batch() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let (x, _) = arrays(6);
    let twice = |batch: Batch| {
        let rows = batch.x[0].f32s().repeat(2);
        let x = HostTensor::new([2 * batch.rows(), 6], &rows);
        Ok(Batch {
            x: vec![x],
            ..batch
        })
    };
    let batches = Dataset::from_arrays(x, Vec::new())
        .unwrap()
        .batch(4)
        .map(twice);
    let outputs = trainer.predict(&batches).unwrap();
    assert_eq!(outputs[0].dims(), [12, 3]);
    let logits = outputs[0].f32s();
    assert_close("values", &logits[..12], &logits[12..24], 1e-6);
}

#[test]
fn examples_of_weight_zero_do_not_count() {
    let mut weighted = trainer(mlp(), sgd(0.1));
    let mut weights = vec![2.0; 12];
    weights[8..].fill(0.0);
    let a = weighted.train_on_batch(&batch(12, Some(&weights))).unwrap();
    let mut fewer = trainer(mlp(), sgd(0.1));
    let b = fewer.train_on_batch(&batch(8, None)).unwrap();
    assert!((a["loss"] - b["loss"]).abs() < 1e-6);
    assert_close("values", &values(&weighted), &values(&fewer), 1e-6);
    let nothing = weighted
        .train_on_batch(&batch(12, Some(&[0.0; 12])))
        .unwrap();
    assert_eq!(nothing["loss"], 0.0);
}

/// A weight of 0 also keeps a target that is not a number out of the update and of every result.
#[test]
fn a_target_of_weight_zero_may_be_no_number() {
    let compile = || Compile {
        loss: MeanSquaredError.into(),
        metrics: Vec::new(),
        weighted_metrics: vec![Loss::from(MeanAbsoluteError).into()],
        ..sgd(0.1)
    };
    let batch = |spoilt: f32| {
        let (x, _) = arrays(4);
        let mut y = [0.25; 12];
        y[3..6].fill(spoilt);
        Batch {
            x: vec![x],
            y: vec![HostTensor::new([4, 3], &y)],
            weight: Some(HostTensor::new([4], &[1.0f32, 0.0, 0.5, 1.0])),
            first: 0,
        }
    };
    let mut trainers = [trainer(mlp(), compile()), trainer(mlp(), compile())];
    let logs = [0.0, f32::NAN].map(|spoilt| {
        let trainer = &mut trainers[usize::from(spoilt.is_nan())];
        trainer.train_on_batch(&batch(spoilt)).unwrap()
    });
    for log in ["loss", "weighted_mean_absolute_error"] {
        let name = if log == "loss" {
            log
        } else {
            "mean_absolute_error"
        };
        assert!(logs[0][name] > 0.0);
        assert_eq!(logs[0][name], logs[1][name], "{log}");
    }
    assert_close("values", &values(&trainers[1]), &values(&trainers[0]), 0.0);
}

/// The last update of a training has no loss after it: its variables are looked at before they are kept or saved.
#[test]
fn an_update_that_diverges_is_an_error_even_if_it_is_the_last() {
    let too_large = Compile {
        optimizer: Sgd::new(1e38).into(),
        loss: MeanSquaredError.into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let mut trainer = trainer(mlp(), too_large);
    let far = HostTensor::new([8, 3], &[1e3f32; 24]);
    let data = Dataset::from_arrays(arrays(8).0, far).unwrap();
    let error = message(trainer.fit(&data.batch(8), silent(1)));
    assert!(
        error.contains("has values that are infinite or not numbers after 1 steps"),
        "{error}"
    );
    let error = message(trainer.saved_model());
    assert!(error.contains("lower learning rate"), "{error}");
}

#[test]
fn rows_that_fill_up_a_batch_cannot_spoil_a_result() {
    let inverse = Loss::custom("inverse", |y_true, y_pred| {
        (y_pred - y_true).square().mean(&[1]) / y_true.mean(&[1])
    });
    let (x, _) = arrays(5);
    let data = Dataset::from_arrays(x, HostTensor::new([5, 3], &[0.5f32; 15])).unwrap();
    let weights = HostTensor::new([5], &[1.0f32, 2.0, 0.5, 1.0, 3.0]);
    let data = data.with_weights(&weights).unwrap();
    let compile = Compile {
        loss: inverse.into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let mut trainer = trainer(mlp(), compile);
    let whole = trainer.evaluate(&data.batch(5)).unwrap();
    let padded = trainer.evaluate(&data.batch(4)).unwrap();
    assert!((whole["loss"] - padded["loss"]).abs() < 1e-6, "{padded}");
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
fn class_weights_are_sample_weights() {
    let classes = ClassWeights::new([(0, 1.0), (1, 3.0), (2, 0.5)]).unwrap();
    let batches = dataset(16).batch(8);
    let mut by_class = trainer(mlp(), sgd(0.1));
    by_class
        .fit(&batches.class_weights(classes), silent(1))
        .unwrap();
    let weights: Vec<f32> = arrays(16)
        .1
        .values::<i32>()
        .unwrap()
        .iter()
        .map(|&y| [1.0, 3.0, 0.5][y as usize])
        .collect();
    let weighted = dataset(16)
        .with_weights(&HostTensor::new([16], &weights))
        .unwrap();
    let mut by_sample = trainer(mlp(), sgd(0.1));
    by_sample.fit(&weighted.batch(8), silent(1)).unwrap();
    assert_eq!(values(&by_class), values(&by_sample));
}

#[test]
fn the_loss_of_several_outputs_is_their_weighted_sum_and_penalties() {
    let mut network = Network::new();
    let x = network.input([6]);
    let hidden = network.add(
        Dense::new(4).kernel_regularizer(Regularizer::L2 { l2: 0.1 }),
        &[x],
    );
    let class = network.add(Dense::new(3).named("class"), &[hidden]);
    let value = network.add(Dense::new(1).named("value"), &[hidden]);
    let model = network.build(&[x], &[class, value]).unwrap();
    let loss = Losses::default()
        .and(0, SparseCategoricalCrossentropy::from_logits(), 0.5)
        .and(1, MeanSquaredError, 2.0);
    let mut trainer = trainer(
        model,
        Compile {
            loss,
            metrics: vec![
                OutputMetric::of(0, Accuracy),
                OutputMetric::of(1, Loss::from(MeanAbsoluteError)),
            ],
            ..sgd(0.01)
        },
    );
    let mut batch = batch(10, None);
    batch.y.push(HostTensor::new([10, 1], &[0.5f32; 10]));
    let logs = trainer.test_on_batch(&batch).unwrap();
    let names: Vec<&str> = logs.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "loss",
            "class_loss",
            "value_loss",
            "class_accuracy",
            "value_mean_absolute_error"
        ]
    );
    let kernel = &trainer.variables().unwrap()[0].1;
    let penalty: f64 = kernel.to_f64().iter().map(|w| 0.1 * w * w).sum();
    let expected = 0.5 * logs["class_loss"] + 2.0 * logs["value_loss"] + penalty;
    assert!((logs["loss"] - expected).abs() < 1e-6);
    let outputs = trainer.predict_on_batch(&batch.x).unwrap();
    let error: f64 = outputs[1]
        .to_f64()
        .iter()
        .map(|value| (value - 0.5).powi(2))
        .sum();
    assert!((logs["value_loss"] - error / 10.0).abs() < 1e-6);
    let trained = trainer.train_on_batch(&batch).unwrap();
    assert!((trained["loss"] - logs["loss"]).abs() < 1e-6);
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
    trainer.train_on_batch(&batch(8, None)).unwrap();
    let after = trainer.variables().unwrap();
    assert_eq!(before[2..], after[2..]);
    assert_ne!(before[0], after[0]);
    let notices = notices().lock().unwrap();
    assert!(
        notices.iter().any(|line| line.contains("`unused/kernel`")),
        "{notices:?}"
    );
}

#[test]
fn validation_is_logged_and_steps_are_counted() {
    let validation = dataset(10).batch(4);
    let mut trainer = trainer(mlp(), sgd(0.1));
    let fit = silent(3)
        .validation(&validation)
        .validation_freq(2)
        .steps_per_epoch(2);
    let history = trainer.fit(&dataset(24).batch(8), fit).unwrap();
    assert_eq!(history.of("loss").len(), 3);
    assert_eq!(history.of("val_accuracy").len(), 1);
    assert_eq!(trainer.iterations(), 6);
    let endless = dataset(24).repeat_forever().batch(8);
    trainer.fit(&endless, silent(1).steps_per_epoch(4)).unwrap();
}

#[test]
fn a_validation_may_be_the_start_of_endless_data() {
    let data = dataset(24).batch(8);
    let endless = dataset(24).skip(12).repeat_forever().batch(4).prefetch(2);
    let result = |fit: Fit| {
        let mut trainer = trainer(mlp(), sgd(0.1));
        let history = trainer.fit(&data, fit).unwrap();
        history.of("val_loss").to_vec()
    };
    // Two batches of four: the rows from 12 to 20, the same ones after each epoch.
    let expected = result(silent(2).validation(&dataset(24).skip(12).take(8).batch(8)));
    let found = result(silent(2).validation(&endless).validation_steps(2));
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    // More than there are is all of them.
    let finite = dataset(24).skip(12).batch(4);
    let all = result(silent(2).validation(&finite));
    assert_eq!(
        result(silent(2).validation(&finite).validation_steps(9)),
        all
    );
    let mut trainer = trainer(mlp(), sgd(0.1));
    let mut refused = |fit: Fit| message(trainer.fit(&data, fit));
    let none = refused(silent(1).validation(&endless).validation_steps(0));
    assert!(none.contains("validation_steps is 0"), "{none}");
    let nothing = refused(silent(1).validation_steps(3));
    assert!(
        nothing.contains("there is nothing to validate on"),
        "{nothing}"
    );
}

/// Two epochs of five steps are one of ten, of data that have three and of data without end.
#[test]
fn epochs_of_some_steps_go_on_where_the_one_before_ended() {
    let trained = |batches: &Batches, fit: Fit| {
        let mut trainer = trainer(mlp(), sgd(0.1));
        trainer.fit(batches, fit).unwrap();
        assert_eq!(trainer.iterations(), 10);
        values(&trainer)
    };
    let three = dataset(24).shuffle(5).batch(8);
    let endless = three.repeat_forever();
    let once = trained(&endless.epochs_of(10), silent(1));
    assert_eq!(trained(&endless.epochs_of(5), silent(2)), once);
    assert_eq!(trained(&three.epochs_of(5), silent(2)), once);
    assert_eq!(trained(&three.epochs_of(2), silent(5)), once);
    // Without it the second epoch begins with the first batch again.
    assert_ne!(trained(&endless, silent(2).steps_per_epoch(5)), once);
}

#[test]
fn the_best_epoch_is_kept() {
    let data = dataset(24).batch(8);
    let validation = dataset(12).batch(4);
    // Large enough that the loss goes up and down.
    let compile = || Compile {
        optimizer: Sgd::new(1.5).momentum(0.9).into(),
        ..sgd(0.1)
    };
    let by_epoch: Vec<(Vec<f32>, f64, f64)> = {
        let mut trainer = trainer(mlp(), compile());
        (0..6)
            .map(|epoch| {
                let fit = Fit::epochs(epoch + 1).initial_epoch(epoch);
                let fit = fit.progress(Progress::Silent).validation(&validation);
                let logs = trainer.fit(&data, fit).unwrap();
                let of = |name| logs.of(name)[0];
                (values(&trainer), of("val_loss"), of("val_accuracy"))
            })
            .collect()
    };
    let first_where = |better: &dyn Fn(usize, usize) -> bool| {
        (1..6).fold(0, |best, i| if better(i, best) { i } else { best })
    };
    let least = first_where(&|a, b| by_epoch[a].1 < by_epoch[b].1);
    let greatest = first_where(&|a, b| by_epoch[a].2 > by_epoch[b].2);
    assert!(
        least != 5 && greatest != 5,
        "the last epoch is to be worse: {by_epoch:?}"
    );
    for (log, best) in [("val_loss", least), ("val_accuracy", greatest)] {
        let mut trainer = trainer(mlp(), compile());
        let fit = silent(6).validation(&validation).keep_best(log);
        assert_eq!(trainer.fit(&data, fit).unwrap().of("loss").len(), 6);
        assert_eq!(values(&trainer), by_epoch[best].0, "{log}");
    }
}

/// The names say nothing: what a metric says itself counts, and without that there is an error.
#[test]
fn a_metric_says_which_values_are_better() {
    let error_type = |better: Option<Better>| {
        let metric = Metric::custom("accuracy_loss", |y_true, y_pred| {
            let y_true = y_true
                .convert(y_pred.dtype())
                .broadcast_in(&y_pred.dims(), &[0]);
            (y_pred - y_true).abs().mean(&[1])
        });
        better.map_or_else(
            || metric.clone(),
            |better| metric.clone().better_when(better),
        )
    };
    let accuracy = Metric::from(Accuracy).named("error_type_accuracy");
    let compile = |better| Compile {
        optimizer: Sgd::new(1.5).momentum(0.9).into(),
        metrics: vec![accuracy.clone().into(), error_type(better).into()],
        ..sgd(0.1)
    };
    let data = dataset(24).batch(8);
    let kept = |log: &str, better| {
        let mut trainer = trainer(mlp(), compile(better));
        let fit = silent(6).validation(&data).keep_best(format!("val_{log}"));
        let history = trainer.fit(&data, fit)?;
        let kept = trainer.evaluate(&data)?[log];
        let logs = history.of(&format!("val_{log}"));
        let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!(least < most, "{logs:?}");
        phalanx::Result::Ok((kept, least, most))
    };
    let (accuracy, _, most) = kept("error_type_accuracy", None).unwrap();
    assert_eq!(accuracy, most);
    let (lower, least, _) = kept("accuracy_loss", Some(Better::Lower)).unwrap();
    assert_eq!(lower, least);
    let (higher, _, most) = kept("accuracy_loss", Some(Better::Higher)).unwrap();
    assert_eq!(higher, most);
    let message = message(kept("accuracy_loss", None));
    assert!(
        message.contains("say so with `Metric::better_when`"),
        "{message}"
    );
}

#[test]
fn a_log_to_keep_the_best_of_has_to_exist() {
    let data = dataset(24).batch(8);
    let mut trainer = trainer(mlp(), sgd(0.1));
    let validated = || silent(2).validation(&dataset(12).batch(4));
    for (fit, expected) in [
        (
            silent(2).keep_best("val_accuracy"),
            "those that begin with val_ need a validation",
        ),
        (
            silent(2).keep_best("acc"),
            "the logs are loss, accuracy; name one",
        ),
        (
            validated().keep_best("val_acc"),
            "the logs are loss, accuracy, val_loss, val_accuracy; name one",
        ),
    ] {
        let message = message(trainer.fit(&data, fit));
        assert!(message.contains(expected), "{message}");
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

#[test]
fn a_loss_that_is_not_a_number_names_its_first_step() {
    let (x, y) = arrays(40);
    let mut x = x.f32s();
    x[17 * 6] = f32::NAN;
    let data = Dataset::from_arrays(HostTensor::new([40, 6], &x), y).unwrap();
    let mut trainer = trainer(mlp(), sgd(0.1));
    let error = trainer.fit(&data.batch(8), silent(3)).unwrap_err();
    assert!(matches!(error, Error::Training(_)), "{error:?}");
    let text = error.to_string();
    for part in [
        "step 2 ",
        "not a number",
        "lower learning rate (now 0.1",
        "clipnorm",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn batches_that_do_not_fit_are_refused_with_a_next_action() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let good = batch(4, None);
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut batch = good.clone();
        change(&mut batch);
        batch
    };
    let f32s = |dims: &[usize]| HostTensor::zeros(Shape::f32(dims));
    let cases: Vec<(Batch, &str)> = vec![
        (
            with(&|b| b.x[0] = f32s(&[4, 7])),
            "takes examples of dims [6]",
        ),
        (with(&|b| b.x[0] = f32s(&[])), "takes examples of dims [6]"),
        (
            with(&|b| b.x.push(f32s(&[4, 6]))),
            "a batch has 2 inputs (x), but the model `sequential` takes 1",
        ),
        (with(&|b| b.x.clear()), "a batch has 0 inputs"),
        (
            with(&|b| b.y.clear()),
            "a batch has 0 targets (y), but 1 outputs",
        ),
        (
            with(&|b| b.y[0] = f32s(&[3])),
            "a batch has 4 rows in x, but y is f32[3]",
        ),
        (
            with(&|b| b.y[0] = f32s(&[4, 2])),
            "does not hold one class for each row",
        ),
        (
            with(&|b| b.weight = Some(f32s(&[5]))),
            "the weights of a batch of 4 rows are f32[5], expected f32[4]",
        ),
        (with(&|b| b.x[0] = f32s(&[0, 6])), "no rows"),
        (
            with(&|b| b.y[0] = HostTensor::new([4], &[0i32, 1, 3, 2])),
            "the class 3 of example 2 of the epoch is not among the 3",
        ),
        (
            with(&|b| b.y[0] = HostTensor::new([4], &[0i64, 9, 0, 2])),
            "the class 9 of example 1",
        ),
        (
            with(&|b| b.weight = Some(HostTensor::new([4], &[1i32; 4]))),
            "the weights of a batch of 4 rows are i32[4], expected f32[4]",
        ),
        (
            with(&|b| b.y[0] = HostTensor::new([4], &[0i32, -1, 0, 2])),
            "the class -1 of example 1",
        ),
    ];
    for (batch, expected) in cases {
        let text = message(trainer.train_on_batch(&batch));
        assert!(text.contains(expected), "{text}");
        let text = message(trainer.test_on_batch(&batch));
        assert!(text.contains(expected), "{text}");
    }
    trainer.train_on_batch(&good).unwrap();
}

#[test]
fn wrong_use_is_refused_with_a_next_action() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let data = dataset(20);
    let endless = data.repeat_forever().batch(4);
    let fits: [(&Batches, Fit, &str); 6] = [
        (
            &endless,
            silent(1),
            "say where an epoch ends with `batches.epochs_of` or steps_per_epoch",
        ),
        (
            &data.batch(4),
            silent(1).steps_per_epoch(6),
            "an epoch of the data has 5 batches",
        ),
        (
            &data.batch(4),
            silent(1).steps_per_epoch(0),
            "steps_per_epoch is 0",
        ),
        (
            &data.batch(4),
            silent(1).validation_freq(0),
            "validation_freq is 0",
        ),
        (
            &data.batch(40).drop_remainder(),
            silent(1),
            "no batch to train on",
        ),
        (&data.batch(0), silent(1), "the batch size is 0"),
    ];
    for (batches, fit, expected) in fits {
        let text = message(trainer.fit(batches, fit));
        assert!(text.contains(expected), "{text}");
    }
    let untouched = values(&trainer);
    let text = message(trainer.fit(&data.batch(4), silent(1).validation(&endless)));
    assert!(
        text.contains("on endless data; say on how many batches with validation_steps"),
        "{text}"
    );
    assert_eq!(values(&trainer), untouched);
    assert!(message(trainer.evaluate(&endless)).contains("cannot evaluate on endless data"));
    assert!(message(trainer.predict(&endless)).contains("cannot predict on endless data"));
    let wrong = [("dense/kernal", HostTensor::zeros(Shape::f32([6, 5])))];
    assert!(message(trainer.set_variables(&wrong)).contains("did you mean `dense/kernel`"));
    let wrong = [("dense/kernel", HostTensor::zeros(Shape::f32([5, 6])))];
    assert!(message(trainer.set_variables(&wrong)).contains("is f32[6,5], got f32[5,6]"));
    let lossless = Compile {
        loss: Losses::default(),
        ..sgd(0.1)
    };
    let text = message(
        strategy()
            .compile(mlp(), lossless)
            .unwrap()
            .fit(&data.batch(4), silent(1)),
    );
    assert!(text.contains("compiled without a loss"), "{text}");
    let far = Compile {
        metrics: vec![OutputMetric::of(3, Accuracy)],
        ..sgd(0.1)
    };
    assert!(message(strategy().compile(mlp(), far)).contains("output 3, but the model has 1"));
    let negative = Compile {
        optimizer: Sgd::new(-1.0).into(),
        ..sgd(0.1)
    };
    assert!(message(strategy().compile(mlp(), negative)).contains("learning_rate"));
}

#[test]
fn a_loss_without_gradient_is_refused() {
    let constant = Loss::custom("constant", |_, y_pred| y_pred.stop_gradient().sum(&[1]));
    let mut trainer = trainer(
        mlp(),
        Compile {
            loss: constant.into(),
            metrics: Vec::new(),
            ..sgd(0.1)
        },
    );
    let text = message(trainer.train_on_batch(&batch(4, None)));
    assert!(text.contains("depends on no trainable variable"), "{text}");
}

#[test]
fn inputs_are_converted_to_the_type_of_the_model() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let (x, _) = arrays(4);
    let halves = trainer.predict_on_batch(&[x.convert(DType::F64)]).unwrap();
    assert_eq!(halves, trainer.predict_on_batch(&[x]).unwrap());
}

#[test]
fn a_program_larger_than_the_memory_is_refused_before_it_runs() {
    let model = Sequential::new([6])
        .add(Dense::new(1 << 20))
        .add(Dense::new(1))
        .build()
        .unwrap();
    let mut trainer = trainer(
        model,
        Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        },
    );
    let rows = 200_000;
    let huge = Batch {
        x: vec![HostTensor::zeros(Shape::f32([rows, 6]))],
        y: vec![HostTensor::zeros(Shape::f32([rows, 1]))],
        weight: None,
        first: 0,
    };
    let text = message(trainer.train_on_batch(&huge));
    assert!(
        text.contains("memory") && text.contains("smaller batch"),
        "{text}"
    );
}

/// Counts the examples that are read of a dataset.
fn labels_seen(data: &Dataset) -> (Dataset, Arc<Mutex<Vec<i64>>>) {
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let log = Arc::clone(&seen);
    let data = data.map(move |example| {
        log.lock().unwrap().push(example.y[0].to_f64()[0] as i64);
        Ok(example)
    });
    (data, seen)
}

#[test]
fn training_goes_on_within_an_epoch() {
    let whole = dataset(20).shuffle(3);
    let run = |data: &Dataset, fit: &[Fit]| {
        let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
        let histories = fit.iter().map(|fit| {
            let fit = fit.clone().progress(Progress::Silent);
            trainer.fit(&data.batch(4), fit)
        });
        let histories: Vec<_> = histories.collect();
        (
            trainer.variables().unwrap(),
            trainer.position().clone(),
            histories,
        )
    };
    let (expected, end, _) = run(&whole, &[Fit::epochs(2)]);
    assert_eq!(end, Position::start(2));
    // The third batch of the second epoch fails, once.
    let failing = Arc::new(Mutex::new(Some(8)));
    let fails = Arc::clone(&failing);
    let data = dataset(20).shuffle(3).map(move |example| {
        let mut left = fails.lock().unwrap();
        match left.as_mut() {
            Some(0) => *left = None,
            Some(count) => {
                *count -= 1;
                return Ok(example);
            }
            None => return Ok(example),
        }
        Err(Error::User("once".into()))
    });
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let quiet = |fit: Fit| fit.progress(Progress::Silent);
    let failed = trainer.fit(&data.batch(4), quiet(Fit::epochs(2)));
    assert_eq!(failed.unwrap_err().to_string(), "once");
    let position = trainer.position().clone();
    assert_eq!((position.epoch, position.segments[0].steps), (0, 2));
    let history = trainer
        .fit(&data.batch(4), quiet(Fit::epochs(2).position(position)))
        .unwrap();
    let steps: Vec<usize> = history.epochs.iter().map(|epoch| epoch.steps).collect();
    assert_eq!(steps, [3, 5]);
    assert_eq!(trainer.variables().unwrap(), expected);
    let (seen_data, seen) = labels_seen(&whole);
    let position = Position {
        epoch: 1,
        segments: vec![Segment {
            policy: AutoShardPolicy::Data,
            workers: 1,
            replicas: 1,
            batch: 4,
            steps: 3,
            left_out: 0,
        }],
    };
    run(&seen_data, &[Fit::epochs(2).position(position)]);
    assert_eq!(
        seen.lock().unwrap().len(),
        8,
        "what was read is not read again"
    );
}

#[test]
fn a_stream_trains_like_its_examples() {
    let data = dataset(10);
    let (rows, examples) = (data.clone(), data.batch(4));
    let stream = Stream::new(move |_| {
        let rows = rows.clone();
        (0..10).map(move |i| rows.get(0, i))
    });
    let quiet = |fit: Fit| fit.progress(Progress::Silent);
    let mut ours = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let history = ours
        .fit(&stream.batch(4).prefetch(2), quiet(Fit::epochs(2)))
        .unwrap();
    let mut expected = strategy().compile(mlp(), sgd(0.1)).unwrap();
    expected.fit(&examples, quiet(Fit::epochs(2))).unwrap();
    assert_eq!(ours.variables().unwrap(), expected.variables().unwrap());
    let epoch = &history.epochs[1];
    assert_eq!((epoch.steps, epoch.input.stages[0].examples), (3, 10));
    let fit = quiet(Fit::epochs(1).steps_per_epoch(2));
    let history = ours.fit(&stream.batch(4), fit).unwrap();
    assert_eq!(history.epochs[0].steps, 2);
}

#[test]
fn steps_without_rows_and_corrupt_examples_are_no_harm() {
    let quiet = Fit::epochs(1).progress(Progress::Silent);
    // The last step of 5 rows is of the first worker.
    let data = dataset(5).batch(4);
    let part = data
        .shard(Worker::new(1, 2), AutoShardPolicy::Data)
        .unwrap();
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let history = trainer.fit(&part, quiet.clone()).unwrap();
    assert_eq!(history.epochs[0].steps, 2);
    assert!(history.epochs[0].logs["loss"].is_finite());
    let corrupt = dataset(8).map(|example| match example.y[0].to_f64()[0] as i64 {
        1 => Err(Error::Data {
            source_name: "f".into(),
            place: "byte 0".into(),
            message: "no".into(),
        }),
        _ => Ok(example),
    });
    let ones = (0..8).filter(|i| i * i % 7 % 3 == 1).count() as u64;
    let history = trainer
        .fit(&corrupt.skip_corrupt().batch(4), quiet)
        .unwrap();
    assert_eq!(history.epochs[0].input.skipped, ones);
}

/// Examples of which those of these numbers are corrupt.
fn with_corrupt(rows: usize, corrupt: &'static [usize]) -> Dataset {
    let (x, y) = arrays(rows);
    let numbers: Vec<i32> = (0..rows as i32).collect();
    let all = Dataset::from_arrays(vec![x, HostTensor::new([rows], &numbers)], y).unwrap();
    all.map(|mut example| {
        let number = example.x.remove(1).to_f64()[0] as usize;
        if corrupt.contains(&number) {
            return Err(Error::Data {
                source_name: "f".into(),
                place: format!("example {number}"),
                message: "no".into(),
            });
        }
        Ok(example)
    })
}

#[test]
fn an_epoch_or_a_validation_of_nothing_is_an_error() {
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let told = |error: Error, part: &str| {
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
    };
    let none = with_corrupt(4, &[0, 1, 2, 3]).skip_corrupt();
    told(
        trainer.fit(&none.batch(2), silent(1)).unwrap_err(),
        "trained on nothing: all of its 4 examples are corrupt",
    );
    let endless = none.repeat_forever().batch(2).prefetch(2);
    told(
        trainer
            .fit(&endless, silent(1).steps_per_epoch(3))
            .unwrap_err(),
        "every example of the data is corrupt",
    );
    let stream = Stream::new(|_| std::iter::empty());
    told(
        trainer.fit(&stream.batch(2), silent(1)).unwrap_err(),
        "trained on nothing: the data have no example",
    );
    let weightless = dataset(4)
        .with_weights(&HostTensor::new([4], &[0f32; 4]))
        .unwrap();
    told(
        trainer.fit(&weightless.batch(2), silent(1)).unwrap_err(),
        "no example of its 2 steps has a weight",
    );
    let good = dataset(4).batch(2);
    let fit = silent(1).validation(&none.batch(2)).keep_best("val_loss");
    told(
        trainer.fit(&good, fit).unwrap_err(),
        "cannot evaluate: no example has a weight above 0, and 4 are corrupt",
    );
    assert!(trainer.evaluate(&weightless.batch(4)).is_err());
    assert!(trainer.fit(&good, silent(1)).is_ok());
}

#[test]
fn batches_left_out_are_no_steps_of_an_epoch_that_goes_on() {
    let data = with_corrupt(8, &[2, 3]).skip_corrupt().repeat_forever();
    let batches = data.batch(2);
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let fit = silent(1).steps_per_epoch(5);
    let whole = trainer.fit(&batches, fit.clone()).unwrap();
    assert_eq!(whole.epochs[0].steps, 5);
    let mut iter = batches.iter(0, 0);
    assert_eq!(iter.by_ref().take(2).count(), 2, "the first and the third");
    let rest = trainer.fit(&batches, fit.position(iter.position()));
    assert_eq!(rest.unwrap().epochs[0].steps, 3);
}

/// How many notices have all of these.
fn told(parts: &[&str]) -> usize {
    let notices = notices().lock().unwrap();
    let has_all = |line: &&String| parts.iter().all(|part| line.contains(part));
    notices.iter().filter(has_all).count()
}

#[test]
fn corrupt_examples_leave_one_program_and_what_the_others_teach() {
    // A variable that is not trained is named once for each program that is compiled.
    let model = || {
        let mut network = Network::new();
        let x = network.input([6]);
        let used = network.add(Dense::new(3).named("used"), &[x]);
        let orphan = network.add(Dense::new(3).named("orphan"), &[x]);
        network.build(&[x], &[used, orphan]).unwrap()
    };
    // Rows of the batches: 3, 2, 4, 1, 4.
    let data = with_corrupt(20, &[1, 4, 6, 12, 13, 15]).skip_corrupt();
    let batches = data.batch(4);
    let mut ours = trainer(model(), sgd(0.1));
    let fit = silent(1).validation(&batches);
    let history = ours.fit(&batches, fit).unwrap();
    assert_eq!(
        told(&["`orphan/kernel`"]),
        2,
        "of full batches, and of filled ones"
    );
    let input = &history.epochs[0].input;
    assert_eq!((input.skipped, input.validation_skipped), (6, 6));
    let mut expected = trainer(model(), sgd(0.1));
    for i in 0..5 {
        expected
            .train_on_batch(&batches.get(0, i).unwrap())
            .unwrap();
    }
    let values = |trainer: &Trainer| -> Vec<f64> {
        let variables = trainer.variables().unwrap();
        variables
            .iter()
            .flat_map(|(_, value)| value.to_f64())
            .collect()
    };
    let (ours_values, expected) = (values(&ours), values(&expected));
    assert!(
        phalanx_testkit::largest_difference(&ours_values, &expected) < 1e-6,
        "{ours_values:?}, expected {expected:?}"
    );
    ours.evaluate(&batches).unwrap();
    ours.predict(&batches).unwrap();
    assert_eq!(told(&["6 corrupt examples left out of the evaluation"]), 1);
    assert_eq!(told(&["6 corrupt examples left out of the prediction"]), 1);
}

#[test]
fn what_is_behind_a_corrupt_length_is_told() {
    let path = std::env::temp_dir().join(format!("phalanx-lost-{}.tfrecord", std::process::id()));
    let mut bytes = Vec::new();
    for i in 0..8u8 {
        write_tfrecord(&mut bytes, &[i; 20]).unwrap();
    }
    // Records of 36 bytes: the length of record 5.
    bytes[5 * 36] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let open = |corrupt| {
        let options = TfRecordOptions {
            corrupt,
            index: IndexCache::Off,
            ..TfRecordOptions::default()
        };
        Dataset::from_tfrecords(&path.to_string_lossy(), &options, |record| {
            let x: Vec<f32> = record[..6].iter().map(|&byte| f32::from(byte)).collect();
            Ok(Example {
                x: vec![HostTensor::new([6], &x)],
                y: vec![HostTensor::scalar(i32::from(record[0] % 3))],
                weight: None,
            })
        })
    };
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let error = open(CorruptPolicy::Fail).unwrap_err().to_string();
    assert!(
        error.contains(&name)
            && error.contains("at byte 180: corrupt record: the checksum of the length"),
        "{error}"
    );
    let data = open(CorruptPolicy::Skip).unwrap().batch(5);
    let mut ours = trainer(mlp(), sgd(0.1));
    let lost = format!(
        "{name}: the 108 bytes from byte 180 on are left out: corrupt record: the checksum of the length"
    );
    let history = ours.fit(&data, silent(2).validation(&data)).unwrap();
    assert_eq!(history.epochs[0].input.lost_bytes, 108);
    assert_eq!(told(&[&lost]), 2, "of training and of validation");
    ours.evaluate(&data).unwrap();
    assert_eq!(told(&[&lost]), 3);
    std::fs::remove_file(path).unwrap();
}

/// Batches that take this long to read.
fn slow(rows: usize, batch: usize, milliseconds: u64) -> Batches {
    dataset(rows).batch(batch).map(move |batch| {
        std::thread::sleep(Duration::from_millis(milliseconds));
        Ok(batch)
    })
}

#[test]
fn waiting_counts_while_the_device_has_nothing_to_do() {
    // Seconds that devices waited, and that the loop did.
    let waited = |trainer: &mut Trainer, data: &Batches| {
        trainer.fit(data, silent(1)).unwrap();
        let epoch = trainer.fit(data, silent(1)).unwrap().epochs.remove(0);
        let next = epoch.input.stages.last().unwrap().wait.as_secs_f64();
        (epoch.input.bottleneck.waited * epoch.seconds, next)
    };
    let mut fast = trainer(mlp(), sgd(0.1));
    let (devices, host) = waited(&mut fast, &slow(32, 4, 25));
    assert!(
        devices > 0.5 * host && host >= 0.2,
        "a slow source: {devices} of {host} s"
    );
    let wide = Sequential::new([6])
        .add(Dense::new(2048).activation(tanh))
        .add(Dense::new(2048).activation(tanh))
        .add(Dense::new(3));
    let mut heavy = trainer(wide, sgd(1e-4));
    let (devices, host) = waited(&mut heavy, &slow(6 * 128, 128, 12));
    assert!(
        devices < 0.5 * host && host >= 0.07,
        "a slow step: {devices} of {host} s"
    );
}
