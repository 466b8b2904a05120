//! The derivative of gated recurrent units.

use super::Step;
use crate::kernel::lstm::shifted;
use crate::op::{DotDims, Op};
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
    let of_all_steps = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![0, 1],
        rhs_contract: vec![0, 1],
        dtype: to_x.wide(),
    };
    let before = || shifted(&states, &step.input(3));
    vec![
        Some(to_x.clone()),
        step.when(1, || {
            before()
                .dot(to_products, of_all_steps)
                .convert(to_x.dtype())
        }),
        step.when(2, || to_products.sum(&[0, 1])),
        Some(to_first.clone()),
    ]
}
