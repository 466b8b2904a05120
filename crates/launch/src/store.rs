//! Jobs on disk: a folder for each, with a log of events to which every process that acts on the job appends.
//!
//! A record is a line: the CRC-32C of the rest, then JSON. A line that was cut off by a crash is not read, and the next append removes
//! it. Who appends holds a lock on the log, reads what others have appended, and lets the state machine decide: so two processes cannot
//! both end a job, and what was written is what happened. Every record is on the disk before the call returns.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::lifecycle::{Event, Life, Refused, Submitted};
use crate::spec::JobName;

/// The name of the log in the folder of a job.
const LOG: &str = "events.log";
/// The file that the process which runs a job keeps locked.
const LOCK: &str = "supervisor.lock";

/// A folder of jobs.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// What went wrong with a job on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}; check that the folder can be written to and the disk has space", path.display())]
    Io {
        /// The verb of what was refused.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no such job.
    #[error("there is no job {0}; `phalanx jobs list` shows those there are")]
    NoJob(JobName),
    /// A job of this name was submitted before.
    #[error("a job {0} was submitted before, and names are not used twice; choose another")]
    Exists(JobName),
    /// The log is not one.
    #[error("{} is damaged from byte {at} on; what it says before that is used by nobody, keep or remove the folder", path.display())]
    Damaged {
        /// The log.
        path: PathBuf,
        /// The first byte of the record that is wrong.
        at: u64,
    },
    /// The job cannot become what was asked for.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// A job as far as its log has been read.
#[derive(Debug, Clone)]
pub struct Followed {
    /// What is known of it.
    pub life: Life,
    read: u64,
}

impl Followed {
    /// A job of which no log has been read.
    pub(crate) const fn new(life: Life) -> Self {
        Self { life, read: 0 }
    }
}

/// While this lives no other process runs the job.
#[derive(Debug)]
pub struct Supervision(#[allow(dead_code, reason = "closing it ends the lock")] File);

#[derive(Serialize, Deserialize)]
struct Record {
    at: u64,
    #[serde(flatten)]
    event: Event,
}

/// Milliseconds since 1970.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// How long ago something was. What came before the first look is known by the clock of the system, which may be set meanwhile; what comes
/// after that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    looked: Instant,
    before: Duration,
}

impl Age {
    /// Of what began at this time in milliseconds since 1970.
    #[must_use]
    pub fn since(began: u64) -> Self {
        Self {
            looked: Instant::now(),
            before: Duration::from_millis(now().saturating_sub(began)),
        }
    }

    /// How long ago it was.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.before + self.looked.elapsed()
    }
}

impl Store {
    /// The jobs in a folder, which is made, for its owner alone.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        make_folder(&root.join("jobs"))?;
        Ok(Self { root })
    }

    /// The jobs in a folder that need not be there.
    pub(crate) fn at(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// The folder of all.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a job.
    #[must_use]
    pub fn folder(&self, job: &JobName) -> PathBuf {
        self.root.join("jobs").join(job.as_str())
    }

    /// Takes a new job.
    ///
    /// # Errors
    /// There was one of that name, or the file system refuses.
    pub fn create(&self, job: Submitted) -> Result<Followed, StoreError> {
        let name = job.name.clone();
        let folder = self.folder(&name);
        // The folder appears with its log in it, or not at all.
        let new = folder.with_file_name(format!(".{name}.{}.{}", std::process::id(), now()));
        make_folder(&new)?;
        let at = now();
        let path = new.join(LOG);
        let wrong = |source| io_error("write", &path, source);
        let mut file = private().create_new(true).open(&path).map_err(wrong)?;
        let event = Event::Submitted {
            job: Box::new(job.clone()),
        };
        let line = line(&Record { at, event });
        file.write_all(&line)
            .and_then(|()| file.sync_all())
            .map_err(wrong)?;
        // `rename` replaces an empty folder, and that of a job is never empty.
        if let Err(source) = fs::rename(&new, &folder) {
            let _ = fs::remove_dir_all(&new);
            return Err(match folder.exists() {
                true => StoreError::Exists(name),
                false => io_error("make", &folder, source),
            });
        }
        let parent = File::open(self.root.join("jobs"));
        let _ = parent.and_then(|parent| parent.sync_all());
        Ok(Followed {
            life: Life::new(at, job),
            read: line.len() as u64,
        })
    }

    /// All jobs, in the order of their names. A log that is damaged is left out.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn names(&self) -> Result<Vec<JobName>, StoreError> {
        let path = self.root.join("jobs");
        let entries = fs::read_dir(&path).map_err(|source| io_error("read", &path, source))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut names: Vec<JobName> = entries.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Reads a job.
    ///
    /// # Errors
    /// There is none, its log is damaged, or the file system refuses.
    pub fn load(&self, job: &JobName) -> Result<Followed, StoreError> {
        let path = self.folder(job).join(LOG);
        let mut file = self.log(job, &path, false)?;
        let (mut state, mut read) = (None, 0);
        read_on(&path, &mut file, &mut state, &mut read)?;
        let life = state.ok_or(StoreError::Damaged { path, at: 0 })?;
        Ok(Followed { life, read })
    }

    /// Reads what was appended since. Returns whether anything was.
    ///
    /// # Errors
    /// As of [`Store::load`].
    pub fn refresh(&self, followed: &mut Followed) -> Result<bool, StoreError> {
        let name = followed.life.job.name.clone();
        let path = self.folder(&name).join(LOG);
        let length = fs::metadata(&path)
            .map_err(|_| StoreError::NoJob(name.clone()))?
            .len();
        if length <= followed.read {
            return Ok(false);
        }
        let mut file = self.log(&name, &path, false)?;
        let before = followed.read;
        let mut state = Some(followed.life.clone());
        read_on(&path, &mut file, &mut state, &mut followed.read)?;
        if let Some(life) = state {
            followed.life = life;
        }
        Ok(followed.read > before)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// It cannot happen in the state that the job is in by now, or as of [`Store::load`].
    pub fn append(&self, followed: &mut Followed, event: Event) -> Result<(), StoreError> {
        self.update(followed, |_| Ok::<_, StoreError>(Some(event)))
            .map(drop)
    }

    /// Appends what `decide` makes of the job as it is now, while nobody else appends. Returns whether that was anything.
    ///
    /// # Errors
    /// Those of `decide`, and as of [`Store::append`].
    pub fn update<E: From<StoreError>>(
        &self,
        followed: &mut Followed,
        decide: impl FnOnce(&Life) -> Result<Option<Event>, E>,
    ) -> Result<bool, E> {
        let name = followed.life.job.name.clone();
        let path = self.folder(&name).join(LOG);
        let mut file = self.log(&name, &path, true)?;
        file.lock()
            .map_err(|source| io_error("lock", &path, source))?;
        let mut state = Some(followed.life.clone());
        read_on(&path, &mut file, &mut state, &mut followed.read)?;
        if let Some(life) = state {
            followed.life = life;
        }
        let Some(event) = decide(&followed.life)? else {
            return Ok(false);
        };
        let at = now();
        let mut next = followed.life.clone();
        next.apply(at, event.clone()).map_err(StoreError::from)?;
        let line = line(&Record { at, event });
        let written = write_at(&mut file, followed.read, &line);
        written.map_err(|source| io_error("write", &path, source))?;
        followed.read += line.len() as u64;
        followed.life = next;
        Ok(true)
    }

    /// Takes the job for this process; `None` if another one runs it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn supervise(&self, job: &JobName) -> Result<Option<Supervision>, StoreError> {
        let path = self.folder(job).join(LOCK);
        let wrong = |source| io_error("lock", &path, source);
        let file = private().create(true).open(&path).map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Supervision(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(wrong(error)),
        }
    }

    fn log(&self, job: &JobName, path: &Path, write: bool) -> Result<File, StoreError> {
        let file = OpenOptions::new().read(true).write(write).open(path);
        file.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StoreError::NoJob(job.clone()),
            _ => io_error("open", path, source),
        })
    }
}

/// A file for its owner alone.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn make_folder(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|source| io_error("make", path, source))
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    StoreError::Io {
        action,
        path,
        source,
    }
}

/// Whatever a process that was killed left half written ends here.
fn write_at(file: &mut File, at: u64, line: &[u8]) -> io::Result<()> {
    file.set_len(at)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(line)?;
    file.sync_data()
}

fn line(record: &Record) -> Vec<u8> {
    // Maps with names as keys, and no numbers that JSON has not: this does not fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    let mut line = format!("{:08x} ", crc32c::crc32c(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    line
}

/// The event of a line without its end; `None` if it is damaged.
fn record(line: &[u8]) -> Option<Record> {
    let (sum, json) = (line.get(..9)?, line.get(9..)?);
    if sum != format!("{:08x} ", crc32c::crc32c(json)).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// Applies the records from `read` on. The last line counts only when it is whole; a damaged one before it is an error.
fn read_on(
    path: &Path,
    file: &mut File,
    state: &mut Option<Life>,
    read: &mut u64,
) -> Result<(), StoreError> {
    let mut bytes = Vec::new();
    let taken = file
        .seek(SeekFrom::Start(*read))
        .and_then(|_| file.read_to_end(&mut bytes));
    taken.map_err(|source| io_error("read", path, source))?;
    let mut rest = bytes.as_slice();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let damaged = || StoreError::Damaged {
            path: path.to_owned(),
            at: *read,
        };
        let Some(Record { at, event }) = record(&rest[..end]) else {
            // Blocks of a file that was growing when the power failed may be zeros or missing: only what follows would tell.
            let is_last = !rest[end + 1..].contains(&b'\n');
            return if is_last { Ok(()) } else { Err(damaged()) };
        };
        match (state.as_mut(), event) {
            (None, Event::Submitted { job }) => *state = Some(Life::new(at, *job)),
            (Some(life), event) => life.apply(at, event).map_err(|_| damaged())?,
            (None, _) => return Err(damaged()),
        }
        *read += end as u64 + 1;
        rest = &rest[end + 1..];
    }
    Ok(())
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
