//! PNG, by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, Decoder, Limits, Reader, Transformations};

use super::corrupt;
use super::decode::too_large;
use crate::{Error, Result};

/// A file read up to its pixels.
pub(super) struct PngImage<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    /// Bytes of the file.
    len: usize,
}

impl<'a> PngImage<'a> {
    pub(super) fn new(bytes: &'a [u8], max_pixels: usize) -> Result<Self> {
        Self::opened(bytes, max_pixels, Transformations::STRIP_16)
    }

    fn opened(bytes: &'a [u8], max_pixels: usize, more: Transformations) -> Result<Self> {
        // Beside the pixels, of at most 8 bytes, there are texts and colour profiles, which are left out.
        let limits = Limits {
            bytes: max_pixels.saturating_mul(8).saturating_add(1 << 20),
        };
        let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.set_transformations(Transformations::EXPAND | more);
        let reader = decoder.read_info().map_err(|error| refused(&error))?;
        let len = bytes.len();
        Ok(Self { reader, len })
    }

    /// Height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        let info = self.reader.info();
        (info.height as usize, info.width as usize)
    }

    /// The samples of all pixels, and how many a pixel has.
    pub(super) fn read(mut self) -> Result<(Vec<u8>, usize)> {
        let channels = self.reader.output_color_type().0.samples();
        // Nothing compressed with deflate becomes more than 1032 times as long.
        let info = self.reader.info();
        let raw = info.raw_row_length().saturating_mul(info.height as usize);
        if raw / 1032 > self.len {
            return Err(corrupt(
                0,
                "the PNG file is too short for its picture; get the whole file",
            ));
        }
        let Some(size) = self.reader.output_buffer_size() else {
            return Err(corrupt(
                0,
                "the image does not fit into memory; scale it down",
            ));
        };
        let mut samples = vec![0; size];
        self.reader
            .next_frame(&mut samples)
            .map_err(|error| refused(&error))?;
        Ok((samples, channels))
    }
}

/// Rows, columns and channels of a file, and its samples in 16 bits; fewer bits are spread over the range, as TensorFlow does.
pub(crate) fn decode_png_16(bytes: &[u8], max_pixels: usize) -> Result<([usize; 3], Vec<u16>)> {
    let png = PngImage::opened(bytes, max_pixels, Transformations::IDENTITY)?;
    let (rows, columns) = png.size();
    if rows.saturating_mul(columns) > max_pixels {
        return Err(too_large(rows, columns, max_pixels));
    }
    let is_wide = png.reader.output_color_type().1 == BitDepth::Sixteen;
    let (samples, channels) = png.read()?;
    let samples = match is_wide {
        true => samples
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(u16::from_be_bytes)
            .collect(),
        false => samples
            .into_iter()
            .map(|sample| u16::from(sample) * 257)
            .collect(),
    };
    Ok(([rows, columns, channels], samples))
}

fn refused(error: &png::DecodingError) -> Error {
    corrupt(
        0,
        &format!("the PNG file is damaged: {error}; get it again"),
    )
}
