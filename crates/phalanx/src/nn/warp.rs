//! Images turned, moved and zoomed by random amounts in training.

use std::f64::consts::TAU;

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::factor::{Factor, drawn};
use super::picture_layer::{ANY, CHANCE, by_chance, picture_layer};
use super::precision::widened;
use super::sizes::check_range;
use super::{Cx, Interpolation};
use crate::config::{Component, Described, Field, Kind};
use crate::image::Fill;

/// How pixels between two of an image, and beyond its edges, are found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Lookup {
    pub(super) fill_mode: Fill,
    pub(super) interpolation: Interpolation,
    pub(super) fill_value: f64,
}

impl Lookup {
    pub(super) const FIELDS: &[Field] = &[
        Field::optional(
            "fill_mode",
            Kind::OneOf(&["reflect", "nearest", "constant", "wrap"]),
            "what is seen beyond the edges: the image in a mirror, its nearest pixel, `fill_value`, or the image again",
        ),
        Field::optional(
            "interpolation",
            Kind::OneOf(&["nearest", "bilinear"]),
            "how the pixels in between are found",
        ),
        Field::optional(
            "fill_value",
            Kind::REAL,
            "what is seen beyond the edges where `fill_mode` is constant",
        ),
    ];

    pub(super) fn check(self) -> Result<(), String> {
        check_range("`fill_value`", self.fill_value, f64::MIN..=f64::MAX)
    }
}

/// Keras' defaults.
impl Default for Lookup {
    fn default() -> Self {
        Self {
            fill_mode: Fill::Reflect,
            interpolation: Interpolation::Bilinear,
            fill_value: 0.0,
        }
    }
}

/// Where each pixel `(x, y)` of an image comes from: `(x[0] x + x[1] y + x[2], y[0] x + y[1] y + y[2])`, numbers `f32[batch]`.
struct Affine {
    x: [Tensor; 3],
    y: [Tensor; 3],
}

macro_rules! random_warp {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ }, $kind:literal, $about:literal, $fields:expr) => {
        $(#[$doc])*
        ///
        /// Images `[batch, height, width, channels]` of any element type become floats of the same dims; pixels have the numbers of
        /// Keras on TensorFlow. What is drawn depends on the step's key, the layer and the number of the example, not on how a batch is
        /// divided over replicas.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($field: $type,)+
            #[serde(flatten)]
            lookup: Lookup,
        }

        impl $name {
            /// Sets what is seen beyond the edges, the image in a mirror by default.
            #[must_use]
            pub const fn fill_mode(mut self, fill_mode: Fill) -> Self {
                self.lookup.fill_mode = fill_mode;
                self
            }

            /// Sets how the pixels in between are found, bilinear by default.
            #[must_use]
            pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
                self.lookup.interpolation = interpolation;
                self
            }

            /// Sets what [`Fill::Constant`] fills with, 0 by default.
            #[must_use]
            pub const fn fill_value(mut self, fill_value: f64) -> Self {
                self.lookup.fill_value = fill_value;
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: $fields,
            };
            const SHARED: &'static [Field] = Lookup::FIELDS;
        }

        picture_layer!($name, $kind, ANY, seen);

        impl $name {
            fn check_fields(&self) -> Result<(), String> {
                self.lookup.check()?;
                self.check_factors()
            }

            #[track_caller]
            fn seen(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
                let from = self.drawn_map(cx, &x.dims());
                seen_through(x, &from, self.lookup)
            }
        }
    };
}

random_warp! {
    /// Turns images about their middle by a random angle, in training alone; kind `random_rotation`.
    RandomRotation { factor: Factor }, "random_rotation", "turns images by a random angle in training",
    &[Field::required("factor", Factor::KIND, "how far, in turns: 0.5 turns upside down").example("0.1")]
}

impl RandomRotation {
    /// Turns by up to a part of a full turn either way, or between two: 0.1 are 36 degrees, counter-clockwise where positive.
    #[must_use]
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            factor: factor.into(),
            lookup: Lookup::default(),
        }
    }

    fn check_factors(&self) -> Result<(), String> {
        self.factor.check("factor", -1.0..=1.0)
    }

    #[track_caller]
    fn drawn_map(&self, cx: &mut Cx, dims: &[usize]) -> Affine {
        let angle = drawn(cx, dims[0], self.factor.ends()) * TAU;
        let (sin, cos) = (angle.sin(), angle.cos());
        let [bottom, right] = middle(dims);
        Affine {
            x: [cos.clone(), -&sin, (right - &cos * right) + &sin * bottom],
            y: [
                sin.clone(),
                cos.clone(),
                (bottom - &sin * right) - &cos * bottom,
            ],
        }
    }
}

random_warp! {
    /// Moves images by random parts of their height and width, in training alone; kind `random_translation`.
    RandomTranslation { height_factor: Factor, width_factor: Factor }, "random_translation", "moves images by random amounts in training",
    &[
        Field::required("height_factor", Factor::KIND, "how far down, in heights").example("0.1"),
        Field::required("width_factor", Factor::KIND, "how far to the right, in widths").example("0.1"),
    ]
}

impl RandomTranslation {
    /// Moves by up to parts of the height and of the width either way, or between two: down and to the right where positive.
    #[must_use]
    pub fn new(height_factor: impl Into<Factor>, width_factor: impl Into<Factor>) -> Self {
        Self {
            height_factor: height_factor.into(),
            width_factor: width_factor.into(),
            lookup: Lookup::default(),
        }
    }

    fn check_factors(&self) -> Result<(), String> {
        self.height_factor.check("height_factor", -1.0..=1.0)?;
        self.width_factor.check("width_factor", -1.0..=1.0)
    }

    #[track_caller]
    fn drawn_map(&self, cx: &mut Cx, dims: &[usize]) -> Affine {
        let factors = [(self.height_factor, dims[1]), (self.width_factor, dims[2])];
        let [down, right] =
            factors.map(|(factor, size)| drawn(cx, dims[0], factor.ends()) * size as f64);
        let none = down.zeros_like();
        let whole = &none + 1.0;
        Affine {
            x: [whole.clone(), none.clone(), -right],
            y: [none, whole, -down],
        }
    }
}

random_warp! {
    /// Moves the rows of images, and their columns, the further the later they come, in training alone; kind `random_shear`.
    ///
    /// Both the same way: half of the images lean one way, and half the other, where the factors are of one sign.
    RandomShear { x_factor: Factor, y_factor: Factor }, "random_shear", "leans images over by random amounts in training",
    &[
        Field::optional("x_factor", Factor::KIND, "how far a row is moved, in parts of its distance from the first"),
        Field::optional("y_factor", Factor::KIND, "how far a column is moved, in parts of its distance from the first"),
    ]
}

impl RandomShear {
    /// Leans over by up to parts of the distance either way, or between two.
    #[must_use]
    pub fn new(x_factor: impl Into<Factor>, y_factor: impl Into<Factor>) -> Self {
        Self {
            x_factor: x_factor.into(),
            y_factor: y_factor.into(),
            lookup: Lookup::default(),
        }
    }

    fn check_factors(&self) -> Result<(), String> {
        self.x_factor.check("x_factor", -1.0..=1.0)?;
        self.y_factor.check("y_factor", -1.0..=1.0)
    }

    #[track_caller]
    fn drawn_map(&self, cx: &mut Cx, dims: &[usize]) -> Affine {
        let way = drawn(cx, dims[0], [0.0, 1.0]);
        let is_back = way.greater(&way.like(0.5));
        let mut shear = |factor: Factor| {
            let by = drawn(cx, dims[0], factor.ends());
            is_back.select(&-&by, &by)
        };
        let (x, y) = (shear(self.x_factor), shear(self.y_factor));
        let none = x.zeros_like();
        let whole = &none + 1.0;
        Affine {
            x: [whole.clone(), x, none.clone()],
            y: [y, whole, none],
        }
    }
}

random_warp! {
    /// Zooms into images, and out of them, by random amounts, in training alone; kind `random_zoom`.
    RandomZoom { height_factor: Factor, width_factor: Option<Factor> }, "random_zoom", "zooms images by random amounts in training",
    &[
        Field::required("height_factor", Factor::KIND, "how much more of the height is seen: -0.2 zooms in, 0.2 out").example("[-0.2, 0.1]"),
        Field::optional("width_factor", Kind::Either(&[Kind::Null, Factor::KIND]), "how much more of the width is seen; null keeps the aspect ratio").example("0.1"),
    ]
}

impl RandomZoom {
    /// Zooms by up to a part either way, or between two, and keeps the aspect ratio: into the image where negative, out of it where
    /// positive.
    #[must_use]
    pub fn new(height_factor: impl Into<Factor>) -> Self {
        Self {
            height_factor: height_factor.into(),
            width_factor: None,
            lookup: Lookup::default(),
        }
    }

    /// Zooms the width by another amount, drawn by itself.
    #[must_use]
    pub fn width_factor(mut self, width_factor: impl Into<Factor>) -> Self {
        self.width_factor = Some(width_factor.into());
        self
    }

    fn check_factors(&self) -> Result<(), String> {
        let factors = [
            ("height_factor", Some(self.height_factor)),
            ("width_factor", self.width_factor),
        ];
        let mut given = factors
            .iter()
            .filter_map(|&(field, factor)| Some((field, factor?)));
        given.try_for_each(|(field, factor)| {
            factor.check(field, -1.0..=1.0)?;
            match factor {
                Factor::Between([least, _]) if least <= -1.0 => {
                    Err(format!("`{field}` must be above -1, which shows nothing"))
                }
                _ => Ok(()),
            }
        })
    }

    #[track_caller]
    fn drawn_map(&self, cx: &mut Cx, dims: &[usize]) -> Affine {
        let mut zoom = |factor: Factor| drawn(cx, dims[0], factor.ends().map(|end| end + 1.0));
        let height = zoom(self.height_factor);
        let width = self.width_factor.map_or_else(|| height.clone(), &mut zoom);
        let [bottom, right] = middle(dims);
        let none = height.zeros_like();
        Affine {
            x: [width.clone(), none.clone(), (1.0 - &width) * right],
            y: [none, height.clone(), (1.0 - &height) * bottom],
        }
    }
}

/// Looks at images from a side, at random, in training alone; kind `random_perspective`.
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims. The corner at the top left stays; the right one
/// beside it moves along its edge, the left one below along its own, and the last one both ways, by up to half of `scale` of the distance. As in
/// Keras the chance of it is drawn for each image. Pixels have the numbers of Keras on TensorFlow, up to the rounding of its linear equations. What is
/// drawn depends on the step's key, the layer and the number of the example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPerspective {
    factor: Factor,
    scale: f64,
    interpolation: Interpolation,
    fill_value: f64,
}

impl RandomPerspective {
    /// Corners are moved by up to half of this part of the distance; of half of the images, as in Keras' defaults.
    #[must_use]
    pub const fn new(scale: f64) -> Self {
        Self {
            factor: Factor::UpTo(1.0),
            scale,
            interpolation: Interpolation::Bilinear,
            fill_value: 0.0,
        }
    }

    /// Sets the chance of it, which is drawn up to a number or between two: up to 1 by default.
    #[must_use]
    pub fn factor(mut self, factor: impl Into<Factor>) -> Self {
        self.factor = factor.into();
        self
    }

    /// Sets how the pixels in between are found, bilinear by default.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Sets what is seen beyond the edges, 0 by default.
    #[must_use]
    pub const fn fill_value(mut self, fill_value: f64) -> Self {
        self.fill_value = fill_value;
        self
    }

    const fn lookup(&self) -> Lookup {
        Lookup {
            fill_mode: Fill::Constant,
            interpolation: self.interpolation,
            fill_value: self.fill_value,
        }
    }

    fn check_fields(&self) -> Result<(), String> {
        self.factor.check("factor", 0.0..=1.0)?;
        check_range("`scale`", self.scale, 0.0..=1.0)?;
        self.lookup().check()
    }

    #[track_caller]
    fn seen_from_a_side(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let half = self.scale * 0.5;
        let corners = [0; 4].map(|_| drawn(cx, x.dim(0), [-half, half]));
        let seen = seen_from(x, &corners, self.lookup());
        by_chance(cx, self.factor, x, &seen)
    }
}

impl Described for RandomPerspective {
    const COMPONENT: Component = Component {
        name: "random_perspective",
        doc: "looks at images from a random side in training",
        fields: &[
            CHANCE,
            Field::optional(
                "scale",
                Kind::SHARE,
                "how far corners move at most, in parts of twice the distance",
            ),
            Lookup::FIELDS[1],
            Field::optional("fill_value", Kind::REAL, "what is seen beyond the edges"),
        ],
    };
}

picture_layer!(
    RandomPerspective,
    "random_perspective",
    ANY,
    seen_from_a_side
);

/// Images whose corners are further from the first one by these parts: the second from the left, the third from the top, and the last from both.
///
/// The homography that leads back from there: the edges at the first corner stay where they are, which leaves four equations.
#[track_caller]
fn seen_from(
    images: &Tensor,
    [right, below, across, down]: &[Tensor; 4],
    lookup: Lookup,
) -> Tensor {
    let dims = &images.dims()[..3];
    // Of one row or column nothing moves.
    let [height, width] = [dims[1], dims[2]].map(|size| (size as f64 - 1.0).max(1.0));
    let (p, q) = ((right + 1.0) * width, (below + 1.0) * height);
    let (r, s) = ((across + 1.0) * width, (down + 1.0) * height);
    let by_x = (&s / &q - 1.0) / &r;
    let by_y = (&r / &p - 1.0) / &s;
    let to_each = |numbers: &Tensor| numbers.broadcast_in(dims, &[0]);
    let [y, x] = places(images);
    let far = to_each(&by_x) * &x + to_each(&by_y) * &y + 1.0;
    // The horizon of a large `scale` comes from nowhere: places and their gradients stay finite.
    let is_somewhere = far.not_equal(&far.zeros_like());
    let nowhere = far.like(-2.0);
    let far = is_somewhere.select(&far, &far.like(1.0));
    let from =
        |times: &Tensor, at: &Tensor| is_somewhere.select(&(to_each(times) * at / &far), &nowhere);
    let from_x = from(&((by_x + 1.0 / p) * width), &x);
    let from_y = from(&((by_y + 1.0 / q) * height), &y);
    looked_up(images, [from_y, from_x], lookup)
}

/// The middle of images, from the top and from the left.
fn middle(dims: &[usize]) -> [f64; 2] {
    [dims[1], dims[2]].map(|size| (size as f64 - 1.0) / 2.0)
}

/// Where each pixel of images is, `[y, x]`: `f32[batch, height, width]` each.
#[track_caller]
pub(super) fn places(images: &Tensor) -> [Tensor; 2] {
    let dims = &images.dims()[..3];
    [1, 2].map(|dim| images.graph().iota(Shape::new(DType::F32, dims), dim))
}

/// Images whose pixels come from these places, computed in f32.
#[track_caller]
fn seen_through(images: &Tensor, from: &Affine, lookup: Lookup) -> Tensor {
    let dims = &images.dims()[..3];
    let [y, x] = places(images);
    let place = |map: &[Tensor; 3]| {
        let [by_x, by_y, offset] = [0, 1, 2].map(|i| map[i].broadcast_in(dims, &[0]));
        by_x * &x + by_y * &y + offset
    };
    looked_up(images, [place(&from.y), place(&from.x)], lookup)
}

/// Images `[batch, height, width, channels]` whose pixels come from places `[y, x]` of others, `f32[batch, height, width]`.
#[track_caller]
pub(super) fn looked_up(images: &Tensor, [y, x]: [Tensor; 2], lookup: Lookup) -> Tensor {
    let at = [(y, images.dim(1)), (x, images.dim(2))]
        .map(|(place, size)| moved_inside(&place, size, lookup.fill_mode));
    let is_filled = lookup.fill_mode == Fill::Constant;
    let source = SourcePixels {
        beyond: is_filled.then_some(lookup.fill_value),
        ..SourcePixels::inside(images, [at[0].dim(1), at[0].dim(2)])
    };
    match lookup.interpolation {
        Interpolation::Nearest => source.at([&to_whole(&at[0]), &to_whole(&at[1])]),
        Interpolation::Bilinear => source.between(&at),
    }
    .convert(images.dtype())
}

/// To the nearest whole number, ties away from 0.
fn to_whole(x: &Tensor) -> Tensor {
    (x.abs() + 0.5).floor() * x.sign()
}

/// Coordinates moved into an image of a size, as `rotate` of `image` has them; of `Constant` they stay where they are.
#[track_caller]
fn moved_inside(x: &Tensor, size: usize, fill: Fill) -> Tensor {
    let (size, last) = (size as f64, size as f64 - 1.0);
    match fill {
        Fill::Constant => x.clone(),
        Fill::Nearest => x.clamp(0.0, last),
        Fill::Reflect => {
            let period = 2.0 * size;
            let from_edge = x + 0.5;
            let turns = (&from_edge / period).floor();
            let folded = from_edge - turns * period;
            (folded.minimum(&(period - &folded)) - 0.5).clamp(0.0, last)
        }
        Fill::Wrap => {
            let gaps = last.max(1.0);
            let below = x + ((-x / gaps).floor() + 1.0) * size;
            let above = x - (x / gaps).floor() * size;
            let is_above = x.greater(&x.like(last));
            let is_below = x.less(&x.like(0.0));
            let inside = is_below.select(&below, &is_above.select(&above, x));
            inside.clamp(0.0, last)
        }
    }
}

/// The pixels of images, of which others are made.
struct SourcePixels {
    /// Of all images in a row: `[pixels, channels]`.
    all: Tensor,
    /// The number of the first pixel of the image that a pixel is made for: `i32[batch, height, width]`.
    first: Tensor,
    sizes: [usize; 2],
    /// What is beyond the edges, if it is a number.
    beyond: Option<f64>,
}

impl SourcePixels {
    /// For images of other sizes, whose pixels are all inside.
    #[track_caller]
    fn inside(images: &Tensor, [height, width]: [usize; 2]) -> Self {
        let dims = images.dims();
        let each = dims[1] * dims[2];
        let number = Shape::new(DType::I32, [dims[0], height, width]);
        Self {
            all: widened(&images.reshape(&[dims[0] * each, dims[3]])),
            first: images.graph().iota(number, 0) * each as f64,
            sizes: [dims[1], dims[2]],
            beyond: None,
        }
    }

    /// The pixels at whole places `[y, x]`, of any type of numbers.
    #[track_caller]
    fn at(&self, places: [&Tensor; 2]) -> Tensor {
        let whole = |i: usize| {
            let last = self.sizes[i] as f64 - 1.0;
            places[i].clamp(0.0, last).convert(DType::I32)
        };
        let number = &self.first + whole(0) * self.sizes[1] as f64 + whole(1);
        let found = self.all.gather(&number, 0);
        let Some(beyond) = self.beyond else {
            return found;
        };
        let [y, x] = [0, 1].map(|i| {
            let last = places[i].like(self.sizes[i] as f64 - 1.0);
            let starts = places[i].greater_equal(&places[i].like(0.0));
            starts.and(&last.greater_equal(places[i]))
        });
        let is_inside = y.and(&x).broadcast_in(&found.dims(), &[0, 1, 2]);
        is_inside.select(&found, &found.like(beyond).broadcast_to(&found.dims()))
    }

    /// Linearly between the four pixels around places `[y, x]`.
    #[track_caller]
    fn between(&self, [y, x]: &[Tensor; 2]) -> Tensor {
        let (top, left) = (y.floor(), x.floor());
        let part = |whole: &Tensor, place: &Tensor| {
            let part = (place - whole).convert(self.all.dtype());
            let dims = [&place.dims()[..], &[self.all.dim(1)]].concat();
            part.broadcast_in(&dims, &[0, 1, 2])
        };
        let (down, right) = (part(&top, y), part(&left, x));
        let row = |y: &Tensor| {
            let [first, second] = [0.0, 1.0].map(|more| self.at([y, &(&left + more)]));
            (1.0 - &right) * first + &right * second
        };
        (1.0 - &down) * row(&top) + &down * row(&(&top + 1.0))
    }
}

/// One window of each image, `[batch, height, width, channels]`, whose first row and column are given, `i32[batch]`.
#[track_caller]
pub(super) fn windows(images: &Tensor, [top, left]: [&Tensor; 2], sizes: [usize; 2]) -> Tensor {
    let dims = [images.dim(0), sizes[0], sizes[1]];
    let count = |dim: usize| images.graph().iota(Shape::new(DType::I32, dims), dim);
    let rows = count(1) + top.broadcast_in(&dims, &[0]);
    let columns = count(2) + left.broadcast_in(&dims, &[0]);
    let found = SourcePixels::inside(images, sizes).at([&rows, &columns]);
    found.convert(images.dtype())
}

#[cfg(test)]
mod tests {
    use phalanx_graph::{Graph, HostTensor, gradients};

    use super::*;
    use crate::engine::{CompileRequest, Engine, EngineOptions};

    const FILL: f64 = 7.0;

    /// An image of 3 rows and 5 columns whose corners are moved by these parts, and the derivatives by them and by the image.
    fn seen_and_gradients(corners: [f32; 4], interpolation: Interpolation) -> Vec<Vec<f64>> {
        let graph = Graph::default();
        let pixels: Vec<f32> = (0..15).map(|at| (10 * (at / 5) + at % 5) as f32).collect();
        let inputs = [HostTensor::new([1, 3, 5, 1], &pixels)]
            .into_iter()
            .chain(corners.map(|part| HostTensor::new([1], &[part])));
        let inputs: Vec<HostTensor> = inputs.collect();
        let given: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(at, value)| graph.parameter(&at.to_string(), value.shape().clone()))
            .collect();
        let lookup = Lookup {
            fill_mode: Fill::Constant,
            interpolation,
            fill_value: FILL,
        };
        let corners = [1, 2, 3, 4].map(|at| given[at].clone());
        let seen = seen_from(&given[0], &corners, lookup);
        let found = gradients(&seen.square().sum_all(), &given.iter().collect::<Vec<_>>());
        let found = found.into_iter().flatten();
        let outputs: Vec<Tensor> = [seen].into_iter().chain(found).collect();
        let names: Vec<String> = (0..outputs.len()).map(|at| at.to_string()).collect();
        let outputs: Vec<(&str, &Tensor)> =
            names.iter().map(String::as_str).zip(&outputs).collect();
        let program = graph.finish(&outputs).unwrap();
        let engine = Engine::new(&EngineOptions::default()).unwrap();
        let compiled = engine
            .compile(CompileRequest::new("seen", &program))
            .unwrap();
        let inputs: Vec<_> = inputs.iter().map(|x| engine.put(0, x).unwrap()).collect();
        let results = compiled
            .run(&[&inputs.iter().collect::<Vec<_>>()])
            .unwrap()
            .0;
        let results = results[0].iter().zip(&outputs);
        results
            .map(|(x, (_, output))| engine.get(x, &output.shape()).unwrap().to_f64())
            .collect()
    }

    /// With these corners `far` is `1 - x / 4`: 0 in the last column.
    #[test]
    fn a_horizon_inside_an_image_is_beyond_its_edges() {
        let corners = [-0.5, 0.0, -0.5, -0.5];
        for interpolation in [Interpolation::Bilinear, Interpolation::Nearest] {
            let found = seen_and_gradients(corners, interpolation);
            for (at, &seen) in found[0].iter().enumerate() {
                let (row, column) = ((at / 5) as f64, (at % 5) as f64);
                let far = 1.0 - column / 4.0;
                let (mut y, mut x) = (row / far, column / far);
                if interpolation == Interpolation::Nearest {
                    (y, x) = (y.round(), x.round());
                }
                let expected = match (y, x) {
                    // Between the last row and what is beyond it.
                    (y, x) if y > 2.0 && y < 3.0 => (20.0 + x) * (3.0 - y) + FILL * (y - 2.0),
                    (y, x) if y <= 2.0 && x <= 4.0 => 10.0 * y + x,
                    _ => FILL,
                };
                assert!(
                    (seen - expected).abs() < 1e-4,
                    "{at}: {seen}, expected {expected}"
                );
            }
            let mut all = found[1..].iter().flatten();
            assert!(all.all(|derivative| derivative.is_finite()), "{found:?}");
        }
    }
}
