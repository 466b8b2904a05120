//! What is refused, and what the error says.

use phalanx::Error;
use phalanx::data::Batch;
use phalanx::metrics::{BinaryAccuracy, SparseCategoricalAccuracy, SparseTopKCategoricalAccuracy};
use phalanx::prelude::*;
use phalanx_graph::Shape;

use crate::{arrays, batch, dataset, message, mlp, sgd, silent, strategy, trainer, values};

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

/// Batches that do not fit `good`'s model, and what is said of them.
fn unfit(good: &Batch) -> [(Batch, &'static str); 14] {
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut batch = good.clone();
        change(&mut batch);
        batch
    };
    let f32s = |dims: &[usize]| HostTensor::zeros(Shape::f32(dims));
    [
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
        (
            with(&|b| b.y[0] = HostTensor::new([4], &[0.0f32, 1.0, -0.5, 2.0])),
            "the class -0.5 of example 2 of the epoch is no whole number; give the numbers of the model's 3 classes, 0 to 2",
        ),
    ]
}

#[test]
fn batches_that_do_not_fit_are_refused_with_a_next_action() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let good = batch(4, None);
    for (batch, expected) in unfit(&good) {
        let text = message(trainer.train_on_batch(&batch));
        assert!(text.contains(expected), "{text}");
        let text = message(trainer.test_on_batch(&batch));
        assert!(text.contains(expected), "{text}");
    }
    trainer.train_on_batch(&good).unwrap();
}

/// A metric would count a class that the model has no output for as wrong, or leave it out.
#[test]
fn classes_that_a_metric_alone_counts_are_checked() {
    // The loss takes any number.
    let loss = || Loss::custom("first", |_, y_pred| y_pred.square().mean(&[1]));
    let with = |metric: Metric| Compile {
        loss: loss().into(),
        metrics: vec![metric.into()],
        ..sgd(0.1)
    };
    let labels = |labels: [i32; 4], weight: Option<&[f32]>| Batch {
        y: vec![HostTensor::new([4], &labels)],
        ..batch(4, weight)
    };
    for metric in [
        Metric::from(Accuracy),
        SparseCategoricalAccuracy.into(),
        SparseTopKCategoricalAccuracy::new(2).into(),
        MeanIou::default().into(),
    ] {
        let name = metric.name().to_owned();
        let mut trainer = trainer(mlp(), with(metric));
        for (bad, class) in [([0, 1, -1, 2], "-1"), ([0, 1, 3, 2], "3")] {
            let bad = labels(bad, None);
            let expected = format!(
                "the class {class} of example 2 of the epoch is not among the 3 that the metric `{name}` counts"
            );
            for text in [
                message(trainer.train_on_batch(&bad)),
                message(trainer.test_on_batch(&bad)),
            ] {
                assert!(text.contains(&expected), "{text}");
            }
        }
    }
    let left_out = with(MeanIou::default().ignore_class(-1).into());
    let mut trainer = trainer(mlp(), left_out);
    trainer
        .train_on_batch(&labels([0, 1, -1, 2], None))
        .unwrap();
    assert!(message(trainer.train_on_batch(&labels([0, 1, -2, 2], None))).contains("class -2"));
}

/// Metrics that are not weighted count what has no weight as all else: as wrong, or so that nothing is a number.
#[test]
fn a_weight_of_nothing_is_nothing_to_weighted_metrics_alone() {
    let cross_entropy = SparseCategoricalCrossentropy::from_logits();
    let any_number = || Loss::custom("first", |_, y_pred| y_pred.square().mean(&[1]));
    let bad = Batch {
        y: vec![HostTensor::new([4], &[0, 1, 9, 2])],
        ..batch(4, Some(&[1.0, 1.0, 0.0, 1.0]))
    };
    for loss in [any_number(), cross_entropy.into()] {
        for metric in [Metric::from(Accuracy), cross_entropy.into()] {
            let name = metric.name().to_owned();
            let compile = Compile {
                loss: loss.clone().into(),
                metrics: Vec::new(),
                ..sgd(0.1)
            };
            let plain = Compile {
                metrics: vec![metric.clone().into()],
                ..compile.clone()
            };
            let text = message(trainer(mlp(), plain).train_on_batch(&bad));
            let expected = format!(
                "the class 9 of example 2 of the epoch is not among the 3 that the metric `{name}` counts"
            );
            let next =
                "or make the metric one of `weighted_metrics` and give the example the weight 0";
            assert!(text.contains(&expected) && text.contains(next), "{text}");
            let weighted = Compile {
                weighted_metrics: vec![metric.into()],
                ..compile
            };
            let logs = trainer(mlp(), weighted).train_on_batch(&bad).unwrap();
            assert!(logs[name.as_str()].is_finite(), "{name}");
        }
    }
}

/// As if its examples had no weight, whatever else counts classes.
#[test]
fn a_class_that_the_loss_leaves_out_is_no_mistake() {
    let with = |loss: SparseCategoricalCrossentropy| Compile {
        loss: loss.into(),
        metrics: vec![Accuracy.into(), loss.into()],
        ..sgd(0.1)
    };
    let labels = |labels: [i32; 4], weight: Option<&[f32]>| Batch {
        y: vec![HostTensor::new([4], &labels)],
        ..batch(4, weight)
    };
    let loss = SparseCategoricalCrossentropy::from_logits();
    let mut leaves_out = trainer(mlp(), with(loss.ignore_class(255)));
    let logs = leaves_out.train_on_batch(&labels([0, 1, 255, 2], None));
    let weight = Some(&[1.0, 1.0, 0.0, 1.0][..]);
    let mut weighted = trainer(
        mlp(),
        Compile {
            metrics: Vec::new(),
            weighted_metrics: vec![Accuracy.into(), loss.into()],
            ..with(loss)
        },
    );
    let expected = weighted.train_on_batch(&labels([0, 1, 0, 2], weight));
    let pairs = |logs: &Logs| format!("{:?}", logs.iter().collect::<Vec<_>>());
    assert_eq!(pairs(&logs.unwrap()), pairs(&expected.unwrap()));
    assert_eq!(
        leaves_out.variables().unwrap(),
        weighted.variables().unwrap()
    );
    let refused = message(leaves_out.train_on_batch(&labels([0, 1, 254, 2], None)));
    assert!(refused.contains("the class 254 of example 2"), "{refused}");
}

/// Truncated they would be rows 0, 1 and 2, and a model would train on what nobody meant.
#[test]
fn indices_that_are_not_whole_are_refused() {
    let table = Sequential::new([2]).add(Embedding::new(3, 2));
    let table = table.add(Flatten).add(Dense::new(3));
    let trainer = trainer(table, sgd(0.1));
    let check = |x: [f32; 4]| {
        trainer.check_batch(&Batch {
            x: vec![HostTensor::new([2, 2], &x)],
            ..batch(2, None)
        })
    };
    check([0.0, 1.0, 2.0, -0.0]).unwrap();
    let text = message(check([0.0, 1.0, 1.5, 2.0]));
    assert!(
        text.contains("the index 1.5 of example 1 of the epoch is no whole number, and the layer `embedding` takes the numbers 0 to 2"),
        "{text}"
    );
    let text = message(check([-0.5, 1.0, 2.0, 2.0]));
    assert!(text.contains("the index -0.5 of example 0"), "{text}");
    let text = message(check([0.0, 3.0, 2.0, 2.0]));
    assert!(text.contains("is not among the 3 of the layer"), "{text}");
    let vectors = Sequential::new([2]).add(CategoryEncoding::new(3));
    let vectors = self::trainer(vectors.add(Dense::new(3)), sgd(0.1));
    let text = message(vectors.check_batch(&Batch {
        x: vec![HostTensor::new([2, 2], &[0.0f32, 3.0, 2.0, 2.0])],
        ..batch(2, None)
    }));
    assert!(
        text.contains("give the layer a larger `num_tokens`"),
        "{text}"
    );
}

/// Outside of 0 to 1 the loss has no lower bound.
#[test]
fn targets_of_a_binary_crossentropy_are_shares() {
    let compile = Compile {
        loss: BinaryCrossentropy::from_logits().into(),
        ..sgd(0.1)
    };
    let trainer = trainer(Sequential::new([6]).add(Dense::new(2)), compile);
    let check = |y: [f32; 4], weights: Option<&[f32]>| {
        trainer.check_batch(&Batch {
            y: vec![HostTensor::new([2, 2], &y)],
            ..batch(2, weights)
        })
    };
    check([0.0, 1.000_000_1, 0.3, 1.0], None).unwrap();
    let text = message(check([0.0, 1.0, 1.0, 2.0], None));
    assert!(
        text.contains("the target 2 of example 1 of the epoch is not from 0 to 1, as `binary_crossentropy` needs it; correct the targets")
            && text.contains("`sparse_categorical_crossentropy`"),
        "{text}"
    );
    let text = message(check([0.0, -1.0, 1.0, 1.0], Some(&[1.0, 0.0])));
    assert!(text.contains("the target -1 of example 0"), "{text}");
    check([0.0, 1.0, 1.0, -1.0], Some(&[1.0, 0.0])).unwrap();
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
}

#[test]
fn endless_data_and_wrong_values_are_refused_with_a_next_action() {
    let mut trainer = trainer(mlp(), sgd(0.1));
    let data = dataset(20);
    let endless = data.repeat_forever().batch(4);
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
}

#[test]
fn wrong_settings_of_a_training_are_refused_with_a_next_action() {
    let data = dataset(20);
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
    for name in ["val_loss", "loss_scale", "learning_rate"] {
        let taken = Compile {
            metrics: vec![Metric::from(Accuracy).named(name).into()],
            ..sgd(0.1)
        };
        let text = message(strategy().compile(mlp(), taken));
        assert!(text.contains(&format!("two results `{name}`")), "{text}");
    }
    let negative = Compile {
        optimizer: Sgd::new(-1.0).into(),
        ..sgd(0.1)
    };
    assert!(message(strategy().compile(mlp(), negative)).contains("learning_rate"));
    let metrics: [(Metric, &str); 3] = [
        (
            BinaryAccuracy::new(f64::NAN).into(),
            "binary_accuracy: `threshold` must be a number, got NaN",
        ),
        (
            MeanIou::default().num_classes(1).into(),
            "mean_io_u: `num_classes` must be at least 2, got 1; a single output tells 2 classes apart",
        ),
        (
            Huber::new(-1.0).into(),
            "huber: `delta` must be a number above 0, got -1",
        ),
    ];
    for (metric, expected) in metrics {
        let plain = Compile {
            metrics: vec![metric.clone().into()],
            ..sgd(0.1)
        };
        let weighted = Compile {
            metrics: Vec::new(),
            weighted_metrics: vec![metric.into()],
            ..sgd(0.1)
        };
        for compile in [plain, weighted] {
            assert_eq!(message(strategy().compile(mlp(), compile)), expected);
        }
    }
}

/// Targets of one number come in the dims of the predictions; others are compared with predictions of other examples.
#[test]
fn a_loss_that_compares_each_example_with_all_is_refused() {
    let squares = Loss::custom("squares", |y_true, y_pred| {
        (y_true.convert(y_pred.dtype()) - y_pred).square()
    });
    let compile = Compile {
        loss: squares.into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let mut rows = batch(4, None);
    let mut one = trainer(Sequential::new([6]).add(Dense::new(1)), compile.clone());
    one.train_on_batch(&rows).unwrap();
    let layers = Sequential::new([6]).add(Dense::new(3));
    let mut several = trainer(layers.add(Reshape::new([1, 3])), compile);
    rows.y[0] = HostTensor::new([4, 3], &[1.0f32; 12]);
    let text = message(several.train_on_batch(&rows));
    let expected = "it gave f32[4,4,3] of targets f32[4,3] and predictions f32[4,1,3], expected a number for each example";
    assert!(text.contains(expected), "{text}");
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

/// A loss that compares the examples of a batch.
fn compared() -> Trainer {
    let model = Sequential::new([6]).add(Dense::new(3)).build().unwrap();
    let compile = Compile {
        loss: Circle::default().into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    trainer(model, compile)
}

#[test]
fn a_comparison_with_an_example_that_is_no_number_is_none() {
    let (x, y) = arrays(8);
    let mut values = x.f32s();
    values[7] = f32::NAN;
    let data = Dataset::from_arrays(HostTensor::new([8, 6], &values), y).unwrap();
    let batches = data.batch(8);
    assert!(compared().evaluate(&batches).unwrap()["loss"].is_nan());
    let error = message(compared().fit(&batches, silent(1)));
    assert!(error.contains("lower learning rate"), "{error}");
}

#[test]
fn batches_without_two_of_a_class_compare_nothing() {
    let x = HostTensor::new([4, 6], &arrays(4).0.f32s());
    let data = Dataset::from_arrays(x, HostTensor::new([4], &[0, 1, 2, 3])).unwrap();
    let error = message(compared().evaluate(&data.batch(4)));
    assert!(error.contains("several examples of a class"), "{error}");
}
