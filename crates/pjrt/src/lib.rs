//! PJRT plugins from Rust.
