//! The image pipeline: decode, crop, resize, augment and scale, from the bytes of a file to a row of a batch.

use phalanx_kernels::{WideWork, with_wide_vectors};

use super::colour::{adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation};
use super::resize::Resizer;
use super::rng::Rng;
use super::rotation::{Fill, rotate};
use super::{Decoder, DecoderOptions, Window};
use crate::{Error, Result};

/// The part of an image that is used, before it is resized.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Region {
    /// The whole image; its aspect ratio is not kept.
    #[default]
    Whole,
    /// The largest centred part with the aspect ratio of the output.
    Centre,
    /// A random part of exactly the output size; where the image is smaller than that, a random part as large as fits with the
    /// aspect ratio of the output, resized.
    Crop,
    /// As `Crop`, but centred.
    CentreCrop,
    /// A random part, resized (similar to torchvision's `RandomResizedCrop`): its area is a random share, from `least` to 1, of the largest
    /// part with the aspect ratio of the output, and its own aspect ratio is 3/4 to 4/3 of that ratio, clipped to the image.
    Area {
        /// The smallest share of the area.
        least: f32,
    },
}

/// How a byte `v` becomes a number, at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Scale {
    /// `v / 255`.
    #[default]
    Unit,
    /// `v / 127.5 - 1`.
    Signed,
    /// `v`.
    Bytes,
    /// `(v / 255 - mean) / std`, per channel.
    Standard {
        /// Mean of each channel.
        mean: [f32; 3],
        /// Standard deviation of each channel.
        std: [f32; 3],
    },
}

/// How images become examples of one size; all randomness is drawn from a key per example.
///
/// The order is fixed: region, resizing, flip, brightness, contrast, saturation, hue, rotation, scale. Colours are changed on
/// numbers from 0 to 1 and, as in `tf.image`, not clipped.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePipeline {
    /// Rows and columns of every example.
    pub size: (usize, usize),
    /// The part of an image that is used.
    pub region: Region,
    /// Whether downscaling smooths (`antialias` of `tf.image.resize`).
    pub antialias: bool,
    /// Whether a random half of the images is mirrored left to right.
    pub flip: bool,
    /// The most that is added to or subtracted from all values (`tf.image.random_brightness`).
    pub brightness: f32,
    /// The contrast is a factor from 1 - this to 1 + this.
    pub contrast: f32,
    /// The saturation is a factor from 1 - this to 1 + this; for colour images only.
    pub saturation: f32,
    /// Hues move by up to this share of the colour circle (`tf.image.random_hue`); for colour images only.
    pub hue: f32,
    /// The image is rotated by up to this angle in either direction, in radians.
    pub rotation: f32,
    /// What fills the corners of a rotated image.
    pub fill: Fill,
    /// How bytes become numbers, at the end.
    pub scale: Scale,
    /// How images are decoded.
    pub decoder: DecoderOptions,
}

impl ImagePipeline {
    /// The whole of every image resized with smoothing, from 0 to 1, without augmentation.
    #[must_use]
    pub fn new(height: usize, width: usize) -> Self {
        Self {
            size: (height, width),
            region: Region::Whole,
            antialias: true,
            flip: false,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            rotation: 0.0,
            fill: Fill::Reflect,
            scale: Scale::Unit,
            decoder: DecoderOptions::default(),
        }
    }

    /// Dims of an example: height, width, channels.
    #[must_use]
    pub const fn dims(&self) -> [usize; 3] {
        [self.size.0, self.size.1, self.decoder.channels.count()]
    }

    /// The same without randomness, for validation: a random region becomes the centre.
    #[must_use]
    pub fn without_augmentation(&self) -> Self {
        let region = match self.region {
            Region::Whole => Region::Whole,
            Region::Crop | Region::CentreCrop => Region::CentreCrop,
            Region::Centre | Region::Area { .. } => Region::Centre,
        };
        Self {
            region,
            antialias: self.antialias,
            scale: self.scale,
            decoder: self.decoder.clone(),
            ..Self::new(self.size.0, self.size.1)
        }
    }

    /// # Errors
    /// [`Error::User`] when a number makes no sense.
    pub fn check(&self) -> Result<()> {
        let shares = [
            ("contrast", self.contrast, 1.0),
            ("saturation", self.saturation, 1.0),
            ("hue", self.hue, 0.5),
            ("brightness", self.brightness, 1.0),
            ("rotation", self.rotation, 7.0),
        ];
        for (name, value, most) in shares {
            if !(0.0..=most).contains(&value) {
                return Err(Error::User(format!(
                    "{name} is {value}; expected a number from 0 to {most}"
                )));
            }
        }
        if let Region::Area { least } = self.region
            && !(least > 0.0 && least <= 1.0)
        {
            return Err(Error::User(format!(
                "the least share of the area is {least}; expected a number above 0, up to 1"
            )));
        }
        if let Scale::Standard { mean, std } = self.scale
            && !(mean.iter().all(|mean| mean.is_finite())
                && std.iter().all(|std| std.is_finite() && *std > 0.0))
        {
            return Err(Error::User(format!(
                "the mean is {mean:?} and the deviation {std:?}; expected finite numbers, deviations above 0"
            )));
        }
        let (height, width) = self.size;
        if height == 0 || width == 0 || height.saturating_mul(width) > self.decoder.max_pixels {
            return Err(Error::User(format!(
                "the image size is {height} x {width}; expected 1 to {} pixels",
                self.decoder.max_pixels
            )));
        }
        Ok(())
    }

    fn changes_values(&self) -> bool {
        self.brightness + self.contrast + self.saturation + self.hue + self.rotation > 0.0
    }
}

/// Runs a pipeline on one image after another, reusing its memory.
pub struct ImageProcessor {
    decoder: Decoder,
    pixels: Vec<f32>,
}

impl ImageProcessor {
    /// A processor for a pipeline.
    #[must_use]
    pub fn new(pipeline: &ImagePipeline) -> Self {
        Self {
            decoder: Decoder::new(pipeline.decoder.clone()),
            pixels: Vec::new(),
        }
    }

    /// Writes the f32 values of an example to `out`, which has 4 bytes per number of [`ImagePipeline::dims`].
    ///
    /// # Errors
    /// As [`Decoder::open`] and [`OpenedImage::read`](super::OpenedImage::read).
    pub fn make(
        &mut self,
        pipeline: &ImagePipeline,
        bytes: &[u8],
        key: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let mut rng = Rng::new(key);
        let image = self.decoder.open(bytes)?;
        let window = window(pipeline, (image.height(), image.width()), &mut rng);
        let flip = pipeline.flip && rng.below(2) == 1;
        let channels = pipeline.decoder.channels.count();
        let scale = Factors::new(pipeline.scale, channels);
        let stride = pipeline.size.1 * channels;
        if (window.height, window.width) == pipeline.size && !pipeline.changes_values() {
            let mut turned = Vec::new();
            return image.read(&window, |y, row| {
                let out = &mut out[y * stride * 4..][..stride * 4];
                if flip {
                    mirror(row, channels, &mut turned);
                    scale.write(&turned, out);
                } else {
                    scale.write(row, out);
                }
            });
        }
        self.pixels.clear();
        self.pixels.resize(pipeline.size.0 * stride, 0.0);
        let from = (window.height, window.width);
        let mut resizer = Resizer::new(from, pipeline.size, channels, pipeline.antialias);
        let pixels = &mut self.pixels;
        image.read(&window, |y, row| resizer.add(y, row, pixels))?;
        if flip {
            for row in pixels.chunks_exact_mut(stride) {
                row.reverse();
                row.chunks_exact_mut(channels).for_each(<[f32]>::reverse);
            }
        }
        if pipeline.changes_values() {
            change_values(pipeline, pixels, channels, &mut rng);
        }
        scale.write(pixels.as_slice(), out);
        Ok(())
    }
}

fn mirror(row: &[u8], channels: usize, out: &mut Vec<u8>) {
    out.resize(row.len(), 0);
    if channels == 3 {
        let pixels = row.as_chunks::<3>().0.iter().rev();
        let out = out.as_chunks_mut::<3>().0;
        out.iter_mut()
            .zip(pixels)
            .for_each(|(out, pixel)| *out = *pixel);
    } else {
        out.iter_mut()
            .zip(row.iter().rev())
            .for_each(|(out, value)| *out = *value);
    }
}

fn change_values(pipeline: &ImagePipeline, pixels: &mut Vec<f32>, channels: usize, rng: &mut Rng) {
    pixels.iter_mut().for_each(|value| *value /= 255.0);
    if pipeline.brightness > 0.0 {
        adjust_brightness(
            pixels,
            rng.between(-pipeline.brightness, pipeline.brightness),
        );
    }
    if pipeline.contrast > 0.0 {
        adjust_contrast(
            pixels,
            channels,
            rng.between(1.0 - pipeline.contrast, 1.0 + pipeline.contrast),
        );
    }
    if pipeline.saturation > 0.0 && channels == 3 {
        adjust_saturation(
            pixels,
            rng.between(1.0 - pipeline.saturation, 1.0 + pipeline.saturation),
        );
    }
    if pipeline.hue > 0.0 && channels == 3 {
        adjust_hue(pixels, rng.between(-pipeline.hue, pipeline.hue));
    }
    if pipeline.rotation > 0.0 {
        let angle = rng.between(-pipeline.rotation, pipeline.rotation);
        *pixels = rotate(pixels, pipeline.size, angle, pipeline.fill);
    }
    pixels.iter_mut().for_each(|value| *value *= 255.0);
}

fn window(pipeline: &ImagePipeline, (height, width): (usize, usize), rng: &mut Rng) -> Window {
    let (rows, columns) = pipeline.size;
    // The largest part with the shape wanted.
    let shaped = |height: usize, width: usize| {
        let by_height = (height * columns).div_ceil(rows).max(1);
        if by_height <= width {
            (height, by_height)
        } else {
            (((width * rows).div_ceil(columns)).clamp(1, height), width)
        }
    };
    let (h, w) = match pipeline.region {
        Region::Whole => return Window::of(height, width),
        Region::Crop | Region::CentreCrop if height >= rows && width >= columns => pipeline.size,
        Region::Crop | Region::CentreCrop | Region::Centre => shaped(height, width),
        Region::Area { least } => {
            let share = rng.between(least, 1.0);
            let shape = rng
                .between((0.75f32).ln(), (4.0f32 / 3.0).ln())
                .exp()
                .sqrt();
            let (h, w) = shaped(height, width);
            let side = |size: usize, factor: f32, most: usize| {
                ((size as f32 * share.sqrt() * factor).round() as usize).clamp(1, most)
            };
            (side(h, 1.0 / shape, height), side(w, shape, width))
        }
    };
    let (x, y) = match pipeline.region {
        Region::Centre | Region::CentreCrop => ((width - w) / 2, (height - h) / 2),
        _ => (rng.below(width - w + 1), rng.below(height - h + 1)),
    };
    Window {
        x,
        y,
        width: w,
        height: h,
    }
}

/// Values written at once: a whole number of pixels and of vectors.
const SPAN: usize = 24;

/// Numbers that values are multiplied with and that are added, by place in a span.
struct Factors {
    times: [f32; SPAN],
    plus: [f32; SPAN],
}

/// The work of [`Factors::write`].
struct Write<'a, T> {
    factors: &'a Factors,
    values: &'a [T],
    out: &'a mut [u8],
}

impl<T: Copy + Into<f32>> WideWork for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Factors { times, plus } = self.factors;
        let (spans, rest) = self.values.as_chunks::<SPAN>();
        let out = self.out.as_chunks_mut::<4>().0;
        let (out_spans, out_rest) = out.as_chunks_mut::<SPAN>();
        for (out, span) in out_spans.iter_mut().zip(spans) {
            for i in 0..SPAN {
                out[i] = (span[i].into() * times[i] + plus[i]).to_le_bytes();
            }
        }
        for (i, (out, &value)) in out_rest.iter_mut().zip(rest).enumerate() {
            *out = (value.into() * times[i] + plus[i]).to_le_bytes();
        }
    }
}

impl Factors {
    fn new(scale: Scale, channels: usize) -> Self {
        let (times, plus) = match scale {
            Scale::Unit => ([1.0 / 255.0; 3], [0.0; 3]),
            Scale::Signed => ([1.0 / 127.5; 3], [-1.0; 3]),
            Scale::Bytes => ([1.0; 3], [0.0; 3]),
            Scale::Standard { mean, std } => (
                std.map(|std| 1.0 / (255.0 * std)),
                std::array::from_fn(|c| -mean[c] / std[c]),
            ),
        };
        Self {
            times: std::array::from_fn(|i| times[i % channels]),
            plus: std::array::from_fn(|i| plus[i % channels]),
        }
    }

    /// Writes all pixels of `values`.
    fn write<T: Copy + Into<f32>>(&self, values: &[T], out: &mut [u8]) {
        with_wide_vectors(Write {
            factors: self,
            values,
            out,
        });
    }
}

/// Resizes pixels with the numbers of `tf.image.resize`; from 0 to 255, height by width by channel.
#[must_use]
pub fn resize(pixels: &super::Pixels, height: usize, width: usize, antialias: bool) -> Vec<f32> {
    let mut out = vec![0.0; height * width * pixels.channels];
    let from = (pixels.height, pixels.width);
    let mut resizer = Resizer::new(from, (height, width), pixels.channels, antialias);
    let rows = pixels
        .bytes
        .chunks_exact((pixels.width * pixels.channels).max(1));
    rows.enumerate()
        .for_each(|(y, row)| resizer.add(y, row, &mut out));
    out
}
