//! Errors of plugin calls and of plugin loading.

use std::path::PathBuf;

use crate::sys;

/// An error of one call into a plugin, or of a check made before that call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message} ({code:?})")]
pub struct PjrtError {
    /// What kind of failure it is.
    pub code: StatusCode,
    /// The plugin's text, or ours where the check failed before the call.
    pub message: String,
    /// Name of the C function that was called, such as `PJRT_Client_Compile`.
    pub call: &'static str,
}

impl PjrtError {
    pub(crate) fn new(call: &'static str, code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            call,
        }
    }

    pub(crate) fn invalid(call: &'static str, message: impl Into<String>) -> Self {
        Self::new(call, StatusCode::InvalidArgument, message)
    }

    /// Whether the device or the host ran out of memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == StatusCode::ResourceExhausted
    }

    /// Whether a wait reached its deadline.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.code == StatusCode::DeadlineExceeded
    }

    /// Whether the plugin has no such function.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code == StatusCode::Unimplemented
    }
}

/// Kind of a plugin error: the codes of `absl::StatusCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the names are the documentation of absl::StatusCode"
)]
pub enum StatusCode {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl StatusCode {
    const ALL: [Self; 16] = [
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The C value.
    pub(crate) fn to_c(self) -> i32 {
        self as i32 + 1
    }

    /// The code with this C value; a value outside 1..=16 is `Unknown`.
    pub(crate) fn from_c(value: i32) -> Self {
        usize::try_from(value - 1)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
            .unwrap_or(Self::Unknown)
    }
}

/// Why a file could not be loaded as a PJRT plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file there, or it cannot be read.
    #[error("cannot read the plugin {}: {source}; give the path of a pjrt plugin (a shared library such as pjrt_c_api_cpu_plugin.so)", path.display())]
    Unreadable {
        /// The path that was given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a shared library for this machine.
    #[error("{} is not a pjrt plugin for this machine: {found}, expected {expected}; give the path of a pjrt plugin built for this machine", path.display())]
    NotALibrary {
        /// The path that was given.
        path: PathBuf,
        /// What the file is.
        found: String,
        /// What this machine loads.
        expected: &'static str,
    },
    /// The system's loader refused the library, for instance because a library it needs is absent.
    #[error("the system cannot load {}: {reason}; install the library that is named, or another build of the plugin", path.display())]
    Refused {
        /// The path that was given.
        path: PathBuf,
        /// The loader's text.
        reason: String,
    },
    /// The library loads but does not export `GetPjrtApi`.
    #[error("{} is a shared library but not a pjrt plugin: it has no function GetPjrtApi; give the path of a pjrt plugin", path.display())]
    NoEntry {
        /// The path that was given.
        path: PathBuf,
    },
    /// The plugin's API version is one this crate cannot speak.
    #[error(
        "the plugin {} speaks pjrt api {plugin}, this build of phalanx speaks 0.{} to 0.{}; install a plugin of that range (for the cpu: `phalanx plugin install cpu`)",
        path.display(), sys::MIN_MINOR, sys::MAX_MINOR
    )]
    Version {
        /// The path that was given.
        path: PathBuf,
        /// The plugin's version, `major.minor`.
        plugin: String,
    },
    /// The plugin's own start-up failed.
    #[error("the plugin {} failed to start: {source}", path.display())]
    Start {
        /// The path that was given.
        path: PathBuf,
        /// The plugin's error.
        source: PjrtError,
    },
}
