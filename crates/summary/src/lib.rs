//! Event files that TensorBoard reads, as TensorFlow 2 writes them.
//!
//! An event file is a TFRecord file of `Event` messages (`tensorflow/core/util/event.proto`), the first of which names the
//! version of the format. [`EventWriter`] writes scalars, histograms, images, text, settings (HParams), graphs, and the mark by which
//! TensorBoard forgets what an interrupted training wrote of the steps that are trained again. [`Run`] reads them.
//!
//! ```no_run
//! # fn main() -> Result<(), phalanx_summary::SummaryError> {
//! let mut events = phalanx_summary::EventWriter::create("logs/train")?;
//! events.scalar("epoch_loss", 0.5, 0)?;
//! events.flush()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod chart;
mod event;
mod graph;
mod histogram;
mod hparams;
mod image;
mod message;
mod picture;
mod profile;
mod reader;
mod record;
mod system;
mod wire;
mod writer;

pub use chart::{Chart, Curve};
pub use graph::GraphNode;
pub use histogram::Histogram;
pub use hparams::{HParam, HParamMetric, SessionStatus};
pub use image::Image;
pub use message::Message;
pub use picture::{png, svg};
pub use profile::{HostProfile, ProfileLine, ProfileSpan, write_profile};
pub use reader::{Point, Run, find_runs};
pub use record::masked_crc;
pub use system::SystemMonitor;
pub use wire::{Fields, Wire};
pub use writer::{EventWriter, FlushPolicy, SummaryError};
