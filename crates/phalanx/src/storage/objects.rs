//! A directory that is kept in a bucket, where nothing can be renamed and several objects cannot change at once.
//!
//! Each save has a name of its own under the URL, `0000000007-5b1c29d04e6f8a73`: a number that grows, and what no other save has.
//! Its files are written there one after the other, and the one that identifies the directory comes last: it has the checksums of the
//! others, and with it the save is there. No object is ever written twice, so what a reader finds is of one save, and two who save
//! at the same time do not mix. The newest save is the one with the greatest name that has this last file.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime};

use phalanx_store::{Bucket, Limits, Object, ObjectUrl, StoreError};

use super::atomic_dir::{DirectoryKind, Replaced};
use super::store::{Contents, Files, OpenFile, Staging};
use crate::{Error, Result};

/// What an interrupted save has left is removed when the newest object is younger by this.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A save that takes longer is not completed: another process may have begun to take it for abandoned.
const MOST_OF_SAVE: Duration = Duration::from_secs(12 * 3600);
/// How often a reader begins again because what it read was replaced.
const TRIES: usize = 20;
/// How much is asked for at once.
const PART: u64 = 32 << 20;
/// More than a note has.
const MOST_OF_NOTE: u64 = 4096;

/// The objects under a URL.
pub(crate) struct ObjectDir {
    kind: &'static DirectoryKind,
    url: ObjectUrl,
    bucket: Arc<Bucket>,
}

/// The objects of a save.
#[derive(Clone, Debug, PartialEq)]
struct ObjectSave {
    url: ObjectUrl,
    /// Its name under the URL that was given; none where that is the save.
    name: Option<String>,
    files: Vec<Object>,
    is_complete: bool,
}

impl ObjectSave {
    /// The number that its name begins with.
    fn number(&self) -> u64 {
        let name = self.name.as_deref().unwrap_or_default();
        name.split('-')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.url.to_string())
    }
}

/// The name of a save: ten digits, and sixteen that are hexadecimal.
fn is_name(name: &str) -> bool {
    let Some((number, rest)) = name.split_once('-') else {
        return false;
    };
    let is = |text: &str, len: usize, digit: fn(u8) -> bool| {
        text.len() == len && text.bytes().all(digit)
    };
    is(number, 10, |c| c.is_ascii_digit()) && is(rest, 16, |c| c.is_ascii_hexdigit())
}

/// A name that sorts after those with smaller numbers, and that no other save has.
fn new_name(number: u64) -> String {
    use std::hash::{BuildHasher, RandomState};
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let unique = RandomState::new().hash_one((super::this_process(), time.ok(), number));
    format!("{number:010}-{unique:016x}")
}

impl ObjectDir {
    /// Finds the bucket; nothing is asked of it yet.
    pub(super) fn open(url: &str, kind: &'static DirectoryKind) -> Result<Self> {
        let url = ObjectUrl::parse(url).map_err(Error::from)?;
        let limits = Limits::from_env().map_err(Error::from)?;
        let bucket = Bucket::open(&url, limits).map_err(Error::from)?;
        Ok(Self {
            kind,
            url,
            bucket: Arc::new(bucket),
        })
    }

    /// All saves, complete or not, the oldest first; or the one that the URL itself is.
    fn saves(&self) -> Result<Vec<ObjectSave>> {
        let mut saves: Vec<ObjectSave> = Vec::new();
        let mut own = Vec::new();
        for object in self.bucket.list(&self.url).map_err(Error::from)? {
            let (folder, name) = match object.name.split_once('/') {
                Some((folder, name)) if is_name(folder) => (folder.to_owned(), name.to_owned()),
                Some(_) => continue,
                None => {
                    own.push(object);
                    continue;
                }
            };
            if saves
                .last()
                .is_none_or(|last| last.name.as_ref() != Some(&folder))
            {
                saves.push(self.save(Some(folder), Vec::new()));
            }
            if let Some(last) = saves.last_mut() {
                last.is_complete |= name == self.kind.files[0];
                last.files.push(Object { name, ..object });
            }
        }
        let own = self.save(None, own);
        Ok(if own.is_complete { vec![own] } else { saves })
    }

    fn save(&self, name: Option<String>, files: Vec<Object>) -> ObjectSave {
        let url = match &name {
            Some(name) => self.url.join(name),
            None => self.url.clone(),
        };
        let is_complete = files.iter().any(|file| file.name == self.kind.files[0]);
        ObjectSave {
            url,
            name,
            files,
            is_complete,
        }
    }

    /// The complete saves, the newest first.
    fn complete(&self) -> Result<Vec<ObjectSave>> {
        let saves = self.saves()?.into_iter().rev();
        Ok(saves.filter(|save| save.is_complete).collect())
    }

    /// The URLs of the complete saves, the newest first.
    pub(super) fn all(&self) -> Result<Vec<PathBuf>> {
        Ok(self.complete()?.iter().map(ObjectSave::path).collect())
    }

    /// Texts about the saves that have no last file and are newer than all that have it.
    pub(super) fn unfinished(&self) -> Result<Vec<String>> {
        let saves = self.saves()?.into_iter().rev();
        let newer = saves.take_while(|save| !save.is_complete);
        let last = self.kind.files[0];
        let text = |save: ObjectSave| {
            format!(
                "`{}` has no `{last}`: it was interrupted, or is being written",
                save.url
            )
        };
        Ok(newer.map(text).collect())
    }

    /// Opens the files of the newest complete save.
    pub(super) fn files<T>(&self, open: &dyn Fn(&dyn Files) -> Result<T>) -> Result<T> {
        let newest = self.complete()?.into_iter().next();
        let save = newest.ok_or_else(|| {
            let DirectoryKind { what, writer, .. } = self.kind;
            Error::user(format!(
                "there is no complete {what} at `{}`; check the URL, which is the one that `{writer}` was given",
                self.url
            ))
        })?;
        open(&SavedObjects {
            objects: self,
            save,
        })
    }

    /// What `read` makes of the newest save; begun again where it fails because that was replaced and removed meanwhile.
    pub(super) fn steadily<T>(&self, read: impl Fn() -> Result<T>) -> Result<T> {
        let newest = || self.complete().map(|all| all.first().map(ObjectSave::path));
        for _ in 1..TRIES {
            let before = newest()?;
            match read() {
                Err(error) if newest()? == before => return Err(error),
                Err(_) => {}
                Ok(value) => return Ok(value),
            }
        }
        read()
    }

    /// Refuses a URL that is itself one save, under which there can be no others.
    pub(super) fn check_replaceable(&self) -> Result<()> {
        self.check_several(&self.saves()?)
    }

    fn check_several(&self, saves: &[ObjectSave]) -> Result<()> {
        if saves.iter().all(|save| save.name.is_some()) {
            return Ok(());
        }
        Err(Error::user(format!(
            "`{}` is a single {} of several; save to the URL above it, or to another one",
            self.url, self.kind.what
        )))
    }

    /// Writes a new save, and removes those that are no longer kept.
    pub(super) fn replace(
        &self,
        older: usize,
        write: impl FnOnce(&dyn Staging) -> Result<()>,
        may_publish: &dyn Fn() -> Result<()>,
    ) -> Result<Replaced> {
        let before = self.saves()?;
        self.check_several(&before)?;
        let number = before.iter().map(ObjectSave::number).max().unwrap_or(0) + 1;
        let staging = ObjectStaging {
            objects: self,
            url: self.url.join(&new_name(number)),
            last: Mutex::default(),
            begun: Instant::now(),
        };
        write(&staging)?;
        may_publish()?;
        staging.complete()?;
        // It is there, whatever becomes of the older ones.
        let Err(error) = self.keep(older) else {
            return Ok(Replaced::Nothing);
        };
        let (what, url) = (self.kind.what, &self.url);
        Ok(Replaced::Left(format!(
            "warning: the {what} at `{url}` is written, and what it replaces could not be removed: {error}; the next one tries it again"
        )))
    }

    /// Removes all but the newest and `older` before it, and what was abandoned.
    fn keep(&self, older: usize) -> Result<()> {
        let saves = self.saves()?;
        let times = |save: &ObjectSave| save.files.iter().map(|file| file.modified).max();
        let now = saves.iter().filter_map(times).max();
        let is_abandoned = |save: &&ObjectSave| {
            let age = now
                .zip(times(save))
                .and_then(|(now, then)| now.duration_since(then).ok());
            !save.is_complete && age.is_some_and(|age| age > ABANDONED_AFTER)
        };
        let complete = saves.iter().rev().filter(|save| save.is_complete);
        let removed = complete
            .skip(older + 1)
            .chain(saves.iter().filter(is_abandoned));
        removed.into_iter().try_for_each(|save| self.remove(save))
    }

    /// Removes a save, its last file first: without it the others are nothing.
    fn remove(&self, save: &ObjectSave) -> Result<()> {
        let is_last = |file: &&Object| file.name == self.kind.files[0];
        let first = save.files.iter().filter(is_last);
        let rest = save.files.iter().filter(|file| !is_last(file));
        for file in first
            .chain(rest)
            .filter(|file| self.kind.files.contains(&file.name.as_str()))
        {
            let removed = self.bucket.remove(&save.url.join(&file.name));
            removed.map_err(Error::from)?;
        }
        Ok(())
    }

    /// Removes all saves, the oldest first.
    pub(super) fn discard(&self) -> Result<()> {
        self.saves()?.iter().try_for_each(|save| self.remove(save))
    }

    pub(super) fn leave_note(&self, name: &str, text: &str) -> Result<()> {
        let put = self
            .bucket
            .put(&self.url.join(name), text.as_bytes().to_vec());
        put.map_err(Error::from)
    }

    pub(super) fn note(&self, name: &str) -> Result<Option<String>> {
        match self.bucket.read(&self.url.join(name), 0, MOST_OF_NOTE) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn remove_note(&self, name: &str) -> Result<()> {
        let removed = self.bucket.remove(&self.url.join(name));
        removed.map_err(Error::from)
    }
}

/// A save that is being written.
struct ObjectStaging<'a> {
    objects: &'a ObjectDir,
    url: ObjectUrl,
    /// The contents of the file that makes it complete.
    last: Mutex<Option<Vec<u8>>>,
    begun: Instant,
}

impl Staging for ObjectStaging<'_> {
    fn put(&self, name: &str, len: u64, contents: &mut Contents<'_>) -> Result<()> {
        let url = self.url.join(name);
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
        contents(&mut bytes).map_err(|source| Error::Io {
            path: url.to_string().into(),
            action: "write",
            source,
        })?;
        if name == self.objects.kind.files[0] {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
            return Ok(());
        }
        self.objects.bucket.put(&url, bytes).map_err(Error::from)
    }
}

impl ObjectStaging<'_> {
    fn complete(self) -> Result<()> {
        let name = self.objects.kind.files[0];
        let url = self.url.join(name);
        if self.begun.elapsed() > MOST_OF_SAVE {
            let hours = MOST_OF_SAVE.as_secs() / 3600;
            return Err(Error::user(format!(
                "the save to `{}` took longer than {hours} hours and was given up, since others may take it for abandoned; save to a folder, or look at the network",
                self.url
            )));
        }
        let last = self
            .last
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let last = last.ok_or_else(|| Error::Bug(format!("a save without `{name}`")))?;
        self.objects.bucket.put(&url, last).map_err(Error::from)
    }
}

/// The files of a save.
struct SavedObjects<'a> {
    objects: &'a ObjectDir,
    save: ObjectSave,
}

impl Files for SavedObjects<'_> {
    fn file(&self, name: &str) -> Result<OpenFile> {
        let found = self.save.files.iter().find(|file| file.name == name);
        let found = found.ok_or_else(|| {
            let what = self.objects.kind.what;
            Error::user(format!(
                "`{}` has no file `{name}`, so it is not the whole of a {what}; check the URL, or restore another one",
                self.save.url
            ))
        })?;
        let url = self.save.url.join(name);
        Ok(OpenFile {
            name: url.to_string(),
            len: found.size,
            bytes: Box::new(ObjectReader {
                bucket: Arc::clone(&self.objects.bucket),
                url,
                len: found.size,
                next: 0,
                part: io::Cursor::default(),
            }),
        })
    }
}

/// Reads an object part by part, so that memory holds one of them.
struct ObjectReader {
    bucket: Arc<Bucket>,
    url: ObjectUrl,
    len: u64,
    /// Where the next part begins.
    next: u64,
    part: io::Cursor<Vec<u8>>,
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let is_used = self.part.position() == self.part.get_ref().len() as u64;
        if is_used && self.next < self.len {
            let end = self.len.min(self.next + PART);
            let part = self.bucket.read(&self.url, self.next, end);
            self.part = io::Cursor::new(part.map_err(io::Error::other)?);
            self.next = end;
        }
        self.part.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_saves_grow_and_differ() {
        let names: Vec<String> = (0..1000).map(|number| new_name(number / 2)).collect();
        assert!(names.iter().all(|name| is_name(name)));
        assert!(names.windows(2).all(|two| two[0] != two[1]));
        assert!(names.windows(3).all(|three| three[0] < three[2]));
        for other in [
            "",
            "1-2",
            "0000000001",
            "0000000001-",
            "000000000a-0123456789abcdef",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }
}
