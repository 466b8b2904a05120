//! The derivative of a long short-term memory.

use super::Step;
use crate::kernel::lstm::shifted;
use crate::op::{DotDims, Op};
use crate::{Kernel, Tensor};

/// The gradients of the recurrent kernel and of the bias are one product and one sum over all steps.
pub(super) fn lstm(step: &Step) -> Vec<Option<Tensor>> {
    let (states, cells, gates) = (step.output(0), step.output(1), step.output(2));
    let mut given = vec![
        step.cotangent(0),
        step.input(1),
        step.input(4),
        cells,
        gates,
    ];
    given.extend(step.cotangents[1].clone());
    let given: Vec<&Tensor> = given.iter().collect();
    let found = step
        .graph
        .push_many(Op::Kernel(Kernel::LstmGradient), &given);
    let result = |at: usize| found.get(at).cloned();
    let Some(to_x) = result(0) else {
        return vec![None; step.node.inputs.len()];
    };
    vec![
        Some(to_x.clone()),
        step.when(1, || of_kernel(&states, &step.input(3), &to_x)),
        step.when(2, || to_x.sum(&[0, 1])),
        result(1),
        result(2),
    ]
}

/// The gradient of the recurrent kernel, of the states, the first one, and the gradients by the products of all steps.
pub(super) fn of_kernel(states: &Tensor, first: &Tensor, to_products: &Tensor) -> Tensor {
    let all_steps = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![0, 1],
        rhs_contract: vec![0, 1],
        dtype: to_products.wide(),
    };
    let product = shifted(states, first).dot(to_products, all_steps);
    product.convert(to_products.dtype())
}
