//! Convolutions of images `[batch, height, width, channels]` and of volumes, which have a depth before the height.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields;
use super::layer::Layer;
use super::settings::{KernelSettings, kernel_output, kernel_settings};
use super::sizes::{SlidingWindow, Triple, check_size, one_image, one_volume};
use super::{Activation, Constraint, Cx, Initializer, Padding, Pair, Regularizer};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// Builders of a layer's [`SlidingWindow`], which is its field `window`.
macro_rules! window_settings {
    ($size:ty) => {
        /// Sets the distance between windows, 1 by default.
        #[must_use]
        pub fn strides(mut self, strides: impl Into<$size>) -> Self {
            self.window.strides = strides.into();
            self
        }

        /// Sets how windows treat the edges.
        #[must_use]
        pub const fn padding(mut self, padding: Padding) -> Self {
            self.window.padding = padding;
            self
        }

        /// Sets the distance between the elements of a window, 1 by default.
        #[must_use]
        pub fn dilation(mut self, dilation: impl Into<$size>) -> Self {
            self.window.dilation = dilation.into();
            self
        }
    };
}
pub(super) use window_settings;

/// A layer that convolves all channels of its groups, over images or volumes.
macro_rules! convolution {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal, $one_input:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            filters: usize,
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            groups: usize,
            #[serde(flatten)]
            settings: KernelSettings,
        }

        impl $name {
            /// A convolution with `filters` kernels of a size, given as one number or as one for each direction.
            #[must_use]
            pub fn new(filters: usize, kernel_size: impl Into<$size>) -> Self {
                Self {
                    filters,
                    window: SlidingWindow::new(kernel_size.into()),
                    groups: 1,
                    settings: KernelSettings::new(),
                }
            }

            window_settings!($size);
            kernel_settings!();

            /// Sets into how many groups channels and filters are divided that are convolved apart.
            #[must_use]
            pub const fn groups(mut self, groups: usize) -> Self {
                self.groups = groups;
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
                    &[Field::optional(
                        "groups",
                        Kind::SIZE,
                        "number of groups into which the channels are divided; it divides `filters`",
                    )],
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
                check_groups(self.filters, self.groups)?;
                self.settings.activation.check()?;
                self.window.check("`kernel_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                let image = $one_input(inputs)?;
                let channels = image.dims[$n + 1];
                check_channels(channels, self.groups)?;
                self.window.check_fits(image)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = &inputs[0];
                let channels = [x.dim($n + 1) / self.groups, self.filters];
                let dims = [&self.window.size.array()[..], &channels].concat();
                let shape = Shape::new(x.dtype(), dims);
                let kernel = self.settings.kernel(cx, shape);
                let y = convolve(x, &kernel, self.window, self.groups);
                self.settings.finish(cx, y, self.filters)
            }

            kernel_output!();
        }
    };
}

convolution! {
    /// A convolution, kernel not flipped; kind `conv2d`.
    ///
    /// Variables: `kernel` `[height, width, channels / groups, filters]`, `bias` `[filters]`. Fields and defaults are
    /// Keras'; unlike Keras, strides and dilation may go together.
    Conv2d(Pair, 2), "conv2d", "a convolution of images", one_image
}
convolution! {
    /// A convolution of volumes, kernel not flipped; kind `conv3d`.
    ///
    /// `[batch, depth, height, width, channels]` to as many volumes of `filters` channels. Variables: `kernel`
    /// `[depth, height, width, channels / groups, filters]`, `bias` `[filters]`. Fields and defaults are Keras'; unlike Keras,
    /// strides and dilation may go together.
    ///
    /// ```
    /// use phalanx::nn::{Conv3d, Padding, Sequential};
    ///
    /// let conv = Conv3d::new(8, 3).strides((1, 2, 2)).padding(Padding::Same);
    /// let model = Sequential::new([6, 16, 16, 1]).add(conv).build()?;
    /// assert_eq!(model.outputs()[0].dims, [6, 8, 8, 8]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    Conv3d(Triple, 3), "conv3d", "a convolution of volumes", one_volume
}

/// Checks that the groups of a convolution divide its filters.
pub(super) fn check_groups(filters: usize, groups: usize) -> Result<(), String> {
    check_size("`groups`", groups)?;
    if filters.is_multiple_of(groups) {
        return Ok(());
    }
    Err(format!(
        "`groups` must divide `filters`, got {groups} and {filters}"
    ))
}

/// Checks that the groups of a convolution divide the channels of its input.
pub(super) fn check_channels(channels: usize, groups: usize) -> Result<(), String> {
    if channels.is_multiple_of(groups) {
        return Ok(());
    }
    Err(format!(
        "`groups` must divide the channels of the input, got {groups} and {channels}"
    ))
}

/// With kernels `[.., channels / groups, filters]`.
#[track_caller]
pub(super) fn convolve<const N: usize>(
    x: &Tensor,
    kernel: &Tensor,
    window: SlidingWindow<N>,
    groups: usize,
) -> Tensor {
    convolve_padded(x, kernel, window, window.padding(&x.dims()), groups)
}

/// The same with elements added around each direction that are given, whatever the window says.
#[track_caller]
pub(super) fn convolve_padded<const N: usize>(
    x: &Tensor,
    kernel: &Tensor,
    window: SlidingWindow<N>,
    padding: [(usize, usize); N],
    groups: usize,
) -> Tensor {
    let signed = |(low, high): (usize, usize)| (low as i64, high as i64);
    let dims = ConvDims {
        input: ConvSpec::channels_last(N),
        kernel: ConvSpec::kernel(N),
        output: ConvSpec::channels_last(N),
        strides: window.strides.array().to_vec(),
        padding: padding.map(signed).to_vec(),
        input_dilation: vec![1; N],
        kernel_dilation: window.dilation.array().to_vec(),
        feature_groups: groups,
        batch_groups: 1,
    };
    x.conv(kernel, dims)
}
