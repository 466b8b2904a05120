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

/// The size of a window, and what it slides over.
trait WindowSize: Copy {
    const FIELDS: &[Field];

    fn pair(self) -> Pair;

    fn check_fits(window: SlidingWindow, inputs: &[Shape]) -> Result<(), String>;

    /// What `reduce` makes of the windows of an input that [`check_fits`](Self::check_fits) accepts.
    fn pooled(x: &Tensor, window: SlidingWindow, reduce: PoolFunction) -> Tensor;
}

/// What becomes of the windows of an image.
type PoolFunction = fn(&Tensor, SlidingWindow) -> Tensor;

/// Height and width, over images.
impl WindowSize for Pair {
    const FIELDS: &[Field] = &[
        Field::optional("pool_size", Kind::PAIR, "height and width of a window"),
        fields::STRIDES.doc("step from one window to the next; the size of a window by default"),
        fields::PADDING,
    ];

    fn pair(self) -> Pair {
        self
    }

    fn check_fits(window: SlidingWindow, inputs: &[Shape]) -> Result<(), String> {
        window.check_fits(one_image(inputs)?)
    }

    fn pooled(x: &Tensor, window: SlidingWindow, reduce: PoolFunction) -> Tensor {
        reduce(x, window)
    }
}

/// Steps, over sequences.
impl WindowSize for usize {
    const FIELDS: &[Field] = &[
        Field::optional("pool_size", Kind::SIZE, "number of steps of a window"),
        Field::optional(
            "strides",
            Kind::SIZE,
            "step from one window to the next; the size of a window by default",
        ),
        fields::PADDING.doc(
            "`valid`: windows stay inside the sequence; `same`: they may reach beyond its ends",
        ),
    ];

    fn pair(self) -> Pair {
        Pair(1, self)
    }

    fn check_fits(window: SlidingWindow, inputs: &[Shape]) -> Result<(), String> {
        fits_steps(window, one_sequence(inputs)?.dims[1])
    }

    fn pooled(x: &Tensor, window: SlidingWindow, reduce: PoolFunction) -> Tensor {
        of_row(&reduce(&as_row(x), window))
    }
}

macro_rules! pooling {
    ($(#[$doc:meta])* $name:ident($size:ty, $given:ty), $kind:literal, $about:literal, $reduce:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pool_size: $size,
            strides: Option<$size>,
            padding: Padding,
        }

        impl $name {
            /// Windows of a size, side by side: a number of steps, or of images one number or height and width.
            #[must_use]
            pub fn new(pool_size: $given) -> Self {
                Self {
                    pool_size: pool_size.into(),
                    strides: None,
                    padding: Padding::Valid,
                }
            }

            /// Sets the distance between windows, their size by default.
            #[must_use]
            pub fn strides(mut self, strides: $given) -> Self {
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
                    size: self.pool_size.pair(),
                    strides: self.strides.unwrap_or(self.pool_size).pair(),
                    dilation: Pair(1, 1),
                    padding: self.padding,
                }
            }
        }

        /// Windows of 2 in each direction, as in Keras.
        impl Default for $name {
            fn default() -> Self {
                Self::new(2)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: <$size>::FIELDS,
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
                <$size>::check_fits(self.window(), inputs)
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                <$size>::pooled(&inputs[0], self.window(), $reduce)
            }
        }
    };
}

pooling! {
    /// The largest element of each window; kind `max_pool2d`.
    MaxPool2d(Pair, impl Into<Pair>), "max_pool2d", "the maximum of each window", largest
}
pooling! {
    /// The mean of the elements of each window that lie inside the image; kind `average_pool2d`.
    AveragePool2d(Pair, impl Into<Pair>), "average_pool2d", "the mean of each window", average
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

pooling! {
    /// The largest number of each feature in each window of `[batch, steps, features]`; kind `max_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    MaxPool1d(usize, usize), "max_pool1d", "the maximum of each window of steps", largest
}
pooling! {
    /// The mean of each feature over the steps of each window that lie inside the sequence; kind `average_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    AveragePool1d(usize, usize), "average_pool1d", "the mean of each window of steps", average
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
