//! Jobs: what is asked for, their life, and how they run on this machine, Slurm and Kubernetes.
//!
//! [`spec`] reads a job file and plans its tasks; [`lifecycle`] is the state machine of a job, [`store`] keeps it on disk, and [`supervise`]
//! runs it by an [`executor`]. Nothing here trains: tasks are programs with arguments and variables.
#![forbid(unsafe_code)]

pub mod curves;
mod environment;
pub mod executor;
pub mod lifecycle;
pub mod logs;
pub mod package;
pub mod spec;
pub mod store;
pub mod supervise;
#[cfg(test)]
mod testing;
pub mod transfer;
mod tune;
pub mod usage;

pub use environment::environment;
