//! Arguments of layers: pairs, paddings, and the checks that keep sizes sane before any shape is computed.

use phalanx_graph::Shape;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::fields;
use crate::config::{Component, Description, Field, suggest};

/// Largest value of one size: what a PJRT plugin indexes with 32 bits.
const MAX_SIZE: usize = i32::MAX as usize;
/// Largest number of dims of a tensor.
const MAX_RANK: usize = 16;
/// Largest number of elements of a tensor; twice its square still fits 64 bits in no computation of ours.
const MAX_ELEMENTS: usize = 1 << 40;

/// Height and width, equal when given as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub usize, pub usize);

impl Pair {
    /// Checks that both sizes are positive and sane.
    pub(super) fn check(self, what: &str) -> Result<(), String> {
        check_size(what, self.0)?;
        check_size(what, self.1)
    }

    pub(super) const fn array(self) -> [usize; 2] {
        [self.0, self.1]
    }
}

impl From<usize> for Pair {
    fn from(both: usize) -> Self {
        Self(both, both)
    }
}

impl From<[usize; 2]> for Pair {
    fn from([height, width]: [usize; 2]) -> Self {
        Self(height, width)
    }
}

impl From<(usize, usize)> for Pair {
    fn from((height, width): (usize, usize)) -> Self {
        Self(height, width)
    }
}

/// One number or two, as JSON writes a [`Pair`].
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number or two: 3 or [3, 3]")]
enum PairForm {
    Both(usize),
    Each([usize; 2]),
}

impl From<PairForm> for Pair {
    fn from(form: PairForm) -> Self {
        match form {
            PairForm::Both(size) => size.into(),
            PairForm::Each(sizes) => sizes.into(),
        }
    }
}

impl Serialize for Pair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.array().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PairForm::deserialize(deserializer).map(Self::from)
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

/// A window that slides over height and width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SlidingWindow {
    #[serde(rename = "kernel_size")]
    pub(super) size: Pair,
    pub(super) strides: Pair,
    pub(super) padding: Padding,
    #[serde(rename = "dilation_rate")]
    pub(super) dilation: Pair,
}

impl SlidingWindow {
    /// The settings of a convolution's window.
    pub(super) const FIELDS: &[Field] = &[
        fields::KERNEL_SIZE,
        fields::STRIDES,
        fields::PADDING,
        fields::DILATION_RATE,
    ];

    /// Windows of a size that move by 1 and stay inside the image, as Keras' convolutions have them by default.
    pub(super) const fn new(size: Pair) -> Self {
        Self {
            size,
            strides: Pair(1, 1),
            padding: Padding::Valid,
            dilation: Pair(1, 1),
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

    /// Checks that a window fits images `[batch, height, width, channels]`.
    pub(super) fn check_fits(self, image: &Shape) -> Result<(), String> {
        let [height, width] = self.spans();
        let (rows, columns) = (image.dims[1], image.dims[2]);
        if self.padding == Padding::Same || (height <= rows && width <= columns) {
            return Ok(());
        }
        Err(format!(
            "a window of {height} by {width} does not fit images of {rows} by {columns}; use `padding` same or a smaller window"
        ))
    }

    /// Elements added before and after height and width of images of these dims.
    pub(super) fn padding(self, image: &[usize]) -> [(usize, usize); 2] {
        let (spans, strides) = (self.spans(), self.strides.array());
        [0, 1].map(|i| self.padding.amounts(image[i + 1], spans[i], strides[i]))
    }

    /// Elements between the first and the last of a window, ends included.
    pub(super) fn spans(self) -> [usize; 2] {
        let span = |size: usize, dilation: usize| {
            size.saturating_sub(1)
                .saturating_mul(dilation)
                .saturating_add(1)
        };
        [
            span(self.size.0, self.dilation.0),
            span(self.size.1, self.dilation.1),
        ]
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
    let input = one_float(inputs)?;
    if input.rank() == 4 {
        return Ok(input);
    }
    Err(format!(
        "expected images [batch, height, width, channels], got {input}; reshape them first"
    ))
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
