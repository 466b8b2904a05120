//! The plain recurrent layer.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::recurrent::{Done, Loop, Weights, check_inputs, recurrent_layer, recurrent_settings};
use super::sizes::{check_range, check_size};
use super::{Activation, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described};

/// `h = tanh(x kernel + h recurrent_kernel + bias)` (Elman 1990); kind `simple_rnn`.
///
/// Inputs: `[batch, steps, features]`, and perhaps the first `h` `[batch, units]`. Output: the last `h`, or with
/// `return_sequences` every `h`. Variables: `kernel` `[features, units]`, `recurrent_kernel` `[units, units]`, `bias`
/// `[units]`. Masks and differences from Keras are as for [`Lstm`](super::Lstm).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimpleRnn {
    units: usize,
    activation: Activation,
    use_bias: bool,
    kernel_initializer: Initializer,
    recurrent_initializer: Initializer,
    bias_initializer: Initializer,
    kernel_regularizer: Option<Regularizer>,
    recurrent_regularizer: Option<Regularizer>,
    bias_regularizer: Option<Regularizer>,
    dropout: f64,
    return_sequences: bool,
    pub(super) go_backwards: bool,
}

impl SimpleRnn {
    const STATES: usize = 1;

    /// A layer with a state of `units` numbers.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            units,
            activation: Activation::Tanh,
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform,
            recurrent_initializer: Initializer::Orthogonal { gain: 1.0 },
            bias_initializer: Initializer::Zeros,
            kernel_regularizer: None,
            recurrent_regularizer: None,
            bias_regularizer: None,
            dropout: 0.0,
            return_sequences: false,
            go_backwards: false,
        }
    }

    recurrent_settings!();

    #[track_caller]
    pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
        let (x, units) = (&inputs[0], self.units);
        let mut weights = self.weights(cx);
        let rows = weights.products(x, units);
        let recurrent = weights.recurrent(x.dtype(), units, units);
        let bias = weights.bias(x.dtype(), &[units]);
        let rows = bias.map_or_else(|| rows.clone(), |bias| &rows + bias);
        let steps = Loop {
            inputs,
            rows,
            units,
            states: Self::STATES,
            backwards: self.go_backwards,
            zero_padding,
        };
        steps.run(cx, &[&recurrent], |row, states, constants| {
            let sum = row + states[0].matmul(&constants[0]);
            vec![self.activation.apply(&sum)]
        })
    }
}

impl Described for SimpleRnn {
    const COMPONENT: Component = Component {
        name: "simple_rnn",
        doc: "a recurrent layer whose output is fed back",
        fields: &[
            fields::UNITS,
            fields::ACTIVATION,
            fields::USE_BIAS,
            fields::KERNEL_INITIALIZER,
            fields::RECURRENT_INITIALIZER,
            fields::BIAS_INITIALIZER,
            fields::KERNEL_REGULARIZER,
            fields::RECURRENT_REGULARIZER,
            fields::BIAS_REGULARIZER,
            fields::DROPOUT,
            fields::RETURN_SEQUENCES,
            fields::GO_BACKWARDS,
        ],
    };
}

impl Layer for SimpleRnn {
    recurrent_layer!("simple_rnn");

    fn check_settings(&self) -> Result<(), String> {
        check_size("`units`", self.units)?;
        self.activation.check()?;
        check_range("`dropout`", self.dropout, 0.0..=1.0)
    }
}
