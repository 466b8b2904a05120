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

/// The guard's side: when `supervisor` ends, which is the end of a pipe, ends every process whose PHALANX_JOB_ID is `job`: first by
/// SIGTERM, a second later by SIGKILL. Numbers of processes would not do: they may be given to others.
pub fn guard(job: &str, mut supervisor: impl Read) {
    let _ = io::copy(&mut supervisor, &mut io::sink());
    end(job, Signal::TERM, GRACE);
    end(job, Signal::KILL, PATIENCE);
}

/// Signals each process of the job once until none is left, for no longer than `within`.
fn end(job: &str, signal: Signal, within: Duration) {
    let until = Instant::now() + within;
    let mut signalled = HashSet::new();
    while Instant::now() < until {
        let left = processes_of(job);
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

/// The processes whose PHALANX_JOB_ID is `job`, but for this one.
fn processes_of(job: &str) -> Vec<Pid> {
    let wanted = format!("PHALANX_JOB_ID={job}");
    let has_it = |process: &i32| {
        let variables = fs::read(format!("/proc/{process}/environ"));
        variables.is_ok_and(|all| {
            all.split(|byte| *byte == 0)
                .any(|one| one == wanted.as_bytes())
        })
    };
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let own = std::process::id() as i32;
    let others = numbers.filter(|number: &i32| *number != own && has_it(number));
    others.filter_map(Pid::from_raw).collect()
}
