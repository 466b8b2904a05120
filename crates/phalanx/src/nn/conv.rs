//! Convolutions of images `[batch, height, width, channels]`.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::{Layer, kernel_settings};
use super::sizes::{Window, check_size, one_image};
use super::{Activation, Cx, Initializer, Padding, Pair, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// A convolution, kernel not flipped; kind `conv2d`.
///
/// Variables: `kernel` `[height, width, channels / groups, filters]`, `bias` `[filters]`. Fields and defaults are
/// Keras'; unlike Keras, strides and dilation may go together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    filters: usize,
    kernel_size: Pair,
    strides: Pair,
    padding: Padding,
    dilation_rate: Pair,
    groups: usize,
    activation: Activation,
    use_bias: bool,
    kernel_initializer: Initializer,
    bias_initializer: Initializer,
    kernel_regularizer: Option<Regularizer>,
    bias_regularizer: Option<Regularizer>,
    activity_regularizer: Option<Regularizer>,
}

impl Conv2d {
    /// A convolution with `filters` kernels of a size, given as one number or as height and width.
    #[must_use]
    pub fn new(filters: usize, kernel_size: impl Into<Pair>) -> Self {
        Self {
            filters,
            kernel_size: kernel_size.into(),
            strides: Pair(1, 1),
            padding: Padding::Valid,
            dilation_rate: Pair(1, 1),
            groups: 1,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            activity_regularizer: None,
        }
    }

    window_settings!();
    kernel_settings!();

    /// Sets into how many groups channels and filters are divided that are convolved apart.
    #[must_use]
    pub const fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }
}

impl Described for Conv2d {
    const COMPONENT: Component = Component {
        name: "conv2d",
        doc: "a convolution of images",
        fields: &[
            Field::required("filters", Kind::SIZE, "number of output channels").example("32"),
            fields::KERNEL_SIZE,
            fields::STRIDES,
            fields::PADDING,
            fields::DILATION_RATE,
            Field::optional(
                "groups",
                Kind::SIZE,
                "number of groups into which the channels are divided; it divides `filters`",
            ),
            fields::ACTIVATION,
            fields::USE_BIAS,
            fields::KERNEL_INITIALIZER,
            fields::BIAS_INITIALIZER,
            fields::KERNEL_REGULARIZER,
            fields::BIAS_REGULARIZER,
            fields::ACTIVITY_REGULARIZER,
        ],
    };
}

impl Layer for Conv2d {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`filters`", self.filters)?;
        check_size("`groups`", self.groups)?;
        if !self.filters.is_multiple_of(self.groups) {
            let (filters, groups) = (self.filters, self.groups);
            return Err(format!(
                "`groups` must divide `filters`, got {groups} and {filters}"
            ));
        }
        self.activation.check()?;
        self.window().check("`kernel_size`")
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let image = one_image(inputs)?;
        let channels = image.dims[3];
        if !channels.is_multiple_of(self.groups) {
            let groups = self.groups;
            return Err(format!(
                "`groups` must divide the channels of the input, got {groups} and {channels}"
            ));
        }
        self.window().check_fits(image)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let Pair(height, width) = self.kernel_size;
        let dims = [height, width, x.dim(3) / self.groups, self.filters];
        let shape = Shape::new(x.dtype(), dims);
        let kernel = cx.regularized(
            "kernel",
            shape,
            &self.kernel_initializer,
            self.kernel_regularizer,
        );
        let y = convolve(x, &kernel, self.window(), self.groups);
        self.finish(cx, y, self.filters)
    }

    fn activation(&self) -> Option<Activation> {
        Some(self.activation)
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.activity_regularizer
    }
}

/// A convolution of each channel with kernels of its own; kind `depthwise_conv2d`.
///
/// Variables: `kernel` `[height, width, channels, depth_multiplier]`, `bias` `[channels * depth_multiplier]`.
/// Channel `c` makes outputs `c * depth_multiplier ..`. Fields and defaults are Keras', but the kernel's
/// regularizer and initializer are called `kernel_..` rather than `depthwise_..`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthwiseConv2d {
    kernel_size: Pair,
    strides: Pair,
    padding: Padding,
    dilation_rate: Pair,
    depth_multiplier: usize,
    activation: Activation,
    use_bias: bool,
    kernel_initializer: Initializer,
    bias_initializer: Initializer,
    kernel_regularizer: Option<Regularizer>,
    bias_regularizer: Option<Regularizer>,
    activity_regularizer: Option<Regularizer>,
}

impl DepthwiseConv2d {
    /// A convolution with one kernel per channel of a size, given as one number or as height and width.
    #[must_use]
    pub fn new(kernel_size: impl Into<Pair>) -> Self {
        Self {
            kernel_size: kernel_size.into(),
            strides: Pair(1, 1),
            padding: Padding::Valid,
            dilation_rate: Pair(1, 1),
            depth_multiplier: 1,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            activity_regularizer: None,
        }
    }

    window_settings!();
    kernel_settings!();

    /// Sets how many outputs each channel makes.
    #[must_use]
    pub const fn depth_multiplier(mut self, multiplier: usize) -> Self {
        self.depth_multiplier = multiplier;
        self
    }
}

impl Described for DepthwiseConv2d {
    const COMPONENT: Component = Component {
        name: "depthwise_conv2d",
        doc: "a convolution of each channel of images on its own",
        fields: &[
            fields::KERNEL_SIZE,
            fields::STRIDES,
            fields::PADDING,
            fields::DILATION_RATE,
            Field::optional(
                "depth_multiplier",
                Kind::SIZE,
                "number of output channels for each input channel",
            ),
            fields::ACTIVATION,
            fields::USE_BIAS,
            fields::KERNEL_INITIALIZER,
            fields::BIAS_INITIALIZER,
            fields::KERNEL_REGULARIZER,
            fields::BIAS_REGULARIZER,
            fields::ACTIVITY_REGULARIZER,
        ],
    };
}

impl Layer for DepthwiseConv2d {
    fn kind(&self) -> &'static str {
        "depthwise_conv2d"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`depth_multiplier`", self.depth_multiplier)?;
        self.activation.check()?;
        self.window().check("`kernel_size`")
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let image = one_image(inputs)?;
        let filters = image.dims[3].saturating_mul(self.depth_multiplier);
        check_size("the number of output channels", filters)?;
        self.window().check_fits(image)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let Pair(height, width) = self.kernel_size;
        let channels = x.dim(3);
        let filters = channels * self.depth_multiplier;
        let shape = Shape::new(x.dtype(), [height, width, channels, self.depth_multiplier]);
        let kernel = cx.regularized(
            "kernel",
            shape,
            &self.kernel_initializer,
            self.kernel_regularizer,
        );
        let kernel = kernel.reshape(&[height, width, 1, filters]);
        let y = convolve(x, &kernel, self.window(), channels);
        self.finish(cx, y, filters)
    }

    fn activation(&self) -> Option<Activation> {
        Some(self.activation)
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.activity_regularizer
    }
}

#[track_caller]
fn convolve(x: &Tensor, kernel: &Tensor, window: Window, groups: usize) -> Tensor {
    let padding = window.padding(&x.dims());
    let signed = |(low, high): (usize, usize)| (low as i64, high as i64);
    let dims = ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: window.strides.array().to_vec(),
        padding: padding.map(signed).to_vec(),
        input_dilation: vec![1, 1],
        kernel_dilation: window.dilation.array().to_vec(),
        feature_groups: groups,
        batch_groups: 1,
    };
    x.conv(kernel, dims)
}

/// Builders of layers with a kernel that slides.
macro_rules! window_settings {
    () => {
        /// Sets the distance between windows, 1 by default.
        #[must_use]
        pub fn strides(mut self, strides: impl Into<Pair>) -> Self {
            self.strides = strides.into();
            self
        }

        /// Sets how windows treat the edges.
        #[must_use]
        pub const fn padding(mut self, padding: Padding) -> Self {
            self.padding = padding;
            self
        }

        /// Sets the distance between the elements of a window, 1 by default.
        #[must_use]
        pub fn dilation(mut self, dilation: impl Into<Pair>) -> Self {
            self.dilation_rate = dilation.into();
            self
        }

        const fn window(&self) -> Window {
            Window {
                size: self.kernel_size,
                strides: self.strides,
                dilation: self.dilation_rate,
                padding: self.padding,
            }
        }
    };
}
use window_settings;
