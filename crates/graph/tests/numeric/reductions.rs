use half::{bf16, f16};
use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{DType, HostTensor, Shape, gradients};

use crate::cases::{Array, Cases, flat, indices};

const KINDS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

fn combine(kind: ReduceOp, a: f64, b: f64) -> f64 {
    match kind {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Max | ReduceOp::Min if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::And => f64::from(u8::from(a != 0.0 && b != 0.0)),
        ReduceOp::Or => f64::from(u8::from(a != 0.0 || b != 0.0)),
    }
}

/// The reduction from its definition.
fn reduce(x: &Array, kind: ReduceOp, dims: &[usize], start: f64) -> Array {
    let kept: Vec<usize> = (0..x.dims.len())
        .filter(|dim| !dims.contains(dim))
        .collect();
    let sizes: Vec<usize> = kept.iter().map(|&dim| x.dims[dim]).collect();
    let mut out = Array::build(&sizes, |_| start);
    for index in indices(&x.dims) {
        let place: Vec<usize> = kept.iter().map(|&dim| index[dim]).collect();
        let slot = &mut out.values[flat(&sizes, &place)];
        *slot = combine(kind, *slot, x.at(&index));
    }
    out
}

fn start(kind: ReduceOp, dtype: DType) -> f64 {
    kind.identity(dtype).to_f64()[0]
}

#[test]
fn reductions_of_every_kind_and_type() {
    let mut cases = Cases::new();
    let types = [
        (DType::F32, 2e-6),
        (DType::F64, 1e-13),
        (DType::Bf16, 8e-3),
        (DType::F16, 1e-3),
        (DType::I32, 0.0),
        (DType::I64, 0.0),
    ];
    for (dtype, tolerance) in types {
        let (x, a) = cases.sample(dtype, &[3, 4, 2]);
        for kind in KINDS {
            for dims in [&[0][..], &[1], &[2], &[0, 2], &[0, 1, 2]] {
                let expected = reduce(&a, kind, dims, start(kind, dtype));
                cases.near(
                    &format!("{kind:?} {dtype} {dims:?}"),
                    &x.reduce(kind, dims),
                    expected,
                    tolerance,
                );
            }
        }
    }
    cases.check();
}

#[test]
fn reductions_of_unsigned_numbers_and_truth_values() {
    let mut cases = Cases::new();
    for dtype in [DType::U32, DType::U8] {
        let list = HostTensor::new([4], &[3.0, 0.0, 200.0, 7.0]).convert(dtype);
        let x = cases.input(&list);
        for (kind, expected) in [
            (ReduceOp::Sum, 210.0),
            (ReduceOp::Max, 200.0),
            (ReduceOp::Min, 0.0),
        ] {
            cases.exact(
                &format!("{kind:?} {dtype}"),
                &x.reduce(kind, &[0]),
                Array::scalar(expected),
            );
        }
    }
    let truth = cases.list(&[2, 2], &[true, false, true, true]);
    cases.exact(
        "and",
        &truth.reduce(ReduceOp::And, &[1]),
        Array::new(&[2], &[0.0, 1.0]),
    );
    cases.exact(
        "or",
        &truth.reduce(ReduceOp::Or, &[1]),
        Array::new(&[2], &[1.0, 1.0]),
    );
    cases.exact(
        "max bool",
        &truth.reduce(ReduceOp::Max, &[0, 1]),
        Array::scalar(1.0),
    );
    cases.exact(
        "min bool",
        &truth.reduce(ReduceOp::Min, &[0, 1]),
        Array::scalar(0.0),
    );
    cases.check();
}

#[test]
fn reductions_of_nothing_of_nan_and_of_many() {
    let mut cases = Cases::new();
    let (none, _) = cases.sample(DType::F32, &[0, 2]);
    for kind in KINDS {
        let value = start(kind, DType::F32);
        cases.exact(
            &format!("{kind:?} of nothing"),
            &none.reduce(kind, &[0]),
            Array::new(&[2], &[value; 2]),
        );
        cases.exact(
            &format!("{kind:?} to nothing"),
            &none.reduce(kind, &[1]),
            Array::new(&[0], &[]),
        );
    }
    let whole = cases.input(&HostTensor::zeros(Shape::new(DType::I32, [0])));
    cases.exact(
        "largest of no integers",
        &whole.max(&[0]),
        Array::scalar(f64::from(i32::MIN)),
    );
    let x = cases.list(
        &[2, 3],
        &[1.0f32, f32::NAN, 3.0, f32::NEG_INFINITY, 2.0, f32::INFINITY],
    );
    cases.exact(
        "max",
        &x.max(&[1]),
        Array::new(&[2], &[f64::NAN, f64::INFINITY]),
    );
    cases.exact(
        "min",
        &x.min(&[1]),
        Array::new(&[2], &[f64::NAN, f64::NEG_INFINITY]),
    );
    cases.exact("sum", &x.sum(&[1]), Array::new(&[2], &[f64::NAN, f64::NAN]));
    // In bf16 arithmetic 256 + 1 is 256: a running sum would stay there.
    let ones = cases.input(&HostTensor::full(Shape::new(DType::Bf16, [512]), 1.0));
    cases.exact("bf16 sum", &ones.sum(&[0]), Array::scalar(512.0));
    let places = cases.list(&[2, 3], &[1.0f32, 3.0, 3.0, 5.0, 5.0, 0.0]);
    cases.exact("argmax", &places.argmax(1), Array::new(&[2], &[1.0, 0.0]));
    cases.exact(
        "argmax dim 0",
        &places.argmax(0),
        Array::new(&[3], &[1.0, 1.0, 0.0]),
    );
    cases.near("mean", &places.mean_all(), Array::scalar(17.0 / 6.0), 1e-6);
    cases.exact("mean of bf16", &ones.mean_all(), Array::scalar(1.0));
    cases.check();
}

#[test]
fn means_of_integers_are_of_their_whole_sum() {
    let mut cases = Cases::new();
    let bytes = cases.list(&[2], &[200u8, 201]);
    cases.exact("mean of u8", &bytes.mean_all(), Array::scalar(200.0));
    let many = cases.input(&HostTensor::full(Shape::new(DType::U8, [300]), 200.0));
    cases.exact(
        "more than u8 counts",
        &many.mean_all(),
        Array::scalar(200.0),
    );
    let large = cases.list(&[3], &[i32::MAX, i32::MAX - 1, i32::MAX - 2]);
    let middle = f64::from(i32::MAX - 1);
    cases.exact("mean of i32", &large.mean(&[0]), Array::scalar(middle));
    let below = cases.list(&[2], &[-2i32, -3]);
    cases.exact("towards 0", &below.mean_all(), Array::scalar(-2.0));
    cases.check();
}

#[test]
fn softmax_family() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[3, 5]);
    let total = |row: usize| (0..5).map(|j| a.at(&[row, j]).exp()).sum::<f64>();
    cases.near(
        "softmax",
        &x.softmax(1),
        Array::build(&[3, 5], |i| a.at(i).exp() / total(i[0])),
        1e-6,
    );
    cases.near(
        "log_softmax",
        &x.log_softmax(1),
        Array::build(&[3, 5], |i| a.at(i) - total(i[0]).ln()),
        1e-6,
    );
    cases.near(
        "logsumexp",
        &x.logsumexp(1),
        Array::build(&[3], |i| total(i[0]).ln()),
        1e-6,
    );
    let large = cases.list(&[2], &[1e4f32, 1e4]);
    cases.exact("large", &large.softmax(0), Array::new(&[2], &[0.5, 0.5]));
    cases.check();
}

fn window(size: usize, stride: usize, dilation: usize, low: usize, high: usize) -> WindowDim {
    WindowDim {
        size,
        stride,
        dilation,
        low,
        high,
    }
}

fn windows(x: &Array, kind: ReduceOp, dims: &[WindowDim], out: &[usize], start: f64) -> Array {
    let sizes: Vec<usize> = dims.iter().map(|dim| dim.size).collect();
    Array::build(out, |index| {
        indices(&sizes).iter().fold(start, |total, tap| {
            let place: Vec<i64> = (0..dims.len())
                .map(|i| {
                    (index[i] * dims[i].stride + tap[i] * dims[i].dilation) as i64
                        - dims[i].low as i64
                })
                .collect();
            combine(kind, total, x.at_or(&place, start))
        })
    })
}

#[test]
fn sliding_windows() {
    let mut cases = Cases::new();
    let whole = WindowDim::identity();
    let tables = [
        [whole, whole],
        [window(2, 2, 1, 0, 0), window(3, 1, 1, 0, 0)],
        [window(3, 2, 1, 1, 1), window(2, 1, 2, 1, 0)],
        [window(2, 1, 3, 0, 0), window(7, 1, 1, 0, 0)],
    ];
    for (dtype, tolerance) in [
        (DType::F32, 2e-6),
        (DType::F64, 1e-13),
        (DType::Bf16, 8e-3),
        (DType::I32, 0.0),
    ] {
        let (x, a) = cases.sample(dtype, &[6, 7]);
        for table in &tables {
            for kind in KINDS {
                let result = x.reduce_window(kind, table);
                let expected = windows(&a, kind, table, &result.dims(), start(kind, dtype));
                cases.near(
                    &format!("{kind:?} {dtype} {table:?}"),
                    &result,
                    expected,
                    tolerance,
                );
            }
        }
    }
    let (scalar, s) = cases.sample(DType::F32, &[]);
    cases.exact("scalar", &scalar.reduce_window(ReduceOp::Sum, &[]), s);
    let (none, _) = cases.sample(DType::F32, &[0, 4]);
    let halves = [whole, window(2, 2, 1, 0, 0)];
    cases.exact(
        "no rows",
        &none.reduce_window(ReduceOp::Max, &halves),
        Array::new(&[0, 2], &[]),
    );
    let ones = cases.input(&HostTensor::full(Shape::new(DType::Bf16, [512]), 1.0));
    let all = [window(512, 1, 1, 0, 0)];
    let expected = f64::from(bf16::from_f32(512.0));
    cases.exact(
        "bf16 sum",
        &ones.reduce_window(ReduceOp::Sum, &all),
        Array::new(&[1], &[expected]),
    );
    cases.check();
}

/// f16 has no number above 65504, and a channel may have more elements. A cotangent that is the same everywhere moves the mean alone,
/// which the normalization takes away.
#[test]
fn batch_norm_in_f16_counts_more_elements_than_it_holds() {
    let mut cases = Cases::new();
    let rows = 70_000;
    let x: Vec<f16> = (0..rows)
        .map(|i| f16::from_f32((i % 5) as f32 - 2.0))
        .collect();
    let x = cases.list(&[rows, 1], &x);
    let [gamma, beta] = [1.0, 0.5].map(|value| cases.list(&[1], &[f16::from_f32(value)]));
    let [y, mean, variance] = x.batch_norm(&gamma, &beta, 1e-3);
    let loss = (y.convert(DType::F32) * 0.25).sum_all();
    let gradient = gradients(&loss, &[&x]).remove(0).unwrap();
    cases.near("mean", &mean, Array::new(&[1], &[0.0]), 1e-3);
    cases.near("variance", &variance, Array::new(&[1], &[2.0]), 1e-3);
    cases.near(
        "gradient",
        &gradient,
        Array::build(&[rows, 1], |_| 0.0),
        1e-3,
    );
    cases.check();
}

/// Of numbers far from 0 f16 holds the mean with an error as large as what is normalized.
#[test]
fn gradients_of_batch_norm_in_f16_are_of_statistics_in_f32() {
    const EPSILON: f64 = 1e-3;
    let numbers = [1000.0, 1000.5, 1001.0, 1002.0];
    let cotangents = [0.5, 1.0, -0.25, 2.0];
    let scale = 1.5;
    let mean = |of: &dyn Fn(usize) -> f64| (0..4).map(of).sum::<f64>() / 4.0;
    let middle = mean(&|i| numbers[i]);
    let variance = mean(&|i| (numbers[i] - middle).powi(2));
    let inverse = 1.0 / (variance + EPSILON).sqrt();
    let z = |i: usize| (numbers[i] - middle) * inverse;
    let (to_beta, to_gamma) = (mean(&|i| cotangents[i]), mean(&|i| cotangents[i] * z(i)));
    let to_x = [0, 1, 2, 3].map(|i| scale * inverse * (cotangents[i] - to_beta - z(i) * to_gamma));

    let mut cases = Cases::new();
    let mut list = |values: &[f64], dims: &[usize]| {
        cases.input(&HostTensor::new(dims, values).convert(DType::F16))
    };
    let (x, gamma, beta) = (
        list(&numbers, &[4, 1]),
        list(&[scale], &[1]),
        list(&[0.5], &[1]),
    );
    let given = list(&cotangents, &[4, 1]);
    let [y, ..] = x.batch_norm(&gamma, &beta, EPSILON);
    let found = gradients(
        &(y * given).convert(DType::F32).sum_all(),
        &[&x, &gamma, &beta],
    );
    let expected = [
        ("x", Array::new(&[4, 1], &to_x)),
        ("gamma", Array::new(&[1], &[4.0 * to_gamma])),
        ("beta", Array::new(&[1], &[4.0 * to_beta])),
    ];
    for ((name, expected), found) in expected.into_iter().zip(found) {
        let found = found.unwrap();
        assert_eq!(found.dtype(), DType::F16);
        cases.near(name, &found, expected, 1e-3);
    }
    cases.check();
}

#[test]
fn what_the_shorthands_promise() {
    let mut cases = Cases::new();
    let bits = cases.list(&[3], &[6i32, 14, 7]);
    cases.exact(
        "and of integers",
        &bits.reduce(ReduceOp::And, &[0]),
        Array::scalar(6.0),
    );
    cases.exact(
        "or of integers",
        &bits.reduce(ReduceOp::Or, &[0]),
        Array::scalar(15.0),
    );
    let nan = cases.list(&[3], &[1.0f32, f32::NAN, 2.0]);
    cases.exact(
        "argmax of NaN is an index",
        &nan.argmax(0),
        Array::scalar(0.0),
    );
    let nothing = cases.list(&[2], &[f32::NEG_INFINITY; 2]);
    cases.exact(
        "no terms",
        &nothing.logsumexp(0),
        Array::scalar(f64::NEG_INFINITY),
    );
    let (x, a) = cases.sample(DType::F32, &[2, 3]);
    let mean = Array::build(&[3], |i| f64::midpoint(a.at(&[0, i[0]]), a.at(&[1, i[0]])));
    cases.near("a dim named twice", &x.mean(&[0, 0]), mean, 1e-6);
    let many = cases.input(&HostTensor::full(Shape::new(DType::F16, [70_000]), 2.0));
    cases.exact("more than f16 counts", &many.mean(&[0]), Array::scalar(2.0));
    let condition = cases.list(&[2, 2], &[true, false, false, true]);
    let (one, two) = (x.like(1.0), x.like(2.0));
    cases.exact(
        "select scalars",
        &condition.select(&one, &two),
        Array::new(&[2, 2], &[1.0, 2.0, 2.0, 1.0]),
    );
    cases.check();
}

#[test]
fn sums_and_products_with_all_before() {
    let mut cases = Cases::new();
    let types = [
        (DType::F32, 2e-6),
        (DType::F64, 1e-13),
        (DType::Bf16, 8e-3),
        (DType::F16, 1e-3),
        (DType::I32, 0.0),
    ];
    for (dtype, tolerance) in types {
        for dims in [[1, 7], [5, 3], [4, 1], [2, 0]] {
            let (x, a) = cases.sample(dtype, &dims);
            for dim in [0, 1] {
                let [mut sums, mut products] = [a.clone(), a.clone()];
                for index in indices(&dims).into_iter().filter(|index| index[dim] > 0) {
                    let mut earlier = index.clone();
                    earlier[dim] -= 1;
                    let [here, earlier] = [&index, &earlier].map(|place| flat(&dims, place));
                    sums.values[here] += sums.values[earlier];
                    products.values[here] *= products.values[earlier];
                }
                let what = format!("{dtype} {dims:?} along {dim}");
                cases.near(&format!("cumsum {what}"), &x.cumsum(dim), sums, tolerance);
                let product = x.cumprod(dim);
                cases.near(&format!("cumprod {what}"), &product, products, tolerance);
            }
        }
    }
    cases.check();
}
