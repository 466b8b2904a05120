//! A process that leads a group of its own, so that what it starts ends with it.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::thread::CpuSet;

use super::cores;

/// How long a place for one more process is waited for: processes that end at the same time take a moment.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The wait before the second try; each next one is twice as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Starts a process, again and again while there is no place for one more (EAGAIN).
pub(super) fn patiently<T>(
    within: Duration,
    mut start: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let (begun, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        match start() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if begun.elapsed() >= within {
                    return Err(io::Error::new(
                        error.kind(),
                        format!(
                            "the system had no place for one more process within {} s ({error}); raise the limit of processes (ulimit -u, or pids.max of its control group) or end others",
                            within.as_secs_f64()
                        ),
                    ));
                }
            }
            other => return other,
        }
        thread::sleep(wait.min(within.saturating_sub(begun.elapsed())));
        wait = LONGEST_WAIT.min(wait * 2);
    }
}

/// A process of this machine that leads a group, with all that it has started in that group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    group: Pid,
}

/// What a process writes to its standard output and its standard error.
pub type Output = (ChildStdout, ChildStderr);

impl ProcessGroup {
    /// Starts a command without input on these processors (on any without them), and gives what it writes. Where the system has no place
    /// for one more process it is tried again for ten seconds.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(command: &mut Command, processors: Option<&CpuSet>) -> io::Result<(Self, Output)> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = patiently(PATIENCE, || cores::on(processors, || command.spawn()))?;
        let output = child.stdout.take().zip(child.stderr.take());
        let output = output.ok_or(io::ErrorKind::BrokenPipe)?;
        let group = Pid::from_child(&child);
        Ok((Self { child, group }, output))
    }

    /// The number of the process, and of its group.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Sends a signal to the whole group; one that is stopped goes on, and hears it.
    pub fn signal(&self, signal: Signal) {
        // A group that has ended meanwhile is collected next.
        let _ = kill_process_group(self.group, signal);
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    /// How the process ended, if it has; what is left of its group is ended then. One that somebody else has collected counts as killed.
    pub fn end(&mut self) -> Option<ExitStatus> {
        // While its end is not collected nobody else is given its number, and its group can be ended.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.group), options) {
            Ok(None) => return None,
            Ok(Some(_)) | Err(Errno::CHILD) => {}
            Err(_) => return None,
        }
        let _ = kill_process_group(self.group, Signal::KILL);
        Some(self.child.wait().unwrap_or(ExitStatus::from_raw(9)))
    }

    /// Ends the whole group, and waits for the end of the process.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_place() -> io::Error {
        Errno::AGAIN.into()
    }

    #[test]
    fn a_place_that_comes_free_is_taken_and_one_that_does_not_is_waited_for_no_longer_than_it_may()
    {
        let mut left = 3;
        let started = patiently(PATIENCE, || match left {
            0 => Ok("started"),
            _ => {
                left -= 1;
                Err(no_place())
            }
        });
        assert_eq!(started.unwrap(), "started");
        let (begun, within) = (Instant::now(), Duration::from_millis(100));
        let never: io::Result<()> = patiently(within, || Err(no_place()));
        let error = never.unwrap_err().to_string();
        assert!((within..Duration::from_secs(10)).contains(&begun.elapsed()));
        assert!(
            error.contains("within 0.1 s") && error.contains("ulimit -u"),
            "{error}"
        );
        let mut tries = 0;
        let absent: io::Result<()> = patiently(PATIENCE, || {
            tries += 1;
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!(
            (absent.unwrap_err().kind(), tries),
            (io::ErrorKind::NotFound, 1)
        );
    }
}
