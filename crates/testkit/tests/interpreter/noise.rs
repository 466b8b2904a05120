//! Errors on request: within their bounds, repeatable, and none where nothing is rounded.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, HostTensor, Program, Tensor};
use phalanx_testkit::{Array, Interpreter};

use crate::{f64s, program, replicated, sample};

const SIZE: f64 = 1e-3;

fn noisy(program: &Program, inputs: &[Vec<HostTensor>], seed: u64) -> Vec<Vec<Vec<f64>>> {
    let all: Vec<usize> = (0..program.outputs.len()).collect();
    let found = Interpreter::new(program)
        .with_noise(SIZE, seed)
        .run(inputs, &all);
    let floats = |list: &Vec<Array>| list.iter().map(Array::to_f64).collect();
    found.unwrap().iter().map(floats).collect()
}

fn exact(program: &Program, inputs: &[HostTensor]) -> Vec<Vec<f64>> {
    crate::run(program, inputs)
        .iter()
        .map(Array::to_f64)
        .collect()
}

#[test]
fn errors_are_as_large_as_they_are_said_to_be() {
    let program = program(&[f64s([200]), f64s([200])], |x| {
        let (a, b) = (&x[0], &x[1]);
        vec![a * b, a.exp(), a.pow(&a.like(2.0)), a + b, a - b]
    });
    let inputs = [sample(&[200], 0), sample(&[200], 1)];
    let (a, b) = (inputs[0].to_f64(), inputs[1].to_f64());
    let (got, want) = (
        noisy(&program, &[inputs.to_vec()], 1).remove(0),
        exact(&program, &inputs),
    );
    for (place, (got, want)) in got.iter().zip(&want).enumerate() {
        let scale = |i: usize| match place {
            3 | 4 => a[i].abs().max(b[i].abs()),
            _ => want[i].abs(),
        };
        let errors = (0..200).map(|i| (got[i] - want[i]) / (SIZE * scale(i)));
        let errors: Vec<f64> = errors.collect();
        let (low, high) = errors
            .iter()
            .fold((0.0f64, 0.0f64), |(l, h), &e| (l.min(e), h.max(e)));
        assert!((-1.0001..-0.9).contains(&low), "output {place}: {low}");
        assert!((0.9..1.0001).contains(&high), "output {place}: {high}");
    }
}

#[test]
fn sums_that_cancel_err_by_their_terms() {
    let program = program(&[f64s([2, 400])], |x| {
        let ones = x[0].graph().full(&f64s([400, 1]), 1.0);
        vec![x[0].sum(&[1]), x[0].matmul(&ones)]
    });
    let terms: Vec<f64> = (0..800)
        .map(|i| if i % 2 == 0 { 3.0 } else { -3.0 })
        .collect();
    let input = HostTensor::new([2, 400], &terms);
    for seed in 0..20 {
        for found in &noisy(&program, &[vec![input.clone()]], seed)[0] {
            let bound = SIZE * 1200.0 / 4.0;
            assert!(found[0] != 0.0 && found[0].abs() <= bound, "{found:?}");
        }
    }
}

#[test]
fn what_is_chosen_moved_or_compared_is_exact() {
    let program = program(&[f64s([4, 5])], |x| {
        let y = x[0].exp();
        let largest = y.max(&[1]).broadcast_in(&[4, 5], &[0]);
        let again = x[0].exp();
        vec![
            y.equal(&largest).convert(DType::F64).max(&[1]),
            y.equal(&again)
                .convert(DType::F64)
                .reduce(ReduceOp::Min, &[0, 1]),
            x[0].abs().maximum(&-&x[0]) - x[0].abs(),
            &x[0] * 1.0 + 0.0,
            x[0].sum(&[]).reshape(&[20, 1]).sum(&[1]),
        ]
    });
    let input = sample(&[4, 5], 0);
    let found = noisy(&program, &[vec![input.clone()]], 3).remove(0);
    assert_eq!(found[0], [1.0; 4], "an element is the largest of its row");
    assert_eq!(found[1], [1.0], "the same computation errs the same way");
    assert_eq!(found[2], [0.0; 20]);
    assert_eq!(found[3], input.to_f64());
    assert_eq!(found[4], input.to_f64());
}

#[test]
fn replicas_and_runs_err_alike_and_seeds_do_not() {
    let build = |x: &[Tensor]| vec![x[0].all_reduce(ReduceOp::Sum).tanh()];
    let program = replicated(2, &[f64s([6])], build);
    let inputs = [vec![sample(&[6], 0)], vec![sample(&[6], 1)]];
    let found = noisy(&program, &inputs, 1);
    assert_eq!(found[0], found[1]);
    assert_eq!(found, noisy(&program, &inputs, 1));
    assert_ne!(found, noisy(&program, &inputs, 2));
}
