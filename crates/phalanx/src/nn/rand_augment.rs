//! Several changes of images one after another, in training.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::factor::{Factor, drawn};
use super::picture_layer::{RGB, VALUE_RANGE, check_values, picture_layer, value_range_setter};
use super::sizes::check_range;
use super::tones::{Equalization, RandomPosterization, Solarization};
use super::{
    AutoContrast, Cx, Interpolation, RandomBrightness, RandomColorDegeneration, RandomContrast,
    RandomHue, RandomRotation, RandomSaturation, RandomSharpness, RandomShear, RandomTranslation,
};
use crate::config::{Component, Described, Field, Kind};

/// Changes brightness, contrast, saturation and hue of images by random amounts, in this order, in training alone; kind `random_color_jitter`.
///
/// Each as [`RandomBrightness`], [`RandomContrast`], [`RandomSaturation`] and [`RandomHue`] of the same factor do; those that are not given are left out.
/// Images `[batch, height, width, channels]` of any element type, of 3 channels, become floats of the same dims, computed in f32. What is drawn depends on
/// the step's key, the layer and the number of the example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomColorJitter {
    brightness_factor: Option<Factor>,
    contrast_factor: Option<Factor>,
    saturation_factor: Option<Factor>,
    hue_factor: Option<Factor>,
    value_range: [f64; 2],
}

impl RandomColorJitter {
    /// Changes nothing until a factor is set; for pixels of this range, from 0 to 255 in Keras' default.
    #[must_use]
    pub const fn new(value_range: [f64; 2]) -> Self {
        Self {
            brightness_factor: None,
            contrast_factor: None,
            saturation_factor: None,
            hue_factor: None,
            value_range,
        }
    }

    /// Changes the brightness.
    #[must_use]
    pub fn brightness(mut self, factor: impl Into<Factor>) -> Self {
        self.brightness_factor = Some(factor.into());
        self
    }

    /// Changes the contrast.
    #[must_use]
    pub fn contrast(mut self, factor: impl Into<Factor>) -> Self {
        self.contrast_factor = Some(factor.into());
        self
    }

    /// Changes the saturation.
    #[must_use]
    pub fn saturation(mut self, factor: impl Into<Factor>) -> Self {
        self.saturation_factor = Some(factor.into());
        self
    }

    /// Changes the hue.
    #[must_use]
    pub fn hue(mut self, factor: impl Into<Factor>) -> Self {
        self.hue_factor = Some(factor.into());
        self
    }

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        let factors = [
            ("brightness_factor", self.brightness_factor, -1.0..=1.0),
            ("contrast_factor", self.contrast_factor, 0.0..=1.0),
            ("saturation_factor", self.saturation_factor, -1.0..=1.0),
            ("hue_factor", self.hue_factor, 0.0..=1.0),
        ];
        let mut given = factors.into_iter();
        given.try_for_each(|(field, factor, range)| match factor {
            // The two parts of a contrast have no order.
            Some(Factor::Between(parts)) if field == "contrast_factor" => parts
                .iter()
                .try_for_each(|&part| check_range("`contrast_factor`", part, range.clone())),
            Some(factor) => factor.check(field, range),
            None => Ok(()),
        })
    }

    #[track_caller]
    fn jittered(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        let range = self.value_range;
        if let Some(factor) = self.brightness_factor {
            x = RandomBrightness::new(factor)
                .value_range(range)
                .augmented(cx, &x);
        }
        if let Some(factor) = self.contrast_factor {
            x = RandomContrast::new(factor)
                .value_range(range)
                .augmented(cx, &x);
        }
        if let Some(factor) = self.saturation_factor {
            x = RandomSaturation::new(factor)
                .value_range(range)
                .augmented(cx, &x);
        }
        if let Some(factor) = self.hue_factor {
            x = RandomHue::new(factor).value_range(range).augmented(cx, &x);
        }
        x
    }
}

/// A factor that may be left out.
const fn optional(name: &'static str, doc: &'static str) -> Field {
    Field::optional(name, Kind::Either(&[Kind::Null, Factor::KIND]), doc).example("0.2")
}

impl Described for RandomColorJitter {
    const COMPONENT: Component = Component {
        name: "random_color_jitter",
        doc: "changes brightness, contrast, saturation and hue of images in training",
        fields: &[
            optional(
                "brightness_factor",
                "as of `random_brightness`; null leaves it out",
            ),
            optional(
                "contrast_factor",
                "as of `random_contrast`; null leaves it out",
            ),
            optional(
                "saturation_factor",
                "as of `random_saturation`; null leaves it out",
            ),
            optional("hue_factor", "as of `random_hue`; null leaves it out"),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(RandomColorJitter, "random_color_jitter", RGB, jittered);

/// Changes each image by some of eleven ways, drawn one after another, in training alone; kind `rand_augment` (Cubuk et al. 2020).
///
/// The ways are Keras': shear, translation, rotation, brightness, colour, contrast, sharpness, posterization, solarization, contrast that is stretched, and
/// equalization. All draw their amounts up to `factor`, or between two. Images `[batch, height, width, 3]` of any element type become floats of the same
/// dims, computed in f32. Each image has ways of its own, where Keras draws them once for a batch, and a way that is drawn twice has a new amount. All
/// eleven are computed for each of `num_ops`. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
/// divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandAugment {
    factor: Factor,
    num_ops: usize,
    interpolation: Interpolation,
    value_range: [f64; 2],
}

/// How many ways there are.
pub(super) const WAYS: usize = 11;

impl RandAugment {
    /// Changes by up to this, or between two, twice: 0.5 in Keras' default.
    #[must_use]
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            factor: factor.into(),
            num_ops: 2,
            interpolation: Interpolation::Bilinear,
            value_range: [0.0, 255.0],
        }
    }

    /// Sets how many ways are drawn for an image.
    #[must_use]
    pub const fn num_ops(mut self, num_ops: usize) -> Self {
        self.num_ops = num_ops;
        self
    }

    /// Sets how the pixels in between are found where an image is turned or moved, bilinear by default.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    value_range_setter!();

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        check_range("`num_ops`", self.num_ops as f64, 0.0..=100.0)?;
        self.factor.check("factor", 0.0..=1.0)
    }

    #[track_caller]
    fn changed(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        (0..self.num_ops).fold(x.clone(), |x, _| self.changed_once(cx, &x))
    }

    #[track_caller]
    fn changed_once(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let way = drawn(cx, x.dim(0), [0.0, WAYS as f64]).floor();
        let ways = Ways {
            factor: self.factor,
            interpolation: self.interpolation,
            value_range: self.value_range,
        };
        one_of(&way, x, &ways.of(cx, x))
    }
}

/// Images changed by the way of each, `f32[batch]`; those whose number has no way are left as they are.
#[track_caller]
pub(super) fn one_of(way: &Tensor, x: &Tensor, ways: &[Tensor]) -> Tensor {
    let ways = ways.iter().enumerate();
    ways.fold(x.clone(), |kept, (number, changed)| {
        let is_drawn = way.equal(&way.like(number as f64));
        let is_drawn = is_drawn.broadcast_in(&x.dims(), &[0]);
        is_drawn.select(changed, &kept)
    })
}

/// Settings of the ways to change an image that [`RandAugment`] and [`AugMix`](super::AugMix) draw from.
pub(super) struct Ways {
    pub(super) factor: Factor,
    pub(super) interpolation: Interpolation,
    pub(super) value_range: [f64; 2],
}

impl Ways {
    /// The images changed by each of the ways, in the order of Keras' `RandAugment`.
    #[track_caller]
    pub(super) fn of(&self, cx: &mut Cx, x: &Tensor) -> [Tensor; WAYS] {
        let ends = self.factor.above_zero();
        let (range, how) = (self.value_range, self.interpolation);
        let bits = (8.0 * ends[1]).floor().max(1.0);
        [
            RandomShear::new(ends, ends)
                .interpolation(how)
                .augmented(cx, x),
            RandomTranslation::new(ends, ends)
                .interpolation(how)
                .augmented(cx, x),
            RandomRotation::new(ends)
                .interpolation(how)
                .augmented(cx, x),
            RandomBrightness::new(ends)
                .value_range(range)
                .augmented(cx, x),
            RandomColorDegeneration::new(ends)
                .value_range(range)
                .augmented(cx, x),
            RandomContrast::new(ends)
                .value_range(range)
                .augmented(cx, x),
            RandomSharpness::new(ends)
                .value_range(range)
                .augmented(cx, x),
            RandomPosterization::new(bits)
                .value_range(range)
                .augmented(cx, x),
            Solarization::new(ends, ends)
                .value_range(range)
                .augmented(cx, x),
            AutoContrast::new(range).stretched(x),
            Equalization::new(range).augmented(cx, x),
        ]
    }
}

impl Described for RandAugment {
    const COMPONENT: Component = Component {
        name: "rand_augment",
        doc: "changes each image by some of eleven ways in training",
        fields: &[
            Field::optional(
                "factor",
                Factor::KIND,
                "how much at most, or between which two",
            ),
            Field::optional(
                "num_ops",
                Kind::Whole(0, 100),
                "how many ways are drawn for an image",
            ),
            Field::optional(
                "interpolation",
                Kind::OneOf(&["nearest", "bilinear"]),
                "how the pixels in between are found",
            ),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(RandAugment, "rand_augment", RGB, changed);
