//! Values of pixels moved as curves say: fewer of them, some turned over, all equally frequent.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::Cx;
use super::factor::{Factor, drawn};
use super::picture_layer::{
    ANY, VALUE_RANGE, check_values, picture_layer, to_each, value_range_setter,
};
use super::sizes::check_range;
use crate::config::{Component, Described, Field, Kind};

/// The largest value of a byte, in which the curves are.
pub(super) const MOST: f64 = 255.0;

/// Values of a range as from 0 to 255.
#[track_caller]
pub(super) fn as_bytes(x: &Tensor, [least, most]: [f64; 2]) -> Tensor {
    match [least, most] {
        [0.0, MOST] => x.clone(),
        _ => (x - least) / (most - least) * MOST,
    }
}

/// Values from 0 to 255 as of a range.
#[track_caller]
pub(super) fn of_bytes(x: &Tensor, [least, most]: [f64; 2]) -> Tensor {
    match [least, most] {
        [0.0, MOST] => x.clone(),
        _ => x * ((most - least) / MOST) + least,
    }
}

/// In which of some bins each of values from 0 to 255 is: whole numbers, of the values' type.
#[track_caller]
pub(super) fn whole_bins(bytes: &Tensor, bins: usize) -> Tensor {
    let last = bins as f64 - 1.0;
    // A whole number is in its own bin however it was rounded on its way from a range.
    (bytes * (last / MOST) + 1e-4).floor().clamp(0.0, last)
}

/// Leaves a random number of bits of each value, in training alone; kind `random_posterization`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32; values are cut to whole numbers from 0
/// to 255 before. As in Keras the bits that are left of an image are drawn from the first number up to below the second, and from 1 on where there is one
/// number: 5 leaves 1 to 4. Two equal numbers leave as many. What is drawn depends on the step's key, the layer and the number of the example, not on
/// how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPosterization {
    factor: Factor,
    value_range: [f64; 2],
}

impl RandomPosterization {
    /// Leaves between 1 bit and fewer than a number, or between two.
    #[must_use]
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            factor: factor.into(),
            value_range: [0.0, MOST],
        }
    }

    value_range_setter!();

    const fn ends(&self) -> [f64; 2] {
        match self.factor {
            Factor::UpTo(most) => [1.0, most],
            Factor::Between(ends) => ends,
        }
    }

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        let [least, most] = self.ends();
        let is_whole = |bits: f64| bits.fract() == 0.0 && (1.0..=8.0).contains(&bits);
        match is_whole(least) && is_whole(most) && least <= most {
            true => Ok(()),
            false => Err(format!(
                "`factor` must be a whole number of bits from 1 to 8, or two in ascending order, got {}",
                self.factor
            )),
        }
    }

    #[track_caller]
    fn posterized(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [least, most] = self.ends();
        let bits = drawn(cx, x.dim(0), [least, most]).floor();
        let bits = bits.clamp(least, (most - 1.0).max(least));
        // 2 to the bits that go.
        let step = ((8.0 - bits) * std::f64::consts::LN_2).exp().round();
        let step = to_each(&step, x);
        let bytes = as_bytes(x, self.value_range).clamp(0.0, MOST).floor();
        of_bytes(&((bytes / &step).floor() * step), self.value_range)
    }
}

impl Described for RandomPosterization {
    const COMPONENT: Component = Component {
        name: "random_posterization",
        doc: "leaves a random number of bits of each value in training",
        fields: &[
            Field::required(
                "factor",
                Factor::KIND,
                "how many of 8 bits are left: from 1, or the first of two, to fewer than this",
            )
            .example("5"),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(RandomPosterization, "random_posterization", ANY, posterized);

/// Makes images brighter and turns values over that are above a threshold, both random, in training alone; kind `solarization`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32. Both numbers are drawn for each image in
/// parts of the range, from 0 where there is one number; with Keras' defaults, two zeros, all values are turned over. Keras 3 draws from the first of two
/// numbers, not its part of the range, on. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is divided
/// over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Solarization {
    addition_factor: Factor,
    threshold_factor: Factor,
    value_range: [f64; 2],
}

impl Solarization {
    /// Adds up to a part of the range, or between two, and turns over what is above up to a part of it, or between two.
    #[must_use]
    pub fn new(addition_factor: impl Into<Factor>, threshold_factor: impl Into<Factor>) -> Self {
        Self {
            addition_factor: addition_factor.into(),
            threshold_factor: threshold_factor.into(),
            value_range: [0.0, MOST],
        }
    }

    value_range_setter!();

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        self.addition_factor.check("addition_factor", 0.0..=1.0)?;
        self.threshold_factor.check("threshold_factor", 0.0..=1.0)
    }

    #[track_caller]
    fn solarized(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let mut part = |factor: Factor| {
            let bytes = drawn(cx, x.dim(0), factor.above_zero()) * MOST;
            to_each(&bytes, x)
        };
        let (more, threshold) = (part(self.addition_factor), part(self.threshold_factor));
        let brighter = (as_bytes(x, self.value_range) + more).clamp(0.0, MOST);
        let is_below = brighter.less(&threshold);
        of_bytes(
            &is_below.select(&brighter, &(MOST - &brighter)),
            self.value_range,
        )
    }
}

impl Described for Solarization {
    const COMPONENT: Component = Component {
        name: "solarization",
        doc: "turns over values above a random threshold in training",
        fields: &[
            Field::optional(
                "addition_factor",
                Factor::KIND,
                "how much is added before, in parts of the range",
            ),
            Field::optional(
                "threshold_factor",
                Factor::KIND,
                "above which part of the range values are turned over",
            ),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(Solarization, "solarization", ANY, solarized);

/// Makes all values of each channel of an image about equally frequent, in training alone; kind `equalization`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32: whole numbers from 0 to 255, moved to the
/// range. A channel whose values are all in one bin stays as it is. Each image is counted by itself, where Keras counts the channels of all images of a
/// batch as one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equalization {
    value_range: [f64; 2],
    bins: usize,
}

impl Equalization {
    /// For pixels of this range, from 0 to 255 in Keras' default, counted in 256 bins.
    #[must_use]
    pub const fn new(value_range: [f64; 2]) -> Self {
        Self {
            value_range,
            bins: 256,
        }
    }

    /// Sets in how many bins values are counted.
    #[must_use]
    pub const fn bins(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        check_range("`bins`", self.bins as f64, 2.0..=65_536.0)
    }

    #[track_caller]
    fn equalized(&self, _cx: &mut Cx, x: &Tensor) -> Tensor {
        let bytes = as_bytes(x, self.value_range);
        let bin = self.bin_of(&bytes);
        let counts = self.counted(&bin);
        let is_flat = self.is_flat(&counts, x);
        let curve = curve(&counts);
        let found = curve.reshape(&[counts.dim(0) * self.bins]).gather(&bin, 0);
        of_bytes(&is_flat.select(&bytes, &found), self.value_range)
    }

    /// Where each value is counted, among the bins of all channels of all images: `i32[batch, height, width, channels]`.
    #[track_caller]
    fn bin_of(&self, bytes: &Tensor) -> Tensor {
        let bin = whole_bins(bytes, self.bins);
        let number = |dim: usize| bytes.graph().iota(bin.shape().with_dtype(DType::I32), dim);
        let channel = number(0) * bytes.dim(3) as f64 + number(3);
        bin.convert(DType::I32) + channel * self.bins as f64
    }

    /// How many values there are in each bin: `f32[batch * channels, bins]`, exact for images of up to 2^24 pixels.
    #[track_caller]
    fn counted(&self, bin: &Tensor) -> Tensor {
        let channels = bin.dim(0) * bin.dim(3);
        let size = bin.dims().iter().product();
        let ones = bin.graph().full(&Shape::f32([size]), 1.0);
        let none = bin.graph().full(&Shape::f32([channels * self.bins]), 0.0);
        let counts = none.scatter_add(&bin.reshape(&[size]), &ones, 0);
        counts.reshape(&[channels, self.bins])
    }

    /// Whether all values of a channel are in one bin, for each value.
    #[track_caller]
    fn is_flat(&self, counts: &Tensor, x: &Tensor) -> Tensor {
        let all = counts.sum(&[1]);
        let is_flat = counts.max(&[1]).greater_equal(&all);
        let is_flat = is_flat.reshape(&[x.dim(0), x.dim(3)]);
        is_flat.broadcast_in(&x.dims(), &[0, 3])
    }
}

/// What becomes of the values in each bin: `[channels, bins]` of counts.
#[track_caller]
fn curve(counts: &Tensor) -> Tensor {
    let bins = counts.dim(1);
    let below = WindowDim {
        size: bins,
        stride: 1,
        dilation: 1,
        low: bins - 1,
        high: 0,
    };
    let up_to = counts.reduce_window(ReduceOp::Sum, &[WindowDim::identity(), below]);
    let all = counts.sum(&[1]).keep_dims(&[1]).broadcast_to(&up_to.dims());
    let is_begun = up_to.greater(&up_to.zeros_like());
    let first = is_begun.select(&up_to, &all).min(&[1]).keep_dims(&[1]);
    let first = first.broadcast_to(&up_to.dims());
    let rest = (&all - &first).maximum(&all.like(1.0));
    ((up_to - first) * MOST / rest).round().clamp(0.0, MOST)
}

impl Described for Equalization {
    const COMPONENT: Component = Component {
        name: "equalization",
        doc: "makes all values of each channel of an image about equally frequent in training",
        fields: &[
            VALUE_RANGE,
            Field::optional(
                "bins",
                Kind::Whole(2, 65_536),
                "in how many bins values are counted",
            ),
        ],
    };
}

picture_layer!(Equalization, "equalization", ANY, equalized);
