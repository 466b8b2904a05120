//! Long short-term memory.

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
    pub(super) units: usize,
    #[serde(flatten)]
    pub(super) settings: RecurrentSettings,
    #[serde(flatten)]
    pub(super) gates: GateSettings,
}

/// The settings of the gates of a long short-term memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GateSettings {
    pub(super) recurrent_activation: Activation,
    pub(super) unit_forget_bias: bool,
}

impl GateSettings {
    pub(super) const FIELDS: &[Field] = &[
        fields::RECURRENT_ACTIVATION,
        Field::optional(
            "unit_forget_bias",
            Kind::Bool,
            "whether the bias of the forget gate starts at 1; needs a `bias_initializer` of zeros",
        ),
    ];

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            recurrent_activation: Activation::Sigmoid,
            unit_forget_bias: true,
        }
    }

    pub(super) fn check(&self, settings: &RecurrentSettings) -> Result<(), String> {
        self.recurrent_activation.check()?;
        if self.unit_forget_bias && settings.weights.rules.bias_initializer != Initializer::Zeros {
            return Err(
                "`unit_forget_bias` needs a `bias_initializer` of zeros; set it to false".into(),
            );
        }
        Ok(())
    }

    /// The bias of all gates, `[4 units]`.
    #[track_caller]
    pub(super) fn bias(
        &self,
        cx: &mut Cx,
        settings: &RecurrentSettings,
        shape: Shape,
    ) -> Option<Tensor> {
        let mut weights = settings.weights.clone();
        if self.unit_forget_bias {
            weights.rules.bias_initializer = Initializer::ForgetGate;
        }
        weights.bias(cx, "bias", shape)
    }

    /// The next `h` and `c` of the sums `z` `[.., 4 units]`, in the order input, forget gate, candidate, output.
    #[track_caller]
    pub(super) fn next(&self, activation: Activation, z: &Tensor, c: &Tensor) -> Vec<Tensor> {
        let (last, units) = (z.rank() - 1, c.dim(z.rank() - 1));
        // Cut in the order of their places: their gradients then are joined one after another.
        let cut = |gate: usize| z.slice_dim(last, gate * units, (gate + 1) * units);
        let [i, f, g, o] = [0, 1, 2, 3].map(cut);
        let gate = |part: &Tensor| RecurrentSettings::activated(self.recurrent_activation, part);
        let activated = |x: &Tensor| RecurrentSettings::activated(activation, x);
        let c = gate(&f) * c + gate(&i) * activated(&g);
        let h = gate(&o) * activated(&c);
        vec![h, c]
    }
}

/// Builders of a layer's [`GateSettings`], which are its field `gates`.
macro_rules! gate_settings {
    () => {
        /// Sets the function of the gates; sigmoid by default.
        #[must_use]
        pub fn recurrent_activation(mut self, activation: impl Into<Activation>) -> Self {
            self.gates.recurrent_activation = activation.into();
            self
        }

        /// Sets whether the bias of the forget gate starts at 1, as it does by default; needs a `bias_initializer` of
        /// zeros.
        #[must_use]
        pub const fn unit_forget_bias(mut self, unit_forget_bias: bool) -> Self {
            self.gates.unit_forget_bias = unit_forget_bias;
            self
        }
    };
}
pub(super) use gate_settings;

impl Lstm {
    pub(super) const STATES: usize = 2;

    /// A layer with a state of `units` numbers.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            units,
            settings: RecurrentSettings::new(),
            gates: GateSettings::new(),
        }
    }

    gate_settings!();
    recurrent_settings!();
    units_state!();

    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        let (x, units) = (&inputs[0], self.units);
        let (dtype, columns) = (x.dtype(), 4 * units);
        if self.is_one_op(cx, x) {
            return self.one_op(cx, inputs);
        }
        let settings = &self.settings;
        let rows = settings.products(cx, x, columns);
        let recurrent = settings.recurrent(cx, Shape::new(dtype, [units, columns]));
        let bias = self.gates.bias(cx, settings, Shape::new(dtype, [columns]));
        let recurrent = settings.state_constants(cx, "gates", &recurrent, x.dim(0));
        let rows = bias.map_or_else(|| rows.clone(), |bias| &rows + bias);
        let steps = Loop {
            inputs,
            rows,
            state: vec![units],
            states: Self::STATES,
            backwards: self.settings.go_backwards,
            zero_padding,
        };
        steps.run(cx, &recurrent, |row, states, constants| {
            let z = row + state_product(&states[0], constants);
            self.gates.next(self.settings.activation, &z, &states[1])
        })
    }

    /// Whether [`Tensor::lstm`] takes these steps, for which some devices have a kernel: f32, Keras' default functions, no padding, a whole state.
    fn is_one_op(&self, cx: &Cx, x: &Tensor) -> bool {
        x.dtype() == DType::F32
            && self.settings.activation == Activation::Tanh
            && self.gates.recurrent_activation == Activation::Sigmoid
            && cx.padding_mask(x).is_none()
            && !self.settings.drops_state(cx)
    }

    #[track_caller]
    fn one_op(&self, cx: &mut Cx, inputs: &[Tensor]) -> Done {
        let (x, units, columns) = (&inputs[0], self.units, 4 * self.units);
        let settings = &self.settings;
        let rows = settings.turned_products(cx, x, columns);
        let recurrent = settings.recurrent(cx, Shape::new(x.dtype(), [units, columns]));
        let zeros = |dims: &[usize]| x.graph().full(&Shape::new(x.dtype(), dims), 0.0);
        let bias = self
            .gates
            .bias(cx, settings, Shape::new(x.dtype(), [columns]));
        let bias = bias.unwrap_or_else(|| zeros(&[columns]));
        let state = zeros(&[x.dim(0), units]);
        let first = match &inputs[1..] {
            [h, c] => [h, c],
            _ => [&state, &state],
        };
        let made = rows.lstm(&recurrent, &bias, first);
        Done::of_sequences(made.states.clone(), &[made.states, made.cells], &first)
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
            ],
            GateSettings::FIELDS,
            RecurrentSettings::FIELDS
        ),
    };
}

impl Layer for Lstm {
    recurrent_layer!("lstm");

    fn check_settings(&self) -> Result<(), String> {
        check_size("`units`", self.units.saturating_mul(4))?;
        self.settings.check()?;
        self.gates.check(&self.settings)
    }
}
