//! The directory of a saved model: what may be read from it, and how it is replaced as a whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::manifest;
use crate::{Error, Result};

/// The architecture.
pub(super) const MODEL: &str = "model.json";
/// The values of the variables.
pub(super) const WEIGHTS: &str = "weights.safetensors";
const FILES: [&str; 2] = [MODEL, WEIGHTS];

/// A file of a saved model, open.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) len: u64,
    pub(super) name: String,
}

impl Opened {
    /// The contents of `model.json`, or as much of a longer file as shows that it is none.
    pub(super) fn contents(&mut self) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        let most = manifest::MAX_BYTES as u64 + 1;
        let read = (&mut self.file).take(most).read_to_end(&mut contents);
        read.map_err(refused("read", Path::new(&self.name)))?;
        Ok(contents)
    }
}

/// Opens the two files of a saved model: `model.json`, then `weights.safetensors`.
///
/// Both are of one save: when the directory is replaced meanwhile, they are opened again.
pub(super) fn open(folder: &Path) -> Result<(Opened, Opened)> {
    const TRIES: usize = 20;
    for _ in 1..TRIES {
        let before = identity(folder);
        let opened = open_files(folder);
        if before == identity(folder) {
            return opened;
        }
    }
    open_files(folder)
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

fn open_files(folder: &Path) -> Result<(Opened, Opened)> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(Error::user(format!(
                "`{shown}` is a file, and a saved model is a directory with `{MODEL}` and `{WEIGHTS}`; give the directory"
            )));
        }
        Err(error) if is_absent(&error) => return Err(nothing_at(folder)),
        Err(error) => return Err(refused("open", folder)(error)),
    }
    Ok((open_file(folder, MODEL)?, open_file(folder, WEIGHTS)?))
}

fn open_file(folder: &Path, name: &str) -> Result<Opened> {
    let path = folder.join(name);
    let shown = folder.display();
    // Before it is opened: to open a pipe is to wait for its other end.
    let found = fs::metadata(&path).map_err(|error| match is_absent(&error) {
        true => Error::user(format!(
            "`{shown}` has no file `{name}`, so it is no saved model or not the whole of one; check the path, or copy the whole directory again"
        )),
        false => refused("open", &path)(error),
    })?;
    if !found.is_file() {
        return Err(Error::user(format!(
            "`{name}` in `{shown}` is no plain file; check the path, or save the model again"
        )));
    }
    Ok(Opened {
        file: File::open(&path).map_err(refused("open", &path))?,
        len: found.len(),
        name: path.display().to_string(),
    })
}

fn nothing_at(folder: &Path) -> Error {
    let shown = folder.display();
    let aside = Place::of(folder).map(|place| place.aside());
    Error::user(match aside.ok().filter(|aside| aside.exists()) {
        Some(aside) => format!(
            "there is no saved model at `{shown}`: a save was interrupted; rename `{}`, the model before it, to that name",
            aside.display()
        ),
        None => format!(
            "there is no saved model at `{shown}`; check the path, which is the directory that `save` was given"
        ),
    })
}

/// Makes the directory anew with what `write` puts into it: the old one stays until the new one is whole and on disk.
pub(super) fn replace(path: &Path, write: impl FnOnce(&Work) -> Result<()>) -> Result<()> {
    let place = Place::of(path)?;
    fs::create_dir_all(&place.parent).map_err(refused("create", &place.parent))?;
    place.check_replaceable()?;
    place.remove_leftovers();
    let work = place.begin()?;
    write(&work)?;
    sync_folder(&work.path)?;
    place.publish(&work)?;
    sync_folder(&place.parent)
}

/// Writes a file anew: the old one stays until the new one is whole and on disk.
pub(super) fn replace_file(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let place = Place::of(path)?;
    fs::create_dir_all(&place.parent).map_err(refused("create", &place.parent))?;
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
pub(super) struct Work {
    path: PathBuf,
}

impl Work {
    /// Writes one file and makes it durable.
    pub(super) fn write(
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

impl Drop for Work {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Where a saved model goes.
struct Place {
    parent: PathBuf,
    name: OsString,
}

impl Place {
    fn of(path: &Path) -> Result<Self> {
        // What a link points to is replaced, not the link.
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let path = match is_link {
            true => fs::canonicalize(path).map_err(refused("follow the link", path))?,
            false => path.to_path_buf(),
        };
        let Some(name) = path.file_name() else {
            return Err(Error::user(format!(
                "`{}` names no directory to save a model in; give a name, such as `digits.phx`",
                path.display()
            )));
        };
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Ok(Self {
            parent: parent.unwrap_or(Path::new(".")).to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Where the old model waits for a moment when a file system cannot exchange two names.
    fn aside(&self) -> PathBuf {
        self.parent.join(self.hidden(".before"))
    }

    fn hidden(&self, suffix: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        name
    }

    /// Checks that nothing is lost when the model takes this place.
    fn check_replaceable(&self) -> Result<()> {
        let path = self.path();
        let shown = path.display();
        let foreign = |what: String| {
            Error::user(format!(
                "`{shown}` {what}, so it is not replaced by the model; save under another name, or move it away"
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
            if !is_file || !FILES.iter().any(|file| name == OsStr::new(file)) {
                let name = name.to_string_lossy();
                return Err(foreign(format!(
                    "has `{name}` in it, which no saved model has"
                )));
            }
            is_empty = false;
        }
        if is_empty || is_ours(&path) {
            return Ok(());
        }
        Err(foreign(format!("has no `{MODEL}` written by phalanx")))
    }

    /// Makes an empty directory beside the place, so that it is on the same file system.
    fn begin(&self) -> Result<Work> {
        const TRIES: u32 = 1000;
        let process = std::process::id();
        for number in 0..TRIES {
            let path = self
                .parent
                .join(self.hidden(&format!("{WORK}{process}-{number}")));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Work { path }),
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
            let is_work = name
                .as_encoded_bytes()
                .starts_with(prefix.as_encoded_bytes());
            if is_work && is_old(&entry.path()) {
                remove(&entry.path());
            }
        }
        if is_ours(&self.path()) && is_ours(&self.aside()) {
            remove(&self.aside());
        }
    }

    /// Gives the finished directory its name; the old one is then in its stead in `work`, or gone.
    fn publish(&self, work: &Work) -> Result<()> {
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
        remove(&aside);
        Ok(())
    }
}

/// In the names of directories being filled.
const WORK: &str = ".saving-";
/// No save writes nothing for as long.
const LEFT_ALONE: Duration = Duration::from_secs(3600);

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Into::into)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether the directory has a `model.json` of ours.
fn is_ours(folder: &Path) -> bool {
    let opened = open_file(folder, MODEL).and_then(|mut file| file.contents());
    opened.is_ok_and(|text| manifest::is_ours(&text))
}

/// Whether nothing was written in the directory for a while.
fn is_old(folder: &Path) -> bool {
    let paths = FILES.iter().map(|name| folder.join(name));
    let times = paths.chain([folder.to_path_buf()]).filter_map(|path| {
        let found = fs::symlink_metadata(path).ok()?;
        found.modified().ok()
    });
    let newest = times.max().unwrap_or_else(SystemTime::now);
    newest.elapsed().is_ok_and(|age| age > LEFT_ALONE)
}

/// Removes the two files and the directory, and nothing else that may be in it.
fn remove(folder: &Path) {
    for name in FILES {
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

    fn fill(work: &Work, text: &str) -> Result<()> {
        let ours = r#"{"format": "phalanx model"}"#;
        work.write(MODEL, |file| file.write_all(ours.as_bytes()))?;
        work.write(WEIGHTS, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_save_that_fails_half_way_leaves_the_old_and_nothing_else() {
        let scratch = Scratch::new("half");
        let path = scratch.0.join("m");
        replace(&path, |work| fill(work, "old")).unwrap();
        let full = |work: &Work| {
            work.write(MODEL, |file| file.write_all(b"new"))?;
            work.write(WEIGHTS, |_| Err(io::ErrorKind::StorageFull.into()))
        };
        let error = replace(&path, full).unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"old");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_appears_while_a_save_runs_is_not_replaced() {
        let scratch = Scratch::new("appears");
        let path = scratch.0.join("m");
        let slow = |work: &Work| {
            fill(work, "new")?;
            fs::create_dir(&path).unwrap();
            fs::write(path.join("thesis"), "mine").unwrap();
            Ok(())
        };
        let error = replace(&path, slow).unwrap_err().to_string();
        assert!(error.contains("`thesis`"), "{error}");
        assert_eq!(fs::read(path.join("thesis")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }
}
