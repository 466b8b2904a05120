//! Images as the PNG files that TensorBoard shows.

use crate::SummaryError;

/// An image of 8 bits a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    png: Vec<u8>,
}

impl Image {
    /// An image of rows of pixels of 1 (grey), 3 (RGB) or 4 (RGBA) channels.
    ///
    /// # Errors
    /// [`SummaryError::Image`]: other channels, no pixel, or another number of bytes.
    pub fn new(
        width: u32,
        height: u32,
        channels: usize,
        pixels: &[u8],
    ) -> Result<Self, SummaryError> {
        let color = match channels {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            4 => png::ColorType::Rgba,
            _ => {
                return Err(SummaryError::Image(format!(
                    "an image has {channels} channels; expected 1, 3 or 4"
                )));
            }
        };
        let refused = |error: png::EncodingError| {
            SummaryError::Image(format!(
                "an image of {width} x {height} pixels with {channels} channels of {} bytes cannot be encoded: {error}",
                pixels.len()
            ))
        };
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, width, height);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(refused)?;
        writer.write_image_data(pixels).map_err(refused)?;
        writer.finish().map_err(refused)?;
        Ok(Self { width, height, png })
    }

    /// An image of numbers from 0 to 1 as `tf.summary.image` makes it: what is less is black, what is more white.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_numbers(
        width: u32,
        height: u32,
        channels: usize,
        numbers: &[f32],
    ) -> Result<Self, SummaryError> {
        // `tf.image.convert_image_dtype`: 255.5 times, cut off; what is not a number becomes 0.
        let pixels: Vec<u8> = numbers.iter().map(|x| (x * 255.5) as u8).collect();
        Self::new(width, height, channels, &pixels)
    }

    /// Its width and height in pixels.
    #[must_use]
    pub const fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The bytes of the PNG file.
    #[must_use]
    pub fn png(&self) -> &[u8] {
        &self.png
    }
}
