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
pub(super) struct Player {
    child: Child,
    steps: ChildStdin,
    said: Receiver<String>,
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

/// Why there was no answer.
#[derive(Debug, PartialEq)]
pub(super) enum Silence {
    /// None within the limit.
    Late(Duration),
    /// The program ended, or said what makes no sense.
    Broken(String),
}

impl Player {
    /// Starts a program, with what it writes to stderr in a log; its first line.
    pub(super) fn start(
        command: &mut Command,
        log: &Path,
        limit: Duration,
    ) -> Result<(Self, Hello), Silence> {
        let broken = |error: std::io::Error| Silence::Broken(error.to_string());
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(broken)?;
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(log).map_err(broken)?);
        let mut child = command.spawn().map_err(broken)?;
        let (Some(steps), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        let (sender, said) = sync_channel(16);
        // Ends with the program, which closes its output.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with('{') && sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut player = Self { child, steps, said };
        let hello = player.hear(limit)?;
        Ok((player, hello))
    }

    /// Has some steps taken; the limit is for all of them.
    pub(super) fn play(&mut self, steps: usize, limit: Duration) -> Result<Turn, Silence> {
        let told = writeln!(self.steps, "{steps}").and_then(|()| self.steps.flush());
        told.map_err(|error| Silence::Broken(error.to_string()))?;
        self.hear(limit)
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self, limit: Duration) -> Result<T, Silence> {
        let line = match self.said.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(Silence::Late(limit)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Silence::Broken("it ended; see its log".into()));
            }
        };
        serde_json::from_str(&line)
            .map_err(|error| Silence::Broken(format!("cannot read {line}: {error}")))
    }
}

impl Drop for Player {
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

    fn shell(script: &str, limit: Duration) -> Result<(Player, Hello), Silence> {
        let log = std::env::temp_dir().join(format!("xtask-player-{}.log", script.len()));
        Player::start(Command::new("sh").args(["-c", script]), &log, limit)
    }

    #[test]
    fn steps_are_taken_when_told() {
        let script =
            "echo noise; echo '{\"framework\": \"sh\", \"version\": \"1\", \"variant\": \"\"}'
            while read n; do echo \"{\\\"median_ms\\\": $n, \\\"loss\\\": 0.5}\"; done";
        let (mut player, hello) = shell(script, LONG).unwrap();
        assert_eq!(hello.framework, "sh");
        let turn = player.play(3, LONG).unwrap();
        assert_eq!((turn.median_ms, turn.loss), (3.0, 0.5));
    }

    #[test]
    fn silence_has_a_reason() {
        let short = Duration::from_millis(50);
        let late = shell("exec sleep 60", short).err();
        assert_eq!(late, Some(Silence::Late(short)));
        let Some(Silence::Broken(ended)) = shell("exit 1", LONG).err() else {
            panic!("expected an end");
        };
        assert!(ended.contains("it ended"), "{ended}");
    }
}
