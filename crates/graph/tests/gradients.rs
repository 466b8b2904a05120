//! Every derivative against central differences in f64, over several shapes.

#![allow(clippy::type_complexity, reason = "tables of functions")]

mod support;

use phalanx_graph::op::{
    ConvDims, ConvSpec, DotDims, Node, Op, PadDim, ReduceOp, SliceDim, Via, WindowDim,
};
use phalanx_graph::{DType, Graph, HostTensor, Pool2d, Program, Shape, Tensor, gradients};
use phalanx_pjrt::Executable;
use support::{compile, execute};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 2e-7;

/// Distinct values in (-2, 2), none near an integer or another, in a scrambled order.
fn scrambled(dims: &[usize]) -> HostTensor {
    let count: usize = dims.iter().product();
    let stride = (1..)
        .map(|k| count / 2 + k)
        .find(|s| gcd(*s, count.max(1)) == 1);
    let stride = stride.unwrap_or(1);
    let value = |i: usize| {
        let place = (i * stride + 1) % count;
        -1.93 + 3.87 * (place as f64 + 0.37) / count as f64
    };
    HostTensor::new(dims, &(0..count).map(value).collect::<Vec<f64>>())
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Distinct values in (0.3, 2.3).
fn positive(dims: &[usize]) -> HostTensor {
    let values: Vec<f64> = scrambled(dims)
        .to_f64()
        .iter()
        .map(|x| (x + 2.0) * 0.5 + 0.3)
        .collect();
    HostTensor::new(dims, &values)
}

fn ints(dims: &[usize], values: &[i32]) -> HostTensor {
    HostTensor::new(dims, values)
}

fn run(executable: &Executable, inputs: &[HostTensor]) -> Vec<HostTensor> {
    execute(executable, &[inputs.to_vec()]).swap_remove(0)
}

type Build<'a> = &'a dyn Fn(&[Tensor]) -> Tensor;

/// The weighted sum of what `build` makes: a loss that tells every element of the result apart.
fn loss(inputs: &[Tensor], build: Build) -> Tensor {
    let result = build(inputs);
    let weights = scrambled(&result.dims()).convert(result.dtype());
    let weights = result.graph().constant(weights);
    (result * (weights + 2.5)).sum_all()
}

fn parameters(graph: &Graph, inputs: &[HostTensor]) -> Vec<Tensor> {
    let named = |(i, x): (usize, &HostTensor)| graph.parameter(&format!("x{i}"), x.shape().clone());
    inputs.iter().enumerate().map(named).collect()
}

/// A program of the loss and of its gradient for each floating-point input.
fn program(inputs: &[HostTensor], build: Build) -> Program {
    let graph = Graph::new();
    let x = parameters(&graph, inputs);
    let loss = loss(&x, build);
    let wrt: Vec<&Tensor> = x.iter().filter(|x| x.dtype().is_float()).collect();
    let found = gradients(&loss, &wrt);
    let dense: Vec<Tensor> = found
        .into_iter()
        .zip(&wrt)
        .map(|(gradient, x)| gradient.unwrap_or_else(|| x.zeros_like()))
        .collect();
    let mut outputs = vec![("loss", &loss)];
    outputs.extend(dense.iter().map(|gradient| ("gradient", gradient)));
    graph.finish(&outputs).expect("the case builds")
}

fn with_element(x: &HostTensor, at: usize, change: f64) -> HostTensor {
    let mut values = x.to_f64();
    values[at] += change;
    HostTensor::new(x.dims(), &values)
}

/// Compares every element of every gradient with the central difference of the loss.
fn check(name: &str, inputs: &[HostTensor], build: Build) {
    let executable = compile(&program(inputs, build));
    let loss_at = |inputs: &[HostTensor]| run(&executable, inputs)[0].to_f64()[0];
    let outputs = run(&executable, inputs);
    let floats = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float());
    for (gradient, i) in outputs[1..].iter().zip(floats) {
        for (at, &got) in gradient.to_f64().iter().enumerate() {
            let mut moved = inputs.to_vec();
            moved[i] = with_element(&inputs[i], at, STEP);
            let above = loss_at(&moved);
            moved[i] = with_element(&inputs[i], at, -STEP);
            let expected = (above - loss_at(&moved)) / (2.0 * STEP);
            let error = (got - expected).abs();
            assert!(
                error <= TOLERANCE * (1.0 + expected.abs()),
                "{name}: d loss / d input {i}[{at}] of {}: expected {expected}, got {got}",
                inputs[i].shape()
            );
        }
    }
}

const SHAPES: [&[usize]; 4] = [&[], &[5], &[2, 3], &[2, 1, 4]];

#[test]
fn unary() {
    let any: [(&str, fn(&Tensor) -> Tensor); 14] = [
        ("neg", |x| -x),
        ("abs", Tensor::abs),
        ("sign", |x| x.sign() + x),
        ("exp", Tensor::exp),
        ("expm1", Tensor::expm1),
        ("tanh", Tensor::tanh),
        ("logistic", Tensor::logistic),
        ("erf", Tensor::erf),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("floor", |x| x.floor() * x),
        ("ceil", |x| x.ceil() * x),
        ("round", |x| x.round() * x),
        ("square", Tensor::square),
    ];
    for (name, op) in any {
        for dims in SHAPES {
            check(name, &[scrambled(dims)], &|x| op(&x[0]));
        }
    }
    let positive_only: [(&str, fn(&Tensor) -> Tensor); 4] = [
        ("log", Tensor::log),
        ("log1p", Tensor::log1p),
        ("sqrt", Tensor::sqrt),
        ("rsqrt", Tensor::rsqrt),
    ];
    for (name, op) in positive_only {
        for dims in SHAPES {
            check(name, &[positive(dims)], &|x| op(&x[0]));
        }
    }
}

#[test]
fn binary() {
    let ops: [(&str, fn(&Tensor, &Tensor) -> Tensor); 8] = [
        ("add", |a, b| a + b),
        ("sub", |a, b| a - b),
        ("mul", |a, b| a * b),
        ("div", |a, b| a / b),
        ("pow", Tensor::pow),
        ("max", Tensor::maximum),
        ("min", Tensor::minimum),
        ("rem", Tensor::remainder),
    ];
    let shapes: [(&[usize], &[usize]); 4] = [
        (&[], &[]),
        (&[4], &[4]),
        (&[2, 3], &[3]),
        (&[2, 1, 3], &[4, 1]),
    ];
    for (name, op) in ops {
        for (a, b) in shapes {
            let b = with_offset(&positive(b), 0.017);
            check(name, &[positive(a), b], &|x| op(&x[0], &x[1]));
        }
    }
    check("mul by itself", &[scrambled(&[3])], &|x| {
        &x[0] * &x[0] * &x[0]
    });
}

fn with_offset(x: &HostTensor, offset: f64) -> HostTensor {
    let values: Vec<f64> = x.to_f64().iter().map(|x| x + offset).collect();
    HostTensor::new(x.dims(), &values)
}

#[test]
fn ties_and_edges_have_the_documented_derivative() {
    let at = |values: &[f64], build: Build| {
        let x = HostTensor::new([values.len()], values);
        let graph = Graph::new();
        let x_t = parameters(&graph, std::slice::from_ref(&x));
        let loss = build(&x_t).sum_all();
        let gradient = gradients(&loss, &[&x_t[0]]).remove(0).expect("connected");
        let program = graph.finish(&[("gradient", &gradient)]).expect("builds");
        run(&compile(&program), &[x])[0].to_f64()
    };
    let zero = |x: &Tensor| x.like(0.0);
    assert_eq!(
        at(&[-1.0, 0.0, 1.0], &|x| x[0].maximum(&zero(&x[0]))),
        [0.0, 0.0, 1.0]
    );
    assert_eq!(at(&[2.0, 5.0, 5.0], &|x| x[0].max(&[0])), [0.0, 0.5, 0.5]);
    assert_eq!(
        at(&[2.0, 0.0, 5.0], &|x| x[0].reduce(ReduceOp::Prod, &[0])),
        [0.0, 10.0, 0.0]
    );
    assert_eq!(
        at(&[0.0, 0.0, 5.0], &|x| x[0].reduce(ReduceOp::Prod, &[0])),
        [0.0, 0.0, 0.0]
    );
    assert_eq!(at(&[0.0, 2.0], &|x| x[0].pow(&zero(&x[0]))), [0.0, 0.0]);
    let window = [WindowDim {
        size: 2,
        stride: 1,
        ..WindowDim::identity()
    }];
    assert_eq!(
        at(&[3.0, 3.0, 1.0], &|x| x[0]
            .reduce_window(ReduceOp::Max, &window)),
        [1.0, 1.0, 0.0]
    );
}

#[test]
fn select_convert_stop() {
    check("select", &[scrambled(&[2, 3]), scrambled(&[3])], &|x| {
        let condition = x[0].greater(&x[0].like(0.3));
        condition.select(&x[0].square(), &x[1])
    });
    check("convert", &[scrambled(&[4])], &|x| {
        let wide = x[0].convert(DType::F64);
        wide.square()
    });
    let x = scrambled(&[3]);
    let graph = Graph::new();
    let t = graph.parameter("x", x.shape().clone());
    let through = (t.stop_gradient() * &t).sum_all();
    let stopped = t.stop_gradient().square().sum_all();
    let found = gradients(&through, &[&t]).remove(0).expect("connected");
    assert!(gradients(&stopped, &[&t])[0].is_none());
    let program = graph.finish(&[("gradient", &found)]).expect("builds");
    assert_eq!(
        run(&compile(&program), std::slice::from_ref(&x))[0].to_f64(),
        x.to_f64()
    );
}

#[test]
fn rearrangement() {
    check("reshape", &[scrambled(&[2, 6])], &|x| {
        x[0].reshape(&[3, 4]).square()
    });
    check("transpose", &[scrambled(&[2, 3, 4])], &|x| {
        x[0].transpose(&[2, 0, 1]).square()
    });
    check("broadcast", &[scrambled(&[3])], &|x| {
        x[0].broadcast_in(&[2, 3, 4], &[1]).square()
    });
    check("broadcast of a 1", &[scrambled(&[2, 1])], &|x| {
        x[0].broadcast_to(&[5, 2, 3]).square()
    });
    check("broadcast to 1", &[scrambled(&[1])], &|x| {
        x[0].broadcast_in(&[1, 1], &[0]).square()
    });
    check("reverse", &[scrambled(&[2, 3, 2])], &|x| {
        x[0].reverse(&[0, 2]).square()
    });
    check(
        "concat",
        &[scrambled(&[2, 3]), scrambled(&[2, 1]), scrambled(&[2, 2])],
        &|x| Tensor::concat(&[&x[0], &x[1], &x[2], &x[0]], 1).square(),
    );
}

#[test]
fn padding_and_slicing() {
    let pads: [&[PadDim]; 3] = [
        &[
            PadDim {
                low: 1,
                high: 2,
                interior: 0,
            },
            PadDim {
                low: 0,
                high: 0,
                interior: 2,
            },
        ],
        &[
            PadDim {
                low: -1,
                high: 2,
                interior: 1,
            },
            PadDim {
                low: 2,
                high: -2,
                interior: 0,
            },
        ],
        &[
            PadDim {
                low: -1,
                high: -1,
                interior: 1,
            },
            PadDim {
                low: -2,
                high: 3,
                interior: 2,
            },
        ],
    ];
    for (i, pads) in pads.iter().enumerate() {
        check(&format!("pad {i}"), &[scrambled(&[3, 4])], &|x| {
            x[0].pad(pads, 0.7).square()
        });
    }
    check(
        "pad with a tensor",
        &[scrambled(&[3]), scrambled(&[])],
        &|x| {
            let ones = x[0].zeros_like().exp();
            let edge = [PadDim {
                low: 2,
                high: -1,
                interior: 1,
            }];
            (x[0].pad(&edge, 0.0) + &x[1] * (1.0 - ones.pad(&edge, 0.0))).square()
        },
    );
    let slices: [&[SliceDim]; 2] = [
        &[
            SliceDim {
                start: 1,
                limit: 4,
                stride: 2,
            },
            SliceDim {
                start: 0,
                limit: 3,
                stride: 3,
            },
        ],
        &[
            SliceDim {
                start: 0,
                limit: 5,
                stride: 1,
            },
            SliceDim {
                start: 2,
                limit: 3,
                stride: 1,
            },
        ],
    ];
    for (i, slices) in slices.iter().enumerate() {
        check(&format!("slice {i}"), &[scrambled(&[5, 3])], &|x| {
            x[0].slice(slices).square()
        });
    }
    for start in [-2, 0, 1, 9] {
        let inputs = [scrambled(&[4, 3]), ints(&[], &[start])];
        check("dynamic_slice", &inputs, &|x| {
            let zero = x[1].like(0.0);
            x[0].dynamic_slice(&[&x[1], &zero], &[2, 2]).square()
        });
        let inputs = [scrambled(&[4, 3]), scrambled(&[2, 2]), ints(&[], &[start])];
        check("dynamic_update_slice", &inputs, &|x| {
            let zero = x[2].like(0.0);
            x[0].dynamic_update_slice(&x[1], &[&x[2], &zero]).square()
        });
    }
}

#[test]
fn indexing() {
    // 7 and -1 are out of range: gather clamps, scatter drops.
    let indices = ints(&[2, 2], &[0, 3, 3, 7]);
    check(
        "gather rows",
        &[scrambled(&[4, 3]), indices.clone()],
        &|x| x[0].gather(&x[1], 0).square(),
    );
    check(
        "gather columns",
        &[scrambled(&[2, 4]), ints(&[3], &[1, -1, 1])],
        &|x| x[0].gather(&x[1], 1).square(),
    );
    // What is scattered is added to the gradient of the other use, in its shape.
    check(
        "gather beside another use",
        &[scrambled(&[2, 3]), ints(&[3], &[0, 5, 5])],
        &|x| x[0].reshape(&[6]).gather(&x[1], 0).square().sum_all() + x[0].exp().sum_all(),
    );
    check("gather one", &[scrambled(&[4]), ints(&[], &[2])], &|x| {
        x[0].gather(&x[1], 0).square()
    });
    let inputs = [scrambled(&[4, 3]), indices, scrambled(&[2, 2, 3])];
    check("scatter_add rows", &inputs, &|x| {
        x[0].scatter_add(&x[1], &x[2], 0).square()
    });
    let inputs = [
        scrambled(&[2, 4]),
        ints(&[3], &[1, -1, 1]),
        scrambled(&[2, 3]),
    ];
    check("scatter_add columns", &inputs, &|x| {
        x[0].scatter_add(&x[1], &x[2], 1).square()
    });
    check("scatter_set columns", &inputs_of_set(), &|x| {
        x[0].scatter_set(&x[1], &x[2], 1).square()
    });
}

/// Columns 3, none and 1 of four.
fn inputs_of_set() -> [HostTensor; 3] {
    let indices = ints(&[3], &[3, -1, 1]);
    [scrambled(&[2, 4]), indices, scrambled(&[2, 3])]
}

#[test]
fn products() {
    check("matmul", &[scrambled(&[3, 4]), scrambled(&[4, 2])], &|x| {
        x[0].matmul(&x[1])
    });
    check(
        "matmul of a stack",
        &[scrambled(&[2, 3, 4]), scrambled(&[4, 2])],
        &|x| x[0].matmul(&x[1]),
    );
    check(
        "matmul batched",
        &[scrambled(&[2, 3, 4]), scrambled(&[2, 4, 2])],
        &|x| x[0].matmul(&x[1]),
    );
    check("matmul by itself", &[scrambled(&[3, 3])], &|x| {
        x[0].matmul(&x[0])
    });
    let dims = DotDims {
        lhs_batch: vec![2],
        rhs_batch: vec![0],
        lhs_contract: vec![3, 0],
        rhs_contract: vec![1, 3],
        dtype: DType::F64,
    };
    check(
        "dot in odd order",
        &[scrambled(&[2, 3, 2, 4]), scrambled(&[2, 4, 3, 2])],
        &|x| x[0].dot(&x[1], dims.clone()),
    );
    let outer = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![],
        rhs_contract: vec![],
        dtype: DType::F64,
    };
    check("outer product", &[scrambled(&[3]), scrambled(&[2])], &|x| {
        x[0].dot(&x[1], outer.clone())
    });
}

fn conv_dims(strides: [usize; 2], padding: [(i64, i64); 2]) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: strides.to_vec(),
        padding: padding.to_vec(),
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
    }
}

#[test]
fn pools() {
    let pool = |size, strides, padding| Pool2d {
        size,
        strides,
        padding,
    };
    for pool in [
        pool([2, 2], [2, 2], [(0, 0), (0, 0)]),
        pool([3, 2], [1, 2], [(1, 1), (0, 1)]),
    ] {
        check("max_pool2d", &[scrambled(&[2, 5, 6, 2])], &|x| {
            x[0].max_pool2d(pool).square()
        });
    }
}

#[test]
fn batch_norms() {
    let inputs = [scrambled(&[3, 2, 4]), scrambled(&[4]), scrambled(&[4])];
    check("batch_norm", &inputs, &|x| {
        let [y, ..] = x[0].batch_norm(&x[1], &x[2], 0.1);
        y.sin()
    });
    check("batch_norm and its statistics", &inputs, &|x| {
        let [y, mean, variance] = x[0].batch_norm(&x[1], &x[2], 0.1);
        y.sin().sum(&[0, 1]) * mean.exp() + variance.square()
    });
}

#[test]
fn convolutions() {
    let case = |name: &str, x: &[usize], k: &[usize], dims: ConvDims| {
        check(name, &[scrambled(x), scrambled(k)], &|x| {
            x[0].conv(&x[1], dims.clone())
        });
    };
    let valid = conv_dims([1, 1], [(0, 0), (0, 0)]);
    let same = conv_dims([1, 1], [(1, 1), (1, 1)]);
    case("valid", &[2, 4, 5, 2], &[3, 2, 2, 3], valid.clone());
    case("same", &[1, 4, 3, 2], &[3, 3, 2, 2], same.clone());
    case("1x1", &[2, 3, 3, 2], &[1, 1, 2, 3], valid.clone());
    case(
        "1x1 strided",
        &[1, 5, 4, 2],
        &[1, 1, 2, 2],
        conv_dims([2, 2], [(0, 0), (0, 0)]),
    );
    case(
        "strided",
        &[1, 6, 5, 2],
        &[3, 2, 2, 2],
        conv_dims([2, 3], [(1, 0), (0, 2)]),
    );
    case(
        "negative padding",
        &[1, 6, 5, 1],
        &[2, 2, 1, 2],
        conv_dims([1, 2], [(-1, 0), (0, -1)]),
    );
    case(
        "kernel dilation",
        &[1, 6, 7, 1],
        &[2, 3, 1, 2],
        ConvDims {
            kernel_dilation: vec![3, 2],
            ..same.clone()
        },
    );
    case(
        "input dilation",
        &[1, 3, 3, 2],
        &[3, 2, 2, 1],
        ConvDims {
            input_dilation: vec![2, 3],
            ..same.clone()
        },
    );
    case(
        "groups",
        &[2, 4, 4, 4],
        &[2, 2, 2, 6],
        ConvDims {
            feature_groups: 2,
            ..valid.clone()
        },
    );
    case(
        "depthwise",
        &[1, 5, 4, 3],
        &[3, 3, 1, 6],
        ConvDims {
            feature_groups: 3,
            strides: vec![2, 1],
            ..same.clone()
        },
    );
    case(
        "batch groups",
        &[4, 4, 3, 2],
        &[2, 2, 2, 4],
        ConvDims {
            batch_groups: 2,
            ..valid
        },
    );
    let line = ConvDims {
        input: ConvSpec {
            batch: 1,
            feature: 0,
            spatial: vec![2],
        },
        kernel: ConvSpec {
            batch: 0,
            feature: 2,
            spatial: vec![1],
        },
        output: ConvSpec {
            batch: 2,
            feature: 1,
            spatial: vec![0],
        },
        strides: vec![2],
        padding: vec![(1, 2)],
        input_dilation: vec![1],
        kernel_dilation: vec![2],
        feature_groups: 1,
        batch_groups: 1,
    };
    case("one dim, odd layouts", &[2, 3, 7], &[4, 3, 2], line);
}

#[test]
fn reductions() {
    for kind in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        for (dims, over) in [
            (vec![4], vec![0]),
            (vec![2, 3, 2], vec![0, 2]),
            (vec![3, 2], vec![1]),
        ] {
            check(kind.name(), &[scrambled(&dims)], &|x| {
                x[0].reduce(kind, &over).square()
            });
        }
    }
    check("mean", &[scrambled(&[3, 4])], &|x| x[0].mean(&[1]).square());
    check("softmax", &[scrambled(&[2, 4])], &|x| x[0].softmax(1));
    check("log_softmax", &[scrambled(&[2, 4])], &|x| {
        x[0].log_softmax(1)
    });
    check("logsumexp", &[scrambled(&[3, 2])], &|x| x[0].logsumexp(0));
}

#[test]
fn windows() {
    let dim = |size, stride, dilation, low, high| WindowDim {
        size,
        stride,
        dilation,
        low,
        high,
    };
    let one = WindowDim::identity();
    let cases: [(&[usize], Vec<WindowDim>); 5] = [
        (&[7], vec![dim(3, 1, 1, 0, 0)]),
        (&[7], vec![dim(3, 2, 1, 1, 1)]),
        (&[9], vec![dim(2, 2, 3, 0, 2)]),
        (
            &[1, 4, 6, 2],
            vec![one, dim(2, 2, 1, 0, 0), dim(2, 2, 1, 0, 0), one],
        ),
        (
            &[1, 5, 4, 1],
            vec![one, dim(3, 2, 1, 1, 1), dim(2, 1, 2, 0, 1), one],
        ),
    ];
    for kind in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
        for (dims, window) in &cases {
            check(
                &format!("window {}", kind.name()),
                &[scrambled(dims)],
                &|x| x[0].reduce_window(kind, window).square(),
            );
        }
    }
}

#[test]
fn scans() {
    let inputs = [scrambled(&[2]), scrambled(&[3, 2]), scrambled(&[2, 2])];
    check("scan", &inputs, &|x| {
        let (last, rows) = x[0]
            .graph()
            .scan(3, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
                let mixed = carry[0].reshape(&[1, 2]).matmul(&w[0]).reshape(&[2]);
                let next = (mixed + &row[0]).tanh();
                let y = &next * &carry[0];
                (vec![next], vec![y])
            });
        Tensor::concat(&[&last[0].square(), &rows[0].reshape(&[6])], 0)
    });
    check(
        "scan with a counter",
        &[scrambled(&[2]), ints(&[], &[1])],
        &|x| {
            let (last, _) = x[0]
                .graph()
                .scan(3, &[&x[0], &x[1]], &[], &[], |carry, _, _| {
                    let scale = carry[1].convert(DType::F64);
                    (vec![&carry[0] * scale, &carry[1] + 1.0], vec![])
                });
            last[0].square()
        },
    );
    check(
        "scan, only the rows used",
        &[scrambled(&[]), scrambled(&[4])],
        &|x| {
            let (_, rows) = x[0]
                .graph()
                .scan(4, &[&x[0]], &[&x[1]], &[], |carry, row, _| {
                    let next = &carry[0] * &row[0];
                    (vec![next.clone()], vec![next.sin()])
                });
            rows[0].clone()
        },
    );
    check("scan with kept products", &KEPT.map(scrambled), &kept);
    let inputs = [
        scrambled(&[2, 3]),
        scrambled(&[4, 2, 3]),
        scrambled(&[3, 3]),
    ];
    check("scan, a constant in two products", &inputs, &|x| {
        twice(x, false)
    });
    let none = [
        scrambled(&[2, 3]),
        scrambled(&[0, 2, 3]),
        scrambled(&[3, 3]),
    ];
    check("scan without steps", &none, &|x| twice(x, false));
    check("scan, a constant in a product and a sum", &inputs, &|x| {
        twice(x, true)
    });
}

/// Products long enough to be kept for the way back, one of which feeds the other, and a bias.
const KEPT: [&[usize]; 4] = [&[2, 8], &[3, 2, 8], &[8, 9], &[9]];

fn kept(x: &[Tensor]) -> Tensor {
    let given = [&x[2], &x[3]];
    let (last, rows) = x[0]
        .graph()
        .scan(3, &[&x[0]], &[&x[1]], &given, |carry, row, fixed| {
            let inner = ((&carry[0] + &row[0]) * 0.3).matmul(&fixed[0]) + &fixed[1];
            let outer = (inner.sin() * 0.3).matmul(&fixed[0].transpose(&[1, 0]));
            (vec![(&outer + &row[0]).tanh()], vec![outer])
        });
    last[0].square() + rows[0].sum(&[0])
}

/// `w` in a product with the carry and one with a row, and perhaps where no product is.
fn twice(x: &[Tensor], alone: bool) -> Tensor {
    let steps = x[1].dim(0);
    let (last, rows) = x[0]
        .graph()
        .scan(steps, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
            let mixed = carry[0].matmul(&w[0]) + row[0].matmul(&w[0].transpose(&[1, 0]));
            let mixed = if alone {
                mixed + w[0].sum(&[0]).sin()
            } else {
                mixed
            };
            let next = (mixed * 0.3).tanh();
            (vec![next.clone()], vec![next])
        });
    last[0].square() + rows[0].sum(&[0])
}

/// The products of matrices in the bodies of a program's last loop, and behind it.
fn products_of_last_loop(program: &Program) -> (usize, usize) {
    let count = |nodes: &[Node]| {
        let is_dot = |node: &&Node| matches!(node.op, Op::Dot(_));
        nodes.iter().filter(is_dot).count()
    };
    let mut loops = program.nodes.iter().filter_map(|node| match &node.op {
        Op::Scan(scan) => Some(count(&scan.body.nodes)),
        _ => None,
    });
    (loops.next_back().expect("a loop"), count(&program.nodes))
}

#[test]
fn few_products_stay_in_the_reverse_loop() {
    let inputs = KEPT.map(scrambled);
    let simple = program(&inputs, &kept).simplified();
    assert_eq!(products_of_last_loop(&simple), (2, 2));
    // Rows that weigh more than the constant: the sum is carried.
    let large = [
        scrambled(&[64, 2]),
        scrambled(&[3, 64, 2]),
        scrambled(&[2, 2]),
    ];
    let simple = program(&large, &|x| {
        let (last, _) = x[0]
            .graph()
            .scan(3, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
                (
                    vec![(carry[0].sin().matmul(&w[0]) + &row[0]).tanh()],
                    vec![],
                )
            });
        last[0].clone()
    });
    let simple = simple.simplified();
    assert_eq!(products_of_last_loop(&simple), (3, 0));
}

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

/// A function of a tensor on every replica, by the number of replicas it is tried with.
type Exchange = (&'static str, &'static [usize], fn(&Tensor) -> Tensor);

const EXCHANGES: [Exchange; 9] = [
    ("all_reduce", &[2, 3], |x| {
        x.all_reduce(ReduceOp::Sum).square()
    }),
    ("one device", &[3], |x| several(x, Via::OneDevice)),
    ("hierarchical", &[3, 4], |x| several(x, Via::Hierarchical)),
    ("mean", &[3], |x| x.all_mean().square()),
    ("rows of a scan", &[2], |x| {
        let zero = x.graph().full(&Shape::new(DType::F64, [2]), 0.0);
        let step = |c: &[Tensor], r: &[Tensor], _: &[Tensor]| {
            let sum = (&c[0] + &r[0]).tanh().all_reduce(ReduceOp::Sum);
            (vec![&sum + &r[0]], vec![sum.square()])
        };
        let (carry, rows) = x.graph().scan(6, &[&zero], &[x], &[], step);
        &rows[0] * carry[0].broadcast_to(&[6, 2])
    }),
    ("all_gather", &[2], |x| x.all_gather(0).square()),
    ("reduce_scatter", &[2], |x| x.reduce_scatter(0).square()),
    ("all_to_all", &[2], |x| x.all_to_all(0, 1).square()),
    ("collective_permute", &[2], |x| {
        x.collective_permute(&[(0, 1)]).square()
    }),
];

/// Two of the results are used, each of a function of `x`; the third is not.
fn several(x: &Tensor, via: Via) -> Tensor {
    let (row, cube) = (x.slice_dim(0, 0, 1), x.square() * x);
    let sums = x.graph().all_reduce(&[x, &row, &cube], ReduceOp::Sum, via);
    sums[1].square() * &sums[2]
}

#[test]
fn collectives_differentiate_the_sum_over_replicas() {
    for (name, counts, op) in EXCHANGES {
        for &replicas in counts {
            check_exchange(name, replicas, op);
        }
    }
}

fn check_exchange(name: &str, replicas: usize, op: fn(&Tensor) -> Tensor) {
    const DIMS: [usize; 2] = [6, 2];
    let graph = Graph::with_replicas(replicas);
    let x = graph.parameter("x", Shape::new(DType::F64, DIMS));
    // Weights differ between replicas, so that mixing them up shows.
    let replica = graph.replica_id().convert(DType::F64) + 1.0;
    let result = op(&x) * replica;
    let loss = loss(std::slice::from_ref(&result), &|x| x[0].clone());
    let gradient = gradients(&loss, &[&x]).remove(0).expect("connected");
    let outputs = [("loss", &loss), ("g", &gradient)];
    let executable = compile(&graph.finish(&outputs).expect("builds"));
    let inputs: Vec<HostTensor> = (0..replicas)
        .map(|replica| with_offset(&scrambled(&DIMS), 0.1 * replica as f64))
        .collect();
    let run = |inputs: &[HostTensor]| {
        let lists: Vec<Vec<HostTensor>> = inputs.iter().map(|x| vec![x.clone()]).collect();
        execute(&executable, &lists)
    };
    let total = |inputs: &[HostTensor]| -> f64 {
        let losses = run(inputs);
        losses.iter().map(|results| results[0].to_f64()[0]).sum()
    };
    for (replica, found) in run(&inputs).iter().enumerate() {
        for (at, &got) in found[1].to_f64().iter().enumerate() {
            let mut moved = inputs.clone();
            moved[replica] = with_element(&inputs[replica], at, STEP);
            let above = total(&moved);
            moved[replica] = with_element(&inputs[replica], at, -STEP);
            let expected = (above - total(&moved)) / (2.0 * STEP);
            assert!(
                (got - expected).abs() <= 5.0 * TOLERANCE * (1.0 + expected.abs()),
                "{name} on replica {replica} of {replicas}[{at}]: expected {expected}, got {got}"
            );
        }
    }
}

/// The way back of an exchange is one exchange, the same way.
#[test]
fn the_gradient_of_a_variadic_sum_is_one_variadic_sum() {
    let graph = Graph::with_replicas(2);
    let x = graph.parameter("x", Shape::f32([6, 2]));
    let result = several(&x, Via::Hierarchical);
    let gradient = gradients(&result.sum_all(), &[&x]).remove(0);
    let outputs = [("g", &gradient.expect("connected"))];
    let program = graph.finish(&outputs).expect("builds");
    let is_sum = |node: &&Node| node.op.name() == "all_reduce";
    let sums: Vec<&Node> = program.nodes.iter().filter(is_sum).collect();
    let sizes: Vec<usize> = sums.iter().map(|node| node.inputs.len()).collect();
    assert_eq!(sizes, [3, 2], "{}", program.dump());
    assert_eq!(sums[0].op, sums[1].op);
    let text = program.dump();
    assert!(text.contains("add via hierarchical"), "{text}");
}

#[test]
fn what_has_no_derivative_says_so() {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::scalar(DType::F32));
    let looped = graph.while_loop(&[&x], |v| v[0].less(&v[0].like(9.0)), |v| vec![&v[0] * 2.0]);
    let _ = gradients(&looped[0], &[&x]);
    let error = graph.error().expect("recorded");
    assert!(error.to_string().contains("use scan"), "{error}");
    assert!(error.file.ends_with("gradients.rs"), "{error}");

    let graph = Graph::new();
    let x = graph.parameter("x", Shape::scalar(DType::F32));
    let chosen = graph.case(&graph.scalar(DType::I32, 0.0), &[&x], 2, |_, x| x.to_vec());
    let _ = gradients(&chosen[0], &[&x]);
    let error = graph.error().expect("recorded").to_string();
    assert!(error.contains("inside its branches"), "{error}");

    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([2]));
    let _ = gradients(&x, &[&x]);
    let error = graph.error().expect("recorded");
    assert!(
        error
            .to_string()
            .contains("expected a floating-point scalar, got f32[2]"),
        "{error}"
    );

    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([2]));
    let y = graph.parameter("y", Shape::f32([2]));
    assert!(gradients(&y.sum_all(), &[&x])[0].is_none(), "disconnected");
    assert!(gradients(&x.convert(DType::I32).convert(DType::F32).sum_all(), &[&x])[0].is_none());
}
