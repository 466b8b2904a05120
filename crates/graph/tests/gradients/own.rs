//! Gradients that a program gives.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{Graph, HostTensor, Shape, Tensor, gradients};

use crate::{check, compile, run, scrambled};

/// `log(1 + e^x)` with the derivative that does not overflow.
fn softplus(x: &Tensor) -> Tensor {
    let y = x.exp().log1p();
    y.with_gradient(&[x], |cotangent, x| vec![cotangent * x[0].logistic()])
}

/// What is claimed is the derivative: once, of a derivative, of two tensors, within a loop and of values that are computed again.
#[test]
fn what_is_claimed_rightly_is_found_by_differences() {
    check("softplus", &[scrambled(&[2, 3])], &|x| {
        softplus(&x[0]).sin()
    });
    check("twice", &[scrambled(&[4])], &|x| {
        softplus(&softplus(&x[0])) * softplus(&x[0])
    });
    check("second derivative", &[scrambled(&[4])], &|x| {
        let loss = softplus(&x[0]).square().sum_all();
        gradients(&loss, &[&x[0]]).remove(0).expect("connected")
    });
    check("product", &[scrambled(&[3]), scrambled(&[3])], &|x| {
        let product = &x[0] * &x[1];
        product.with_gradient(&[&x[0], &x[1]], |g, x| vec![g * &x[1], g * &x[0]])
    });
    check("scan", &[scrambled(&[4, 3])], &|x| {
        let first = x[0].slice_dim(0, 0, 1).reshape(&[3]);
        let (last, _) = x[0]
            .graph()
            .scan(4, &[&first], &[&x[0]], &[], |carry, row, _| {
                (vec![softplus(&carry[0]) * &row[0]], vec![])
            });
        last[0].clone()
    });
    check("checkpointed", &[scrambled(&[4])], &|x| {
        let graph = x[0].graph();
        graph.checkpointed(&[&x[0]], || softplus(&x[0].sin()).square())
    });
}

/// The gradient of `sum(y weights)` for `x`, of numbers.
fn gradient(x: &[f64], weights: &[f64], y: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let graph = Graph::new();
    let inputs = [x, weights].map(|values| HostTensor::new([values.len()], values));
    let [x, weights] = [0, 1].map(|at| graph.parameter("in", inputs[at].shape().clone()));
    let loss = (y(&x) * weights).sum_all();
    let found = gradients(&loss, &[&x]).remove(0).expect("connected");
    let program = graph.finish(&[("gradient", &found)]).expect("builds");
    run(&compile(&program), &inputs)[0].to_f64()
}

#[test]
fn a_gradient_may_be_another_than_the_derivative() {
    let (x, weights) = ([0.4, -1.7, 2.2], [3.0, -0.5, -8.0]);
    let through = |x: &Tensor| x.round().with_gradient(&[x], |g, _| vec![g.clone()]);
    assert_eq!(gradient(&x, &weights, through), weights);
    let clipped = |x: &Tensor| x.with_gradient(&[x], |g, _| vec![g.clamp(-1.0, 1.0)]);
    assert_eq!(gradient(&x, &weights, clipped), [1.0, -0.5, -1.0]);
    // What has no derivative needs none inside, and another way to the tensor stays.
    let largest = |x: &Tensor| {
        let largest = x.all_reduce(ReduceOp::Max);
        largest.with_gradient(&[x], |g, _| vec![g * 2.0]) + x * 10.0
    };
    assert_eq!(gradient(&x, &weights, largest), weights.map(|w| 12.0 * w));
}

/// Loops and values that are computed again take what is claimed, be it false.
#[test]
fn another_gradient_is_taken_within_programs() {
    let (x, weights) = ([0.5, -1.25, 2.0], [3.0, -0.5, -8.0]);
    let doubled = |x: &Tensor| x.with_gradient(&[x], |g, _| vec![g * 2.0]);
    let twice = |x: &Tensor| {
        let graph = x.graph();
        let (last, _) = graph.scan(2, &[x], &[], &[], |carry, _, _| {
            (vec![doubled(&carry[0]) * 3.0], vec![])
        });
        last[0].clone()
    };
    assert_eq!(gradient(&x, &weights, twice), weights.map(|w| 36.0 * w));
    let again = |x: &Tensor| x.graph().checkpointed(&[x], || doubled(x).square());
    let expected: Vec<f64> = x.iter().zip(weights).map(|(x, w)| 4.0 * x * w).collect();
    assert_eq!(gradient(&x, &weights, again), expected);
}

#[test]
fn what_does_not_fit_is_the_graphs_error() {
    let said = |pullback: fn(&Tensor, &[Tensor]) -> Vec<Tensor>| {
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([3]));
        let y = x.with_gradient(&[&x], pullback).sum_all();
        let found = gradients(&y, &[&x]);
        assert!(found[0].is_none());
        graph.error().expect("an error").to_string()
    };
    for (pullback, got) in [
        (
            (|_, _| Vec::new()) as fn(&Tensor, &[Tensor]) -> Vec<Tensor>,
            "got []",
        ),
        (|g, _| vec![g.sum_all()], "got [[]]"),
    ] {
        let said = said(pullback);
        assert!(
            said.contains("tensors of the dims [[3]]") && said.contains(got),
            "{said}"
        );
    }
    let (graph, other) = (Graph::new(), Graph::new());
    let [x, y] = [&graph, &other].map(|graph| graph.parameter("x", Shape::f32([3])));
    let _ = x.with_gradient(&[&y], |g, _| vec![g.clone()]);
    assert!(graph.error().is_some());
}
