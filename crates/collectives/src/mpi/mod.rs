//! Exchanges by the MPI library of a cluster, opened at run time: InfiniBand and its kin come with it.
//!
//! Every exchange begins with the headers of all ranks, so that ranks that make different calls get an error instead of each other's
//! bytes; what is small travels with them. Large arrays are divided over the ranks, added by our own loops in the order of ranks and
//! handed to all, in messages; over many ranks, and where it is asked for, sums are the library's own.
//!
//! MPI has no deadline and cannot take back an exchange. So memory that an exchange uses is never freed when it fails, every wait is a
//! loop over `MPI_Test` with a deadline, and a failure ends the job by `MPI_Abort` after a while in which the program can say why.
//! Calls are made by one thread at a time.

mod abi;
mod exchange;
mod large;
mod launch;
mod library;
mod ordered;
mod process;
mod progress;

pub(crate) use exchange::{INLINE, MpiLinks};
pub use launch::{MPI_LIBRARY_VARIABLE, MpiLaunch};
pub(crate) use process::EndOfJob;
pub use process::Mpi;
