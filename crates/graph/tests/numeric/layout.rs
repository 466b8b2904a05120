use phalanx_graph::op::{PadDim, SliceDim};
use phalanx_graph::{DType, HostTensor, Shape, Tensor};

use crate::cases::{Array, Cases};

const fn pad(low: i64, high: i64, interior: usize) -> PadDim {
    PadDim {
        low,
        high,
        interior,
    }
}

/// The element of the padded array at an index, from the definition: an element every `interior + 1` places, shifted by `low`.
fn padded(x: &Array, pads: &[PadDim], dims: &[usize], value: f64) -> Array {
    Array::build(dims, |index| {
        let source: Option<Vec<i64>> = index
            .iter()
            .zip(pads)
            .map(|(&i, pad)| {
                let (place, step) = (i as i64 - pad.low, pad.interior as i64 + 1);
                (place >= 0 && place % step == 0).then_some(place / step)
            })
            .collect();
        source.map_or(value, |source| x.at_or(&source, value))
    })
}

#[test]
fn reshape_transpose_broadcast_reverse() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[2, 3, 4]);
    cases.exact(
        "reshape",
        &x.reshape(&[4, 6]),
        Array::new(&[4, 6], &a.values),
    );
    cases.exact("flatten", &x.reshape(&[24]), Array::new(&[24], &a.values));
    for perm in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let dims = perm.map(|dim| a.dims[dim]);
        let expected = Array::build(&dims, |out| {
            let mut source = [0; 3];
            for (to, from) in perm.into_iter().enumerate() {
                source[from] = out[to];
            }
            a.at(&source)
        });
        cases.exact(
            &format!("transpose {perm:?}"),
            &x.transpose(&perm),
            expected,
        );
    }
    let (row, r) = cases.sample(DType::F32, &[1, 3]);
    let wide = Array::build(&[2, 4, 3], |i| r.at(&[0, i[2]]));
    cases.exact("broadcast", &row.broadcast_to(&[2, 4, 3]), wide);
    let middle = Array::build(&[5, 3, 2], |i| r.at(&[0, i[1]]));
    cases.exact(
        "broadcast in",
        &row.broadcast_in(&[5, 3, 2], &[0, 1]),
        middle,
    );
    let (one, s) = cases.sample(DType::I32, &[]);
    cases.exact(
        "broadcast scalar",
        &one.broadcast_to(&[2, 0]),
        Array::new(&[2, 0], &[]),
    );
    cases.exact(
        "broadcast same",
        &one.broadcast_to(&[3]),
        Array::new(&[3], &[s.values[0]; 3]),
    );
    let reversed = Array::build(&[2, 3, 4], |i| a.at(&[1 - i[0], i[1], 3 - i[2]]));
    cases.exact("reverse", &x.reverse(&[0, 2]), reversed);
    cases.exact("reverse nothing", &x.reverse(&[]), a.clone());
    let (empty, _) = cases.sample(DType::F32, &[0, 3]);
    cases.exact(
        "empty",
        &(empty.reshape(&[3, 0]).transpose(&[1, 0]) + 1.0),
        Array::new(&[0, 3], &[]),
    );
    cases.exact("stop_gradient", &x.stop_gradient(), a);
    cases.check();
}

#[test]
fn padding_of_every_sign() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[3, 4]);
    let tables = [
        ([pad(0, 0, 0), pad(0, 0, 0)], [3, 4]),
        ([pad(1, 2, 0), pad(0, 3, 0)], [6, 7]),
        ([pad(-1, 0, 0), pad(0, -2, 0)], [2, 2]),
        ([pad(0, 0, 1), pad(2, 1, 2)], [5, 13]),
        ([pad(-1, 2, 1), pad(1, -3, 1)], [6, 5]),
        ([pad(-3, 0, 0), pad(0, 0, 0)], [0, 4]),
    ];
    for (pads, dims) in tables {
        let expected = padded(&a, &pads, &dims, -1.5);
        cases.exact(&format!("{pads:?}"), &x.pad(&pads, -1.5), expected);
    }
    let (empty, _) = cases.sample(DType::F32, &[0]);
    cases.exact(
        "empty",
        &empty.pad(&[pad(2, 1, 3)], 7.0),
        Array::new(&[3], &[7.0; 3]),
    );
    let (scalar, s) = cases.sample(DType::F32, &[]);
    cases.exact("scalar", &scalar.pad(&[], 1.0), s);
    cases.check();
}

#[test]
fn slices_and_concatenation() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[5, 6]);
    let part = |start, limit, stride| SliceDim {
        start,
        limit,
        stride,
    };
    for slices in [
        [part(0, 5, 1), part(0, 6, 1)],
        [part(1, 4, 1), part(2, 6, 1)],
        [part(0, 5, 2), part(1, 6, 3)],
        [part(4, 5, 7), part(0, 6, 5)],
        [part(2, 2, 1), part(0, 6, 1)],
    ] {
        let dims = slices.map(|s| (s.limit - s.start).div_ceil(s.stride));
        let expected = Array::build(&dims, |i| {
            a.at(&[
                slices[0].start + i[0] * slices[0].stride,
                slices[1].start + i[1] * slices[1].stride,
            ])
        });
        cases.exact(&format!("{slices:?}"), &x.slice(&slices), expected);
    }
    cases.exact(
        "slice_dim",
        &x.slice_dim(1, 2, 4),
        Array::build(&[5, 2], |i| a.at(&[i[0], i[1] + 2])),
    );
    let (y, b) = cases.sample(DType::F32, &[2, 6]);
    let (none, _) = cases.sample(DType::F32, &[0, 6]);
    let joined = Array::new(&[7, 6], &[&a.values[..], &b.values[..]].concat());
    cases.exact("concat", &Tensor::concat(&[&x, &none, &y], 0), joined);
    let beside = Array::build(&[5, 12], |i| a.at(&[i[0], i[1] % 6]));
    cases.exact("concat dim 1", &Tensor::concat(&[&x, &x], 1), beside);
    cases.exact("concat one", &Tensor::concat(&[&x], 0), a);
    cases.check();
}

#[test]
fn counts() {
    let mut cases = Cases::new();
    for dtype in [
        DType::F32,
        DType::Bf16,
        DType::F16,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::U32,
        DType::U8,
    ] {
        for dim in 0..3 {
            let counts = cases.graph.iota(Shape::new(dtype, [2, 3, 4]), dim);
            let expected = Array::build(&[2, 3, 4], |i| i[dim] as f64);
            cases.exact(&format!("iota {dtype} {dim}"), &counts, expected);
        }
    }
    let classes = cases.list(&[3], &[2i32, 0, 5]);
    let expected = Array::build(&[3, 3], |i| f64::from(u8::from([2, 0, 5][i[0]] == i[1])));
    cases.exact("one_hot", &classes.one_hot(3, DType::F32), expected);
    // 300 classes are more than a u8 counts, and bf16 has no 257.
    for dtype in [DType::U8, DType::Bf16, DType::F16] {
        let label = cases.input(&HostTensor::new([1], &[1.0f64]).convert(dtype));
        let ones = label.one_hot(300, DType::F32).sum_all();
        cases.exact(&format!("one_hot of {dtype}"), &ones, Array::scalar(1.0));
    }
    cases.check();
}
