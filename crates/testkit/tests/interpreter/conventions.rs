//! Derivatives where there is none: the conventions of `phalanx_graph::gradients`.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{HostTensor, Shape, Tensor, gradients};
use phalanx_testkit::Interpreter;

use crate::{f64s, program, run};

/// The derivative of each element of what `build` makes of the inputs, along the tangents.
fn along(
    inputs: &[&[f64]],
    tangents: &[&[f64]],
    build: impl FnOnce(&[Tensor]) -> Tensor,
) -> Vec<f64> {
    let shapes: Vec<Shape> = inputs.iter().map(|x| f64s([x.len()])).collect();
    let program = program(&shapes, |x| vec![build(x)]);
    let inputs = inputs
        .iter()
        .map(|x| HostTensor::new([x.len()], x))
        .collect();
    let tangents = tangents.iter().map(|t| Some(t.to_vec())).collect();
    let found = Interpreter::new(&program).run_with_tangents(&[inputs], &[tangents], &[0]);
    found.unwrap().remove(0).remove(0).tangent
}

#[test]
fn ties_go_to_the_second_operand() {
    let (x, t): ([&[f64]; 2], [&[f64]; 2]) =
        ([&[1.0, 2.0], &[1.0, 1.0]], [&[10.0, 10.0], &[3.0, 3.0]]);
    assert_eq!(along(&x, &t, |x| x[0].maximum(&x[1])), [3.0, 10.0]);
    assert_eq!(along(&x, &t, |x| x[0].minimum(&x[1])), [3.0, 3.0]);
    // So the rectifier is flat at 0.
    assert_eq!(
        along(&[&[0.0]], &[&[1.0]], |x| x[0].maximum(&x[0].like(0.0))),
        [0.0]
    );
    assert_eq!(along(&[&[0.0]], &[&[1.0]], |x| x[0].abs()), [0.0]);
}

#[test]
fn equal_elements_share_and_windows_take_the_first() {
    let (x, t): (&[f64], &[f64]) = (&[2.0, 1.0, 2.0], &[1.0, 10.0, 5.0]);
    assert_eq!(along(&[x], &[t], |x| x[0].max(&[0])), [3.0]);
    assert_eq!(along(&[x], &[t], |x| x[0].min(&[0])), [10.0]);
    let window = WindowDim {
        size: 3,
        ..WindowDim::identity()
    };
    let first = along(&[x], &[t], |x| x[0].reduce_window(ReduceOp::Max, &[window]));
    assert_eq!(first, [1.0]);
}

#[test]
fn powers_at_and_below_zero() {
    let (bases, exponents): (&[f64], &[f64]) =
        (&[0.0, 0.0, -2.0, -2.0, 0.0], &[0.0, 2.0, 3.0, 0.0, 1.0]);
    let ones = &[1.0; 5];
    let by_base = along(&[bases, exponents], &[ones, &[0.0; 5]], |x| x[0].pow(&x[1]));
    assert_eq!(by_base, [0.0, 0.0, 12.0, 0.0, 1.0]);
    let by_exponent = along(&[bases, exponents], &[&[0.0; 5], ones], |x| x[0].pow(&x[1]));
    assert_eq!(by_exponent, [0.0; 5]);
}

#[test]
fn what_stops_gradients_has_no_tangent() {
    assert!(along(&[&[1.5]], &[&[1.0]], |x| x[0].stop_gradient() * 2.0).is_empty());
    assert!(along(&[&[1.5]], &[&[1.0]], |x| x[0].floor()).is_empty());
    let compared = along(&[&[1.5]], &[&[1.0]], |x| x[0].greater(&x[0].like(1.0)));
    assert!(compared.is_empty());
}

/// The gradient of the graph, contracted with a direction, is the tangent.
#[test]
fn tangents_are_the_gradients_of_the_graph() {
    let shapes = [f64s([3, 4]), f64s([4, 2])];
    let loss = |x: &[Tensor]| {
        let y = x[0].matmul(&x[1]).tanh();
        (y.softmax(1) * y.max(&[0]).broadcast_in(&[3, 2], &[1]))
            .square()
            .sum_all()
    };
    let backward = program(&shapes, |x| {
        let found = gradients(&loss(x), &[&x[0], &x[1]]);
        found
            .into_iter()
            .map(|gradient| gradient.unwrap())
            .collect()
    });
    let forward = program(&shapes, |x| vec![loss(x)]);
    let inputs = [crate::sample(&[3, 4], 0), crate::sample(&[4, 2], 1)];
    let directions = [crate::scrambled(12, 5), crate::scrambled(8, 3)];
    let found = run(&backward, &inputs);
    let products = found
        .iter()
        .zip(&directions)
        .flat_map(|(gradient, direction)| {
            gradient
                .to_f64()
                .into_iter()
                .zip(direction)
                .map(|(g, t)| g * t)
                .collect::<Vec<_>>()
        });
    let expected: f64 = products.sum();
    let tangents = directions.map(Some).to_vec();
    let interpreter = Interpreter::new(&forward);
    let found = interpreter.run_with_tangents(&[inputs.to_vec()], &[tangents], &[0]);
    phalanx_testkit::assert_close("loss", &found.unwrap()[0][0].tangent, &[expected], 1e-12);
}
