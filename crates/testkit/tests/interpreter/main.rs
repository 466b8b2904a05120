//! The interpreter against numbers worked by hand, and its tangents against differences of its own values.

mod conventions;
mod errors;
mod kernels;
mod noise;
mod tangents;
mod values;

use std::panic::Location;

use phalanx_graph::op::Node;
use phalanx_graph::{DType, Graph, HostTensor, Op, Program, Shape, Tensor, Value};
use phalanx_testkit::{Array, Interpreter};

/// The program that makes some results of parameters of these shapes.
pub(crate) fn program(shapes: &[Shape], build: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Program {
    replicated(1, shapes, build)
}

/// The same, run by several replicas.
pub(crate) fn replicated(
    replicas: usize,
    shapes: &[Shape],
    build: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Program {
    let g = Graph::with_replicas(replicas);
    let given = shapes.iter().enumerate();
    let given: Vec<Tensor> = given
        .map(|(i, shape)| g.parameter(&format!("in{i}"), shape.clone()))
        .collect();
    let made = build(&given);
    let outputs: Vec<(&str, &Tensor)> = made.iter().map(|tensor| ("out", tensor)).collect();
    g.finish(&outputs).unwrap()
}

/// The program of a single op, of those that only a compiler makes.
pub(crate) fn lone(op: Op, inputs: &[Shape], outputs: &[Shape]) -> Program {
    let mut program = program(inputs, <[Tensor]>::to_vec);
    let node = program.nodes.len();
    let inputs = program.parameters.iter().map(|parameter| Value {
        node: parameter.node,
        output: 0,
    });
    let inputs = inputs.collect();
    program.nodes.push(Node {
        op,
        inputs,
        shapes: outputs.to_vec(),
        label: Some("layer".into()),
        location: Location::caller(),
    });
    let all = 0..outputs.len();
    program.outputs = all
        .map(|output| ("out".into(), Value { node, output }))
        .collect();
    program
}

/// What a program makes on each replica.
pub(crate) fn run_replicas(program: &Program, inputs: &[Vec<HostTensor>]) -> Vec<Vec<Array>> {
    let all: Vec<usize> = (0..program.outputs.len()).collect();
    Interpreter::new(program).run(inputs, &all).unwrap()
}

/// What a program of one replica makes.
pub(crate) fn run(program: &Program, inputs: &[HostTensor]) -> Vec<Array> {
    run_replicas(program, &[inputs.to_vec()]).swap_remove(0)
}

/// A shape of f64.
pub(crate) fn f64s(dims: impl Into<Vec<usize>>) -> Shape {
    Shape::new(DType::F64, dims)
}

/// Distinct values in (-2, 2), none near an integer or another, in a scrambled order.
pub(crate) fn scrambled(count: usize, turn: usize) -> Vec<f64> {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut strides = (1..).map(|k| count / 2 + k + turn);
    let stride = strides.find(|&stride| gcd(stride, count.max(1)) == 1);
    let value = |i: usize| {
        let place = (i * stride.unwrap_or(1) + 1 + turn) % count;
        -1.93 + 3.87 * (place as f64 + 0.37) / count as f64
    };
    (0..count).map(value).collect()
}

/// Those as a tensor.
pub(crate) fn sample(dims: &[usize], turn: usize) -> HostTensor {
    HostTensor::new(dims, &scrambled(dims.iter().product(), turn))
}
