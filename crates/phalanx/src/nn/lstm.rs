//! Long short-term memory.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::recurrent::{
    Done, Loop, RecurrentSettings, check_inputs, recurrent_layer, recurrent_settings, state_product,
};
use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates); kind `lstm`.
///
/// With `z = x kernel + h recurrent_kernel + bias` cut into `i, f, g, o`: `c = sigmoid(f) c + sigmoid(i) tanh(g)` and
/// `h = sigmoid(o) tanh(c)`. Inputs: `[batch, steps, features]`, and perhaps the first `h` and `c`, `[batch, units]`.
/// Output: the last `h`, or with `return_sequences` every `h`; with `return_state` `h` and `c` after the last step follow.
///
/// Variables: `kernel` `[features, 4 units]`, `recurrent_kernel` `[units, 4 units]`, `bias` `[4 units]`. Steps that a
/// padding mask leaves out change nothing and repeat the output. Unlike Keras': no `stateful` or
/// `unroll`; `dropout` drops the same features for every gate; with `go_backwards` the mask of the output is reversed as its steps are; beside first
/// states the mask of the sequence still counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lstm {
    #[serde(flatten)]
    pub(super) settings: RecurrentSettings,
    recurrent_activation: Activation,
    unit_forget_bias: bool,
}

impl Lstm {
    pub(super) const STATES: usize = 2;

    /// A layer with a state of `units` numbers.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            settings: RecurrentSettings::new(units),
            recurrent_activation: Activation::Sigmoid,
            unit_forget_bias: true,
        }
    }

    /// Sets the function of the gates; sigmoid by default.
    #[must_use]
    pub fn recurrent_activation(mut self, activation: impl Into<Activation>) -> Self {
        self.recurrent_activation = activation.into();
        self
    }

    /// Sets whether the bias of the forget gate starts at 1, as it does by default; needs a `bias_initializer` of
    /// zeros.
    #[must_use]
    pub const fn unit_forget_bias(mut self, unit_forget_bias: bool) -> Self {
        self.unit_forget_bias = unit_forget_bias;
        self
    }

    recurrent_settings!();

    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        let (x, units) = (&inputs[0], self.settings.units);
        let (dtype, columns) = (x.dtype(), 4 * units);
        let mut settings = self.settings.clone();
        if self.unit_forget_bias {
            settings.weights.rules.bias_initializer = Initializer::ForgetGate;
        }
        if self.is_one_op(cx, x) {
            return self.one_op(cx, &settings, inputs);
        }
        let rows = settings.products(cx, x, columns);
        let recurrent = settings.recurrent(cx, dtype, columns);
        let bias = settings.bias(cx, dtype, &[columns]);
        let recurrent = settings.state_constants(cx, "gates", &recurrent, x.dim(0));
        let rows = bias.map_or_else(|| rows.clone(), |bias| &rows + bias);
        let steps = Loop {
            inputs,
            rows,
            units,
            states: Self::STATES,
            backwards: self.settings.go_backwards,
            zero_padding,
        };
        steps.run(cx, &recurrent, |row, states, constants| {
            self.step(row, &states[0], &states[1], constants)
        })
    }

    /// Whether [`Tensor::lstm`] takes these steps, for which some devices have a kernel: f32, Keras' default functions, no padding, a whole state.
    fn is_one_op(&self, cx: &Cx, x: &Tensor) -> bool {
        x.dtype() == DType::F32
            && self.settings.activation == Activation::Tanh
            && self.recurrent_activation == Activation::Sigmoid
            && cx.padding_mask(x).is_none()
            && !self.settings.drops_state(cx)
    }

    #[track_caller]
    fn one_op(&self, cx: &mut Cx, settings: &RecurrentSettings, inputs: &[Tensor]) -> Done {
        let (x, columns) = (&inputs[0], 4 * settings.units);
        let rows = settings.turned_products(cx, x, columns);
        let recurrent = settings.recurrent(cx, x.dtype(), columns);
        let zeros = |dims: &[usize]| x.graph().full(&Shape::new(x.dtype(), dims), 0.0);
        let bias = settings.bias(cx, x.dtype(), &[columns]);
        let bias = bias.unwrap_or_else(|| zeros(&[columns]));
        let state = zeros(&[x.dim(0), settings.units]);
        let first = match &inputs[1..] {
            [h, c] => [h, c],
            _ => [&state, &state],
        };
        let made = rows.lstm(&recurrent, &bias, first);
        Done::of_sequences(made.states.clone(), &[made.states, made.cells], first)
    }

    #[track_caller]
    fn step(&self, row: &Tensor, h: &Tensor, c: &Tensor, recurrent: &[Tensor]) -> Vec<Tensor> {
        let z = row + state_product(h, recurrent);
        // Cut in the order of their places: their gradients then are joined one after another.
        let cut = |gate: usize| {
            z.slice_dim(
                1,
                gate * self.settings.units,
                (gate + 1) * self.settings.units,
            )
        };
        let [i, f, g, o] = [0, 1, 2, 3].map(cut);
        let gate = |part: &Tensor| RecurrentSettings::activated(self.recurrent_activation, part);
        let activated = |x: &Tensor| RecurrentSettings::activated(self.settings.activation, x);
        let c = gate(&f) * c + gate(&i) * activated(&g);
        let h = gate(&o) * activated(&c);
        vec![h, c]
    }
}

impl Described for Lstm {
    const COMPONENT: Component = Component {
        name: "lstm",
        doc: "a long short-term memory",
        fields: joined!(
            &[
                fields::UNITS,
                fields::ACTIVATION.doc("activation of the cell's input and of its output"),
                fields::RECURRENT_ACTIVATION,
                Field::optional(
                    "unit_forget_bias",
                    Kind::Bool,
                    "whether the bias of the forget gate starts at 1; needs a `bias_initializer` of zeros",
                ),
            ],
            RecurrentSettings::FIELDS
        ),
    };
}

impl Layer for Lstm {
    recurrent_layer!("lstm");

    fn check_settings(&self) -> Result<(), String> {
        self.settings.check(4)?;
        self.recurrent_activation.check()?;
        if self.unit_forget_bias
            && self.settings.weights.rules.bias_initializer != Initializer::Zeros
        {
            return Err(
                "`unit_forget_bias` needs a `bias_initializer` of zeros; set it to false".into(),
            );
        }
        Ok(())
    }
}
