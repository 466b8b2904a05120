//! Images mirrored, cut and coloured at random in training.

use std::ops::RangeInclusive;

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::factor::{Factor, drawn};
use super::layer::Layer;
use super::precision::widened;
use super::preprocess::as_float;
use super::resizing::{check_target, fitted, rows_and_columns_more};
use super::sizes::{check_range, check_size, one_picture};
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

macro_rules! random_colour {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $factor_doc:literal, $example:literal, $range:expr, $new_doc:literal, $changed:ident) => {
        $(#[$doc])*
        ///
        /// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32; values are
        /// clipped to the range. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
        /// divided over replicas.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            factor: Factor,
            value_range: [f64; 2],
        }

        impl $name {
            #[doc = $new_doc]
            #[must_use]
            pub fn new(factor: impl Into<Factor>) -> Self {
                Self { factor: factor.into(), value_range: [0.0, 255.0] }
            }

            /// Sets the least and the largest value of pixels, 0 and 255 by default.
            #[must_use]
            pub const fn value_range(mut self, value_range: [f64; 2]) -> Self {
                self.value_range = value_range;
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    Field::required("factor", Factor::KIND, $factor_doc).example($example),
                    Field::optional("value_range", Kind::List(&Kind::REAL, 2, 2), "the least and the largest value of pixels"),
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

            /// Pixels are not rounded before they are changed.
            fn converts_inputs(&self) -> bool {
                false
            }

            fn check_settings(&self) -> Result<(), String> {
                self.check_factor($range)?;
                check_values(self.value_range)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                one_picture(inputs).map(|_| ())
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let x = as_float(&inputs[0]);
                if !cx.training() {
                    return x;
                }
                let [least, most] = self.value_range;
                let values = widened(&x);
                self.$changed(cx, &values).clamp(least, most).convert(x.dtype())
            }
        }
    };
}

random_colour! {
    /// Moves all values of an image up or down by a random part of the range, in training alone; kind `random_brightness`.
    RandomBrightness, "random_brightness", "makes images brighter or darker by random amounts in training",
    "how much is added, in parts of the range", "0.2", -1.0..=1.0,
    "Adds up to a part of the range either way, or between two.", brightened
}

impl RandomBrightness {
    fn check_factor(&self, range: RangeInclusive<f64>) -> Result<(), String> {
        self.factor.check("factor", range)
    }

    #[track_caller]
    fn brightened(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [least, most] = self.value_range;
        let more = drawn(cx, x.dim(0), self.factor.ends()) * (most - least);
        x + to_each(&more, x)
    }
}

random_colour! {
    /// Moves the values of each channel of an image away from their mean, or towards it, in training alone; kind `random_contrast`.
    ///
    /// Of two numbers the first says how far towards the mean, the second how far away: the distance is multiplied by what is drawn
    /// between 1 less the first and 1 and the second, as in Keras. One number is both, as Keras' pages say: Keras 3 takes the first for 0.
    RandomContrast, "random_contrast", "changes the contrast of images by random amounts in training",
    "how much less and how much more contrast, both alike where it is one number", "0.2", 0.0..=1.0,
    "Less and more contrast by up to this, or by up to the first and the second of two.", contrasted
}

impl RandomContrast {
    /// How much less and how much more.
    const fn parts(&self) -> [f64; 2] {
        match self.factor {
            Factor::UpTo(most) => [most, most],
            Factor::Between(parts) => parts,
        }
    }

    fn check_factor(&self, range: RangeInclusive<f64>) -> Result<(), String> {
        let mut parts = self.parts().into_iter();
        parts.try_for_each(|part| check_range("`factor`", part, range.clone()))
    }

    #[track_caller]
    fn contrasted(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [less, more] = self.parts();
        let factor = drawn(cx, x.dim(0), [1.0 - less, 1.0 + more]);
        let mean = x.mean(&[1, 2]).keep_dims(&[1, 2]);
        (x - &mean) * to_each(&factor, x) + mean
    }
}

/// A number for each image, for each of its values.
#[track_caller]
fn to_each(numbers: &Tensor, images: &Tensor) -> Tensor {
    let numbers = numbers.convert(images.dtype());
    numbers.broadcast_in(&images.dims(), &[0])
}

fn check_values(range: [f64; 2]) -> Result<(), String> {
    for end in range {
        check_range("`value_range`", end, f64::MIN..=f64::MAX)?;
    }
    match range[0] <= range[1] {
        true => Ok(()),
        false => Err(format!(
            "`value_range` must be the least and the largest value, got {range:?}"
        )),
    }
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
