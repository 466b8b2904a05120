//! Derivatives of derivatives.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{Pool2d, Tensor, gradients};

use crate::images::conv_dims;
use crate::loops::{KEPT, kept, twice};
use crate::{Build, check, loss, scrambled};

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
