//! Every derivative against central differences in f64, over several shapes.

#![allow(clippy::type_complexity, reason = "tables of functions")]

mod images;
mod jacobians;
mod loops;
mod own;
mod rearrangement;
mod recurrent;
mod replicas;
mod second;
#[path = "../support/mod.rs"]
mod support;

use phalanx_graph::op::{DotDims, ReduceOp, WindowDim};
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
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
    // Of `a + a b + a b c`.
    assert_eq!(at(&[2.0, 0.0, 5.0], &|x| x[0].cumprod(0)), [1.0, 12.0, 0.0]);
    assert_eq!(at(&[2.0, 0.0, 5.0], &|x| x[0].cumsum(0)), [3.0, 2.0, 1.0]);
    let tiny = [1e-200, 1e-200, 1e200];
    assert_eq!(
        at(&tiny, &|x| x[0].reduce(ReduceOp::Prod, &[0])),
        [1.0, 1.0, 0.0]
    );
    assert_eq!(at(&[0.0, 2.0], &|x| x[0].pow(&zero(&x[0]))), [0.0, 0.0]);
    // The slope of what was not chosen is 0 however steep it is.
    let guarded = |x: &[Tensor]| {
        let is_large = x[0].greater(&x[0].like(1e-200));
        is_large.select(&x[0].rsqrt(), &zero(&x[0]))
    };
    assert_eq!(at(&[1e-250, 1.0], &guarded), [0.0, -0.5]);
    let slope = at(&[-40.0], &|x| x[0].expm1())[0];
    let expected = (-40.0f64).exp();
    assert!((slope / expected - 1.0).abs() < 1e-12, "{slope} {expected}");
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

/// A row without terms has a gradient of 0 where its result is not used.
#[test]
fn rows_without_terms_have_no_part_in_a_gradient() {
    let none = f64::NEG_INFINITY;
    let inputs = [HostTensor::new([2, 2], &[none, none, 0.0, 1.0])];
    let program = program(&inputs, &|x| {
        let y = x[0].logsumexp(1);
        y.is_finite().select(&y, &y.like(0.0))
    });
    let found = run(&compile(&program), &inputs)[1].to_f64();
    assert_eq!(found[..2], [0.0; 2]);
    let weight = scrambled(&[2]).to_f64()[1] + 2.5;
    let share = 1.0 / (1.0 + std::f64::consts::E);
    for (got, expected) in found[2..].iter().zip([share, 1.0 - share]) {
        assert!((got - expected * weight).abs() < 1e-12, "{found:?}");
    }
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
    // What has no derivative needs none behind what stops the gradient.
    for stopped in [t.stop_gradient(), t.floor(), t.convert(DType::I32)] {
        let largest = stopped.all_reduce(ReduceOp::Max).convert(t.dtype());
        assert!(gradients(&(largest * &t).sum_all(), &[&t])[0].is_some());
    }
    let found = gradients(&through, &[&t]).remove(0).expect("connected");
    assert!(gradients(&stopped, &[&t])[0].is_none());
    let program = graph.finish(&[("gradient", &found)]).expect("builds");
    assert_eq!(
        run(&compile(&program), std::slice::from_ref(&x))[0].to_f64(),
        x.to_f64()
    );
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

/// A cotangent below the numbers of f16, of a product that is kept in f32.
#[test]
fn cotangents_of_f16_products_are_not_rounded_first() {
    let dims = |dtype| DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![1],
        rhs_contract: vec![0],
        dtype,
    };
    let graph = Graph::new();
    let [x, w] = ["x", "w"].map(|name| graph.parameter(name, Shape::new(DType::F16, [1, 1])));
    let y = x.dot(&w, dims(DType::F32));
    let found = gradients(&(y * 1e-9).sum_all(), &[&x, &w]);
    let [to_x, to_w] = [0, 1].map(|i| found[i].clone().expect("connected"));
    let program = graph.finish(&[("x", &to_x), ("w", &to_w)]).expect("builds");
    let inputs = [2000.0, 30_000.0].map(|x| HostTensor::new([1, 1], &[x]).convert(DType::F16));
    let found = run(&compile(&program), &inputs);
    for (gradient, expected) in found.iter().zip([3e-5, 2e-6]) {
        let nearest = HostTensor::new([1, 1], &[expected]).convert(DType::F16);
        assert_eq!(*gradient, nearest);
    }
}

/// What was f16 before it was widened is multiplied as f16: nothing is lost, and devices are faster.
#[test]
fn cotangents_that_were_f16_are_multiplied_so() {
    let graph = Graph::new();
    let [x, w] = ["x", "w"].map(|name| graph.parameter(name, Shape::new(DType::F16, [2, 2])));
    let found = gradients(&x.matmul(&w).square().sum_all(), &[&x, &w]);
    let outputs: Vec<(&str, &Tensor)> = found.iter().flatten().map(|g| ("g", g)).collect();
    let program = graph.finish(&outputs).expect("builds").simplified();
    let dots = program.nodes.iter();
    let dots = dots.filter(|node| matches!(node.op, phalanx_graph::Op::Dot(_)));
    let factors = dots.flat_map(|node| &node.inputs);
    let dtypes: Vec<DType> = factors.map(|&value| program.shape(value).dtype).collect();
    assert_eq!(dtypes, [DType::F16; 6]);
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
fn no_window_has_a_gradient_of_the_dims() {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([2, 0, 4]));
    let pair = WindowDim {
        size: 2,
        stride: 2,
        ..WindowDim::identity()
    };
    let window = [WindowDim::identity(), pair, WindowDim::identity()];
    for kind in [ReduceOp::Sum, ReduceOp::Max] {
        let total = x.reduce_window(kind, &window).sum_all();
        let found = gradients(&total, &[&x]).swap_remove(0).unwrap();
        assert_eq!(found.dims(), [2, 0, 4]);
    }
}

#[test]
fn what_has_no_derivative_says_so() {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::scalar(DType::F32));
    let looped = graph.while_loop(&[&x], |v| v[0].less(&v[0].like(9.0)), |v| vec![&v[0] * 2.0]);
    let _ = gradients(&looped[0], &[&x]);
    let error = graph.error().expect("recorded");
    assert!(error.to_string().contains("use scan"), "{error}");
    assert!(error.file.ends_with("gradients/main.rs"), "{error}");

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
