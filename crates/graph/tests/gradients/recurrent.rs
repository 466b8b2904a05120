//! Derivatives of long short-term memories and of gated recurrent units.

use phalanx_graph::{HostTensor, Tensor, gradients};

use crate::{check, scrambled};

/// Inputs of two sequences of three steps, the kernel and the bias of two units, first states and cells.
fn inputs() -> [HostTensor; 5] {
    let dims: [&[usize]; 5] = [&[2, 3, 8], &[2, 8], &[8], &[2, 2], &[2, 2]];
    dims.map(scrambled)
}

fn states(x: &[Tensor]) -> Tensor {
    x[0].lstm(&x[1], &x[2], [&x[3], &x[4]]).states
}

#[test]
fn states_and_cells() {
    check("states", &inputs(), &states);
    check("states and cells", &inputs(), &|x| {
        let made = x[0].lstm(&x[1], &x[2], [&x[3], &x[4]]);
        made.states.sin() + made.cells.square()
    });
    check("the last cells alone", &inputs(), &|x| {
        let made = x[0].lstm(&x[1], &x[2], [&x[3], &x[4]]);
        made.cells.slice_dim(1, 2, 3)
    });
}

#[test]
fn one_step_and_none() {
    let mut one = inputs();
    one[0] = scrambled(&[2, 1, 8]);
    check("one step", &one, &states);
    one[0] = scrambled(&[2, 0, 8]);
    check("no steps", &one, &|x| states(x).sum_all() + x[1].sum_all());
}

#[test]
fn derivatives_of_the_derivative() {
    check("second", &inputs(), &|x| {
        let made = x[0].lstm(&x[1], &x[2], [&x[3], &x[4]]);
        let loss = made.states.sin().sum_all() + made.cells.square().sum_all();
        let wrt: Vec<&Tensor> = x.iter().collect();
        let found = gradients(&loss, &wrt).into_iter().flatten();
        let squares = found.map(|gradient| gradient.square().sum_all());
        squares.reduce(|a, b| a + b).expect("five") * 0.1
    });
}

/// Inputs of two sequences of three steps, the kernel and the bias of two gated units, the first state.
fn gated() -> [HostTensor; 4] {
    let dims: [&[usize]; 4] = [&[2, 3, 6], &[2, 6], &[6], &[2, 2]];
    dims.map(scrambled)
}

fn gated_states(x: &[Tensor]) -> Tensor {
    x[0].gru(&x[1], &x[2], &x[3])
}

#[test]
fn states_of_gated_units() {
    check("states", &gated(), &gated_states);
    check("sines", &gated(), &|x| gated_states(x).sin());
    check("the last alone", &gated(), &|x| {
        gated_states(x).slice_dim(1, 2, 3)
    });
    let mut none = gated();
    none[0] = scrambled(&[2, 0, 6]);
    check("no steps", &none, &|x| {
        gated_states(x).sum_all() + x[1].sum_all()
    });
}

#[test]
fn derivatives_of_the_derivative_of_gated_units() {
    check("second", &gated(), &|x| {
        let loss = gated_states(x).sin().sum_all();
        let wrt: Vec<&Tensor> = x.iter().collect();
        let found = gradients(&loss, &wrt).into_iter().flatten();
        let squares = found.map(|gradient| gradient.square().sum_all());
        squares.reduce(|a, b| a + b).expect("four") * 0.1
    });
}
