//! Where checkpoints are kept: a folder of this machine, or a bucket. What is saved, and how it is read, is the same for both.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx_store::ObjectUrl;

use super::atomic_dir::{DirectoryFiles, DirectoryKind, Replaced, refused};
use super::disk::remove_file;
use super::document::MAX_BYTES;
use super::objects::ObjectDir;
use super::staging::StagingDir;
use crate::Result;

/// An open file of such a directory.
pub(crate) struct OpenFile {
    pub(crate) bytes: Box<dyn Read>,
    pub(crate) len: u64,
    pub(crate) name: String,
}

impl OpenFile {
    /// The contents of a JSON file; of one that is too long, one byte more than is allowed.
    pub(crate) fn contents(&mut self) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        let most = MAX_BYTES as u64 + 1;
        let read = (&mut self.bytes).take(most).read_to_end(&mut contents);
        read.map_err(refused("read", Path::new(&self.name)))?;
        Ok(contents)
    }
}

/// Writes the contents of a file.
pub(crate) type Contents<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// A directory that is being filled.
pub(crate) trait Staging {
    /// Writes one file of about `len` bytes; all files are durable before the directory gets its name.
    fn put(&self, name: &str, len: u64, contents: &mut Contents<'_>) -> Result<()>;
}

impl Staging for StagingDir<'_> {
    fn put(&self, name: &str, len: u64, contents: &mut Contents<'_>) -> Result<()> {
        self.write(name, len, |out| contents(out))
    }
}

/// The files of a directory, all of the same save.
pub(crate) trait Files {
    /// Opens one of them.
    fn file(&self, name: &str) -> Result<OpenFile>;
}

impl Files for DirectoryFiles<'_> {
    fn file(&self, name: &str) -> Result<OpenFile> {
        DirectoryFiles::file(self, name)
    }
}

/// Where a directory is kept, and those before it.
pub(crate) enum Store {
    /// A folder of this machine, and its siblings.
    Folder(&'static DirectoryKind, PathBuf),
    /// The objects under a URL.
    Objects(ObjectDir),
}

/// Whether a path is a URL, of a bucket or of what is refused.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(ObjectUrl::is_url)
}

impl Store {
    /// Finds out which of the two a path is.
    pub(crate) fn at(path: &Path, kind: &'static DirectoryKind) -> Result<Self> {
        match path.to_str().filter(|text| ObjectUrl::is_url(text)) {
            Some(url) => Ok(Self::Objects(ObjectDir::open(url, kind)?)),
            None => Ok(Self::Folder(kind, path.to_path_buf())),
        }
    }

    /// Refuses what [`replace`](Self::replace) would refuse when all is written: something that is there and may not be replaced.
    pub(crate) fn check_replaceable(&self) -> Result<()> {
        match self {
            Self::Folder(kind, path) => kind.check_replaceable(path),
            Self::Objects(objects) => objects.check_replaceable(),
        }
    }

    /// Writes a new directory in the place of the old one, which stays until the new one is complete; `older` of those before
    /// stay too. `may_publish` is asked when all is written but for what makes it the newest. Returns what the caller is to drop, which removes it.
    pub(crate) fn replace(
        &self,
        older: usize,
        write: impl FnOnce(&dyn Staging) -> Result<()>,
        may_publish: &dyn Fn() -> Result<()>,
    ) -> Result<Replaced> {
        match self {
            Self::Folder(kind, path) => {
                kind.replace_if(path, older, |staging| write(staging), may_publish)
            }
            Self::Objects(objects) => objects.replace(older, write, may_publish),
        }
    }

    /// Opens the files of the directory that `open` names.
    pub(crate) fn open<T>(&self, open: impl Fn(&dyn Files) -> Result<T>) -> Result<T> {
        match self {
            Self::Folder(kind, path) => kind.open(path, |files| open(files)),
            Self::Objects(objects) => objects.files(&open),
        }
    }

    /// What `read` makes of the directory; where it fails and another one has been written meanwhile, of that one. Open files stay
    /// readable when they are replaced; objects do not.
    pub(crate) fn steadily<T>(&self, read: impl Fn() -> Result<T>) -> Result<T> {
        match self {
            Self::Folder(..) => read(),
            Self::Objects(objects) => objects.steadily(read),
        }
    }

    /// Whether something is there: a directory of this kind, or what is in the way of one.
    pub(crate) fn is_there(&self) -> Result<bool> {
        match self {
            Self::Folder(kind, path) => Ok(kind.is_there(path)),
            Self::Objects(objects) => Ok(!objects.all()?.is_empty()),
        }
    }

    /// Whether a directory of this kind is there, or an older one.
    pub(crate) fn is_ours(&self) -> Result<bool> {
        match self {
            Self::Folder(kind, path) => Ok(kind.is_ours_at(path)),
            Self::Objects(objects) => Ok(!objects.all()?.is_empty()),
        }
    }

    /// What is there and the older ones, the newest first.
    pub(crate) fn all(&self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Folder(kind, path) => {
                let newest = path.exists().then(|| path.clone());
                Ok(newest.into_iter().chain(kind.older(path)).collect())
            }
            Self::Objects(objects) => objects.all(),
        }
    }

    /// The older ones, the last first.
    pub(crate) fn older(&self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Folder(kind, path) => Ok(kind.older(path)),
            Self::Objects(objects) => Ok(objects.all()?.into_iter().skip(1).collect()),
        }
    }

    /// Texts about saves that were interrupted after the newest directory; a folder never shows any.
    pub(crate) fn unfinished(&self) -> Result<Vec<String>> {
        match self {
            Self::Folder(..) => Ok(Vec::new()),
            Self::Objects(objects) => objects.unfinished(),
        }
    }

    /// Removes the directory and the older ones.
    pub(crate) fn discard(&self) -> Result<()> {
        match self {
            Self::Folder(kind, path) => kind.discard(path),
            Self::Objects(objects) => objects.discard(),
        }
    }

    /// Leaves a text with the directory, in the place of the one before.
    pub(crate) fn leave_note(&self, note: Note, text: &str) -> Result<()> {
        let path = match self {
            Self::Folder(_, path) => note.beside(path),
            Self::Objects(objects) => return objects.leave_note(note.name(), text),
        };
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(refused("create", folder))?;
        }
        static LEFT: AtomicU64 = AtomicU64::new(0);
        let number = LEFT.fetch_add(1, Ordering::Relaxed);
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!("-{}-{number}", super::this_process()));
        // A reader sees the old text or the new one.
        fs::write(&unfinished, text).map_err(refused("write", &path))?;
        fs::rename(&unfinished, &path).map_err(refused("write", &path))
    }

    /// The text that was left, if there is one.
    pub(crate) fn note(&self, note: Note) -> Result<Option<String>> {
        let path = match self {
            Self::Folder(_, path) => note.beside(path),
            Self::Objects(objects) => return objects.note(note.name()),
        };
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused("read", &path)(error)),
        }
    }

    /// Removes the text that was left, if there is one.
    pub(crate) fn remove_note(&self, note: Note) -> Result<()> {
        let path = match self {
            Self::Folder(_, path) => note.beside(path),
            Self::Objects(objects) => return objects.remove_note(note.name()),
        };
        remove_file(&path)
    }
}

/// A text that is left with a directory, for other processes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// Who may write.
    Writer,
    /// That nothing follows.
    Done,
}

impl Note {
    /// The name of the object under the URL.
    const fn name(self) -> &'static str {
        match self {
            Self::Writer => ".writer",
            Self::Done => ".done",
        }
    }

    /// The file beside a folder.
    pub(crate) fn beside(self, folder: &Path) -> PathBuf {
        let mut name = OsString::from(match self {
            Self::Writer => ".",
            Self::Done => "",
        });
        name.push(folder.file_name().unwrap_or_default());
        name.push(self.name());
        folder.with_file_name(name)
    }
}
