//! The plain recurrent layer.

use phalanx_graph::{Shape, Tensor};
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
use crate::config::{self, Component, Described, joined};

/// `h = tanh(x kernel + h recurrent_kernel + bias)` (Elman 1990); kind `simple_rnn`.
///
/// Inputs: `[batch, steps, features]`, and perhaps the first `h` `[batch, units]`. Output: the last `h`, or with
/// `return_sequences` every `h`; with `return_state` the `h` after the last step follows.
///
/// Variables: `kernel` `[features, units]`, `recurrent_kernel` `[units, units]`, `bias` `[units]`. Masks and differences from Keras are as for [`Lstm`](super::Lstm).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimpleRnn {
    pub(super) units: usize,
    #[serde(flatten)]
    pub(super) settings: RecurrentSettings,
}

impl SimpleRnn {
    pub(super) const STATES: usize = 1;

    /// A layer with a state of `units` numbers.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            units,
            settings: RecurrentSettings::new(),
        }
    }

    recurrent_settings!();
    units_state!();

    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        let (x, units) = (&inputs[0], self.units);
        let rows = self.settings.products(cx, x, units);
        let recurrent = self
            .settings
            .recurrent(cx, Shape::new(x.dtype(), [units, units]));
        let bias = self.settings.bias(cx, x.dtype(), &[units]);
        let recurrent = self
            .settings
            .state_constants(cx, "gates", &recurrent, x.dim(0));
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
            let sum = row + state_product(&states[0], constants);
            vec![RecurrentSettings::activated(self.settings.activation, &sum)]
        })
    }
}

impl Described for SimpleRnn {
    const COMPONENT: Component = Component {
        name: "simple_rnn",
        doc: "a recurrent layer whose output is fed back",
        fields: joined!(
            &[fields::UNITS, fields::ACTIVATION,],
            RecurrentSettings::FIELDS
        ),
    };
}

impl Layer for SimpleRnn {
    recurrent_layer!("simple_rnn");

    fn check_settings(&self) -> Result<(), String> {
        check_size("`units`", self.units)?;
        self.settings.check()
    }
}
