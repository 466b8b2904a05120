//! A directory that is being filled, beside the one that it will replace.
//!
//! Its files are written first and made durable after, all of them before the directory gets its name: the file system commits once for
//! all.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::atomic_dir::{refused, remove};
use super::disk::Disk;
use crate::Result;

/// Pieces of a file that are smaller go to the kernel together.
const BUFFER: usize = 256 << 10;
/// From this size on the places of a file on the disk are found before it is written.
const LARGE: u64 = 8 << 20;

/// A directory that is being filled. When dropped, it is removed with what is in it, a half-written save.
pub(crate) struct StagingDir<'a> {
    path: PathBuf,
    files: &'a [&'a str],
    disk: &'a Disk,
    /// Files that were written and are not known to be on disk.
    unsynced: RefCell<Vec<(PathBuf, File)>>,
    is_kept: bool,
}

impl<'a> StagingDir<'a> {
    /// An empty directory that is there, for these files.
    pub(super) const fn new(path: PathBuf, files: &'a [&'a str], disk: &'a Disk) -> Self {
        Self {
            path,
            files,
            disk,
            unsynced: RefCell::new(Vec::new()),
            is_kept: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it where it is, or is now; its path.
    pub(super) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }

    /// Writes one file of about `len` bytes, which is durable after the next [`sync_files`](Self::sync_files).
    pub(crate) fn write(
        &self,
        name: &str,
        len: u64,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path.join(name);
        let written = || {
            let file = File::create(&path)?;
            reserve(&file, len);
            let mut out = BufWriter::with_capacity(BUFFER, file);
            contents(&mut out)?;
            Ok(out.into_inner()?)
        };
        let file = written().map_err(refused("write", &path))?;
        self.unsynced.borrow_mut().push((path, file));
        Ok(())
    }

    /// Makes durable what was written.
    pub(super) fn sync_files(&self) -> Result<()> {
        let mut files = self.unsynced.take().into_iter();
        let sync = |(path, file): (PathBuf, File)| {
            (self.disk.sync)(&path, &file).map_err(refused("write", &path))
        };
        files.try_for_each(sync)
    }

    /// Makes durable what was written, and the names in the directory.
    pub(super) fn sync(&self) -> Result<()> {
        self.sync_files()?;
        self.disk.sync_dir(&self.path)
    }
}

impl Drop for StagingDir<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            remove(&self.path, self.files);
        }
    }
}

/// Finds the places of a large file on the disk at once, which is faster than one after the other. It is a hint: a disk that has too few
/// says so when they are written.
#[cfg(target_os = "linux")]
fn reserve(file: &File, len: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    if len >= LARGE {
        let _ = fallocate(file, FallocateFlags::KEEP_SIZE, 0, len);
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) {}
