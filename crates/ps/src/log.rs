//! What a server keeps on disk, so that another process can go on in its place: a snapshot, and all that was acknowledged since.
//!
//! `snapshot` is one frame that names a log; `log-<n>` has a frame for each request that changed something, in the order in which they
//! did. A snapshot is written beside and renamed, then the next log is begun; so at every instant the two belong together. A log may
//! end in half a frame, which was never acknowledged and is cut off, or, after a loss of power, in zeros instead of one or of its last
//! blocks: its length was written and these data were not. All else that cannot be read is an error. `job` says whose all this is.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::PsError;
use crate::message::{
    Frame, FrameProblem, HEADER, MAGIC, RawFrame, Request, decode_frame, encode_frame,
};
use crate::server::Tell;

/// What a disk writes as a whole, at the least, from where a file begins.
const BLOCK: u64 = 4096;

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
    /// Bytes since the last snapshot: the length of the file.
    pub(crate) bytes: u64,
    /// The bytes from which a snapshot is tried again that has failed.
    retry_at: u64,
    broken: Broken,
}

/// Why nothing more is kept in a log, once that is so: what is on disk may not be what the server has. It ends then, and comes back
/// with what is there.
pub(crate) type Broken = Arc<OnceLock<String>>;

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
        let snapshot: Option<Frame<Snapshot<S>>> = read_snapshot(&folder.join("snapshot"))?;
        let number = snapshot.as_ref().map_or(0, |frame| frame.message.log);
        let (file, requests, bytes) = read_log(&log_path(folder, number), snapshot.is_some())?;
        let syncs = durability == Durability::Disk;
        if syncs {
            // Its name and the log's.
            folder.parent().map_or(Ok(()), sync_folder)?;
            sync_folder(folder)?;
        }
        let log = Self {
            folder: folder.to_owned(),
            number,
            file,
            syncs,
            bytes,
            retry_at: 0,
            broken: Broken::default(),
        };
        let snapshot = snapshot.map(|frame| (frame.message.state, frame.bytes));
        Ok((log, Found { snapshot, requests }))
    }

    /// Keeps a request; when this returns it survives. Where it cannot be kept the log is as before, or broken.
    pub(crate) fn append(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(), PsError> {
        self.check()?;
        let request = request.clone();
        let mut frame = encode_frame(&Entry { worker, request }, bytes)?;
        frame.extend_from_slice(bytes);
        let mut written = self.file.write_all(&frame);
        if self.syncs {
            written = written.and_then(|()| self.file.sync_data());
        }
        if let Err(source) = written {
            let error = io("write", &log_path(&self.folder, self.number), source);
            // What follows half a frame would not be read.
            if self.cut().is_err() {
                self.give_up(&error);
            }
            return Err(error);
        }
        self.bytes += frame.len() as u64;
        Ok(())
    }

    /// Removes what was written of a frame.
    fn cut(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes)).map(drop)
    }

    /// Nothing more is kept, since of this error.
    pub(crate) fn give_up(&self, error: &PsError) {
        let line = format!("{error}; start the server again: it goes on with what it has kept");
        let _ = self.broken.set(line);
    }

    /// An error where nothing more is kept.
    pub(crate) fn check(&self) -> Result<(), PsError> {
        match self.broken.get() {
            Some(why) => Err(PsError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    /// Where it is said that nothing more is kept.
    pub(crate) fn broken(&self) -> Broken {
        Arc::clone(&self.broken)
    }

    /// Writes a snapshot where one is due, after a number of bytes. One that fails, as on a disk that is full, is tried again after as many
    /// more: nothing is lost by it, and what was asked is kept in the log.
    pub(crate) fn snapshot_if_due(
        &mut self,
        after: u64,
        tell: &Tell,
        write: impl FnOnce(&mut Self) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        if self.bytes < after.max(self.retry_at) {
            return Ok(());
        }
        let Err(error) = write(self) else {
            self.retry_at = 0;
            return Ok(());
        };
        self.check()?;
        self.retry_at = self.bytes + after;
        let (bytes, folder) = (self.bytes, self.folder.display());
        (tell.0)(&format!(
            "no snapshot of the {bytes} bytes of the log in {folder}, which goes on growing: {error}"
        ));
        Ok(())
    }

    /// Keeps a state instead of all requests so far. Where that fails all is as before, or the log is broken.
    pub(crate) fn snapshot(&mut self, state: &impl Serialize, bytes: &[u8]) -> Result<(), PsError> {
        let replaced = self.replace(state, bytes);
        if replaced.is_err() && self.check().is_ok() {
            // They take room, which may be what is missing.
            for left in [
                self.folder.join("snapshot.new"),
                log_path(&self.folder, self.number + 1),
            ] {
                let _ = fs::remove_file(left);
            }
        }
        replaced
    }

    fn replace(&mut self, state: &impl Serialize, bytes: &[u8]) -> Result<(), PsError> {
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
            fs::rename(&new, &path)
        };
        write().map_err(|source| io("write", &new, source))?;
        let old = log_path(&self.folder, self.number);
        // From here on the log is the one that the snapshot names.
        (self.number, self.file, self.bytes) = (next, file, 0);
        if self.syncs {
            sync_folder(&self.folder).inspect_err(|error| self.give_up(error))?;
        }
        // What is left of it is never read.
        let _ = fs::remove_file(old);
        Ok(())
    }
}

/// Makes the folder of a server the one of a job. What it holds is taken up by the same job alone.
pub(crate) fn claim(folder: &Path, job: &str, durability: Durability) -> Result<(), PsError> {
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
        let mut file = File::create(&new)?;
        file.write_all(job.as_bytes())?;
        if durability == Durability::Disk {
            file.sync_all()?;
        }
        fs::rename(new, &path)
    });
    made.map_err(|source| io("write", &path, source))?;
    match (durability, folder.parent()) {
        (Durability::Disk, Some(parent)) => sync_folder(folder).and_then(|()| sync_folder(parent)),
        _ => Ok(()),
    }
}

/// Waits until the disk has the names in a folder.
fn sync_folder(folder: &Path) -> Result<(), PsError> {
    // The parent of a name alone.
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| io("write", folder, source))
}

fn log_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number}"))
}

/// The snapshot, unless there is none.
fn read_snapshot<S: DeserializeOwned>(path: &Path) -> Result<Option<Frame<S>>, PsError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io("open", path, source)),
    };
    match decode_frame(&mut BufReader::new(file)) {
        Ok(Some(frame)) => Ok(Some(frame)),
        Ok(None) => Err(unreadable(path, "the file is empty")),
        Err(why) => Err(unreadable(path, &why.to_string())),
    }
}

/// The whole frames of a log, and the file, cut after them where half a frame or zeros follow or end it. A log that a snapshot names was there
/// with it.
fn read_log(path: &Path, is_named: bool) -> Result<(File, Vec<Frame<Entry>>, u64), PsError> {
    let opened = OpenOptions::new()
        .create(!is_named)
        .read(true)
        .write(true)
        .truncate(false)
        .open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        ErrorKind::NotFound => unreadable(path, "the log that the snapshot names is gone"),
        _ => io("open", path, source),
    })?;
    let failed = |source| io("read", path, source);
    let mut requests = Vec::new();
    let mut whole = 0;
    let mut reader = BufReader::new(&file);
    loop {
        match decode_frame(&mut reader) {
            Ok(Some(frame)) => {
                whole = reader.stream_position().map_err(failed)?;
                requests.push(frame);
            }
            Ok(None) => break,
            Err(FrameProblem::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                if has_frame_after(&file, whole).map_err(failed)? {
                    return Err(unreadable(path, "a message in it has another length"));
                }
                break;
            }
            Err(FrameProblem::NotOurs(_)) if is_unwritten(&file, whole).map_err(failed)? => break,
            Err(why) => return Err(unreadable(path, &why.to_string())),
        }
    }
    let cut = file
        .set_len(whole)
        .and_then(|()| file.seek(SeekFrom::End(0)));
    cut.map_err(|source| io("cut", path, source))?;
    Ok((file, requests, whole))
}

/// Whether a whole frame follows somewhere after the begin of one at `from`: that one was written to its end, then, and is damaged.
fn has_frame_after(mut file: &File, from: u64) -> std::io::Result<bool> {
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut rest)?;
    let mut begins = (1..rest.len()).filter(|at| rest[*at..].starts_with(&MAGIC));
    Ok(begins.any(|at| decode_frame::<Entry>(&mut &rest[at..]).is_ok()))
}

/// Whether the bytes from `from` on are the last frame, of which all or the last blocks are zeros.
fn is_unwritten(mut file: &File, from: u64) -> std::io::Result<bool> {
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut rest)?;
    let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
        return Ok(true);
    };
    let written = (from + last as u64 + 1).next_multiple_of(BLOCK);
    if !rest.starts_with(&MAGIC) || written >= from + rest.len() as u64 {
        return Ok(false);
    }
    // A frame whose checksum fits is whole. Another that ends sooner was written before what follows.
    let mut after = &rest[..];
    let is_last = RawFrame::read(&mut after, u64::MAX).is_err() && after.is_empty();
    let has_header = written >= from + HEADER as u64;
    Ok((is_last || !has_header) && !has_frame_after(file, from)?)
}

/// What was kept cannot be taken up, and nothing of it is changed.
fn unreadable(path: &Path, why: &str) -> PsError {
    PsError::Protocol(format!(
        "{}: {why}; remove the folder to begin anew",
        path.display()
    ))
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> PsError {
    PsError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Log {
        /// From now on nothing can be written, as on a disk that has failed.
        pub(crate) fn fail(&mut self) {
            self.file = File::open(log_path(&self.folder, self.number)).unwrap();
        }
    }

    /// An empty folder.
    pub(crate) fn folder(test: &str) -> PathBuf {
        let name = format!("phalanx-ps-log-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn open(folder: &Path) -> (Log, Vec<Request>) {
        let (log, found): (_, Found<()>) = Log::open(folder, Durability::Disk).unwrap();
        let requests = found.requests.into_iter();
        (log, requests.map(|frame| frame.message.request).collect())
    }

    /// A write that fails may leave a part of a frame, as on a disk that is full.
    #[test]
    fn what_follows_half_a_frame_is_read() {
        let folder = folder("half");
        let (mut log, _) = open(&folder);
        log.append(0, &Request::OpenTasks, &[]).unwrap();
        log.file.write_all(b"PHXP and no more").unwrap();
        log.cut().unwrap();
        log.append(0, &Request::CloseTasks, &[]).unwrap();
        let (_, requests) = open(&folder);
        assert_eq!(requests, [Request::OpenTasks, Request::CloseTasks]);
        fs::remove_dir_all(&folder).unwrap();
    }

    /// What was acknowledged is not thrown away unread: the one who starts the server decides.
    #[test]
    fn a_damaged_log_is_an_error_and_stays_as_it_is() {
        let folder = folder("damaged");
        let (mut log, _) = open(&folder);
        let put = Request::Put { key: "k".into() };
        let mut ends = Vec::new();
        for _ in 0..3 {
            log.append(0, &put, &[1; 50]).unwrap();
            ends.push(log.bytes as usize);
        }
        let path = log_path(&folder, 0);
        let good = fs::read(&path).unwrap();
        let read = || Log::open::<()>(&folder, Durability::Process);
        let refused = || {
            let shown = read().err().unwrap().to_string();
            assert!(shown.contains("remove the folder to begin anew"), "{shown}");
        };
        // The magic, the checksum, the lengths of the text and the bytes, and what follows.
        for at in [0, 5, 9, 13, 30, ends[1] - ends[0] - 1] {
            let mut bad = good.clone();
            bad[ends[0] + at] ^= 1;
            fs::write(&path, &bad).unwrap();
            refused();
            assert_eq!(fs::read(&path).unwrap(), bad, "byte {at}");
        }
        for torn in [ends[1] + 1, ends[1] + 10, ends[2] - 1] {
            fs::write(&path, &good[..torn]).unwrap();
            assert_eq!(read().unwrap().1.requests.len(), 2, "{torn}");
            assert_eq!(fs::read(&path).unwrap(), good[..ends[1]]);
        }
        // Fewer than a header has, as many, and more than are read at once.
        for zeros in [1, 20, 21, 100_000] {
            let mut bytes = good[..ends[1]].to_vec();
            bytes.resize(ends[1] + zeros, 0);
            fs::write(&path, &bytes).unwrap();
            assert_eq!(read().unwrap().1.requests.len(), 2, "{zeros}");
            assert_eq!(fs::read(&path).unwrap(), good[..ends[1]]);
            // What follows zeros was written after them.
            for more in [&good[ends[1]..], &[1; 20]] {
                let bad = [&bytes, more].concat();
                fs::write(&path, &bad).unwrap();
                refused();
                assert_eq!(fs::read(&path).unwrap(), bad, "{zeros}");
            }
        }
        fs::write(&path, &good[..ends[1]]).unwrap();
        check_unwritten_blocks(&folder);
        let (mut log, _) = open(&folder);
        log.snapshot(&(), &[]).unwrap();
        fs::remove_file(log_path(&folder, 1)).unwrap();
        refused();
        fs::write(folder.join("snapshot"), []).unwrap();
        refused();
        fs::remove_dir_all(&folder).unwrap();
    }

    /// The last frame is of several blocks, and of these the last were not written when the power was lost.
    fn check_unwritten_blocks(folder: &Path) {
        let (path, block) = (log_path(folder, 0), BLOCK as usize);
        let before = fs::read(&path).unwrap();
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let read = Log::open::<()>(folder, Durability::Process);
            let left = fs::read(&path).unwrap();
            read.ok().map(|(_, found)| (found.requests.len(), left))
        };
        let put = Request::Put { key: "k".into() };
        // It begins with a block, in one, and so late that its header is of two.
        for begin in [block, block + block / 2, 2 * block - HEADER / 2] {
            fs::write(&path, &before).unwrap();
            let (mut log, requests) = open(folder);
            let known = requests.len() + 1;
            let (worker, request) = (0, put.clone());
            let head = encode_frame(&Entry { worker, request }, &[]).unwrap();
            let fill = begin - before.len() - head.len();
            log.append(0, &put, &vec![1; fill]).unwrap();
            log.append(0, &put, &[1; 3 * BLOCK as usize]).unwrap();
            let good = fs::read(&path).unwrap();
            for from in (begin + 1..good.len()).filter(|from| from % block == 0) {
                let mut bytes = good.clone();
                bytes[from..].fill(0);
                let cut = Some((known, good[..begin].to_vec()));
                assert!(read(&bytes) == cut, "{begin} {from}");
                // What was written after zeros.
                *bytes.last_mut().unwrap() = 1;
                assert_eq!(read(&bytes), None, "{begin} {from}");
            }
            // All of it was written, and is damaged; so it is where another that was not written follows.
            let mut bytes = good.clone();
            bytes[begin + 100] ^= 1;
            assert_eq!(read(&bytes), None, "{begin}");
            bytes.resize(good.len() + 3 * block, 0);
            assert_eq!(read(&bytes), None, "{begin}");
        }
        fs::write(&path, &before).unwrap();
    }

    #[test]
    fn a_log_that_cannot_be_cut_takes_nothing_more() {
        let folder = folder("broken");
        let (mut log, _) = open(&folder);
        log.append(0, &Request::OpenTasks, &[]).unwrap();
        log.fail();
        let error = log.append(0, &Request::CloseTasks, &[]).unwrap_err();
        assert!(matches!(error, PsError::Io { .. }), "{error}");
        let (file, ..) = read_log(&log_path(&folder, 0), false).unwrap();
        log.file = file;
        let error = log.append(0, &Request::CloseTasks, &[]).unwrap_err();
        assert!(
            error.to_string().contains("start the server again"),
            "{error}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
