//! Train neural networks on one device or many.
#![forbid(unsafe_code)]
