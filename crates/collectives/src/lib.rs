//! Sums and gathers between worker processes: shared memory within a machine, TCP between machines, or the MPI library of a cluster.

mod algorithms;
mod arena;
mod callers;
mod communicator;
mod connect;
mod element;
mod engine;
mod error;
mod frame;
mod handshake;
mod monitor;
mod mpi;
mod options;
mod pairwise;
mod reduce;
mod ring;
mod shared;
mod shares;
mod simd;
mod spin;
mod state;
mod sums;
mod sync;
mod tcp;
mod tickets;

pub use algorithms::AlgorithmTable;
pub use arena::Buffer;
pub use communicator::{AllReduce, Communicator, Done, Gathered};
pub use element::{Element, ReduceOp};
pub use error::CollectiveError;
pub use mpi::{MPI_LIBRARY_VARIABLE, Mpi, MpiLaunch};
pub use options::{Algorithm, CommunicatorOptions, Transport};
pub use reduce::combine;
pub use shares::share;
#[doc(hidden)]
pub use {frame::header_round_trip, handshake::hello_round_trip, monitor::notice_round_trip};
