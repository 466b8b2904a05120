//! WebP, by the `image-webp` crate.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image_webp::{DecodingError, WebPDecoder};

use super::corrupt;
use crate::{Error, Result};

/// A file read up to its pixels.
pub(super) struct WebpImage<'a> {
    decoder: WebPDecoder<Cursor<&'a [u8]>>,
}

impl<'a> WebpImage<'a> {
    pub(super) fn new(bytes: &'a [u8], max_pixels: usize) -> Result<Self> {
        let mut decoder = decoded(|| WebPDecoder::new(Cursor::new(bytes)))?;
        decoder.set_memory_limit(max_pixels.saturating_mul(4));
        if let Some((picture, announced)) = differing_sizes(bytes, &decoder) {
            let [(width, height), (w, h)] = [picture, announced];
            let message =
                format!("its picture has {height} x {width} pixels, and it announces {h} x {w}");
            return Err(damaged(&message));
        }
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
        decoded(|| self.decoder.read_image(&mut samples))?;
        Ok((samples, channels))
    }
}

/// Width and height of the lossy picture, and what the file or its first frame announces, where they differ. The decoder takes memory for the first before it
/// compares them, and where there is alpha in an animation it never does.
fn differing_sizes(
    bytes: &[u8],
    decoder: &WebPDecoder<Cursor<&[u8]>>,
) -> Option<((u32, u32), (u32, u32))> {
    let mut all = chunks(bytes.get(12..)?);
    let (lossy, announced) = if decoder.is_animated() {
        let (_, frame) = all.find(|(name, _)| *name == b"ANMF")?;
        let number = |at: usize| {
            let bytes = frame.get(at..at + 3)?;
            Some(1 + u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
        };
        let mut parts = chunks(frame.get(16..)?);
        let lossy = match parts.next()? {
            (b"VP8 ", lossy) => lossy,
            // The picture follows, whatever it is called.
            (b"ALPH", _) => parts.next()?.1,
            _ => return None,
        };
        (lossy, (number(6)?, number(9)?))
    } else {
        let (_, lossy) = all.find(|(name, _)| *name == b"VP8 ")?;
        (lossy, decoder.dimensions())
    };
    let number = |at: usize| {
        let bytes = lossy.get(at..at + 2)?;
        Some(u32::from(u16::from_le_bytes([bytes[0], bytes[1]]) & 0x3fff))
    };
    let picture = (number(6)?, number(8)?);
    (picture != announced).then_some((picture, announced))
}

/// Names and contents of the chunks that bytes begin with; the last may be cut.
fn chunks(mut rest: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (name, after) = rest.split_first_chunk()?;
        let (len, after) = after.split_first_chunk()?;
        let len = u32::from_le_bytes(*len) as usize;
        rest = after.get(len.saturating_add(len & 1)..).unwrap_or_default();
        Some((name, after.get(..len).unwrap_or(after)))
    })
}

/// Calls the decoder, which may panic where a file is damaged.
fn decoded<T>(decode: impl FnOnce() -> std::result::Result<T, DecodingError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(|error| damaged(&error.to_string())),
        Err(_) => Err(damaged("its decoder panicked")),
    }
}

fn damaged(why: &str) -> Error {
    corrupt(0, &format!("the WebP file is damaged: {why}; get it again"))
}
