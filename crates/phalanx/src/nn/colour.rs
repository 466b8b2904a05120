//! Images coloured at random in training.

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv::convolve;
use super::factor::{Factor, drawn};
use super::layer::Layer;
use super::picture_layer::{
    ANY, RGB, VALUE_RANGE, by_chance, check_values, factor, of_channels, picture_layer, to_each,
    value_range_setter,
};
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::{Sizes, SlidingWindow, check_range};
use super::{Cx, Padding};
use crate::config::{self, Component, Described, Field, Kind};

macro_rules! random_colour {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $factor:expr, $channels:expr, $new_doc:literal, $changed:ident) => {
        $(#[$doc])*
        ///
        /// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32. What is drawn
        /// depends on the step's key, the layer and the number of the example, not on how a batch is divided over replicas.
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

            value_range_setter!();
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    $factor,
                    VALUE_RANGE,
                ],
            };
        }

        picture_layer!($name, $kind, $channels, $changed);

        impl $name {
            fn check_fields(&self) -> Result<(), String> {
                check_values(self.value_range)?;
                self.check_factor()
            }
        }
    };
}

random_colour! {
    /// Moves all values of an image up or down by a random part of the range, to which they are clipped, in training alone; kind
    /// `random_brightness`.
    RandomBrightness, "random_brightness", "makes images brighter or darker by random amounts in training",
    factor("how much is added, in parts of the range"), ANY,
    "Adds up to a part of the range either way, or between two.", brightened
}

impl RandomBrightness {
    fn check_factor(&self) -> Result<(), String> {
        self.factor.check("factor", -1.0..=1.0)
    }

    #[track_caller]
    fn brightened(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [least, most] = self.value_range;
        let more = drawn(cx, x.dim(0), self.factor.ends()) * (most - least);
        (x + to_each(&more, x)).clamp(least, most)
    }
}

random_colour! {
    /// Moves the values of each channel of an image away from their mean, or towards it, in training alone; kind `random_contrast`.
    ///
    /// Of two numbers the first says how far towards the mean, the second how far away: the distance is multiplied by what is drawn
    /// between 1 less the first and 1 and the second, as in Keras. One number is both, as Keras' pages say: Keras 3 takes the first for 0.
    /// Values are clipped to the range.
    RandomContrast, "random_contrast", "changes the contrast of images by random amounts in training",
    factor("how much less and how much more contrast, both alike where it is one number"), ANY,
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

    fn check_factor(&self) -> Result<(), String> {
        let mut parts = self.parts().into_iter();
        parts.try_for_each(|part| check_range("`factor`", part, 0.0..=1.0))
    }

    #[track_caller]
    fn contrasted(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [less, more] = self.parts();
        let factor = drawn(cx, x.dim(0), [1.0 - less, 1.0 + more]);
        let mean = x.mean(&[1, 2]).keep_dims(&[1, 2]);
        let [least, most] = self.value_range;
        ((x - &mean) * to_each(&factor, x) + mean).clamp(least, most)
    }
}

/// What is drawn where one number is the most, and 0 the least.
macro_rules! from_zero {
    ($name:ident, $range:expr) => {
        impl $name {
            fn check_factor(&self) -> Result<(), String> {
                self.factor.check("factor", $range)
            }

            /// A number for each image.
            #[track_caller]
            fn drawn(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
                drawn(cx, x.dim(0), self.factor.above_zero())
            }
        }
    };
}

random_colour! {
    /// Turns the hue of an image by a random angle either way, in training alone; kind `random_hue`.
    ///
    /// What is drawn for an image, half of it, is added to its hue, from 0 to 1, or taken from it, by a draw of its own; values are clipped to
    /// the range.
    RandomHue, "random_hue", "turns the hue of images by random angles in training",
    factor("how far, in half turns: 1 is the opposite colour"), RGB,
    "Turns by up to a part of half a turn, or between two.", turned
}
from_zero!(RandomHue, 0.0..=1.0);

impl RandomHue {
    #[track_caller]
    fn turned(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let by = self.drawn(cx, x) * 0.5;
        let way = drawn(cx, x.dim(0), [0.0, 1.0]);
        let by = way.greater(&way.like(0.5)).select(&-&by, &by);
        let [least, most] = self.value_range;
        let [hue, saturation, value] = hsv_of(&((x - least) / (most - least)));
        let hue = &hue + to_each(&by, &hue);
        let hue = hue.greater(&hue.like(1.0)).select(&(&hue - 1.0), &hue);
        let hue = hue.less(&hue.like(0.0)).select(&(&hue + 1.0), &hue);
        let turned = rgb_of([&hue, &saturation, &value]).clamp(0.0, 1.0);
        turned * (most - least) + least
    }
}

random_colour! {
    /// Multiplies the saturation of an image by a random factor, in training alone; kind `random_saturation`.
    ///
    /// A draw `f` multiplies by `f / (1 - f)`: 0 makes gray, 0.5 changes nothing. As in Keras the saturation is clipped to the range, and values
    /// are not: a range of 0 to 1 keeps them in it. One number is the most, from 0 on, as Keras' pages say: Keras 3 draws from its negative on.
    RandomSaturation, "random_saturation", "changes the saturation of images by random amounts in training",
    factor("what is drawn: 0 makes gray, 0.5 changes nothing, 1 has all the colour there is"), RGB,
    "Draws up to a number, or between two.", saturated
}
from_zero!(RandomSaturation, -1.0..=1.0);

impl RandomSaturation {
    #[track_caller]
    fn saturated(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let drawn = self.drawn(cx, x);
        let times = &drawn / (1.0 - &drawn + KERAS_EPSILON);
        let [least, most] = self.value_range;
        let [hue, saturation, value] = hsv_of(x);
        let saturation = (&saturation * to_each(&times, &saturation)).clamp(least, most);
        rgb_of([&hue, &saturation, &value])
    }
}

random_colour! {
    /// Brings an image nearer to its gray by a random part of the way, in training alone; kind `random_color_degeneration`.
    ///
    /// Values are clipped to the range. One number is the most, from 0 on, as Keras' pages say: Keras 3 draws from its negative on, which
    /// adds colour.
    RandomColorDegeneration, "random_color_degeneration", "takes random amounts of colour out of images in training",
    factor("how much colour goes: 1 leaves gray"), RGB,
    "Takes up to a part of the colour, or between two.", degenerated
}
from_zero!(RandomColorDegeneration, -1.0..=1.0);

impl RandomColorDegeneration {
    #[track_caller]
    fn degenerated(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let part = to_each(&self.drawn(cx, x), x);
        let [least, most] = self.value_range;
        (x + part * (gray(x) - x)).clamp(least, most)
    }
}

random_colour! {
    /// Blurs or sharpens an image by a random amount, in training alone; kind `random_sharpness`.
    ///
    /// Twice what is drawn says where between an image that is smoothed over 3 by 3 pixels, and itself, and as far on the other side, the
    /// new one is: 0 smooths, 0.5 changes nothing, 1 sharpens. Beyond the edges are zeros; values are clipped to the range.
    RandomSharpness, "random_sharpness", "blurs or sharpens images by random amounts in training",
    factor("what is drawn: 0 smooths, 0.5 changes nothing, 1 sharpens"), ANY,
    "Draws up to a number, or between two.", sharpened
}
from_zero!(RandomSharpness, 0.0..=1.0);

impl RandomSharpness {
    #[track_caller]
    fn sharpened(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let channels = x.dim(3);
        let weight = |at: usize| if at == 4 { 5.0f32 / 13.0 } else { 1.0 / 13.0 };
        let weights: Vec<f32> = (0..9 * channels).map(|i| weight(i / channels)).collect();
        let kernel = HostTensor::new([3, 3, 1, channels], &weights);
        let kernel = cx.graph().constant(kernel).convert(x.dtype());
        let window = SlidingWindow {
            padding: Padding::Same,
            ..SlidingWindow::new(Sizes([3, 3]))
        };
        let smooth = convolve(x, &kernel, window, channels);
        let nearer = 1.0 - self.drawn(cx, x) * 2.0;
        let [least, most] = self.value_range;
        (x + to_each(&nearer, x) * (smooth - x)).clamp(least, most)
    }
}

random_colour! {
    /// Takes the values of an image from the largest one, in training alone; kind `random_invert`.
    ///
    /// As in Keras the chance of it is itself drawn for each image: up to `factor`, or between two, so that 1 inverts half of the images.
    RandomInvert, "random_invert", "inverts random images in training",
    Field::optional("factor", Factor::KIND, "the chance of it, which is drawn up to this or between two: 1 inverts half of the images"), ANY,
    "Inverts with chances that are drawn up to a number, or between two.", inverted
}
impl RandomInvert {
    fn check_factor(&self) -> Result<(), String> {
        self.factor.check("factor", 0.0..=1.0)
    }

    #[track_caller]
    fn inverted(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        by_chance(cx, self.factor, x, &(self.value_range[1] - x))
    }
}

/// Makes random images gray, in training alone; kind `random_grayscale`.
///
/// Images `[batch, height, width, 3]` of any element type become floats of the same dims, computed in f32; those that are made gray have it in
/// all channels. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomGrayscale {
    factor: f64,
}

impl RandomGrayscale {
    /// Makes this share of the images gray, 0.5 in Keras' default.
    #[must_use]
    pub const fn new(factor: f64) -> Self {
        Self { factor }
    }
}

impl Described for RandomGrayscale {
    const COMPONENT: Component = Component {
        name: "random_grayscale",
        doc: "makes random images gray in training",
        fields: &[Field::optional(
            "factor",
            Kind::SHARE,
            "share of the images that are made gray",
        )],
    };
}

picture_layer!(RandomGrayscale, "random_grayscale", RGB, grayed);

impl RandomGrayscale {
    fn check_fields(&self) -> Result<(), String> {
        check_range("`factor`", self.factor, 0.0..=1.0)
    }

    #[track_caller]
    fn grayed(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let gray = gray(x).broadcast_to(&x.dims());
        by_chance(cx, [self.factor; 2].into(), x, &gray)
    }
}

/// Stretches the values of each channel of an image over the whole range, in prediction, too; kind `auto_contrast`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32. A channel of one value
/// stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoContrast {
    value_range: [f64; 2],
}

impl AutoContrast {
    /// Stretches over this range, from 0 to 255 in Keras' default.
    #[must_use]
    pub const fn new(value_range: [f64; 2]) -> Self {
        Self { value_range }
    }
}

impl Described for AutoContrast {
    const COMPONENT: Component = Component {
        name: "auto_contrast",
        doc: "stretches the values of each channel of an image over the whole range, in prediction, too",
        fields: &[VALUE_RANGE],
    };
}

impl Layer for AutoContrast {
    fn kind(&self) -> &'static str {
        "auto_contrast"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Pixels are not rounded before they are changed.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        check_values(self.value_range)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        of_channels(inputs, ANY)
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kept = as_float(&inputs[0]);
        self.stretched(&widened(&kept)).convert(kept.dtype())
    }
}

impl AutoContrast {
    #[track_caller]
    pub(super) fn stretched(&self, x: &Tensor) -> Tensor {
        let [low, high] =
            [x.min(&[1, 2]), x.max(&[1, 2])].map(|end| end.broadcast_in(&x.dims(), &[0, 3]));
        let has_range = high.greater(&low);
        let range = has_range.select(&(high - &low), &(x.zeros_like() + 1.0));
        let [least, most] = self.value_range;
        let stretched = ((x - low) / range * (most - least) + least).clamp(least, most);
        has_range.select(&stretched, x)
    }
}

/// What Keras adds to what it divides by.
const KERAS_EPSILON: f64 = 1e-7;

/// The three channels of images, `[batch, height, width]` each.
#[track_caller]
fn planes(x: &Tensor) -> [Tensor; 3] {
    [0, 1, 2].map(|at| x.slice_dim(3, at, at + 1).reshape(&x.dims()[..3]))
}

/// Hue, saturation and value of images of red, green and blue, as TensorFlow has them: the first two from 0 to 1.
#[track_caller]
fn hsv_of(x: &Tensor) -> [Tensor; 3] {
    let [r, g, b] = planes(x);
    let value = r.maximum(&g).maximum(&b);
    let range = &value - r.minimum(&g).minimum(&b);
    let zeros = value.zeros_like();
    let is_above = |x: &Tensor| x.greater(&x.like(0.0));
    let or_one = |x: &Tensor| is_above(x).select(x, &(&zeros + 1.0));
    let saturation = is_above(&value).select(&(&range / or_one(&value)), &zeros);
    let sixths = or_one(&range) * 6.0;
    let of_green = (&b - &r) / &sixths + 1.0 / 3.0;
    let of_blue = (&r - &g) / &sixths + 2.0 / 3.0;
    let hue = value.equal(&g).select(&of_green, &of_blue);
    let hue = value.equal(&r).select(&((&g - &b) / &sixths), &hue);
    let hue = is_above(&range).select(&hue, &zeros);
    let hue = hue.less(&hue.like(0.0)).select(&(&hue + 1.0), &hue);
    [hue, saturation, value]
}

/// Images of red, green and blue of hue, saturation and value.
#[track_caller]
fn rgb_of([hue, saturation, value]: [&Tensor; 3]) -> Tensor {
    let sixths = hue * 6.0;
    let parts = [
        (&sixths - 3.0).abs() - 1.0,
        2.0 - (&sixths - 2.0).abs(),
        2.0 - (&sixths - 4.0).abs(),
    ];
    let channels = parts.map(|part| {
        let part = part.clamp(0.0, 1.0);
        let channel = ((1.0 - saturation) + saturation * part) * value;
        channel.keep_dims(&[3])
    });
    Tensor::concat(&channels.iter().collect::<Vec<_>>(), 3)
}

/// How bright images of red, green and blue are: `[batch, height, width, 1]`.
#[track_caller]
fn gray(x: &Tensor) -> Tensor {
    let [r, g, b] = planes(x);
    (r * 0.2989 + g * 0.587 + b * 0.114).keep_dims(&[3])
}
