//! Transposed convolutions, which make images larger.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::window_settings;
use super::layer::Layer;
use super::settings::{KernelSettings, kernel_settings};
use super::sizes::{SlidingWindow, check_size, one_image};
use super::{Activation, Cx, Initializer, Padding, Pair, Regularizer};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// A transposed convolution, the derivative of a [`Conv2d`](super::Conv2d) by its input; kind `conv2d_transpose`.
///
/// A dim of `n` becomes `n * stride` with padding `same`, and `n * stride + max(window - stride, 0)` with `valid`. Variables:
/// `kernel` `[height, width, filters, channels]`, `bias` `[filters]`. Fields and defaults are Keras', without `output_padding`.
///
/// ```
/// use phalanx::nn::{Conv2dTranspose, Padding, Sequential};
///
/// let larger = Conv2dTranspose::new(8, 3).strides(2).padding(Padding::Same);
/// let model = Sequential::new([7, 7, 4]).add(larger).build()?;
/// assert_eq!(model.outputs()[0].dims, [14, 14, 8]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv2dTranspose {
    filters: usize,
    #[serde(flatten)]
    window: SlidingWindow<2>,
    #[serde(flatten)]
    settings: KernelSettings,
}

impl Conv2dTranspose {
    /// A transposed convolution to `filters` channels by kernels of a size, given as one number or as height and width.
    #[must_use]
    pub fn new(filters: usize, kernel_size: impl Into<Pair>) -> Self {
        Self {
            filters,
            window: SlidingWindow::new(kernel_size.into()),
            settings: KernelSettings::new(),
        }
    }

    window_settings!(Pair);
    kernel_settings!();

    /// Along a dim, elements added before and after what the strides have spread: of the convolution whose derivative this is.
    fn edges(&self, size: usize, span: usize, stride: usize) -> (i64, i64) {
        let output = match self.window.padding {
            Padding::Same => size * stride,
            Padding::Valid => size * stride + span.saturating_sub(stride),
        };
        let (low, _) = self.window.padding.amounts(output, span, stride);
        let spread = (size - 1) * stride + 1;
        let (low, span) = (low as i64, span as i64);
        (span - 1 - low, output as i64 - spread as i64 + low)
    }
}

impl Described for Conv2dTranspose {
    const COMPONENT: Component = Component {
        name: "conv2d_transpose",
        doc: "a convolution the other way round, which makes images larger by its strides",
        fields: joined!(
            &[Field::required("filters", Kind::SIZE, "number of output channels").example("32")],
            SlidingWindow::<2>::FIELDS,
            KernelSettings::FIELDS,
        ),
    };
}

impl Layer for Conv2dTranspose {
    fn kind(&self) -> &'static str {
        "conv2d_transpose"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`filters`", self.filters)?;
        self.settings.activation.check()?;
        self.window.check("`kernel_size`")
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let image = one_image(inputs)?;
        let (spans, strides) = (self.window.spans(), self.window.strides.array());
        for i in [0, 1] {
            let output = (image.dims[i + 1].saturating_mul(strides[i])).saturating_add(spans[i]);
            check_size("height and width of the output", output)?;
        }
        Ok(())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let [height, width] = self.window.size.array();
        let shape = Shape::new(x.dtype(), [height, width, self.filters, x.dim(3)]);
        let kernel = self.settings.kernel(cx, shape);
        let (spans, strides) = (self.window.spans(), self.window.strides.array());
        let dims = ConvDims {
            input: ConvSpec::channels_last(2),
            kernel: ConvSpec::kernel(2),
            output: ConvSpec::channels_last(2),
            strides: vec![1, 1],
            padding: vec![
                self.edges(x.dim(1), spans[0], strides[0]),
                self.edges(x.dim(2), spans[1], strides[1]),
            ],
            input_dilation: strides.to_vec(),
            kernel_dilation: self.window.dilation.array().to_vec(),
            feature_groups: 1,
            batch_groups: 1,
        };
        let flipped = kernel.reverse(&[0, 1]).transpose(&[0, 1, 3, 2]);
        self.settings
            .finish(cx, x.conv(&flipped, dims), self.filters)
    }

    fn activation(&self) -> Option<Activation> {
        Some(self.settings.activation)
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.settings.activity_regularizer
    }
}
