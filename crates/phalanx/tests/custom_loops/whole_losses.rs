//! Losses that each replica has as a whole: what is summed over replicas are the gradients of shares of them.

use phalanx::prelude::*;
use phalanx::strategy::{Gradients, ModelRef, OptimizerRef, ReplicaCx};
use phalanx_graph::Tensor;
use phalanx_graph::op::ReduceOp;

use crate::{assert_near, mirrored, rows};

/// The gradients that a step applies, before they are summed.
type GradientsOf = fn(&mut ReplicaCx<'_>, &ModelRef, &OptimizerRef, &Inputs) -> Gradients;

fn network() -> Sequential {
    let penalized = Dense::new(3).kernel_regularizer(Regularizer::L2 { l2: 0.5 });
    Sequential::new([4]).add(penalized)
}

/// The variables after an epoch of 12 rows in batches of a size.
fn trained(replicas: usize, rows_of_batch: usize, of: GradientsOf) -> Vec<(String, HostTensor)> {
    let strategy = mirrored(replicas);
    let mut state = strategy.state(4).unwrap();
    let model = state.add_model("net", network()).unwrap();
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model]).unwrap();
    let mut step = strategy.function(|cx, batch: Inputs| {
        let gradients = of(cx, &model, &sgd, &batch);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&sgd, &gradients);
        []
    });
    let data = strategy.distribute_dataset(&rows(12).batch(rows_of_batch));
    for batch in data.epoch(0) {
        let [] = step.call(&mut state, &batch.unwrap()).unwrap();
    }
    state.variables(&model).unwrap()
}

/// The mean of the squared outputs over all examples, on each replica.
fn whole(cx: &mut ReplicaCx<'_>, model: &ModelRef, batch: &Inputs) -> Tensor {
    let squares = cx.train(model, &batch.x)[0].square().sum(&[1]);
    cx.all_reduce(ReduceOp::Sum, &cx.mean(&squares, None))
}

/// Batches of 4 are full on 2 replicas, of 5 have rows that fill up, and their last has 2.
fn assert_trains_as(one: GradientsOf, several: GradientsOf) {
    for rows_of_batch in [4, 5] {
        let expected = trained(1, rows_of_batch, one);
        for replicas in [1, 2, 3] {
            let found = trained(replicas, rows_of_batch, several);
            for ((name, a), (_, b)) in expected.iter().zip(&found) {
                let what = format!("{name}, {rows_of_batch} rows on {replicas}");
                assert_near(&what, &a.to_f64(), &b.to_f64(), 1e-5);
            }
        }
    }
}

/// Each step takes the same part of the kernel: `l2 * kernel^2` has the gradient `2 * l2 * kernel`.
#[test]
fn penalties_alone_are_a_loss_on_any_number_of_replicas() {
    for (rows_of_batch, steps) in [(4, 3), (5, 3)] {
        for replicas in [1, 2, 3] {
            let variables = trained(replicas, rows_of_batch, |cx, model, sgd, batch| {
                let _ = cx.train(model, &batch.x);
                let penalties = cx.penalties(model);
                cx.gradients(&penalties, sgd)
            });
            let mut state = mirrored(1).state(4).unwrap();
            let model = state.add_model("net", network()).unwrap();
            let first = state.variables(&model).unwrap()[0].1.to_f64();
            let kept = (1.0 - 0.1 * 2.0 * 0.5f64).powi(steps);
            let expected: Vec<f64> = first.iter().map(|value| value * kept).collect();
            let what = format!("the kernel, {rows_of_batch} rows on {replicas}");
            assert_near(&what, &expected, &variables[0].1.to_f64(), 1e-5);
        }
    }
}

/// Seven values, which no batch has rows for, the same on all replicas: their mean is divided among the replicas already.
#[test]
fn a_mean_of_what_all_replicas_have_is_a_share() {
    let mean: GradientsOf = |cx, model, sgd, batch| {
        let _ = cx.train(model, &batch.x);
        let kernel = cx.variables(model).remove(0);
        let some = kernel.reshape(&[12]).slice_dim(0, 0, 7);
        let loss = cx.mean(&some.square(), None);
        cx.gradients(&loss, sgd)
    };
    assert_trains_as(mean, mean);
    let mut state = mirrored(1).state(4).unwrap();
    let model = state.add_model("net", network()).unwrap();
    let mut expected = state.variables(&model).unwrap()[0].1.to_f64();
    for value in &mut expected[..7] {
        *value *= (1.0 - 0.1 * 2.0 / 7.0f64).powi(3);
    }
    let found = trained(2, 4, mean)[0].1.to_f64();
    assert_near("the kernel", &expected, &found, 1e-5);
}

#[test]
fn shares_of_a_whole_loss_train_as_one_replica_does() {
    assert_trains_as(
        |cx, model, sgd, batch| {
            let squares = cx.train(model, &batch.x)[0].square().sum(&[1]);
            let loss = cx.mean(&squares, None);
            cx.gradients(&loss, sgd)
        },
        |cx, model, sgd, batch| {
            let whole = whole(cx, model, batch);
            cx.gradients(&cx.share(&whole), sgd)
        },
    );
}

#[test]
fn sums_and_multiples_of_shares_are_shares() {
    assert_trains_as(
        |cx, model, sgd, batch| {
            let squares = cx.train(model, &batch.x)[0].square().sum(&[1]);
            let loss = cx.mean(&squares, None) * 1.5 + cx.penalties(model);
            cx.gradients(&loss, sgd)
        },
        |cx, model, sgd, batch| {
            let whole = whole(cx, model, batch);
            let loss = cx.share(&whole) * 3.0 / 2.0 + cx.penalties(model);
            cx.gradients(&loss, sgd)
        },
    );
}
