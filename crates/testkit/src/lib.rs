//! Oracles for tests: an f64 interpreter of graphs that shares no code with the compiler's lowering or with our
//! derivatives.
#![forbid(unsafe_code)]

mod interpreter;

pub use interpreter::{Array, Dual, Interpreter};
