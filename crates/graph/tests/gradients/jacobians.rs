//! Derivatives of each element against central differences and JAX's numbers.

use phalanx_graph::{DType, Graph, HostTensor, Tensor, batch_jacobian, gradients, jacobian};

use crate::{
    Build, STEP, TOLERANCE, check, compile, ints, parameters, run, scrambled, with_element,
};

/// The target and its jacobian for the first of some inputs.
fn program(inputs: &[HostTensor], build: Build) -> phalanx_graph::Program {
    let graph = Graph::new();
    let x = parameters(&graph, inputs);
    let target = build(&x);
    let found = jacobian(&target, &[&x[0]]).remove(0).expect("connected");
    let expected = [target.dims(), x[0].dims()].concat();
    assert_eq!(found.dims(), expected);
    graph
        .finish(&[("target", &target), ("jacobian", &found)])
        .expect("builds")
}

/// Compares each element of the jacobian for the first input with the difference of the targets.
fn check_each(name: &str, inputs: &[HostTensor], build: Build) {
    let executable = compile(&program(inputs, build));
    let outputs = run(&executable, inputs);
    let (columns, got) = (inputs[0].to_f64().len(), outputs[1].to_f64());
    for at in 0..columns {
        let target = |change: f64| {
            let mut moved = inputs.to_vec();
            moved[0] = with_element(&inputs[0], at, change);
            run(&executable, &moved)[0].to_f64()
        };
        let (above, below) = (target(STEP), target(-STEP));
        for (row, (above, below)) in above.iter().zip(&below).enumerate() {
            let (expected, got) = ((above - below) / (2.0 * STEP), got[row * columns + at]);
            let error = (got - expected).abs();
            assert!(
                error <= TOLERANCE * (1.0 + expected.abs()),
                "{name}: d target[{row}] / d x[{at}]: expected {expected}, got {got}"
            );
        }
    }
}

/// A layer, a loop, a gather, a cumulative product of elements and a part of the tensor itself.
const CASES: [(&str, fn(&[Tensor]) -> Tensor); 6] = [
    ("dense", |x| x[0].matmul(&x[1]).tanh()),
    ("itself", |x| x[0].clone()),
    ("scalar", |x| x[0].square().sum_all()),
    ("gather", |x| x[0].gather(&x[2], 0).exp()),
    ("scan", |x| {
        let first = x[0].slice_dim(0, 0, 1).reshape(&[3]);
        let (last, rows) = x[0]
            .graph()
            .scan(2, &[&first], &[&x[0]], &[&x[1]], |carry, row, w| {
                let next = (&carry[0] * &row[0]).sin();
                let mixed = next.reshape(&[1, 3]).matmul(&w[0]);
                (vec![next], vec![mixed])
            });
        Tensor::concat(&[&last[0], &rows[0].reshape(&[8])], 0)
    }),
    ("own gradient", |x| {
        let y = x[0].exp().log1p();
        y.with_gradient(&[&x[0]], |g, x| vec![g * x[0].logistic()])
    }),
];

fn inputs() -> [HostTensor; 3] {
    [
        scrambled(&[2, 3]),
        scrambled(&[3, 4]),
        ints(&[3], &[1, 0, 1]),
    ]
}

#[test]
fn each_element_is_derived_as_differences_have_it() {
    for (name, build) in CASES {
        check_each(name, &inputs(), &build);
    }
    check_each("checkpointed", &inputs(), &|x| {
        let graph = x[0].graph();
        graph.checkpointed(&[&x[0]], || x[0].sin().square())
    });
}

/// The matrix of second derivatives, and the derivative of a jacobian.
#[test]
fn jacobians_are_of_gradients_and_have_gradients() {
    check_each("hessian", &inputs(), &|x| {
        let loss = x[0].matmul(&x[1]).tanh().square().sum_all();
        gradients(&loss, &[&x[0]]).remove(0).expect("connected")
    });
    check("derivative of a jacobian", &inputs()[..2], &|x| {
        let target = x[0].matmul(&x[1]).tanh();
        jacobian(&target, &[&x[0]]).remove(0).expect("connected")
    });
}

/// The rows of the batch on the diagonal of the whole jacobian.
#[test]
fn a_batch_has_the_diagonal_of_its_jacobian() {
    let graph = Graph::new();
    let [x, w, _] = inputs();
    let values = parameters(&graph, &[x.clone(), w.clone()]);
    let target = values[0].matmul(&values[1]).tanh().reshape(&[2, 2, 2]);
    let whole = jacobian(&target, &[&values[0]])
        .remove(0)
        .expect("connected");
    let own = batch_jacobian(&target, &[&values[0]])
        .remove(0)
        .expect("connected");
    assert_eq!(own.dims(), [2, 2, 2, 3]);
    let program = graph
        .finish(&[("whole", &whole), ("own", &own)])
        .expect("builds");
    let outputs = run(&compile(&program), &[x, w]);
    let (whole, own) = (outputs[0].to_f64(), outputs[1].to_f64());
    for row in 0..2 {
        for element in 0..4 {
            for column in 0..3 {
                let expected = whole[((row * 4 + element) * 2 + row) * 3 + column];
                let got = own[(row * 4 + element) * 3 + column];
                assert!(
                    (got - expected).abs() <= 1e-12,
                    "{row} {element} {column}: {got}, {expected}"
                );
            }
        }
    }
}

/// What `tests/golden/jax/jacobians.py` prints.
#[test]
fn jax_has_the_same_numbers() {
    let golden = include_str!("../../../../tests/golden/jax/jacobians.txt");
    let mut lines = golden.lines().map(|line| {
        let numbers = line
            .split(' ')
            .map(|number| number.parse::<f64>().expect("a number"));
        numbers.collect::<Vec<f64>>()
    });
    let mut next = || lines.next().expect("a line");
    let x = HostTensor::new([2, 3], &next());
    let w = HostTensor::new([3, 2], &next());
    let graph = Graph::new();
    let values = parameters(&graph, &[x.clone(), w.clone()]);
    let product = values[0].matmul(&values[1]);
    let softmax = product.softmax(1);
    let of_x = batch_jacobian(&softmax, &[&values[0]])
        .remove(0)
        .expect("connected");
    let of_both = jacobian(&softmax, &[&values[0], &values[1]]);
    let [whole, of_w] = of_both.try_into().expect("two");
    let loss = (product.sin() * &product).sum_all();
    let gradient = gradients(&loss, &[&values[1]])
        .remove(0)
        .expect("connected");
    let hessian = jacobian(&gradient, &[&values[1]])
        .remove(0)
        .expect("connected");
    let (whole, of_w) = (whole.expect("connected"), of_w.expect("connected"));
    let outputs = [
        ("whole", &whole),
        ("of w", &of_w),
        ("of rows", &of_x),
        ("hessian", &hessian),
    ];
    let program = graph.finish(&outputs).expect("builds");
    for (got, (name, _)) in run(&compile(&program), &[x, w]).iter().zip(outputs) {
        let (got, expected) = (got.to_f64(), next());
        assert_eq!(got.len(), expected.len(), "{name}");
        for (got, expected) in got.iter().zip(expected) {
            assert!(
                (got - expected).abs() <= 1e-12,
                "{name}: {got}, JAX has {expected}"
            );
        }
    }
}

#[test]
fn what_has_no_jacobian_is_refused() {
    let message = |build: &dyn Fn(&Graph, &[Tensor]) -> Tensor| {
        let graph = Graph::new();
        let x = parameters(&graph, &inputs());
        let y = build(&graph, &x);
        graph.finish(&[("y", &y)]).expect_err("refused").message
    };
    let first = |found: Vec<Option<Tensor>>, x: &Tensor| {
        assert!(found[0].is_none());
        x.clone()
    };
    let whole = message(&|_, x| first(jacobian(&x[2], &[&x[0]]), &x[0]));
    assert!(
        whole.contains("expected a floating-point tensor, got i32[3]"),
        "{whole}"
    );
    let other = message(&|_, x| {
        let apart = Graph::new().parameter("apart", x[0].shape());
        first(jacobian(&x[0], &[&apart]), &x[0])
    });
    assert!(other.contains("belongs to another graph"), "{other}");
    let rows = message(&|_, x| first(batch_jacobian(&x[0], &[&x[1]]), &x[0]));
    assert!(
        rows.contains("expected tensors of as many rows as the target, f64[2,3], got f64[3,4]"),
        "{rows}"
    );
    let graph = Graph::new();
    let x = parameters(&graph, &inputs());
    let found = jacobian(&x[0].sin(), &[&x[1], &x[0].convert(DType::I32)]);
    assert!(found.iter().all(Option::is_none));
}
