//! Train neural networks on one device or many.
#![forbid(unsafe_code)]

mod bytes;
pub mod config;
pub mod data;
pub mod datasets;
pub mod engine;
mod error;
pub mod losses;
pub mod metrics;
pub mod nn;
pub mod optim;
pub mod schedules;

pub use error::{Error, Result};
