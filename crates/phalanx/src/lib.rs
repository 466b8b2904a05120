//! Train neural networks on one device or many.
//!
//! A model is made of layers ([`nn`]), a strategy says on which devices it trains ([`strategy`]), and the trainer it
//! gives has `fit`, `evaluate` and `predict` ([`fit`]).
#![forbid(unsafe_code)]

mod bytes;
pub mod checkpoint;
pub mod components;
pub mod config;
pub mod data;
pub mod datasets;
pub mod engine;
mod error;
mod farmhash;
pub mod fit;
mod hash;
pub mod image;
pub mod import;
pub mod losses;
pub mod metrics;
pub mod models;
pub mod nn;
mod onnx;
pub mod optim;
pub mod prelude;
pub mod replicas;
pub mod saved;
pub mod schedules;
mod servers;
mod storage;
pub mod strategy;

pub use error::{Error, Result, run};
pub use phalanx_graph::op::ReduceOp;
pub use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};
/// Settings of your own layers are values of this crate.
pub use serde_json;

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The programs of the page compile, and run where they need no data.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/callbacks.md")]
struct CallbacksPage;

/// The program of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/checkpoints.md")]
struct CheckpointsPage;

/// The program of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-keras.md")]
struct FromKerasPage;

/// The program of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-pytorch.md")]
struct FromPytorchPage;

/// The program of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/serving.md")]
struct ServingPage;
