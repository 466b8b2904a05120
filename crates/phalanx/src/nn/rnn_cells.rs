//! The cells of this library: a step of its recurrent layers.

use phalanx_graph::{Shape, Tensor};
use serde_json::Value;

use super::recurrent::RecurrentSettings;
use super::{Cx, Gru, Layer, Lstm, RnnCell, SimpleRnn};

/// The cell of a layer, whose settings it has.
macro_rules! cell_of_layer {
    ($(#[$doc:meta])* $name:ident, $layer:ident) => {
        $(#[$doc])*
        ///
        /// Other settings come with the layer that it is made [from](From::from), but `dropout`, `recurrent_dropout` and
        /// what the layer returns, which are refused.
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name($layer);

        impl $name {
            /// A cell with a state of `units` numbers, with Keras' defaults.
            #[must_use]
            pub const fn new(units: usize) -> Self {
                Self($layer::new(units))
            }
        }

        impl From<$layer> for $name {
            fn from(layer: $layer) -> Self {
                Self(layer)
            }
        }
    };
}

cell_of_layer! {
    /// A step of [`Lstm`], with the states `h` and `c`, for [`Rnn`](super::Rnn): Keras' `LSTMCell`.
    LstmCell, Lstm
}

cell_of_layer! {
    /// A step of [`Gru`] for [`Rnn`](super::Rnn): Keras' `GRUCell`.
    GruCell, Gru
}

cell_of_layer! {
    /// A step of [`SimpleRnn`] for [`Rnn`](super::Rnn): Keras' `SimpleRNNCell`.
    SimpleRnnCell, SimpleRnn
}

/// What the three cells answer in the same way.
macro_rules! answers_of_layer {
    ($layer:ident) => {
        fn kind(&self) -> &'static str {
            self.0.kind()
        }

        fn config(&self) -> Value {
            self.0.config()
        }

        fn is_of_library(&self) -> bool {
            true
        }

        fn check_settings(&self) -> Result<(), String> {
            check_cell(&self.0.settings)?;
            self.0.check_settings()
        }

        fn check(&self, input: &[usize]) -> Result<(), String> {
            match input {
                [_] => Ok(()),
                _ => Err(format!(
                    "expected a vector at each step, [batch, steps, features], got dims {input:?} at each; reshape them first"
                )),
            }
        }

        fn state_dims(&self) -> Vec<Vec<usize>> {
            vec![vec![self.0.units]; $layer::STATES]
        }
    };
}

/// Refuses what a layer has around its steps.
fn check_cell(settings: &RecurrentSettings) -> Result<(), String> {
    if settings.return_sequences || settings.return_state || settings.go_backwards {
        return Err(
            "`return_sequences`, `return_state` and `go_backwards` are settings of the `rnn` around its cells, set them there"
                .into(),
        );
    }
    if settings.dropout > 0.0 || settings.recurrent_dropout > 0.0 {
        return Err(format!(
            "expected a cell without `dropout` and `recurrent_dropout`, got {} and {}; use the layer of its name, or a stack of such layers",
            settings.dropout, settings.recurrent_dropout
        ));
    }
    Ok(())
}

/// The kernels of a layer and a bias of these dims, zeros where it has none.
#[track_caller]
fn weights(
    cx: &mut Cx,
    settings: &RecurrentSettings,
    input: &Shape,
    units: usize,
    columns: usize,
) -> [Tensor; 2] {
    let shape = |rows: usize| Shape::new(input.dtype, [rows, columns]);
    let kernel = settings.weights.kernel(cx, "kernel", shape(input.dims[1]));
    [kernel, settings.recurrent(cx, shape(units))]
}

#[track_caller]
fn or_zeros(cx: &Cx, bias: Option<Tensor>, shape: &Shape) -> Tensor {
    bias.unwrap_or_else(|| cx.graph().full(shape, 0.0))
}

impl RnnCell for LstmCell {
    answers_of_layer!(Lstm);

    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
        let (layer, columns) = (&self.0, 4 * self.0.units);
        let [kernel, recurrent] = weights(cx, &layer.settings, input, layer.units, columns);
        let shape = Shape::new(input.dtype, [columns]);
        let bias = layer.gates.bias(cx, &layer.settings, shape.clone());
        vec![kernel, recurrent, or_zeros(cx, bias, &shape)]
    }

    #[track_caller]
    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let sum = input.matmul(&constants[0]) + states[0].matmul(&constants[1]) + &constants[2];
        let layer = &self.0;
        let states = layer
            .gates
            .next(layer.settings.activation, &sum, &states[1]);
        (states[0].clone(), states)
    }
}

impl RnnCell for SimpleRnnCell {
    answers_of_layer!(SimpleRnn);

    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
        let (settings, units) = (&self.0.settings, self.0.units);
        let [kernel, recurrent] = weights(cx, settings, input, units, units);
        let bias = settings.bias(cx, input.dtype, &[units]);
        let bias = or_zeros(cx, bias, &Shape::new(input.dtype, [units]));
        vec![kernel, recurrent, bias]
    }

    #[track_caller]
    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let sum = input.matmul(&constants[0]) + states[0].matmul(&constants[1]) + &constants[2];
        let h = RecurrentSettings::activated(self.0.settings.activation, &sum);
        (h.clone(), vec![h])
    }
}

impl RnnCell for GruCell {
    answers_of_layer!(Gru);

    /// Kernel, bias, and of the state: kernel and bias, or without `reset_after` the kernels of the gates and of the candidate.
    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
        let (layer, units, columns) = (&self.0, self.0.units, 3 * self.0.units);
        let [kernel, recurrent] = weights(cx, &layer.settings, input, units, columns);
        let dims = &[2, columns][usize::from(!layer.reset_after)..];
        let bias = layer.settings.bias(cx, input.dtype, dims);
        let bias = or_zeros(cx, bias, &Shape::new(input.dtype, dims));
        if !layer.reset_after {
            let part = |from: usize, to: usize| recurrent.slice_dim(1, from, to);
            return vec![kernel, bias, part(0, 2 * units), part(2 * units, columns)];
        }
        let row = |at: usize| bias.slice_dim(0, at, at + 1).reshape(&[columns]);
        vec![kernel, row(0), recurrent, row(1)]
    }

    #[track_caller]
    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let (layer, h) = (&self.0, &states[0]);
        let row = input.matmul(&constants[0]) + &constants[1];
        let inner = h.matmul(&constants[2]);
        let next = match layer.reset_after {
            true => {
                let inner = inner + &constants[3];
                layer.step(&row, h, &inner, |reset| reset * layer.part(&inner, 2))
            }
            false => layer.step(&row, h, &inner, |reset| (reset * h).matmul(&constants[3])),
        };
        (next[0].clone(), next)
    }
}
