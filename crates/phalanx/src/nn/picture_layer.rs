//! What layers that change images at random in training have in common.

use phalanx_graph::{Shape, Tensor};

use super::Cx;
use super::factor::{Factor, drawn};
use super::sizes::{check_range, one_picture};
use crate::config::{Field, Kind};

/// A layer whose method changes images in training alone, computed in f32; its `check_fields` says what is wrong with its settings, and a last method,
/// if there is one, what is with images.
macro_rules! picture_layer {
    ($name:ident, $kind:literal, $channels:expr, $changed:ident $(, $checked:ident)?) => {
        impl $crate::nn::Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> serde_json::Value {
                $crate::config::write($kind, self)
            }

            /// Pixels are not rounded before they are changed.
            fn converts_inputs(&self) -> bool {
                false
            }

            fn check_settings(&self) -> Result<(), String> {
                self.check_fields()
            }

            fn check(&self, inputs: &[phalanx_graph::Shape]) -> Result<(), String> {
                $crate::nn::picture_layer::of_channels(inputs, $channels)?;
                $(self.$checked(&inputs[0])?;)?
                Ok(())
            }

            fn call(
                &self,
                cx: &mut $crate::nn::Cx,
                inputs: &[phalanx_graph::Tensor],
            ) -> phalanx_graph::Tensor {
                let x = $crate::nn::preprocess::as_float(&inputs[0]);
                if !cx.training() {
                    return x;
                }
                let values = $crate::nn::precision::widened(&x);
                self.augmented(cx, &values).convert(x.dtype())
            }
        }

        impl $name {
            /// The images changed, whatever the mode.
            #[track_caller]
            pub(super) fn augmented(
                &self,
                cx: &mut $crate::nn::Cx,
                x: &phalanx_graph::Tensor,
            ) -> phalanx_graph::Tensor {
                self.$changed(cx, x)
            }
        }
    };
}
pub(super) use picture_layer;

/// The setting of pixels' range, of a layer with a `value_range`.
macro_rules! value_range_setter {
    () => {
        /// Sets the least and the largest value of pixels, 0 and 255 by default.
        #[must_use]
        pub const fn value_range(mut self, value_range: [f64; 2]) -> Self {
            self.value_range = value_range;
            self
        }
    };
}
pub(super) use value_range_setter;

/// Channels of images that a layer takes: red, green and blue, or any.
pub(super) const RGB: Option<usize> = Some(3);
pub(super) const ANY: Option<usize> = None;

/// `value_range`.
pub(super) const VALUE_RANGE: Field = Field::optional(
    "value_range",
    Kind::List(&Kind::REAL, 2, 2),
    "the least and the largest value of pixels",
);

/// `factor`, which must be given.
pub(super) const fn factor(doc: &'static str) -> Field {
    Field::required("factor", Factor::KIND, doc).example("0.2")
}

/// `factor`, the chance of a change, which is itself drawn.
pub(super) const CHANCE: Field = Field::optional(
    "factor",
    Factor::KIND,
    "the chance of it, which is drawn up to this or between two: 1 changes half of the images",
);

/// Images, of as many channels where it is said.
pub(super) fn of_channels(inputs: &[Shape], channels: Option<usize>) -> Result<(), String> {
    let images = one_picture(inputs)?;
    match channels {
        Some(channels) if images.dims[3] != channels => Err(format!(
            "expected images [batch, height, width, {channels}], got {images}"
        )),
        _ => Ok(()),
    }
}

/// A number for each image, for each of its values.
#[track_caller]
pub(super) fn to_each(numbers: &Tensor, images: &Tensor) -> Tensor {
    let numbers = numbers.convert(images.dtype());
    numbers.broadcast_in(&images.dims(), &[0])
}

/// Images of which some are changed: the chance of it is drawn for each, too, as in Keras.
#[track_caller]
pub(super) fn by_chance(cx: &mut Cx, chance: Factor, images: &Tensor, changed: &Tensor) -> Tensor {
    let rows = images.dim(0);
    let chance = drawn(cx, rows, chance.above_zero());
    let is_changed = drawn(cx, rows, [0.0, 1.0]).less(&chance);
    let is_changed = is_changed.broadcast_in(&images.dims(), &[0]);
    is_changed.select(changed, images)
}

/// Checks a `value_range`.
pub(super) fn check_values(range: [f64; 2]) -> Result<(), String> {
    for end in range {
        check_range("`value_range`", end, f64::MIN..=f64::MAX)?;
    }
    match range[0] < range[1] {
        true => Ok(()),
        false => Err(format!(
            "`value_range` must be the least and the largest value, got {range:?}"
        )),
    }
}
