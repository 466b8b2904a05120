//! How a command ends when it does not succeed.

use std::error::Error;
use std::process::ExitCode;

use phalanx_cluster::launch::TRY_AGAIN;

/// The exit codes of the program, apart from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The work itself failed; trying again will not help.
    Failed = 1,
    /// A wrong argument or configuration.
    Usage = 2,
    /// The machine is not ready: no plugin, no space.
    NotReady = 3,
    /// Another worker or the infrastructure was lost: trying again may help.
    TryAgain = TRY_AGAIN as isize,
    /// Ctrl-C, after a save.
    Interrupted = 130,
    /// SIGTERM, SIGHUP or SIGUSR1, after a save; also of a worker of a training that another was asked to end.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ended: an exit code, a message, its causes, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// What happened, in lower case; empty if all was already printed.
    pub(crate) message: String,
    /// Why, outermost first.
    pub(crate) causes: Vec<String>,
    /// What the user can do; none where the message says so already.
    pub(crate) next: Option<String>,
}

impl Failure {
    /// A failure with a message alone.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            causes: Vec::new(),
            next: None,
        }
    }

    /// The failure that an error is, with the chain of its sources.
    pub(crate) fn of(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, error.to_string()).because(error.source())
    }

    /// Adds the chain of causes, without those that the text above them already holds.
    pub(crate) fn because(mut self, mut cause: Option<&dyn Error>) -> Self {
        while let Some(error) = cause {
            let text = error.to_string();
            if !self.message.contains(&text)
                && !self.causes.iter().any(|above| above.contains(&text))
            {
                self.causes.push(text);
            }
            cause = error.source();
        }
        self
    }

    /// Adds what the user can do.
    pub(crate) fn next(mut self, action: impl Into<String>) -> Self {
        self.next = Some(action.into());
        self
    }
}
