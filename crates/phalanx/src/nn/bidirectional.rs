//! A recurrent layer in both directions.

use phalanx_graph::{Shape, Tensor};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::recurrent::{Done, RECURRENT, check_inputs};
use super::{ConvLstm1d, ConvLstm2d, ConvLstm3d, Cx, Gru, Lstm, LstmCell, Rnn, SimpleRnn};
use crate::config::{self, Component, Described, Family, Field, Kind};

/// A recurrent layer that [`Bidirectional`] runs in both directions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurrent {
    /// See [`Lstm`].
    Lstm(Lstm),
    /// See [`Gru`].
    Gru(Gru),
    /// See [`SimpleRnn`].
    SimpleRnn(SimpleRnn),
    /// See [`ConvLstm1d`].
    ConvLstm1d(ConvLstm1d),
    /// See [`ConvLstm2d`].
    ConvLstm2d(ConvLstm2d),
    /// See [`ConvLstm3d`].
    ConvLstm3d(ConvLstm3d),
    /// See [`Rnn`].
    Rnn(Rnn),
}

/// How the outputs of both directions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeMode {
    /// One after the other along the last dim.
    Concat,
    /// Their sum.
    Sum,
    /// Their mean.
    Ave,
    /// Their product.
    Mul,
}

/// A recurrent layer from the first step to the last and, with variables of its own, from the last to the first; kind
/// `bidirectional`.
///
/// Input and output are as for the layer; with `return_sequences` step `t` of the output joins both directions
/// at `t`, zeros where it is padding; with `return_state` the forward layer's states follow, then the other's. First states are
/// given in the same order.
///
/// Variables: `forward/..` and `backward/..`. Unlike Keras': the backward layer has
/// the settings of the forward one, outputs are always merged, and beside first states the mask counts.
///
/// ```
/// use phalanx::nn::{Bidirectional, Lstm, Sequential};
///
/// let model = Sequential::new([10, 4]).add(Bidirectional::new(Lstm::new(8))).build()?;
/// assert_eq!(model.outputs()[0].dims, [16]);
/// assert_eq!(model.variables()[3].name, "bidirectional/backward/kernel");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bidirectional {
    layer: Recurrent,
    merge_mode: MergeMode,
}

impl Bidirectional {
    /// A layer in both directions, outputs joined.
    #[must_use]
    pub fn new(layer: impl Into<Recurrent>) -> Self {
        Self {
            layer: layer.into(),
            merge_mode: MergeMode::Concat,
        }
    }

    /// Sets how the outputs of both directions become one; joined by default.
    #[must_use]
    pub const fn merge_mode(mut self, merge_mode: MergeMode) -> Self {
        self.merge_mode = merge_mode;
        self
    }

    #[track_caller]
    fn merge(&self, forward: &Tensor, backward: &Tensor) -> Tensor {
        match self.merge_mode {
            MergeMode::Concat => Tensor::concat(&[forward, backward], forward.rank() - 1),
            MergeMode::Sum => forward + backward,
            MergeMode::Ave => (forward + backward) / 2.0,
            MergeMode::Mul => forward * backward,
        }
    }
}

/// Asks each kind of layer the same.
macro_rules! each {
    ($value:expr, $layer:ident => $answer:expr) => {
        match $value {
            Recurrent::Lstm($layer) => $answer,
            Recurrent::Gru($layer) => $answer,
            Recurrent::SimpleRnn($layer) => $answer,
            Recurrent::ConvLstm1d($layer) => $answer,
            Recurrent::ConvLstm2d($layer) => $answer,
            Recurrent::ConvLstm3d($layer) => $answer,
            Recurrent::Rnn($layer) => $answer,
        }
    };
}

impl Recurrent {
    fn reversed(&self) -> Self {
        let mut other = self.clone();
        each!(&mut other, layer => layer.settings.go_backwards = !layer.settings.go_backwards);
        other
    }

    /// Whether it returns every step, and its states.
    fn returns(&self) -> (bool, bool) {
        each!(self, layer => (layer.settings.return_sequences, layer.settings.return_state))
    }

    fn outputs(&self) -> usize {
        each!(self, layer => layer.outputs())
    }

    /// Checks a sequence, and the first states of both directions where they are given.
    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        match self {
            Self::Lstm(layer) => check_inputs(inputs, 2 * Lstm::STATES, |steps| layer.state(steps)),
            Self::Gru(layer) => check_inputs(inputs, 2 * Gru::STATES, |steps| layer.state(steps)),
            Self::SimpleRnn(layer) => {
                check_inputs(inputs, 2 * SimpleRnn::STATES, |steps| layer.state(steps))
            }
            Self::ConvLstm1d(layer) => {
                check_inputs(inputs, 2 * ConvLstm1d::STATES, |steps| layer.state(steps))
            }
            Self::ConvLstm2d(layer) => {
                check_inputs(inputs, 2 * ConvLstm2d::STATES, |steps| layer.state(steps))
            }
            Self::ConvLstm3d(layer) => {
                check_inputs(inputs, 2 * ConvLstm3d::STATES, |steps| layer.state(steps))
            }
            Self::Rnn(layer) => layer.check_directions(inputs, 2),
        }
    }

    #[track_caller]
    fn steps(&self, cx: &mut Cx, inputs: &[Tensor]) -> Done {
        let zero_padding = self.returns().0;
        each!(self, layer => layer.steps(cx, inputs, zero_padding))
    }
}

macro_rules! into_recurrent {
    ($($layer:ident),*) => {$(
        impl From<$layer> for Recurrent {
            fn from(layer: $layer) -> Self {
                Self::$layer(layer)
            }
        }
    )*};
}
into_recurrent!(
    Lstm, Gru, SimpleRnn, ConvLstm1d, ConvLstm2d, ConvLstm3d, Rnn
);

impl<'de> Deserialize<'de> for Recurrent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut fields = value.as_object().into_iter().flatten();
        let (Some((kind, settings)), None) = (fields.next(), fields.next()) else {
            return Err(D::Error::custom(
                "expected a recurrent layer such as {\"lstm\": {\"units\": 8}}",
            ));
        };
        let layer = match kind.as_str() {
            "lstm" => config::read(kind, &Lstm::new(1), settings).map(Self::Lstm),
            "gru" => config::read(kind, &Gru::new(1), settings).map(Self::Gru),
            "simple_rnn" => config::read(kind, &SimpleRnn::new(1), settings).map(Self::SimpleRnn),
            "conv_lstm1d" => {
                config::read(kind, &ConvLstm1d::new(1, 1), settings).map(Self::ConvLstm1d)
            }
            "conv_lstm2d" => {
                config::read(kind, &ConvLstm2d::new(1, 1), settings).map(Self::ConvLstm2d)
            }
            "conv_lstm3d" => {
                config::read(kind, &ConvLstm3d::new(1, 1), settings).map(Self::ConvLstm3d)
            }
            "rnn" => config::read(kind, &Rnn::new(LstmCell::new(1)), settings).map(Self::Rnn),
            _ => {
                let known = [&RECURRENT[..], &["rnn"]].concat();
                Err(config::unknown_kind("recurrent layer", kind, &known))
            }
        };
        layer.map_err(D::Error::custom)
    }
}

impl Described for Bidirectional {
    const COMPONENT: Component = Component {
        name: "bidirectional",
        doc: "reads a sequence in both directions",
        fields: &[
            Field::required(
                "layer",
                Kind::Worded(
                    "lstm, gru, simple_rnn, a conv_lstm or an rnn with its settings",
                    &Kind::Component(Family::Layer),
                ),
                "the recurrent layer, made twice",
            )
            .example("{lstm: {units: 64}}"),
            Field::optional(
                "merge_mode",
                Kind::OneOf(&["concat", "sum", "ave", "mul"]),
                "how the two outputs are combined",
            ),
        ],
    };
}

impl Layer for Bidirectional {
    fn kind(&self) -> &'static str {
        "bidirectional"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        each!(&self.layer, layer => layer.check_settings())
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.layer.check(inputs)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_many(cx, inputs).swap_remove(0)
    }

    fn outputs(&self) -> usize {
        2 * self.layer.outputs() - 1
    }

    fn call_many(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        let (trainable, policy) = (cx.trainable(), cx.policy());
        let (sequence, first) = inputs.split_at(1);
        let first = first.split_at(first.len() / 2);
        let (sequences, states) = self.layer.returns();
        let mut direction = |name: &str, layer: &Recurrent, first: &[Tensor]| {
            cx.inside(name, trainable, policy, |cx| {
                let inputs = [sequence, first].concat();
                layer.steps(cx, &inputs).returned(cx, sequences, states)
            })
        };
        let mut forward = direction("forward", &self.layer, first.0);
        let mut backward = direction("backward", &self.layer.reversed(), first.1);
        let states = [forward.split_off(1), backward.split_off(1)].concat();
        let (forward, mut backward) = (forward.swap_remove(0), backward.swap_remove(0));
        if sequences {
            backward = backward.reverse(&[1]);
        }
        let merged = self.merge(&forward, &backward);
        if let Some(mask) = cx.padding_mask(&forward) {
            cx.set_padding_mask(&merged, &mask);
        }
        std::iter::once(merged).chain(states).collect()
    }
}
