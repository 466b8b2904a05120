//! A search for wrong losses and metrics: random settings, targets, predictions and weights, with which ours, interpreted in f64, are
//! compared with what Keras answers.
//!
//! `cargo xtask fuzz-gradients --keras PATH` searches for longer. A case that is wrong becomes a record of `tests/golden/keras`.
//!
//! Environment: `PHALANX_FUZZ_KERAS` (of a Python with Keras, without which nothing is searched), `PHALANX_FUZZ_MINUTES`, `PHALANX_FUZZ_SEED`,
//! `PHALANX_FUZZ_FIRST` (the case of the seed to begin with).

mod inputs;
mod search;
mod tried;
