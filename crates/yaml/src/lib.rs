//! YAML files as trees that know their places, and the mistakes in them.
//!
//! Training files and job files are read with it: a reader walks the [`Node`]s that [`parse`] gives and collects a [`Problem`] for each
//! mistake, so that a user hears of all of them at once, each with its line. [`Bytes`] are sizes as files and options have them.
#![forbid(unsafe_code)]

mod problem;
mod size;
mod tree;
mod write;

pub use problem::{Position, Problem, Problems, nearest, shown, suggest};
pub use size::Bytes;
pub use tree::{Key, MAX_BYTES, Node, Value, parse, parse_verbatim};
pub use write::to_yaml;
