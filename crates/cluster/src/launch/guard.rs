//! What ends all that is left of a job when its supervisor has ended, in whatever way: a process that waits for the end of a pipe.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::process_group::{self, patiently};

/// Time to save something before the end.
const GRACE: Duration = Duration::from_secs(1);
/// How long nobody must be seen: a process that is being started has no variables yet.
const SETTLED: Duration = Duration::from_millis(500);
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
        command
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Neither a Ctrl-C nor the guard of an outer launch may end it.
            .process_group(0)
            .env_remove("PHALANX_JOB_ID");
        let mut child = patiently(process_group::PATIENCE, || command.spawn())?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, pipe })
    }

    /// Has it end what is left, and waits for that. Nothing is being started any more.
    pub fn finish(mut self) {
        // Where it is gone, so is what it would end.
        let _ = self.pipe.write_all(b"\n");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The guard's side: when `supervisor` ends, which is the end of a pipe, ends every process whose PHALANX_JOB_ID is `job`, and
/// PHALANX_GENERATION `generation` where one is given: first by SIGTERM, a second later by SIGKILL. Numbers of processes would not do: they
/// may be given to others. A job that is started again by another supervisor has another generation, which this guard leaves alone.
pub fn guard(job: &str, generation: Option<&str>, mut supervisor: impl Read) {
    // A supervisor that says nothing before was ended, maybe while it started a process.
    let was_ended = io::copy(&mut supervisor, &mut io::sink()).unwrap_or(0) == 0;
    let settled = if was_ended { SETTLED } else { Duration::ZERO };
    end_all(&marks(job, generation), settled);
}

/// Ends what is left of a job whose supervisor has ended long ago.
pub fn end_what_is_left(job: &str) {
    end_all(&marks(job, None), Duration::ZERO);
}

fn marks(job: &str, generation: Option<&str>) -> Vec<String> {
    let mut marks = vec![format!("PHALANX_JOB_ID={job}")];
    marks.extend(generation.map(|generation| format!("PHALANX_GENERATION={generation}")));
    marks
}

fn end_all(marks: &[String], settled: Duration) {
    end(marks, Signal::TERM, GRACE, settled);
    end(marks, Signal::KILL, PATIENCE, Duration::ZERO);
}

/// Signals each process with these variables once until none has been seen for `settled`, for no longer than `within`.
fn end(marks: &[String], signal: Signal, within: Duration, settled: Duration) {
    let until = Instant::now() + within;
    let mut seen = Instant::now();
    let mut signalled = HashSet::new();
    while Instant::now() < until {
        let left = processes_with(marks);
        if left.is_empty() && seen.elapsed() >= settled {
            return;
        }
        if !left.is_empty() {
            seen = Instant::now();
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

    /// A process with these variables, once they can be seen.
    fn start(job: &str, generation: &str) -> Child {
        let mut command = Command::new("sleep");
        command.arg("600").env("PHALANX_JOB_ID", job);
        command.env("PHALANX_GENERATION", generation);
        let child = command.spawn().unwrap();
        let marks = marks(job, Some(generation));
        let until = Instant::now() + Duration::from_secs(60);
        while processes_with(&marks).is_empty() {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        child
    }

    #[test]
    fn a_guard_of_a_generation_leaves_the_next_alone() {
        let job = format!("guard-test-{}", std::process::id());
        let [mut first, mut second] = ["1", "2"].map(|generation| start(&job, generation));
        guard(&job, Some("1"), io::empty());
        assert!(!first.wait().unwrap().success());
        assert!(second.try_wait().unwrap().is_none());
        end_what_is_left(&job);
        assert!(!second.wait().unwrap().success());
    }

    #[test]
    fn what_a_supervisor_was_starting_when_it_was_ended_is_waited_for() {
        let job = format!("guard-wait-{}", std::process::id());
        let start = Instant::now();
        guard(&job, None, io::empty());
        assert!(start.elapsed() >= SETTLED);
    }
}
