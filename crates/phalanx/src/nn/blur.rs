//! Images blurred, and parts of them erased, at random in training.

use phalanx_graph::op::PadDim;
use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::factor::{Factor, drawn};
use super::picture_layer::{
    ANY, CHANCE, VALUE_RANGE, by_chance, check_values, picture_layer, to_each, value_range_setter,
};
use super::sizes::check_range;
use super::{Cx, Pair};
use crate::config::{Component, Described, Field, Kind};

/// Blurs random images by a Gaussian of random width, in training alone; kind `random_gaussian_blur`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32 and clipped to the range; beyond the
/// edges are zeros. As in Keras the chance of it is drawn for each image. Deviations are drawn for each image, of rows and of columns, where Keras draws
/// them once for a batch; windows of other height than width are what they say, which they are not in Keras 3. What is drawn depends on the step's key, the
/// layer and the number of the example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomGaussianBlur {
    factor: Factor,
    kernel_size: Pair,
    sigma: Factor,
    value_range: [f64; 2],
}

impl RandomGaussianBlur {
    /// Windows of this height and width, and deviations up to a number of at most 1, or between two, which may be above 1 as in Keras.
    #[must_use]
    pub fn new(kernel_size: impl Into<Pair>, sigma: impl Into<Factor>) -> Self {
        Self {
            factor: Factor::UpTo(1.0),
            kernel_size: kernel_size.into(),
            sigma: sigma.into(),
            value_range: [0.0, 255.0],
        }
    }

    /// Sets the chance of it, which is drawn up to a number or between two: up to 1 by default.
    #[must_use]
    pub fn factor(mut self, factor: impl Into<Factor>) -> Self {
        self.factor = factor.into();
        self
    }

    value_range_setter!();

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        self.factor.check("factor", 0.0..=1.0)?;
        let most = match self.sigma {
            Factor::UpTo(_) => 1.0,
            Factor::Between(_) => f64::from(f32::MAX),
        };
        self.sigma.check("sigma", 0.0..=most)?;
        let sizes = self.kernel_size.array();
        match sizes.iter().all(|size| size % 2 == 1 && *size < 1000) {
            true => Ok(()),
            false => Err(format!(
                "`kernel_size` must be odd and below 1000, got {sizes:?}"
            )),
        }
    }

    #[track_caller]
    fn blurred(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [across, down] = [0; 2].map(|_| drawn(cx, x.dim(0), self.sigma.above_zero()));
        let [height, width] = self.kernel_size.array();
        let blurred = smoothed(&smoothed(x, 1, height, &down), 2, width, &across);
        let [least, most] = self.value_range;
        by_chance(cx, self.factor, x, &blurred).clamp(least, most)
    }
}

/// Images smoothed along a dim by a Gaussian of a deviation for each.
#[track_caller]
fn smoothed(images: &Tensor, dim: usize, size: usize, deviation: &Tensor) -> Tensor {
    let middle = (size as f64 - 1.0) / 2.0;
    // What Keras adds, so that none is 0.
    let deviation = deviation + 1e-6;
    let weights: Vec<Tensor> = (0..size)
        .map(|at| ((at as f64 - middle) / &deviation).square() * -0.5)
        .map(|power| power.exp())
        .collect();
    let total = weights
        .iter()
        .skip(1)
        .fold(weights[0].clone(), |sum, weight| sum + weight);
    let mut pads = [PadDim::default(); 4];
    (pads[dim].low, pads[dim].high) = (middle as i64, middle as i64);
    let padded = images.pad(&pads, 0.0);
    let part = |(at, weight): (usize, &Tensor)| {
        let moved = padded.slice_dim(dim, at, at + images.dim(dim));
        moved * to_each(&(weight / &total), images)
    };
    let mut parts = weights.iter().enumerate().map(part);
    let first = parts.next().unwrap_or_else(|| images.clone());
    parts.fold(first, |sum, part| sum + part)
}

impl Described for RandomGaussianBlur {
    const COMPONENT: Component = Component {
        name: "random_gaussian_blur",
        doc: "blurs random images by a Gaussian of random width in training",
        fields: &[
            CHANCE,
            Field::optional(
                "kernel_size",
                Kind::PAIR,
                "height and width of a window, both odd",
            ),
            Field::optional(
                "sigma",
                Factor::KIND,
                "deviation of the Gaussian in pixels, which is drawn up to this, or between two",
            ),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(RandomGaussianBlur, "random_gaussian_blur", ANY, blurred);

/// What [`RandomErasing`] puts in place of what it erases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected null, a number, or a number for each channel"
)]
enum Filling {
    Noise(Option<()>),
    All(f64),
    Each(Vec<f64>),
}

/// Erases a rectangle of random images, in training alone; kind `random_erasing`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims. Height and width of a rectangle are the roots of numbers
/// drawn between the two of `scale`, each for itself, as parts of the image's; it lies anywhere inside. What is filled in is clipped to the range. As in
/// Keras the chance of it is drawn for each image. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
/// divided over replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomErasing {
    factor: Factor,
    scale: Factor,
    fill_value: Filling,
    value_range: [f64; 2],
}

impl RandomErasing {
    /// Erases with chances that are drawn up to a number or between two, and fills with noise as Keras does: normal numbers times the largest value.
    #[must_use]
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            factor: factor.into(),
            scale: Factor::Between([0.02, 0.33]),
            fill_value: Filling::Noise(None),
            value_range: [0.0, 255.0],
        }
    }

    /// Sets which part of an image is erased, up to a number or between two: from 0.02 to 0.33 by default.
    #[must_use]
    pub fn scale(mut self, scale: impl Into<Factor>) -> Self {
        self.scale = scale.into();
        self
    }

    /// Fills with a number for each channel, or with one for all, instead of noise.
    #[must_use]
    pub fn fill_value(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        self.fill_value = match values[..] {
            [value] => Filling::All(value),
            _ => Filling::Each(values),
        };
        self
    }

    value_range_setter!();

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        self.factor.check("factor", 0.0..=1.0)?;
        self.scale.check("scale", 0.0..=1.0)?;
        let values: &[f64] = match &self.fill_value {
            Filling::Noise(_) => &[],
            Filling::All(value) => std::slice::from_ref(value),
            Filling::Each(values) => values,
        };
        let mut values = values.iter();
        values.try_for_each(|&value| check_range("`fill_value`", value, f64::MIN..=f64::MAX))
    }

    fn check_filling(&self, images: &Shape) -> Result<(), String> {
        match (&self.fill_value, images.dims[3]) {
            (Filling::Each(values), channels) if values.len() != channels => Err(format!(
                "`fill_value` must be a number, or one for each of the {channels} channels, got {}",
                values.len()
            )),
            _ => Ok(()),
        }
    }

    #[track_caller]
    fn erased(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [is_right, is_below] = [2, 1].map(|dim| self.drawn_interval(cx, x, dim));
        let inside = is_right.and(&is_below);
        let [least, most] = self.value_range;
        let filling = self.filling(cx, x).clamp(least, most);
        let erased = inside.select(&filling, x);
        by_chance(cx, self.factor, x, &erased)
    }

    /// Whether each pixel lies in an interval of a dim.
    #[track_caller]
    fn drawn_interval(&self, cx: &mut Cx, x: &Tensor, dim: usize) -> Tensor {
        let size = x.dim(dim) as f64;
        let length = drawn(cx, x.dim(0), self.scale.above_zero()).sqrt() * size;
        let start = drawn(cx, x.dim(0), [0.0, 1.0]) * (size - &length);
        let end = to_each(&(&start + length), x);
        let at = x.graph().iota(Shape::new(x.dtype(), x.dims()), dim);
        at.greater_equal(&to_each(&start, x)).and(&at.less(&end))
    }

    #[track_caller]
    fn filling(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let dims = x.dims();
        let values: Vec<f32> = match &self.fill_value {
            Filling::Noise(_) => {
                let noise = cx.normal(&dims) * self.value_range[1];
                return noise.convert(x.dtype());
            }
            Filling::All(value) => vec![*value as f32; dims[3]],
            Filling::Each(values) => values.iter().map(|&value| value as f32).collect(),
        };
        let values = x.graph().constant(HostTensor::new([dims[3]], &values));
        values.convert(x.dtype()).broadcast_in(&dims, &[3])
    }
}

impl Described for RandomErasing {
    const COMPONENT: Component = Component {
        name: "random_erasing",
        doc: "erases a rectangle of random images in training",
        fields: &[
            CHANCE,
            Field::optional(
                "scale",
                Factor::KIND,
                "which part of an image is erased, drawn up to this or between two",
            ),
            Field::optional(
                "fill_value",
                Kind::Worded(
                    "null for noise, a number, or one for each channel",
                    &Kind::Either(&[Kind::Null, Kind::REAL, Kind::List(&Kind::REAL, 1, 4096)]),
                ),
                "what is filled in",
            ),
            VALUE_RANGE,
        ],
    };
}

picture_layer!(RandomErasing, "random_erasing", ANY, erased, check_filling);
