//! Arguments of layers: sizes, paddings, and the checks that keep sizes sane before any shape is computed.

use phalanx_graph::{DType, Shape};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::fields;
use crate::config::{Component, Description, Field, Kind, suggest};

/// Largest value of one size: what a PJRT plugin indexes with 32 bits.
const MAX_SIZE: usize = i32::MAX as usize;
/// Largest number of dims of a tensor.
pub(super) const MAX_RANK: usize = 16;
/// Largest number of elements of a tensor; twice its square still fits 64 bits in no computation of ours.
const MAX_ELEMENTS: usize = 1 << 40;

/// A size in each of `N` directions, the same in all when given as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [usize; N]);

/// Height and width, equal when given as one number.
pub type Pair = Sizes<2>;

/// Depth, height and width, equal when given as one number.
pub type Triple = Sizes<3>;

impl<const N: usize> Sizes<N> {
    /// Checks that all sizes are positive and sane.
    pub(super) fn check(self, what: &str) -> Result<(), String> {
        self.0.iter().try_for_each(|&size| check_size(what, size))
    }

    pub(super) const fn array(self) -> [usize; N] {
        self.0
    }
}

impl<const N: usize> From<usize> for Sizes<N> {
    fn from(all: usize) -> Self {
        Self([all; N])
    }
}

impl<const N: usize> From<[usize; N]> for Sizes<N> {
    fn from(sizes: [usize; N]) -> Self {
        Self(sizes)
    }
}

impl From<(usize, usize)> for Pair {
    fn from((height, width): (usize, usize)) -> Self {
        Self([height, width])
    }
}

impl From<(usize, usize, usize)> for Triple {
    fn from((depth, height, width): (usize, usize, usize)) -> Self {
        Self([depth, height, width])
    }
}

/// One number or several, as JSON writes [`Sizes`].
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number or a list of them")]
enum SizesForm {
    All(usize),
    Each(Vec<usize>),
}

impl<const N: usize> Serialize for Sizes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Sizes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match SizesForm::deserialize(deserializer)? {
            SizesForm::All(size) => Ok(size.into()),
            SizesForm::Each(sizes) => {
                let wrong = |sizes: Vec<usize>| {
                    D::Error::custom(format!(
                        "expected a whole number or {N}: 3 or {:?}, got {sizes:?}",
                        [3; N]
                    ))
                };
                sizes.try_into().map(Self).map_err(wrong)
            }
        }
    }
}

/// How windows treat the edges of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Windows stay inside.
    #[default]
    Valid,
    /// As many windows as `ceil(size / stride)`; an odd row of padding goes to the bottom, a column to the right.
    Same,
}

impl Padding {
    /// Elements added before and after a dim of `size` for windows that span `span`.
    pub(super) fn amounts(self, size: usize, span: usize, stride: usize) -> (usize, usize) {
        match self {
            Self::Valid => (0, 0),
            Self::Same => {
                let windows = size.div_ceil(stride);
                let needed = windows.saturating_sub(1) * stride + span;
                let total = needed.saturating_sub(size);
                (total / 2, total - total / 2)
            }
        }
    }
}

/// A window that slides over `N` directions: height and width, or depth, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SlidingWindow<const N: usize> {
    #[serde(rename = "kernel_size")]
    pub(super) size: Sizes<N>,
    pub(super) strides: Sizes<N>,
    pub(super) padding: Padding,
    #[serde(rename = "dilation_rate")]
    pub(super) dilation: Sizes<N>,
}

impl SlidingWindow<1> {
    /// The settings of a convolution's window over sequences.
    pub(super) const FIELDS: &[Field] = &[
        fields::KERNEL_SIZE
            .kind(Kind::SIZE)
            .doc("number of steps of a window"),
        fields::STRIDES.kind(Kind::SIZE),
        fields::STEP_PADDING,
        fields::DILATION_RATE
            .kind(Kind::SIZE)
            .doc("distance between the steps of a window"),
    ];

    /// The window over sequences as images of one row.
    pub(super) const fn of_row(self) -> SlidingWindow<2> {
        let ([size], [strides], [dilation]) = (self.size.0, self.strides.0, self.dilation.0);
        SlidingWindow {
            size: Sizes([1, size]),
            strides: Sizes([1, strides]),
            padding: self.padding,
            dilation: Sizes([1, dilation]),
        }
    }
}

impl SlidingWindow<2> {
    /// The settings of a convolution's window over images.
    pub(super) const FIELDS: &[Field] = &[
        fields::KERNEL_SIZE,
        fields::STRIDES,
        fields::PADDING,
        fields::DILATION_RATE,
    ];
}

impl SlidingWindow<3> {
    /// The settings of a convolution's window over volumes.
    pub(super) const FIELDS: &[Field] = &[
        fields::KERNEL_SIZE
            .kind(Kind::TRIPLE)
            .doc("depth, height and width of a window"),
        fields::STRIDES.kind(Kind::TRIPLE),
        fields::VOLUME_PADDING,
        fields::DILATION_RATE.kind(Kind::TRIPLE),
    ];
}

impl<const N: usize> SlidingWindow<N> {
    /// Windows of a size that move by 1 and stay inside, as Keras' convolutions have them by default.
    pub(super) const fn new(size: Sizes<N>) -> Self {
        Self {
            size,
            strides: Sizes([1; N]),
            padding: Padding::Valid,
            dilation: Sizes([1; N]),
        }
    }

    /// Checks the sizes, of which the window's is called `what`.
    pub(super) fn check(self, what: &str) -> Result<(), String> {
        self.size.check(what)?;
        self.strides.check("`strides`")?;
        self.dilation.check("`dilation_rate`")?;
        let mut spans = self.spans().into_iter();
        spans.try_for_each(|span| check_size("the span of a window", span))
    }

    /// Checks that a window fits images `[batch, height, width, channels]`, or volumes.
    pub(super) fn check_fits(self, image: &Shape) -> Result<(), String> {
        let (spans, sizes) = (self.spans(), &image.dims[1..=N]);
        let is_inside = spans.iter().zip(sizes).all(|(span, size)| span <= size);
        if self.padding == Padding::Same || is_inside {
            return Ok(());
        }
        let by = |sizes: &[usize]| {
            let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            sizes.join(" by ")
        };
        let what = ["rows", "images", "volumes"][N.clamp(1, 3) - 1];
        Err(format!(
            "a window of {} does not fit {what} of {}; use `padding` same or a smaller window",
            by(&spans),
            by(sizes)
        ))
    }

    /// Elements added before and after each direction of images, or volumes, of these dims.
    pub(super) fn padding(self, image: &[usize]) -> [(usize, usize); N] {
        let (spans, strides) = (self.spans(), self.strides.0);
        std::array::from_fn(|i| self.padding.amounts(image[i + 1], spans[i], strides[i]))
    }

    /// How many windows there are in each direction of images, or volumes, of these dims, which they fit.
    pub(super) fn counts(self, image: &[usize]) -> [usize; N] {
        let (spans, padding) = (self.spans(), self.padding(image));
        std::array::from_fn(|i| {
            let (before, after) = padding[i];
            (image[i + 1] + before + after - spans[i]) / self.strides.0[i] + 1
        })
    }

    /// Elements between the first and the last of a window, ends included.
    pub(super) fn spans(self) -> [usize; N] {
        std::array::from_fn(|i| {
            let apart = self.size.0[i].saturating_sub(1);
            apart.saturating_mul(self.dilation.0[i]).saturating_add(1)
        })
    }
}

/// Checks that a size is positive and sane.
pub(super) fn check_size(what: &str, size: usize) -> Result<(), String> {
    if (1..=MAX_SIZE).contains(&size) {
        return Ok(());
    }
    Err(format!(
        "{what} must be between 1 and {MAX_SIZE}, got {size}"
    ))
}

/// Checks that a tensor of these dims can be addressed.
pub(super) fn check_dims(what: &str, dims: &[usize]) -> Result<(), String> {
    if dims.len() > MAX_RANK {
        let rank = dims.len();
        return Err(format!(
            "{what} has {rank} dims, at most {MAX_RANK} are supported"
        ));
    }
    for &dim in dims {
        check_size(&format!("every dim of {what}"), dim)?;
    }
    let elements = dims
        .iter()
        .try_fold(1, |total: usize, &dim| total.checked_mul(dim));
    match elements {
        Some(count) if count <= MAX_ELEMENTS => Ok(()),
        _ => Err(format!(
            "{what} of dims {dims:?} has more than {MAX_ELEMENTS} elements"
        )),
    }
}

/// Checks that a number lies in a range.
pub(super) fn check_range(
    what: &str,
    value: f64,
    range: impl std::ops::RangeBounds<f64> + std::fmt::Debug,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{what} must be in {range:?}, got {value}"))
}

/// The one input of a layer.
pub(super) fn one_input(inputs: &[Shape]) -> Result<&Shape, String> {
    match inputs {
        [input] if input.rank() == 0 => Err("expected a batch of examples, got a scalar".into()),
        [input] => Ok(input),
        _ => Err(format!("expected 1 input, got {}", inputs.len())),
    }
}

/// The one input of a layer, of floats.
pub(super) fn one_float(inputs: &[Shape]) -> Result<&Shape, String> {
    let input = one_input(inputs)?;
    if input.dtype.is_float() {
        return Ok(input);
    }
    Err(format!(
        "expected floats, got {input}; declare the input as f32 or put a rescaling layer first"
    ))
}

/// The one input of a layer: floats `[batch, height, width, channels]`.
pub(super) fn one_image(inputs: &[Shape]) -> Result<&Shape, String> {
    one_of_rank(inputs, 4, "images [batch, height, width, channels]")
}

/// The one input of a layer: `[batch, height, width, channels]` of any type of numbers, whose pixels an i32 can count.
pub(super) fn one_picture(inputs: &[Shape]) -> Result<&Shape, String> {
    let input = one_input(inputs)?;
    let images = "images [batch, height, width, channels]";
    if input.rank() != 4 {
        return Err(format!(
            "expected {images}, got {input}; reshape them first"
        ));
    }
    if input.dtype == DType::Bool {
        return Err(format!("expected {images} of numbers, got {input}"));
    }
    let pixels: usize = input.dims[..3].iter().product();
    match pixels <= MAX_SIZE {
        true => Ok(input),
        false => Err(format!(
            "expected {images} of at most {MAX_SIZE} pixels in all, got {input}; take smaller batches"
        )),
    }
}

/// The one input of a layer: floats `[batch, depth, height, width, channels]`.
pub(super) fn one_volume(inputs: &[Shape]) -> Result<&Shape, String> {
    one_of_rank(inputs, 5, "volumes [batch, depth, height, width, channels]")
}

/// The one input of a layer: floats of this rank, which are called `what`.
pub(super) fn one_of_rank<'a>(
    inputs: &'a [Shape],
    rank: usize,
    what: &str,
) -> Result<&'a Shape, String> {
    let input = one_float(inputs)?;
    if input.rank() == rank {
        return Ok(input);
    }
    Err(format!("expected {what}, got {input}; reshape them first"))
}

/// A dim counted from the end when negative, as an index into `rank` dims without the batch.
pub(super) fn feature_dim(axis: i64, rank: usize) -> Result<usize, String> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let index = if axis < 0 {
        axis.saturating_add(signed)
    } else {
        axis
    };
    match usize::try_from(index) {
        Ok(dim) if (1..rank).contains(&dim) => Ok(dim),
        _ => Err(format!(
            "axis {axis} is no dim of an example: the input has rank {rank} and dim 0 is the batch"
        )),
    }
}

/// JSON of an enum variant, where a name alone stands for the variant with default settings.
///
/// `what` is the enum in errors.
pub(super) fn named_variant<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: &str,
    variants: &[Component],
) -> Result<Value, D::Error> {
    let (name, settings) = match Value::deserialize(deserializer)? {
        Value::String(name) => (name, None),
        Value::Object(fields) if fields.len() == 1 => {
            let (name, settings) = fields.into_iter().next().unwrap_or_default();
            (name, Some(settings))
        }
        other => {
            let message =
                format!("{other} is no {what}: expected its name, or {{name: {{settings}}}}");
            return Err(D::Error::custom(message));
        }
    };
    let empty = settings.as_ref().is_none_or(is_empty);
    let variant = variants.iter().find(|variant| variant.name == name);
    let Some(variant) = variant else {
        let suggestion = suggest(&name, variants.iter().map(|variant| variant.name));
        let message = format!("unknown {what} `{name}`; {suggestion}");
        return Err(D::Error::custom(message));
    };
    if !variant.fields.is_empty() {
        let settings = settings.filter(|_| !empty).unwrap_or_else(|| json!({}));
        return Ok(json!({ name: settings }));
    }
    if empty {
        return Ok(Value::String(name));
    }
    Err(D::Error::custom(format!(
        "{what} `{name}` has no settings; write the name alone"
    )))
}

/// The variants of an enum that [`named_variant`] reads, with their defaults.
pub(super) fn described_variants<T: Serialize + DeserializeOwned>(
    variants: &[Component],
) -> Vec<Description> {
    let described = variants.iter().map(|variant| {
        let read: Option<T> = serde_json::from_value(json!(variant.name)).ok();
        let written = read.and_then(|value| serde_json::to_value(value).ok());
        let defaults = written.and_then(|value| value.get(variant.name).cloned());
        Description::new(variant, &[], &defaults.unwrap_or_default())
    });
    described.collect()
}

fn is_empty(settings: &Value) -> bool {
    settings.is_null() || settings.as_object().is_some_and(serde_json::Map::is_empty)
}
