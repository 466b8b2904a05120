//! What a program must compute, by an interpreter in f64 that shares no code with the lowering.

use phalanx_graph::op::{Node, Subgraph};
use phalanx_graph::{DType, HostTensor, Op, Program, Value};
use phalanx_testkit::{Array, Interpreter};

/// Asserts that the outputs of each replica are what the interpreter finds.
///
/// Nothing is asserted of programs with custom calls, whose meaning only an engine knows.
pub fn check(program: &Program, inputs: &[Vec<HostTensor>], outputs: &[Vec<HostTensor>]) {
    if program
        .nodes
        .iter()
        .any(|node| matches!(node.op, Op::CustomCall(_)))
    {
        return;
    }
    let all: Vec<usize> = (0..program.outputs.len()).collect();
    let expected = Interpreter::new(program).run(inputs, &all);
    let expected = expected.unwrap_or_else(|error| panic!("the interpreter: {error}"));
    let mut wrong = Vec::new();
    for (replica, (got, want)) in outputs.iter().zip(&expected).enumerate() {
        for (place, (name, value)) in program.outputs.iter().enumerate() {
            let tolerance = tolerance(coarsest(program, *value));
            if let Some(mistake) = mistake(&got[place], &want[place], tolerance) {
                wrong.push(format!("`{name}` on replica {replica}: {mistake}"));
            }
        }
    }
    let count = wrong.len();
    assert!(
        wrong.is_empty(),
        "{count} outputs differ from the interpreter's:\n{}",
        wrong.join("\n")
    );
}

/// Relative to `1 + |value|`: some roundings of results of the type.
fn tolerance(dtype: Option<DType>) -> f64 {
    match dtype {
        None => 0.0,
        Some(DType::F64) => 1e-13,
        Some(DType::F16) => 2e-3,
        Some(DType::Bf16) => 1.6e-2,
        Some(_) => 4e-6,
    }
}

/// The float type with the fewest digits through which a value was computed.
fn coarsest(program: &Program, value: Value) -> Option<DType> {
    let mut needed = vec![false; program.nodes.len()];
    needed[value.node] = true;
    let mut found = None;
    for (index, node) in program.nodes.iter().enumerate().rev() {
        if needed[index] {
            node.inputs
                .iter()
                .for_each(|input| needed[input.node] = true);
            found = coarser(found, coarsest_of(node));
        }
    }
    found
}

fn coarsest_of(node: &Node) -> Option<DType> {
    let own = node.shapes.iter().map(|shape| Some(shape.dtype));
    let own = own.fold(None, coarser);
    let within = |body: &Subgraph| body.nodes.iter().map(coarsest_of).fold(None, coarser);
    match &node.op {
        Op::Scan(scan) => coarser(own, within(&scan.body)),
        Op::While { condition, body } => coarser(own, coarser(within(condition), within(body))),
        Op::Case(branches) => {
            let branches = branches.iter().map(|branch| within(branch));
            coarser(own, branches.fold(None, coarser))
        }
        _ => own,
    }
}

fn coarser(a: Option<DType>, b: Option<DType>) -> Option<DType> {
    let digits = |dtype: &DType| match dtype {
        DType::Bf16 => 8,
        DType::F16 => 11,
        DType::F32 => 24,
        _ => 53,
    };
    let floats = [a, b]
        .into_iter()
        .flatten()
        .filter(|dtype| dtype.is_float());
    floats.min_by_key(digits)
}

fn mistake(got: &HostTensor, want: &Array, tolerance: f64) -> Option<String> {
    if let (Array::Ints(want), Array::Ints(got)) = (want, &Array::from(got)) {
        let place = got.iter().zip(want).position(|(got, want)| got != want)?;
        return Some(format!(
            "element {place} is {}, expected {}",
            got[place], want[place]
        ));
    }
    let (dtype, got, want) = (got.dtype(), got.to_f64(), want.to_f64());
    if got.len() != want.len() {
        return Some(format!("{} elements, expected {}", got.len(), want.len()));
    }
    let differs = |(got, want): (&f64, &f64)| !close(*got, *want, dtype, tolerance);
    let place = got.iter().zip(&want).position(differs)?;
    Some(format!(
        "element {place} is {:?}, expected {:?}",
        got[place], want[place]
    ))
}

/// NaN equals NaN, and what the type cannot hold is infinite.
fn close(got: f64, want: f64, dtype: DType, tolerance: f64) -> bool {
    if got.is_nan() || want.is_nan() {
        return got.is_nan() && want.is_nan();
    }
    let largest = match dtype {
        DType::F16 => 65504.0,
        DType::Bf16 => 3.389_531_389_251_535_5e38,
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    if got.is_infinite() {
        return want.abs() > largest * (1.0 - tolerance) && got.signum() == want.signum();
    }
    want.is_finite() && (got - want).abs() <= tolerance * (1.0 + want.abs())
}
