//! A directory that is replaced as a whole: a reader sees the old one or the new one, even if a save is interrupted.
//!
//! A save fills a hidden staging directory beside the target, syncs it, and exchanges the two names in one system call. Where the file
//! system cannot exchange, the old directory is renamed to a hidden backup first, and both readers and the next save know where to
//! look for it. Invariants: at each moment the target or its backup is whole; nothing that this library did not write is replaced or
//! removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::disk::{DISK, Disk, hold, inode, inode_of, is_missing, is_occupied};
use super::numbered::{numbered, taken_numbers};
use super::processes::{is_of_ended_process, this_process};
use super::staging::StagingDir;
use super::store::{OpenFile, is_url};
use crate::{Error, Result};

/// The values of the variables.
pub(crate) const WEIGHTS: &str = "weights.safetensors";

/// A kind of directory that this library writes.
#[derive(Debug)]
pub(crate) struct DirectoryKind {
    /// Its name in sentences such as `no saved model has`.
    pub(crate) what: &'static str,
    /// A short name, as in `replaced by the model`.
    pub(crate) short: &'static str,
    /// The function that writes it, as in ``the directory that `save` was given``.
    pub(crate) writer: &'static str,
    /// An example of a path.
    pub(crate) example: &'static str,
    /// The files that it can have; the first one identifies it.
    pub(crate) files: &'static [&'static str],
    /// Whether the contents of the first file are of this kind, of any version.
    pub(crate) is_ours: fn(&[u8]) -> bool,
}

impl DirectoryKind {
    /// Opens the files of a directory that `open` names.
    ///
    /// All belong to the same save: when the directory is replaced meanwhile, they are opened again. So they are when there is none for a
    /// moment, where a save has renamed the old one.
    pub(crate) fn open<T>(
        &self,
        folder: &Path,
        open: impl Fn(&DirectoryFiles<'_>) -> Result<T>,
    ) -> Result<T> {
        const TRIES: usize = 20;
        let files = DirectoryFiles { kind: self, folder };
        let now = || match (inode(folder), TargetDir::of(folder, self)) {
            (None, Ok(place)) => (None, inode(&place.backup())),
            (found, _) => (found, None),
        };
        for _ in 1..TRIES {
            // Held open, or the next directory may get its number.
            let held = hold(folder);
            let before = held
                .as_ref()
                .map_or_else(now, |held| (inode_of(held), None));
            let opened = files.check().and_then(|()| open(&files));
            let opened =
                opened.or_else(|error| self.open_backup(folder, &open).unwrap_or(Err(error)));
            if before == now() {
                return opened;
            }
        }
        files.check()?;
        open(&files)
    }

    /// Opens the backup, when a save was interrupted after it renamed the old directory.
    fn open_backup<T>(
        &self,
        folder: &Path,
        open: impl Fn(&DirectoryFiles<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        let place = TargetDir::of(folder, self).ok()?;
        let backup = place.backup();
        (place.is_free() && place.is_ours(&backup)).then(|| {
            open(&DirectoryFiles {
                kind: self,
                folder: &backup,
            })
        })
    }

    /// Whether there is something at the path, a backup of an interrupted save, or an older directory of this kind.
    pub(crate) fn is_there(&self, folder: &Path) -> bool {
        let free = TargetDir::of(folder, self).map_or(true, |place| place.is_free());
        // A folder that was made for what is to come is none yet.
        let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        !(free || is_empty) || self.is_ours_at(folder)
    }

    /// Whether a directory of this kind is at the path, or a backup or an older one beside it.
    pub(crate) fn is_ours_at(&self, folder: &Path) -> bool {
        TargetDir::of(folder, self).is_ok_and(|place| {
            let ours = [place.path(), place.backup()];
            ours.iter().any(|folder| place.is_ours(folder)) || !place.older().is_empty()
        })
    }

    /// The older directories that are kept beside the one at the path, the last first.
    pub(crate) fn older(&self, folder: &Path) -> Vec<PathBuf> {
        TargetDir::of(folder, self).map_or_else(|_| Vec::new(), |place| place.older())
    }

    /// Refuses what may not be replaced by a directory of this kind.
    pub(crate) fn check_replaceable(&self, path: &Path) -> Result<()> {
        let place = TargetDir::of(path, self)?;
        place.check_replaceable(&place.path())
    }

    /// Removes the directory, its backup and the older ones, if they are of this kind.
    pub(crate) fn discard(&self, folder: &Path) -> Result<()> {
        let place = TargetDir::of(folder, self)?;
        let older = place.older().into_iter().rev();
        for folder in older.chain([place.backup(), place.path()]) {
            if place.is_ours(&folder) {
                place.discard(&folder)?;
            }
        }
        Ok(())
    }
}

/// The files of a directory.
pub(crate) struct DirectoryFiles<'a> {
    kind: &'a DirectoryKind,
    folder: &'a Path,
}

impl DirectoryFiles<'_> {
    fn check(&self) -> Result<()> {
        let (shown, what) = (self.folder.display(), self.kind.what);
        match fs::metadata(self.folder) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => {
                let files = self.kind.files[..2].join("` and `");
                Err(Error::user(format!(
                    "`{shown}` is a file, and a {what} is a directory with `{files}`; give the directory"
                )))
            }
            Err(error) if is_missing(&error) => Err(self.nothing()),
            Err(error) => Err(refused("open", self.folder)(error)),
        }
    }

    /// Opens one of them.
    pub(crate) fn file(&self, name: &str) -> Result<OpenFile> {
        let path = self.folder.join(name);
        let (shown, DirectoryKind { what, short, .. }) = (self.folder.display(), self.kind);
        // Checked before it is opened: opening a pipe waits for its other end.
        let found = fs::metadata(&path).map_err(|error| match is_missing(&error) {
            true => Error::user(format!(
                "`{shown}` has no file `{name}`, so it is no {what} or not the whole of one; check the path, or copy the whole directory again"
            )),
            false => refused("open", &path)(error),
        })?;
        if !found.is_file() {
            return Err(Error::user(format!(
                "`{name}` in `{shown}` is no plain file; check the path, or save the {short} again"
            )));
        }
        let file = File::open(&path).map_err(refused("open", &path))?;
        Ok(OpenFile {
            bytes: Box::new(file),
            len: found.len(),
            name: path.display().to_string(),
        })
    }

    fn nothing(&self) -> Error {
        let shown = self.folder.display();
        let DirectoryKind { what, writer, .. } = self.kind;
        Error::user(format!(
            "there is no {what} at `{shown}`; check the path, which is the directory that `{writer}` was given"
        ))
    }
}

impl DirectoryKind {
    /// Writes a new directory in the place of the old one, which stays until the new one is complete and on disk. The
    /// `older` directories before it stay too, as `name.1`, the last one, `name.2` and so on.
    pub(crate) fn replace(
        &self,
        path: &Path,
        older: usize,
        write: impl FnOnce(&StagingDir<'_>) -> Result<()>,
    ) -> Result<()> {
        self.replace_on(&DISK, path, older, write, &|| Ok(()))
            .map(drop)
    }

    /// As [`replace`](Self::replace), but for what is replaced, which the caller drops. `may_publish` is asked when all is on disk, and
    /// where it refuses the old directory stays.
    pub(crate) fn replace_if(
        &self,
        path: &Path,
        older: usize,
        write: impl FnOnce(&StagingDir<'_>) -> Result<()>,
        may_publish: &dyn Fn() -> Result<()>,
    ) -> Result<Replaced> {
        self.replace_on(&DISK, path, older, write, may_publish)
    }

    fn replace_on(
        &self,
        disk: &Disk,
        path: &Path,
        older: usize,
        write: impl FnOnce(&StagingDir<'_>) -> Result<()>,
        may_publish: &dyn Fn() -> Result<()>,
    ) -> Result<Replaced> {
        let place = TargetDir::of(path, self)?;
        create_dir_all_durable(&place.parent)?;
        let kept = taken_numbers(&place.parent, &place.name)
            .into_iter()
            .filter(|&n| n <= older);
        for number in std::iter::once(0).chain(kept) {
            place.check_replaceable(&place.numbered(number))?;
        }
        place.restore_backup()?;
        place.remove_leftovers();
        let staging = place.stage(disk)?;
        write(&staging)?;
        staging.sync()?;
        may_publish()?;
        let replaced = place.publish(staging, disk)?;
        // If this fails, nobody knows which of the two a crash would leave: both stay.
        disk.sync_dir(&place.parent)?;
        place.keep_older(replaced, older)
    }
}

/// What was replaced and is not kept. It is removed where this is dropped, which takes a while where its files are large.
#[derive(Debug)]
#[must_use = "where it is dropped it is removed, which takes a while"]
pub(crate) enum Replaced {
    Nothing,
    /// A directory and its files. Its name is hidden, and where nobody removes it a later save does.
    Folder(PathBuf, &'static [&'static str]),
    /// Objects that could not be removed, which a later save does: a warning that says why.
    Left(String),
}

impl Drop for Replaced {
    fn drop(&mut self) {
        if let Self::Folder(folder, files) = self {
            remove(folder, files);
        }
    }
}

impl Replaced {
    /// What the user is to hear.
    pub(crate) fn warning(&self) -> Option<&str> {
        match self {
            Self::Left(warning) => Some(warning),
            Self::Nothing | Self::Folder(..) => None,
        }
    }
}

/// Writes the weights of a directory of this kind, about `len` bytes, to a file of their own, in the place of an old one, which stays until the new one is
/// complete and on disk.
pub(crate) fn replace_file(
    kind: &DirectoryKind,
    path: &Path,
    len: u64,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let place = TargetDir::of(path, kind)?;
    create_dir_all_durable(&place.parent)?;
    if place.path().is_dir() {
        return Err(Error::user(format!(
            "`{}` is a directory, and weights alone are a file; give a name such as `digits.safetensors`",
            path.display()
        )));
    }
    place.remove_leftovers();
    let staging = place.stage(&DISK)?;
    staging.write(WEIGHTS, len, contents)?;
    staging.sync_files()?;
    let file = staging.path().join(WEIGHTS);
    fs::rename(&file, place.path()).map_err(refused("write", path))?;
    DISK.sync_dir(&place.parent)
}

/// The place of a directory.
struct TargetDir<'a> {
    parent: PathBuf,
    name: OsString,
    kind: &'a DirectoryKind,
}

impl<'a> TargetDir<'a> {
    fn of(path: &Path, kind: &'a DirectoryKind) -> Result<Self> {
        if is_url(path) {
            let (shown, short) = (path.display(), kind.short);
            return Err(Error::user(format!(
                "`{shown}` is a URL, and a {short} is in a folder; only whole checkpoints are kept in buckets: write to a folder and copy it"
            )));
        }
        // The target of a link is replaced, not the link.
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let path = match is_link {
            true => fs::canonicalize(path).map_err(refused("follow the link", path))?,
            false => path.to_path_buf(),
        };
        let Some(name) = path.file_name() else {
            let DirectoryKind { short, example, .. } = kind;
            return Err(Error::user(format!(
                "`{}` names no directory to save a {short} in; give a name, such as `{example}`",
                path.display()
            )));
        };
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Ok(Self {
            parent: parent.unwrap_or(Path::new(".")).to_path_buf(),
            name: name.to_owned(),
            kind,
        })
    }

    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The old directory's name while the new one is renamed, where the file system cannot exchange names.
    fn backup(&self) -> PathBuf {
        self.parent.join(self.hidden_sibling(".before"))
    }

    /// The directory that was saved this number of saves before the last one; 0 is the last one.
    fn numbered(&self, number: usize) -> PathBuf {
        if number == 0 {
            return self.path();
        }
        self.parent.join(numbered(&self.name, number))
    }

    fn hidden_sibling(&self, suffix: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        name
    }

    /// `name.1`, `name.2` and so on, those that are of this kind.
    fn older(&self) -> Vec<PathBuf> {
        let numbers = taken_numbers(&self.parent, &self.name).into_iter();
        let folders = numbers.map(|number| self.numbered(number));
        folders.filter(|folder| self.is_ours(folder)).collect()
    }

    /// Whether there is nothing at the path.
    fn is_free(&self) -> bool {
        fs::symlink_metadata(self.path()).is_err_and(|error| is_missing(&error))
    }

    /// Renames the backup of an interrupted save to the target, which does not exist then.
    fn restore_backup(&self) -> Result<()> {
        let (backup, path) = (self.backup(), self.path());
        if !self.is_free() || !self.is_ours(&backup) {
            return Ok(());
        }
        fs::rename(&backup, &path).map_err(refused("rename", &backup))?;
        DISK.sync_dir(&self.parent)
    }

    /// Checks that the target can be replaced without losing anything that this library did not write.
    fn check_replaceable(&self, path: &Path) -> Result<()> {
        let (shown, DirectoryKind { what, short, .. }) = (path.display(), self.kind);
        let foreign = |problem: String| {
            Error::user(format!(
                "`{shown}` {problem}, so it is not replaced by the {short}; save under another name, or move it away"
            ))
        };
        match fs::symlink_metadata(path) {
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(refused("look at", path)(error)),
            Ok(found) if !found.is_dir() => return Err(foreign("is no directory".into())),
            Ok(_) => {}
        }
        let mut is_empty = true;
        for entry in fs::read_dir(path).map_err(refused("list", path))? {
            let entry = entry.map_err(refused("list", path))?;
            let name = entry.file_name();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if !is_file || !self.kind.files.iter().any(|file| name == OsStr::new(file)) {
                let name = name.to_string_lossy();
                return Err(foreign(format!("has `{name}` in it, which no {what} has")));
            }
            is_empty = false;
        }
        // A damaged one among others is not in the way of what is saved after them.
        let is_one_of_ours = || self.is_ours(&self.path()) || !self.older().is_empty();
        if is_empty || self.is_ours(path) || is_one_of_ours() {
            return Ok(());
        }
        let first = self.kind.files[0];
        Err(foreign(format!("has no `{first}` written by phalanx")))
    }

    /// Creates an empty directory beside the target, and so on the same file system.
    fn stage(&self, disk: &'a Disk) -> Result<StagingDir<'a>> {
        let path = self.take_hidden("", |path| {
            fs::create_dir(path).map_err(refused("create", path))
        })?;
        Ok(StagingDir::new(path, self.kind.files, disk))
    }

    /// Calls `take` with hidden names that end so, until one is free; returns that one.
    fn take_hidden(&self, end: &str, take: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
        const TRIES: u32 = 1000;
        let process = this_process();
        for number in 0..TRIES {
            let name = self.hidden_sibling(&format!("{STAGING}{process}-{number}{end}"));
            let path = self.parent.join(name);
            match take(&path) {
                Ok(()) => return Ok(path),
                Err(Error::Io { source, .. }) if is_occupied(&source) => {}
                Err(error) => return Err(error),
            }
        }
        let parent = self.parent.display();
        Err(Error::user(format!(
            "`{parent}` has {TRIES} directories of interrupted saves; remove those whose names contain `{STAGING}`"
        )))
    }

    /// Removes staging directories and backups of interrupted saves.
    fn remove_leftovers(&self) {
        let prefix = self.hidden_sibling(STAGING);
        for entry in fs::read_dir(&self.parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let rest = name
                .as_encoded_bytes()
                .strip_prefix(prefix.as_encoded_bytes());
            let Some(rest) = rest else { continue };
            let limit = match is_of_ended_process(rest) {
                true => ABANDONED_AFTER_EXIT,
                false => ABANDONED_AFTER,
            };
            if self.is_older(&entry.path(), limit) {
                self.remove(&entry.path());
            }
        }
        if self.is_ours(&self.path()) && self.is_ours(&self.backup()) {
            self.remove(&self.backup());
        }
    }

    /// Whether the directory is of this kind.
    fn is_ours(&self, folder: &Path) -> bool {
        let kind = self.kind;
        let opened = DirectoryFiles { kind, folder }
            .file(kind.files[0])
            .and_then(|mut file| file.contents());
        opened.is_ok_and(|text| (kind.is_ours)(&text))
    }

    /// Whether the directory was last written longer ago than `age`.
    fn is_older(&self, folder: &Path, limit: Duration) -> bool {
        let paths = self.kind.files.iter().map(|name| folder.join(name));
        let times = paths.chain([folder.to_path_buf()]).filter_map(|path| {
            let found = fs::symlink_metadata(path).ok()?;
            found.modified().ok()
        });
        let newest = times.max().unwrap_or_else(SystemTime::now);
        newest.elapsed().is_ok_and(|age| age > limit)
    }

    fn remove(&self, folder: &Path) {
        remove(folder, self.kind.files);
    }

    /// Takes a directory's name away and removes it.
    fn discard(&self, folder: &Path) -> Result<()> {
        if let Some(hidden) = self.hide(folder)? {
            self.remove(&hidden);
        }
        Ok(())
    }

    /// Takes a directory's name away, before it is removed: half removed it would be of no kind, and in the way of the next save.
    /// Returns where it is now; none where it is gone.
    fn hide(&self, folder: &Path) -> Result<Option<PathBuf>> {
        // What was hidden before may still be there: a network file system keeps files that are open.
        let hidden = self.take_hidden("-removed", |hidden| {
            fs::rename(folder, hidden).map_err(refused("remove", folder))
        });
        match hidden {
            Err(Error::Io { source, .. }) if is_missing(&source) => Ok(None),
            hidden => hidden.map(Some),
        }
    }

    /// Gives the finished directory its name. Returns where the old one is now, if there was one.
    fn publish(&self, staging: StagingDir<'_>, disk: &Disk) -> Result<Option<PathBuf>> {
        let path = self.path();
        match fs::rename(staging.path(), &path) {
            Ok(()) => {
                staging.keep();
                return Ok(None);
            }
            // Something is there: a directory that is not empty.
            Err(error) if is_occupied(&error) => self.check_replaceable(&path)?,
            Err(error) => return Err(refused("create", &path)(error)),
        }
        if (disk.exchange)(staging.path(), &path).is_ok() {
            return Ok(Some(staging.keep()));
        }
        let backup = self.backup();
        fs::rename(&path, &backup).map_err(refused("replace", &path))?;
        if let Err(error) = fs::rename(staging.path(), &path) {
            let _ = fs::rename(&backup, &path);
            return Err(refused("replace", &path)(error));
        }
        staging.keep();
        Ok(Some(backup))
    }

    /// Makes the replaced directory `name.1`, the one before it `name.2`, up to the first number that is free. Returns the one that is
    /// more than `older`.
    fn keep_older(&self, replaced: Option<PathBuf>, older: usize) -> Result<Replaced> {
        let Some(replaced) = replaced else {
            return Ok(Replaced::Nothing);
        };
        let unwanted = |folder| Replaced::Folder(folder, self.kind.files);
        if older == 0 {
            // A backup half removed would be in the way of the next save. Where it cannot be hidden that save removes it whole.
            let hidden = match replaced == self.backup() {
                true => self.hide(&replaced).ok().flatten(),
                false => Some(replaced),
            };
            return Ok(hidden.map_or(Replaced::Nothing, unwanted));
        }
        let taken = taken_numbers(&self.parent, &self.name);
        let free = (1..=older).find(|number| taken.binary_search(number).is_err());
        let last = match free {
            Some(_) => None,
            None => self.hide(&self.numbered(older))?,
        };
        for number in (1..free.unwrap_or(older)).rev() {
            let (from, to) = (self.numbered(number), self.numbered(number + 1));
            match fs::rename(&from, &to) {
                Err(error) if !is_missing(&error) => return Err(refused("rename", &from)(error)),
                _ => {}
            }
        }
        fs::rename(&replaced, self.numbered(1)).map_err(refused("rename", &replaced))?;
        Ok(last.map_or(Replaced::Nothing, unwanted))
    }
}

/// Part of the name of staging directories.
const STAGING: &str = ".saving-";
/// A staging directory that was not written to for this time is abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// The same if it is of a process of this machine that does not exist any more.
const ABANDONED_AFTER_EXIT: Duration = Duration::from_secs(60);

/// Creates missing directories and syncs their parents.
fn create_dir_all_durable(folder: &Path) -> Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<&Path> = missing.filter(|folder| *folder != Path::new("")).collect();
    fs::create_dir_all(folder).map_err(refused("create", folder))?;
    for made in missing {
        let above = made.parent().filter(|above| *above != Path::new(""));
        DISK.sync_dir(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Removes the files and the directory, and nothing else that may be in it.
pub(super) fn remove(folder: &Path, files: &[&str]) {
    for name in files {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

pub(super) fn refused(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io {
        path: path.to_path_buf(),
        action,
        source,
    }
}

#[cfg(test)]
#[path = "atomic_dir_tests.rs"]
mod tests;
