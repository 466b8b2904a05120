//! Long short-term memories whose products are convolutions, over sequences of rows, images or volumes.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::{convolve, window_settings};
use super::layer::Layer;
use super::lstm::{GateSettings, gate_settings};
use super::recurrent::{
    Done, Loop, RecurrentSettings, check_inputs, recurrent_layer, recurrent_settings, swapped,
};
use super::sizes::{Padding, Pair, Sizes, SlidingWindow, Triple, check_size, one_of_rank};
use super::{Activation, Constraint, Cx, Dropout, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, joined};

/// The gates of a long short-term memory.
const GATES: usize = 4;

/// A long short-term memory whose states are rows, images or volumes.
macro_rules! conv_lstm {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal, $sequences:literal) => {
        $(#[$doc])*
        ///
        /// Inputs: a sequence, and perhaps the first `h` and `c`, which have the dims of an output. Steps that a padding mask leaves out change
        /// nothing and repeat the output. Fields and defaults are Keras'; unlike Keras' there is no `stateful` or `unroll` and no
        /// `activity_regularizer`, strides and dilation may go together, and what else differs is as for [`Lstm`](super::Lstm), but that
        /// `dropout`, too, drops for each gate by itself.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            filters: usize,
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            #[serde(flatten)]
            pub(super) settings: RecurrentSettings,
            #[serde(flatten)]
            gates: GateSettings,
        }

        impl $name {
            pub(super) const STATES: usize = 2;

            /// A layer with `filters` channels in its states, and windows of a size, given as one number or as one for each direction.
            #[must_use]
            pub fn new(filters: usize, kernel_size: impl Into<$size>) -> Self {
                Self {
                    filters,
                    window: SlidingWindow::new(kernel_size.into()),
                    settings: RecurrentSettings::new(),
                    gates: GateSettings::new(),
                }
            }

            window_settings!($size);
            gate_settings!();
            recurrent_settings!();

            /// Checks a sequence; the dims of a state of one example.
            pub(super) fn state(&self, sequence: &[Shape]) -> Result<Vec<usize>, String> {
                let sequence = one_of_rank(sequence, $n + 3, $sequences)?;
                let step = Shape::new(sequence.dtype, &sequence.dims[1..]);
                self.window.check_fits(&step)?;
                Ok([&self.window.counts(&step.dims)[..], &[self.filters]].concat())
            }

            #[track_caller]
            pub(super) fn steps(&self, cx: &mut Cx, inputs: &[Tensor], zero_padding: bool) -> Done {
                let (x, settings) = (&inputs[0], &self.settings);
                let size = &self.window.size.array()[..];
                let shape = |channels: usize| {
                    let dims = [size, &[channels, GATES * self.filters]].concat();
                    Shape::new(x.dtype(), dims)
                };
                let kernel = settings.weights.kernel(cx, "kernel", shape(x.dim($n + 2)));
                let recurrent = settings.recurrent(cx, shape(self.filters));
                let bias = Shape::new(x.dtype(), [GATES * self.filters]);
                let bias = self.gates.bias(cx, settings, bias);
                let rows = input_sums(cx, x, &kernel, self.window, settings.dropout);
                let rows = bias.map_or_else(|| rows.clone(), |bias| &rows + bias);
                let mut state = rows.dims()[2..].to_vec();
                state[$n] = self.filters;
                let mut constants = vec![recurrent];
                constants.extend(kept_of_state(cx, x, &state, settings.recurrent_dropout));
                let steps = Loop {
                    inputs,
                    rows,
                    state,
                    states: Self::STATES,
                    backwards: settings.go_backwards,
                    zero_padding,
                };
                let window = around_each(self.window.size);
                steps.run(cx, &constants, |row, states, constants| {
                    let z = row + for_each_gate(&states[0], constants.get(1), &constants[0], window);
                    self.gates.next(settings.activation, &z, &states[1])
                })
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: joined!(
                    &[fields::FILTERS],
                    SlidingWindow::<$n>::FIELDS,
                    &[fields::ACTIVATION.doc("activation of the cell's input and of its output")],
                    GateSettings::FIELDS,
                    RecurrentSettings::FIELDS
                ),
            };
        }

        impl Layer for $name {
            recurrent_layer!($kind);

            fn check_settings(&self) -> Result<(), String> {
                check_size("`filters`", self.filters.saturating_mul(GATES))?;
                self.window.check("`kernel_size`")?;
                self.settings.check()?;
                self.gates.check(&self.settings)
            }
        }
    };
}

conv_lstm! {
    /// Long short-term memory of rows, by convolutions (Shi et al. 2015, without peepholes); kind `conv_lstm1d`.
    ///
    /// `[batch, steps, columns, channels]` to `[batch, columns, filters]`, or of each step. Variables: `kernel` `[width, channels, 4 filters]`,
    /// `recurrent_kernel` `[width, filters, 4 filters]`, `bias` `[4 filters]`.
    ConvLstm1d(Sizes<1>, 1), "conv_lstm1d", "a long short-term memory of rows, by convolutions", "sequences of rows [batch, steps, columns, channels]"
}
conv_lstm! {
    /// Long short-term memory of images, by convolutions (Shi et al. 2015, without peepholes); kind `conv_lstm2d`.
    ///
    /// With `z = x * kernel + h * recurrent_kernel + bias`, of which the first convolution is as [`Conv2d`](super::Conv2d)'s and the second
    /// keeps the size, cut into `i, f, g, o`: `c = sigmoid(f) c + sigmoid(i) tanh(g)` and `h = sigmoid(o) tanh(c)`.
    ///
    /// `[batch, steps, height, width, channels]` to the last `h`, `[batch, height, width, filters]`, or with `return_sequences` every `h`.
    /// Variables: `kernel` `[height, width, channels, 4 filters]`, `recurrent_kernel` `[height, width, filters, 4 filters]`, `bias`
    /// `[4 filters]`.
    ///
    /// ```
    /// use phalanx::nn::{ConvLstm2d, Padding, Sequential};
    ///
    /// let frames = ConvLstm2d::new(8, 3).padding(Padding::Same).return_sequences(true);
    /// let model = Sequential::new([5, 16, 16, 1]).add(frames).build()?;
    /// assert_eq!(model.outputs()[0].dims, [5, 16, 16, 8]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ConvLstm2d(Pair, 2), "conv_lstm2d", "a long short-term memory of images, by convolutions", "sequences of images [batch, steps, height, width, channels]"
}
conv_lstm! {
    /// Long short-term memory of volumes, by convolutions (Shi et al. 2015, without peepholes); kind `conv_lstm3d`.
    ///
    /// `[batch, steps, depth, height, width, channels]` to `[batch, depth, height, width, filters]`, or of each step. Variables: `kernel`
    /// `[depth, height, width, channels, 4 filters]`, `recurrent_kernel` `[depth, height, width, filters, 4 filters]`, `bias` `[4 filters]`.
    ConvLstm3d(Triple, 3), "conv_lstm3d", "a long short-term memory of volumes, by convolutions", "sequences of volumes [batch, steps, depth, height, width, channels]"
}

/// The convolutions of all steps in one: `[steps, batch, .., 4 filters]`.
#[track_caller]
fn input_sums<const N: usize>(
    cx: &mut Cx,
    x: &Tensor,
    kernel: &Tensor,
    window: SlidingWindow<N>,
    dropout: f64,
) -> Tensor {
    let of_step = [&x.dims()[..1], &x.dims()[2..]].concat();
    let kept = kept(cx, "dropout", x, &of_step, dropout);
    let folded = |x: &Tensor| {
        let examples = [&[x.dim(0) * x.dim(1)], &x.dims()[2..]].concat();
        x.reshape(&examples)
    };
    let kept = kept.map(|kept| {
        let dims = [&x.dims()[..2], &kept.dims()[1..]].concat();
        let others: Vec<usize> = [0].into_iter().chain(2..dims.len()).collect();
        folded(&kept.broadcast_in(&dims, &others))
    });
    let y = for_each_gate(&folded(x), kept.as_ref(), kernel, window);
    swapped(&y.reshape(&[&x.dims()[..2], &y.dims()[1..]].concat()))
}

/// What the gates keep of a state with these dims, where parts of it are dropped.
#[track_caller]
fn kept_of_state(cx: &mut Cx, x: &Tensor, state: &[usize], rate: f64) -> Option<Tensor> {
    let dims = [&x.dims()[..1], state].concat();
    kept(cx, "dropout_of_gates", x, &dims, rate)
}

/// What each gate keeps, one after the other along the channels, of values with these dims, where parts of them are dropped.
#[track_caller]
fn kept(cx: &mut Cx, name: &str, like: &Tensor, dims: &[usize], rate: f64) -> Option<Tensor> {
    if !cx.training() || rate == 0.0 {
        return None;
    }
    let mut dims = dims.to_vec();
    *dims.last_mut()? *= GATES;
    let ones = cx.graph().full(&Shape::new(like.dtype(), dims), 1.0);
    Some(cx.layer(name, &Dropout::new(rate), &[ones]))
}

/// The convolution with the kernels of all gates, each of which sees what it keeps of the values.
#[track_caller]
fn for_each_gate<const N: usize>(
    x: &Tensor,
    kept: Option<&Tensor>,
    kernel: &Tensor,
    window: SlidingWindow<N>,
) -> Tensor {
    match kept {
        None => convolve(x, kernel, window, 1),
        // As many groups of channels as there are gates.
        Some(kept) => {
            let seen = Tensor::concat(&[x; GATES], x.rank() - 1) * kept;
            convolve(&seen, kernel, window, GATES)
        }
    }
}

/// Windows around each place of a state, which keep its size.
const fn around_each<const N: usize>(size: Sizes<N>) -> SlidingWindow<N> {
    SlidingWindow {
        padding: Padding::Same,
        ..SlidingWindow::new(size)
    }
}
