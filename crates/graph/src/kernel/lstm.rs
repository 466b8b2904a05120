//! Long short-term memories: all steps as one op, its derivative as another.

use super::Kernel;
use crate::op::{DotDims, Op};
use crate::{Shape, Tensor};

/// Number of gates: input, forget, cell and output, in this order.
const GATES: usize = 4;

/// What the steps of a long short-term memory make.
#[derive(Clone, Debug)]
pub struct LstmSteps {
    /// The state after each step, `[batch, steps, units]`.
    pub states: Tensor,
    /// The cells after each step, `[batch, steps, units]`.
    pub cells: Tensor,
}

impl Tensor {
    /// The steps of a long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates) with inputs
    /// `[batch, steps, 4 units]`, which are multiplied by their kernel already.
    ///
    /// With `z = input + state recurrent + bias` cut into `i, f, g, o`: `cells = sigmoid(f) cells + sigmoid(i) tanh(g)` and
    /// `state = sigmoid(o) tanh(cells)`. `recurrent` is `[units, 4 units]`, `bias` `[4 units]`, the first `[state, cells]` are
    /// `[batch, units]` each. Records a mistake on the graph where shapes differ from these.
    #[must_use]
    #[track_caller]
    pub fn lstm(&self, recurrent: &Self, bias: &Self, first: [&Self; 2]) -> LstmSteps {
        let operands = [self, recurrent, bias, first[0], first[1]];
        let results = self.graph().push_many(Op::Kernel(Kernel::Lstm), &operands);
        let result = |at: usize| results.get(at).unwrap_or(self).clone();
        LstmSteps {
            states: result(0),
            cells: result(1),
        }
    }
}

/// The shapes of states, cells and gates.
pub(crate) fn infer(inputs: &[&Shape]) -> Result<Vec<Shape>, String> {
    let [x, recurrent, bias, h, c] = inputs else {
        return Err(format!("needs 5 operands, got {}", inputs.len()));
    };
    let [batch, units] = sizes(x, recurrent)?;
    expect("the bias", bias, &Shape::new(x.dtype, [GATES * units]))?;
    let state = Shape::new(x.dtype, [batch, units]);
    expect("the first state", h, &state)?;
    expect("the first cells", c, &state)?;
    let sequence = Shape::new(x.dtype, [batch, x.dims[1], units]);
    Ok(vec![sequence.clone(), sequence, (*x).clone()])
}

/// The shapes of the gradients by the inputs, the first state and the first cells.
pub(crate) fn infer_gradient(inputs: &[&Shape]) -> Result<Vec<Shape>, String> {
    let [to_states, recurrent, c, cells, gates, rest @ ..] = inputs else {
        return Err(format!("needs 5 or 6 operands, got {}", inputs.len()));
    };
    let [batch, units] = sizes(gates, recurrent)?;
    let sequence = Shape::new(gates.dtype, [batch, gates.dims[1], units]);
    let state = Shape::new(gates.dtype, [batch, units]);
    expect("the cotangent of the states", to_states, &sequence)?;
    expect("the first cells", c, &state)?;
    expect("the cells", cells, &sequence)?;
    if let Some(to_cells) = rest.first() {
        expect("the cotangent of the cells", to_cells, &sequence)?;
    }
    Ok(vec![(*gates).clone(), state.clone(), state])
}

/// Batch and units.
fn sizes(x: &Shape, recurrent: &Shape) -> Result<[usize; 2], String> {
    let units = recurrent.dims.first().copied().unwrap_or(0);
    let columns = units.checked_mul(GATES);
    let columns = columns.ok_or_else(|| format!("{units} units are too many"))?;
    expect(
        "the recurrent kernel",
        recurrent,
        &Shape::new(x.dtype, [units, columns]),
    )?;
    match x.dims[..] {
        [batch, _, found] if found == columns && x.dtype.is_float() => Ok([batch, units]),
        _ => Err(format!(
            "expected inputs of floats [batch, steps, {columns}], got {x}"
        )),
    }
}

pub(super) fn expect(what: &str, got: &Shape, expected: &Shape) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    Err(format!("expected {what} {expected}, got {got}"))
}

/// A loop over steps.
pub(super) fn decompose(given: &[Tensor]) -> Vec<Tensor> {
    let [x, recurrent, bias, h, c] = given else {
        unreachable!("five operands were inferred")
    };
    let (rows, steps) = ((x + bias).transpose(&[1, 0, 2]), x.dim(1));
    let body = |carried: &[Tensor], row: &[Tensor], fixed: &[Tensor]| {
        let z = &row[0] + carried[0].matmul(&fixed[0]);
        let [i, f, g, o] = cut(&z);
        let [i, f, g, o] = [i.logistic(), f.logistic(), g.tanh(), o.logistic()];
        let c = &f * &carried[1] + &i * &g;
        let h = &o * c.tanh();
        let gates = Tensor::concat(&[&i, &f, &g, &o], 1);
        (vec![h.clone(), c.clone()], vec![h, c, gates])
    };
    let graph = x.graph();
    let (_, outputs) = graph.scan(steps, &[h, c], &[&rows], &[recurrent], body);
    let turned = outputs.iter().map(|rows| rows.transpose(&[1, 0, 2]));
    turned.collect()
}

/// A loop over steps, from the last to the first.
pub(super) fn decompose_gradient(given: &[Tensor]) -> Vec<Tensor> {
    let [to_states, recurrent, c, cells, gates, rest @ ..] = given else {
        unreachable!("five operands or more were inferred")
    };
    let steps = gates.dim(1);
    let mut rows: Vec<Tensor> = [to_states, &shifted(cells, c), cells, gates]
        .into_iter()
        .chain(rest)
        .map(|rows| rows.transpose(&[1, 0, 2]).reverse(&[0]))
        .collect();
    let to_cells = rows.split_off(4);
    let all: Vec<&Tensor> = rows.iter().chain(&to_cells).collect();
    let body = |carried: &[Tensor], row: &[Tensor], fixed: &[Tensor]| {
        let to_c = match row.get(4) {
            Some(to_cells) => &carried[1] + to_cells,
            None => carried[1].clone(),
        };
        let (to_z, to_c) = differentiated(&(&row[0] + &carried[0]), &to_c, &row[1..4]);
        let back = DotDims {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![1],
            rhs_contract: vec![1],
            dtype: to_z.wide(),
        };
        let to_h = to_z.dot(&fixed[0], back).convert(to_z.dtype());
        (vec![to_h, to_c], vec![to_z])
    };
    let zeros = c.zeros_like();
    let graph = gates.graph();
    let (last, outputs) = graph.scan(steps, &[&zeros, &zeros], &all, &[recurrent], body);
    let to_x = outputs[0].reverse(&[0]).transpose(&[1, 0, 2]);
    std::iter::once(to_x).chain(last).collect()
}

/// One step back: the gradients by what the gates' functions are applied to, and by the cells before.
fn differentiated(to_h: &Tensor, to_c: &Tensor, row: &[Tensor]) -> (Tensor, Tensor) {
    let (before, bounded) = (&row[0], row[1].tanh());
    let [i, f, g, o] = &cut(&row[2]);
    let to_c = to_c + to_h * o * (1.0 - bounded.square());
    let of_sigmoid = |y: &Tensor| y * (1.0 - y);
    let to_gates = [
        &to_c * g * of_sigmoid(i),
        &to_c * before * of_sigmoid(f),
        &to_c * i * (1.0 - g.square()),
        to_h * &bounded * of_sigmoid(o),
    ];
    (Tensor::concat(&to_gates.each_ref(), 1), &to_c * f)
}

/// The rows of each gate.
fn cut(z: &Tensor) -> [Tensor; GATES] {
    let units = z.dim(1) / GATES;
    [0, 1, 2, 3].map(|gate| z.slice_dim(1, gate * units, (gate + 1) * units))
}

/// What was before each step of `rows` `[batch, steps, units]`, with `first` `[batch, units]` before them.
pub(crate) fn shifted(rows: &Tensor, first: &Tensor) -> Tensor {
    let steps = rows.dim(1);
    let first = first.reshape(&[rows.dim(0), 1, rows.dim(2)]);
    let all = Tensor::concat(&[&first, rows], 1);
    all.slice_dim(1, 0, steps)
}
