//! What goes wrong between workers and parameter servers.

use std::io;
use std::path::PathBuf;

/// Why a call of a worker or a server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PsError {
    /// What the caller asked for cannot be: settings that differ, a name that nobody knows.
    #[error("{0}")]
    User(String),
    /// Another process of the job failed, and the job ends.
    #[error("{who} ended the job: {why}")]
    Failed {
        /// Which process.
        who: String,
        /// What it said.
        why: String,
    },
    /// The training is to stop, since somebody asked for it.
    #[error("the training was asked to stop")]
    Stopped,
    /// A server or worker is not there, or too late.
    #[error("{0}")]
    Lost(String),
    /// Bytes that are no message of ours.
    #[error("{0}")]
    Protocol(String),
    /// A file of the log or a snapshot.
    #[error("cannot {action} {}: {source}; choose another folder or make room", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What computes updates failed.
    #[error("{0}")]
    Values(String),
}
