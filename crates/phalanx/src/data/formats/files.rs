//! Files by pattern, and reads of them at a position.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use glob::{MatchOptions, Pattern};

use crate::{Error, Result};

/// The most files accepted from one pattern.
const MAX_FILES: usize = 1_000_000;
/// The most files that one reader keeps open; the others are opened for each read.
const MAX_OPEN: usize = 256;

/// How `*` and `?` match, as in a shell: not over slashes, and no hidden files.
pub(in crate::data) const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Whether a text names files by a pattern of [`files_matching`], not as a path.
#[must_use]
pub fn is_file_pattern(text: &str) -> bool {
    start_of_pattern(text).is_some()
}

/// Where the first sign of a pattern is.
pub(in crate::data) fn start_of_pattern(text: &str) -> Option<usize> {
    text.find(['*', '?', '['])
}

/// The files that a pattern of `*`, `?`, `[..]` and `**` names, sorted by path, so that their order is the same everywhere. Hidden ones
/// need a dot in the pattern.
///
/// # Errors
/// When the pattern is malformed, names no file or too many, or a folder on the way cannot be read.
pub fn files_matching(pattern: &str) -> Result<Vec<PathBuf>> {
    if Path::new(pattern).is_file() {
        return Ok(vec![pattern.into()]);
    }
    // Where it is asked to leave hidden files out, the library leaves them out of all patterns, and ends at names that are no UTF-8.
    let walked = MatchOptions {
        require_literal_leading_dot: false,
        ..MATCHING
    };
    let found = glob::glob_with(pattern, walked).map_err(|error| {
        Error::User(format!(
            "`{pattern}` is no pattern of files: {error}; write *, ? and [a-z] as in a shell"
        ))
    })?;
    let mut files = Vec::new();
    for path in found {
        let path = match path {
            Ok(path) => path,
            // Hidden folders are walked through, too.
            Err(error) if !is_asked_for(error.path(), pattern) => continue,
            Err(error) => return Err(io(error.path(), "read", error.error().kind().into())),
        };
        if is_asked_for(&path, pattern) && path.is_file() {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(Error::User(format!(
                "`{pattern}` names more than {MAX_FILES} files; narrow the pattern"
            )));
        }
    }
    if files.is_empty() {
        return Err(Error::User(format!(
            "`{pattern}` names no file; check the path and the pattern"
        )));
    }
    files.sort();
    Ok(files)
}

/// Whether each hidden part of a path has one in the pattern that names it with its dot.
fn is_asked_for(path: &Path, pattern: &str) -> bool {
    let is_hidden = |name: &str| name.starts_with('.');
    let names = |part: &str, name: &str| {
        Pattern::new(part).is_ok_and(|part| part.matches_with(name, MATCHING))
    };
    path.components().all(|component| match component {
        Component::Normal(name) => {
            let name = name.to_string_lossy();
            let mut parts = pattern.split('/').filter(|part| is_hidden(part));
            !is_hidden(&name) || parts.any(|part| names(part, &name))
        }
        _ => true,
    })
}

/// The file of a path, or those that it names where it is a pattern.
pub(in crate::data) fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let pattern = path.to_string_lossy();
    if path.is_file() || !is_file_pattern(&pattern) {
        return Ok(vec![path.to_owned()]);
    }
    files_matching(&pattern)
}

/// The error of a refused operation on a file.
pub(in crate::data) fn io(path: &Path, action: &'static str, source: std::io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

/// A file that is read at positions, from any thread.
#[derive(Debug)]
pub(super) struct InputFile {
    path: PathBuf,
    handle: Handle,
    stamp: FileStamp,
}

#[derive(Debug)]
enum Handle {
    Open(File),
    /// Opened for each read.
    Closed,
    /// The bytes of a compressed file, from this place on in a temporary file.
    Unpacked {
        spool: Arc<File>,
        from: u64,
    },
}

/// What changes when a file is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    /// Bytes.
    pub(super) len: u64,
    /// Nanoseconds since 1970; 0 where the system does not say.
    pub(super) modified: u64,
}

impl FileStamp {
    fn of(metadata: &Metadata) -> Self {
        let modified = metadata.modified().ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            len: metadata.len(),
            modified: since.map_or(0, |since| since.as_nanos() as u64),
        }
    }
}

impl InputFile {
    /// Opens files; the first few hundred stay open.
    pub(super) fn open_all(paths: Vec<PathBuf>) -> Result<Vec<Self>> {
        let opened = paths.into_iter().enumerate();
        opened
            .map(|(at, path)| Self::open(path, at < MAX_OPEN))
            .collect()
    }

    fn open(path: PathBuf, keep: bool) -> Result<Self> {
        let file = File::open(&path).map_err(|error| io(&path, "open", error))?;
        let metadata = file.metadata().map_err(|error| io(&path, "read", error))?;
        let stamp = FileStamp::of(&metadata);
        let handle = match keep {
            true => Handle::Open(file),
            false => Handle::Closed,
        };
        Ok(Self {
            path,
            handle,
            stamp,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) const fn stamp(&self) -> FileStamp {
        self.stamp
    }

    pub(super) const fn len(&self) -> u64 {
        self.stamp.len
    }

    /// The file as it is without its compression: `len` bytes of a temporary file, from `from` on.
    pub(super) fn unpacked(self, spool: Arc<File>, from: u64, len: u64) -> Self {
        let handle = Handle::Unpacked { spool, from };
        let stamp = FileStamp { len, ..self.stamp };
        Self {
            handle,
            stamp,
            ..self
        }
    }

    /// Whether what is read is not what stands in the file.
    pub(super) const fn is_unpacked(&self) -> bool {
        matches!(self.handle, Handle::Unpacked { .. })
    }

    /// A separate handle, for reading from the start.
    pub(super) fn reopen(&self) -> Result<File> {
        let opened = match &self.handle {
            Handle::Unpacked { spool, from } => spool.try_clone().and_then(|mut file| {
                file.seek(SeekFrom::Start(*from))?;
                Ok(file)
            }),
            _ => File::open(&self.path),
        };
        opened.map_err(|error| io(&self.path, "open", error))
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// When the file is shorter by now, or cannot be read.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let read = match &self.handle {
            Handle::Open(file) => file.read_exact_at(bytes, offset),
            Handle::Closed => self.reopen()?.read_exact_at(bytes, offset),
            Handle::Unpacked { spool, from } => spool.read_exact_at(bytes, from + offset),
        };
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.corrupt(
                offset,
                &format!(
                    "the file ends before {} bytes were read; it was cut, or has changed since it was opened",
                    bytes.len()
                ),
            ),
            _ => io(&self.path, "read", error),
        })
    }

    /// The error of bytes that are not what their place needs.
    pub(super) fn corrupt(&self, offset: u64, message: &str) -> Error {
        Error::Data {
            source_name: self.name(),
            place: format!("byte {offset}"),
            message: message.to_owned(),
        }
    }

    /// The same of a record, which begins there.
    pub(super) fn corrupt_record(&self, record: usize, offset: u64, message: &str) -> Error {
        Error::Data {
            source_name: self.name(),
            place: format!("record {record} at byte {offset}"),
            message: message.to_owned(),
        }
    }
}

/// Where item `i` is: the file and the index in it, from the number of items before each file and the total.
pub(in crate::data) fn locate(firsts: &[usize], i: usize) -> (usize, usize) {
    let file = firsts.partition_point(|&first| first <= i) - 1;
    (file, i - firsts[file])
}

/// The number of items before each file.
pub(super) fn firsts(counts: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let sums = counts.into_iter().scan(0, |sum, count| {
        let first = *sum;
        *sum += count;
        Some(first)
    });
    sums.collect()
}

/// The error of an index past the end.
pub(super) fn past_the_end(what: &str, i: usize, len: usize) -> Error {
    Error::User(format!(
        "{what} {i} asked of {len}; ask for an index below {len}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_sorted_files() {
        use std::os::unix::ffi::OsStrExt;

        let folder = crate::data::test_folder::create("patterns");
        // A hidden file is meant by no pattern without a dot, as in a shell.
        for name in ["b.txt", "a.txt", "c.bin", "[odd].txt", ".a.txt"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let pattern = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let names = |pattern: &str| -> Vec<String> {
            let files = files_matching(pattern).unwrap().into_iter();
            files
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(names(&pattern("?.txt")), ["a.txt", "b.txt"]);
        assert_eq!(names(&pattern("[odd].txt")), ["[odd].txt"]);
        assert_eq!(names(&pattern(".?.txt")), [".a.txt"]);
        std::fs::create_dir(folder.join(".parts")).unwrap();
        std::fs::write(folder.join(".parts/d.bin"), "").unwrap();
        assert_eq!(names(&pattern(".parts/*.bin")), ["d.bin"]);
        assert_eq!(names(&pattern(".p*/?.bin")), ["d.bin"]);
        assert_eq!(names(&pattern("**/*.bin")), ["c.bin"]);
        // A name in no encoding of text is no file of a pattern.
        let name = std::ffi::OsStr::from_bytes(b"\xe9.txt");
        if std::fs::write(folder.join(name), "").is_ok() {
            assert_eq!(names(&pattern("?.txt")), ["a.txt", "b.txt"]);
        }
        for (bad, expected) in [("*.png", "names no file"), ("a[", "no pattern of files")] {
            let error = files_matching(&pattern(bad)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn items_are_found_in_their_files() {
        let firsts = firsts([2, 0, 3]);
        assert_eq!(firsts, [0, 2, 2]);
        let found: Vec<_> = (0..5).map(|i| locate(&firsts, i)).collect();
        assert_eq!(found, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
    }

    #[test]
    fn a_file_that_was_cut_is_named() {
        let path = crate::data::test_folder::create("cut").join("f");
        std::fs::write(&path, "12345").unwrap();
        let file = InputFile::open_all(vec![path]).unwrap().remove(0);
        let error = file.read_at(&mut [0; 4], 3).unwrap_err().to_string();
        assert!(
            error.contains("f: byte 3: the file ends before 4"),
            "{error}"
        );
    }
}
