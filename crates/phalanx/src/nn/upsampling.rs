//! Sequences, images and volumes made larger without variables.

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::position::one_sequence;
use super::sizes::{one_image, one_volume};
use super::{Cx, Pair, Sizes, Triple};
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
        check_fits(self.size, one_image(inputs)?)
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let [rows, columns] = self.size.array();
        match self.interpolation {
            Interpolation::Nearest => repeated(&inputs[0], self.size),
            Interpolation::Bilinear => between(&between(&inputs[0], 1, rows), 2, columns),
        }
    }
}

macro_rules! repeating {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal, $given:ty), $kind:literal, $about:literal, $sizes:path, $field_doc:literal, $one_input:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            size: $size,
        }

        impl $name {
            /// Repeats each element so often in each direction.
            #[must_use]
            pub fn new(size: $given) -> Self {
                Self { size: size.into() }
            }
        }

        /// Twice as large, as in Keras.
        impl Default for $name {
            fn default() -> Self {
                Self::new(2)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[Field::optional("size", $sizes, $field_doc)],
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
                Sizes::<$n>::from(self.size).check("`size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                check_fits::<$n>(self.size.into(), $one_input(inputs)?)
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                repeated::<$n>(&inputs[0], self.size.into())
            }
        }
    };
}

repeating! {
    /// Each step of `[batch, steps, features]` repeated; kind `up_sampling1d`.
    ///
    /// Fields and defaults are Keras'. The output has no mask, as in Keras.
    ///
    /// ```
    /// use phalanx::nn::{Sequential, UpSampling1d};
    ///
    /// let model = Sequential::new([5, 4]).add(UpSampling1d::new(3)).build()?;
    /// assert_eq!(model.outputs()[0].dims, [15, 4]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    UpSampling1d(usize, 1, usize), "up_sampling1d", "repeats the steps of sequences",
    Kind::SIZE, "how often each step is repeated", one_sequence
}
repeating! {
    /// Each element of `[batch, depth, height, width, channels]` repeated in each direction; kind `up_sampling3d`.
    ///
    /// Fields and defaults are Keras'.
    UpSampling3d(Triple, 3, impl Into<Triple>), "up_sampling3d", "makes volumes larger by whole factors",
    Kind::TRIPLE, "factors of depth, height and width", one_volume
}

/// The largest number of elements in one direction that is made.
const MAX_EDGE: usize = 1 << 20;

/// Checks that the output is not too large to be made.
fn check_fits<const N: usize>(factors: Sizes<N>, input: &Shape) -> Result<(), String> {
    let mut sizes = input.dims[1..=N].iter().zip(factors.array());
    sizes.try_for_each(|(&dim, factor)| match dim.saturating_mul(factor) {
        size if size <= MAX_EDGE => Ok(()),
        size => Err(format!(
            "each direction of the output must have at most {MAX_EDGE} elements, got {size}"
        )),
    })
}

/// Each element so often in all directions.
#[track_caller]
fn repeated<const N: usize>(x: &Tensor, Sizes(factors): Sizes<N>) -> Tensor {
    let dims = x.dims();
    let (mut apart, mut kept, mut larger) = (vec![dims[0]], vec![0], vec![dims[0]]);
    for (&size, factor) in dims[1..=N].iter().zip(factors) {
        kept.push(apart.len());
        apart.extend([size, factor]);
        larger.push(size * factor);
    }
    kept.push(apart.len());
    apart.push(dims[N + 1]);
    larger.push(dims[N + 1]);
    x.broadcast_in(&apart, &kept).reshape(&larger)
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
