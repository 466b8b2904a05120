//! What simplification takes out, what it must leave, and that results stay the same.

mod support;

use phalanx_graph::op::{CustomCall, PadDim, ReduceOp, SliceDim, Via};
use phalanx_graph::{DType, Graph, HostTensor, Op, Program, Shape, Tensor};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Names of the ops that are left of `build(x: f32[2,3], i: i32[3])`, parameters aside.
fn left(build: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Vec<&'static str> {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([2, 3]));
    let i = g.parameter("i", Shape::new(DType::I32, [3]));
    let y = build(&x, &i);
    let simple = g.finish(&[("y", &y)]).unwrap().simplified();
    assert_eq!(simple.parameters.len(), 2);
    assert_eq!(*simple.shape(simple.outputs[0].1), y.shape());
    names(&simple)
}

fn names(program: &Program) -> Vec<&'static str> {
    let ops = program.nodes.iter().map(|node| &node.op);
    ops.filter(|op| !matches!(op, Op::Parameter(_)))
        .map(Op::name)
        .collect()
}

type Build = fn(&Tensor, &Tensor) -> Tensor;

const NOTHING: [&str; 0] = [];

#[test]
fn identities_leave_nothing() {
    let whole = |size| SliceDim {
        start: 0,
        limit: size,
        stride: 1,
    };
    let cases: [(&str, Build); 21] = [
        ("x * 1", |x, _| x * 1.0),
        ("1 * x", |x, _| 1.0 * x),
        ("x / 1", |x, _| x / 1.0),
        ("x - 0", |x, _| x - 0.0),
        ("x + -0", |x, _| x + -0.0),
        ("i + 0", |_, i| i + 0.0),
        ("i | 0", |_, i| i.or(&i.like(0.0))),
        ("i << 0", |_, i| i.shift_left(&i.like(0.0))),
        ("--x", |x, _| -(-x)),
        ("max(x, x)", |x, _| x.maximum(x)),
        ("select same", |x, _| x.greater(&x.like(0.0)).select(x, x)),
        ("select true", |x, _| {
            x.graph()
                .constant(HostTensor::scalar(true))
                .broadcast_to(&[2, 3])
                .select(x, &x.zeros_like())
        }),
        ("stop_gradient", |x, _| x.stop_gradient()),
        ("reshape there and back", |x, _| {
            x.reshape(&[6]).reshape(&[2, 3])
        }),
        ("transpose there and back", |x, _| {
            x.transpose(&[1, 0]).transpose(&[1, 0])
        }),
        ("bitcast same", |x, _| x.bitcast(DType::F32)),
        ("wider and back", |x, _| {
            x.convert(DType::F64).convert(DType::F32)
        }),
        ("pad nothing", |x, _| x.pad(&[PadDim::default(); 2], 0.0)),
        ("concat with nothing", |x, _| {
            Tensor::concat(&[&x.slice_dim(0, 1, 1), x], 0)
        }),
        ("reverse nothing", |x, _| x.reverse(&[])),
        ("lone replica", |x, _| {
            let sums = x.graph().all_reduce(&[x, x], ReduceOp::Sum, Via::OneDevice);
            sums[1]
                .all_reduce(ReduceOp::Sum)
                .all_mean()
                .all_gather(0)
                .reduce_scatter(1)
        }),
    ];
    for (name, build) in cases {
        assert_eq!(left(build), NOTHING, "{name}");
    }
    assert_eq!(left(|x, _| x.slice(&[whole(2), whole(3)])), NOTHING);
}

#[test]
fn what_changes_a_bit_stays() {
    // 0 + -0 is 0; 0 - x is not -x at 0; x * 0 is NaN where x is; narrowing loses bits.
    assert_eq!(left(|x, _| x + 0.0).last(), Some(&"add"));
    assert_eq!(left(|x, _| 0.0 - x).last(), Some(&"subtract"));
    assert_eq!(left(|x, _| x * 0.0).last(), Some(&"multiply"));
    assert_eq!(left(|x, _| x - x), ["subtract"]);
    assert_eq!(
        left(|x, _| x.convert(DType::Bf16).convert(DType::F32)),
        ["convert", "convert"]
    );
    assert_eq!(
        left(|_, i| i.convert(DType::F32).convert(DType::I32)),
        ["convert", "convert"]
    );
    // From a float an integer saturates, from another integer it wraps.
    assert_eq!(
        left(|_, i| i.convert(DType::F64).convert(DType::U8)),
        ["convert", "convert"]
    );
    assert_eq!(
        left(|_, i| i.convert(DType::F64).convert(DType::I64)),
        ["convert"]
    );
    assert_eq!(left(|x, _| x.slice_dim(1, 1, 2)), ["slice"]);
    assert_eq!(left(|x, _| x.maximum(&-x)), ["negate", "maximum"]);
}

/// What a graph is computed to; nothing where that is left to the device.
fn scalar(build: fn(&Graph) -> Tensor) -> Option<HostTensor> {
    let g = Graph::new();
    let simple = g.finish(&[("y", &build(&g))]).unwrap().simplified();
    match &simple.nodes[simple.outputs[0].1.node].op {
        Op::Constant(value) => Some(value.clone()),
        _ => None,
    }
}

#[test]
fn numbers_are_computed() {
    let f32s = |value: f32| Some(HostTensor::scalar(value));
    assert_eq!(
        scalar(|g| (g.scalar(DType::F32, 0.1) + 0.2) * 3.0),
        f32s((0.1 + 0.2) * 3.0f32)
    );
    assert_eq!(scalar(|g| 1.0 / g.scalar(DType::F32, 3.0)), f32s(1.0 / 3.0));
    assert_eq!(
        scalar(|g| g.scalar(DType::I64, 9e15) + 1.0),
        Some(HostTensor::scalar(9_000_000_000_000_001i64))
    );
    assert_eq!(
        scalar(|g| g.scalar(DType::I32, 7.0) / -2.0),
        Some(HostTensor::scalar(-3i32))
    );
    assert_eq!(
        scalar(|g| g.scalar(DType::F32, 2.5).convert(DType::I32)),
        Some(HostTensor::scalar(2i32))
    );
    assert_eq!(
        scalar(|g| g.scalar(DType::F32, 1.0).less(&g.scalar(DType::F32, 2.0))),
        Some(HostTensor::scalar(true))
    );
    assert_eq!(
        scalar(|g| g
            .full(&Shape::f32([2, 2]), 1.0)
            .reshape(&[4])
            .slice_dim(0, 1, 2)
            .reshape(&[])),
        f32s(1.0)
    );
}

/// Approximations, NaN, subnormal numbers, integers out of range, zeros of two signs.
#[test]
fn numbers_that_devices_differ_in_are_left_to_them() {
    assert_eq!(scalar(|g| g.scalar(DType::F32, 1.0).exp()), None);
    assert_eq!(scalar(|g| g.scalar(DType::F32, 0.0) / 0.0), None);
    assert_eq!(scalar(|g| g.scalar(DType::F32, 1e-30) * 1e-10), None);
    assert_eq!(
        scalar(|g| g
            .scalar(DType::F32, 1e-40)
            .equal(&g.scalar(DType::F32, 0.0))
            .convert(DType::F32)),
        None
    );
    assert_eq!(scalar(|g| g.scalar(DType::I32, 2e9) + 2e9), None);
    assert_eq!(scalar(|g| g.scalar(DType::I32, 1.0) / 0.0), None);
    assert_eq!(
        scalar(|g| g
            .scalar(DType::F32, 0.0)
            .maximum(&g.scalar(DType::F32, -0.0))),
        None
    );
    assert_eq!(
        scalar(|g| g.scalar(DType::F32, f64::NAN).convert(DType::F16)),
        None
    );
}

#[test]
fn equal_expressions_are_computed_once_and_unused_ones_never() {
    let both = left(|x, _| {
        let _unused = x.exp().tanh();
        (x.tanh() * x.exp()) + (x.exp() * x.tanh())
    });
    assert_eq!(both, ["tanh", "exponential", "multiply", "add"]);
    assert_eq!(left(|x, _| (x - 1.0) * (1.0 - x)).len(), 5);
    let two = left(|x, _| x.graph().iota(x.shape(), 0) + x.graph().iota(x.shape(), 1));
    assert_eq!(two, ["iota", "iota", "add"]);
    let rows = left(|x, _| x.sum(&[1]).keep_dims(&[1]).broadcast_to(&[2, 3]));
    assert_eq!(rows, ["reduce", "broadcast"]);
    let zeros = left(|x, _| Tensor::concat(&[&x.zeros_like(), &(x.zeros_like() * 1.0)], 0));
    assert_eq!(zeros, ["constant", "broadcast", "concatenate"]);
}

#[test]
fn large_literals_of_one_number_become_that_number() {
    let g = Graph::new();
    let ones = g.constant(HostTensor::full(Shape::f32([100, 100]), 1.0));
    let mixed = g.constant(HostTensor::new([2], &[1.0f32, 2.0]));
    let program = g.finish(&[("ones", &ones), ("mixed", &mixed)]).unwrap();
    assert_eq!(
        names(&program.simplified()),
        ["constant", "broadcast", "constant"]
    );
}

#[test]
fn side_effects_parameters_and_donations_stay() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([2]));
    let _unused = g.parameter("unused", Shape::f32([2]));
    let late = g.parameter("late", Shape::f32([2]));
    let call = |has_side_effect| CustomCall {
        target: "report".into(),
        outputs: Vec::new(),
        attributes: Vec::new(),
        has_side_effect,
    };
    for has_side_effect in [true, true, false] {
        assert!(g.custom_call(call(has_side_effect), &[&x]).is_empty());
    }
    let mut program = g.finish(&[("y", &(&late * 1.0)), ("z", &late)]).unwrap();
    program.donated = vec![(2, 0)];
    let simple = program.simplified();
    assert_eq!(names(&simple), ["custom_call", "custom_call"]);
    assert_eq!(simple.donated, program.donated);
    for (index, parameter) in simple.parameters.iter().enumerate() {
        assert_eq!(parameter.name, program.parameters[index].name);
        assert_eq!(simple.nodes[parameter.node].op, Op::Parameter(index));
    }
    assert_eq!(simple.outputs[0].1, simple.outputs[1].1);
}

#[test]
fn loop_bodies_are_simplified() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([4]));
    let zero = g.scalar(DType::F32, 0.0);
    let (total, _) = g.scan(4, &[&zero], &[&x], &[], |carry, row, _| {
        let _unused = row[0].exp();
        (vec![&carry[0] * 1.0 + &row[0]], Vec::new())
    });
    let simple = g.finish(&[("total", &total[0])]).unwrap().simplified();
    let body = simple.nodes.iter().find_map(|node| match &node.op {
        Op::Scan(scan) => Some(&scan.body),
        _ => None,
    });
    assert_eq!(body.unwrap().nodes.len(), 3);
    let input = HostTensor::new([4], &[1.0f32, 2.0, 3.0, 4.0]);
    assert_eq!(support::run(&simple, &[input])[0].to_f64(), [10.0]);
}

#[test]
fn a_deep_graph_needs_no_deep_stack() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([]));
    let mut y = x.clone();
    for step in 0..100_000 {
        y = if step % 2 == 0 { &y + &x } else { &y * 1.0 };
    }
    let program = g.finish(&[("y", &y)]).unwrap();
    drop((y, x, g));
    let run = move || {
        let simple = program.simplified();
        assert_eq!(simple.nodes.len(), 50_001);
        let text = support::text(&simple);
        assert_eq!(text.matches("stablehlo.add").count(), 50_000);
        assert!(simple.dump().lines().count() > 50_000);
    };
    let thread = std::thread::Builder::new().stack_size(256 * 1024);
    thread.spawn(run).unwrap().join().unwrap();
}

/// A way to extend a graph: picks of operands, an op, and numbers to make its arguments from.
type Choice = (u8, usize, usize, u8);

/// Numbers whose sums and products of a few are exact, and the special ones.
const NUMBERS: [f64; 8] = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, f64::INFINITY, f64::NAN];

/// Extends the graph by one op on earlier tensors, all f32[2,3].
fn extend(g: &Graph, values: &[Tensor], (op, a, b, n): Choice) -> Tensor {
    let (a, b) = (&values[a % values.len()], &values[b % values.len()]);
    let number = NUMBERS[usize::from(n) % NUMBERS.len()];
    let full = || g.full(&Shape::f32([2, 3]), number);
    match op % 24 {
        0 => a + b,
        1 => a - b,
        2 => (a * b).clamp(-8.0, 8.0),
        3 => a + number,
        4 => a * number,
        5 => number - a,
        6 => a / 1.0,
        7 => a.maximum(b),
        8 => a.less(b).select(a, b),
        9 => -a,
        10 => a.abs().floor(),
        11 => full(),
        12 => full() + &full() * 2.0,
        13 => a.transpose(&[1, 0]).reshape(&[2, 3]),
        14 => a
            .reshape(&[6])
            .reverse(&[0])
            .reshape(&[3, 2])
            .transpose(&[1, 0]),
        15 => a.convert(DType::F64).convert(DType::F32),
        16 => a.clamp(-8.0, 8.0).convert(DType::I32).convert(DType::F32),
        17 => a.max(&[1]).keep_dims(&[1]).broadcast_to(&[2, 3]),
        18 => Tensor::concat(
            &[
                &a.slice_dim(0, 1, 2),
                &b.slice_dim(0, 0, 0),
                &b.slice_dim(0, 0, 1),
            ],
            0,
        ),
        19 => a.equal(&full()).select(&full(), b),
        20 => a
            .is_finite()
            .and(&full().greater(&full().like(0.0)))
            .select(a, b),
        21 => a.stop_gradient().dynamic_update_slice(
            b,
            &[&g.scalar(DType::I32, number), &g.scalar(DType::I32, 1.0)],
        ),
        22 => g
            .scan(2, &[&(a * 1.0)], &[b], &[], |carry, row, _| {
                (
                    vec![-(-carry[0].maximum(&row[0].broadcast_to(&[2, 3])))],
                    Vec::new(),
                )
            })
            .0
            .swap_remove(0),
        _ => a
            .convert(DType::Bf16)
            .convert(DType::F32)
            .convert(DType::Bf16)
            .convert(DType::F32),
    }
}

/// Bits of the results, all NaN the same.
fn bits(results: &[HostTensor]) -> Vec<u32> {
    let values = results.iter().flat_map(HostTensor::f32s);
    values
        .map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() })
        .collect()
}

#[test]
fn random_graphs_compute_the_same() {
    let mut runner = TestRunner::deterministic();
    let choices = prop::collection::vec(any::<Choice>(), 40);
    let inputs = [
        HostTensor::new([2, 3], &[0.0f32, -0.0, 1.5, -2.25, f32::INFINITY, f32::NAN]),
        HostTensor::new([2, 3], &[-0.0f32, 0.0, -1.0, 4.0, f32::NEG_INFINITY, 1.0]),
    ];
    for _ in 0..8 {
        let picks = choices.new_tree(&mut runner).unwrap().current();
        let g = Graph::new();
        let mut values = vec![
            g.parameter("a", Shape::f32([2, 3])),
            g.parameter("b", Shape::f32([2, 3])),
        ];
        for &choice in &picks {
            let next = extend(&g, &values, choice);
            values.push(next);
        }
        let named: Vec<(&str, &Tensor)> = values.iter().map(|value| ("v", value)).collect();
        let program = g.finish(&named).unwrap();
        let simple = program.simplified();
        assert!(simple.nodes.len() < program.nodes.len());
        let (before, after) = (
            support::run(&program, &inputs),
            support::run(&simple, &inputs),
        );
        assert_eq!(
            bits(&before),
            bits(&after),
            "{picks:?}\n{}\n{}",
            program.dump(),
            simple.dump()
        );
        assert_eq!(
            simple.simplified(),
            simple,
            "simplifying again changes something"
        );
    }
}

#[test]
fn donated_parameters_may_change_places() {
    let g = Graph::new();
    let (x, y) = (
        g.parameter("x", Shape::f32([2])),
        g.parameter("y", Shape::f32([2])),
    );
    let outputs = [("y", &(&y * 1.0)), ("x", &(&x - 0.0))];
    let mut program = g.finish(&outputs).unwrap();
    program.donated = vec![(0, 0), (1, 1)];
    let inputs = [
        HostTensor::new([2], &[1.0f32, 2.0]),
        HostTensor::new([2], &[3.0f32, 4.0]),
    ];
    for program in [program.simplified(), program] {
        let results = support::run(&program, &inputs);
        assert_eq!(results, [inputs[1].clone(), inputs[0].clone()]);
    }
}

#[test]
fn movements_are_composed_in_order() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([2, 3, 4]));
    let turned = x.transpose(&[1, 2, 0]).transpose(&[1, 0, 2]);
    let row = x.sum(&[0, 2]);
    let spread = row
        .broadcast_in(&[3, 5], &[0])
        .broadcast_in(&[5, 3, 5], &[1, 2]);
    let column = row
        .reshape(&[1, 3, 1])
        .broadcast_in(&[2, 3, 7, 4], &[0, 1, 3]);
    let outputs = [
        ("turned", &turned),
        ("spread", &spread),
        ("column", &column),
    ];
    let simple = g.finish(&outputs).unwrap().simplified();
    let op = |output: usize| simple.nodes[simple.outputs[output].1.node].op.clone();
    assert_eq!(op(0), Op::Transpose(vec![2, 1, 0]));
    assert_eq!(
        op(1),
        Op::Broadcast {
            dims: vec![5, 3, 5],
            map: vec![1]
        }
    );
    assert_eq!(
        op(2),
        Op::Broadcast {
            dims: vec![2, 3, 7, 4],
            map: vec![1]
        }
    );
    assert_eq!(
        names(&simple),
        ["transpose", "reduce", "broadcast", "broadcast"]
    );
}
