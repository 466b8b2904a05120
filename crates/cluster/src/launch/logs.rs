//! The output of workers: a file for each stream, some of it on the console, and the last lines kept for when a worker fails.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::readers::Readers;
use super::{Console, Launch, LaunchError, Show};

/// Lines kept of each worker.
const LAST_LINES: usize = 20;
/// A longer line is passed on in parts.
const LONGEST_LINE: u64 = 64 << 10;

/// One of the two streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Where the output of all workers goes.
pub(super) struct Logs {
    folder: PathBuf,
    show: Show,
    console: Arc<Mutex<Console>>,
    names: Vec<String>,
    /// The first of the workers that are there.
    chief: Arc<AtomicUsize>,
    last: Vec<Arc<Mutex<VecDeque<String>>>>,
    readers: Vec<Readers>,
}

impl Logs {
    pub(super) fn new(launch: &Launch, console: Console) -> Result<Self, LaunchError> {
        fs::create_dir_all(&launch.logs).map_err(|source| LaunchError::Logs {
            path: launch.logs.clone(),
            source,
        })?;
        Ok(Self {
            folder: launch.logs.clone(),
            show: launch.show.clone(),
            console: Arc::new(Mutex::new(console)),
            names: (0..launch.processes()).map(|at| launch.name(at)).collect(),
            chief: Arc::default(),
            last: (0..launch.processes()).map(|_| Arc::default()).collect(),
            readers: (0..launch.processes())
                .map(|_| Readers::default())
                .collect(),
        })
    }

    /// The file of a worker's stream.
    pub(super) fn path(&self, rank: usize, stream: Stream) -> PathBuf {
        let end = match stream {
            Stream::Out => "out",
            Stream::Err => "err",
        };
        self.folder.join(format!("{}.{end}", self.names[rank]))
    }

    /// Takes the output of a stream until it ends, on a thread of its own.
    pub(super) fn follow(
        &self,
        rank: usize,
        stream: Stream,
        from: impl Read + Send + 'static,
    ) -> Result<(), LaunchError> {
        let path = self.path(rank, stream);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|source| LaunchError::Logs { path, source })?;
        let mut sink = Sink {
            file,
            console: Arc::clone(&self.console),
            show: self.show.clone(),
            chief: Arc::clone(&self.chief),
            rank,
            name: self.names[rank].replace('-', ""),
            stream,
            last: Arc::clone(&self.last[rank]),
        };
        let read = move || sink.take_all(from);
        let started = self.readers[rank].start(format!("worker-{rank}-output"), read);
        started.map_err(LaunchError::Watch)
    }

    /// Shows from now on the output of this worker as the first one's.
    pub(super) fn set_chief(&self, rank: usize) {
        self.chief.store(rank, Ordering::Relaxed);
    }

    /// Waits until all output of a worker that has ended was taken, before another one writes to its files.
    pub(super) fn finish_worker(&mut self, rank: usize, within: Duration) {
        self.readers[rank].finish(within);
    }

    /// Waits until all output has been taken, for no longer than `within`.
    pub(super) fn finish(&mut self, within: Duration) {
        let until = Instant::now() + within;
        for readers in &mut self.readers {
            readers.finish(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Tells something on standard error, between the lines of workers.
    pub(super) fn teller(&self) -> impl FnMut(&str) + Send + 'static {
        let console = Arc::clone(&self.console);
        move |line: &str| {
            let mut console = console.lock().unwrap_or_else(PoisonError::into_inner);
            // A console that is gone must not stop the training.
            let _ = writeln!(console.err, "launch: {line}");
        }
    }

    /// The last lines of a worker, of both streams as they came.
    pub(super) fn last_lines(&self, rank: usize) -> Vec<String> {
        let last = self.last[rank]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        last.iter().cloned().collect()
    }
}

struct Sink {
    file: File,
    console: Arc<Mutex<Console>>,
    show: Show,
    chief: Arc<AtomicUsize>,
    rank: usize,
    name: String,
    stream: Stream,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Sink {
    fn take_all(&mut self, from: impl Read) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from
                .by_ref()
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut line)
            {
                Ok(0) | Err(_) => return,
                Ok(_) => self.take(&line),
            }
        }
    }

    /// A disk that is full or a console that is gone must not stop the training.
    fn take(&mut self, line: &[u8]) {
        let _ = self.file.write_all(line);
        self.show(line);
        let text = String::from_utf8_lossy(line);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text.trim_end_matches(['\n', '\r']).to_owned());
    }

    /// What stands before each shown line; `None` if none is shown.
    fn prefix(&self) -> Option<String> {
        let shown = match &self.show {
            Show::Chief if self.rank == self.chief.load(Ordering::Relaxed) => {
                return Some(String::new());
            }
            Show::Chief => self.stream == Stream::Err,
            Show::Ranks(ranks) => ranks.contains(&self.rank),
            Show::All => true,
        };
        shown.then(|| format!("[{}] ", self.name))
    }

    fn show(&self, line: &[u8]) {
        let Some(prefix) = self.prefix() else {
            return;
        };
        let mut text = Vec::with_capacity(prefix.len() + line.len() + 1);
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            text.push(b'\n');
        }
        let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        let sink = match self.stream {
            Stream::Out => &mut console.out,
            Stream::Err => &mut console.err,
        };
        let _ = sink.write_all(&text).and_then(|()| sink.flush());
    }
}
