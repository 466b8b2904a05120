//! The one error type of the library, its variants grouped by who must act.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

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

/// Does the work of a program, tells its error, and ends it with the error's [exit code](Error::exit_code): `main` of a program whose
/// processes train together. A `main` that returns a [`Result`] ends with 1 on every error, and nobody starts it again after the loss of
/// another process.
///
/// ```
/// fn main() -> std::process::ExitCode {
///     phalanx::run(|| {
///         println!("training ..");
///         Ok(())
///     })
/// }
/// ```
pub fn run(work: impl FnOnce() -> Result<()>) -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody reads it where standard error is closed.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

impl Error {
    /// The exit code by which launchers and schedulers know what to do after a program has ended with this error: 2 where what it was given
    /// is wrong, 75 where another process was lost, so that it should be started again, 143 where it was asked to stop and goes on from its
    /// checkpoint, and 1 for all else.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::User(_) | Self::Data { .. } | Self::Graph(_) => 2,
            Self::Cluster(_) => 75,
            Self::Stopped(_) => 143,
            Self::Io { .. } | Self::Device(_) | Self::Training(_) | Self::Bug(_) => 1,
        }
    }

    /// A [`User`](Self::User) error.
    pub(crate) fn user(message: impl Into<String>) -> Self {
        Self::User(message.into())
    }

    /// A [`Device`](Self::Device) error with the message of another error.
    pub(crate) fn device(error: impl std::error::Error) -> Self {
        Self::Device(error.to_string())
    }
}

/// What was refused may be whole, like a file that cannot be read now.
impl From<phalanx_store::StoreError> for Error {
    fn from(error: phalanx_store::StoreError) -> Self {
        match error {
            phalanx_store::StoreError::Refused {
                action,
                url,
                reason,
            } => Self::Io {
                path: url.into(),
                action,
                source: std::io::Error::other(reason),
            },
            error => Self::user(error.to_string()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_with_an_error_prints_its_message() {
        let error = Error::Device("no plugin; looked at:\n  the path x".into());
        assert_eq!(format!("{error:?}"), "no plugin; looked at:\n  the path x");
    }

    #[test]
    fn programs_end_with_the_exit_code_of_their_error() {
        let code = |result: Result<()>| format!("{:?}", run(|| result));
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Ok(())), expected(0));
        assert_eq!(code(Err(Error::user("wrong"))), expected(2));
        assert_eq!(code(Err(Error::Cluster("lost".into()))), expected(75));
        assert_eq!(code(Err(Error::Stopped("asked".into()))), expected(143));
        assert_eq!(code(Err(Error::Training("nan".into()))), expected(1));
    }
}
