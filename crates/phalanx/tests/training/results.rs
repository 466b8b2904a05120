//! Losses, metrics and predictions, of trainings and evaluations; the weight of each example in them.

use phalanx::data::Batch;
use phalanx::metrics;
use phalanx::metrics::Better;
use phalanx::prelude::*;
use phalanx_testkit::assert_close;

use crate::{arrays, batch, dataset, message, mlp, sgd, silent, trainer, values};

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

/// Pixels and steps of no class, as numbers such as 255 and -100, beside others of the same example.
#[test]
fn a_label_of_weight_zero_may_be_no_class() {
    let model = || Sequential::new([2, 3]).add(Dense::new(3));
    let compile = || Compile {
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let batch = |label: i32, weight: HostTensor| Batch {
        x: vec![HostTensor::new([2, 2, 3], &[0.5f32; 12])],
        y: vec![HostTensor::new([2, 2], &[1, label, 2, 0])],
        weight: Some(weight),
        first: 0,
    };
    let weights = [1.0f32, 0.0, 0.5, 1.0];
    for weight in [
        HostTensor::new([2, 2], &weights),
        HostTensor::new([2, 2, 1], &weights),
    ] {
        let trained = [0, 255, -100].map(|label| {
            let mut trainer = trainer(model(), compile());
            let logs = trainer.train_on_batch(&batch(label, weight.clone()));
            (logs.unwrap()["loss"], values(&trainer))
        });
        assert!(trained[0].0 > 0.0);
        assert_eq!(trained[0], trained[1]);
        assert_eq!(trained[0], trained[2]);
    }
    let of_rows = HostTensor::new([2], &[1.0f32, 0.0]);
    let refused = trainer(model(), compile()).train_on_batch(&batch(255, of_rows));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("the class 255 of example 0"), "{text}");
}

/// Weights of steps with a last dim of 1 where steps are padding, too.
#[test]
fn weights_of_steps_may_have_a_last_dim() {
    let compile = || Compile {
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let trained = [vec![3, 3], vec![3, 3, 1]].map(|dims| {
        let model = Sequential::new(Input::new([3]).dtype(DType::I32))
            .add(Embedding::new(5, 4).mask_zero(true))
            .add(Dense::new(3));
        let batch = Batch {
            x: vec![HostTensor::new([3, 3], &[1, 2, 0, 3, 0, 0, 4, 4, 1])],
            y: vec![HostTensor::new([3, 3], &[0, 1, 2, 0, 1, 2, 0, 1, 2])],
            weight: Some(HostTensor::new(
                dims,
                &[1.0f32, 2.0, 3.0, 0.5, 1.0, 1.0, 0.0, 1.0, 4.0],
            )),
            first: 0,
        };
        let mut trainer = trainer(model, compile());
        let logs = trainer.train_on_batch(&batch);
        (logs.unwrap()["loss"], values(&trainer))
    });
    assert_eq!(trained[0], trained[1]);
}

/// Rows that no index named are brought back, too, as in Keras, also where an optimizer leaves them alone.
#[test]
fn a_constraint_is_of_the_whole_table() {
    for optimizer in [Sgd::new(0.1).into(), Optimizer::from(Adam::new(0.1)).lazy()] {
        let far = Initializer::RandomUniform {
            low: 1.0,
            high: 2.0,
        };
        let table = Embedding::new(5, 4).embeddings_initializer(far);
        let longest = Constraint::max_norm(0.5).along([-1]);
        let model = Sequential::new(Input::new([3]).dtype(DType::I32))
            .add(table.embeddings_constraint(longest));
        let compile = Compile {
            optimizer,
            loss: MeanSquaredError.into(),
            metrics: Vec::new(),
            ..sgd(0.1)
        };
        let batch = Batch {
            x: vec![HostTensor::new([2, 3], &[0, 1, 1, 0, 1, 0])],
            y: vec![HostTensor::new([2, 3, 4], &[0.0f32; 24])],
            weight: None,
            first: 0,
        };
        let mut trainer = trainer(model, compile);
        trainer.train_on_batch(&batch).unwrap();
        for row in values(&trainer).chunks(4) {
            let norm = row
                .iter()
                .map(|x| f64::from(*x).powi(2))
                .sum::<f64>()
                .sqrt();
            assert!((norm - 0.5).abs() < 1e-6, "{row:?}");
        }
    }
}

#[test]
fn losses_of_one_output_have_names_of_their_own() {
    let losses = Losses::default()
        .and(0, MeanSquaredError, 1.0)
        .and(0, MeanAbsoluteError, 0.5);
    let compile = Compile {
        loss: losses,
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let (x, _) = arrays(4);
    let batch = Batch {
        x: vec![x],
        y: vec![HostTensor::new([4, 3], &[0.25f32; 12])],
        weight: None,
        first: 0,
    };
    let logs = trainer(mlp(), compile).train_on_batch(&batch).unwrap();
    let named: Vec<(&str, f64)> = logs.iter().collect();
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let one = names[1].to_owned();
    assert_eq!(names[2], format!("{one}_1"));
    assert!((named[0].1 - named[1].1 - 0.5 * named[2].1).abs() < 1e-6);
}

/// A callback that looks at the loss by its name finds the loss.
#[test]
fn metrics_do_not_take_the_names_of_losses() {
    let named = |name| Metric::from(Loss::from(MeanSquaredError)).named(name);
    let losses = Losses::default().and(0, MeanSquaredError, 1.0);
    let names = |loss: Losses| {
        let compile = Compile {
            loss,
            metrics: vec![named("loss").into(), named("dense_1_loss").into()],
            ..sgd(0.1)
        };
        let (x, _) = arrays(4);
        let batch = Batch {
            x: vec![x],
            y: vec![HostTensor::new([4, 3], &[0.25f32; 12])],
            weight: None,
            first: 0,
        };
        let logs = trainer(mlp(), compile).train_on_batch(&batch).unwrap();
        let names = logs.iter().map(|(name, _)| name.to_owned());
        names.collect::<Vec<String>>()
    };
    assert_eq!(names(losses.clone()), ["loss", "loss_1", "dense_1_loss"]);
    assert_eq!(
        names(losses.and(0, MeanAbsoluteError, 0.5)),
        [
            "loss",
            "dense_1_loss",
            "dense_1_loss_1",
            "loss_1",
            "dense_1_loss_2"
        ]
    );
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
