//! The directory of a checkpoint: its files written and read, with their checksums.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::thread;
use std::time::SystemTime;

use phalanx_graph::HostTensor;

use super::callbacks;
use super::history;
use super::manifest::{self, DOCUMENT, FileChecksum, FileChecksums, Manifest};
use super::{NamedTensors, ReadFrom, TrainingState};
use crate::saved::weights::{Tensors, read_all};
use crate::storage::atomic_dir::{DirectoryKind, Replaced, WEIGHTS, replace_file};
use crate::storage::foreign_ending::is_of_keras;
use crate::storage::problem;
use crate::storage::store::{Contents, OpenFile, Staging, Store};
use crate::{Error, Result};

const MANIFEST: &str = "checkpoint.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const EPOCH: &str = "epoch.safetensors";
const CALLBACKS: &str = "callbacks.safetensors";
const HISTORY: &str = "history.jsonl";
/// The one tensor of `epoch.safetensors`.
const SUMS: &str = "sums";

/// All files; the first says what the others are.
pub(super) const FILES: [&str; 6] = [MANIFEST, WEIGHTS, OPTIMIZER, EPOCH, CALLBACKS, HISTORY];

/// The directory of a checkpoint.
pub(super) const CHECKPOINT: DirectoryKind = DirectoryKind {
    what: "checkpoint",
    short: "checkpoint",
    writer: "save_checkpoint",
    example: "checkpoint",
    files: &FILES,
    is_ours: |text| DOCUMENT.is_ours(text),
};

/// Where the checkpoints at a path are: in a folder or in a bucket.
pub(super) fn store(path: &Path) -> Result<Store> {
    Store::at(path, &CHECKPOINT)
}

/// Writes a checkpoint; `older` of those before it stay beside it. `check` looks at the state while it is written. `may_write` is asked when all is written
/// but for what makes it the newest. Returns what the caller is to drop, which removes it.
pub(super) fn write(
    path: &Path,
    older: usize,
    state: &TrainingState,
    check: &(dyn Fn() -> Result<()> + Sync),
    may_write: &dyn Fn() -> Result<()>,
) -> Result<Replaced> {
    let write = |staging: &dyn Staging| {
        write_each(state, check, &mut |name, len, contents| {
            staging.put(name, len, contents)
        })
    };
    store(path)?.replace(older, write, may_write)
}

/// The files of a checkpoint in memory, with their names.
pub(super) fn write_bytes(state: &TrainingState) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    write_each(state, &|| Ok(()), &mut |name, len, contents| {
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
        contents(&mut bytes).map_err(|source| Error::Io {
            path: name.into(),
            action: "write",
            source,
        })?;
        files.push((name.to_owned(), bytes));
        Ok(())
    })?;
    Ok(files)
}

/// Writes a file of this name and of about this many bytes, whose contents the function that it is given writes.
type WriteFile<'a> = dyn FnMut(&str, u64, &mut Contents<'_>) -> Result<()> + 'a;

fn write_each(
    state: &TrainingState,
    check: &(dyn Fn() -> Result<()> + Sync),
    write: &mut WriteFile<'_>,
) -> Result<()> {
    let remembered = callbacks::tensors(&state.callbacks)?;
    let sums = state.sums.iter().map(|sums| (SUMS, sums));
    let mut files = vec![
        (WEIGHTS, Tensors::new(named(&state.variables))?),
        (OPTIMIZER, Tensors::new(named(&state.slots))?),
    ];
    if state.sums.is_some() {
        files.push((EPOCH, Tensors::new(sums)?));
    }
    if !remembered.is_empty() {
        files.push((CALLBACKS, Tensors::new(named(&remembered))?));
    }
    let history = history::write(&state.history)?;
    let checksums = thread::scope(|scope| {
        let beside = || check().map(|()| checksums_of(&files, &history));
        let checksums = thread::Builder::new().name("checksums".into());
        let checksums = checksums.spawn_scoped(scope, beside);
        for (name, tensors) in &files {
            write(name, tensors.len(), &mut |out| tensors.write(out))?;
        }
        write(HISTORY, history.len() as u64, &mut |out| {
            out.write_all(&history)
        })?;
        let bug = |_| {
            let message = "the thread that counts checksums has panicked";
            Err(Error::Bug(message.into()))
        };
        match checksums {
            Ok(thread) => thread.join().unwrap_or_else(bug),
            Err(_) => beside(),
        }
    })?;
    // Last: it vouches for the others.
    let callbacks = callbacks::values(&state.callbacks);
    let manifest = Manifest {
        callbacks,
        ..state.manifest.clone()
    };
    let manifest = manifest::write(&manifest, &checksums)?;
    write(MANIFEST, manifest.len() as u64, &mut |file| {
        file.write_all(&manifest)
    })
}

fn named(tensors: &NamedTensors) -> impl Iterator<Item = (&str, &HostTensor)> {
    tensors.iter().map(|(name, value)| (&**name, value))
}

/// The checksums of files of tensors and of the history, by their names.
fn checksums_of(files: &[(&str, Tensors<'_>)], history: &[u8]) -> FileChecksums {
    let of = |contents: &dyn Fn(&mut dyn Write) -> io::Result<()>| {
        let mut counted = Counted::new(io::sink());
        // Nowhere all is written.
        let _ = contents(&mut counted);
        counted.stamp
    };
    let tensors = files.iter();
    let tensors =
        tensors.map(|(name, tensors)| ((*name).to_owned(), of(&|out| tensors.write(out))));
    let history = (HISTORY.to_owned(), of(&|out| out.write_all(history)));
    tensors.chain([history]).collect()
}

/// Writes variables alone.
pub(super) fn write_weights(path: &Path, variables: &NamedTensors) -> Result<()> {
    if is_of_keras(path) {
        return Err(Error::user(format!(
            "`{}` is to be a file of Keras, which has values by the classes of layers, and a checkpoint has only the names of variables; write \
             `.safetensors`, or use the trained model: `phalanx export runs/digits {}`, with --checkpoint where its training was stopped",
            path.display(),
            path.display()
        )));
    }
    let tensors = Tensors::new(named(variables))?;
    replace_file(&CHECKPOINT, path, tensors.len(), |out| tensors.write(out))
}

/// A writer or reader that knows the stamp of what went through it.
struct Counted<T> {
    out: T,
    stamp: FileChecksum,
}

impl<T> Counted<T> {
    const fn new(out: T) -> Self {
        Self {
            out,
            stamp: FileChecksum {
                bytes: 0,
                crc32c: 0,
            },
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.stamp.bytes += bytes.len() as u64;
        self.stamp.crc32c = crc32c::crc32c_append(self.stamp.crc32c, bytes);
    }
}

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.count(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Read for Counted<&mut dyn Read> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.out.read(bytes)?;
        self.count(&bytes[..count]);
        Ok(count)
    }
}

/// A file being read, whether of a disk or of memory.
struct OpenSource<'a> {
    name: String,
    len: u64,
    bytes: Box<dyn Read + 'a>,
}

impl From<OpenFile> for OpenSource<'_> {
    fn from(opened: OpenFile) -> Self {
        Self {
            name: opened.name,
            len: opened.len,
            bytes: opened.bytes,
        }
    }
}

pub(super) fn read(path: &Path) -> Result<TrainingState> {
    let store = store(path)?;
    store.steadily(|| read_from(&store))
}

fn read_from(store: &Store) -> Result<TrainingState> {
    let (manifest, checksums, sources) = store.open(|files| {
        let mut manifest = files.file(MANIFEST)?;
        let text = manifest.contents()?;
        let (manifest, checksums) = manifest::read(&manifest.name, &text)?;
        let sources = checksums
            .keys()
            .map(|file| files.file(file).map(OpenSource::from));
        let sources: Vec<OpenSource<'_>> = sources.collect::<Result<_>>()?;
        Ok((manifest, checksums, sources))
    })?;
    state(manifest, &checksums, sources)
}

/// What tells a checkpoint in a folder from all others, whatever its name is by now. They are ordered as they were written. The time
/// alone does not tell them apart: file systems count it in steps of some milliseconds, and two saves can be within one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckpointId {
    /// When its manifest was written, which is written last and keeps its time when the directory gets another name.
    pub(crate) written: SystemTime,
    /// The number of updates that made it; none where the manifest is damaged.
    pub(crate) step: Option<i64>,
    /// The CRC-32C of the manifest, which has the checksums of all other files.
    crc32c: u32,
}

impl CheckpointId {
    /// That of the checkpoint in a folder; nothing where there is none.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let text = CHECKPOINT.open(folder, |files| files.file(MANIFEST)?.contents());
        let text = text.ok()?;
        let found = fs::metadata(folder.join(MANIFEST)).ok()?;
        let manifest = manifest::read(MANIFEST, &text).ok();
        Some(Self {
            written: found.modified().ok()?,
            step: manifest.map(|(manifest, _)| manifest.iterations),
            crc32c: crc32c::crc32c(&text),
        })
    }
}

/// The checkpoint at a path or, where it cannot be used, the newest of those before it that can; and of each that was left
/// out why.
pub(super) fn read_newest(path: &Path) -> Result<(TrainingState, Vec<String>)> {
    let store = store(path)?;
    let mut left_out = store.unfinished()?;
    let first = match store.steadily(|| read_from(&store)) {
        // What cannot be read now may be whole.
        Err(error @ Error::Io { .. }) => return Err(error),
        Err(error) => error,
        Ok(state) if left_out.is_empty() => return Ok((state, left_out)),
        Ok(state) => {
            left_out.push(taken(path, &state));
            return Ok((state, left_out));
        }
    };
    left_out.push(first.to_string());
    for older in store.older()? {
        match read(&older) {
            Ok(state) => {
                left_out.push(taken(&older, &state));
                return Ok((state, left_out));
            }
            Err(error) => left_out.push(error.to_string()),
        }
    }
    Err(first)
}

fn taken(path: &Path, state: &TrainingState) -> String {
    let step = state.iterations();
    format!("`{}`, after step {step}, is taken instead", path.display())
}

pub(super) fn read_bytes(contents: &[(&str, &[u8])]) -> Result<TrainingState> {
    let bytes = |name: &str| {
        let found = contents.iter().find(|(other, _)| *other == name);
        found
            .map(|(_, bytes)| *bytes)
            .ok_or_else(|| problem(name, "file", format!("is missing; {}", DOCUMENT.again)))
    };
    let (manifest, checksums) = manifest::read(MANIFEST, bytes(MANIFEST)?)?;
    let source = |name: &String| {
        let bytes = bytes(name)?;
        Ok(OpenSource {
            name: name.clone(),
            len: bytes.len() as u64,
            bytes: Box::new(bytes),
        })
    };
    let sources: Vec<OpenSource<'_>> = checksums.keys().map(source).collect::<Result<_>>()?;
    state(manifest, &checksums, sources)
}

/// The state from its files, in the order of their checksums.
fn state(
    mut manifest: Manifest,
    checksums: &FileChecksums,
    sources: Vec<OpenSource<'_>>,
) -> Result<TrainingState> {
    let (mut variables, mut slots, mut epoch, mut records) = (None, None, None, None);
    let mut remembered = Vec::new();
    for ((file, stamp), source) in checksums.iter().zip(sources) {
        match file.as_str() {
            WEIGHTS => variables = Some(tensors(source, stamp)?),
            OPTIMIZER => slots = Some(tensors(source, stamp)?),
            EPOCH => epoch = Some(tensors(source, stamp)?),
            CALLBACKS => remembered = tensors(source, stamp)?,
            _ => records = Some(text(source, stamp)?),
        }
    }
    let sums = epoch.map(|epoch| epoch.into_iter().find(|(name, _)| name == SUMS));
    let sums = sums.map(|sums| sums.map(|(_, sums)| sums).ok_or_else(|| unlisted(SUMS)));
    Ok(TrainingState {
        variables: variables.ok_or_else(|| unlisted(WEIGHTS))?,
        slots: slots.ok_or_else(|| unlisted(OPTIMIZER))?,
        sums: sums.transpose()?,
        history: records.ok_or_else(|| unlisted(HISTORY))?,
        callbacks: callbacks::states(&mut manifest, remembered)?,
        manifest,
        source: ReadFrom::default(),
    })
}

fn unlisted(what: &str) -> Error {
    let message = format!("`{what}` is not among them; {}", DOCUMENT.again);
    problem(MANIFEST, "files", message)
}

fn tensors(source: OpenSource<'_>, stamp: &FileChecksum) -> Result<NamedTensors> {
    checked(source, stamp, |name, bytes, len| read_all(name, bytes, len))
}

fn text(source: OpenSource<'_>, stamp: &FileChecksum) -> Result<Vec<history::EpochRecord>> {
    checked(source, stamp, |name, bytes, len| {
        let mut text = Vec::new();
        let read = bytes.take(len).read_to_end(&mut text);
        read.map_err(|source| Error::Io {
            path: name.into(),
            action: "read",
            source,
        })?;
        history::read(name, &text)
    })
}

/// What `read` makes of a file, which must have the stamp.
fn checked<T>(
    mut source: OpenSource<'_>,
    stamp: &FileChecksum,
    read: impl FnOnce(&str, &mut dyn Read, u64) -> Result<T>,
) -> Result<T> {
    let (name, again) = (&source.name, DOCUMENT.again);
    if source.len != stamp.bytes {
        let message = format!(
            "expected {} bytes, got {}; {again}",
            stamp.bytes, source.len
        );
        return Err(problem(name, "size", message));
    }
    let mut counted = Counted::new(&mut *source.bytes as &mut dyn Read);
    let value = read(name, &mut counted, source.len)?;
    if counted.stamp != *stamp {
        let message = format!(
            "does not fit `{MANIFEST}`, so the file was changed or is of another checkpoint; {again}"
        );
        return Err(problem(name, "crc32c", message));
    }
    Ok(value)
}

/// The value of a tensor as rows of `len` numbers.
pub(crate) fn rows(sums: &HostTensor, len: usize) -> Option<Vec<Vec<f64>>> {
    let is_table = matches!(*sums.dims(), [1..=usize::MAX, found] if found == len && len > 0);
    is_table.then(|| sums.to_f64().chunks(len).map(<[f64]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use phalanx_testkit::Scratch;
    use serde_json::{Value, json};

    use super::*;
    use crate::checkpoint::CallbackState;
    use crate::storage::document::{MAX_BYTES, MAX_VALUES};

    #[test]
    fn what_could_not_be_read_again_replaces_nothing() {
        let folder = Scratch::temporary("unreadable");
        let path = folder.join("checkpoint");
        let state = |kind: &str, values, tensors: &[&str]| {
            let tensors = tensors.iter();
            let tensors = tensors.map(|name| ((*name).to_owned(), HostTensor::scalar(1.0f32)));
            let tensors = tensors.collect();
            TrainingState {
                callbacks: vec![(kind.to_owned(), CallbackState { values, tensors })],
                ..TrainingState::of_values(Vec::new(), 1, 1)
            }
        };
        let kept = state("mine", json!(1), &["a", "a/b"]);
        kept.save(&path).unwrap();
        let nested = (0..200).fold(Value::Null, |inside, _| json!([inside]));
        let cases = [
            ("mine", json!("x".repeat(MAX_BYTES)), &[][..], "bytes"),
            ("mine", json!(vec![0; MAX_VALUES]), &[], "values"),
            ("mine", nested, &[], "recursion limit exceeded"),
            ("a/b", Value::Null, &["c"], "`a/b` remembers tensors"),
            ("mine", Value::Null, &["a", "a"], "two tensors `a`"),
        ];
        for (kind, values, tensors, expected) in cases {
            let error = state(kind, values, tensors).save(&path).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(TrainingState::load(&path).unwrap(), kept, "{expected}");
        }
        assert_eq!(folder.names(), ["checkpoint"]);
        state("a/b", json!(1), &[]).save(&path).unwrap();
        TrainingState::load(&path).unwrap();
    }

    #[test]
    fn rows_have_the_length_that_is_expected() {
        let values = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
        let table = HostTensor::new([2, 3], &values);
        let expected = vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
        assert_eq!(rows(&table, 3), Some(expected));
        let vector = HostTensor::new([6], &values);
        let none = HostTensor::new([0, 3], &[0.0f64; 0]);
        for (table, len) in [
            (&table, 2),
            (&table, 6),
            (&table, 0),
            (&vector, 6),
            (&none, 3),
        ] {
            assert_eq!(rows(table, len), None, "{:?} {len}", table.dims());
        }
    }
}
