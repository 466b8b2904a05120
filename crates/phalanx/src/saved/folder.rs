//! A directory of ours: what may be read from it, and how it is replaced as a whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::json::MAX_BYTES;
use crate::{Error, Result};

/// The values of the variables.
pub(crate) const WEIGHTS: &str = "weights.safetensors";

/// What a directory of ours holds.
#[derive(Debug)]
pub(crate) struct Kind {
    /// As in `no saved model has`.
    pub(crate) what: &'static str,
    /// In few words, as in `replaced by the model`.
    pub(crate) short: &'static str,
    /// What wrote it, as in ``the directory that `save` was given``.
    pub(crate) writer: &'static str,
    /// A name for one.
    pub(crate) example: &'static str,
    /// The files that it can have; the first says what it is.
    pub(crate) files: &'static [&'static str],
    /// Whether the contents of the first file say that it is one, of whatever version.
    pub(crate) is_ours: fn(&[u8]) -> bool,
}

/// A file of ours, open.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) len: u64,
    pub(crate) name: String,
}

impl Opened {
    /// The contents of a file of JSON, or as much of a longer file as shows that it is none.
    pub(crate) fn contents(&mut self) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        let most = MAX_BYTES as u64 + 1;
        let read = (&mut self.file).take(most).read_to_end(&mut contents);
        read.map_err(refused("read", Path::new(&self.name)))?;
        Ok(contents)
    }
}

impl Kind {
    /// Opens files of a directory, of which `open` says which.
    ///
    /// All are of one save: when the directory is replaced meanwhile, they are opened again.
    pub(crate) fn open<T>(
        &self,
        folder: &Path,
        open: impl Fn(&Files<'_>) -> Result<T>,
    ) -> Result<T> {
        const TRIES: usize = 20;
        let files = Files { kind: self, folder };
        for _ in 1..TRIES {
            let before = identity(folder);
            let opened = files.check().and_then(|()| open(&files));
            if before == identity(folder) {
                return opened
                    .or_else(|error| self.open_aside(folder, &open).unwrap_or(Err(error)));
            }
        }
        files.check()?;
        open(&files)
    }

    /// From where the old one waits, when a save that moved it there was interrupted.
    fn open_aside<T>(
        &self,
        folder: &Path,
        open: impl Fn(&Files<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        let place = Place::of(folder, self).ok()?;
        let aside = place.aside();
        (place.is_free() && place.is_ours(&aside)).then(|| {
            open(&Files {
                kind: self,
                folder: &aside,
            })
        })
    }

    /// Whether something has the name, or waits for it after a save that was interrupted.
    pub(crate) fn is_there(&self, folder: &Path) -> bool {
        Place::of(folder, self).is_ok_and(|place| !place.is_free() || place.is_ours(&place.aside()))
    }

    /// Removes one of ours, if there is one.
    pub(crate) fn discard(&self, folder: &Path) -> Result<()> {
        let place = Place::of(folder, self)?;
        for folder in [place.aside(), place.path()] {
            if place.is_ours(&folder) {
                // What is left without its first file is none.
                let first = folder.join(self.files[0]);
                fs::remove_file(&first).map_err(refused("remove", &first))?;
                place.remove(&folder);
            }
        }
        Ok(())
    }
}

/// What tells a directory from another that has its name later.
#[cfg(unix)]
fn identity(folder: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(folder).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> Option<(u64, u64)> {
    None
}

/// The files of a directory of ours.
pub(crate) struct Files<'a> {
    kind: &'a Kind,
    folder: &'a Path,
}

impl Files<'_> {
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
            Err(error) if is_absent(&error) => Err(self.nothing()),
            Err(error) => Err(refused("open", self.folder)(error)),
        }
    }

    /// Opens one of them.
    pub(crate) fn file(&self, name: &str) -> Result<Opened> {
        let path = self.folder.join(name);
        let (shown, Kind { what, short, .. }) = (self.folder.display(), self.kind);
        // Before it is opened: to open a pipe is to wait for its other end.
        let found = fs::metadata(&path).map_err(|error| match is_absent(&error) {
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
        Ok(Opened {
            file: File::open(&path).map_err(refused("open", &path))?,
            len: found.len(),
            name: path.display().to_string(),
        })
    }

    fn nothing(&self) -> Error {
        let shown = self.folder.display();
        let Kind { what, writer, .. } = self.kind;
        Error::user(format!(
            "there is no {what} at `{shown}`; check the path, which is the directory that `{writer}` was given"
        ))
    }
}

impl Kind {
    /// Makes the directory anew with what `write` puts into it: the old one stays until the new one is whole and on disk.
    pub(crate) fn replace(
        &self,
        path: &Path,
        write: impl FnOnce(&Work<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = Place::of(path, self)?;
        make_folders(&place.parent)?;
        place.check_replaceable()?;
        place.put_back()?;
        place.remove_leftovers();
        let work = place.begin()?;
        write(&work)?;
        sync_folder(&work.path)?;
        place.publish(&work, exchange)?;
        sync_folder(&place.parent)
    }
}

/// Writes a file anew: the old one stays until the new one is whole and on disk.
pub(super) fn replace_file(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let place = Place::of(path, &super::MODEL_FOLDER)?;
    make_folders(&place.parent)?;
    if place.path().is_dir() {
        return Err(Error::user(format!(
            "`{}` is a directory, and weights alone are a file; give a name such as `digits.safetensors`",
            path.display()
        )));
    }
    let work = place.begin()?;
    work.write(WEIGHTS, contents)?;
    let file = work.path.join(WEIGHTS);
    fs::rename(&file, place.path()).map_err(refused("write", path))?;
    sync_folder(&place.parent)
}

/// A directory being filled; what is in it when it is dropped, half-made or just replaced, is removed.
pub(crate) struct Work<'a> {
    path: PathBuf,
    files: &'a [&'a str],
}

impl Work<'_> {
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

impl Drop for Work<'_> {
    fn drop(&mut self) {
        remove(&self.path, self.files);
    }
}

/// Where a directory of ours goes.
struct Place<'a> {
    parent: PathBuf,
    name: OsString,
    kind: &'a Kind,
}

impl<'a> Place<'a> {
    fn of(path: &Path, kind: &'a Kind) -> Result<Self> {
        // What a link points to is replaced, not the link.
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let path = match is_link {
            true => fs::canonicalize(path).map_err(refused("follow the link", path))?,
            false => path.to_path_buf(),
        };
        let Some(name) = path.file_name() else {
            let Kind { short, example, .. } = kind;
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

    /// Where the old one waits for a moment when a file system cannot exchange two names.
    fn aside(&self) -> PathBuf {
        self.parent.join(self.hidden(".before"))
    }

    fn hidden(&self, suffix: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        name
    }

    /// Whether nothing has the name.
    fn is_free(&self) -> bool {
        fs::symlink_metadata(self.path()).is_err_and(|error| is_absent(&error))
    }

    /// Gives the old one its name again, when a save that moved it was interrupted: it is the only one.
    fn put_back(&self) -> Result<()> {
        let (aside, path) = (self.aside(), self.path());
        if !self.is_free() || !self.is_ours(&aside) {
            return Ok(());
        }
        fs::rename(&aside, &path).map_err(refused("rename", &aside))?;
        sync_folder(&self.parent)
    }

    /// Checks that nothing is lost when the new one takes this place.
    fn check_replaceable(&self) -> Result<()> {
        let path = self.path();
        let (shown, Kind { what, short, .. }) = (path.display(), self.kind);
        let foreign = |problem: String| {
            Error::user(format!(
                "`{shown}` {problem}, so it is not replaced by the {short}; save under another name, or move it away"
            ))
        };
        match fs::symlink_metadata(&path) {
            Err(error) if is_absent(&error) => return Ok(()),
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

    /// Makes an empty directory beside the place, so that it is on the same file system.
    fn begin(&self) -> Result<Work<'a>> {
        const TRIES: u32 = 1000;
        let process = std::process::id();
        for number in 0..TRIES {
            let path = self
                .parent
                .join(self.hidden(&format!("{WORK}{process}-{number}")));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let files = self.kind.files;
                    return Ok(Work { path, files });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refused("create", &path)(error)),
            }
        }
        let parent = self.parent.display();
        Err(Error::user(format!(
            "`{parent}` has {TRIES} directories of interrupted saves; remove those whose names contain `{WORK}`"
        )))
    }

    /// Removes what saves left that did not come to their end.
    fn remove_leftovers(&self) {
        let prefix = self.hidden(WORK);
        for entry in fs::read_dir(&self.parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let rest = name
                .as_encoded_bytes()
                .strip_prefix(prefix.as_encoded_bytes());
            let Some(rest) = rest else { continue };
            let alone = match is_gone(rest) {
                true => LEFT_ALONE_BY_NO_ONE,
                false => LEFT_ALONE,
            };
            if self.is_older(&entry.path(), alone) {
                self.remove(&entry.path());
            }
        }
        if self.is_ours(&self.path()) && self.is_ours(&self.aside()) {
            self.remove(&self.aside());
        }
    }

    /// Whether the directory has a first file of ours.
    fn is_ours(&self, folder: &Path) -> bool {
        let kind = self.kind;
        let opened = Files { kind, folder }
            .file(kind.files[0])
            .and_then(|mut file| file.contents());
        opened.is_ok_and(|text| (kind.is_ours)(&text))
    }

    /// Whether nothing was written in the directory for so long.
    fn is_older(&self, folder: &Path, alone: Duration) -> bool {
        let paths = self.kind.files.iter().map(|name| folder.join(name));
        let times = paths.chain([folder.to_path_buf()]).filter_map(|path| {
            let found = fs::symlink_metadata(path).ok()?;
            found.modified().ok()
        });
        let newest = times.max().unwrap_or_else(SystemTime::now);
        newest.elapsed().is_ok_and(|age| age > alone)
    }

    fn remove(&self, folder: &Path) {
        remove(folder, self.kind.files);
    }

    /// Gives the finished directory its name; the old one is then in its stead in `work`, or gone.
    fn publish(
        &self,
        work: &Work<'_>,
        exchange: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path();
        match fs::rename(&work.path, &path) {
            Ok(()) => return Ok(()),
            // Something is there: a directory that is not empty.
            Err(error) if is_taken(&error) => self.check_replaceable()?,
            Err(error) => return Err(refused("create", &path)(error)),
        }
        if exchange(&work.path, &path).is_ok() {
            return Ok(());
        }
        let aside = self.aside();
        fs::rename(&path, &aside).map_err(refused("replace", &path))?;
        if let Err(error) = fs::rename(&work.path, &path) {
            let _ = fs::rename(&aside, &path);
            return Err(refused("replace", &path)(error));
        }
        sync_folder(&self.parent)?;
        self.remove(&aside);
        Ok(())
    }
}

/// In the names of directories being filled.
const WORK: &str = ".saving-";
/// No save writes nothing for as long.
const LEFT_ALONE: Duration = Duration::from_secs(3600);
/// Nor one of a process that this machine does not know, which may run on another.
const LEFT_ALONE_BY_NO_ONE: Duration = Duration::from_secs(60);

/// Whether the process of a directory being filled, whose name ends so, is not one of this machine.
fn is_gone(rest: &[u8]) -> bool {
    let process = std::str::from_utf8(rest).ok();
    let process = process.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    let known = Path::new("/proc");
    process.is_some_and(|process| {
        known.join("self").exists() && !known.join(process.to_string()).exists()
    })
}

/// Makes the directories that are missing, and makes them durable.
fn make_folders(folder: &Path) -> Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<&Path> = missing.filter(|folder| *folder != Path::new("")).collect();
    fs::create_dir_all(folder).map_err(refused("create", folder))?;
    for made in missing {
        let above = made.parent().filter(|above| *above != Path::new(""));
        sync_folder(above.unwrap_or(Path::new(".")))?;
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

fn sync_folder(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(refused("write", path))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn is_taken(error: &io::Error) -> bool {
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
    use super::super::{MODEL, MODEL_FOLDER};
    use super::*;

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

    fn fill(work: &Work<'_>, text: &str) -> Result<()> {
        let ours = r#"{"format": "phalanx model"}"#;
        work.write(MODEL, |file| file.write_all(ours.as_bytes()))?;
        work.write(WEIGHTS, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_save_that_fails_half_way_leaves_the_old_and_nothing_else() {
        let scratch = Scratch::new("half");
        let path = scratch.0.join("m");
        MODEL_FOLDER
            .replace(&path, |work| fill(work, "old"))
            .unwrap();
        let full = |work: &Work<'_>| {
            work.write(MODEL, |file| file.write_all(b"new"))?;
            work.write(WEIGHTS, |_| Err(io::ErrorKind::StorageFull.into()))
        };
        let error = MODEL_FOLDER.replace(&path, full).unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"old");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_appears_while_a_save_runs_is_not_replaced() {
        let scratch = Scratch::new("appears");
        let path = scratch.0.join("m");
        let slow = |work: &Work<'_>| {
            fill(work, "new")?;
            fs::create_dir(&path).unwrap();
            fs::write(path.join("thesis"), "mine").unwrap();
            Ok(())
        };
        let error = MODEL_FOLDER.replace(&path, slow).unwrap_err().to_string();
        assert!(error.contains("`thesis`"), "{error}");
        assert_eq!(fs::read(path.join("thesis")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    /// A file system whose names cannot be exchanged.
    fn publish_by_renames(path: &Path, text: &str) -> Result<()> {
        let place = Place::of(path, &MODEL_FOLDER)?;
        place.put_back()?;
        place.remove_leftovers();
        let work = place.begin()?;
        fill(&work, text)?;
        place.publish(&work, |_, _| Err(io::ErrorKind::Unsupported.into()))
    }

    #[test]
    fn a_crash_between_two_renames_loses_nothing() {
        let scratch = Scratch::new("renames");
        let path = scratch.0.join("m");
        let weights =
            |path: &Path| MODEL_FOLDER.open(path, |files| files.file(WEIGHTS)?.contents());
        publish_by_renames(&path, "one").unwrap();
        publish_by_renames(&path, "two").unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        for crashes in 0..2 {
            // The state after the first of the two renames.
            fs::rename(&path, scratch.0.join(".m.before")).unwrap();
            assert!(MODEL_FOLDER.is_there(&path));
            assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
            // A save that fails leaves it, too.
            let full =
                |work: &Work<'_>| work.write(WEIGHTS, |_| Err(io::ErrorKind::StorageFull.into()));
            assert!(MODEL_FOLDER.replace(&path, full).is_err());
            assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
            assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        }
        MODEL_FOLDER.discard(&path).unwrap();
        assert!(!MODEL_FOLDER.is_there(&path));
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
        MODEL_FOLDER.discard(&path).unwrap();
        // What is not ours stays.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("thesis"), "mine").unwrap();
        MODEL_FOLDER.discard(&path).unwrap();
        assert!(path.join("thesis").exists());
    }
}
