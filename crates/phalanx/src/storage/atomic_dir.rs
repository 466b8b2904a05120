//! A directory that is replaced as a whole: a reader sees the old one or the new one, even if a save is interrupted.
//!
//! A save fills a hidden staging directory beside the target, syncs it, and exchanges the two names in one system call. Where the file
//! system cannot exchange, the old directory is renamed to a hidden backup first, and both readers and the next save know where to
//! look for it. Invariants: at each moment the target or its backup is whole; nothing that this library did not write is replaced or
//! removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::document::MAX_BYTES;
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

/// An open file of such a directory.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) len: u64,
    pub(crate) name: String,
}

impl OpenFile {
    /// The contents of a JSON file; of one that is too long, one byte more than is allowed.
    pub(crate) fn contents(&mut self) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        let most = MAX_BYTES as u64 + 1;
        let read = (&mut self.file).take(most).read_to_end(&mut contents);
        read.map_err(refused("read", Path::new(&self.name)))?;
        Ok(contents)
    }
}

impl DirectoryKind {
    /// Opens the files of a directory that `open` names.
    ///
    /// All belong to the same save: when the directory is replaced meanwhile, they are opened again.
    pub(crate) fn open<T>(
        &self,
        folder: &Path,
        open: impl Fn(&DirectoryFiles<'_>) -> Result<T>,
    ) -> Result<T> {
        const TRIES: usize = 20;
        let files = DirectoryFiles { kind: self, folder };
        for _ in 1..TRIES {
            let before = inode(folder);
            let opened = files.check().and_then(|()| open(&files));
            if before == inode(folder) {
                return opened
                    .or_else(|error| self.open_backup(folder, &open).unwrap_or(Err(error)));
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

    /// Whether there is something at the path, or a backup of an interrupted save.
    pub(crate) fn is_there(&self, folder: &Path) -> bool {
        TargetDir::of(folder, self)
            .is_ok_and(|place| !place.is_free() || place.is_ours(&place.backup()))
    }

    /// Removes the directory and its backup, if they are of this kind.
    pub(crate) fn discard(&self, folder: &Path) -> Result<()> {
        let place = TargetDir::of(folder, self)?;
        for folder in [place.backup(), place.path()] {
            if place.is_ours(&folder) {
                // Without its first file a half-removed directory is no longer of this kind.
                let first = folder.join(self.files[0]);
                fs::remove_file(&first).map_err(refused("remove", &first))?;
                place.remove(&folder);
            }
        }
        Ok(())
    }
}

/// Tells a directory from another one that has its name later.
#[cfg(unix)]
fn inode(folder: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(folder).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<(u64, u64)> {
    None
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
        Ok(OpenFile {
            file: File::open(&path).map_err(refused("open", &path))?,
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
    /// Writes a new directory in the place of the old one, which stays until the new one is complete and on disk.
    pub(crate) fn replace(
        &self,
        path: &Path,
        write: impl FnOnce(&StagingDir<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = TargetDir::of(path, self)?;
        create_dir_all_durable(&place.parent)?;
        place.check_replaceable()?;
        place.restore_backup()?;
        place.remove_leftovers();
        let staging = place.stage()?;
        write(&staging)?;
        sync_dir(&staging.path)?;
        place.publish(&staging, exchange)?;
        sync_dir(&place.parent)
    }
}

/// Writes the weights of a directory of this kind to a file of their own, in the place of an old one, which stays until the new one is
/// complete and on disk.
pub(crate) fn replace_file(
    kind: &DirectoryKind,
    path: &Path,
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
    let staging = place.stage()?;
    staging.write(WEIGHTS, contents)?;
    let file = staging.path.join(WEIGHTS);
    fs::rename(&file, place.path()).map_err(refused("write", path))?;
    sync_dir(&place.parent)
}

/// A directory that is being filled. When dropped, it is removed with what is in it: a half-written save, or the replaced one.
pub(crate) struct StagingDir<'a> {
    path: PathBuf,
    files: &'a [&'a str],
}

impl StagingDir<'_> {
    /// Writes one file and makes it durable.
    pub(crate) fn write(
        &self,
        name: &str,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path.join(name);
        let written = || {
            let mut file = BufWriter::new(File::create(&path)?);
            contents(&mut file)?;
            file.into_inner()?.sync_all()
        };
        written().map_err(refused("write", &path))
    }
}

impl Drop for StagingDir<'_> {
    fn drop(&mut self) {
        remove(&self.path, self.files);
    }
}

/// The place of a directory.
struct TargetDir<'a> {
    parent: PathBuf,
    name: OsString,
    kind: &'a DirectoryKind,
}

impl<'a> TargetDir<'a> {
    fn of(path: &Path, kind: &'a DirectoryKind) -> Result<Self> {
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

    fn hidden_sibling(&self, suffix: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        name
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
        sync_dir(&self.parent)
    }

    /// Checks that the target can be replaced without losing anything that this library did not write.
    fn check_replaceable(&self) -> Result<()> {
        let path = self.path();
        let (shown, DirectoryKind { what, short, .. }) = (path.display(), self.kind);
        let foreign = |problem: String| {
            Error::user(format!(
                "`{shown}` {problem}, so it is not replaced by the {short}; save under another name, or move it away"
            ))
        };
        match fs::symlink_metadata(&path) {
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(refused("look at", &path)(error)),
            Ok(found) if !found.is_dir() => return Err(foreign("is no directory".into())),
            Ok(_) => {}
        }
        let mut is_empty = true;
        for entry in fs::read_dir(&path).map_err(refused("list", &path))? {
            let entry = entry.map_err(refused("list", &path))?;
            let name = entry.file_name();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if !is_file || !self.kind.files.iter().any(|file| name == OsStr::new(file)) {
                let name = name.to_string_lossy();
                return Err(foreign(format!("has `{name}` in it, which no {what} has")));
            }
            is_empty = false;
        }
        if is_empty || self.is_ours(&path) {
            return Ok(());
        }
        let first = self.kind.files[0];
        Err(foreign(format!("has no `{first}` written by phalanx")))
    }

    /// Creates an empty directory beside the target, and so on the same file system.
    fn stage(&self) -> Result<StagingDir<'a>> {
        const TRIES: u32 = 1000;
        let process = std::process::id();
        for number in 0..TRIES {
            let path = self
                .parent
                .join(self.hidden_sibling(&format!("{STAGING}{process}-{number}")));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let files = self.kind.files;
                    return Ok(StagingDir { path, files });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refused("create", &path)(error)),
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
            let limit = match process_is_gone(rest) {
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

    /// Gives the finished directory its name; the old one is then in its stead in `staging`, or gone.
    fn publish(
        &self,
        staging: &StagingDir<'_>,
        exchange: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path();
        match fs::rename(&staging.path, &path) {
            Ok(()) => return Ok(()),
            // Something is there: a directory that is not empty.
            Err(error) if is_occupied(&error) => self.check_replaceable()?,
            Err(error) => return Err(refused("create", &path)(error)),
        }
        if exchange(&staging.path, &path).is_ok() {
            return Ok(());
        }
        let backup = self.backup();
        fs::rename(&path, &backup).map_err(refused("replace", &path))?;
        if let Err(error) = fs::rename(&staging.path, &path) {
            let _ = fs::rename(&backup, &path);
            return Err(refused("replace", &path)(error));
        }
        sync_dir(&self.parent)?;
        self.remove(&backup);
        Ok(())
    }
}

/// Part of the name of staging directories.
const STAGING: &str = ".saving-";
/// A staging directory that was not written to for this time is abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// The same if its process does not exist on this machine; it may run on another one.
const ABANDONED_AFTER_EXIT: Duration = Duration::from_secs(60);

/// Whether the process in the end of a staging directory's name does not exist on this machine.
fn process_is_gone(rest: &[u8]) -> bool {
    let process = std::str::from_utf8(rest).ok();
    let process = process.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    let known = Path::new("/proc");
    process.is_some_and(|process| {
        known.join("self").exists() && !known.join(process.to_string()).exists()
    })
}

/// Creates missing directories and syncs their parents.
fn create_dir_all_durable(folder: &Path) -> Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<&Path> = missing.filter(|folder| *folder != Path::new("")).collect();
    fs::create_dir_all(folder).map_err(refused("create", folder))?;
    for made in missing {
        let above = made.parent().filter(|above| *above != Path::new(""));
        sync_dir(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
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

/// Removes the files and the directory, and nothing else that may be in it.
fn remove(folder: &Path, files: &[&str]) {
    for name in files {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

fn sync_dir(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(refused("write", path))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
    )
}

fn refused(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io {
        path: path.to_path_buf(),
        action,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "model.json";
    const MODEL_DIR: DirectoryKind = DirectoryKind {
        what: "saved model",
        short: "model",
        writer: "save",
        example: "digits.phx",
        files: &[MODEL, WEIGHTS],
        is_ours: |text| text.starts_with(b"{\"format\": \"phalanx model\""),
    };

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let process = std::process::id();
            let path = std::env::temp_dir().join(format!("phalanx-folder-{process}-{name}"));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fill(staging: &StagingDir<'_>, text: &str) -> Result<()> {
        let ours = r#"{"format": "phalanx model"}"#;
        staging.write(MODEL, |file| file.write_all(ours.as_bytes()))?;
        staging.write(WEIGHTS, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_save_that_fails_half_way_leaves_the_old_and_nothing_else() {
        let scratch = Scratch::new("half");
        let path = scratch.0.join("m");
        MODEL_DIR
            .replace(&path, |staging| fill(staging, "old"))
            .unwrap();
        let full = |staging: &StagingDir<'_>| {
            staging.write(MODEL, |file| file.write_all(b"new"))?;
            staging.write(WEIGHTS, |_| Err(io::ErrorKind::StorageFull.into()))
        };
        let error = MODEL_DIR.replace(&path, full).unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"old");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_appears_while_a_save_runs_is_not_replaced() {
        let scratch = Scratch::new("appears");
        let path = scratch.0.join("m");
        let slow = |staging: &StagingDir<'_>| {
            fill(staging, "new")?;
            fs::create_dir(&path).unwrap();
            fs::write(path.join("thesis"), "mine").unwrap();
            Ok(())
        };
        let error = MODEL_DIR.replace(&path, slow).unwrap_err().to_string();
        assert!(error.contains("`thesis`"), "{error}");
        assert_eq!(fs::read(path.join("thesis")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    /// A file system whose names cannot be exchanged.
    fn publish_by_renames(path: &Path, text: &str) -> Result<()> {
        let place = TargetDir::of(path, &MODEL_DIR)?;
        place.restore_backup()?;
        place.remove_leftovers();
        let staging = place.stage()?;
        fill(&staging, text)?;
        place.publish(&staging, |_, _| Err(io::ErrorKind::Unsupported.into()))
    }

    #[test]
    fn a_crash_between_two_renames_loses_nothing() {
        let scratch = Scratch::new("renames");
        let path = scratch.0.join("m");
        let weights = |path: &Path| MODEL_DIR.open(path, |files| files.file(WEIGHTS)?.contents());
        publish_by_renames(&path, "one").unwrap();
        publish_by_renames(&path, "two").unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        for crashes in 0..2 {
            // The state after the first of the two renames.
            fs::rename(&path, scratch.0.join(".m.before")).unwrap();
            assert!(MODEL_DIR.is_there(&path));
            assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
            // A save that fails leaves it, too.
            let full = |staging: &StagingDir<'_>| {
                staging.write(WEIGHTS, |_| Err(io::ErrorKind::StorageFull.into()))
            };
            assert!(MODEL_DIR.replace(&path, full).is_err());
            assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
            assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        }
        MODEL_DIR.discard(&path).unwrap();
        assert!(!MODEL_DIR.is_there(&path));
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
        MODEL_DIR.discard(&path).unwrap();
        // What is not ours stays.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("thesis"), "mine").unwrap();
        MODEL_DIR.discard(&path).unwrap();
        assert!(path.join("thesis").exists());
    }
}
