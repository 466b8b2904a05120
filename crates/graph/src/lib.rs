//! Tensor graphs.
#![forbid(unsafe_code)]
