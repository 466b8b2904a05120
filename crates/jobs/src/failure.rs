//! How a command ends when it does not succeed.

use std::fmt::Display;
use std::io::{self, ErrorKind};

/// The work itself failed.
pub(crate) const FAILED: u8 = 1;
/// A wrong argument or job file.
pub(crate) const USAGE: u8 = 2;
/// The machine is not ready.
pub(crate) const NOT_READY: u8 = 3;

/// An exit code and a message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    message: String,
}

/// Whether what was written to standard output is read; a reader that went away (`phalanx jobs logs x | head -1`) is no failure.
pub(crate) fn is_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            FAILED,
            format!(
                "cannot write to standard output: {error}; free some space, or send the output elsewhere"
            ),
        )),
    }
}

impl Failure {
    pub(crate) fn new(exit: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message.to_string())
    }

    pub(crate) fn not_ready(message: impl Display) -> Self {
        Self::new(NOT_READY, message.to_string())
    }

    /// Each line is a mistake of its own.
    pub(crate) fn report(&self) {
        for line in self.message.lines() {
            match line.starts_with(' ') {
                true => eprintln!("{line}"),
                false => eprintln!("error: {line}"),
            }
        }
    }
}
