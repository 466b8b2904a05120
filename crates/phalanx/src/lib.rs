//! Train neural networks on one device or many.
#![forbid(unsafe_code)]

pub mod data;
pub mod datasets;
pub mod engine;
mod error;

pub use error::{Error, Result};
