//! Images made larger without variables.

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::sizes::one_image;
use super::{Cx, Pair, Sizes};
use crate::config::{self, Component, Described, Field, Kind};

/// How the elements in between are found when an image is made larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// Each element is repeated.
    #[default]
    Nearest,
    /// Between the middles of elements, linearly in both directions; beyond the outermost, these.
    Bilinear,
}

/// Images `[batch, height, width, channels]` made larger by whole factors; kind `up_sampling2d`.
///
/// Fields and defaults are Keras', with the interpolations `nearest` and `bilinear`.
///
/// ```
/// use phalanx::nn::{Sequential, UpSampling2d};
///
/// let model = Sequential::new([7, 5, 4]).add(UpSampling2d::new((2, 3))).build()?;
/// assert_eq!(model.outputs()[0].dims, [14, 15, 4]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpSampling2d {
    size: Pair,
    interpolation: Interpolation,
}

impl UpSampling2d {
    /// Repeats rows and columns so often, given as one number or as two.
    #[must_use]
    pub fn new(size: impl Into<Pair>) -> Self {
        Self {
            size: size.into(),
            interpolation: Interpolation::Nearest,
        }
    }

    /// Sets how elements in between are found.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }
}

impl Default for UpSampling2d {
    /// Twice as large, as in Keras.
    fn default() -> Self {
        Self::new(2)
    }
}

impl Described for UpSampling2d {
    const COMPONENT: Component = Component {
        name: "up_sampling2d",
        doc: "makes images larger by whole factors",
        fields: &[
            Field::optional("size", Kind::PAIR, "factors of height and width"),
            Field::optional(
                "interpolation",
                Kind::OneOf(&["nearest", "bilinear"]),
                "how the elements in between are found",
            ),
        ],
    };
}

impl Layer for UpSampling2d {
    fn kind(&self) -> &'static str {
        "up_sampling2d"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        self.size.check("`size`")
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let image = one_image(inputs)?;
        let sizes = image.dims[1..3].iter().zip(self.size.array());
        sizes
            .into_iter()
            .try_for_each(|(&dim, factor)| match dim.saturating_mul(factor) {
                size if size <= MAX_EDGE => Ok(()),
                size => Err(format!(
                    "height and width of the output must be at most {MAX_EDGE}, got {size}"
                )),
            })
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let [rows, columns] = self.size.array();
        match self.interpolation {
            Interpolation::Nearest => repeated(&inputs[0], self.size),
            Interpolation::Bilinear => between(&between(&inputs[0], 1, rows), 2, columns),
        }
    }
}

/// The largest height or width that is made.
const MAX_EDGE: usize = 1 << 20;

/// Each element so often in both directions.
#[track_caller]
fn repeated(x: &Tensor, Sizes([rows, columns]): Pair) -> Tensor {
    let [batch, height, width, channels] = [0, 1, 2, 3].map(|dim| x.dim(dim));
    let apart = [batch, height, rows, width, columns, channels];
    let repeated = x.broadcast_in(&apart, &[0, 1, 3, 5]);
    repeated.reshape(&[batch, height * rows, width * columns, channels])
}

/// `factor` elements for each along a dim, each between the two whose middles are next to its own.
#[track_caller]
fn between(x: &Tensor, dim: usize, factor: usize) -> Tensor {
    let size = x.dim(dim);
    let place = |i: usize| ((i as f64 + 0.5) / factor as f64 - 0.5).clamp(0.0, (size - 1) as f64);
    let places: Vec<f64> = (0..size * factor).map(place).collect();
    let below: Vec<i32> = places.iter().map(|place| place.floor() as i32).collect();
    let above: Vec<i32> = places.iter().map(|place| place.ceil() as i32).collect();
    let parts: Vec<f32> = places.iter().map(|place| place.fract() as f32).collect();
    let constant = |value: HostTensor| x.graph().constant(value);
    let at = |indices: &[i32]| x.gather(&constant(HostTensor::new([indices.len()], indices)), dim);
    let (below, above) = (at(&below), at(&above));
    let part = constant(HostTensor::new([parts.len()], &parts)).convert(x.dtype());
    let part = part.broadcast_in(&below.dims(), &[dim]);
    &below + (above - &below) * part
}
