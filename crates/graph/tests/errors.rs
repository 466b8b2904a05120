//! Every mistake has a message that says what was asked, what was expected, and where.

use phalanx_graph::op::{
    ConvDims, ConvSpec, CustomCall, DotDims, PadDim, ReduceOp, SliceDim, Via, WindowDim,
};
use phalanx_graph::{DType, Graph, Shape, Tensor, gradients};

type Mistake = fn(&Values) -> Tensor;

/// What the mistakes are made on.
struct Values {
    g: Graph,
    /// f32[2,3]
    x: Tensor,
    /// f32[4,5]
    y: Tensor,
    /// i32[3]
    i: Tensor,
    /// bool[2,3]
    b: Tensor,
    /// f32[1,5,5,4]
    image: Tensor,
    /// f32[3,3,4,2]
    kernel: Tensor,
}

fn values() -> Values {
    let g = Graph::with_replicas(2);
    let make = |dtype, dims: &[usize]| g.parameter("p", Shape::new(dtype, dims));
    Values {
        x: make(DType::F32, &[2, 3]),
        y: make(DType::F32, &[4, 5]),
        i: make(DType::I32, &[3]),
        b: make(DType::Bool, &[2, 3]),
        image: make(DType::F32, &[1, 5, 5, 4]),
        kernel: make(DType::F32, &[3, 3, 4, 2]),
        g,
    }
}

fn check(cases: &[(Mistake, &str)]) {
    for (index, (mistake, expected)) in cases.iter().enumerate() {
        let values = values();
        let result = mistake(&values);
        let error = values.g.finish(&[("result", &result)]);
        let text = error
            .expect_err(&format!("case {index}: {expected}"))
            .to_string();
        assert!(
            text.contains(expected),
            "case {index}: expected `{expected}` in `{text}`"
        );
        assert!(text.contains("tests/errors.rs:"), "case {index}: {text}");
    }
}

const ELEMENTWISE: &[(Mistake, &str)] = &[
    (|v| &v.x + &v.y, "f32[2,3] and f32[4,5] do not broadcast"),
    (
        |v| &v.x + &v.i,
        "expected operands of one shape, got f32[2,3] and i32[2,3]",
    ),
    (
        |v| v.x.and(&v.x),
        "and: expected integers or truth values, got f32[2,3]; convert first",
    ),
    (|v| &v.b + &v.b, "add: expected numbers, got bool[2,3]"),
    (|v| v.x.shift_left(&v.x), "expected integers"),
    (
        |v| v.i.exp(),
        "exponential: i32[3] is of the wrong element type; convert first",
    ),
    (|v| v.x.not(), "wrong element type"),
    (|v| v.i.is_finite(), "expected floats"),
    (
        |v| v.x.select(&v.x, &v.x),
        "expected a condition of bool[2,3], got f32[2,3]",
    ),
    (
        |v| v.i.convert(DType::U32) + -1.0,
        "add: u32[3] does not hold -1; convert first",
    ),
    (
        |v| v.i.convert(DType::U8) * (1.0 / 255.0),
        "multiply: u8[3] does not hold 0.00392",
    ),
    (
        |v| 0.5 - &v.i,
        "subtract: i32[3] does not hold 0.5; convert first",
    ),
    (|v| &v.i % f64::NAN, "remainder: i32[3] does not hold NaN"),
    (
        |v| v.x.bitcast(DType::F64),
        "f32[2,3] and f64 differ in element size",
    ),
];

#[test]
fn elementwise() {
    check(ELEMENTWISE);
}

const HALF: usize = 1 << 62;

const LAYOUT: &[(Mistake, &str)] = &[
    (
        |v| v.x.reshape(&[4]),
        "f32[2,3] has 6 elements, f32[4] has 4",
    ),
    (
        |v| v.x.reshape(&[HALF, 4]),
        "more bytes than can be counted",
    ),
    (
        |v| v.x.transpose(&[0, 0]),
        "[0, 0] is no order of the 2 dims of f32[2,3]",
    ),
    (
        |v| v.x.broadcast_to(&[3]),
        "f32[2,3] does not broadcast to [3]",
    ),
    (
        |v| v.x.broadcast_to(&[HALF, 2, 3]),
        "more bytes than can be counted",
    ),
    (|v| v.x.reverse(&[2]), "dim 2 of f32[2,3], which has rank 2"),
    (|v| v.x.reverse(&[1, 1]), "name dim 1 twice"),
    (
        |v| v.x.pad(&[PadDim::default()], 0.0),
        "expected 2 paddings for f32[2,3], got 1",
    ),
    (
        |v| {
            v.x.pad(
                &[
                    PadDim {
                        low: -3,
                        high: 0,
                        interior: 0,
                    },
                    PadDim::default(),
                ],
                0.0,
            )
        },
        "leaves -1 of 2",
    ),
    (
        |v| {
            v.x.slice_dim(1, 0, 1).pad(
                &[
                    PadDim::default(),
                    PadDim {
                        interior: usize::MAX,
                        ..PadDim::default()
                    },
                ],
                0.0,
            )
        },
        "strides, dilations and paddings of at most 1099511627776, got 18446744073709551615",
    ),
    (
        |v| {
            v.x.pad(
                &[PadDim {
                    low: i64::MIN,
                    high: i64::MAX,
                    interior: 0,
                }; 2],
                0.0,
            )
        },
        "strides, dilations and paddings of at most 1099511627776, got 9223372036854775808",
    ),
    (
        |v| {
            v.image
                .conv(&v.kernel, conv(|c| c.strides = vec![1, usize::MAX]))
        },
        "strides, dilations and paddings of at most 1099511627776",
    ),
    (
        |v| {
            v.x.slice(
                &[SliceDim {
                    start: 1,
                    limit: 3,
                    stride: 1,
                }; 2],
            )
        },
        "1..3 by 1 is no range of the 2 elements",
    ),
    (
        |v| v.x.slice_dim(2, 0, 1),
        "dim 2 of f32[2,3], which has rank 2",
    ),
    (
        |v| v.x.dynamic_slice(&[], &[1, 1]),
        "expected 2 start indices for f32[2,3], got 0",
    ),
    (
        |v| v.x.dynamic_slice(&[&v.i, &v.i], &[1, 1]),
        "expected i32 scalars as starts, got i32[3]",
    ),
    (
        |v| Tensor::concat(&[&v.x, &v.y], 0),
        "f32[2,3] and f32[4,5] differ outside dim 0",
    ),
    (
        |v| v.x.gather(&v.x, 0),
        "expected i32 indices, got f32[2,3]; convert first",
    ),
    (
        |v| v.x.scatter_add(&v.i, &v.y, 0),
        "expected updates of f32[3,3], got f32[4,5]",
    ),
    (
        |v| v.g.iota(Shape::f32([2]), 1),
        "dim 1 of f32[2], which has rank 1",
    ),
    (
        |v| v.g.parameter("huge", Shape::f32([0, HALF])),
        "`huge`: f32[0,4611686018427387904] has more bytes",
    ),
];

#[test]
fn layout() {
    check(LAYOUT);
}

fn conv(change: impl FnOnce(&mut ConvDims)) -> ConvDims {
    let mut dims = ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![1; 2],
        padding: vec![(0, 0); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups: 1,
        batch_groups: 1,
    };
    change(&mut dims);
    dims
}

fn dot(contract: [usize; 2], batch: Option<usize>, dtype: DType) -> DotDims {
    let batch: Vec<usize> = batch.into_iter().collect();
    DotDims {
        lhs_batch: batch.clone(),
        rhs_batch: batch,
        lhs_contract: vec![contract[0]],
        rhs_contract: vec![contract[1]],
        dtype,
    }
}

const PRODUCTS_AND_REDUCTIONS: &[(Mistake, &str)] = &[
    (
        |v| v.x.matmul(&v.y),
        "contracted dim 1 of f32[2,3] has size 3, but dim 0 of f32[4,5] has 4",
    ),
    (
        |v| v.x.matmul(&v.i),
        "expected [.., n, k] x [.., k, m], got f32[2,3] and i32[3]",
    ),
    (
        |v| v.x.dot(&v.x, dot([1, 1], Some(1), DType::F32)),
        "name dim 1 twice",
    ),
    (
        |v| v.x.dot(&v.x, dot([1, 1], None, DType::I32)),
        "cannot be i32",
    ),
    (
        |v| v.b.dot(&v.b, dot([1, 1], None, DType::F32)),
        "expected numbers, got bool[2,3]",
    ),
    (
        |v| v.image.conv(&v.x, conv(|_| ())),
        "a convolution over 2 spatial dims needs rank 4",
    ),
    (
        |v| v.image.conv(&v.kernel, conv(|c| c.feature_groups = 2)),
        "expected 2 input features per group",
    ),
    (
        |v| v.image.conv(&v.kernel, conv(|c| c.strides = vec![1, 0])),
        "strides and dilations must be at least 1",
    ),
    (
        |v| v.image.conv(&v.kernel, conv(|c| c.input.batch = 3)),
        "does not name each of the 4 dims of the input once",
    ),
    (
        |v| v.image.conv(&v.kernel, conv(|c| c.padding.clear())),
        "expected 2 paddings",
    ),
    (
        |v| {
            v.image
                .conv(&v.kernel, conv(|c| c.kernel_dilation = vec![3, 3]))
        },
        "a window of 7 does not fit the 5 elements of spatial dim 0",
    ),
    (|v| v.x.sum(&[2]), "dim 2 of f32[2,3]"),
    (|v| v.b.sum(&[0]), "expected numbers, got bool[2,3]"),
    (
        |v| v.x.reduce(ReduceOp::And, &[0]),
        "expected integers or truth values",
    ),
    (
        |v| {
            v.x.reduce_window(
                ReduceOp::Max,
                &[WindowDim {
                    size: 4,
                    ..WindowDim::identity()
                }; 2],
            )
        },
        "a window of 4 does not fit a dim of 2",
    ),
    (
        |v| {
            v.x.reduce_window(
                ReduceOp::Max,
                &[WindowDim {
                    stride: 0,
                    ..WindowDim::identity()
                }; 2],
            )
        },
        "must be at least 1",
    ),
    (|v| v.x.argmax(5), "dim 5 of f32[2,3]"),
];

#[test]
fn products_and_reductions() {
    check(PRODUCTS_AND_REDUCTIONS);
}

const LOOPS: &[(Mistake, &str)] = &[
    (
        |v| {
            v.g.while_loop(&[&v.x], |c| c[0].clone(), <[Tensor]>::to_vec)
                .remove(0)
        },
        "the condition must give one bool scalar",
    ),
    (
        |v| {
            v.g.while_loop(&[&v.x, &v.i], |_| v.b.clone(), <[Tensor]>::to_vec)
                .remove(1)
        },
        "captures a tensor from outside; pass it in",
    ),
    (
        |v| {
            v.g.scan(2, &[&v.i], &[&v.x], &[], |_, r, _| {
                (vec![r[0].clone()], vec![r[0].clone()])
            })
            .1
            .remove(0)
        },
        "carried value 0 is i32[3], but the body returns f32[3]",
    ),
    (
        |v| {
            v.g.scan(4, &[], &[&v.x], &[], |_, r, _| (vec![], vec![r[0].clone()]))
                .1
                .remove(0)
        },
        "expected 4 rows, got f32[2,3]",
    ),
    (
        |v| v.g.case(&v.x, &[&v.x], 2, |_, x| x.to_vec()).remove(0),
        "expected an index i32[], got f32[2,3]",
    ),
    (
        |v| {
            let _ =
                v.g.case(&v.g.scalar(DType::I32, 0.0), &[&v.x], 0, |_, x| x.to_vec());
            v.x.clone()
        },
        "needs a branch, got none",
    ),
    (
        |v| {
            let sum = |number, x: &[Tensor]| vec![x[0].sum(&[number])];
            v.g.case(&v.g.scalar(DType::I32, 0.0), &[&v.x], 2, sum)
                .remove(0)
        },
        "branch 1 gives (f32[2]), but branch 0 (f32[3]); give the same shapes in each",
    ),
    (
        |v| {
            let sum = |_, x: &[Tensor]| vec![x[0].all_reduce(ReduceOp::Sum)];
            v.g.case(&v.g.scalar(DType::I32, 0.0), &[&v.x], 2, sum)
                .remove(0)
        },
        "all_reduce between 2 replicas in branch 0: replicas that take other branches never come to it, and those that \
             do wait forever; move all_reduce behind the case",
    ),
    (
        |v| v.x.reduce_scatter(1),
        "dim 1 of f32[2,3] does not divide by 2 replicas",
    ),
    (
        |v| v.x.collective_permute(&[(0, 2)]),
        "(0, 2) names a replica outside 0..2",
    ),
    (
        |v| v.x.collective_permute(&[(0, 1), (1, 1)]),
        "replica 1 receives twice",
    ),
    (
        |v| v.i.all_reduce(ReduceOp::Or),
        "expected truth values, got i32[3]",
    ),
    (
        |v| v.b.all_reduce(ReduceOp::Sum),
        "expected numbers, got bool",
    ),
    (
        |v| v.i.all_mean(),
        "expected floats, got i32[3]; convert first",
    ),
    (
        |v| {
            let both = [&v.x, &v.b];
            v.g.all_reduce(&both, ReduceOp::And, Via::OneDevice)
                .remove(1)
        },
        "expected integers or truth values, got f32[2,3]",
    ),
    (
        |v| {
            let go = |c: &[Tensor]| {
                c[0].all_reduce(ReduceOp::Max)
                    .sum_all()
                    .less(&c[0].sum_all())
            };
            v.g.while_loop(&[&v.x], go, <[Tensor]>::to_vec).remove(0)
        },
        "all_reduce between 2 replicas in the condition of a loop whose length depends on data",
    ),
    (
        |v| {
            let go = |c: &[Tensor]| c[0].sum_all().less(&c[0].like(9.0).sum_all());
            let step = |c: &[Tensor]| {
                let turn =
                    |_: &[Tensor], _: &[Tensor], k: &[Tensor]| (vec![], vec![k[0].all_gather(0)]);
                let (_, rows) = c[0].graph().scan(1, &[], &[], &[&c[0]], turn);
                vec![rows[0].sum(&[0]).slice_dim(0, 0, 2)]
            };
            v.g.while_loop(&[&v.x], go, step).remove(0)
        },
        "all_gather between 2 replicas in the body of a loop whose length depends on data: replicas that stop at \
             different steps wait forever; use scan, whose length is known, or move all_gather out of the loop",
    ),
    (
        |v| v.g.random_bits(&v.x, &v.i, &[2]),
        "expected a key u32[2] and a row u32[], got f32[2,3] and i32[3]",
    ),
    (
        |v| &v.x + &Graph::new().scalar(DType::F32, 1.0).broadcast_to(&[2, 3]),
        "operands belong to different graphs",
    ),
    (
        |v| {
            v.x.slice_dim(0, 0, 1)
                .dim(7)
                .min(1)
                .eq(&1)
                .then(|| v.x.clone())
                .unwrap()
        },
        "dim 7 of f32[1,3], which has rank 2",
    ),
];

#[test]
fn loops_replicas_and_graphs() {
    check(LOOPS);
}

/// Numbers that an integer holds, and ranges that end beyond it.
#[test]
fn integers_hold_whole_numbers() {
    let v = values();
    let bytes = v.i.convert(DType::U8);
    let _ = (&v.i + -3.0) * 2.0 % 7.0 / 2.0;
    let _ = 255.0 - (bytes * 255.0);
    let _ = v.i.clamp(0.5, f64::INFINITY);
    let _ = v.i.convert(DType::U32) + f64::from(u32::MAX);
    let _ = v.x.convert(DType::F16) * 1e-9;
    assert!(v.g.error().is_none(), "{:?}", v.g.error());
}

/// A step would act once more on the way back.
#[test]
fn a_scan_that_acts_has_no_derivative() {
    let v = values();
    let call = CustomCall {
        target: "effect".into(),
        outputs: Vec::new(),
        attributes: Vec::new(),
        has_side_effect: true,
    };
    let start = v.x.sum_all();
    let (last, _) = v.g.scan(3, &[&start], &[], &[], |carry, _, _| {
        let _ = carry[0].graph().custom_call(call, &[&carry[0]]);
        (vec![carry[0].sin()], vec![])
    });
    assert!(v.g.error().is_none(), "{:?}", v.g.error());
    let _ = gradients(&last[0], &[&v.x]);
    let text = v.g.error().unwrap().to_string();
    assert!(
        text.contains("gradients: a scan whose steps have side effects has no derivative"),
        "{text}"
    );
    assert!(text.contains("tests/errors.rs:"), "{text}");
}

#[test]
fn the_first_mistake_is_kept_with_its_layer() {
    let v = values();
    let _first =
        v.g.labelled("block", || v.g.labelled("dense", || v.x.matmul(&v.y)));
    let _second = v.x.exp().and(&v.x);
    let error = v.g.finish(&[]).unwrap_err();
    assert_eq!(
        (error.op.as_str(), error.label.as_deref()),
        ("dot", Some("block/dense"))
    );
    assert!(error.to_string().contains("in block/dense, at "), "{error}");
}

#[test]
fn a_mistake_in_a_loop_body_names_the_layer_of_the_loop() {
    let v = values();
    let _ = v.g.labelled("rnn", || {
        v.g.scan(2, &[&v.y], &[&v.x], &[], |c, r, _| {
            (vec![&c[0] + &r[0]], vec![])
        })
    });
    assert_eq!(v.g.error().unwrap().label.as_deref(), Some("rnn"));
}

#[test]
fn an_output_of_another_graph_is_refused() {
    let v = values();
    let other = Graph::new().scalar(DType::F32, 1.0);
    let error = v.g.finish(&[("loss", &other)]).unwrap_err();
    assert!(
        error
            .message
            .contains("output `loss` belongs to another graph")
    );
}

/// A branch that derives by a tensor from outside would else be given the slope by another one, of the same number.
#[test]
fn gradients_by_a_tensor_of_another_graph_are_refused() {
    let g = Graph::new();
    let w = g.parameter("w", Shape::f32([3, 3]));
    let x = g.parameter("x", Shape::f32([3, 3]));
    let branch = g.parameter("branch", Shape::scalar(DType::I32));
    let slopes = g.case(&branch, &[&x, &w], 2, |_, v| {
        let loss = v[0].matmul(&v[1]).square().sum_all();
        let slope = gradients(&loss, &[&w]).remove(0);
        vec![slope.unwrap_or_else(|| v[1].zeros_like())]
    });
    let text = g.finish(&[("slope", &slopes[0])]).unwrap_err().to_string();
    assert!(
        text.contains("tensor 0 belongs to another graph than the loss"),
        "{text}"
    );
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([3]));
    let y = g.checkpointed(&[&w], || x.exp());
    let text = g.finish(&[("y", &y)]).unwrap_err().to_string();
    assert!(text.contains("an input is of another graph"), "{text}");
}
