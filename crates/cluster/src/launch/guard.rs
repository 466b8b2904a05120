//! What ends all that is left of a job when its supervisor has ended, in whatever way: a process that waits for the end of a pipe.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time to save something before the end.
const GRACE: Duration = Duration::from_secs(1);
/// More time than killed processes take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The supervisor's side: a process that waits for the end of this one.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts the program that calls [`guard`] with the job's name, which is its last argument, and its standard input.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(mut command: Command, job: &str) -> io::Result<Self> {
        let mut child = command
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Neither a Ctrl-C nor the guard of an outer launch may end it.
            .process_group(0)
            .env_remove("PHALANX_JOB_ID")
            .spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, pipe })
    }

    /// Has it end what is left, and waits for that.
    pub fn finish(mut self) {
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The guard's side: when `supervisor` ends, which is the end of a pipe, ends every process whose PHALANX_JOB_ID is `job`, and
/// PHALANX_GENERATION `generation` where one is given: first by SIGTERM, a second later by SIGKILL. Numbers of processes would not do: they
/// may be given to others. A job that is started again by another supervisor has another generation, which this guard leaves alone.
pub fn guard(job: &str, generation: Option<&str>, mut supervisor: impl Read) {
    let _ = io::copy(&mut supervisor, &mut io::sink());
    let mut marks = vec![format!("PHALANX_JOB_ID={job}")];
    marks.extend(generation.map(|generation| format!("PHALANX_GENERATION={generation}")));
    end(&marks, Signal::TERM, GRACE);
    end(&marks, Signal::KILL, PATIENCE);
}

/// Signals each process with these variables once until none is left, for no longer than `within`.
fn end(marks: &[String], signal: Signal, within: Duration) {
    let until = Instant::now() + within;
    let mut signalled = HashSet::new();
    while Instant::now() < until {
        let left = processes_with(marks);
        if left.is_empty() {
            return;
        }
        for process in left {
            if signalled.insert(process) {
                let _ = kill_process(process, signal);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The processes with all of these variables, but for this one.
fn processes_with(marks: &[String]) -> Vec<Pid> {
    let has_all = |process: &i32| {
        let variables = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let has = |mark: &String| {
            variables
                .split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes())
        };
        marks.iter().all(has)
    };
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let own = std::process::id() as i32;
    let others = numbers.filter(|number: &i32| *number != own && has_all(number));
    others.filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_of_a_generation_leaves_the_next_alone() {
        let job = format!("guard-test-{}", std::process::id());
        let start = |generation: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env("PHALANX_JOB_ID", &job);
            command.env("PHALANX_GENERATION", generation).spawn()
        };
        let (mut first, mut second) = (start("1").unwrap(), start("2").unwrap());
        guard(&job, Some("1"), io::empty());
        assert!(!first.wait().unwrap().success());
        assert!(second.try_wait().unwrap().is_none());
        guard(&job, None, io::empty());
        assert!(!second.wait().unwrap().success());
    }
}
