//! What goes into the state machines of the coordination, and what comes out.

use std::net::IpAddr;
use std::time::Duration;

use super::message::{Reply, Request};

/// A connection, by a number that is never used again.
pub type Connection = u64;

/// What worker 0 or the launcher gives the service at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The number of workers.
    pub workers: usize,
    /// What tells the job from others.
    pub job: String,
    /// The version that all must have; if it is empty, the first worker that joins sets it.
    pub version: String,
    /// The number of the first set of members.
    pub generation: u64,
    /// How long a worker may be silent.
    pub lease: Duration,
    /// How long all may take to join at first, from when the first has come; `None` for as long as that one waits.
    pub join_within: Option<Duration>,
    /// What happens when a worker is lost; `None` ends the training.
    pub recovery: Option<Recovery>,
}

/// How a training goes on without a worker that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// How long the others wait for a replacement.
    pub within: Duration,
    /// The number of workers that are enough to go on afterwards.
    pub least: usize,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message with its bytes came.
    Message {
        /// On which connection.
        connection: Connection,
        /// From where, if from another process.
        from: Option<IpAddr>,
        /// What.
        request: Request,
        /// The bytes with it.
        bytes: Vec<u8>,
    },
    /// A connection ended.
    Closed {
        /// Which.
        connection: Connection,
        /// How.
        why: String,
    },
    /// A worker will not be started again, says who starts them.
    Gone {
        /// Which.
        worker: usize,
    },
    /// Time went by.
    Tick,
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// On which connection.
    pub to: Connection,
    /// What.
    pub reply: Reply,
    /// The bytes with it.
    pub bytes: Vec<u8>,
}

/// What is to be sent, in order.
pub(super) struct Actions(pub(super) Vec<Action>);

impl Actions {
    pub(super) fn send(&mut self, to: Connection, reply: Reply) {
        self.0.push(Action {
            to,
            reply,
            bytes: Vec::new(),
        });
    }
}
