//! Losses that make one number of all of an example: replicas do as one, and padding that they cannot leave out is refused.

use phalanx::data::Batch;
use phalanx::losses::Loss;
use phalanx::prelude::*;
use phalanx_testkit::relative_difference as apart;

use crate::{TOLERANCE, cases, mirrored, values};

/// Pictures of 2 by 3 with 2 channels; the third has no weight, and the last batch has fewer rows than the replicas.
fn regions(loss: Loss, replicas: usize) -> Vec<(String, Vec<f64>)> {
    let model = Sequential::new([2, 3, 2])
        .add(Conv2d::new(2, 2).padding(Padding::Same).activation(sigmoid));
    let compile = Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: loss.into(),
        ..Compile::default()
    };
    let mut trainer = mirrored(replicas).compile(model, compile).unwrap();
    for rows in [5, 2] {
        let answer = |i: usize| if i * i % 7 < 3 { 1.0f32 } else { 0.0 };
        let y: Vec<f32> = (0..rows * 12).map(answer).collect();
        let weight: Vec<f32> = (0..rows)
            .map(|row| [1.0, 0.5, 0.0, 2.0, 1.0][row])
            .collect();
        let batch = Batch {
            x: vec![HostTensor::new(
                [rows, 2, 3, 2],
                &cases::wave(rows * 12, 0.7),
            )],
            y: vec![HostTensor::new([rows, 2, 3, 2], &y)],
            weight: Some(HostTensor::new([rows], &weight)),
            first: 0,
        };
        trainer.train_on_batch(&batch).unwrap();
    }
    values(&trainer)
}

#[test]
fn replicas_train_with_losses_of_whole_examples_as_one_does() {
    for loss in [
        Dice::new().into(),
        Dice::new().axis([1, 2]).into(),
        Tversky::new(0.3, 0.7).into(),
    ] {
        let loss: Loss = loss;
        let one = regions(loss.clone(), 1);
        for (many, (name, expected)) in regions(loss.clone(), 3).iter().zip(&one) {
            assert!(apart(expected, &many.1) <= TOLERANCE, "{loss:?} {name}");
        }
    }
}

#[test]
fn padding_that_a_loss_of_whole_examples_cannot_leave_out_is_refused() {
    let steps = |loss: Dice| {
        let model = Sequential::new([4, 2])
            .add(Masking::new(0.0))
            .add(Dense::new(3).activation(sigmoid));
        let compile = Compile {
            loss: loss.into(),
            ..Compile::default()
        };
        let batch = Batch {
            x: vec![HostTensor::new([3, 4, 2], &cases::wave(24, 0.7))],
            y: vec![HostTensor::new([3, 4, 3], &[1.0f32; 36])],
            weight: None,
            first: 0,
        };
        let mut trainer = mirrored(1).compile(model, compile).unwrap();
        trainer.train_on_batch(&batch)
    };
    assert_eq!(
        steps(Dice::new()).unwrap_err().to_string(),
        "dice: the loss gives f32[3], and the output has a padding mask, bool[3,4]: padded steps cannot be left out of a number for a whole example; leave out what makes the mask (`mask_zero`, `masking`), or use a loss with a number for each step"
    );
    steps(Dice::new().axis([2])).unwrap();
}
