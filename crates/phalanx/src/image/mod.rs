//! Images: decoding, resizing, augmentation.
//!
//! Pixels are rows of bytes, height by width by channel, as in TensorFlow, and their numbers are TensorFlow's:
//! those of `tf.io.decode_jpeg`, `tf.image.resize` and the other functions of `tf.image` that are named here.
//! The orientation that a camera notes in EXIF is not applied, as TensorFlow does not either.

mod decode;
mod jpeg;
mod png;
mod webp;

pub use decode::{Channels, Decoder, DecoderOptions, Opened, Pixels, Window};
pub use jpeg::Idct;

use crate::Error;

/// An error about what the bytes of an image hold; who knows their file adds its name.
fn corrupt(byte: usize, message: &str) -> Error {
    Error::Data {
        source_name: String::new(),
        place: format!("byte {byte}"),
        message: message.into(),
    }
}
