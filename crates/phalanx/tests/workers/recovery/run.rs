//! A training under the supervisor of `phalanx launch`, to whose workers something is done.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::{Console, Launch, Outcome, Show, Stop};

use super::trial::Fault;
use super::{FOLDER, GO};

/// Longer than any trial takes unless it hangs.
const LONG: Duration = Duration::from_secs(300);

/// Lines that a launch has printed, with the time of each.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<(Instant, String)>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes).into_owned();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push((Instant::now(), line));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn all(&self) -> Vec<(Instant, String)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn text(&self) -> String {
        self.all().into_iter().map(|(_, line)| line).collect()
    }

    /// From each kill to the first step made after it, where the training was not over before.
    pub(super) fn recoveries(&self, kills: &[Instant]) -> Vec<Duration> {
        let lines = self.all();
        let went_on = |killed: &Instant| {
            let mut later = lines.iter().filter(|(at, _)| at > killed);
            let (at, _) = later.find(|(_, line)| line.contains("goes on from step"))?;
            Some(at.duration_since(*killed))
        };
        kills.iter().filter_map(went_on).collect()
    }
}

/// How a training ended.
pub(super) struct Trained {
    /// What each worker wrote.
    pub(super) outs: Vec<String>,
    pub(super) lines: Lines,
    /// When each fault was done to a process.
    done: Vec<Instant>,
}

impl Trained {
    /// From each kill to the first step made after it, where the training was not over before.
    pub(super) fn recoveries(&self) -> Vec<Duration> {
        self.lines.recoveries(&self.done)
    }
}

/// How many processes of a rank (of any, if it is empty) have begun to train.
pub(crate) fn begun(folder: &Path, rank: &str) -> usize {
    let is_mark = |name: &str| {
        name.ends_with(".begun")
            && name
                .split('.')
                .next()
                .is_some_and(|of| rank.is_empty() || of == rank)
    };
    let files = std::fs::read_dir(folder).unwrap().flatten();
    files
        .filter(|file| file.file_name().to_str().is_some_and(is_mark))
        .count()
}

pub(crate) struct Run {
    pub(super) folder: PathBuf,
    job: String,
    pub(super) lines: Lines,
    /// What takes longer hangs.
    pub(super) patience: Duration,
}

impl Run {
    pub(crate) fn new(name: &str) -> Self {
        let job = format!("phalanx-recovery-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&job);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            folder,
            job,
            lines: Lines::default(),
            patience: LONG,
        }
    }

    pub(crate) fn launch(&self, workers: usize) -> Launch {
        let program = [
            "/usr/bin/env".into(),
            format!("{FOLDER}={}", self.folder.display()).into(),
            std::env::current_exe().unwrap().into_os_string(),
            "--exact".into(),
            "recovery::worker".into(),
            "--nocapture".into(),
        ];
        let workers = NonZeroUsize::new(workers).unwrap();
        let logs = self.folder.join("logs");
        let mut launch = Launch::new(program.into(), workers, &self.job, logs);
        launch.max_restarts = 5;
        launch.pin = false;
        launch.show = Show::All;
        launch.recover_within = Duration::from_secs(120);
        launch
    }

    pub(super) fn start(&self, launch: Launch) -> thread::JoinHandle<Outcome> {
        let console = Console {
            out: Box::new(io::sink()),
            err: Box::new(self.lines.clone()),
        };
        thread::spawn(move || launch.run(&Stop::default(), console, None).unwrap())
    }

    /// The processes of this job with this rank.
    pub(super) fn processes(&self, rank: usize) -> Vec<i32> {
        let wanted = [
            format!("PHALANX_JOB_ID={}", self.job),
            format!("RANK={rank}"),
        ];
        let has_all = |process: &i32| {
            let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            let variables: Vec<&[u8]> = variables.split(|byte| *byte == 0).collect();
            wanted.iter().all(|one| variables.contains(&one.as_bytes()))
        };
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
        numbers.filter(has_all).collect()
    }

    pub(super) fn signal(&self, rank: usize, signal: &str) -> bool {
        let processes = self.processes(rank);
        for process in &processes {
            let sent = Command::new("kill")
                .args([signal, &process.to_string()])
                .status();
            // It may have ended just now.
            let _ = sent.unwrap();
        }
        !processes.is_empty()
    }

    /// Waits until something holds.
    pub(super) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < self.patience,
                "not yet: {what}: {}",
                self.lines.text()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Trains with these faults.
    pub(super) fn train(&self, workers: usize, faults: &[Fault]) -> Trained {
        self.train_with(self.launch(workers), faults, "")
    }

    /// Trains with nothing done from outside; what each worker wrote.
    pub(crate) fn train_to_end(&self, launch: Launch) -> Vec<String> {
        self.train_with(launch, &[], "").outs
    }

    /// What the launch has printed.
    pub(crate) fn lines(&self) -> String {
        self.lines.text()
    }

    /// Trains with these faults, and slowly until `awaited` has been printed.
    pub(super) fn train_with(&self, launch: Launch, faults: &[Fault], awaited: &str) -> Trained {
        let workers = launch.workers.get();
        let running = self.start(launch);
        self.until("a worker trains", || {
            running.is_finished() || begun(&self.folder, "") > 0
        });
        let training = Instant::now();
        let mut done = Vec::new();
        for fault in faults {
            thread::sleep(fault.after.saturating_sub(training.elapsed()));
            let Some(pause) = fault.stopped else {
                if self.signal(fault.rank, "-KILL") {
                    done.push(Instant::now());
                }
                continue;
            };
            self.signal(fault.rank, "-STOP");
            thread::sleep(pause);
            self.signal(fault.rank, "-CONT");
        }
        self.until(awaited, || {
            running.is_finished() || self.lines.text().contains(awaited)
        });
        std::fs::write(self.folder.join(GO), "").unwrap();
        self.until("the end", || running.is_finished());
        let outcome = running.join().unwrap();
        assert_eq!(outcome.exit_code(), 0, "{outcome:?} {}", self.lines.text());
        Trained {
            outs: self.outs(workers),
            lines: self.lines.clone(),
            done,
        }
    }

    /// What each worker wrote; nothing of those that were lost for good.
    pub(super) fn outs(&self, workers: usize) -> Vec<String> {
        let read = |rank: usize| std::fs::read_to_string(self.folder.join(format!("{rank}.out")));
        (0..workers)
            .map(|rank| read(rank).unwrap_or_default())
            .collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
