//! Derivatives of derivatives.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{Graph, HostTensor, Pool2d, Tensor, gradients};

use crate::images::conv_dims;
use crate::loops::{KEPT, kept, twice};
use crate::{Build, check, compile, loss, parameters, run, scrambled};

/// The squares of all gradients, summed.
fn slopes(x: &[Tensor], build: Build) -> Tensor {
    let wrt: Vec<&Tensor> = x.iter().collect();
    let found = gradients(&loss(x, build), &wrt).into_iter().flatten();
    let squares = found.map(|gradient| gradient.square().sum_all());
    squares.reduce(|a, b| a + b).expect("one at least")
}

#[test]
fn second_derivatives() {
    let cases: [(&str, Build); 4] = [
        ("tanh", &|x| x[0].tanh()),
        ("softmax", &|x| x[0].softmax(1)),
        ("window", &|x| {
            let window = [
                WindowDim {
                    size: 2,
                    stride: 2,
                    ..WindowDim::identity()
                },
                WindowDim::identity(),
            ];
            x[0].square().reduce_window(ReduceOp::Max, &window)
        }),
        ("scan", &|x| {
            let first = x[0].slice_dim(0, 0, 1).reshape(&[3]);
            let (last, _) = x[0]
                .graph()
                .scan(2, &[&first], &[&x[0]], &[], |carry, row, _| {
                    (vec![(&carry[0] * &row[0]).sin()], vec![])
                });
            last[0].clone()
        }),
    ];
    for (name, build) in cases {
        check(name, &[scrambled(&[2, 3])], &|x| {
            let first = gradients(&loss(x, build), &[&x[0]])
                .remove(0)
                .expect("connected");
            first.sin()
        });
    }
}

/// The slope of slopes at these values.
fn slope_of_slope(inputs: &[HostTensor], build: Build) -> Vec<Vec<f64>> {
    let graph = Graph::new();
    let x = parameters(&graph, inputs);
    let wrt: Vec<&Tensor> = x.iter().collect();
    let slope = |y: &Tensor| -> Vec<Tensor> {
        let found = gradients(y, &wrt).into_iter().zip(&wrt);
        found
            .map(|(g, x)| g.unwrap_or_else(|| x.zeros_like()))
            .collect()
    };
    let first = slope(&build(&x).sum_all()).into_iter();
    let sums = first.map(|slope| slope.sum_all());
    let second = slope(&sums.reduce(|a, b| a + b).expect("one at least"));
    let outputs: Vec<_> = second.iter().map(|g| ("gradient", g)).collect();
    let program = graph.finish(&outputs).expect("builds");
    run(&compile(&program), inputs)
        .iter()
        .map(HostTensor::to_f64)
        .collect()
}

#[test]
fn second_derivatives_where_values_are_zero() {
    let product: Build = &|x| x[0].reduce(ReduceOp::Prod, &[0]);
    let second =
        |values: &[f64]| slope_of_slope(&[HostTensor::new([values.len()], values)], product);
    // Of x y z: the sum over the other two elements but one.
    assert_eq!(second(&[2.0, 3.0, 5.0]), [[8.0, 7.0, 5.0]]);
    assert_eq!(second(&[2.0, 0.0, 5.0]), [[5.0, 7.0, 2.0]]);
    assert_eq!(second(&[0.0, 0.0, 5.0]), [[5.0, 5.0, 0.0]]);
    assert_eq!(second(&[7.0]), [[0.0]]);

    let pair = |a: f64, b: f64| [HostTensor::new([1], &[a]), HostTensor::new([1], &[b])];
    // The slopes of a^b are 0 and log(a) where b is 0; by `a` theirs is 0 + 1 / a, by `b` 1 / a + log(a)^2.
    let at = slope_of_slope(&pair(2.0, 0.0), &|x| x[0].pow(&x[1]));
    assert_eq!(at[0], [0.5]);
    assert!((at[1][0] - 0.5 - 2f64.ln().powi(2)).abs() < 1e-12, "{at:?}");
    let at = slope_of_slope(&pair(0.0, 0.0), &|x| x[0].pow(&x[1]));
    assert_eq!(at[0], [0.0]);
}

#[test]
fn second_derivatives_of_loops_with_constants() {
    let inputs = [
        scrambled(&[2, 3]),
        scrambled(&[4, 2, 3]),
        scrambled(&[3, 3]),
    ];
    check("scan with a constant", &inputs, &|x| {
        slopes(x, &|x| twice(x, false))
    });
    check("scan with kept products", &KEPT.map(scrambled), &|x| {
        slopes(x, &kept)
    });
}

#[test]
fn second_derivatives_of_kernels() {
    let inputs = [scrambled(&[3, 2]), scrambled(&[2]), scrambled(&[2])];
    check("batch_norm", &inputs, &|x| {
        let loss = x[0].batch_norm(&x[1], &x[2], 0.1)[0].sin().sum_all();
        let found = gradients(&loss, &[&x[0], &x[1]]);
        let squares = found.into_iter().flatten().map(|g| g.square().sum_all());
        squares.reduce(|a, b| a + b).expect("two")
    });
    let pool = Pool2d {
        size: [2, 2],
        strides: [2, 1],
        padding: [(1, 0), (0, 1)],
    };
    check("max_pool2d", &[scrambled(&[1, 4, 3, 2])], &|x| {
        let loss = x[0].square().max_pool2d(pool).square().sum_all();
        gradients(&loss, &[&x[0]]).remove(0).expect("connected")
    });
    let dims = conv_dims([2, 1], [(1, 0), (0, 1)]);
    check(
        "conv",
        &[scrambled(&[1, 4, 3, 2]), scrambled(&[2, 2, 2, 2])],
        &|x| {
            let loss = x[0].conv(&x[1], dims.clone()).square().sum_all();
            let found = gradients(&loss, &[&x[0], &x[1]]);
            found
                .into_iter()
                .flatten()
                .map(|g| g.square().sum_all())
                .reduce(|a, b| a + b)
                .expect("two")
        },
    );
}
