//! Workers find each other, wait for each other, agree, and hear of each other's failures.
//!
//! Worker 0 or the launcher holds the service (`service`), whose decisions are a state machine without clocks and sockets
//! ([`Coordination`]: generations of workers, each a [`State`]); every worker has a [`Coordinator`], a handle with a connection of its own and a thread that says it is alive.

mod client;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod event;
mod generations;
mod host;
mod link;
mod message;
mod rendezvous;
mod report;
mod request;
mod service;
mod state;

pub use client::Coordinator;
pub use error::{ClusterError, Failure, Missing};
#[cfg(feature = "etcd")]
pub use etcd::rewritten_log_entry;
pub use event::{Action, Connection, Event, Recovery, Settings};
pub use generations::{Coordination, Lost};
pub use host::Host;
pub use message::{Decoded, FrameError, Hello, Refusal, Reply, Request, Seat, decode, encode};
pub use request::{JoinRequest, Roster, Timing};
pub use state::State;
