//! A recurrent layer around any cells.

use std::sync::Arc;

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::recurrent::{Done, swapped};
use super::rnn_cell::{CELLS, Cells};
use super::sizes::{check_dims, one_float};
use super::{Cx, RnnCell, fields};
use crate::config::{self, Component, Described, Family, Field, Kind};

/// More cells in one layer than this are taken for a mistake.
const MAX_CELLS: usize = 100;

/// More steps than this are no program of their own each.
const MAX_UNROLLED: usize = 1000;

/// A recurrent layer around a [cell](RnnCell) of your own, or around several, each on the output of the one before; kind `rnn`. Keras' `RNN` and
/// `StackedRNNCells`.
///
/// Inputs: `[batch, steps, ..]`, and perhaps first states `[batch, ..]`, of the first cell, then the second; without them states begin as the
/// cells say, with zeros. Output: the last step's, or with `return_sequences` every step's; with `return_state` the states after
/// the last step follow.
///
/// Variables: the cell's; of several cells by their kinds, `lstm_cell/..`, `lstm_cell_1/..`, a kind of your own `minimal/..`. At steps
/// that a padding mask leaves out states stay, and the output of the step before is repeated, zeros at first, or with
/// `zero_output_for_mask` zeros. Unlike Keras': one input sequence; no `stateful` ([hand on](Self::return_state) the states instead);
/// states are a flat list also of several cells; with `go_backwards` the mask of the output is reversed as its steps are; beside first
/// states the mask still counts; in a [`Bidirectional`](super::Bidirectional) `zero_output_for_mask` counts also for the last output.
/// Weights of several cells in a `Bidirectional` are not written to `.weights.h5`.
/// [`Lstm`](super::Lstm), [`Gru`](super::Gru) and [`SimpleRnn`](super::SimpleRnn) are faster than the same around
/// [`LstmCell`](super::LstmCell) and its kin.
///
/// ```
/// use phalanx::nn::{GruCell, LstmCell, Rnn, Sequential};
///
/// let cells = Rnn::new(LstmCell::new(8)).cell(GruCell::new(4)).return_sequences(true);
/// let model = Sequential::new([10, 3]).add(cells).build()?;
/// assert_eq!(model.outputs()[0].dims, [10, 4]);
/// assert_eq!(model.variables()[0].name, "rnn/lstm_cell/kernel");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rnn {
    cells: Cells,
    #[serde(flatten)]
    pub(super) settings: StepSettings,
}

/// How steps are taken, and what of them is returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StepSettings {
    pub(super) return_sequences: bool,
    pub(super) return_state: bool,
    pub(super) go_backwards: bool,
    unroll: bool,
    zero_output_for_mask: bool,
}

impl Rnn {
    /// A layer around a cell.
    #[must_use]
    pub fn new(cell: impl RnnCell + 'static) -> Self {
        Self {
            cells: Cells(vec![Arc::new(cell)]),
            settings: StepSettings {
                return_sequences: false,
                return_state: false,
                go_backwards: false,
                unroll: false,
                zero_output_for_mask: false,
            },
        }
    }

    /// Adds a cell that gets the output of the one before at the same step.
    #[must_use]
    pub fn cell(mut self, cell: impl RnnCell + 'static) -> Self {
        self.cells.0.push(Arc::new(cell));
        self
    }

    /// Sets whether the output holds every step, not the last alone; not by default.
    #[must_use]
    pub const fn return_sequences(mut self, return_sequences: bool) -> Self {
        self.settings.return_sequences = return_sequences;
        self
    }

    /// Sets whether the states after the last step are further outputs; not by default.
    ///
    /// Given as first states of the next batch they are what Keras' `stateful` keeps.
    #[must_use]
    pub const fn return_state(mut self, return_state: bool) -> Self {
        self.settings.return_state = return_state;
        self
    }

    /// Sets whether steps are taken from the last to the first; outputs then are in that order, too.
    #[must_use]
    pub const fn go_backwards(mut self, go_backwards: bool) -> Self {
        self.settings.go_backwards = go_backwards;
        self
    }

    /// Sets whether the program has every step by itself instead of a loop, not by default: for few steps, as it takes longer to compile.
    #[must_use]
    pub const fn unroll(mut self, unroll: bool) -> Self {
        self.settings.unroll = unroll;
        self
    }

    /// Sets whether the output of a step that is padding is zeros instead of the output before; not by default.
    #[must_use]
    pub const fn zero_output_for_mask(mut self, zero_output_for_mask: bool) -> Self {
        self.settings.zero_output_for_mask = zero_output_for_mask;
        self
    }

    /// What is wrong with a sequence and the first states of all its directions.
    pub(super) fn check_directions(
        &self,
        inputs: &[Shape],
        directions: usize,
    ) -> Result<(), String> {
        let sequence = inputs.first().filter(|sequence| sequence.rank() > 1);
        let Some(sequence) = sequence else {
            let got: Vec<String> = inputs.iter().map(Shape::to_string).collect();
            let got = got.join(", ");
            return Err(format!("expected a sequence [batch, steps, ..], got {got}"));
        };
        if self
            .cells
            .0
            .first()
            .is_some_and(|cell| cell.is_of_library())
        {
            one_float(std::slice::from_ref(sequence))?;
        }
        let (rows, steps) = (sequence.dims[0], sequence.dims[1]);
        if self.settings.unroll && steps > MAX_UNROLLED {
            return Err(format!(
                "`unroll` is for at most {MAX_UNROLLED} steps, got {steps}; leave it out"
            ));
        }
        let mut dims = sequence.dims[2..].to_vec();
        for cell in &self.cells.0 {
            let wrong = |wrong| format!("cell `{}`: {wrong}", cell.kind());
            cell.check(&dims).map_err(wrong)?;
            dims = cell.output_dims();
        }
        self.check_first(rows, &inputs[1..], directions)
    }

    fn check_first(&self, rows: usize, given: &[Shape], directions: usize) -> Result<(), String> {
        let states: Vec<Vec<usize>> = self.states().collect();
        let (count, got) = (directions * states.len(), given.len());
        if got != 0 && got != count {
            return Err(format!(
                "expected a sequence and no or {count} first states, got {} inputs",
                got + 1
            ));
        }
        for (number, (state, dims)) in given.iter().zip(states.iter().cycle()).enumerate() {
            let dtype = if state.dtype.is_float() {
                state.dtype
            } else {
                DType::F32
            };
            let expected = Shape::new(dtype, [&[rows], &dims[..]].concat());
            if *state != expected {
                return Err(format!(
                    "expected first state {number} {expected}, got {state}"
                ));
            }
        }
        Ok(())
    }

    /// The dims of the states of all cells.
    fn states(&self) -> impl Iterator<Item = Vec<usize>> {
        self.cells.0.iter().flat_map(|cell| cell.state_dims())
    }

    /// Asks the cells for what they need before the first step.
    #[track_caller]
    fn begun(&self, cx: &mut Cx, x: &Tensor) -> Vec<BegunCell<'_>> {
        let dtype = match x.dtype() {
            own if own.is_float() => own,
            _ => cx.compute_dtype(),
        };
        let (trainable, policy, rows) = (cx.trainable(), cx.policy(), x.dim(0));
        let mut input = Shape::new(x.dtype(), [&[rows], &x.dims()[2..]].concat());
        let mut begun = Vec::new();
        for (cell, name) in self.cells.0.iter().zip(self.cells.names()) {
            let constants = match self.cells.0.len() {
                1 => cell.constants(cx, &input),
                _ => cx.inside(&name, trainable, policy, |cx| cell.constants(cx, &input)),
            };
            let states = cell.state_dims().into_iter();
            let states = states.map(|dims| Shape::new(dtype, [&[rows], &dims[..]].concat()));
            let output = Shape::new(dtype, [&[rows], &cell.output_dims()[..]].concat());
            let made = BegunCell {
                cell: &**cell,
                constants,
                states: states.collect(),
                output: output.clone(),
                input: std::mem::replace(&mut input, output),
            };
            begun.push(made);
        }
        begun
    }

    /// Takes the steps. Where they are padding the states stay, and the output of the step before is repeated, zeros at first: Keras' rule.
    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        let cells = self.begun(cx, &inputs[0]);
        let turned = |rows: &Tensor| match self.settings.go_backwards {
            true => rows.reverse(&[0]),
            false => rows.clone(),
        };
        let mask = cx.padding_mask(&inputs[0]);
        let mask = mask.map(|mask| turned(&swapped(&mask)));
        let rows = [Some(turned(&swapped(&inputs[0]))), mask.clone()];
        let rows: Vec<Tensor> = rows.into_iter().flatten().collect();
        let before = cells.last().map(|cell| zeros(cx, &cell.output));
        let mut initial: Vec<Tensor> = before.into_iter().collect();
        initial.extend(first_states(cx, &cells, &inputs[1..]));
        let constants: Vec<Tensor> = cells
            .iter()
            .flat_map(|cell| cell.constants.clone())
            .collect();
        let zero_padding = zero_padding || self.settings.zero_output_for_mask;
        let body = |carried: &[Tensor], row: &[Tensor], constants: &[Tensor]| {
            let (output, mut next) = take_step(&cells, &row[0], &carried[1..], constants);
            next.insert(0, output);
            if let Some(mask) = row.get(1) {
                let mut before = carried.to_vec();
                if zero_padding {
                    before[0] = before[0].zeros_like();
                }
                next = at_steps(mask, &next, &before);
            }
            let output = next[0].clone();
            (next, vec![output])
        };
        let (mut last, outputs) = match self.settings.unroll && rows[0].dim(0) > 0 {
            true => unrolled(initial, &rows, &constants, body),
            false => looped(cx, &initial, &rows, &constants, body),
        };
        Done {
            outputs: swapped(&outputs),
            last: last.remove(0),
            states: last,
            mask: mask.map(|mask| swapped(&mask)),
        }
    }
}

/// A cell before its first step.
struct BegunCell<'a> {
    cell: &'a dyn RnnCell,
    constants: Vec<Tensor>,
    /// What a step gets and gives.
    input: Shape,
    states: Vec<Shape>,
    output: Shape,
}

impl BegunCell<'_> {
    /// The states before the first step.
    #[track_caller]
    fn first(&self, cx: &Cx) -> Vec<Tensor> {
        let zeros = self.states.iter().map(|state| zeros(cx, state));
        let Some(first) = self.cell.first_states(&self.input, &self.constants) else {
            return zeros.collect();
        };
        match self.fit(&first) {
            true => self.converted(&first),
            false => {
                let _ = cx.fail(format!(
                    "cell `{}`: its `first_states` are {}, expected {} as its `state_dims` say",
                    self.cell.kind(),
                    listed(first.iter().map(Tensor::shape)),
                    listed(self.states.iter().cloned())
                ));
                zeros.collect()
            }
        }
    }

    fn fit(&self, states: &[Tensor]) -> bool {
        let dims = states.iter().map(Tensor::dims);
        dims.eq(self.states.iter().map(|state| state.dims.clone()))
    }

    #[track_caller]
    fn converted(&self, states: &[Tensor]) -> Vec<Tensor> {
        let states = states.iter();
        states
            .map(|state| state.convert(self.output.dtype))
            .collect()
    }

    #[track_caller]
    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let (output, next) = self.cell.step(input, states, constants);
        if output.dims() == self.output.dims && self.fit(&next) {
            return (output.convert(self.output.dtype), self.converted(&next));
        }
        let graph = input.graph();
        graph.fail(
            "rnn",
            format!(
                "cell `{}`: a step gave the output {} and the states {}, expected {} and {} as its `output_dims` and `state_dims` say",
                self.cell.kind(),
                output.shape(),
                listed(next.iter().map(Tensor::shape)),
                self.output,
                listed(self.states.iter().cloned())
            ),
        );
        (graph.full(&self.output, 0.0), states.to_vec())
    }
}

/// The next values where a step is none of padding, else those before it.
#[track_caller]
fn at_steps(mask: &Tensor, next: &[Tensor], before: &[Tensor]) -> Vec<Tensor> {
    let pairs = next.iter().zip(before);
    pairs
        .map(|(new, old)| mask.broadcast_in(&new.dims(), &[0]).select(new, old))
        .collect()
}

fn listed(shapes: impl Iterator<Item = Shape>) -> String {
    let shapes: Vec<String> = shapes.map(|shape| shape.to_string()).collect();
    format!("[{}]", shapes.join(", "))
}

#[track_caller]
fn zeros(cx: &Cx, shape: &Shape) -> Tensor {
    cx.graph().full(shape, 0.0)
}

/// The first states of all cells: those given, or each cell's own.
#[track_caller]
fn first_states(cx: &Cx, cells: &[BegunCell<'_>], given: &[Tensor]) -> Vec<Tensor> {
    let mut first = Vec::new();
    for cell in cells {
        match given.get(first.len()..first.len() + cell.states.len()) {
            Some(own) if !given.is_empty() => first.extend(cell.converted(own)),
            _ => first.extend(cell.first(cx)),
        }
    }
    first
}

/// A step of all cells: the output of the last, and the next states of all.
#[track_caller]
fn take_step(
    cells: &[BegunCell<'_>],
    row: &Tensor,
    mut states: &[Tensor],
    mut constants: &[Tensor],
) -> (Tensor, Vec<Tensor>) {
    let (mut output, mut next) = (row.clone(), Vec::new());
    for cell in cells {
        let (own_states, other_states) = states.split_at(cell.states.len());
        let (own, others) = constants.split_at(cell.constants.len());
        (states, constants) = (other_states, others);
        let (made, after) = cell.step(&output, own_states, own);
        output = made;
        next.extend(after);
    }
    (output, next)
}

/// What is carried after the last step, and the outputs of all, `[steps, ..]`, by a loop.
#[track_caller]
fn looped(
    cx: &Cx,
    initial: &[Tensor],
    rows: &[Tensor],
    constants: &[Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Tensor) {
    let [initial, xs, constants] =
        [initial, rows, constants].map(|all| all.iter().collect::<Vec<_>>());
    let steps = rows[0].dim(0);
    let (last, mut outputs) = cx.graph().scan(steps, &initial, &xs, &constants, body);
    (last, outputs.swap_remove(0))
}

/// The same with the body once for each step.
#[track_caller]
fn unrolled(
    initial: Vec<Tensor>,
    rows: &[Tensor],
    constants: &[Tensor],
    body: impl Fn(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Tensor) {
    let (mut carried, mut outputs) = (initial, Vec::new());
    for at in 0..rows[0].dim(0) {
        let of_step = |rows: &Tensor| rows.slice_dim(0, at, at + 1).reshape(&rows.dims()[1..]);
        let row: Vec<Tensor> = rows.iter().map(of_step).collect();
        let (next, output) = body(&carried, &row, constants);
        carried = next;
        outputs.extend(output);
    }
    let outputs = Tensor::stack(&outputs.iter().collect::<Vec<_>>(), 0);
    (carried, outputs)
}

impl Described for Rnn {
    const COMPONENT: Component = Component {
        name: "rnn",
        doc: "a recurrent layer around cells, each on the output of the one before at the same step; faster as layers of their names, one after another",
        fields: &[
            Field::required(
                "cells",
                Kind::Worded(
                    "a list of lstm, gru and simple_rnn with their settings",
                    &Kind::List(&Kind::Component(Family::Layer), 1, MAX_CELLS),
                ),
                "the cells, without `dropout`; a program adds its own",
            )
            .example("[{lstm: {units: 64}}, {gru: {units: 32}}]"),
            fields::RETURN_SEQUENCES,
            fields::RETURN_STATE,
            fields::GO_BACKWARDS,
            Field::optional(
                "unroll",
                Kind::Bool,
                "whether the program has every step by itself, not a loop",
            ),
            Field::optional(
                "zero_output_for_mask",
                Kind::Bool,
                "whether the output of padding is zeros, not the output before",
            ),
        ],
    };
}

impl Layer for Rnn {
    fn kind(&self) -> &'static str {
        "rnn"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let count = self.cells.0.len();
        if count > MAX_CELLS {
            return Err(format!("expected at most {MAX_CELLS} cells, got {count}"));
        }
        for cell in &self.cells.0 {
            let wrong = |wrong| format!("cell `{}`: {wrong}", cell.kind());
            if CELLS.contains(&cell.kind()) && !cell.is_of_library() {
                return Err(wrong(
                    "a cell of this library is of this kind; give yours another".into(),
                ));
            }
            cell.check_settings().map_err(wrong)?;
            let checked = |dims: &Vec<usize>| check_dims("a state or the output", dims);
            let states = cell.state_dims();
            states.iter().try_for_each(checked).map_err(wrong)?;
            checked(&cell.output_dims()).map_err(wrong)?;
        }
        Ok(())
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.check_directions(inputs, 1)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_many(cx, inputs).swap_remove(0)
    }

    fn outputs(&self) -> usize {
        match self.settings.return_state {
            true => 1 + self.states().count(),
            false => 1,
        }
    }

    fn call_many(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        let StepSettings {
            return_sequences,
            return_state,
            ..
        } = self.settings;
        let done = self.steps(cx, inputs, false);
        done.returned(cx, return_sequences, return_state)
    }
}
