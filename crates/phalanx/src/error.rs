//! The one error type of the library, its variants grouped by who must act.

use std::fmt;
use std::path::PathBuf;

/// What went wrong, grouped by who must act. Its `Debug` is its message too, as `main` and `unwrap` print it so.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller: a wrong argument or configuration.
    #[error("{0}")]
    User(String),
    /// The owner of some data: a value in it is invalid.
    #[error("{source_name}: {place}: {message}")]
    Data {
        /// The file or other origin of the data.
        source_name: String,
        /// Where in it: `line 3, column 5`.
        place: String,
        /// What was found, what was expected, and what to do.
        message: String,
    },
    /// The machine: a file or device refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The verb of the refused operation: `open`, `read`.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The plugin or one of its devices: missing, too old, out of memory.
    #[error("{0}")]
    Device(String),
    /// The author of a model: tensors that do not match, with the place in the source.
    #[error(transparent)]
    Graph(#[from] phalanx_graph::GraphError),
    /// The training itself: it diverged.
    #[error("{0}")]
    Training(String),
    /// The processes that train together: one died, is too late, or runs something else.
    #[error("{0}")]
    Cluster(String),
    /// Training stopped early at the caller's request.
    #[error("{0}")]
    Stopped(String),
    /// A bug in this library: something impossible happened.
    #[error("bug in phalanx: {0}; please report it with what you ran")]
    Bug(String),
}

/// The result of every fallible call of the library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A [`User`](Self::User) error.
    pub(crate) fn user(message: impl Into<String>) -> Self {
        Self::User(message.into())
    }

    /// A [`Device`](Self::Device) error with the message of another error.
    pub(crate) fn device(error: impl std::error::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn a_program_that_ends_with_an_error_prints_its_message() {
        let error = Error::Device("no plugin; looked at:\n  the path x".into());
        assert_eq!(format!("{error:?}"), "no plugin; looked at:\n  the path x");
    }
}
