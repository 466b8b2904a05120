//! Moving averages of the variables at the end of a loop: nothing but what was averaged takes the place of a variable.

use phalanx::prelude::*;

use crate::{assert_near, cross_entropy, mirrored, rows};

const EMA: f64 = 0.5;

/// One of two outputs has a loss: the other's layer keeps the values that it is given, before and after steps, as in `fit`.
#[test]
fn averages_of_what_has_no_gradient_are_its_values() {
    let mut net = Network::new();
    let x = net.input([4]);
    let outputs = ["trained", "idle"].map(|name| net.add(Dense::new(3).named(name), &[x]));
    let model = net.build(&[x], &outputs).unwrap();
    for replicas in [1, 2] {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(2).unwrap();
        let model = state.add_model("net", model.clone()).unwrap();
        let sgd = Optimizer::from(Sgd::new(0.5)).ema(EMA);
        let sgd = state.add_optimizer(sgd, &[&model]).unwrap();
        let mut step = strategy.function(|cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let loss = cx.loss(&cross_entropy(), &batch.y[0], &logits, None);
            let gradients = cx.gradients(&loss, &sgd);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&sgd, &gradients);
            []
        });
        let data = strategy.distribute_dataset(&rows(11).batch(4));
        let mut average: Option<Vec<f64>> = None;
        for number in [7.0f32, 8.0] {
            let given = [("idle/kernel", HostTensor::new([4, 3], &[number; 12]))];
            state.set_variables(&model, &given).unwrap();
            if average.is_none() {
                let before = state.variables(&model).unwrap();
                state.take_averages(&sgd).unwrap();
                assert_eq!(state.variables(&model).unwrap(), before);
            }
            for batch in data.epoch(0) {
                let [] = step.call(&mut state, &batch.unwrap()).unwrap();
                let now = state.variables(&model).unwrap()[0].1.to_f64();
                let next = average.map_or_else(
                    || now.clone(),
                    |before| {
                        let both = before.iter().zip(&now);
                        both.map(|(a, b)| EMA * a + (1.0 - EMA) * b).collect()
                    },
                );
                average = Some(next);
            }
            state.take_averages(&sgd).unwrap();
            let after = state.variables(&model).unwrap();
            let of = |name: &str| {
                let found = after.iter().find(|(variable, _)| variable == name);
                found.unwrap().1.to_f64()
            };
            assert_eq!(of("idle/kernel"), [f64::from(number); 12]);
            let average = average.as_ref().unwrap();
            assert_near("trained", average, &of("trained/kernel"), 1e-5);
        }
    }
}
