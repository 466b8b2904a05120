//! What derivatives compute again: the same numbers, in less memory.

#[path = "support/mod.rs"]
mod support;

use phalanx_graph::op::{CustomCall, Op};
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
use support::{compile, run};

const ROWS: usize = 512;
const WIDTH: usize = 32;
const LAYERS: usize = 9;

/// A deep network with dropout, in blocks of so many layers that are computed again; 0 for none.
fn network(block: usize) -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([ROWS, WIDTH]));
    let kernel = g.parameter("kernel", Shape::f32([LAYERS, WIDTH, WIDTH]));
    let key = g.constant(HostTensor::new([2], &[1u32, 2]));
    let first = g.scalar(DType::U32, 0.0);
    let layer = |x: &Tensor, number: usize| {
        let kernel = kernel
            .slice_dim(0, number, number + 1)
            .reshape(&[WIDTH, WIDTH]);
        let y = (x.matmul(&kernel) * 1.7 + 0.1).tanh();
        let kept = g.random_bits(&key.xor(&key.like(number as f64)), &first, &[ROWS, WIDTH]);
        kept.greater(&kept.like(1e9)).select(&y, &y.zeros_like())
    };
    let layers = |mut x: Tensor, from: usize, to: usize| {
        for number in from..to {
            x = layer(&x, number);
        }
        x
    };
    let mut y = x.clone();
    if block == 0 {
        y = layers(y, 0, LAYERS);
    }
    for start in (0..LAYERS)
        .step_by(block.max(1))
        .take(if block == 0 { 0 } else { LAYERS })
    {
        y = g.checkpointed(&[&y], || layers(y.clone(), start, start + block));
    }
    let loss = y.square().sum_all() * 0.01;
    let found = gradients(&loss, &[&kernel, &x]);
    let [of_kernel, of_x] = &found[..] else {
        panic!("two gradients");
    };
    let outputs = [
        ("loss", &loss),
        ("kernel", of_kernel.as_ref().unwrap()),
        ("x", of_x.as_ref().unwrap()),
    ];
    g.finish(&outputs).unwrap().simplified()
}

fn values(dims: &[usize], scale: f32) -> HostTensor {
    let count: usize = dims.iter().product();
    let value = |i: usize| ((i * 7919 + i / 31 * 37) % 1009) as f32 / 504.5 - 1.0;
    let values: Vec<f32> = (0..count).map(|i| value(i) * scale).collect();
    HostTensor::new(dims.to_vec(), &values)
}

fn dots(program: &Program) -> usize {
    let is_dot = |node: &&phalanx_graph::op::Node| matches!(node.op, Op::Dot(_));
    program.nodes.iter().filter(is_dot).count()
}

#[test]
fn gradients_are_the_same_and_take_less_memory() {
    let inputs = [
        values(&[ROWS, WIDTH], 1.0),
        values(&[LAYERS, WIDTH, WIDTH], 0.2),
    ];
    let (kept, again) = (network(0), network(3));
    // Forward, and two products on the way back; those of a block but its last are computed twice.
    assert_eq!(dots(&kept), LAYERS * 3);
    assert!(dots(&again) >= LAYERS * 3 + LAYERS / 3 * 2);
    let expected = run(&kept, &inputs);
    for (a, b) in run(&again, &inputs).iter().zip(&expected) {
        let error = phalanx_testkit::largest_difference(&a.to_f64(), &b.to_f64());
        assert!(error < 1e-5, "{error}");
        assert!(b.to_f64().iter().any(|value| value.abs() > 1e-3));
    }
    let bytes = |program: &Program| compile(program).memory_stats().unwrap().temporary;
    let (kept, again) = (bytes(&kept), bytes(&again));
    println!("temporary bytes: {kept} kept, {again} computed again");
    assert!(again * 10 < kept * 6, "{again} of {kept}");
}

#[test]
fn nothing_is_computed_again_when_nothing_is_derived() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([3]));
    let y = g.checkpointed(&[&x], || x.exp().sin());
    let program = g.finish(&[("y", &y)]).unwrap().simplified();
    assert_eq!(program.nodes.len(), 3);
}

#[test]
fn regions_inside_one_another_and_side_effects() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([4]));
    let call = CustomCall {
        target: "effect".into(),
        outputs: vec![Shape::f32([4])],
        attributes: Vec::new(),
        has_side_effect: true,
    };
    let y = g.checkpointed(&[&x], || {
        let inner = g.checkpointed(&[&x], || x.exp());
        let seen = g.custom_call(call, &[&inner]).remove(0);
        inner.sin() * seen.stop_gradient()
    });
    let gradient = gradients(&y.sum_all(), &[&x]).remove(0).unwrap();
    let program = g.finish(&[("gradient", &gradient)]).unwrap().simplified();
    let count = |name: &str| {
        let named = program.nodes.iter().filter(|node| node.op.name() == name);
        named.count()
    };
    assert_eq!((count("effect"), count("custom_call")), (0, 1));
    assert_eq!(
        (count("exponential"), count("optimization_barrier")),
        (2, 1)
    );
}

#[test]
fn side_effects_in_branches_and_loops_are_not_repeated() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([4]));
    let acts = |x: &Tensor| {
        let call = CustomCall {
            target: "effect".into(),
            outputs: vec![Shape::f32([4])],
            attributes: Vec::new(),
            has_side_effect: true,
        };
        x.graph().custom_call(call, &[x]).remove(0)
    };
    let y = g.checkpointed(&[&x], || {
        let inner = x.exp();
        let first = g.scalar(DType::I32, 0.0);
        let chosen = g.case(&first, &[&inner], 1, |_, x| vec![acts(&x[0])]);
        let (_, rows) = g.scan(2, &[], &[], &[&inner], |_, _, x| {
            (vec![], vec![acts(&x[0])])
        });
        inner.sin() * chosen[0].stop_gradient() * rows[0].sum(&[0]).stop_gradient()
    });
    let gradient = gradients(&y.sum_all(), &[&x]).remove(0).unwrap();
    let program = g.finish(&[("gradient", &gradient)]).unwrap().simplified();
    let bodies = |node: &&phalanx_graph::op::Node| matches!(node.op, Op::Case(_) | Op::Scan(_));
    assert_eq!(program.nodes.iter().filter(bodies).count(), 2);
}

#[test]
fn a_barrier_passes_values_and_gradients() {
    let g = Graph::new();
    let (x, i) = (
        g.parameter("x", Shape::f32([2])),
        g.parameter("i", Shape::new(DType::I32, [3])),
    );
    let behind = Tensor::optimization_barrier(&[&x, &i]);
    let lone = Tensor::optimization_barrier(&[&x]).remove(0);
    let twice = Tensor::optimization_barrier(&[&x]).remove(0);
    assert!(Tensor::optimization_barrier(&[]).is_empty());
    let y = &behind[0] * &x + &lone * &twice;
    let gradient = gradients(&y.sum_all(), &[&x]).remove(0).unwrap();
    let outputs = [
        ("x", &behind[0]),
        ("i", &behind[1]),
        ("gradient", &gradient),
    ];
    let program = g.finish(&outputs).unwrap().simplified();
    let barriers = program.nodes.iter();
    let barriers = barriers.filter(|node| node.op == Op::OptimizationBarrier);
    // Equal ones are not joined.
    assert_eq!(barriers.count(), 3);
    let inputs = [
        HostTensor::new([2], &[1.5f32, -2.0]),
        HostTensor::new([3], &[1, 2, 3]),
    ];
    let outputs = run(&program, &inputs);
    assert_eq!(outputs[..2], inputs);
    assert_eq!(outputs[2].to_f64(), [6.0, -8.0]);
}

/// XLA for CPUs would make a kernel of a small loop, and refuse the program, or end the process, at a barrier in it.
#[test]
fn small_loops_may_have_barriers() {
    let inputs = [values(&[5, 8], 1.0), values(&[8], 0.9)];
    for is_inside in [false, true] {
        let expected = run(&small_loop(false, is_inside), &inputs);
        let again = run(&small_loop(true, is_inside), &inputs);
        for (a, b) in again.iter().zip(&expected) {
            let error = phalanx_testkit::largest_difference(&a.to_f64(), &b.to_f64());
            assert!(error < 1e-5, "{is_inside}: {error}");
            assert!(b.to_f64().iter().any(|value| value.abs() > 1e-3));
        }
    }
}

/// Five steps that are computed `again` on the way back, behind barriers. The gradients are of all, or of each step within it.
fn small_loop(again: bool, is_inside: bool) -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([5, 8]));
    let factor = g.parameter("factor", Shape::f32([8]));
    let start = factor.square();
    let (last, rows) = g.scan(5, &[&start], &[&x], &[&factor], |carried, x, factor| {
        let (h, x, factor) = (&carried[0], &x[0], &factor[0]);
        let step = |h: &Tensor| (h * factor + x).tanh().exp();
        let y = match again {
            true => {
                let held = h.computed_once();
                h.graph().checkpointed(&[&held, x, factor], || step(&held))
            }
            false => step(h),
        };
        let row = match is_inside {
            true => gradients(&y.sin().sum_all(), &[factor]).remove(0).unwrap(),
            false => y.square(),
        };
        (vec![y], vec![row])
    });
    let loss = last[0].square().sum_all() + rows[0].sum_all();
    let mut outputs = vec![("loss", loss.clone())];
    if !is_inside {
        let found = gradients(&loss, &[&x, &factor]).into_iter().flatten();
        outputs.extend(["x", "factor"].into_iter().zip(found));
    }
    let outputs: Vec<_> = outputs.iter().map(|(name, it)| (*name, it)).collect();
    g.finish(&outputs).unwrap().simplified()
}
