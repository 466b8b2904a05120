//! What cannot be run is refused with the op's name.

use phalanx_graph::op::{Attribute, CustomCall, ReduceOp};
use phalanx_graph::{DType, HostTensor, Op, Shape};
use phalanx_testkit::Interpreter;

use crate::{f64s, lone, program, replicated, sample};

#[test]
fn custom_calls_have_no_meaning_here() {
    let call = CustomCall {
        target: "phalanx.secret".into(),
        outputs: vec![f64s([2])],
        attributes: vec![("n".into(), Attribute::Int(1))],
        has_side_effect: false,
    };
    let program = lone(Op::CustomCall(call), &[f64s([2])], &[f64s([2])]);
    let found = Interpreter::new(&program).run(&[vec![sample(&[2], 0)]], &[0]);
    assert_eq!(
        found.unwrap_err(),
        "custom_call in layer of (f64[2]) to (f64[2]): `phalanx.secret` is code of its own"
    );
}

/// A part that no output needs is not run.
#[test]
fn only_what_is_asked_for_is_computed() {
    let mut whole = lone(Op::Select, &[f64s([2])], &[f64s([2])]);
    let parameter = whole.parameters[0].node;
    let other = phalanx_graph::Value {
        node: parameter,
        output: 0,
    };
    whole.outputs.push(("same".into(), other));
    let interpreter = Interpreter::new(&whole);
    let input = [vec![sample(&[2], 0)]];
    assert!(interpreter.run(&input, &[1]).is_ok());
    let error = interpreter.run(&input, &[1, 0]).unwrap_err();
    assert!(
        error.contains("select") && error.contains("expected 3 operands"),
        "{error}"
    );
}

#[test]
fn derivatives_that_do_not_exist_are_refused() {
    let program = replicated(2, &[f64s([2])], |x| vec![x[0].all_reduce(ReduceOp::Max)]);
    let inputs = [vec![sample(&[2], 0)], vec![sample(&[2], 1)]];
    let tangents = vec![vec![Some(vec![1.0; 2])], vec![None]];
    let found = Interpreter::new(&program).run_with_tangents(&inputs, &tangents, &[0]);
    assert!(found.unwrap_err().starts_with("all_reduce"));
}

#[test]
fn inputs_must_be_the_programs() {
    let program = program(&[Shape::f32([2])], <[phalanx_graph::Tensor]>::to_vec);
    let run = |inputs: &[Vec<HostTensor>]| Interpreter::new(&program).run(inputs, &[0]);
    let right = HostTensor::new([2], &[1.0f32, 2.0]);
    assert!(run(&[vec![right.clone()]]).is_ok());
    let mistakes = [
        (vec![], "0 lists of inputs for 1 replicas"),
        (vec![vec![]], "0 inputs for 1 parameters"),
        (
            vec![vec![right.convert(DType::F64)]],
            "parameter `in0` is f32[2], got f64[2]",
        ),
    ];
    for (inputs, expected) in mistakes {
        assert_eq!(run(&inputs).unwrap_err(), expected);
    }
    let short = vec![vec![Some(vec![1.0])]];
    let found = Interpreter::new(&program).run_with_tangents(&[vec![right]], &short, &[0]);
    assert_eq!(
        found.unwrap_err(),
        "parameter `in0` is f32[2], got 2 elements with 1 derivatives"
    );
}
