//! Convolutions of sequences `[batch, steps, channels]`.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::{check_channels, check_groups, convolve_padded};
use super::fields;
use super::layer::Layer;
use super::position::one_sequence;
use super::settings::{KernelSettings, kernel_output, kernel_settings};
use super::sizes::{Padding, SlidingWindow, check_size};
use super::{Activation, Constraint, Cx, Initializer, Regularizer};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// How windows treat the ends of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPadding {
    /// Windows stay inside.
    #[default]
    Valid,
    /// As many windows as `ceil(steps / stride)`; an odd step of padding goes to the end.
    Same,
    /// All padding goes to the start: no window reaches beyond its step.
    Causal,
}

/// A convolution of sequences, kernel not flipped; kind `conv1d`.
///
/// `[batch, steps, channels]` to `[batch, steps, filters]`. Variables: `kernel` `[size, channels / groups, filters]`, `bias`
/// `[filters]`. Fields and defaults are Keras'; unlike Keras, strides and dilation may go together. Padding counts as any other step,
/// and the output has no mask, as in Keras.
///
/// ```
/// use phalanx::nn::{Conv1d, Sequential, StepPadding};
///
/// let model = Sequential::new([10, 4])
///     .add(Conv1d::new(8, 3).padding(StepPadding::Causal))
///     .build()?;
/// assert_eq!(model.outputs()[0].dims, [10, 8]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv1d {
    filters: usize,
    kernel_size: usize,
    strides: usize,
    padding: StepPadding,
    dilation_rate: usize,
    groups: usize,
    #[serde(flatten)]
    settings: KernelSettings,
}

impl Conv1d {
    /// A convolution with `filters` kernels over this number of steps.
    #[must_use]
    pub const fn new(filters: usize, kernel_size: usize) -> Self {
        Self {
            filters,
            kernel_size,
            strides: 1,
            padding: StepPadding::Valid,
            dilation_rate: 1,
            groups: 1,
            settings: KernelSettings::new(),
        }
    }

    kernel_settings!();

    /// Sets the distance between windows, 1 by default.
    #[must_use]
    pub const fn strides(mut self, strides: usize) -> Self {
        self.strides = strides;
        self
    }

    /// Sets how windows treat the ends.
    #[must_use]
    pub const fn padding(mut self, padding: StepPadding) -> Self {
        self.padding = padding;
        self
    }

    /// Sets the distance between the steps of a window, 1 by default.
    #[must_use]
    pub const fn dilation(mut self, dilation: usize) -> Self {
        self.dilation_rate = dilation;
        self
    }

    /// Sets into how many groups channels and filters are divided that are convolved apart.
    #[must_use]
    pub const fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// The window over a sequence as an image of one row; padding to the start is not its own.
    fn window(&self) -> SlidingWindow<2> {
        SlidingWindow {
            size: [1, self.kernel_size].into(),
            strides: [1, self.strides].into(),
            dilation: [1, self.dilation_rate].into(),
            padding: match self.padding {
                StepPadding::Valid => Padding::Valid,
                StepPadding::Same | StepPadding::Causal => Padding::Same,
            },
        }
    }

    /// Steps added at the start and at the end.
    fn steps_of_padding(&self, image: &[usize]) -> (usize, usize) {
        match self.padding {
            StepPadding::Causal => ((self.kernel_size - 1) * self.dilation_rate, 0),
            StepPadding::Valid | StepPadding::Same => self.window().padding(image)[1],
        }
    }
}

impl Described for Conv1d {
    const COMPONENT: Component = Component {
        name: "conv1d",
        doc: "a convolution of sequences",
        fields: joined!(
            &[
                fields::FILTERS,
                Field::required("kernel_size", Kind::SIZE, "number of steps of a window")
                    .example("3"),
                Field::optional("strides", Kind::SIZE, "step from one window to the next"),
                Field::optional(
                    "padding",
                    Kind::OneOf(&["valid", "same", "causal"]),
                    "`valid`: windows stay inside the sequence; `same`: zeros around it; `causal`: zeros before it alone",
                ),
                Field::optional(
                    "dilation_rate",
                    Kind::SIZE,
                    "distance between the steps of a window",
                ),
                Field::optional(
                    "groups",
                    Kind::SIZE,
                    "number of groups into which the channels are divided; it divides `filters`",
                ),
            ],
            KernelSettings::FIELDS,
        ),
    };
}

impl Layer for Conv1d {
    fn kind(&self) -> &'static str {
        "conv1d"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`filters`", self.filters)?;
        check_groups(self.filters, self.groups)?;
        self.settings.activation.check()?;
        self.window().check("`kernel_size`")
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let sequence = one_sequence(inputs)?;
        let (steps, channels) = (sequence.dims[1], sequence.dims[2]);
        check_channels(channels, self.groups)?;
        fits_steps(self.window(), steps)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let row = as_row(&inputs[0]);
        let (size, channels) = (self.kernel_size, row.dim(3) / self.groups);
        let shape = Shape::new(row.dtype(), [size, channels, self.filters]);
        let kernel = self.settings.kernel(cx, shape);
        let kernel = kernel_row(&kernel);
        let padding = [(0, 0), self.steps_of_padding(&row.dims())];
        let y = convolve_padded(&row, &kernel, self.window(), padding, self.groups);
        self.settings.finish(cx, of_row(&y), self.filters)
    }

    kernel_output!();
}

/// Checks that a window over one row fits sequences of a number of steps.
pub(super) fn fits_steps(window: SlidingWindow<2>, steps: usize) -> Result<(), String> {
    let row = Shape::f32([1, 1, steps, 1]);
    window.check_fits(&row).map_err(|_| {
        let [_, span] = window.spans();
        format!(
            "a window of {span} steps does not fit sequences of {steps}; use `padding` same or a smaller window"
        )
    })
}

/// A sequence `[batch, steps, channels]` as an image of one row.
#[track_caller]
pub(super) fn as_row(x: &Tensor) -> Tensor {
    x.reshape(&[x.dim(0), 1, x.dim(1), x.dim(2)])
}

/// A kernel of sequences as one of images of one row.
#[track_caller]
pub(super) fn kernel_row(kernel: &Tensor) -> Tensor {
    kernel.reshape(&[&[1], &kernel.dims()[..]].concat())
}

/// An image of one row as a sequence.
#[track_caller]
pub(super) fn of_row(y: &Tensor) -> Tensor {
    y.reshape(&[y.dim(0), y.dim(2), y.dim(3)])
}
