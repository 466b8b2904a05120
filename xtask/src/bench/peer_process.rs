//! A program that takes training steps when told to, with a limit on each answer.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

/// A program of the protocol "turns" of `bench/peers/README.md`; ended when dropped.
pub(super) struct PeerProcess {
    child: Child,
    steps: ChildStdin,
    lines: Receiver<String>,
}

/// The first line of a program.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Hello {
    pub(super) framework: String,
    pub(super) version: String,
    pub(super) variant: String,
}

/// The line after some steps.
#[derive(Debug, Deserialize)]
pub(super) struct Turn {
    pub(super) median_ms: f64,
    pub(super) loss: f64,
}

/// Why a program gave no result.
#[derive(Debug, PartialEq)]
pub(super) enum PeerFailure {
    /// It took longer than the limit.
    TimedOut(Duration),
    /// The program ended, or wrote a line that cannot be read.
    Failed(String),
}

impl PeerProcess {
    /// Starts a program, with what it writes to stderr in a log; its first line.
    pub(super) fn start(
        command: &mut Command,
        log: &Path,
        limit: Duration,
    ) -> Result<(Self, Hello), PeerFailure> {
        let failed = |error: std::io::Error| PeerFailure::Failed(error.to_string());
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(log).map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(steps), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        let (sender, lines) = sync_channel(16);
        // Ends with the program, which closes its output.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with('{') && sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = Self {
            child,
            steps,
            lines,
        };
        let hello = process.receive(limit)?;
        Ok((process, hello))
    }

    /// Has some steps taken; the limit is for all of them.
    pub(super) fn take_steps(
        &mut self,
        steps: usize,
        limit: Duration,
    ) -> Result<Turn, PeerFailure> {
        let told = writeln!(self.steps, "{steps}").and_then(|()| self.steps.flush());
        told.map_err(|error| PeerFailure::Failed(error.to_string()))?;
        self.receive(limit)
    }

    /// The number of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The most memory that the program has had so far, in MiB; processes it started are not counted.
    pub(super) fn peak_mib(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib / 1024.0)
    }

    fn receive<T: for<'a> Deserialize<'a>>(&mut self, limit: Duration) -> Result<T, PeerFailure> {
        let line = match self.lines.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(PeerFailure::TimedOut(limit)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PeerFailure::Failed("it ended; see its log".into()));
            }
        };
        serde_json::from_str(&line)
            .map_err(|error| PeerFailure::Failed(format!("cannot read {line}: {error}")))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, limit: Duration) -> Result<(PeerProcess, Hello), PeerFailure> {
        let name = format!("xtask-peer-{}-{}.log", std::process::id(), script.len());
        let log = std::env::temp_dir().join(name);
        PeerProcess::start(Command::new("sh").args(["-c", script]), &log, limit)
    }

    #[test]
    fn steps_are_taken_when_told() {
        let script =
            "echo noise; echo '{\"framework\": \"sh\", \"version\": \"1\", \"variant\": \"\"}'
            while read n; do echo \"{\\\"median_ms\\\": $n, \\\"loss\\\": 0.5}\"; done";
        let (mut process, hello) = shell(script, LONG).unwrap();
        assert_eq!(hello.framework, "sh");
        let turn = process.take_steps(3, LONG).unwrap();
        assert!(process.peak_mib().unwrap() > 0.1);
        assert_eq!((turn.median_ms, turn.loss), (3.0, 0.5));
    }

    #[test]
    fn a_failure_has_a_reason() {
        let short = Duration::from_millis(50);
        let late = shell("exec sleep 60", short).err();
        assert_eq!(late, Some(PeerFailure::TimedOut(short)));
        let Some(PeerFailure::Failed(ended)) = shell("exit 1", LONG).err() else {
            panic!("expected an end");
        };
        assert!(ended.contains("it ended"), "{ended}");
    }
}
