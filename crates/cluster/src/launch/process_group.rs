//! A process that leads a group of its own, so that what it starts ends with it.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::thread::CpuSet;

use super::cores;

/// A process of this machine that leads a group, with all that it has started in that group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    group: Pid,
}

/// What a process writes to its standard output and its standard error.
pub type Output = (ChildStdout, ChildStderr);

impl ProcessGroup {
    /// Starts a command without input on these processors (on any without them), and gives what it writes.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(command: &mut Command, processors: Option<&CpuSet>) -> io::Result<(Self, Output)> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = cores::on(processors, || command.spawn())?;
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
