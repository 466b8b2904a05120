//! How workers ended, and whose fault it was.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The exit code of a worker that lost another, and of whatever may succeed when it is tried again: `EX_TEMPFAIL` of sysexits.h.
pub const TRY_AGAIN: u8 = 75;
/// The exit code of a worker that was given something wrong.
pub(super) const MISTAKE: u8 = 2;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

impl How {
    pub(super) fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code as u8),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// The exit code that stands for it. A process that was killed from outside (for want of memory, say) may be tried again, one that
    /// crashed not.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            // SIGHUP, SIGINT, SIGKILL, SIGTERM.
            Self::Signal(1 | 2 | 9 | 15) => TRY_AGAIN,
            Self::Signal(_) => 1,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Code(code) => return write!(f, "ended with exit code {code}"),
            Self::Signal(6) => "SIGABRT, it aborted",
            Self::Signal(7) => "SIGBUS, it crashed or a disk was full",
            Self::Signal(9) => "SIGKILL, such as for want of memory",
            Self::Signal(11) => "SIGSEGV, it crashed",
            Self::Signal(15) => "SIGTERM",
            Self::Signal(number) => return write!(f, "was ended by signal {number}"),
        };
        write!(f, "was ended by {name}")
    }
}

/// The end of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub rank: usize,
    /// How.
    pub how: How,
    /// When, since the start.
    pub after: Duration,
    /// Whether it was told to end, after the failure of another or by a signal that was passed on.
    pub told: bool,
    /// Whether the training went on: with another process in its place, or without it.
    pub absorbed: bool,
}

impl Ended {
    fn failed(&self) -> bool {
        self.how != How::Code(0) && !self.absorbed
    }
}

/// How all workers ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Each worker, in the order of their ends.
    pub ended: Vec<Ended>,
    /// The signal that was passed on to them, if one was: its exit code.
    pub stopped: Option<u8>,
    /// The last lines of the worker that failed first.
    pub last_lines: Vec<String>,
    /// The file of that worker's standard error.
    pub log: Option<PathBuf>,
}

impl Outcome {
    /// The worker whose failure was the first: of those that were not told to end, the first that did not only lose another.
    #[must_use]
    pub fn first_failure(&self) -> Option<&Ended> {
        first_failure(&self.ended)
    }

    /// The exit code of the whole.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let failure = self.first_failure().map(|ended| ended.how.exit_code());
        let all_done = self.ended.iter().all(|ended| !ended.failed());
        match (failure, self.stopped) {
            (None, Some(stopped)) if !all_done => stopped,
            (failure, _) => failure.unwrap_or(0),
        }
    }
}

pub(super) fn first_failure(ended: &[Ended]) -> Option<&Ended> {
    let mut failed = ended.iter().filter(|ended| ended.failed() && !ended.told);
    let own = |ended: &&Ended| ended.how != How::Code(TRY_AGAIN);
    failed.clone().find(own).or_else(|| failed.next())
}

#[cfg(test)]
mod tests {
    use super::How::{Code, Signal};
    use super::*;

    fn outcome(ends: &[(usize, How, bool)], stopped: Option<u8>) -> Outcome {
        let ended = |&(rank, how, told): &(usize, How, bool)| Ended {
            rank,
            how,
            after: Duration::ZERO,
            told,
            absorbed: false,
        };
        Outcome {
            ended: ends.iter().map(ended).collect(),
            stopped,
            last_lines: Vec::new(),
            log: None,
        }
    }

    #[test]
    fn the_first_failure_is_the_one_that_made_the_others_fail() {
        let check = |ends: &[(usize, How, bool)], first, code| check(ends, None, first, code);
        check(&[(0, Code(0), false), (1, Code(0), false)], None, 0);
        check(&[(0, Code(75), false), (1, Signal(9), false)], Some(1), 75);
        check(&[(0, Code(75), false), (1, Code(1), false)], Some(1), 1);
        check(&[(1, Code(75), false), (0, Code(75), false)], Some(1), 75);
        check(&[(1, Code(2), false), (0, Signal(15), true)], Some(1), 2);
        check(&[(1, Signal(11), false), (0, Code(75), false)], Some(1), 1);
    }

    #[test]
    fn workers_that_were_told_to_stop_have_not_failed() {
        let check =
            |ends: &[(usize, How, bool)], stopped, code| check(ends, Some(stopped), None, code);
        check(&[(0, Code(143), true), (1, Code(143), true)], 143, 143);
        check(&[(0, Code(0), true), (1, Code(0), true)], 143, 0);
        check(&[(0, Signal(9), true), (1, Code(130), true)], 130, 130);
    }

    /// Compares the rank of the first failure, and the exit code of the whole.
    fn check(ends: &[(usize, How, bool)], stopped: Option<u8>, first: Option<usize>, code: u8) {
        let outcome = outcome(ends, stopped);
        let rank = outcome.first_failure().map(|ended| ended.rank);
        assert_eq!((rank, outcome.exit_code()), (first, code), "{ends:?}");
    }
}
