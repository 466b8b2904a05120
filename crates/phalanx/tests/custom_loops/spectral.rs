//! Kernels that a layer normalizes before each update, in loops of one's own.

use phalanx::data::Batch;
use phalanx::prelude::*;

use crate::{assert_near, cross_entropy, engine, mirrored, rows};

const STEPS: usize = 3;

fn normalized() -> SpectralNorm {
    let penalty = Regularizer::L2 { l2: 0.05 };
    SpectralNorm::new(Dense::new(3).kernel_regularizer(penalty)).power_iterations(2)
}

fn optimizer() -> Optimizer {
    Sgd::new(0.5).momentum(0.9).into()
}

fn batch(step: usize) -> Batch {
    rows(12).batch(4).get(0, step).unwrap()
}

/// The values after some steps in which the model is called twice on the same examples.
fn by_hand(strategy: &impl Strategy) -> Vec<(String, HostTensor)> {
    let mut state = strategy.state(0).unwrap();
    let model = Sequential::new([4]).add(normalized());
    let model = state.add_model("model", model).unwrap();
    let sgd = state.add_optimizer(optimizer(), &[&model]).unwrap();
    let loss = cross_entropy();
    let mut step = strategy.function(|cx, batch: Inputs| {
        let first = cx.train(&model, &batch.x).remove(0);
        let second = cx.train(&model, &batch.x).remove(0);
        let losses = loss.per_example(&batch.y[0], &(first * 2.0 + second));
        let loss = cx.mean(&losses, None) + cx.penalties(&model);
        let gradients = cx.gradients(&loss, &sgd);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&sgd, &gradients);
        [loss]
    });
    for number in 0..STEPS {
        let batch = strategy.distribute_batch(&batch(number)).unwrap();
        step.call(&mut state, &batch).unwrap();
    }
    state.variables(&model).unwrap()
}

/// A layer that a model calls twice has its kernel normalized twice, and gradients of both calls; so has a model that a function calls twice.
#[test]
fn a_model_called_twice_is_a_layer_called_twice() {
    let mut net = Network::new();
    let x = net.input([4]);
    let layer = net.layer(normalized());
    let first = net.call(layer, &[x]);
    let second = net.call(layer, &[x]);
    let sum = net.add(ScaledAdd::new(0.5), &[first, second]);
    let doubled = net.add(Rescaling::new(2.0), &[sum]);
    let compile = Compile {
        optimizer: optimizer(),
        loss: cross_entropy().into(),
        seed: 0,
        ..Compile::default()
    };
    let model = net.build(&[x], &[doubled]).unwrap();
    let mut trainer = OneDeviceStrategy::on(engine())
        .compile(model, compile)
        .unwrap();
    let hand = {
        let strategy = OneDeviceStrategy::on(engine());
        let mut state = strategy.state(0).unwrap();
        let model = Sequential::new([4]).add(normalized());
        let model = state.add_model("model", model).unwrap();
        state.variables(&model).unwrap()
    };
    let names = trainer
        .variables()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name);
    let first: Vec<(String, HostTensor)> = names
        .zip(hand.into_iter().map(|(_, value)| value))
        .collect();
    trainer.set_variables(&first).unwrap();
    for number in 0..STEPS {
        trainer.train_on_batch(&batch(number)).unwrap();
    }
    for replicas in [1, 2] {
        let hand = by_hand(&mirrored(replicas));
        for ((name, a), (_, b)) in trainer.variables().unwrap().iter().zip(&hand) {
            assert_near(name, &a.to_f64(), &b.to_f64(), 2e-5);
        }
    }
}
