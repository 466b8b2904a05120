//! Layers without variables that bring raw values into the range a model was made for.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::sizes::{check_range, one_input};
use crate::config::{self, Component, Described, Field, Kind};
use crate::{Error, Result};

/// A number for all channels, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, or a list of one for each channel"
)]
pub enum PerChannel {
    /// The same for all.
    All(f64),
    /// One for each element of the last dim.
    Each(Vec<f64>),
}

impl From<f64> for PerChannel {
    fn from(all: f64) -> Self {
        Self::All(all)
    }
}

impl<const N: usize> From<[f64; N]> for PerChannel {
    fn from(each: [f64; N]) -> Self {
        Self::Each(each.into())
    }
}

impl From<Vec<f64>> for PerChannel {
    fn from(each: Vec<f64>) -> Self {
        Self::Each(each)
    }
}

impl PerChannel {
    fn values(&self) -> &[f64] {
        match self {
            Self::All(all) => std::slice::from_ref(all),
            Self::Each(each) => each,
        }
    }

    fn check(&self, field: &str) -> std::result::Result<(), String> {
        if self.values().is_empty() {
            return Err(format!(
                "`{field}` must have a number for each channel, got none"
            ));
        }
        let field = format!("`{field}`");
        let mut values = self.values().iter();
        values.try_for_each(|&value| check_range(&field, value, f64::MIN..=f64::MAX))
    }

    fn check_fits(&self, field: &str, input: &Shape) -> std::result::Result<(), String> {
        let channels = input.dims[input.rank() - 1];
        match self {
            Self::Each(each) if input.rank() < 2 || each.len() != channels => Err(format!(
                "`{field}` has {} numbers, expected one for each channel of {input}, or one for all",
                each.len()
            )),
            _ => Ok(()),
        }
    }

    /// As a tensor that broadcasts over `x`.
    #[track_caller]
    fn tensor(&self, x: &Tensor) -> Tensor {
        match self {
            Self::All(all) => x.like(*all),
            Self::Each(each) => {
                let each: Vec<f32> = each.iter().map(|&value| value as f32).collect();
                let each = HostTensor::new([each.len()], &each);
                x.graph().constant(each.convert(x.dtype()))
            }
        }
    }
}

/// `x scale + offset`, as f32 when the input is of integers; kind `rescaling`.
///
/// Each is one number, or a list with one for each channel (element of the last dim).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rescaling {
    scale: PerChannel,
    offset: PerChannel,
}

impl Rescaling {
    /// Multiplies by a number, or by one per channel: 1/255 for bytes.
    #[must_use]
    pub fn new(scale: impl Into<PerChannel>) -> Self {
        Self {
            scale: scale.into(),
            offset: PerChannel::All(0.0),
        }
    }

    /// Sets what is added afterwards, 0 by default.
    #[must_use]
    pub fn offset(mut self, offset: impl Into<PerChannel>) -> Self {
        self.offset = offset.into();
        self
    }
}

/// A [`PerChannel`].
const PER_CHANNEL: Kind = Kind::Worded(
    "a number, or a list of one for each channel",
    &Kind::Either(&[Kind::REAL, Kind::List(&Kind::REAL, 1, usize::MAX)]),
);

impl Described for Rescaling {
    const COMPONENT: Component = Component {
        name: "rescaling",
        doc: "multiplies by a number and adds another",
        fields: &[
            Field::required("scale", PER_CHANNEL, "what the input is multiplied by")
                .example("0.00392157"),
            Field::optional("offset", PER_CHANNEL, "what is added afterwards"),
        ],
    };
}

impl Layer for Rescaling {
    fn kind(&self) -> &'static str {
        "rescaling"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> std::result::Result<(), String> {
        self.scale.check("scale")?;
        self.offset.check("offset")
    }

    fn check(&self, inputs: &[Shape]) -> std::result::Result<(), String> {
        let input = one_input(inputs)?;
        self.scale.check_fits("scale", input)?;
        self.offset.check_fits("offset", input)
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = as_float(&inputs[0]);
        let scaled = &x * self.scale.tensor(&x);
        if self.offset == PerChannel::All(0.0) {
            return scaled;
        }
        scaled + self.offset.tensor(&x)
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// What Keras' applications do to images first, as a layer or on the host; kind `preprocess`.
///
/// Images are `[batch, height, width, 3]`, red first, from 0 to 255, of any element type; what comes out is f32, or of
/// the input's type where that is one of floats. The formulas and their order follow Keras' `imagenet_utils`.
///
/// ```
/// use phalanx::models::MobileNetV2;
/// use phalanx::nn::{Input, Preprocess, Sequential};
/// use phalanx_graph::DType;
///
/// let net = MobileNetV2::new().input([32, 32, 3]).build()?;
/// let bytes = Input::new([32, 32, 3]).dtype(DType::U8);
/// let model = Sequential::new(bytes).add(Preprocess::tf()).add(net).build()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocess {
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Caffe,
    Tf,
    Torch,
}

/// Means of blue, green and red of ImageNet, from 0 to 255.
const CAFFE_MEAN: [f64; 3] = [103.939, 116.779, 123.68];
/// Means and deviations of red, green and blue of ImageNet, from 0 to 1.
const TORCH_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const TORCH_DEVIATION: [f64; 3] = [0.229, 0.224, 0.225];

impl Preprocess {
    /// Blue first, ImageNet's mean subtracted, not scaled: for ResNet-50 of Keras.
    #[must_use]
    pub const fn caffe() -> Self {
        Self { mode: Mode::Caffe }
    }

    /// `x / 127.5 - 1`: for MobileNetV2 of Keras.
    #[must_use]
    pub const fn tf() -> Self {
        Self { mode: Mode::Tf }
    }

    /// `(x / 255 - mean) / deviation` with ImageNet's of each channel: for the models of torchvision.
    #[must_use]
    pub const fn torch() -> Self {
        Self { mode: Mode::Torch }
    }

    /// The same on the host, as f32: of one image `[height, width, 3]`, or of several.
    ///
    /// # Errors
    /// When the last dim is not 3.
    pub fn apply(&self, images: &HostTensor) -> Result<HostTensor> {
        let dims = images.dims();
        if dims.len() < 2 || dims.last() != Some(&3) {
            return Err(Error::user(format!(
                "preprocess takes images [.., height, width, 3], got {}",
                images.shape()
            )));
        }
        let mut values = images.convert(DType::F32).f32s();
        for pixel in values.as_chunks_mut::<3>().0 {
            self.pixel(pixel);
        }
        Ok(HostTensor::new(dims, &values))
    }

    /// Scale and offset of each channel, where it is no more than these.
    pub(super) fn scale_and_offset(self) -> Option<([f64; 3], [f64; 3])> {
        match self.mode {
            Mode::Caffe => None,
            Mode::Tf => Some(([1.0 / 127.5; 3], [-1.0; 3])),
            Mode::Torch => {
                let scale = TORCH_DEVIATION.map(|deviation| 1.0 / 255.0 / deviation);
                let offset = [0, 1, 2].map(|i| -TORCH_MEAN[i] / TORCH_DEVIATION[i]);
                Some((scale, offset))
            }
        }
    }

    fn pixel(self, pixel: &mut [f32; 3]) {
        if self.mode == Mode::Caffe {
            pixel.reverse();
        }
        for (channel, x) in pixel.iter_mut().enumerate() {
            *x = match self.mode {
                Mode::Caffe => *x - CAFFE_MEAN[channel] as f32,
                Mode::Tf => *x / 127.5 - 1.0,
                Mode::Torch => {
                    (*x / 255.0 - TORCH_MEAN[channel] as f32) / TORCH_DEVIATION[channel] as f32
                }
            };
        }
    }
}

impl Described for Preprocess {
    const COMPONENT: Component = Component {
        name: "preprocess",
        doc: "prepares images, bytes from 0 to 255, as a published model expects them",
        fields: &[
            Field::required("mode", Kind::OneOf(&["caffe", "tf", "torch"]), "whose convention; `tf`: from -1 to 1; `torch`: 0 to 1, then normalized by ImageNet's mean and deviation; `caffe`: blue first, less ImageNet's mean").example("tf"),
        ],
    };
}

impl Layer for Preprocess {
    fn kind(&self) -> &'static str {
        "preprocess"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Raw values are not rounded before the mean is taken away.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check(&self, inputs: &[Shape]) -> std::result::Result<(), String> {
        let input = one_input(inputs)?;
        if input.rank() >= 2 && input.dims.last() == Some(&3) {
            return Ok(());
        }
        Err(format!("expected images of 3 channels, got {input}"))
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = as_float(&inputs[0]);
        let each = |values: [f64; 3]| PerChannel::from(values).tensor(&x);
        match self.mode {
            Mode::Caffe => x.reverse(&[x.rank() - 1]) - each(CAFFE_MEAN),
            Mode::Tf => &x / 127.5 - 1.0,
            Mode::Torch => (&x / 255.0 - each(TORCH_MEAN)) / each(TORCH_DEVIATION),
        }
    }
}

/// Integers as f32.
pub(super) fn as_float(x: &Tensor) -> Tensor {
    match x.dtype().is_float() {
        true => x.clone(),
        false => x.convert(DType::F32),
    }
}
