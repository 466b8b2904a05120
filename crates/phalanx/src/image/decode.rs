//! Decoding of JPEG, PNG and WebP files to pixels.

use super::{Idct, corrupt, jpeg, png, webp};
use crate::{Error, Result};

/// The channels of a pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// Lightness only.
    Gray,
    /// Red, green and blue.
    #[default]
    Rgb,
}

impl Channels {
    /// Number of bytes per pixel.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb => 3,
        }
    }
}

/// How images are decoded, and the limits of what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderOptions {
    /// The channels of a pixel; alpha is dropped.
    pub channels: Channels,
    /// How the cosine transform of JPEG is computed.
    pub idct: Idct,
    /// The most pixels accepted; a larger image is an error before memory is allocated for it.
    pub max_pixels: usize,
    /// The most bytes of coefficients, which a JPEG in several scans (a progressive one) keeps until its last scan: 2 per
    /// sample. All scans together may visit coefficients of at most 16 times this size.
    pub max_coefficient_bytes: usize,
}

impl Default for DecoderOptions {
    /// RGB as TensorFlow decodes it, up to 2^26 pixels (8192 by 8192) and 2^28 bytes of coefficients.
    fn default() -> Self {
        Self {
            channels: Channels::Rgb,
            idct: Idct::Fast,
            max_pixels: 1 << 26,
            max_coefficient_bytes: 1 << 28,
        }
    }
}

/// A rectangle of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Columns left of it.
    pub x: usize,
    /// Rows above it.
    pub y: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// The pixels of an image: bytes, height by width by channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pixels {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Bytes of a pixel.
    pub channels: usize,
    /// The rows one after the other.
    pub bytes: Vec<u8>,
}

/// Decodes images one after the other with the same memory.
#[derive(Default)]
pub struct Decoder {
    options: DecoderOptions,
    jpeg: jpeg::Scratch,
}

/// An image whose size is known and whose pixels can be read.
pub struct OpenedImage<'a> {
    decoder: &'a mut Decoder,
    format: ImageFormat<'a>,
    height: usize,
    width: usize,
}

enum ImageFormat<'a> {
    Jpeg(jpeg::JpegImage<'a>),
    Png(Box<png::PngImage<'a>>),
    WebP(Box<webp::WebpImage<'a>>),
}

impl Decoder {
    /// A new decoder, with its own memory.
    #[must_use]
    pub fn new(options: DecoderOptions) -> Self {
        Self {
            options,
            jpeg: jpeg::Scratch::default(),
        }
    }

    /// All pixels of an image.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`OpenedImage::read`].
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Pixels> {
        let channels = self.options.channels.count();
        let image = self.open(bytes)?;
        let (height, width) = (image.height, image.width);
        let mut pixels = Vec::new();
        image.read(&Window::of(height, width), |y, row| {
            if y == 0 {
                pixels.reserve_exact(height * width * channels);
            }
            pixels.extend_from_slice(row);
        })?;
        Ok(Pixels {
            height,
            width,
            channels,
            bytes: pixels,
        })
    }

    /// Reads the header of a JPEG, PNG or WebP file; which it is, its first bytes say.
    ///
    /// # Errors
    /// [`Error::Data`] when it is none of them, its header is damaged, or it has more pixels than are accepted.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8]) -> Result<OpenedImage<'a>> {
        let most = self.options.max_pixels;
        let (format, (height, width)) = match bytes {
            [0xff, 0xd8, 0xff, ..] => {
                let opened = jpeg::JpegImage::new(bytes, &mut self.jpeg)?;
                let size = opened.size();
                (ImageFormat::Jpeg(opened), size)
            }
            [0x89, b'P', b'N', b'G', ..] => {
                let opened = png::PngImage::new(bytes, most)?;
                let size = opened.size();
                (ImageFormat::Png(Box::new(opened)), size)
            }
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => {
                let opened = webp::WebpImage::new(bytes, most)?;
                let size = opened.size();
                (ImageFormat::WebP(Box::new(opened)), size)
            }
            _ => {
                return Err(corrupt(
                    0,
                    "neither a JPEG nor a PNG nor a WebP file; convert it to one of them",
                ));
            }
        };
        if height.saturating_mul(width) > most {
            return Err(too_large(height, width, most));
        }
        Ok(OpenedImage {
            decoder: self,
            format,
            height,
            width,
        })
    }
}

pub(super) fn too_large(height: usize, width: usize, most: usize) -> Error {
    let message = format!(
        "the image has {height} x {width} pixels, the most accepted is {most}; scale it down, or raise max_pixels"
    );
    corrupt(0, &message)
}

impl OpenedImage<'_> {
    /// Rows of the image.
    #[must_use]
    pub const fn height(&self) -> usize {
        self.height
    }

    /// Columns of the image.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Gives each row of the window from its top, with its index; of a JPEG only what the window needs is decoded.
    ///
    /// # Errors
    /// [`Error::Data`] when the file is damaged where the window needs it, [`Error::User`] when the window is empty or
    /// reaches beyond the image.
    pub fn read(self, window: &Window, mut row: impl FnMut(usize, &[u8])) -> Result<()> {
        window.check(self.height, self.width)?;
        let options = &self.decoder.options;
        let channels = options.channels.count();
        match self.format {
            ImageFormat::Jpeg(jpeg) => jpeg.read(&mut self.decoder.jpeg, options, window, &mut row),
            ImageFormat::Png(png) => {
                let (samples, kind) = png.read()?;
                give(&samples, (kind, channels), self.width, window, &mut row);
                Ok(())
            }
            ImageFormat::WebP(webp) => {
                let (samples, kind) = webp.read()?;
                give(&samples, (kind, channels), self.width, window, &mut row);
                Ok(())
            }
        }
    }
}

impl Window {
    /// All of an image.
    #[must_use]
    pub const fn of(height: usize, width: usize) -> Self {
        Self {
            x: 0,
            y: 0,
            width,
            height,
        }
    }

    fn check(&self, height: usize, width: usize) -> Result<()> {
        let inside = self.x.saturating_add(self.width) <= width
            && self.y.saturating_add(self.height) <= height;
        if inside && self.width > 0 && self.height > 0 {
            return Ok(());
        }
        Err(Error::User(format!(
            "the window of {} x {} pixels at row {}, column {} is not inside the image of {height} x {width}; \
             choose a smaller one, or resize first",
            self.height, self.width, self.y, self.x
        )))
    }
}

/// Gives the rows of a window of decoded samples, `from` a pixel made `to`.
fn give(
    samples: &[u8],
    (from, to): (usize, usize),
    width: usize,
    window: &Window,
    rows: &mut dyn FnMut(usize, &[u8]),
) {
    let mut out = Vec::with_capacity(window.width * to);
    for y in 0..window.height {
        let start = ((window.y + y) * width + window.x) * from;
        let row = &samples[start..start + window.width * from];
        if from == to {
            rows(y, row);
            continue;
        }
        out.clear();
        for pixel in row.chunks_exact(from) {
            match (from < 3, to) {
                (true, 1) => out.push(pixel[0]),
                (true, _) => out.extend([pixel[0]; 3]),
                (false, 1) => out.push(lightness(pixel)),
                (false, _) => out.extend_from_slice(&pixel[..3]),
            }
        }
        rows(y, &out);
    }
}

/// The lightness of red, green and blue as libjpeg computes it: 0.299, 0.587 and 0.114 in 16 bits after the point.
pub(super) fn lightness(pixel: &[u8]) -> u8 {
    let of = |channel: usize, factor: u32| factor * u32::from(pixel[channel]);
    ((of(0, 19595) + of(1, 38470) + of(2, 7471) + 32768) >> 16) as u8
}
