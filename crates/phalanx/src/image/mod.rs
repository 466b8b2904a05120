//! Images: decoding, resizing, augmentation.
//!
//! Pixels are rows of bytes, height by width by channel, as in TensorFlow, and results equal TensorFlow's
//! `tf.io.decode_jpeg`, `tf.image.resize` and the other functions of `tf.image` that are named here.
//! The orientation that a camera notes in EXIF is not applied, as in TensorFlow.

mod colour;
mod decode;
mod jpeg;
mod pipeline;
mod png;
mod resize;
mod rng;
mod rotation;
mod webp;

pub use colour::{adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation};
pub use decode::{Channels, Decoder, DecoderOptions, OpenedImage, Pixels, Window};
pub use jpeg::Idct;
pub use pipeline::{ImagePipeline, ImageProcessor, Region, Scale, resize};
pub(crate) use png::decode_png_16;
pub use resize::Resampling;
pub(crate) use resize::{Taps, taps};
pub(crate) use rng::Rng;
pub use rotation::{Fill, rotate};

use crate::Error;

/// An error about what the bytes of an image hold; who knows their file adds its name.
fn corrupt(byte: usize, message: &str) -> Error {
    Error::Data {
        source_name: String::new(),
        place: format!("byte {byte}"),
        message: message.into(),
    }
}
