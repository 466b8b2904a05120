//! Ops as ONNX one by one, as layers that no layer of this library is: onnxruntime answers as `predict` does.

use phalanx::nn::{LayerSpec, Policy, Sequential};
use phalanx::saved::SavedModel;
use phalanx_graph::op::{ConvDims, ConvSpec, DotDims, PadDim, ReduceOp, SliceDim, WindowDim};
use phalanx_graph::{DType, HostTensor, Tensor};
use phalanx_testkit::{Scratch, assert_close};
use serde_json::json;

use super::archives::filled;
use super::onnx::{Own, answers, got, numbers, save, written};
use super::stablehlo::predicted;

type Does = fn(&Tensor) -> Tensor;

/// Each of rows of four numbers between -1 and 1.
const OPS: [(&str, Does); 27] = [
    ("functions", functions),
    ("near_zero", |x| {
        beside(&[
            &((x * 1e-5).expm1() * 1e5),
            &((x * 1e-5).log1p() * 1e5),
            &(x * 40.0).expm1(),
            &(x.abs() * 1e9).log1p(),
        ])
    }),
    ("finite", |x| {
        (x / x.floor()).is_finite().convert(DType::F32)
    }),
    ("arithmetic", |x| {
        let y = &(x.reverse(&[1]) * 3.0 + 0.1);
        beside(&[
            &x.abs().pow(y),
            &y.remainder(x),
            &x.maximum(y),
            &x.minimum(y),
            &(x / y),
        ])
    }),
    ("integers", |x| {
        let n = &whole(x, DType::I32, 1000.0);
        let m = &(n.reverse(&[1]) + 7.0);
        beside(&[
            &(n * m),
            &(n / m),
            &n.remainder(m),
            &n.and(m),
            &n.or(m),
            &n.xor(m),
            &n.not(),
            &n.sign(),
            &n.maximum(m),
            &-n,
        ])
    }),
    ("large_remainders", |x| {
        // Above 2^53, with bits that an f64 does not hold.
        let n = &(whole(x, DType::I64, 4e18) + 1_234_567.0);
        let least = n.zeros_like() + n.like(1.0).shift_left(&n.like(63.0));
        beside(&[
            &n.remainder(&n.like(1000.0)),
            &n.remainder(&n.like(-7.0)),
            &n.remainder(&n.like(0.0)),
            &n.remainder(&(n.reverse(&[1]).shift_right(&n.like(9.0)))),
            &least.remainder(&n.like(-1.0)),
            &n.remainder(&least),
        ])
    }),
    ("shifts", |x| {
        let of = |n: Tensor| beside(&[&n.shift_left(&n.like(3.0)), &n.shift_right(&n.like(2.0))]);
        beside(&[
            &of(whole(x, DType::I32, 1e6)),
            &of(whole(x, DType::U32, 1e6)),
            &of(whole(x, DType::I64, 1e6)),
        ])
    }),
    ("unsigned", |x| {
        let n = &whole(x, DType::U32, 1e9);
        let m = &n.reverse(&[1]);
        let small = whole(x, DType::U8, 200.0);
        beside(&[
            &(n * m),
            &(n - m),
            &(n / (m + 1.0)),
            &n.less(m),
            &n.maximum(m),
            &n.not(),
            &n.sign(),
            &(&small + &small),
        ])
    }),
    ("comparisons", |x| {
        let y = &x.reverse(&[1]).maximum(x);
        beside(&[
            &x.equal(y),
            &x.not_equal(y),
            &x.less(y),
            &x.less_equal(y),
            &x.greater(y),
            &x.greater_equal(y),
        ])
    }),
    ("truths", |x| {
        let (a, b) = (&x.greater(&x.like(0.0)), &x.greater(&x.like(0.3)));
        let c = a.xor(b);
        beside(&[
            &a.and(b),
            &a.or(b),
            &c,
            &a.maximum(b),
            &a.minimum(b),
            &a.less(b),
            &a.equal(b),
            &c.select(a, &b.not()),
        ])
    }),
    ("reductions", |x| {
        let of = |kind| x.reduce(kind, &[1]).reshape(&[x.dim(0), 1]);
        let truth = |kind| {
            x.less(&x.like(0.5))
                .reduce(kind, &[1])
                .reshape(&[x.dim(0), 1])
        };
        let sums = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min].map(of);
        let truths = [ReduceOp::And, ReduceOp::Or].map(truth);
        beside(&sums.iter().chain(&truths).collect::<Vec<_>>())
    }),
    ("whole_numbers_reduced", |x| {
        let of = |dtype| {
            whole(x, dtype, 9.0)
                .reduce(ReduceOp::Sum, &[1])
                .reshape(&[x.dim(0), 1])
        };
        beside(&[
            &of(DType::I32),
            &of(DType::U32),
            &of(DType::I64),
            &of(DType::U8),
        ])
    }),
    ("among_examples", |x| {
        let most = x.reduce(ReduceOp::Max, &[0]).broadcast_in(&x.dims(), &[1]);
        let number = x.graph().iota(x.shape(), 0)
            + x.graph()
                .iota(x.shape().with_dtype(DType::I32), 0)
                .convert(DType::F32);
        beside(&[
            &(x - most),
            &number,
            &Tensor::concat(&[x, x], 0)
                .slice_dim(1, 0, 2)
                .reshape(&[x.dim(0), 4]),
            &(x - x
                .slice_dim(0, 0, 1)
                .reshape(&[4])
                .broadcast_in(&x.dims(), &[1])),
            &x.reverse(&[0]),
        ])
    }),
    ("windows", |x| {
        let of =
            |kind| beside(&[&x.reduce_window(kind, &[WindowDim::identity(), window(3, 1, 1)])]);
        beside(&[&of(ReduceOp::Max), &of(ReduceOp::Min), &of(ReduceOp::Sum)])
    }),
    ("gaps", |x| {
        let kinds = [ReduceOp::Max, ReduceOp::Min];
        let of = |kind| {
            beside(&[&pictures(x).reduce_window(
                kind,
                &[
                    WindowDim::identity(),
                    window(2, 1, 0),
                    window(2, 1, 0),
                    WindowDim::identity(),
                ],
            )])
        };
        beside(&kinds.map(of).each_ref())
    }),
    ("all_windows", |x| {
        x.reshape(&[x.dim(0), 2, 2]).reduce_window(
            ReduceOp::Sum,
            &[WindowDim::identity(), window(2, 2, 0), window(2, 1, 1)],
        )
    }),
    ("edges", |x| {
        let pad = |low, high, interior| {
            x.pad(
                &[
                    PadDim::default(),
                    PadDim {
                        low,
                        high,
                        interior,
                    },
                ],
                2.5,
            )
        };
        beside(&[&pad(1, 2, 0), &pad(-1, 3, 0), &pad(2, -1, 2), &pad(0, 0, 1)])
    }),
    ("slices", |x| {
        let every = SliceDim {
            start: 1,
            limit: 4,
            stride: 2,
        };
        let all = SliceDim {
            start: 0,
            limit: x.dim(0),
            stride: 1,
        };
        beside(&[
            &x.slice(&[all, every]),
            &x.slice_dim(1, 2, 3),
            &x.reverse(&[1]),
        ])
    }),
    ("places", |x| {
        let at = |place: f64| x.graph().scalar(DType::I32, place);
        let index = HostTensor::new([3], &[5i32, -1, 2]);
        let chosen = x.gather(&x.graph().constant(index), 1);
        let from = |place: f64| x.dynamic_slice(&[&at(0.0), &at(place)], &[x.dim(0), 2]);
        beside(&[&chosen, &from(1.0), &from(9.0), &from(-4.0)])
    }),
    ("outer", |x| {
        x.dot(&x.tanh(), products(&[0], &[0], &[], &[]))
    }),
    ("inner", |x| {
        let y = pictures(x).transpose(&[3, 1, 0, 2]);
        let z = y.exp();
        beside(&[
            &y.dot(&z, products(&[2], &[2], &[1, 0], &[1, 0])),
            &x.dot(&x.exp(), products(&[0], &[0], &[1], &[1]))
                .reshape(&[x.dim(0), 1]),
        ])
    }),
    ("turned", |x| {
        let kernel = constant(x, &[3, 4]);
        x.dot(&kernel, products(&[], &[], &[1], &[1]))
    }),
    ("loop", |x| {
        let turns = x.graph().scalar(DType::I32, 3.0);
        let zero = turns.zeros_like();
        let body = |given: &[Tensor]| {
            vec![
                &given[0] + 1.0,
                &given[1] * 1.5 + &given[2],
                given[2].clone(),
                given[3].clone(),
            ]
        };
        let values = x.graph().while_loop(
            &[&zero, x, &x.exp(), &turns],
            |given| given[0].less(&given[3]),
            body,
        );
        values[1].clone()
    }),
    ("steps", |x| {
        let step = |given: &[Tensor], _: &[Tensor], fixed: &[Tensor]| {
            (vec![&given[0] * &fixed[0]], vec![given[0].sin()])
        };
        let (last, rows) = x.graph().scan(3, &[&x.zeros_like().exp()], &[], &[x], step);
        beside(&[&last[0], &rows[0].transpose(&[1, 0, 2])])
    }),
    ("convolved", |x| {
        let plain = |strides, padding, groups| convolved(x, [strides, 1, 1], padding, groups);
        beside(&[
            &plain(1, (1, 1), 1),
            &plain(2, (-1, 2), 1),
            &plain(1, (0, 0), 2),
            &convolved(x, [1, 1, 2], (2, 2), 1),
        ])
    }),
    ("convolved_back", |x| {
        let paddings = [(2, 2), (0, 3), (3, 0), (1, 0)];
        beside(
            &paddings
                .map(|padding| convolved(x, [1, 2, 1], padding, 1))
                .each_ref(),
        )
    }),
    ("convolved_back_in_groups", |x| {
        beside(&[
            &convolved(x, [1, 3, 1], (1, 2), 2),
            &convolved(x, [2, 2, 2], (4, 4), 1),
        ])
    }),
];

/// All numbers of each example, as f32, beside each other.
fn beside(parts: &[&Tensor]) -> Tensor {
    let flat = |part: &&Tensor| {
        let count = part.dims()[1..].iter().product();
        part.convert(DType::F32).reshape(&[part.dim(0), count])
    };
    let flat: Vec<Tensor> = parts.iter().map(flat).collect();
    Tensor::concat(&flat.iter().collect::<Vec<_>>(), 1)
}

fn functions(x: &Tensor) -> Tensor {
    let positive = &(x.abs() + 0.1);
    let large = &(x * 5.0);
    let parts = [
        -x,
        x.abs(),
        x.sign(),
        large.exp(),
        positive.log(),
        positive.sqrt(),
        positive.rsqrt(),
        large.tanh(),
        large.logistic(),
        large.erf(),
        large.sin(),
        large.cos(),
        large.floor(),
        large.ceil(),
        (large.floor() + 0.5).round(),
        x.softmax(1),
    ];
    beside(&parts.iter().collect::<Vec<_>>())
}

/// Whole numbers, positive ones in unsigned types.
fn whole(x: &Tensor, dtype: DType, scale: f64) -> Tensor {
    match dtype {
        DType::U8 | DType::U32 => (x.abs() * scale).convert(dtype),
        _ => (x * scale).convert(dtype),
    }
}

const fn window(size: usize, stride: usize, low: usize) -> WindowDim {
    let dilation = if low == 0 && stride == 1 { 2 } else { 1 };
    WindowDim {
        size,
        stride,
        dilation,
        low,
        high: low,
    }
}

/// Pictures of three by three points with four channels, of which the four numbers are the first.
fn pictures(x: &Tensor) -> Tensor {
    let rows = x.dim(0);
    let all: Vec<Tensor> = (1..10).map(|scale| x * f64::from(scale)).collect();
    let all = Tensor::concat(&all.iter().collect::<Vec<_>>(), 1);
    all.sin().reshape(&[rows, 3, 3, 4])
}

fn products(lhs_batch: &[usize], rhs_batch: &[usize], lhs: &[usize], rhs: &[usize]) -> DotDims {
    DotDims {
        lhs_batch: lhs_batch.to_vec(),
        rhs_batch: rhs_batch.to_vec(),
        lhs_contract: lhs.to_vec(),
        rhs_contract: rhs.to_vec(),
        dtype: DType::F32,
    }
}

fn constant(x: &Tensor, dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin()).collect();
    x.graph().constant(HostTensor::new(dims, &values))
}

/// Nine points in a row by three of a kernel, with stride, distance of the points and of the kernel's.
fn convolved(
    x: &Tensor,
    [stride, apart, gaps]: [usize; 3],
    padding: (i64, i64),
    groups: usize,
) -> Tensor {
    let row = pictures(x).reshape(&[x.dim(0), 9, 4]);
    let kernel = constant(x, &[3, 4 / groups, 6]);
    let dims = ConvDims {
        input: ConvSpec::channels_last(1),
        kernel: ConvSpec::kernel(1),
        output: ConvSpec::channels_last(1),
        strides: vec![stride],
        padding: vec![padding],
        input_dilation: vec![apart],
        kernel_dilation: vec![gaps],
        feature_groups: groups,
        batch_groups: 1,
    };
    row.conv(&kernel, dims)
}

fn model((name, does): &(&'static str, Does)) -> SavedModel {
    let stack = Sequential::new([4]).add(LayerSpec::from(Own(*does)).named(*name));
    filled(&stack.build().unwrap())
}

#[test]
fn every_op_is_answered_as_predict_does() {
    let folder = Scratch::temporary("onnx-ops");
    let x = numbers("ops", &[3, 4]);
    for op in &OPS {
        save(&model(op), &folder, op.0, &[vec![written(&x)]]);
    }
    let Some(answers) = answers(&folder) else {
        return;
    };
    for op in &OPS {
        let expected = predicted(&model(op), Policy::Float32, std::slice::from_ref(&x));
        let answer = &answers[op.0]["answers"][0][0];
        assert_eq!(answer["shape"], json!(expected[0].dims()), "{}", op.0);
        assert_close(op.0, &got(answer), &expected[0].to_f64(), 1e-5);
    }
}
