//! Pooling of images `[batch, height, width, channels]`, and of sequences as images of one row.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{Pool2d, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv1d::{as_row, fits_steps, of_row};
use super::layer::Layer;
use super::position::one_sequence;
use super::precision::widened;
use super::sizes::{SlidingWindow, one_image};
use super::{Cx, Padding, Pair, fields};
use crate::config::{self, Component, Described, Field, Kind};

macro_rules! pooling {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $reduce:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pool_size: Pair,
            strides: Option<Pair>,
            padding: Padding,
        }

        impl $name {
            /// Windows of a size, given as one number or as height and width, side by side.
            #[must_use]
            pub fn new(pool_size: impl Into<Pair>) -> Self {
                Self {
                    pool_size: pool_size.into(),
                    strides: None,
                    padding: Padding::Valid,
                }
            }

            /// Sets the distance between windows, their size by default.
            #[must_use]
            pub fn strides(mut self, strides: impl Into<Pair>) -> Self {
                self.strides = Some(strides.into());
                self
            }

            /// Sets how windows treat the edges.
            #[must_use]
            pub const fn padding(mut self, padding: Padding) -> Self {
                self.padding = padding;
                self
            }

            fn window(&self) -> SlidingWindow {
                SlidingWindow {
                    size: self.pool_size,
                    strides: self.strides.unwrap_or(self.pool_size),
                    dilation: Pair(1, 1),
                    padding: self.padding,
                }
            }
        }

        /// Windows of 2 by 2, as in Keras.
        impl Default for $name {
            fn default() -> Self {
                Self::new(2)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    Field::optional("pool_size", Kind::PAIR, "height and width of a window"),
                    fields::STRIDES.doc("step from one window to the next; the size of a window by default"),
                    fields::PADDING,
                ],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                self.window().check("`pool_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                self.window().check_fits(one_image(inputs)?)
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                $reduce(&inputs[0], self.window())
            }
        }
    };
}

pooling! {
    /// The largest element of each window; kind `max_pool2d`.
    MaxPool2d, "max_pool2d", "the maximum of each window", largest
}
pooling! {
    /// The mean of the elements of each window that lie inside the image; kind `average_pool2d`.
    AveragePool2d, "average_pool2d", "the mean of each window", average
}

#[track_caller]
fn largest(x: &Tensor, window: SlidingWindow) -> Tensor {
    x.max_pool2d(windows(x, window))
}

/// In f32 or more: the sum of a large window is more than f16 holds, and bf16 rounds it.
#[track_caller]
fn average(x: &Tensor, window: SlidingWindow) -> Tensor {
    mean_of_windows(&widened(x), window).convert(x.dtype())
}

#[track_caller]
fn mean_of_windows(x: &Tensor, window: SlidingWindow) -> Tensor {
    let dims = windows(x, window).window();
    let total = x.reduce_window(ReduceOp::Sum, &dims);
    if window.padding == Padding::Valid {
        let Pair(height, width) = window.size;
        return total / (height * width) as f64;
    }
    let inside = Shape::new(x.dtype(), [1, x.dim(1), x.dim(2), 1]);
    let counts = x
        .graph()
        .full(&inside, 1.0)
        .reduce_window(ReduceOp::Sum, &dims);
    total / counts
}

fn windows(x: &Tensor, window: SlidingWindow) -> Pool2d {
    Pool2d {
        size: window.size.array(),
        strides: window.strides.array(),
        padding: window.padding(&x.dims()),
    }
}

macro_rules! step_pooling {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $reduce:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pool_size: usize,
            strides: Option<usize>,
            padding: Padding,
        }

        impl $name {
            /// Windows over this number of steps, side by side.
            #[must_use]
            pub const fn new(pool_size: usize) -> Self {
                Self {
                    pool_size,
                    strides: None,
                    padding: Padding::Valid,
                }
            }

            /// Sets the distance between windows, their size by default.
            #[must_use]
            pub const fn strides(mut self, strides: usize) -> Self {
                self.strides = Some(strides);
                self
            }

            /// Sets how windows treat the ends.
            #[must_use]
            pub const fn padding(mut self, padding: Padding) -> Self {
                self.padding = padding;
                self
            }

            fn window(&self) -> SlidingWindow {
                SlidingWindow {
                    size: Pair(1, self.pool_size),
                    strides: Pair(1, self.strides.unwrap_or(self.pool_size)),
                    dilation: Pair(1, 1),
                    padding: self.padding,
                }
            }
        }

        /// Windows of 2 steps, as in Keras.
        impl Default for $name {
            fn default() -> Self {
                Self::new(2)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    Field::optional("pool_size", Kind::SIZE, "number of steps of a window"),
                    Field::optional(
                        "strides",
                        Kind::SIZE,
                        "step from one window to the next; the size of a window by default",
                    ),
                    fields::PADDING.doc("`valid`: windows stay inside the sequence; `same`: they may reach beyond its ends"),
                ],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                self.window().check("`pool_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                fits_steps(self.window(), one_sequence(inputs)?.dims[1])
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                of_row(&$reduce(&as_row(&inputs[0]), self.window()))
            }
        }
    };
}

step_pooling! {
    /// The largest number of each feature in each window of `[batch, steps, features]`; kind `max_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    MaxPool1d, "max_pool1d", "the maximum of each window of steps", largest
}
step_pooling! {
    /// The mean of each feature over the steps of each window that lie inside the sequence; kind `average_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    AveragePool1d, "average_pool1d", "the mean of each window of steps", average
}

macro_rules! global_pooling {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $reduce:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            keepdims: bool,
        }

        impl $name {
            /// Makes `[batch, channels]`.
            #[must_use]
            pub const fn new() -> Self {
                Self { keepdims: false }
            }

            /// Sets whether height and width stay, as dims of 1.
            #[must_use]
            pub const fn keep_dims(mut self, keep: bool) -> Self {
                self.keepdims = keep;
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    fields::KEEPDIMS,
                ],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                one_image(inputs).map(|_| ())
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let pooled = inputs[0].$reduce(&[1, 2]);
                if self.keepdims { pooled.keep_dims(&[1, 2]) } else { pooled }
            }
        }
    };
}

global_pooling! {
    /// The mean of each channel; kind `global_average_pool2d`.
    GlobalAveragePool2d, "global_average_pool2d", "the mean of each channel", mean
}
global_pooling! {
    /// The largest element of each channel; kind `global_max_pool2d`.
    GlobalMaxPool2d, "global_max_pool2d", "the maximum of each channel", max
}
