//! What a save asks of the file system beside reading and writing files.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::atomic_dir::refused;
use crate::Result;

/// What a save asks of the file system; tests have another.
pub(super) struct Disk {
    /// Exchanges two names in one step, where that is possible.
    pub(super) exchange: fn(&Path, &Path) -> io::Result<()>,
    /// Returns when the contents of a file, or the names in a directory, are on the disk.
    pub(super) sync: fn(&Path, &File) -> io::Result<()>,
}

pub(super) const DISK: Disk = Disk {
    exchange,
    sync: |_, file| file.sync_all(),
};

impl Disk {
    pub(super) fn sync_dir(&self, path: &Path) -> Result<()> {
        let synced = File::open(path).and_then(|folder| (self.sync)(path, &folder));
        synced.map_err(refused("write", path))
    }
}

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Into::into)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The directory at a path, open, where it may be listed.
pub(super) fn hold(folder: &Path) -> Option<File> {
    // Opening a pipe waits for its other end.
    folder.is_dir().then(|| File::open(folder).ok()).flatten()
}

/// Tells a directory from another one that has its name later.
pub(super) fn inode(folder: &Path) -> Option<(u64, u64)> {
    numbers(&fs::metadata(folder).ok()?)
}

pub(super) fn inode_of(file: &File) -> Option<(u64, u64)> {
    numbers(&file.metadata().ok()?)
}

#[cfg(unix)]
fn numbers(found: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn numbers(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

/// Removes a file, which may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refused("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Whether nothing is there.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether something is in the way.
pub(super) fn is_occupied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
    )
}
