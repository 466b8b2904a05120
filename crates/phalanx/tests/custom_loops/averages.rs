//! Moving averages of the variables at the end of a loop: nothing but what was averaged takes the place of a variable.

use phalanx::prelude::*;
use phalanx::strategy::State;

use crate::ports::learn;
use crate::{assert_near, cross_entropy, mirrored, rows};

const EMA: f64 = 0.5;

/// The next average of values: at first these themselves.
fn averaged(average: Option<Vec<f64>>, now: &[f64]) -> Vec<f64> {
    let Some(average) = average else {
        return now.to_vec();
    };
    let both = average.iter().zip(now);
    both.map(|(a, b)| EMA * a + (1.0 - EMA) * b).collect()
}

/// Two outputs whose losses take turns, in functions of their own: each step averages all variables, from what they are at the first, and
/// overwrites all by their averages where that is due.
#[test]
fn averages_are_of_all_variables_whichever_has_a_gradient() {
    let mut net = Network::new();
    let x = net.input([4]);
    let outputs = ["one", "other"].map(|name| net.add(Dense::new(3).named(name), &[x]));
    let model = net.build(&[x], &outputs).unwrap();
    for (replicas, frequency) in [(1, 1000), (2, 1000), (1, 3)] {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(2).unwrap();
        let model = state.add_model("net", model.clone()).unwrap();
        let sgd = Optimizer::from(Sgd::new(0.5)).ema(EMA);
        let sgd = sgd.ema_overwrite_frequency(frequency);
        let sgd = state.add_optimizer(sgd, &[&model]).unwrap();
        let step = |output: usize| {
            let (model, sgd) = (&model, &sgd);
            strategy.function(move |cx, batch: Inputs| {
                let logits = cx.train(model, &batch.x).swap_remove(output);
                let loss = cx.loss(&cross_entropy(), &batch.y[0], &logits, None);
                learn(cx, &loss, sgd);
                []
            })
        };
        let mut steps = [step(0), step(1)];
        // Set after the optimizer was added, whose averages are of the values before.
        let given = [("other/kernel", HostTensor::new([4, 3], &[7.0f32; 12]))];
        state.set_variables(&model, &given).unwrap();
        let values = |state: &State| -> Vec<f64> {
            let all = state.variables(&model).unwrap();
            all.iter().flat_map(|(_, value)| value.to_f64()).collect()
        };
        let before = values(&state);
        state.take_averages(&sgd).unwrap();
        assert_eq!(values(&state), before);
        let mut average: Option<Vec<f64>> = None;
        let (mut before, mut updates) = (before, 0);
        for batch in strategy.distribute_dataset(&rows(11).batch(4)).epoch(0) {
            let batch = batch.unwrap();
            for (output, step) in steps.iter_mut().enumerate() {
                let [] = step.call(&mut state, &batch).unwrap();
                let now = values(&state);
                updates += 1;
                average = Some(match updates % frequency {
                    0 => {
                        // The kernel and the bias of the output without a gradient in this step.
                        let others = [15..30, 0..15][output].clone();
                        let expected = averaged(average, &before);
                        let (expected, now) = (&expected[others.clone()], &now[others]);
                        assert_near("overwritten", expected, now, 1e-6);
                        values(&state)
                    }
                    _ => averaged(average, &now),
                });
                before = now;
            }
        }
        state.take_averages(&sgd).unwrap();
        assert_near("averages", &average.unwrap(), &values(&state), 1e-5);
    }
}
