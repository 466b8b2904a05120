//! A search for wrong gradients: random networks of all layers, whose gradients in the compiled training step are compared
//! with those of the same step interpreted in f64, and these with the derivative of the loss along a random direction.
//!
//! `cargo xtask fuzz-gradients` searches for longer than a run of the tests does. What it prints of a network with a wrong
//! gradient is a test for `regressions.rs`. It also computes some of the networks under a policy of bf16, and convolutions of some by
//! another algorithm than the kernels' own choice; with bf16, products by the library also where the compiler's own would serve.
//!
//! Environment: `PHALANX_TEST_PLATFORM`, `PHALANX_FUZZ_MINUTES`, `PHALANX_FUZZ_SEED`, `PHALANX_FUZZ_FIRST` (the network of the seed to begin with),
//! `PHALANX_FUZZ_THREADS`, `PHALANX_FUZZ_PYTHON` (of a Python with JAX, whose gradients in f64 are compared too),
//! `PHALANX_FUZZ_KERAS` (of a Python with Keras, beside which networks are compared instead of all else),
//! `PHALANX_FUZZ_ROUNDS` (of small networks around each layer), `PHALANX_FUZZ_GO_ON` (behind a wrong gradient), `PHALANX_FUZZ_LOG` (a line for each network).

mod algorithms;
#[path = "../any_device/mod.rs"]
mod any_device;
mod compare;
mod derivatives;
mod frames;
mod generate;
mod jax;
mod keras;
mod layers;
mod network;
mod norms;
mod pictures;
mod python;
mod random;
mod regressions;
mod search;
mod second;
mod shrink;
mod step;
mod trial;

use phalanx::nn::Model;

use compare::{Verdict, verdict};
use trial::Trial;

/// Fails where a gradient of the model is wrong.
fn check(model: &Model, trial: &Trial) {
    match verdict(model, trial) {
        Verdict::Right(_) => {}
        Verdict::Wrong(what) | Verdict::NearTie(what) | Verdict::Skipped(what) => panic!("{what}"),
    }
}
