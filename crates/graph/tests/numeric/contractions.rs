use phalanx_graph::op::{ConvDims, ConvSpec, DotDims};
use phalanx_graph::{DType, HostTensor, Tensor};

use crate::cases::{Array, Cases, indices};

fn dot_dims(batch: (&[usize], &[usize]), contract: (&[usize], &[usize]), dtype: DType) -> DotDims {
    DotDims {
        lhs_batch: batch.0.to_vec(),
        rhs_batch: batch.1.to_vec(),
        lhs_contract: contract.0.to_vec(),
        rhs_contract: contract.1.to_vec(),
        dtype,
    }
}

fn free(rank: usize, dims: &[&[usize]]) -> Vec<usize> {
    (0..rank)
        .filter(|dim| !dims.iter().any(|list| list.contains(dim)))
        .collect()
}

/// The dot from its definition: for each (batch, left free, right free) index, the sum over the contracted ones.
fn dot(a: &Array, b: &Array, dims: &DotDims) -> Array {
    let left = free(a.dims.len(), &[&dims.lhs_batch, &dims.lhs_contract]);
    let right = free(b.dims.len(), &[&dims.rhs_batch, &dims.rhs_contract]);
    let sizes = |of: &Array, list: &[usize]| list.iter().map(|&d| of.dims[d]).collect::<Vec<_>>();
    let contracted = sizes(a, &dims.lhs_contract);
    let out = [sizes(a, &dims.lhs_batch), sizes(a, &left), sizes(b, &right)].concat();
    Array::build(&out, |index| {
        let (batch, rest) = index.split_at(dims.lhs_batch.len());
        let (l, r) = rest.split_at(left.len());
        let place = |rank: usize, parts: [(&[usize], &[usize]); 3]| {
            let mut full = vec![0; rank];
            for (where_, values) in parts {
                for (&dim, &value) in where_.iter().zip(values) {
                    full[dim] = value;
                }
            }
            full
        };
        indices(&contracted)
            .iter()
            .map(|k| {
                let x = place(
                    a.dims.len(),
                    [
                        (&dims.lhs_batch, batch),
                        (&left, l),
                        (&dims.lhs_contract, k),
                    ],
                );
                let y = place(
                    b.dims.len(),
                    [
                        (&dims.rhs_batch, batch),
                        (&right, r),
                        (&dims.rhs_contract, k),
                    ],
                );
                a.at(&x) * b.at(&y)
            })
            .sum()
    })
}

#[test]
fn dots_of_every_layout_and_type() {
    let mut cases = Cases::new();
    let none: (&[usize], &[usize]) = (&[], &[]);
    type Lists<'a> = (&'a [usize], &'a [usize]);
    let layouts: [(&[usize], &[usize], Lists, Lists); 10] = [
        (&[3, 4], &[4, 5], none, (&[1], &[0])),
        (&[4, 3], &[5, 4], none, (&[0], &[1])),
        (&[3], &[3], none, (&[0], &[0])),
        (&[2], &[3], none, none),
        (&[2, 3, 4], &[2, 4, 5], (&[0], &[0]), (&[2], &[1])),
        (&[3, 2, 4], &[5, 4, 2], (&[1], &[2]), (&[2], &[1])),
        (&[2, 3, 4], &[3, 4, 2], none, (&[1, 2], &[0, 1])),
        (&[2, 3, 4], &[2, 3, 5], none, (&[0, 1], &[0, 1])),
        (&[0, 4], &[4, 2], none, (&[1], &[0])),
        (&[2, 0], &[0, 3], none, (&[1], &[0])),
    ];
    for (lhs, rhs, batch, contract) in layouts {
        let (a, x) = cases.sample(DType::F32, lhs);
        let (b, y) = cases.sample(DType::F32, rhs);
        let dims = dot_dims(batch, contract, DType::F32);
        cases.near(
            &format!("{lhs:?} {rhs:?} {batch:?} {contract:?}"),
            &a.dot(&b, dims.clone()),
            dot(&x, &y, &dims),
            2e-6,
        );
    }
    let forms = [
        (DType::F64, DType::F64, 1e-14),
        (DType::Bf16, DType::F32, 1e-6),
        (DType::F16, DType::F32, 1e-6),
        (DType::Bf16, DType::Bf16, 1e-2),
        (DType::F16, DType::F16, 2e-3),
        (DType::F32, DType::F64, 1e-14),
        (DType::F32, DType::Bf16, 1e-2),
        (DType::I32, DType::I32, 0.0),
        (DType::I64, DType::I64, 0.0),
        (DType::U8, DType::I32, 0.0),
    ];
    for (from, to, tolerance) in forms {
        let (a, x) = cases.sample(from, &[3, 7]);
        let (b, y) = cases.sample(from, &[7, 2]);
        let dims = dot_dims(none, (&[1], &[0]), to);
        cases.near(
            &format!("{from} to {to}"),
            &a.dot(&b, dims.clone()),
            dot(&x, &y, &dims),
            tolerance,
        );
    }
    let (a, x) = cases.sample(DType::F32, &[2, 3, 4]);
    let (b, y) = cases.sample(DType::F32, &[4, 2]);
    let dims = dot_dims(none, (&[2], &[0]), DType::F32);
    cases.near("matmul", &a.matmul(&b), dot(&x, &y, &dims), 1e-6);
    cases.check();
}

/// The convolution from its definition.
fn conv(x: &Array, k: &Array, dims: &ConvDims, out: &[usize]) -> Array {
    let (features, outputs) = (k.dims[dims.kernel.feature], k.dims[dims.kernel.batch]);
    let spatial = dims.strides.len();
    let windows: Vec<usize> = dims.kernel.spatial.iter().map(|&dim| k.dims[dim]).collect();
    Array::build(out, |index| {
        let (n, o) = (index[dims.output.batch], index[dims.output.feature]);
        let feature_group = o / (outputs / dims.feature_groups);
        let batch_group = o / (outputs / dims.batch_groups);
        let mut sum = 0.0;
        for window in indices(&windows) {
            let places: Option<Vec<i64>> = (0..spatial)
                .map(|i| {
                    let step = index[dims.output.spatial[i]] * dims.strides[i]
                        + window[i] * dims.kernel_dilation[i];
                    let place = step as i64 - dims.padding[i].0;
                    let dilation = dims.input_dilation[i] as i64;
                    (place >= 0 && place % dilation == 0).then_some(place / dilation)
                })
                .collect();
            let Some(places) = places else { continue };
            for f in 0..features {
                let mut at = vec![0i64; spatial + 2];
                at[dims.input.batch] = (n + batch_group * out[dims.output.batch]) as i64;
                at[dims.input.feature] = (f + feature_group * features) as i64;
                let mut tap = vec![0; spatial + 2];
                tap[dims.kernel.feature] = f;
                tap[dims.kernel.batch] = o;
                for i in 0..spatial {
                    at[dims.input.spatial[i]] = places[i];
                    tap[dims.kernel.spatial[i]] = window[i];
                }
                sum += x.at_or(&at, 0.0) * k.at(&tap);
            }
        }
        sum
    })
}

fn plain(spatial: usize) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(spatial),
        kernel: ConvSpec::kernel(spatial),
        output: ConvSpec::channels_last(spatial),
        strides: vec![1; spatial],
        padding: vec![(0, 0); spatial],
        input_dilation: vec![1; spatial],
        kernel_dilation: vec![1; spatial],
        feature_groups: 1,
        batch_groups: 1,
    }
}

/// The dims of the input and of the kernel, and the convolution.
type Layout = (&'static [usize], &'static [usize], ConvDims);

/// Strides, dilations and groups.
fn windows() -> [Layout; 7] {
    let two = || plain(2);
    [
        (&[2, 5, 6, 3], &[3, 2, 3, 4], two()),
        (
            &[2, 5, 6, 3],
            &[3, 3, 3, 4],
            ConvDims {
                padding: vec![(1, 1), (2, 0)],
                strides: vec![2, 1],
                ..two()
            },
        ),
        (
            &[1, 7, 7, 2],
            &[3, 2, 2, 2],
            ConvDims {
                kernel_dilation: vec![2, 3],
                ..two()
            },
        ),
        (
            &[1, 3, 4, 2],
            &[2, 3, 2, 2],
            ConvDims {
                input_dilation: vec![2, 3],
                padding: vec![(1, 2), (2, 2)],
                ..two()
            },
        ),
        (
            &[2, 4, 4, 4],
            &[3, 3, 2, 6],
            ConvDims {
                feature_groups: 2,
                ..two()
            },
        ),
        (
            &[2, 4, 4, 3],
            &[3, 3, 1, 6],
            ConvDims {
                feature_groups: 3,
                padding: vec![(1, 1); 2],
                ..two()
            },
        ),
        (
            &[4, 4, 4, 2],
            &[2, 2, 2, 4],
            ConvDims {
                batch_groups: 2,
                ..two()
            },
        ),
    ]
}

/// Paddings that cut.
fn paddings_that_cut() -> [Layout; 4] {
    let two = || plain(2);
    [
        (
            &[1, 6, 6, 1],
            &[3, 3, 1, 2],
            ConvDims {
                padding: vec![(-1, 1), (0, -2)],
                ..two()
            },
        ),
        (
            &[1, 3, 3, 1],
            &[2, 3, 1, 2],
            ConvDims {
                input_dilation: vec![3, 2],
                padding: vec![(-1, -2), (-2, 1)],
                ..two()
            },
        ),
        (
            &[1, 2, 3, 1],
            &[2, 1, 1, 2],
            ConvDims {
                input_dilation: vec![3, 1],
                padding: vec![(-1, -1), (-1, 0)],
                strides: vec![1, 2],
                ..two()
            },
        ),
        (
            &[1, 2, 3, 1],
            &[2, 2, 1, 2],
            ConvDims {
                padding: vec![(-2, 4), (3, -3)],
                ..two()
            },
        ),
    ]
}

/// Convolutions that are products of matrices, and of nothing.
fn matrix_products() -> [Layout; 8] {
    let two = || plain(2);
    [
        (&[2, 4, 5, 3], &[1, 1, 3, 4], two()),
        (
            &[2, 4, 5, 3],
            &[1, 1, 3, 4],
            ConvDims {
                strides: vec![2, 3],
                ..two()
            },
        ),
        (&[2, 4, 5, 3], &[4, 5, 3, 2], two()),
        (
            &[2, 3, 2, 3],
            &[1, 1, 3, 4],
            ConvDims {
                input_dilation: vec![2, 3],
                padding: vec![(1, 0), (0, 2)],
                ..two()
            },
        ),
        (&[2, 4, 5, 3], &[1, 5, 3, 2], two()),
        (
            &[2, 4, 5, 3],
            &[2, 2, 3, 2],
            ConvDims {
                kernel_dilation: vec![3, 4],
                ..two()
            },
        ),
        (&[0, 4, 4, 2], &[3, 3, 2, 3], two()),
        (&[2, 4, 4, 0], &[3, 3, 0, 3], two()),
    ]
}

#[test]
fn convolutions() {
    let mut cases = Cases::new();
    for (input, kernel, dims) in windows()
        .into_iter()
        .chain(paddings_that_cut())
        .chain(matrix_products())
    {
        compare(&mut cases, input, kernel, dims, DType::F32, 4e-6);
    }
    compare(
        &mut cases,
        &[2, 7, 3],
        &[3, 3, 4],
        ConvDims {
            strides: vec![2],
            ..plain(1)
        },
        DType::F32,
        4e-6,
    );
    compare(
        &mut cases,
        &[1, 3, 3, 4, 2],
        &[2, 2, 3, 2, 2],
        ConvDims {
            padding: vec![(1, 0); 3],
            ..plain(3)
        },
        DType::F32,
        4e-6,
    );
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::Bf16, 2e-2), (DType::F16, 4e-3)] {
        compare(
            &mut cases,
            &[1, 5, 5, 2],
            &[3, 3, 2, 2],
            plain(2),
            dtype,
            tolerance,
        );
        compare(
            &mut cases,
            &[1, 5, 5, 2],
            &[1, 1, 2, 2],
            plain(2),
            dtype,
            tolerance,
        );
    }
    cases.check();
}

#[test]
fn convolutions_of_the_layouts_that_gradients_ask_for() {
    let mut cases = Cases::new();
    let mut compare = |input: &[usize], kernel: &[usize], dims: ConvDims| {
        compare(&mut cases, input, kernel, dims, DType::F32, 4e-6);
    };
    let kernel_gradient = ConvDims {
        input: ConvSpec {
            batch: 3,
            feature: 0,
            spatial: vec![1, 2],
        },
        kernel: ConvSpec {
            batch: 3,
            feature: 0,
            spatial: vec![1, 2],
        },
        output: ConvSpec {
            batch: 2,
            feature: 3,
            spatial: vec![0, 1],
        },
        ..plain(2)
    };
    compare(&[2, 5, 6, 3], &[2, 3, 5, 4], kernel_gradient.clone());
    compare(&[2, 4, 5, 3], &[2, 4, 5, 4], kernel_gradient);
    let features_first = ConvDims {
        input: ConvSpec {
            batch: 0,
            feature: 1,
            spatial: vec![2, 3],
        },
        output: ConvSpec {
            batch: 0,
            feature: 1,
            spatial: vec![2, 3],
        },
        ..plain(2)
    };
    compare(&[2, 3, 5, 6], &[3, 2, 3, 4], features_first.clone());
    compare(&[2, 3, 5, 6], &[1, 1, 3, 4], features_first);
    cases.check();
}

fn compare(
    cases: &mut Cases,
    input: &[usize],
    kernel: &[usize],
    dims: ConvDims,
    dtype: DType,
    tolerance: f64,
) {
    let (x, a) = cases.sample(dtype, input);
    let (k, b) = cases.sample(dtype, kernel);
    let result: Tensor = x.conv(&k, dims.clone());
    let expected = conv(&a, &b, &dims, &result.dims());
    let name = format!("{dtype} {input:?} * {kernel:?}, {dims:?}");
    cases.near(&name, &result, expected, tolerance);
}

#[test]
fn the_oracle_knows_a_convolution_worked_by_hand() {
    let x = Array::from(&HostTensor::new([1, 3, 1], &[1.0f32, 2.0, 4.0]));
    let k = Array::from(&HostTensor::new([2, 1, 1], &[1.0f32, 10.0]));
    let dims = ConvDims {
        padding: vec![(1, 0)],
        ..plain(1)
    };
    assert_eq!(conv(&x, &k, &dims, &[1, 3, 1]).values, [10.0, 21.0, 42.0]);
}
