//! Images mirrored and cut at random in training.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::factor::drawn;
use super::layer::Layer;
use super::preprocess::as_float;
use super::resizing::{check_target, fitted, rows_and_columns_more};
use super::sizes::{check_size, one_picture};
use super::warp::windows;
use crate::config::{self, Component, Described, Field, Kind};

/// Which way [`RandomFlip`] mirrors images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flip {
    /// Left becomes right.
    Horizontal,
    /// Top becomes bottom.
    Vertical,
    /// Either, each by a draw of its own.
    #[default]
    HorizontalAndVertical,
}

/// Mirrors half of the images, in training alone; kind `random_flip`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims. What is drawn depends on the step's key,
/// the layer and the number of the example, not on how a batch is divided over replicas. Of both ways each has a draw of its own, where
/// Keras 3 mirrors both or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomFlip {
    mode: Flip,
}

impl RandomFlip {
    /// Mirrors this way.
    #[must_use]
    pub const fn new(mode: Flip) -> Self {
        Self { mode }
    }
}

/// Both ways, as in Keras.
impl Default for RandomFlip {
    fn default() -> Self {
        Self::new(Flip::default())
    }
}

impl Described for RandomFlip {
    const COMPONENT: Component = Component {
        name: "random_flip",
        doc: "mirrors half of the images in training",
        fields: &[Field::optional(
            "mode",
            Kind::OneOf(&["horizontal", "vertical", "horizontal_and_vertical"]),
            "which way: left to right, top to bottom, or either by a draw of its own",
        )],
    };
}

impl Layer for RandomFlip {
    fn kind(&self) -> &'static str {
        "random_flip"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Pixels are not rounded.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_picture(inputs).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = as_float(&inputs[0]);
        if !cx.training() {
            return x;
        }
        let ways: &[usize] = match self.mode {
            Flip::Horizontal => &[2],
            Flip::Vertical => &[1],
            Flip::HorizontalAndVertical => &[2, 1],
        };
        ways.iter().fold(x, |x, &dim| half_reversed(cx, &x, dim))
    }
}

/// Half of the images with a dim in the opposite order.
#[track_caller]
fn half_reversed(cx: &mut Cx, images: &Tensor, dim: usize) -> Tensor {
    let draws = drawn(cx, images.dim(0), [0.0, 1.0]);
    let is_reversed = draws.less(&draws.like(0.5));
    let is_reversed = is_reversed.broadcast_in(&images.dims(), &[0]);
    is_reversed.select(&images.reverse(&[dim]), images)
}

/// Cuts a window of a size out of each image, anywhere in training and in the middle otherwise; kind `random_crop`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the new height and width. Where an image is smaller than
/// the window, and in prediction, the largest window of the same aspect ratio in its middle is resized, as Keras' pages say; Keras 3 itself
/// leaves images as they are in prediction. Each example has a window of its own, where Keras cuts the same out of all images of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    height: usize,
    width: usize,
}

impl RandomCrop {
    /// Windows of this height and width.
    #[must_use]
    pub const fn new(height: usize, width: usize) -> Self {
        Self { height, width }
    }
}

impl Described for RandomCrop {
    const COMPONENT: Component = Component {
        name: "random_crop",
        doc: "cuts a window out of images, anywhere in training",
        fields: &[
            Field::required("height", Kind::SIZE, "height of the window").example("24"),
            Field::required("width", Kind::SIZE, "width of the window").example("24"),
        ],
    };
}

impl Layer for RandomCrop {
    fn kind(&self) -> &'static str {
        "random_crop"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Pixels are not rounded.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`height`", self.height)?;
        check_size("`width`", self.width)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_picture(inputs)?;
        check_target([self.height, self.width])
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = as_float(&inputs[0]);
        let sizes = [self.height, self.width];
        let more = rows_and_columns_more(&x, sizes).filter(|_| cx.training());
        let Some(more) = more else {
            return fitted(&x, sizes);
        };
        let starts = more.map(|more| {
            let start = drawn(cx, x.dim(0), [0.0, more as f64 + 1.0]);
            start.floor().clamp(0.0, more as f64).convert(DType::I32)
        });
        windows(&x, [&starts[0], &starts[1]], sizes)
    }
}
