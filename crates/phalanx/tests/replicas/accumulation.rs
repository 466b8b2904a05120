//! Gradients that each replica adds by itself until a window of batches ends.

use phalanx::checkpoint::TrainingState;
use phalanx::data::{Batch, TrainingData};
use phalanx::prelude::*;
use phalanx_testkit::relative_difference as apart;

use crate::{cases, mirrored, values};

/// The bound.
const TOLERANCE: f64 = 1e-6;

fn compile(optimizer: impl Into<Optimizer>) -> Compile {
    Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        seed: 5,
        ..Compile::default()
    }
}

fn network() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(8).activation(tanh))
        .add(Dense::new(3))
}

/// The variables, of all that `train` makes of a trainer on so many replicas.
fn trained(replicas: usize, compile: Compile, train: impl FnOnce(&mut Trainer)) -> Vec<f64> {
    let model = network().build().unwrap();
    let mut trainer = mirrored(replicas).compile(model, compile).unwrap();
    train(&mut trainer);
    flat(&trainer)
}

fn flat(trainer: &Trainer) -> Vec<f64> {
    values(trainer).into_iter().flat_map(|(_, v)| v).collect()
}

fn quietly(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// 23 rows in batches of 8, of which the last has 7; some weights are 0. Windows of 2 batches and of 4 go over the ends of epochs.
fn ragged() -> impl TrainingData {
    let weights: Vec<f32> = (0..23).map(|row| (row % 4) as f32 * 0.5).collect();
    let data = cases::rows(23).with_weights(&HostTensor::new([23], &weights));
    data.unwrap().batch(8)
}

#[test]
fn ragged_and_weighted_batches_add_up_on_each_replica() {
    for (window, replicas) in [(2, 3), (3, 2), (4, 4)] {
        let compile = || {
            let adam = Optimizer::from(Adam::new(0.01).epsilon(1e-3)).global_clipnorm(0.5);
            compile(adam.ema(0.9).gradient_accumulation(window))
        };
        let run = |replicas| {
            trained(replicas, compile(), |trainer| {
                trainer.fit(&ragged(), quietly(4)).unwrap();
            })
        };
        let difference = apart(&run(1), &run(replicas));
        assert!(difference <= TOLERANCE, "{window} {replicas} {difference}");
    }
}

#[test]
fn a_window_is_one_batch_of_all_its_rows() {
    let batch = |from: usize, rows: usize| -> Batch {
        let all = cases::rows(24).batch(24).iter(0, 0).next().unwrap();
        let all = all.unwrap();
        let rows_of = |tensor: &HostTensor| tensor.slice_rows(from, from + rows);
        Batch {
            x: all.x.iter().map(rows_of).collect(),
            y: all.y.iter().map(rows_of).collect(),
            weight: None,
            first: 0,
        }
    };
    let momentum = || Sgd::new(0.1).momentum(0.9);
    let whole = trained(1, compile(momentum()), |trainer| {
        for _ in 0..3 {
            trainer.train_on_batch(&batch(0, 24)).unwrap();
        }
    });
    let accumulating = || compile(Optimizer::from(momentum()).gradient_accumulation(3));
    for replicas in [2, 4] {
        let parts = trained(replicas, accumulating(), |trainer| {
            for step in 0..9 {
                trainer.train_on_batch(&batch(step % 3 * 8, 8)).unwrap();
            }
        });
        assert!(apart(&whole, &parts) <= TOLERANCE, "{replicas}");
    }
}

#[test]
fn a_window_goes_on_from_a_checkpoint_with_any_number_of_replicas() {
    let compile = || compile(Optimizer::from(Sgd::new(0.1)).gradient_accumulation(4));
    let model = || network().build().unwrap();
    // Three batches an epoch: it ends within the first window.
    let unbroken = trained(1, compile(), |trainer| {
        trainer.fit(&ragged(), quietly(4)).unwrap();
    });
    for (before, after) in [(1, 3), (3, 2)] {
        let mut first = mirrored(before).compile(model(), compile()).unwrap();
        first.fit(&ragged(), quietly(1)).unwrap();
        let state: TrainingState = first.training_state().unwrap();
        let mut second = mirrored(after).compile(model(), compile()).unwrap();
        second.set_training_state(&state).unwrap();
        second.fit(&ragged(), quietly(4).resume()).unwrap();
        let difference = apart(&unbroken, &flat(&second));
        assert!(difference <= TOLERANCE, "{before} {after} {difference}");
    }
}

#[test]
fn replicas_with_sums_of_their_own_pass_for_equal() {
    let compile = compile(Optimizer::from(Sgd::new(0.1)).gradient_accumulation(3));
    let strategy = mirrored(3).verify_every(1);
    let mut trainer = strategy
        .compile(network().build().unwrap(), compile)
        .unwrap();
    trainer.fit(&ragged(), quietly(2)).unwrap();
}
