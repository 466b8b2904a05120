//! Images brought to another height and width.

use phalanx_graph::op::{DotDims, PadDim};
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::{check_range, check_size, one_picture};
use crate::config::{self, Component, Described, Field, Kind};
use crate::image::{Resampling, Taps, taps};

/// Images brought to a height and a width; kind `resizing`.
///
/// Images `[batch, height, width, channels]` become floats of the new height and width, with the numbers of Keras on TensorFlow. Of integers
/// the results are rounded to the nearest and kept within what their type holds, as there; Keras 2 did not round.
///
/// ```
/// use phalanx::nn::{Resizing, Sequential};
///
/// let model = Sequential::new([300, 200, 3]).add(Resizing::new(224, 224).crop_to_aspect_ratio()).build()?;
/// assert_eq!(model.outputs()[0].dims, [224, 224, 3]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resizing {
    height: usize,
    width: usize,
    interpolation: Resampling,
    crop_to_aspect_ratio: bool,
    pad_to_aspect_ratio: bool,
    fill_value: f64,
    antialias: bool,
}

impl Resizing {
    /// To this height and width, linearly between pixels.
    #[must_use]
    pub const fn new(height: usize, width: usize) -> Self {
        Self {
            height,
            width,
            interpolation: Resampling::Bilinear,
            crop_to_aspect_ratio: false,
            pad_to_aspect_ratio: false,
            fill_value: 0.0,
            antialias: false,
        }
    }

    /// Sets how pixels are found.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Resampling) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Resizes the largest window of the new aspect ratio in the middle of an image, so that nothing is distorted.
    #[must_use]
    pub const fn crop_to_aspect_ratio(mut self) -> Self {
        self.crop_to_aspect_ratio = true;
        self
    }

    /// Adds edges of a value first, so that nothing is distorted and nothing cut.
    #[must_use]
    pub const fn pad_to_aspect_ratio(mut self, fill_value: f64) -> Self {
        (self.pad_to_aspect_ratio, self.fill_value) = (true, fill_value);
        self
    }

    /// Makes each pixel of a smaller image of all pixels that it covers.
    #[must_use]
    pub const fn antialias(mut self) -> Self {
        self.antialias = true;
        self
    }

    fn sizes(&self) -> [usize; 2] {
        [self.height, self.width]
    }
}

impl Described for Resizing {
    const COMPONENT: Component = Component {
        name: "resizing",
        doc: "brings images to a height and a width",
        fields: &[
            Field::required("height", Kind::SIZE, "the new height").example("224"),
            Field::required("width", Kind::SIZE, "the new width").example("224"),
            Field::optional(
                "interpolation",
                Kind::OneOf(&["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"]),
                "how the pixels in between are found",
            ),
            Field::optional(
                "crop_to_aspect_ratio",
                Kind::Bool,
                "whether edges are cut first, so that nothing is distorted",
            ),
            Field::optional(
                "pad_to_aspect_ratio",
                Kind::Bool,
                "whether edges are added first, so that nothing is distorted",
            ),
            Field::optional("fill_value", Kind::REAL, "the value of added edges"),
            Field::optional(
                "antialias",
                Kind::Bool,
                "whether a pixel of a smaller image is made of all that it covers",
            ),
        ],
    };
}

impl Layer for Resizing {
    fn kind(&self) -> &'static str {
        "resizing"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Pixels are not rounded before they are blended.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`height`", self.height)?;
        check_size("`width`", self.width)?;
        check_range("`fill_value`", self.fill_value, f64::MIN..=f64::MAX)?;
        match self.crop_to_aspect_ratio && self.pad_to_aspect_ratio {
            true => {
                Err("one of `crop_to_aspect_ratio` and `pad_to_aspect_ratio` may be true".into())
            }
            false => Ok(()),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_picture(inputs)?;
        check_target(self.sizes())?;
        let frame = match self.pad_to_aspect_ratio {
            true => AspectWindow::outside(input, self.sizes()),
            false => AspectWindow::inside(input, self.sizes()),
        };
        match (self.interpolation, self.antialias) {
            (Resampling::Nearest, _) | (Resampling::Bilinear, false) => Ok(()),
            _ if self.pad_to_aspect_ratio || self.crop_to_aspect_ratio => {
                check_weights(frame.sizes, self.sizes())
            }
            _ => check_weights([input.dims[1], input.dims[2]], self.sizes()),
        }
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let mut x = as_float(&inputs[0]);
        let shape = x.shape();
        if self.crop_to_aspect_ratio {
            x = AspectWindow::inside(&shape, self.sizes()).applied(&x, 0.0);
        } else if self.pad_to_aspect_ratio {
            x = AspectWindow::outside(&shape, self.sizes()).applied(&x, self.fill_value);
        }
        let x = resized(&x, self.sizes(), self.interpolation, self.antialias);
        within(&x, inputs[0].dtype())
    }
}

/// Numbers made of integers as these would be: rounded, and within what the type holds.
#[track_caller]
fn within(x: &Tensor, dtype: DType) -> Tensor {
    let (least, most) = match dtype {
        DType::U8 => (0.0, f64::from(u8::MAX)),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 => (i64::MIN as f64, i64::MAX as f64),
        DType::Bool | DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => return x.clone(),
    };
    x.round().clamp(least, most)
}

/// A window of images in their middle, or around them.
struct AspectWindow {
    /// Rows and columns from the image's edge to the frame's, negative outside.
    start: [i64; 2],
    sizes: [usize; 2],
}

impl AspectWindow {
    /// The largest of the aspect ratio of the target that fits, in Keras' arithmetic.
    fn inside(images: &Shape, target: [usize; 2]) -> Self {
        let [height, width] = [images.dims[1], images.dims[2]];
        let sizes = in_proportion([height, width], target);
        let sizes = [sizes[0].clamp(1, height), sizes[1].clamp(1, width)];
        let start = [(height - sizes[0]) / 2, (width - sizes[1]) / 2].map(|edge| edge as i64);
        Self { start, sizes }
    }

    /// The smallest of the aspect ratio of the target that holds the image, with equal edges on both sides: half a pixel is dropped, as in
    /// Keras.
    fn outside(images: &Shape, target: [usize; 2]) -> Self {
        let own = [images.dims[1], images.dims[2]];
        let sizes = in_proportion(own, target);
        let edges = [0, 1].map(|i| sizes[i].saturating_sub(own[i]) / 2);
        Self {
            start: edges.map(|edge| -i64::try_from(edge).unwrap_or(i64::MAX)),
            sizes: [0, 1].map(|i| own[i].saturating_add(edges[i].saturating_mul(2))),
        }
    }

    #[track_caller]
    fn applied(&self, images: &Tensor, fill_value: f64) -> Tensor {
        let pad = |i: usize| {
            let own = images.dim(i + 1) as i64;
            PadDim {
                low: -self.start[i],
                high: self.start[i] + self.sizes[i] as i64 - own,
                interior: 0,
            }
        };
        let none = PadDim {
            low: 0,
            high: 0,
            interior: 0,
        };
        images.pad(&[none, pad(0), pad(1), none], fill_value)
    }
}

/// The largest size that is made.
const MAX_EDGE: usize = 1 << 20;
/// The largest number of weights of one direction.
const MAX_WEIGHTS: usize = 1 << 24;

/// Refuses sizes that are too large to be made.
pub(super) fn check_target(sizes: [usize; 2]) -> Result<(), String> {
    match sizes.iter().find(|&&size| size > MAX_EDGE) {
        Some(size) => Err(format!(
            "height and width must be at most {MAX_EDGE}, got {size}"
        )),
        None => Ok(()),
    }
}

/// Refuses products of matrices that are too large.
fn check_weights(from: [usize; 2], to: [usize; 2]) -> Result<(), String> {
    let mut sizes = from.into_iter().zip(to);
    sizes.try_for_each(|(from, to)| match from.saturating_mul(to) {
        weights if weights <= MAX_WEIGHTS => Ok(()),
        _ => Err(format!(
            "{from} pixels in one direction cannot become {to}: expected a product of at most {MAX_WEIGHTS}; resize in two layers or read smaller images"
        )),
    })
}

/// The height that fits an image's width in another aspect ratio, and the width that fits its height.
fn in_proportion([height, width]: [usize; 2], target: [usize; 2]) -> [usize; 2] {
    let scaled = |size: usize, by: usize, of: usize| (size as f64 * by as f64 / of as f64) as usize;
    [
        scaled(width, target[0], target[1]),
        scaled(height, target[1], target[0]),
    ]
}

/// The largest window of the aspect ratio of a size in the middle of images, resized to it.
#[track_caller]
pub(super) fn fitted(images: &Tensor, sizes: [usize; 2]) -> Tensor {
    let window = AspectWindow::inside(&images.shape(), sizes).applied(images, 0.0);
    resized(&window, sizes, Resampling::Bilinear, false)
}

/// Images of another size, a direction at a time, computed in f32 or f64.
#[track_caller]
fn resized(images: &Tensor, sizes: [usize; 2], how: Resampling, antialias: bool) -> Tensor {
    let mut made = widened(images);
    for (dim, to) in [1, 2].into_iter().zip(sizes) {
        let from = made.dim(dim);
        if from != to {
            made = mixed(&made, dim, &taps(from, to, how, antialias));
        }
    }
    made.convert(images.dtype())
}

/// Elements made of more than these are made by a product of matrices.
const MOST_PICKED: usize = 4;

/// A dim whose elements are mixed of those before: each is the sum of a few that are picked, or a row of a product of matrices.
#[track_caller]
fn mixed(x: &Tensor, dim: usize, taps: &[Taps]) -> Tensor {
    let most = taps.iter().map(|taps| taps.weights.len()).max();
    match most {
        Some(most) if most <= MOST_PICKED => picked(x, dim, taps, most),
        _ => multiplied(x, dim, taps),
    }
}

#[track_caller]
fn picked(x: &Tensor, dim: usize, taps: &[Taps], most: usize) -> Tensor {
    let last = x.dim(dim) - 1;
    let part = |k: usize| {
        let place = |taps: &Taps| (taps.start + k).min(last) as i32;
        let weight = |taps: &Taps| taps.weights.get(k).copied().unwrap_or(0.0);
        let places: Vec<i32> = taps.iter().map(place).collect();
        let weights: Vec<f32> = taps.iter().map(weight).collect();
        let places = x.graph().constant(HostTensor::new([taps.len()], &places));
        let weights = HostTensor::new([taps.len()], &weights).convert(x.dtype());
        let found = x.gather(&places, dim);
        let weights = x.graph().constant(weights);
        let weights = weights.broadcast_in(&found.dims(), &[dim]);
        found * weights
    };
    (1..most).fold(part(0), |sum, k| sum + part(k))
}

#[track_caller]
fn multiplied(x: &Tensor, dim: usize, taps: &[Taps]) -> Tensor {
    let (from, to) = (x.dim(dim), taps.len());
    let mut weights = vec![0f32; from * to];
    for (row, taps) in weights.chunks_exact_mut(from).zip(taps) {
        row[taps.start..][..taps.weights.len()].copy_from_slice(&taps.weights);
    }
    let weights = HostTensor::new([to, from], &weights).convert(x.dtype());
    let weights = x.graph().constant(weights);
    let dims = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![dim],
        rhs_contract: vec![1],
        dtype: x.dtype(),
    };
    // The new dim comes last.
    let mut order: Vec<usize> = (0..x.rank() - 1).collect();
    order.insert(dim, x.rank() - 1);
    x.dot(&weights, dims).transpose(&order)
}

/// How many more rows and columns images have than a window; none where it does not fit.
#[track_caller]
pub(super) fn rows_and_columns_more(images: &Tensor, sizes: [usize; 2]) -> Option<[usize; 2]> {
    let more = |i: usize| images.dim(i + 1).checked_sub(sizes[i]);
    Some([more(0)?, more(1)?])
}

/// The middle of images, of a height and a width; kind `center_crop`.
///
/// Images `[batch, height, width, channels]` of any element type become floats. Of one that is smaller in a direction the largest window of
/// the same aspect ratio is resized, as in Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    height: usize,
    width: usize,
}

impl CenterCrop {
    /// A window of this height and width.
    #[must_use]
    pub const fn new(height: usize, width: usize) -> Self {
        Self { height, width }
    }
}

impl Described for CenterCrop {
    const COMPONENT: Component = Component {
        name: "center_crop",
        doc: "cuts out the middle of images",
        fields: &[
            Field::required("height", Kind::SIZE, "height of the window").example("24"),
            Field::required("width", Kind::SIZE, "width of the window").example("24"),
        ],
    };
}

impl Layer for CenterCrop {
    fn kind(&self) -> &'static str {
        "center_crop"
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

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = as_float(&inputs[0]);
        let sizes = [self.height, self.width];
        let Some([rows, columns]) = rows_and_columns_more(&x, sizes) else {
            return fitted(&x, sizes);
        };
        let [top, left] = [rows / 2, columns / 2];
        x.slice_dim(1, top, top + self.height)
            .slice_dim(2, left, left + self.width)
    }
}
