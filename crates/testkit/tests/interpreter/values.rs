//! A few numbers of each family of ops. Every op is compared with XLA in the tests of `phalanx-graph`.

use phalanx_graph::op::{ConvDims, ConvSpec, DotDims, PadDim, ReduceOp, SliceDim, Via, WindowDim};
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use phalanx_testkit::{Array, assert_close};

use crate::{f64s, program, replicated, run, run_replicas};

/// What is made of tensors, as f64.
fn made(inputs: &[HostTensor], build: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Vec<f64>> {
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape().clone()).collect();
    let found = run(&program(&shapes, build), inputs);
    found.iter().map(Array::to_f64).collect()
}

#[test]
fn floats_are_not_rounded_and_integers_wrap() {
    let x = HostTensor::new([2], &[0.1f32, 3.0]);
    let n = HostTensor::new([2], &[u32::MAX, 5]);
    let b = HostTensor::new([2], &[250u8, 3]);
    let found = made(&[x, n, b], |x| {
        vec![
            &x[0] * &x[0],
            x[0].convert(DType::Bf16) / 3.0,
            &x[1] + 2.0,
            &x[1] * &x[1],
            &x[2] + 10.0,
            -&x[2],
            x[1].not(),
            x[1].shift_left(&x[1].like(31.0)),
            x[1].shift_right(&x[1].like(33.0)),
        ]
    });
    let tenth = f64::from(0.1f32);
    let expected: [&[f64]; 9] = [
        &[tenth * tenth, 9.0],
        &[tenth / 3.0, 1.0],
        &[1.0, 7.0],
        &[1.0, 25.0],
        &[4.0, 13.0],
        &[6.0, 253.0],
        &[0.0, 4_294_967_290.0],
        &[2_147_483_648.0, 2_147_483_648.0],
        &[0.0, 0.0],
    ];
    assert_eq!(found, expected);
}

#[test]
fn signed_integers_divide_and_shift_as_their_bits_say() {
    let a = HostTensor::new([4], &[i32::MIN, -7, 7, -8]);
    let b = HostTensor::new([4], &[-1, 2, 0, 1]);
    let found = made(&[a, b], |x| {
        vec![
            &x[0] / &x[1],
            &x[0] % &x[1],
            x[0].shift_right(&x[1]),
            x[0].pow(&x[1]),
        ]
    });
    assert_eq!(found[0], [f64::from(i32::MIN), -3.0, -1.0, -8.0]);
    assert_eq!(found[1], [0.0, -1.0, 7.0, 0.0]);
    let third = f64::from((-7i32).cast_unsigned() >> 2);
    assert_eq!(
        found[2],
        [0.0, third, 7.0, f64::from((-8i32).cast_unsigned() >> 1)]
    );
    assert_eq!(found[3], [0.0, 49.0, 1.0, -8.0]);
}

#[test]
fn conversions_truncate_saturate_and_keep_bits() {
    let x = HostTensor::new([5], &[3.9f32, -3.9, 1e10, -0.0, f32::NAN]);
    let half = HostTensor::new([1], &[0x3C00u32]);
    let found = made(&[x, half], |x| {
        let back = x[0].convert(DType::I32);
        vec![
            back.clone(),
            x[0].convert(DType::U8),
            x[0].convert(DType::Bool),
            back.convert(DType::U8),
            x[0].bitcast(DType::U32),
            x[1].bitcast(DType::F32),
        ]
    });
    assert_eq!(found[0], [3.0, -3.0, 2_147_483_647.0, 0.0, 0.0]);
    assert_eq!(found[1], [3.0, 0.0, 255.0, 0.0, 0.0]);
    assert_eq!(found[2], [1.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(found[3], [3.0, 253.0, 255.0, 0.0, 0.0]);
    assert_eq!(
        found[4][..2],
        [3.9f32, -3.9].map(|x| f64::from(x.to_bits()))
    );
    assert_eq!(found[5], [f64::from(f32::from_bits(0x3C00))]);
}

#[test]
fn functions_of_floats() {
    let x = HostTensor::new([3], &[0.5f64, -1.5, 2.5]);
    let found = made(&[x], |x| {
        let x = &x[0];
        vec![
            x.erf(),
            x.logistic(),
            x.round(),
            x.rsqrt(),
            x.maximum(&x.like(f64::NAN)),
        ]
    });
    let erf = [
        0.520_499_877_813_046_5,
        -0.966_105_146_475_310_7,
        0.999_593_047_982_555,
    ];
    assert_close("erf", &found[0], &erf, 1e-15);
    let logistic = [
        0.622_459_331_201_854_6,
        0.182_425_523_806_356_35,
        0.924_141_819_978_756_6,
    ];
    assert_close("logistic", &found[1], &logistic, 1e-15);
    assert_eq!(found[2], [0.0, -2.0, 2.0]);
    assert!(found[3][1].is_nan());
    assert!(found[4].iter().all(|x| x.is_nan()));
}

fn counted(dims: &[usize]) -> HostTensor {
    let count: usize = dims.iter().product();
    HostTensor::new(dims, &(0..count).map(|i| i as f64).collect::<Vec<_>>())
}

#[test]
fn elements_are_moved() {
    let start = |value: i32| HostTensor::scalar(value);
    let inputs = [counted(&[2, 3]), start(9), start(-1), counted(&[1, 2])];
    let found = made(&inputs, |v| {
        let x = &v[0];
        let pads = [
            PadDim {
                low: 1,
                high: -1,
                interior: 0,
            },
            PadDim {
                low: -1,
                high: 0,
                interior: 1,
            },
        ];
        let columns = SliceDim {
            start: 0,
            limit: 3,
            stride: 2,
        };
        let rows = SliceDim {
            start: 1,
            limit: 2,
            stride: 1,
        };
        vec![
            x.transpose(&[1, 0]),
            x.pad(&pads, 7.0),
            x.slice(&[rows, columns]),
            x.reverse(&[1]),
            x.dynamic_slice(&[&v[1], &v[2]], &[1, 2]),
            x.dynamic_update_slice(&v[3], &[&v[2], &v[1]]),
            Tensor::concat(&[x, x], 1),
            x.slice_dim(0, 1, 2).broadcast_in(&[2, 2, 3], &[0, 2]),
        ]
    });
    let expected: [&[f64]; 8] = [
        &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
        &[7.0, 7.0, 7.0, 7.0, 7.0, 1.0, 7.0, 2.0],
        &[3.0, 5.0],
        &[2.0, 1.0, 0.0, 5.0, 4.0, 3.0],
        &[3.0, 4.0],
        &[0.0, 0.0, 1.0, 3.0, 4.0, 5.0],
        &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0],
        &[3.0, 4.0, 5.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0],
    ];
    assert_eq!(found, expected);
}

#[test]
fn gather_clamps_and_scatter_drops() {
    let indices = HostTensor::new([4], &[2i32, -1, 9, 2]);
    let found = made(&[counted(&[2, 3]), indices, counted(&[2, 4])], |x| {
        vec![x[0].gather(&x[1], 1), x[0].scatter_add(&x[1], &x[2], 1)]
    });
    assert_eq!(found[0], [2.0, 0.0, 2.0, 2.0, 5.0, 3.0, 5.0, 5.0]);
    assert_eq!(found[1], [0.0, 1.0, 5.0, 3.0, 4.0, 16.0]);
}

#[test]
fn products_of_batches_and_of_integers() {
    let dims = DotDims {
        lhs_batch: vec![2],
        rhs_batch: vec![0],
        lhs_contract: vec![0],
        rhs_contract: vec![2],
        dtype: DType::F64,
    };
    // a[k, m, b], c[b, n, k]
    let found = made(&[counted(&[2, 1, 2]), counted(&[2, 2, 2])], |x| {
        vec![x[0].dot(&x[1], dims)]
    });
    let one =
        |b: usize, n: usize| (0..2).map(move |k| (k * 2 + b) as f64 * (b * 4 + n * 2 + k) as f64);
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(b, n)| one(b, n).sum::<f64>());
    assert_eq!(found[0], expected);
    let a = HostTensor::new([1, 2], &[200u8, 200]);
    let found = made(&[a.clone(), a.reshape([2, 1]).unwrap()], |x| {
        vec![x[0].matmul(&x[1])]
    });
    assert_eq!(found[0], [f64::from(80_000u32 as u8)]);
}

#[test]
fn a_convolution_worked_by_hand() {
    // 1 2 3 4 . 10 1 with a zero before, in steps of 2, and its two groups of features.
    let dims = ConvDims {
        input: ConvSpec::channels_last(1),
        kernel: ConvSpec::kernel(1),
        output: ConvSpec::channels_last(1),
        strides: vec![2],
        padding: vec![(1, 0)],
        input_dilation: vec![1],
        kernel_dilation: vec![1],
        feature_groups: 2,
        batch_groups: 1,
    };
    let x = HostTensor::new([1, 4, 2], &[1.0f64, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 8.0]);
    let kernel = HostTensor::new([2, 1, 2], &[10.0f64, 100.0, 1.0, 1.0]);
    let found = made(&[x, kernel], |x| vec![x[0].conv(&x[1], dims)]);
    assert_eq!(found[0], [1.0, 5.0, 23.0, 607.0]);
}

#[test]
fn reductions_and_windows() {
    let truth = HostTensor::new([2, 2], &[true, false, true, true]);
    let empty = HostTensor::new([0, 2], &[0.0f64; 0]);
    let found = made(&[counted(&[2, 3]), truth, empty], |x| {
        let window = [
            WindowDim::identity(),
            WindowDim {
                size: 2,
                stride: 1,
                dilation: 2,
                low: 1,
                high: 0,
            },
        ];
        vec![
            x[0].reduce(ReduceOp::Prod, &[1]),
            x[0].reduce(ReduceOp::Min, &[0]),
            x[1].reduce(ReduceOp::And, &[1]),
            x[1].reduce(ReduceOp::Or, &[0, 1]),
            x[2].reduce(ReduceOp::Max, &[0]),
            x[0].reduce_window(ReduceOp::Sum, &window),
            x[0].convert(DType::I32)
                .reduce_window(ReduceOp::Max, &window),
        ]
    });
    let expected: [&[f64]; 7] = [
        &[0.0, 60.0],
        &[0.0, 1.0, 2.0],
        &[0.0, 1.0],
        &[1.0],
        &[f64::NEG_INFINITY; 2],
        &[1.0, 2.0, 4.0, 8.0],
        &[1.0, 2.0, 4.0, 5.0],
    ];
    assert_eq!(found, expected);
}

#[test]
fn loops_and_branches() {
    let inputs = [
        HostTensor::scalar(1.0f64),
        counted(&[3]),
        HostTensor::scalar(7i32),
    ];
    let found = made(&inputs, |x| {
        let g = x[0].graph();
        let (last, rows) = g.scan(3, &[&x[0]], &[&x[1]], &[], |carry, row, _| {
            (vec![&carry[0] * 2.0 + &row[0]], vec![carry[0].clone()])
        });
        let three = |v: &[Tensor]| v[0].less(&v[0].like(100.0));
        let tripled = g.while_loop(&[&x[0]], three, |v| vec![&v[0] * 3.0]);
        let branch = g.case(&x[2], &[&x[0]], 3, |i, v| vec![&v[0] + i as f64]);
        vec![
            last[0].clone(),
            rows[0].clone(),
            tripled[0].clone(),
            branch[0].clone(),
        ]
    });
    let expected: [&[f64]; 4] = [&[12.0], &[1.0, 2.0, 5.0], &[243.0], &[3.0]];
    assert_eq!(found, expected);
}

#[test]
fn random_bits_are_the_published_ones() {
    let inputs = [HostTensor::new([2], &[0u32, 0]), HostTensor::scalar(0u32)];
    let found = made(&inputs, |x| {
        vec![x[0].graph().random_bits(&x[0], &x[1], &[])]
    });
    assert_eq!(found[0], [f64::from(0x6b20_0159)]);
}

#[test]
fn replicas_exchange() {
    let build = |x: &[Tensor]| {
        let g = x[0].graph();
        let x = &x[0];
        let (last, _) = g.scan(2, &[x], &[], &[], |carry, _, _| {
            (vec![carry[0].all_reduce(ReduceOp::Sum)], vec![])
        });
        let mut made = g.all_reduce(&[x], ReduceOp::Max, Via::Native);
        made.extend([
            x.all_gather(0),
            x.reduce_scatter(0),
            x.all_to_all(0, 0),
            x.collective_permute(&[(0, 1)]),
            g.replica_id(),
            last[0].clone(),
        ]);
        made
    };
    let program = replicated(2, &[f64s([2])], build);
    let inputs = [[1.0, 2.0], [10.0, -20.0]].map(|x| vec![HostTensor::new([2], &x)]);
    let expected: [[&[f64]; 7]; 2] = [
        [
            &[10.0, 2.0],
            &[1.0, 2.0, 10.0, -20.0],
            &[11.0],
            &[1.0, 10.0],
            &[0.0; 2],
            &[0.0],
            &[22.0, -36.0],
        ],
        [
            &[10.0, 2.0],
            &[1.0, 2.0, 10.0, -20.0],
            &[-18.0],
            &[2.0, -20.0],
            &[1.0, 2.0],
            &[1.0],
            &[22.0, -36.0],
        ],
    ];
    for (found, expected) in run_replicas(&program, &inputs).iter().zip(expected) {
        let found: Vec<Vec<f64>> = found.iter().map(Array::to_f64).collect();
        assert_eq!(found, expected);
    }
}
