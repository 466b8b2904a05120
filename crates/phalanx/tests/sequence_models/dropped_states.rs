//! Recurrent layers whose gates do not see all of the state, or of the input: each row must be the recurrence by hand with one choice of what each
//! gate keeps, the same at all steps.

use std::collections::BTreeSet;

use phalanx::prelude::*;
use phalanx_testkit::Random;

use crate::outputs;

const ROWS: usize = 64;
const STEPS: usize = 5;
/// With a rate of a half, what is kept is doubled.
const RATE: f64 = 0.5;
const KEPT: f64 = 2.0;

/// A recurrence of one unit: the next output and cell of an input, what each gate keeps, and the output and cell before.
type Step = fn(&Weights, f64, &dyn Fn(usize) -> f64, [f64; 2]) -> [f64; 2];

struct Weights {
    kernel: Vec<f64>,
    recurrent: Vec<f64>,
    bias: Vec<f64>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn simple(w: &Weights, x: f64, kept: &dyn Fn(usize) -> f64, [h, cell]: [f64; 2]) -> [f64; 2] {
    let sum = x * w.kernel[0] + kept(0) * h * w.recurrent[0] + w.bias[0];
    [sum.tanh(), cell]
}

fn lstm(w: &Weights, x: f64, kept: &dyn Fn(usize) -> f64, [h, cell]: [f64; 2]) -> [f64; 2] {
    let z = |g: usize| x * w.kernel[g] + kept(g) * h * w.recurrent[g] + w.bias[g];
    cell_of(z, cell)
}

fn lstm_of_inputs(
    w: &Weights,
    x: f64,
    kept: &dyn Fn(usize) -> f64,
    [h, cell]: [f64; 2],
) -> [f64; 2] {
    let z = |g: usize| kept(g) * x * w.kernel[g] + h * w.recurrent[g] + w.bias[g];
    cell_of(z, cell)
}

fn cell_of(z: impl Fn(usize) -> f64, cell: f64) -> [f64; 2] {
    let cell = sigmoid(z(1)) * cell + sigmoid(z(0)) * z(2).tanh();
    [sigmoid(z(3)) * cell.tanh(), cell]
}

fn gru(w: &Weights, x: f64, kept: &dyn Fn(usize) -> f64, [before, cell]: [f64; 2]) -> [f64; 2] {
    let of_x = |g: usize| x * w.kernel[g] + w.bias[g];
    let inner = |g: usize| kept(g) * before * w.recurrent[g] + w.bias[3 + g];
    let (update, reset) = (sigmoid(of_x(0) + inner(0)), sigmoid(of_x(1) + inner(1)));
    let candidate = (of_x(2) + reset * inner(2)).tanh();
    [update * before + (1.0 - update) * candidate, cell]
}

fn gru_reset_before(
    w: &Weights,
    x: f64,
    kept: &dyn Fn(usize) -> f64,
    [before, cell]: [f64; 2],
) -> [f64; 2] {
    let h = |g: usize| kept(g) * before;
    let z = |g: usize, h: f64| x * w.kernel[g] + h * w.recurrent[g] + w.bias[g];
    let (update, reset) = (sigmoid(z(0, h(0))), sigmoid(z(1, h(1))));
    let candidate = z(2, reset * h(2)).tanh();
    [update * before + (1.0 - update) * candidate, cell]
}

/// The outputs where gate `g` keeps the state, or the input, if bit `g` is set.
fn by_hand(step: Step, w: &Weights, x: &[f64], keeps: usize) -> Vec<f64> {
    let mut state = [0.0; 2];
    let each = x.iter().map(|&x| {
        let kept = |g: usize| if keeps >> g & 1 == 1 { KEPT } else { 0.0 };
        state = step(w, x, &kept, state);
        state[0]
    });
    each.collect()
}

/// The dims of an example: steps of a number, or of images of one pixel.
fn dims_for(layer: &impl Layer) -> Vec<usize> {
    match layer.kind() {
        "conv_lstm2d" => vec![STEPS, 1, 1, 1],
        _ => vec![STEPS, 1],
    }
}

fn check(layer: impl Layer + 'static, gates: usize, step: Step) {
    let input = dims_for(&layer);
    let is_of_inputs = layer.config()["dropout"] != 0.0;
    let model = Sequential::new(&input[..]).add(layer).build().unwrap();
    let values = model.init(3).unwrap();
    let values: Vec<Vec<f64>> = values.iter().map(HostTensor::to_f64).collect();
    let [kernel, recurrent, bias] = &values[..] else {
        panic!("{values:?}");
    };
    let (kernel, recurrent, bias) = (kernel.clone(), recurrent.clone(), bias.clone());
    let weights = Weights {
        kernel,
        recurrent,
        bias,
    };
    let mut numbers = Random::new(5);
    let x: Vec<f32> = (0..ROWS * STEPS)
        .map(|_| numbers.below(2000) as f32 / 1000.0 - 1.0)
        .collect();
    let input = [HostTensor::new([&[ROWS], &input[..]].concat(), &x)];
    let found = outputs(&model, &input, Some([1, 2]), Policy::Float32)[0].to_f64();
    let mut chosen = BTreeSet::new();
    for (row, found) in found.chunks(STEPS).enumerate() {
        let x: Vec<f64> = x[row * STEPS..][..STEPS]
            .iter()
            .map(|&x| x.into())
            .collect();
        let fits = |keeps: &usize| {
            let expected = by_hand(step, &weights, &x, *keeps);
            expected
                .iter()
                .zip(found)
                .all(|(a, b)| (a - b).abs() < 1e-5)
        };
        let keeps = (0..1 << gates).find(fits);
        chosen.insert(keeps.unwrap_or_else(|| panic!("row {row}: {found:?}")));
    }
    assert!(
        2 * chosen.len() > 1 << gates,
        "gates drop together: {chosen:?}"
    );
    // Outside of training nothing is dropped.
    let whole = outputs(&model, &input, None, Policy::Float32)[0].to_f64();
    let x: Vec<f64> = x[..STEPS].iter().map(|&x| x.into()).collect();
    let mut halved = weights;
    let seen = match is_of_inputs {
        true => &mut halved.kernel,
        false => &mut halved.recurrent,
    };
    seen.iter_mut().for_each(|x| *x /= KEPT);
    let expected = by_hand(step, &halved, &x, usize::MAX);
    assert!(
        expected
            .iter()
            .zip(&whole)
            .all(|(a, b)| (a - b).abs() < 1e-5)
    );
}

#[test]
fn gates_see_a_share_of_the_state_which_is_the_same_at_each_step() {
    let of = |gru: Gru| gru.recurrent_dropout(RATE).return_sequences(true);
    let plain = SimpleRnn::new(1).recurrent_dropout(RATE);
    check(plain.return_sequences(true), 1, simple);
    let memory = Lstm::new(1).recurrent_dropout(RATE);
    check(memory.return_sequences(true), 4, lstm);
    check(of(Gru::new(1)), 3, gru);
    check(of(Gru::new(1).reset_after(false)), 3, gru_reset_before);
    let images = ConvLstm2d::new(1, 1).recurrent_dropout(RATE);
    check(images.return_sequences(true), 4, lstm);
}

#[test]
fn gates_of_convolutions_see_a_share_of_the_input_which_is_the_same_at_each_step() {
    let images = ConvLstm2d::new(1, 1).dropout(RATE);
    check(images.return_sequences(true), 4, lstm_of_inputs);
}
