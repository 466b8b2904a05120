//! Parameter servers: processes that hold the variables of a training, for workers that come and go.
//!
//! What decides is pure: [`Control`] says which worker does which piece of work and when, [`Shards`] which push is applied, and
//! [`place`] where variables lie. They know no clocks, sockets or threads, and a simulation drives them with seeds. Around them
//! [`Server`] gives them connections, a log of what was acknowledged and a [`Values`] that computes; [`Client`] is a worker's side.
//!
//! **Each piece of work is counted once.** The control numbers the pieces of work of a job; a push carries the number, and a shard
//! keeps the numbers that it has applied. So a push that is sent again, by the same worker or by one that took over the work of a
//! dead one, is acknowledged and changes nothing.

#![forbid(unsafe_code)]

mod client;
mod clock;
mod connection;
mod control;
mod durable;
mod error;
mod hex_bytes;
mod log;
mod members;
mod message;
mod numbers;
mod partition;
mod phase;
mod pushes;
mod server;
mod task_queue;
mod wire;

pub use client::{Client, ClientOptions};
pub use clock::Clock;
pub use control::{Control, ControlSettings, Grant, Phase, PhaseKind, Results, Work};
pub use error::PsError;
pub use log::Durability;
pub use members::JOIN_WITHIN;
pub use message::{
    Commit, Frame, FrameProblem, Hello, Part, Pulled, PushKey, Reply, Request, decode_frame,
    encode_frame, frame_round_trip,
};
pub use partition::{Partitioner, Shard, VariableSpec, place};
pub use pushes::{PushOutcome, Shards, Values};
pub use server::{Server, ServerOptions, Tell};
pub use task_queue::{PUSHES_OF_TASK, Task, TaskEnd, TaskQueue};

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far workers may be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nobody waits: each push is an update by itself, of whatever values its worker had.
    Async,
    /// A worker that has done `steps` steps more than the slowest one waits for it. 0 is [`Sync`](Self::Sync) without backup workers.
    BoundedStaleness {
        /// The most steps that a worker may be ahead.
        steps: u64,
    },
    /// A step is the mean of what all workers compute of it, as in mirrored training.
    Sync {
        /// The number of workers that a step does not wait for; what they push too late is dropped and counted.
        backup_workers: usize,
    },
}

impl Mode {
    /// The number of backup workers of a mode in which workers step together; `None` of others.
    #[must_use]
    pub const fn backup_workers(self) -> Option<usize> {
        match self {
            Self::Sync { backup_workers } => Some(backup_workers),
            Self::BoundedStaleness { steps: 0 } => Some(0),
            Self::BoundedStaleness { .. } | Self::Async => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Async => write!(f, "asynchronous"),
            Self::BoundedStaleness { steps } => write!(f, "at most {steps} steps apart"),
            Self::Sync { backup_workers: 0 } => write!(f, "synchronous"),
            Self::Sync { backup_workers } => {
                write!(f, "synchronous with {backup_workers} backup workers")
            }
        }
    }
}
