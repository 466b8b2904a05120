//! Gated recurrent units.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::position::one_sequence;
use super::recurrent::{
    Done, Loop, RecurrentSettings, check_inputs, recurrent_layer, recurrent_settings,
    state_product, units_state,
};
use super::sizes::check_size;
use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// Gated recurrent units (Cho et al. 2014); kind `gru`.
///
/// With `x kernel + input bias` cut into `xz, xr, xh` and `h recurrent_kernel + recurrent bias` into `hz, hr, hh`:
/// `z = sigmoid(xz + hz)`, `r = sigmoid(xr + hr)`, `g = tanh(xh + r hh)`, `h = z h + (1 - z) g`. Without
/// `reset_after`, as in the paper, `hh` is `(r h) recurrent_kernel` and there is no recurrent bias. Inputs:
/// `[batch, steps, features]`, and perhaps the first `h` `[batch, units]`. Output: the last `h`, or with
/// `return_sequences` every `h`; with `return_state` the `h` after the last step follows.
///
/// Variables: `kernel` `[features, 3 units]`, `recurrent_kernel` `[units, 3 units]`, `bias` `[2, 3 units]`, or
/// `[3 units]` without `reset_after`, which PyTorch's GRU always has. Masks and differences from Keras are as for [`Lstm`](super::Lstm).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gru {
    pub(super) units: usize,
    #[serde(flatten)]
    pub(super) settings: RecurrentSettings,
    recurrent_activation: Activation,
    pub(super) reset_after: bool,
}

impl Gru {
    pub(super) const STATES: usize = 1;

    /// A layer with a state of `units` numbers.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            units,
            settings: RecurrentSettings::new(),
            recurrent_activation: Activation::Sigmoid,
            reset_after: true,
        }
    }

    /// Sets the function of the gates; sigmoid by default.
    #[must_use]
    pub fn recurrent_activation(mut self, activation: impl Into<Activation>) -> Self {
        self.recurrent_activation = activation.into();
        self
    }

    /// Sets whether the reset gate comes after the recurrent product, as it does by default.
    #[must_use]
    pub const fn reset_after(mut self, reset_after: bool) -> Self {
        self.reset_after = reset_after;
        self
    }

    recurrent_settings!();
    units_state!();

    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        if self.is_one_op(cx, inputs) {
            return self.one_op(cx, &inputs[0], inputs.get(1), zero_padding);
        }
        let (x, units) = (&inputs[0], self.units);
        let (dtype, columns) = (x.dtype(), 3 * units);
        let rows = self.settings.products(cx, x, columns);
        let recurrent = self
            .settings
            .recurrent(cx, Shape::new(dtype, [units, columns]));
        let (input_bias, recurrent_bias) = self.biases(cx, x);
        let steps = Loop {
            inputs,
            rows: rows + input_bias,
            state: vec![units],
            states: Self::STATES,
            backwards: self.settings.go_backwards,
            zero_padding,
        };
        let (settings, batch) = (&self.settings, x.dim(0));
        if self.reset_after {
            let mut constants = settings.state_constants(cx, "gates", &recurrent, batch);
            constants.push(recurrent_bias);
            return steps.run(cx, &constants, |row, states, constants| {
                let (bias, recurrent) = constants.split_last().expect("the bias is pushed");
                let inner = state_product(&states[0], recurrent) + bias;
                self.step(row, &states[0], &inner, |reset| {
                    reset * self.part(&inner, 2)
                })
            });
        }
        let gates = recurrent.slice_dim(1, 0, 2 * units);
        let gates = settings.state_constants(cx, "gates", &gates, batch);
        let candidate = recurrent.slice_dim(1, 2 * units, columns);
        let candidate = settings.state_constants(cx, "candidate", &candidate, batch);
        let count = gates.len();
        let constants = [gates, candidate].concat();
        steps.run(cx, &constants, |row, states, constants| {
            let (gates, candidate) = constants.split_at(count);
            let inner = state_product(&states[0], gates);
            self.step(row, &states[0], &inner, |reset| {
                state_product(&(reset * &states[0]), candidate)
            })
        })
    }

    /// The biases of the inputs and of the state's product, `[3 units]` each.
    #[track_caller]
    fn biases(&self, cx: &mut Cx, x: &Tensor) -> (Tensor, Tensor) {
        let (dtype, columns) = (x.dtype(), 3 * self.units);
        let dims = [2, columns];
        let bias = self
            .settings
            .bias(cx, dtype, &dims[usize::from(!self.reset_after)..]);
        let zeros = || x.graph().full(&Shape::new(dtype, [columns]), 0.0);
        let part = |bias: &Tensor, row: usize| bias.slice_dim(0, row, row + 1).reshape(&[columns]);
        match bias {
            Some(bias) if self.reset_after => (part(&bias, 0), part(&bias, 1)),
            Some(bias) => (bias, zeros()),
            None => (zeros(), zeros()),
        }
    }

    /// Whether [`Tensor::gru`] takes these steps, for which some devices have a kernel: f32, Keras' default functions, a whole state. What padding
    /// in front outputs is no state where a first one is given.
    fn is_one_op(&self, cx: &Cx, inputs: &[Tensor]) -> bool {
        inputs[0].dtype() == DType::F32
            && self.settings.activation == Activation::Tanh
            && self.recurrent_activation == Activation::Sigmoid
            && self.reset_after
            && (inputs.len() == 1 || cx.padding_mask(&inputs[0]).is_none())
            && !self.settings.drops_state(cx)
    }

    #[track_caller]
    fn one_op(&self, cx: &mut Cx, x: &Tensor, first: Option<&Tensor>, zero_padding: bool) -> Done {
        let (settings, columns) = (&self.settings, 3 * self.units);
        let rows = settings.turned_products(cx, x, columns);
        let recurrent = settings.recurrent(cx, Shape::new(x.dtype(), [self.units, columns]));
        let (input_bias, recurrent_bias) = self.biases(cx, x);
        let rows = rows + input_bias;
        let mask = cx.padding_mask(x).map(|mask| match settings.go_backwards {
            true => mask.reverse(&[1]),
            false => mask,
        });
        let rows = mask.as_ref().map_or_else(
            || rows.clone(),
            |mask| {
                let kept = mask.broadcast_in(&rows.dims(), &[0, 1]);
                kept.select(&rows, &self.keeping_state(&rows))
            },
        );
        let state = Shape::new(x.dtype(), [x.dim(0), self.units]);
        let first = first.map_or_else(|| x.graph().full(&state, 0.0), Tensor::clone);
        let states = rows.gru(&recurrent, &recurrent_bias, &first);
        Done::of_sequences(states.clone(), &[states], &[&first]).masked(mask, zero_padding)
    }

    /// Inputs of a step at which the state stays as it is, to the last bit: the update gate is 1.
    #[track_caller]
    fn keeping_state(&self, rows: &Tensor) -> Tensor {
        let part = |units: usize, value: f64| {
            (rows.graph()).full(&Shape::new(rows.dtype(), [units]), value)
        };
        let row = Tensor::concat(&[&part(self.units, 1e30), &part(2 * self.units, 0.0)], 0);
        row.broadcast_in(&rows.dims(), &[2])
    }

    #[track_caller]
    pub(super) fn step(
        &self,
        row: &Tensor,
        h: &Tensor,
        inner: &Tensor,
        recurrent: impl FnOnce(&Tensor) -> Tensor,
    ) -> Vec<Tensor> {
        let gate = |number: usize| {
            let sum = self.part(row, number) + self.part(inner, number);
            RecurrentSettings::activated(self.recurrent_activation, &sum)
        };
        let (update, reset) = (gate(0), gate(1));
        let candidate = self.part(row, 2) + recurrent(&reset);
        let candidate = RecurrentSettings::activated(self.settings.activation, &candidate);
        vec![&update * h + (1.0 - &update) * candidate]
    }

    #[track_caller]
    pub(super) fn part(&self, z: &Tensor, number: usize) -> Tensor {
        z.slice_dim(1, number * self.units, (number + 1) * self.units)
    }
}

impl Described for Gru {
    const COMPONENT: Component = Component {
        name: "gru",
        doc: "a gated recurrent unit",
        fields: joined!(
            &[
                fields::UNITS,
                fields::ACTIVATION.doc("activation of the new state"),
                fields::RECURRENT_ACTIVATION,
                Field::optional(
                    "reset_after",
                    Kind::Bool,
                    "whether the reset gate applies after the product with the recurrent kernel",
                ),
            ],
            RecurrentSettings::FIELDS
        ),
    };
}

impl Layer for Gru {
    recurrent_layer!("gru");

    fn check_settings(&self) -> Result<(), String> {
        check_size("`units`", self.units.saturating_mul(3))?;
        self.settings.check()?;
        self.recurrent_activation.check()
    }
}
