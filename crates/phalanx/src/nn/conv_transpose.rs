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
use crate::config::{self, Component, Described, Field, Kind, joined};

macro_rules! transposed_convolution {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal), $kind:literal, $about:literal, $more:expr, $one_input:ident, $transposed:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            filters: usize,
            #[serde(flatten)]
            window: SlidingWindow<$n>,
            output_padding: Option<Sizes<$n>>,
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
                    output_padding: None,
                    settings: KernelSettings::new(),
                }
            }

            window_settings!($size);
            kernel_settings!();

            /// Sets how many elements more than the least the output has in each direction, below the strides, which bring several sizes to one.
            #[must_use]
            pub fn output_padding(mut self, output_padding: impl Into<$size>) -> Self {
                self.output_padding = Some(output_padding.into());
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
                        "output_padding",
                        Kind::Either(&[Kind::Null, $more]),
                        "how many elements more than the least the output has in each direction, below the strides",
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
                self.settings.activation.check()?;
                self.window.check("`kernel_size`")?;
                check_output_padding(self.window, self.output_padding)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                check_output(self.window, self.output_padding, $one_input(inputs)?)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = &inputs[0];
                let channels = [self.filters, x.dim($n + 1)];
                let dims = [&self.window.size.array()[..], &channels].concat();
                let kernel = self.settings.kernel(cx, Shape::new(x.dtype(), dims));
                let y = $transposed(x, &kernel, self.window, self.output_padding);
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
    /// `n * stride + max(window - stride, 0)` with `valid`; with an `output_padding`, as of [`Conv2dTranspose`]. Variables: `kernel`
    /// `[size, filters, channels]`, `bias` `[filters]`. Fields and defaults are Keras'; unlike Keras, strides and dilation may go together.
    Conv1dTranspose(Sizes<1>, 1), "conv1d_transpose",
    "a convolution of sequences the other way round, which makes them longer by its strides", Kind::COUNT, one_sequence, transposed_steps
}
transposed_convolution! {
    /// A transposed convolution, the derivative of a [`Conv2d`](super::Conv2d) by its input; kind `conv2d_transpose`.
    ///
    /// A dim of `n` becomes `n * stride` with padding `same`, and `n * stride + max(window - stride, 0)` with `valid`. With an
    /// `output_padding` it becomes `(n - 1) * stride + output_padding`, and for windows of odd size 1 more, with `same`, and
    /// `(n - 1) * stride + window + output_padding` with `valid`: as on Keras' backend of JAX, where TensorFlow refuses some. Variables:
    /// `kernel` `[height, width, filters, channels]`, `bias` `[filters]`. Fields and defaults are Keras'; unlike Keras, strides and
    /// dilation may go together.
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
    "a convolution the other way round, which makes images larger by its strides", Kind::Either(&[Kind::COUNT, Kind::List(&Kind::COUNT, 2, 2)]), one_image, transposed
}
transposed_convolution! {
    /// A transposed convolution of volumes, the derivative of a [`Conv3d`](super::Conv3d) by its input; kind `conv3d_transpose`.
    ///
    /// Dims become as large as [`Conv2dTranspose`] makes them. Variables: `kernel` `[depth, height, width, filters, channels]`, `bias`
    /// `[filters]`. Fields and defaults are Keras'; unlike Keras, strides and dilation may go together.
    Conv3dTranspose(Triple, 3), "conv3d_transpose",
    "a convolution of volumes the other way round, which makes them larger by its strides", Kind::Either(&[Kind::COUNT, Kind::List(&Kind::COUNT, 3, 3)]), one_volume, transposed
}

/// Checks that the output is below the strides larger than it has to be.
fn check_output_padding<const N: usize>(
    window: SlidingWindow<N>,
    output_padding: Option<Sizes<N>>,
) -> Result<(), String> {
    let strides = window.strides.array();
    match output_padding.map(Sizes::array) {
        Some(more) if (0..N).any(|i| more[i] >= strides[i]) => Err(format!(
            "`output_padding` must be below `strides` in every direction, got {more:?} and {strides:?}"
        )),
        _ => Ok(()),
    }
}

/// Checks that the output has elements and can be addressed.
fn check_output<const N: usize>(
    window: SlidingWindow<N>,
    output_padding: Option<Sizes<N>>,
    input: &Shape,
) -> Result<(), String> {
    let (spans, strides) = (window.spans(), window.strides.array());
    (0..N).try_for_each(|i| {
        let most = (input.dims[i + 1].saturating_mul(strides[i])).saturating_add(spans[i]);
        check_size("every direction of the output", most)?;
        let output = output_size(window, output_padding, i, input.dims[i + 1]);
        check_size("every direction of the output", output)
    })
}

/// What becomes of a size in direction `i`.
fn output_size<const N: usize>(
    window: SlidingWindow<N>,
    output_padding: Option<Sizes<N>>,
    i: usize,
    size: usize,
) -> usize {
    let (span, stride) = (window.spans()[i], window.strides.array()[i]);
    let spread = (size - 1) * stride;
    match (window.padding, output_padding) {
        (Padding::Same, None) => spread + stride,
        (Padding::Same, Some(more)) => spread + span % 2 + more.array()[i],
        (Padding::Valid, None) => spread + span.max(stride),
        (Padding::Valid, Some(more)) => spread + span + more.array()[i],
    }
}

/// In direction `i`, elements added before and after what the strides have spread: of the convolution whose derivative this is.
fn edges<const N: usize>(
    window: SlidingWindow<N>,
    output_padding: Option<Sizes<N>>,
    i: usize,
    size: usize,
) -> (i64, i64) {
    let (span, stride) = (window.spans()[i], window.strides.array()[i]);
    let output = output_size(window, output_padding, i, size);
    let spread = (size - 1) * stride + 1;
    let low = match window.padding {
        Padding::Same => (spread - 1 + span).saturating_sub(output) / 2,
        Padding::Valid => 0,
    };
    let (low, span) = (low as i64, span as i64);
    (span - 1 - low, output as i64 - spread as i64 + low)
}

/// With a kernel whose last dims are outputs and inputs.
#[track_caller]
fn transposed<const N: usize>(
    x: &Tensor,
    kernel: &Tensor,
    window: SlidingWindow<N>,
    output_padding: Option<Sizes<N>>,
) -> Tensor {
    let padding = (0..N).map(|i| edges(window, output_padding, i, x.dim(i + 1)));
    let dims = ConvDims {
        input: ConvSpec::channels_last(N),
        kernel: ConvSpec::kernel(N),
        output: ConvSpec::channels_last(N),
        strides: vec![1; N],
        padding: padding.collect(),
        input_dilation: window.strides.array().to_vec(),
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
fn transposed_steps(
    x: &Tensor,
    kernel: &Tensor,
    window: SlidingWindow<1>,
    output_padding: Option<Sizes<1>>,
) -> Tensor {
    // The row has one place, which stays one: its window and its stride are 1.
    let output_padding = output_padding.map(|more| Sizes([0, more.array()[0]]));
    let (x, kernel) = (as_row(x), kernel_row(kernel));
    of_row(&transposed(&x, &kernel, window.of_row(), output_padding))
}
