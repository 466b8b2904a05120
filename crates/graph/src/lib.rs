//! Tensor graphs.
#![forbid(unsafe_code)]

mod dtype;
mod host;
mod shape;

pub use dtype::DType;
pub use host::{AlignedBytes, Element, HOST_ALIGNMENT, HostTensor};
pub use shape::Shape;
