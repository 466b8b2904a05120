//! A step in pipeline stages, for a model that is larger than a device.
//!
//! Programs are cut, not models: a step is traced as for one device, for a micro-batch, and each node of the program goes
//! to the stage of the layer that it was built for, forward or backward ([`StagePlan`]). So whatever lies between layers
//! (masks, shared values, sums of gradients) goes where it is needed, and results equal a run on one device.
//!
//! [`PipelinePrograms`] says what a traced program needs beside itself, `compile` makes an executable of each piece,
//! `run` lets the micro-batches flow through them, and `step` does so for training, tests and predictions.

mod buffers;
mod compile;
mod plan;
mod run;
mod step;
mod trace;

pub(super) use compile::PipelineStep;
pub(super) use plan::StagePlan;
pub(super) use step::BorrowedState;
pub(super) use trace::{PipelinePrograms, accumulate_micro_batch, weight_program};

/// The number of a stage: layers from the first to the last, a device each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StageId(pub(super) usize);

/// The number of a value of a program in stages: its parameters come first, then what goes from piece to piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ValueId(usize);

/// The position of a device in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceId(usize);
