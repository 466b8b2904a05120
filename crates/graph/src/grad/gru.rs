//! The derivative of gated recurrent units.

use super::Step;
use super::lstm::of_kernel;
use crate::op::Op;
use crate::{Kernel, Tensor};

/// The gradients of the recurrent kernel and of its bias are one product and one sum over all steps.
pub(super) fn gru(step: &Step) -> Vec<Option<Tensor>> {
    let (states, gates) = (step.output(0), step.output(1));
    let given = [
        step.cotangent(0),
        step.input(1),
        step.input(3),
        states.clone(),
        gates,
    ];
    let op = Op::Kernel(Kernel::GruGradient);
    let found = step.graph.push_many(op, &given.each_ref());
    let [to_x, to_products, to_first] = &found[..] else {
        return vec![None; step.node.inputs.len()];
    };
    vec![
        Some(to_x.clone()),
        step.when(1, || of_kernel(&states, &step.input(3), to_products)),
        step.when(2, || to_products.sum(&[0, 1])),
        Some(to_first.clone()),
    ]
}
