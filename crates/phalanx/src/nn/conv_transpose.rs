//! Transposed convolutions, which make sequences, images and volumes larger.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::window_settings;
use super::conv1d::{as_row, kernel_row, of_row};
use super::fields;
use super::layer::Layer;
use super::position::one_sequence;
use super::settings::{KernelSettings, kernel_output, kernel_settings};
use super::sizes::{Sizes, SlidingWindow, Triple, check_size, one_image, one_volume};
use super::{Activation, Constraint, Cx, Initializer, Padding, Pair, Regularizer};
use crate::config::{self, Component, Described, joined};

macro_rules! transposed_convolution {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal, $one_input:ident, $transposed:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            filters: usize,
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            #[serde(flatten)]
            settings: KernelSettings,
        }

        impl $name {
            /// A transposed convolution to `filters` channels by kernels of a size, given as one number or as one for each direction.
            #[must_use]
            pub fn new(filters: usize, kernel_size: impl Into<$size>) -> Self {
                Self {
                    filters,
                    window: SlidingWindow::new(kernel_size.into()),
                    settings: KernelSettings::new(),
                }
            }

            window_settings!($size);
            kernel_settings!();
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: joined!(
                    &[fields::FILTERS],
                    SlidingWindow::<$n>::FIELDS,
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
                self.settings.activation.check()?;
                self.window.check("`kernel_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                check_output(self.window, $one_input(inputs)?)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = &inputs[0];
                let channels = [self.filters, x.dim($n + 1)];
                let dims = [&self.window.size.array()[..], &channels].concat();
                let kernel = self.settings.kernel(cx, Shape::new(x.dtype(), dims));
                let y = $transposed(x, &kernel, self.window);
                self.settings.finish(cx, y, self.filters)
            }

            kernel_output!();
        }
    };
}

transposed_convolution! {
    /// A transposed convolution of sequences, the derivative of a [`Conv1d`](super::Conv1d) by its input; kind `conv1d_transpose`.
    ///
    /// `[batch, steps, channels]` to `filters` channels. `n` steps become `n * stride` with padding `same`, and
    /// `n * stride + max(window - stride, 0)` with `valid`. Variables: `kernel` `[size, filters, channels]`, `bias` `[filters]`. Fields
    /// and defaults are Keras', without `output_padding`; unlike Keras, strides and dilation may go together.
    Conv1dTranspose(Sizes<1>, 1), "conv1d_transpose",
    "a convolution of sequences the other way round, which makes them longer by its strides", one_sequence, transposed_steps
}
transposed_convolution! {
    /// A transposed convolution, the derivative of a [`Conv2d`](super::Conv2d) by its input; kind `conv2d_transpose`.
    ///
    /// A dim of `n` becomes `n * stride` with padding `same`, and `n * stride + max(window - stride, 0)` with `valid`. Variables:
    /// `kernel` `[height, width, filters, channels]`, `bias` `[filters]`. Fields and defaults are Keras', without `output_padding`;
    /// unlike Keras, strides and dilation may go together.
    ///
    /// ```
    /// use phalanx::nn::{Conv2dTranspose, Padding, Sequential};
    ///
    /// let larger = Conv2dTranspose::new(8, 3).strides(2).padding(Padding::Same);
    /// let model = Sequential::new([7, 7, 4]).add(larger).build()?;
    /// assert_eq!(model.outputs()[0].dims, [14, 14, 8]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    Conv2dTranspose(Pair, 2), "conv2d_transpose",
    "a convolution the other way round, which makes images larger by its strides", one_image, transposed
}
transposed_convolution! {
    /// A transposed convolution of volumes, the derivative of a [`Conv3d`](super::Conv3d) by its input; kind `conv3d_transpose`.
    ///
    /// Dims become as large as [`Conv2dTranspose`] makes them. Variables: `kernel` `[depth, height, width, filters, channels]`, `bias`
    /// `[filters]`. Fields and defaults are Keras', without `output_padding`; unlike Keras, strides and dilation may go together.
    Conv3dTranspose(Triple, 3), "conv3d_transpose",
    "a convolution of volumes the other way round, which makes them larger by its strides", one_volume, transposed
}

/// Checks that the output can be addressed.
fn check_output<const N: usize>(window: SlidingWindow<N>, input: &Shape) -> Result<(), String> {
    let (spans, strides) = (window.spans(), window.strides.array());
    (0..N).try_for_each(|i| {
        let output = (input.dims[i + 1].saturating_mul(strides[i])).saturating_add(spans[i]);
        check_size("every direction of the output", output)
    })
}

/// Along a dim, elements added before and after what the strides have spread: of the convolution whose derivative this is.
fn edges(padding: Padding, size: usize, span: usize, stride: usize) -> (i64, i64) {
    let output = match padding {
        Padding::Same => size * stride,
        Padding::Valid => size * stride + span.saturating_sub(stride),
    };
    let (low, _) = padding.amounts(output, span, stride);
    let spread = (size - 1) * stride + 1;
    let (low, span) = (low as i64, span as i64);
    (span - 1 - low, output as i64 - spread as i64 + low)
}

/// With a kernel whose last dims are outputs and inputs.
#[track_caller]
fn transposed<const N: usize>(x: &Tensor, kernel: &Tensor, window: SlidingWindow<N>) -> Tensor {
    let (spans, strides) = (window.spans(), window.strides.array());
    let padding = (0..N).map(|i| edges(window.padding, x.dim(i + 1), spans[i], strides[i]));
    let dims = ConvDims {
        input: ConvSpec::channels_last(N),
        kernel: ConvSpec::kernel(N),
        output: ConvSpec::channels_last(N),
        strides: vec![1; N],
        padding: padding.collect(),
        input_dilation: strides.to_vec(),
        kernel_dilation: window.dilation.array().to_vec(),
        feature_groups: 1,
        batch_groups: 1,
    };
    let directions: Vec<usize> = (0..N).collect();
    let exchanged = [&directions[..], &[N + 1, N]].concat();
    x.conv(&kernel.reverse(&directions).transpose(&exchanged), dims)
}

/// The same of sequences, as images of one row.
#[track_caller]
fn transposed_steps(x: &Tensor, kernel: &Tensor, window: SlidingWindow<1>) -> Tensor {
    of_row(&transposed(
        &as_row(x),
        &kernel_row(kernel),
        window.of_row(),
    ))
}
