//! Oracles for tests: an f64 interpreter of graphs that shares no code with the compiler's lowering or with our
//! derivatives, and comparisons that see what is not a number.
#![forbid(unsafe_code)]

mod compare;
mod interpreter;

pub use compare::{assert_close, largest_difference, relative_difference};
pub use interpreter::{Array, Dual, Interpreter};
