//! WebP, by the `image-webp` crate.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::corrupt;
use crate::{Error, Result};

/// A file read up to its pixels.
pub(super) struct WebpImage<'a> {
    decoder: WebPDecoder<Cursor<&'a [u8]>>,
}

impl<'a> WebpImage<'a> {
    pub(super) fn new(bytes: &'a [u8], max_pixels: usize) -> Result<Self> {
        let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| refused(&error))?;
        decoder.set_memory_limit(max_pixels.saturating_mul(4));
        Ok(Self { decoder })
    }

    /// Height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        let (width, height) = self.decoder.dimensions();
        (height as usize, width as usize)
    }

    /// The samples of all pixels, and how many a pixel has; of an animation the first picture.
    pub(super) fn read(mut self) -> Result<(Vec<u8>, usize)> {
        let channels = if self.decoder.has_alpha() { 4 } else { 3 };
        let Some(size) = self.decoder.output_buffer_size() else {
            return Err(corrupt(
                0,
                "the image does not fit into memory; scale it down",
            ));
        };
        let mut samples = vec![0; size];
        self.decoder
            .read_image(&mut samples)
            .map_err(|error| refused(&error))?;
        Ok((samples, channels))
    }
}

fn refused(error: &image_webp::DecodingError) -> Error {
    corrupt(
        0,
        &format!("the WebP file is damaged: {error}; get it again"),
    )
}
