//! Convolutions that treat each channel of sequences and images on its own.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::{convolve, window_settings};
use super::conv1d::{as_row, fits_steps, kernel_row, of_row};
use super::fields;
use super::layer::Layer;
use super::position::one_sequence;
use super::settings::{KernelSettings, kernel_output, kernel_settings};
use super::sizes::{Sizes, SlidingWindow, check_size, one_image};
use super::{Activation, Constraint, Cx, Initializer, Padding, Pair, Regularizer};
use crate::config::{self, Component, Described, Field, Kind, joined};

const DEPTH_MULTIPLIER: Field = Field::optional(
    "depth_multiplier",
    Kind::SIZE,
    "number of output channels for each input channel",
);

const DEPTHWISE_REGULARIZER: Field = fields::regularizer(
    "depthwise_regularizer",
    "penalty on the kernels of each channel, in place of `kernel_regularizer`",
);
const POINTWISE_REGULARIZER: Field = fields::regularizer(
    "pointwise_regularizer",
    "penalty on the kernel over all channels, in place of `kernel_regularizer`",
);
const DEPTHWISE_CONSTRAINT: Field = fields::constraint(
    "depthwise_constraint",
    "what updates bring the kernels of each channel back to, in place of `kernel_constraint`",
);
const POINTWISE_CONSTRAINT: Field = fields::constraint(
    "pointwise_constraint",
    "what updates bring the kernel over all channels back to, in place of `kernel_constraint`",
);

macro_rules! depthwise_convolution {
    (
        $(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal,
        $check_input:ident, $each_channel:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            depth_multiplier: usize,
            #[serde(flatten)]
            settings: KernelSettings,
        }

        impl $name {
            /// A convolution with one kernel per channel of a size, given as one number or as one for each direction.
            #[must_use]
            pub fn new(kernel_size: impl Into<$size>) -> Self {
                Self {
                    window: SlidingWindow::new(kernel_size.into()),
                    depth_multiplier: 1,
                    settings: KernelSettings::new(),
                }
            }

            window_settings!($size);
            kernel_settings!();

            /// Sets how many outputs each channel makes.
            #[must_use]
            pub const fn depth_multiplier(mut self, multiplier: usize) -> Self {
                self.depth_multiplier = multiplier;
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: joined!(
                    SlidingWindow::<$n>::FIELDS,
                    &[DEPTH_MULTIPLIER],
                    KernelSettings::FIELDS,
                ),
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
                check_size("`depth_multiplier`", self.depth_multiplier)?;
                self.settings.activation.check()?;
                self.window.check("`kernel_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                let channels = $check_input(self.window, inputs)?;
                let filters = channels.saturating_mul(self.depth_multiplier);
                check_size("the number of output channels", filters)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = &inputs[0];
                let channels = [x.dim($n + 1), self.depth_multiplier];
                let dims = [&self.window.size.array()[..], &channels].concat();
                let kernel = self.settings.kernel(cx, Shape::new(x.dtype(), dims));
                let y = $each_channel(x, &kernel, self.window);
                self.settings.finish(cx, y, channels[0] * channels[1])
            }

            kernel_output!();
        }
    };
}

depthwise_convolution! {
    /// A convolution of each channel of sequences with kernels of its own; kind `depthwise_conv1d`.
    ///
    /// `[batch, steps, channels]` to `channels * depth_multiplier` channels. Variables: `kernel` `[size, channels, depth_multiplier]`,
    /// `bias` `[channels * depth_multiplier]`. Channel `c` makes outputs `c * depth_multiplier ..`. Fields and defaults are Keras', but
    /// the kernel's regularizer and initializer are called `kernel_..` rather than `depthwise_..`; unlike Keras, strides and dilation
    /// may go together. The output has no mask, as in Keras.
    DepthwiseConv1d(Sizes<1>, 1), "depthwise_conv1d", "a convolution of each channel of sequences on its own",
    channels_of_steps, each_channel_of_steps
}
depthwise_convolution! {
    /// A convolution of each channel with kernels of its own; kind `depthwise_conv2d`.
    ///
    /// Variables: `kernel` `[height, width, channels, depth_multiplier]`, `bias` `[channels * depth_multiplier]`.
    /// Channel `c` makes outputs `c * depth_multiplier ..`. Fields and defaults are Keras', but the kernel's
    /// regularizer and initializer are called `kernel_..` rather than `depthwise_..`.
    DepthwiseConv2d(Pair, 2), "depthwise_conv2d", "a convolution of each channel of images on its own",
    channels_of_image, each_channel
}

macro_rules! separable_convolution {
    (
        $(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal,
        $check_input:ident, $each_channel:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            filters: usize,
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            depth_multiplier: usize,
            depthwise_regularizer: Option<Regularizer>,
            pointwise_regularizer: Option<Regularizer>,
            depthwise_constraint: Option<Constraint>,
            pointwise_constraint: Option<Constraint>,
            #[serde(flatten)]
            settings: KernelSettings,
        }

        impl $name {
            /// A convolution to `filters` channels by kernels of a size, given as one number or as one for each direction.
            #[must_use]
            pub fn new(filters: usize, kernel_size: impl Into<$size>) -> Self {
                Self {
                    filters,
                    window: SlidingWindow::new(kernel_size.into()),
                    depth_multiplier: 1,
                    depthwise_regularizer: None,
                    pointwise_regularizer: None,
                    depthwise_constraint: None,
                    pointwise_constraint: None,
                    settings: KernelSettings::new(),
                }
            }

            window_settings!($size);
            kernel_settings!();

            /// Sets how many outputs each channel makes before they are joined.
            #[must_use]
            pub const fn depth_multiplier(mut self, multiplier: usize) -> Self {
                self.depth_multiplier = multiplier;
                self
            }

            /// Sets a penalty on the kernels of each channel, in place of the one on both.
            #[must_use]
            pub const fn depthwise_regularizer(mut self, regularizer: Regularizer) -> Self {
                self.depthwise_regularizer = Some(regularizer);
                self
            }

            /// Sets a penalty on the kernel over all channels, in place of the one on both.
            #[must_use]
            pub const fn pointwise_regularizer(mut self, regularizer: Regularizer) -> Self {
                self.pointwise_regularizer = Some(regularizer);
                self
            }

            /// Sets what every update brings the kernels of each channel back to, in place of the constraint of both.
            #[must_use]
            pub fn depthwise_constraint(mut self, constraint: Constraint) -> Self {
                self.depthwise_constraint = Some(constraint);
                self
            }

            /// Sets what every update brings the kernel over all channels back to, in place of the constraint of both.
            #[must_use]
            pub fn pointwise_constraint(mut self, constraint: Constraint) -> Self {
                self.pointwise_constraint = Some(constraint);
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: joined!(
                    &[fields::FILTERS],
                    SlidingWindow::<$n>::FIELDS,
                    &[
                        DEPTH_MULTIPLIER,
                        DEPTHWISE_REGULARIZER,
                        POINTWISE_REGULARIZER,
                        DEPTHWISE_CONSTRAINT,
                        POINTWISE_CONSTRAINT,
                    ],
                    KernelSettings::FIELDS,
                ),
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
                check_size("`filters`", self.filters)?;
                check_size("`depth_multiplier`", self.depth_multiplier)?;
                self.settings.activation.check()?;
                self.window.check("`kernel_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                let channels = $check_input(self.window, inputs)?;
                let between = channels.saturating_mul(self.depth_multiplier);
                check_size("the number of channels in between", between)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = &inputs[0];
                let channels = [x.dim($n + 1), self.depth_multiplier];
                let weights = &self.settings.weights.rules;
                let dims = [&self.window.size.array()[..], &channels].concat();
                let (both, first) = (weights.kernel_regularizer, &weights.kernel_initializer);
                let of_depth = self.depthwise_regularizer.or(both);
                let shape = Shape::new(x.dtype(), dims);
                let kept = weights.kernel_constraint.as_ref();
                let of_depth = (of_depth, self.depthwise_constraint.as_ref().or(kept));
                let depthwise = cx.limited("depthwise_kernel", shape, first, of_depth);
                let dims = [&[1; $n][..], &[channels[0] * channels[1], self.filters]].concat();
                let of_points = self.pointwise_regularizer.or(both);
                let shape = Shape::new(x.dtype(), dims);
                let of_points = (of_points, self.pointwise_constraint.as_ref().or(kept));
                let pointwise = cx.limited("pointwise_kernel", shape, first, of_points);
                let y = $each_channel(x, &depthwise, self.window);
                self.settings.finish(cx, all_channels(&y, &pointwise), self.filters)
            }

            kernel_output!();
        }
    };
}

separable_convolution! {
    /// A convolution of each channel of sequences with kernels of its own, then one of each step over all of them; kind
    /// `separable_conv1d`.
    ///
    /// `[batch, steps, channels]` to `filters` channels. Variables: `depthwise_kernel` `[size, channels, depth_multiplier]`,
    /// `pointwise_kernel` `[1, channels * depth_multiplier, filters]`, `bias` `[filters]`. Fields and defaults are Keras', but the
    /// initializer of both kernels is one, called `kernel_..`, and `kernel_regularizer` is of those that have none of their own; unlike
    /// Keras, strides and dilation may go together. The output has no mask, as in Keras.
    SeparableConv1d(Sizes<1>, 1), "separable_conv1d",
    "a convolution of each channel of sequences on its own, then one of each step", channels_of_steps, each_channel_of_steps
}
separable_convolution! {
    /// A convolution of each channel with kernels of its own, then one of 1x1 over all of them; kind `separable_conv2d`.
    ///
    /// Variables: `depthwise_kernel` `[height, width, channels, depth_multiplier]`, `pointwise_kernel`
    /// `[1, 1, channels * depth_multiplier, filters]`, `bias` `[filters]`. Fields and defaults are Keras', but the initializer of both
    /// kernels is one, called `kernel_..`, and `kernel_regularizer` is of those that have none of their own.
    SeparableConv2d(Pair, 2), "separable_conv2d",
    "a convolution of each channel of images on its own, then one of 1x1", channels_of_image, each_channel
}

/// The channels of sequences that a window fits.
fn channels_of_steps(window: SlidingWindow<1>, inputs: &[Shape]) -> Result<usize, String> {
    let sequence = one_sequence(inputs)?;
    fits_steps(window.of_row(), sequence.dims[1])?;
    Ok(sequence.dims[2])
}

/// The channels of images that a window fits.
fn channels_of_image(window: SlidingWindow<2>, inputs: &[Shape]) -> Result<usize, String> {
    let image = one_image(inputs)?;
    window.check_fits(image)?;
    Ok(image.dims[3])
}

/// With a kernel `[height, width, channels, outputs of a channel]`.
#[track_caller]
fn each_channel(x: &Tensor, kernel: &Tensor, window: SlidingWindow<2>) -> Tensor {
    let (channels, outputs) = (kernel.dim(2), kernel.dim(2) * kernel.dim(3));
    let kernel = kernel.reshape(&[kernel.dim(0), kernel.dim(1), 1, outputs]);
    convolve(x, &kernel, window, channels)
}

/// The same of sequences, as images of one row.
#[track_caller]
fn each_channel_of_steps(x: &Tensor, kernel: &Tensor, window: SlidingWindow<1>) -> Tensor {
    of_row(&each_channel(
        &as_row(x),
        &kernel_row(kernel),
        window.of_row(),
    ))
}

/// A convolution of each position, by a kernel with a size of 1 in each direction.
#[track_caller]
fn all_channels(x: &Tensor, kernel: &Tensor) -> Tensor {
    let one = SlidingWindow::<2>::new(1.into());
    match x.rank() {
        3 => of_row(&convolve(&as_row(x), &kernel_row(kernel), one, 1)),
        _ => convolve(x, kernel, one, 1),
    }
}
