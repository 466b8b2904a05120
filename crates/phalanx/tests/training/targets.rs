//! Which targets are refused before their step, and which are not.

use phalanx::data::Batch;
use phalanx::metrics::SparseCategoricalAccuracy;
use phalanx::prelude::*;

use crate::{message, sgd, trainer};

/// Labels that have no way through the steps have an infinite loss.
#[test]
fn labels_that_need_more_steps_than_there_are_are_named() {
    let compile = Compile {
        loss: Ctc.into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let mut trainer = trainer(Sequential::new([3, 2]).add(Dense::new(4)), compile);
    let batch = |labels: [i32; 6], weights: Option<[f32; 2]>| Batch {
        x: vec![HostTensor::new([2, 3, 2], &[0.5f32; 12])],
        y: vec![HostTensor::new([2, 3], &labels)],
        weight: weights.map(|weights| HostTensor::new([2], &weights)),
        first: 8,
    };
    for fits in [[1, 2, 3, 1, 1, 0], [0; 6], [1, 2, 1, 3, 0, 0]] {
        trainer.train_on_batch(&batch(fits, None)).unwrap();
    }
    for (labels, steps) in [([1, 0, 0, 1, 1, 2], 4), ([1, 0, 0, 2, 2, 2], 5)] {
        let text = message(trainer.train_on_batch(&batch(labels, None)));
        let expected = format!(
            "the labels of example 9 of the epoch need {steps} steps, one each and one more between two that are equal, but the model's output has 3; give it the weight 0"
        );
        assert!(text.contains(&expected), "{text}");
        let unweighted = batch(labels, Some([1.0, 0.0]));
        trainer.train_on_batch(&unweighted).unwrap();
    }
}

/// How many steps there are of an input of any length is known to the devices alone.
#[test]
fn labels_of_examples_of_any_length_are_left_to_the_loss() {
    let compile = Compile {
        loss: Ctc.into(),
        metrics: Vec::new(),
        ..sgd(0.1)
    };
    let input = Input::new([2, 2]).any_length();
    let mut trainer = trainer(Sequential::new(input).add(Dense::new(4)), compile);
    let batch = |steps: usize| Batch {
        x: vec![HostTensor::new([1, steps, 2], &vec![0.5f32; 2 * steps])],
        y: vec![HostTensor::new([1, 3], &[1i32, 2, 3])],
        weight: None,
        first: 0,
    };
    trainer.train_on_batch(&batch(3)).unwrap();
    let text = message(trainer.train_on_batch(&batch(1)));
    assert!(
        text.contains("such as labels that need more steps than there are"),
        "{text}"
    );
    let text = message(trainer.train_on_batch(&batch(2)));
    assert!(text.contains("need 3 steps"), "{text}");
}

/// Steps of two numbers, of which the last of the second example is padding.
fn padded(y: [f32; 4]) -> Batch {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0];
    Batch {
        x: vec![HostTensor::new([2, 2, 2], &x)],
        y: vec![HostTensor::new([2, 2, 1], &y)],
        weight: None,
        first: 0,
    }
}

/// Whether a place is padding is known to the devices alone, but no class and no share is below 0.
#[test]
fn targets_of_padded_places_may_be_below_zero() {
    let pairs = |logs: &Logs| format!("{:?}", logs.iter().collect::<Vec<_>>());
    let loss = || Loss::custom("first", |_, y_pred| y_pred.square().mean(&[2]));
    let sparse = || SparseCategoricalCrossentropy::from_logits();
    let accuracy = || vec![SparseCategoricalAccuracy.into()];
    let cases: [(Losses, Vec<OutputMetric>, usize, &str); 4] = [
        (sparse().into(), accuracy(), 3, "the class 7 of example 1"),
        (loss().into(), accuracy(), 3, "the class 7 of example 1"),
        (
            loss().into(),
            vec![MeanIou::default().into()],
            1,
            "the class 7 of example 1",
        ),
        (
            BinaryCrossentropy::from_logits().into(),
            vec![],
            1,
            "the target 7 of example 1",
        ),
    ];
    for (loss, metrics, units, expected) in cases {
        let compile = Compile {
            loss,
            metrics,
            ..sgd(0.1)
        };
        let train = |masking: bool, y: [f32; 4]| {
            let mut model = Sequential::new([2, 2]);
            if masking {
                model = model.add(Masking::new(0.0));
            }
            let mut trainer = trainer(model.add(Dense::new(units)), compile.clone());
            trainer.train_on_batch(&padded(y))
        };
        assert_eq!(
            pairs(&train(true, [0.0, 1.0, 1.0, -1.0]).unwrap()),
            pairs(&train(true, [0.0, 1.0, 1.0, 0.0]).unwrap())
        );
        let text = message(train(true, [0.0, 1.0, 1.0, 7.0]));
        assert!(
            text.contains(expected)
                && text.ends_with("; padded places take 0, or a whole number below 0"),
            "{text}"
        );
        assert!(message(train(true, [0.0, 1.0, 1.0, -0.5])).contains("-0.5 of example 1"));
        // The place is not padded, which is known where the loss is computed.
        let real = |y: f32| {
            let logs = train(true, [y, 1.0, 1.0, 0.0]);
            logs.map(|logs| logs.get("loss").unwrap())
        };
        if expected.starts_with("the target") {
            assert!(real(-1.0).map_or(true, f64::is_nan), "a share of -1");
            assert!(real(-5e-4).unwrap().is_finite(), "a share of rounding");
        }
        let text = message(train(false, [0.0, 1.0, 1.0, -1.0]));
        assert!(text.contains("-1 of example 1"), "{text}");
        assert!(!text.contains("padded"), "{text}");
    }
}
