//! What a server keeps on disk, so that another process can go on in its place: a snapshot, and all that was acknowledged since.
//!
//! `snapshot` is one frame that names a log; `log-<n>` has a frame for each request that changed something, in the order in which they
//! did. A snapshot is written beside and renamed, then the next log is begun; so at every instant the two belong together. A log may
//! end in half a frame, which was never acknowledged and is cut off. `job` says whose all this is.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::PsError;
use crate::message::{Frame, Request, decode_frame, encode_frame};

/// What survives what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing is kept: a server that dies ends the job.
    None,
    /// What was acknowledged survives the death of the server's process.
    #[default]
    Process,
    /// It survives the loss of power, too: each push waits for the disk.
    Disk,
}

/// A request that changed something, and whose it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) worker: usize,
    pub(crate) request: Request,
}

#[derive(Serialize, Deserialize)]
struct Snapshot<S> {
    log: u64,
    state: S,
}

/// The log of one state machine.
pub(crate) struct Log {
    folder: PathBuf,
    number: u64,
    file: File,
    syncs: bool,
    /// Bytes since the last snapshot.
    pub(crate) bytes: u64,
}

/// What was found of a state machine before: its snapshot with bytes, and what followed.
pub(crate) struct Found<S> {
    pub(crate) snapshot: Option<(S, Vec<u8>)>,
    pub(crate) requests: Vec<Frame<Entry>>,
}

impl Log {
    /// Opens the log of a folder, which is made, and reads what is there.
    pub(crate) fn open<S: DeserializeOwned>(
        folder: &Path,
        durability: Durability,
    ) -> Result<(Self, Found<S>), PsError> {
        let made = fs::create_dir_all(folder);
        made.map_err(|source| io("make", folder, source))?;
        let path = folder.join("snapshot");
        let snapshot: Option<Frame<Snapshot<S>>> = match File::open(&path) {
            Ok(file) => {
                let read = decode_frame(&mut BufReader::new(file));
                read.map_err(|why| {
                    PsError::Protocol(format!(
                        "{}: {why}; remove the folder to begin anew",
                        path.display()
                    ))
                })?
            }
            Err(_) => None,
        };
        let number = snapshot.as_ref().map_or(0, |frame| frame.message.log);
        let (file, requests, bytes) = read_log(&log_path(folder, number))?;
        let log = Self {
            folder: folder.to_owned(),
            number,
            file,
            syncs: durability == Durability::Disk,
            bytes,
        };
        let snapshot = snapshot.map(|frame| (frame.message.state, frame.bytes));
        Ok((log, Found { snapshot, requests }))
    }

    /// Keeps a request; when this returns it survives.
    pub(crate) fn append(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(), PsError> {
        let request = request.clone();
        let mut frame = encode_frame(&Entry { worker, request }, bytes)?;
        frame.extend_from_slice(bytes);
        let mut written = self.file.write_all(&frame);
        if self.syncs {
            written = written.and_then(|()| self.file.sync_data());
        }
        self.bytes += frame.len() as u64;
        written.map_err(|source| io("write", &log_path(&self.folder, self.number), source))
    }

    /// Keeps a state instead of all requests so far.
    pub(crate) fn snapshot(&mut self, state: &impl Serialize, bytes: &[u8]) -> Result<(), PsError> {
        let next = self.number + 1;
        let path = log_path(&self.folder, next);
        let file = File::create(&path).map_err(|source| io("create", &path, source))?;
        let snapshot = Snapshot { log: next, state };
        let head = encode_frame(&snapshot, bytes)?;
        let (new, path) = (
            self.folder.join("snapshot.new"),
            self.folder.join("snapshot"),
        );
        let write = || {
            let mut out = File::create(&new)?;
            out.write_all(&head)?;
            out.write_all(bytes)?;
            if self.syncs {
                out.sync_all()?;
                file.sync_all()?;
            }
            fs::rename(&new, &path)?;
            if self.syncs {
                File::open(&self.folder)?.sync_all()?;
            }
            Ok(())
        };
        write().map_err(|source| io("write", &new, source))?;
        let old = log_path(&self.folder, self.number);
        (self.number, self.file, self.bytes) = (next, file, 0);
        // What is left of it is never read.
        let _ = fs::remove_file(old);
        Ok(())
    }
}

/// Makes the folder of a server the one of a job. What it holds is taken up by the same job alone.
pub(crate) fn claim(folder: &Path, job: &str) -> Result<(), PsError> {
    let path = folder.join("job");
    let foreign = |whose: &str| {
        PsError::User(format!(
            "{} has the state of {whose}, which has not ended, and this is job `{job}`; remove the folder to begin anew, or name another",
            folder.display()
        ))
    };
    match fs::read_to_string(&path) {
        Ok(found) if found == job => return Ok(()),
        Ok(found) => return Err(foreign(&format!("job `{found}`"))),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(io("read", &path, source)),
    }
    if folder.join("control").exists() || folder.join("shards").exists() {
        return Err(foreign("a job without a name"));
    }
    let made = fs::create_dir_all(folder).and_then(|()| {
        let new = folder.join("job.new");
        fs::write(&new, job)?;
        fs::rename(new, &path)
    });
    made.map_err(|source| io("write", &path, source))
}

fn log_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number}"))
}

/// The whole frames of a log, and the file, cut after them.
fn read_log(path: &Path) -> Result<(File, Vec<Frame<Entry>>, u64), PsError> {
    let opened = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(path);
    let mut file = opened.map_err(|source| io("open", path, source))?;
    let mut requests = Vec::new();
    let mut whole = 0;
    {
        let mut reader = BufReader::new(&file);
        while let Ok(Some(frame)) = decode_frame(&mut reader) {
            whole = reader
                .stream_position()
                .map_err(|source| io("read", path, source))?;
            requests.push(frame);
        }
    }
    let cut = file
        .set_len(whole)
        .and_then(|()| file.seek(std::io::SeekFrom::End(0)));
    cut.map_err(|source| io("cut", path, source))?;
    Ok((file, requests, whole))
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> PsError {
    PsError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
