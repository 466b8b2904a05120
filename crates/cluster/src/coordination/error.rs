//! What goes wrong between workers.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Address;

/// The first failure of a generation, the same for all its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whose it is.
    pub worker: usize,
    /// What happened to it.
    pub reason: String,
    /// The generation in which the others meet again, if they do.
    #[serde(default)]
    pub next: Option<u64>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} {}", self.worker, self.reason)
    }
}

/// A worker that did not come to a meeting, or did not join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its number.
    pub worker: usize,
    /// Where it should be, if that is known in advance.
    pub address: Option<Address>,
    /// What is known about it.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.worker)?;
        if let Some(address) = &self.address {
            write!(f, " at {address}")?;
        }
        write!(f, ": {}", self.why)
    }
}

struct Listed<'a>(&'a [Missing]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        for (at, missing) in self.0.iter().take(MOST).enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{missing}")?;
        }
        match self.0.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Why workers cannot go on together: somebody is missing, lost or another, and the program should end with exit code 75 so that
/// whoever started it starts all workers again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Workers did not join in time.
    #[error("{} of {workers} workers did not join within {} s: {}; start them, check their variables with phalanx env --explain, or raise the deadline", missing.len(), within.as_secs_f64(), Listed(missing))]
    NotJoined {
        /// How many there should be.
        workers: usize,
        /// Who was not there.
        missing: Vec<Missing>,
        /// The deadline.
        within: Duration,
    },
    /// Workers did not come to a meeting of all in time.
    #[error("not all workers reached {name:?} within {} s: {}; see their logs: they are slow, stuck, or run another program", within.as_secs_f64(), Listed(missing))]
    Late {
        /// The name of the barrier or other meeting.
        name: String,
        /// Who was not there.
        missing: Vec<Missing>,
        /// The deadline.
        within: Duration,
    },
    /// Nobody set a key in time.
    #[error("no worker set {key:?} within {} s; see the logs of the others", within.as_secs_f64())]
    NotSet {
        /// The key.
        key: String,
        /// The deadline.
        within: Duration,
    },
    /// A worker differs from the others in something that must be equal.
    #[error(
        "worker {worker} has another {name} than the others: expected {expected}, got {got}; start all workers with the same program, data and settings"
    )]
    Differs {
        /// What must be equal.
        name: String,
        /// The first worker that differs.
        worker: usize,
        /// What most workers have.
        expected: String,
        /// What it has.
        got: String,
    },
    /// A worker failed or was lost.
    #[error(
        "{failure}; see its log, then start all workers again: a training with checkpoints goes on from the last one"
    )]
    Failed {
        /// Which, and how.
        failure: Failure,
    },
    /// A worker ended its part while others were waiting for it.
    #[error(
        "worker {worker} had left when the others came to {name:?}: it did fewer steps; give all workers the same data and settings"
    )]
    Left {
        /// Which.
        worker: usize,
        /// What the others wait for.
        name: String,
    },
    /// The service does not take this worker.
    #[error("the coordinator at {at} refuses worker {worker}: {why}")]
    Refused {
        /// This worker.
        worker: usize,
        /// Where the coordinator is.
        at: String,
        /// Why, and what to do.
        why: String,
    },
    /// This worker cannot listen where it should.
    #[error(
        "worker 0 cannot listen at {at}: {why}; choose another port, or end what listens there"
    )]
    CannotListen {
        /// Where.
        at: String,
        /// The system's reason.
        why: String,
    },
    /// The caller: a task that does not train, or a message that is too long.
    #[error("{0}")]
    User(String),
}
