//! Gated recurrent units: all steps as one op, its derivative as another.

use super::Kernel;
use super::lstm::{expect, shifted};
use crate::op::{DotDims, Op};
use crate::{Shape, Tensor};

/// Number of gates with columns of the kernel: update, reset and candidate, in this order.
const GATES: usize = 3;
/// Numbers of a unit that are kept for the way back: the gates, and the candidate's product, which the reset gate multiplies.
const KEPT: usize = 4;

impl Tensor {
    /// The states after each of the steps of gated recurrent units (Cho et al. 2014), `[batch, steps, units]`, whose reset gate comes after
    /// the product of the state, of inputs `[batch, steps, 3 units]`, which are multiplied by their kernel already.
    ///
    /// With the input cut into `x, y, g` and `state recurrent + bias` into `p, q, c`: `z = sigmoid(x + p)`, `r = sigmoid(y + q)` and
    /// `state = z state + (1 - z) tanh(g + r c)`. `recurrent` is `[units, 3 units]`, `bias` `[3 units]`, the first state
    /// `[batch, units]`. Records a mistake on the graph where shapes differ from these.
    #[must_use]
    #[track_caller]
    pub fn gru(&self, recurrent: &Self, bias: &Self, first: &Self) -> Self {
        let operands = [self, recurrent, bias, first];
        let results = self.graph().push_many(Op::Kernel(Kernel::Gru), &operands);
        results.first().unwrap_or(self).clone()
    }
}

/// The shapes of states and gates.
pub(crate) fn infer(inputs: &[&Shape]) -> Result<Vec<Shape>, String> {
    let [x, recurrent, bias, h] = inputs else {
        return Err(format!("needs 4 operands, got {}", inputs.len()));
    };
    let units = units(recurrent)?;
    expect_kernel(recurrent, x)?;
    let [batch, steps] = match x.dims[..] {
        [batch, steps, found] if found == GATES * units && x.dtype.is_float() => [batch, steps],
        _ => {
            let columns = GATES * units;
            return Err(format!(
                "expected inputs of floats [batch, steps, {columns}], got {x}"
            ));
        }
    };
    expect("the bias", bias, &Shape::new(x.dtype, [GATES * units]))?;
    expect("the first state", h, &Shape::new(x.dtype, [batch, units]))?;
    Ok(vec![
        Shape::new(x.dtype, [batch, steps, units]),
        Shape::new(x.dtype, [batch, steps, KEPT * units]),
    ])
}

/// The shapes of the gradients by the inputs, by the products of the states, and by the first state.
pub(crate) fn infer_gradient(inputs: &[&Shape]) -> Result<Vec<Shape>, String> {
    let [to_states, recurrent, h, states, gates] = inputs else {
        return Err(format!("needs 5 operands, got {}", inputs.len()));
    };
    let units = units(recurrent)?;
    expect_kernel(recurrent, gates)?;
    let [batch, steps] = match gates.dims[..] {
        [batch, steps, found] if found == KEPT * units && gates.dtype.is_float() => [batch, steps],
        _ => {
            let columns = KEPT * units;
            return Err(format!(
                "expected gates of floats [batch, steps, {columns}], got {gates}"
            ));
        }
    };
    let dtype = gates.dtype;
    let (state, sequence) = (
        Shape::new(dtype, [batch, units]),
        Shape::new(dtype, [batch, steps, units]),
    );
    expect("the cotangent of the states", to_states, &sequence)?;
    expect("the first state", h, &state)?;
    expect("the states", states, &sequence)?;
    let x = Shape::new(dtype, [batch, steps, GATES * units]);
    Ok(vec![x.clone(), x, state])
}

fn units(recurrent: &Shape) -> Result<usize, String> {
    let units = recurrent.dims.first().copied().unwrap_or(0);
    let fits = units.checked_mul(KEPT).map(|_| units);
    fits.ok_or_else(|| format!("{units} units are too many"))
}

fn expect_kernel(recurrent: &Shape, like: &Shape) -> Result<(), String> {
    let units = units(recurrent)?;
    let expected = Shape::new(like.dtype, [units, GATES * units]);
    expect("the recurrent kernel", recurrent, &expected)
}

/// A loop over steps.
pub(super) fn decompose(given: &[Tensor]) -> Vec<Tensor> {
    let [x, recurrent, bias, h] = given else {
        unreachable!("four operands were inferred")
    };
    let (rows, steps) = (x.transpose(&[1, 0, 2]), x.dim(1));
    let body = |carried: &[Tensor], row: &[Tensor], fixed: &[Tensor]| {
        let h = &carried[0];
        let product = h.matmul(&fixed[0]) + &fixed[1];
        let [x, y, g] = [0, 1, 2].map(|gate| cut(&row[0], gate, GATES));
        let [p, q, inner] = [0, 1, 2].map(|gate| cut(&product, gate, GATES));
        let (z, r) = ((x + p).logistic(), (y + q).logistic());
        let g = (g + &r * &inner).tanh();
        let h = &z * h + (1.0 - &z) * &g;
        let gates = Tensor::concat(&[&z, &r, &g, &inner], 1);
        (vec![h.clone()], vec![h, gates])
    };
    let graph = x.graph();
    let (_, outputs) = graph.scan(steps, &[h], &[&rows], &[recurrent, bias], body);
    let turned = outputs.iter().map(|rows| rows.transpose(&[1, 0, 2]));
    turned.collect()
}

/// A loop over steps, from the last to the first.
pub(super) fn decompose_gradient(given: &[Tensor]) -> Vec<Tensor> {
    let [to_states, recurrent, h, states, gates] = given else {
        unreachable!("five operands were inferred")
    };
    let rows: Vec<Tensor> = [to_states, &shifted(states, h), gates]
        .into_iter()
        .map(|rows| rows.transpose(&[1, 0, 2]).reverse(&[0]))
        .collect();
    let body = |carried: &[Tensor], row: &[Tensor], fixed: &[Tensor]| {
        let to_h = &row[0] + &carried[0];
        let [to_x, to_product, kept] = differentiated(&to_h, &row[1], &row[2]);
        let back = DotDims {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![1],
            rhs_contract: vec![1],
            dtype: to_product.wide(),
        };
        let passed = to_product.dot(&fixed[0], back).convert(kept.dtype());
        (vec![passed + kept], vec![to_x, to_product])
    };
    let all: Vec<&Tensor> = rows.iter().collect();
    let (steps, zeros) = (gates.dim(1), h.zeros_like());
    let graph = gates.graph();
    let (last, outputs) = graph.scan(steps, &[&zeros], &all, &[recurrent], body);
    let turned = |rows: &Tensor| rows.reverse(&[0]).transpose(&[1, 0, 2]);
    vec![turned(&outputs[0]), turned(&outputs[1]), last[0].clone()]
}

/// One step back: the gradients by the inputs and by the product of the state, and what the update gate passes to the state before.
fn differentiated(to_h: &Tensor, before: &Tensor, gates: &Tensor) -> [Tensor; 3] {
    let [z, r, g, inner] = &[0, 1, 2, 3].map(|gate| cut(gates, gate, KEPT));
    let of_sigmoid = |y: &Tensor| y * (1.0 - y);
    let to_z = to_h * (before - g) * of_sigmoid(z);
    let to_g = to_h * (1.0 - z) * (1.0 - g.square());
    let to_r = &to_g * inner * of_sigmoid(r);
    let to_inner = &to_g * r;
    let to_product = Tensor::concat(&[&to_z, &to_r, &to_inner], 1);
    let to_x = Tensor::concat(&[&to_z, &to_r, &to_g], 1);
    [to_x, to_product, to_h * z]
}

/// The columns of one of `count` gates.
fn cut(all: &Tensor, gate: usize, count: usize) -> Tensor {
    let units = all.dim(1) / count;
    all.slice_dim(1, gate * units, (gate + 1) * units)
}
