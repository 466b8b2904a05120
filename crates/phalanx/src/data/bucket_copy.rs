//! Files in buckets, copied to this machine before they are read.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use glob::Pattern;
use phalanx_store::{Bucket, Limits, Object, ObjectUrl, StoreError};

use super::formats::{INDEX_ENDING, MATCHING, io, start_of_pattern};
use crate::storage::{remove_file, this_process};
use crate::{Error, Result};

/// The most objects of one URL.
const MAX_OBJECTS: usize = 1_000_000;
/// Objects that are copied at the same time: small ones are waits for the server.
const AT_ONCE: usize = 8;
/// Where files are before they are whole, among the copies.
const PARTS: &str = ".parts";

/// What a URL such as `s3://bucket/data/train-*.csv` names, and the copies of it in a folder of this machine.
///
/// A copy has the size and the time of its object; one that has others is made again, and one whose object is gone is removed. Several
/// processes may use one folder at the same time. Unlike tf.data, which reads buckets as it goes, the files are whole on this
/// machine before the first is read, so that examples are found by index and shuffled without limits.
///
/// ```no_run
/// use std::path::Path;
///
/// use phalanx::data::BucketCopy;
///
/// # fn main() -> phalanx::Result<()> {
/// let copy = BucketCopy::find("s3://bucket/data/train-*.csv", Path::new("/var/cache/data"))?;
/// println!("{} files, {} bytes are to be copied", copy.missing(), copy.missing_bytes());
/// let pattern = copy.fetch()?; // /var/cache/data/s3/bucket/data/train-*.csv
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BucketCopy {
    bucket: Bucket,
    scope: Scope,
    /// The folder of all copies.
    folder: PathBuf,
    objects: Vec<Object>,
    /// Places of the objects that have no copy.
    missing: Vec<usize>,
}

/// What a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scope {
    /// An object, or what is before the names of several.
    base: ObjectUrl,
    names: ObjectNames,
}

/// Which names below the base.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ObjectNames {
    /// The base itself.
    One,
    All,
    Matching(Pattern),
}

impl BucketCopy {
    /// Whether a path is a URL.
    #[must_use]
    pub fn is_url(path: &Path) -> bool {
        path.to_str().is_some_and(ObjectUrl::is_url)
    }

    /// Finds out what a URL names, an object, all objects below a prefix, or those that match a pattern of `*`, `?`, `[..]` and `**`, and which
    /// of them have no copy in the folder.
    ///
    /// # Errors
    /// When it is no URL of `s3://` or `gs://`, nothing is there, or the bucket may not be read; without the feature `cloud` always.
    pub fn find(url: &str, folder: &Path) -> Result<Self> {
        let mut scope = Scope::parse(url)?;
        let limits = Limits::from_env().map_err(Error::from)?;
        let bucket = Bucket::open(&scope.base, limits).map_err(Error::from)?;
        let objects = scope.objects(&bucket)?;
        if objects.len() > MAX_OBJECTS {
            return Err(Error::User(format!(
                "{url} names more than {MAX_OBJECTS} objects; narrow the pattern, or pack them into TFRecord or WebDataset files"
            )));
        }
        let mut copy = Self {
            bucket,
            scope,
            folder: folder.to_owned(),
            objects,
            missing: Vec::new(),
        };
        for (place, object) in copy.objects.iter().enumerate() {
            if !is_copy(&copy.path(&object.name)?, object) {
                copy.missing.push(place);
            }
        }
        Ok(copy)
    }

    /// How many objects have no copy.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// The bytes of these.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.missing
            .iter()
            .map(|&place| self.objects[place].size)
            .sum()
    }

    /// Makes the copies, and gives the path or the pattern of them.
    ///
    /// # Errors
    /// When the bucket may not be read, an object changes meanwhile, or the disk is full; copies that were made stay, and are not made again.
    pub fn fetch(mut self) -> Result<PathBuf> {
        // Before: what was an object may be a prefix now.
        self.remove_others()?;
        if !self.missing.is_empty() {
            self.copy_all()?;
            let now = self.scope.objects(&self.bucket)?;
            if now != self.objects {
                return Err(Error::User(format!(
                    "{} was changed while it was copied; start again when it is complete",
                    self.scope.base
                )));
            }
        }
        let base = self.path("")?;
        Ok(match &self.scope.names {
            ObjectNames::One | ObjectNames::All => base,
            ObjectNames::Matching(pattern) => base.join(pattern.as_str()),
        })
    }

    /// Copies with several threads, which take the next object each; other processes begin elsewhere.
    fn copy_all(&self) -> Result<()> {
        let parts = self.folder.join(PARTS);
        fs::create_dir_all(&parts).map_err(|error| io(&parts, "create", error))?;
        let count = self.missing.len();
        let first = std::process::id() as usize % count;
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        static COPYING: AtomicUsize = AtomicUsize::new(0);
        let copying = COPYING.fetch_add(1, Ordering::Relaxed);
        let work = |thread: usize| {
            let part = parts.join(format!("{}-{copying}-{thread}", this_process()));
            while !is_over.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                let object = &self.objects[self.missing[(first + number) % count]];
                self.copy_one(object, &part).inspect_err(|_| {
                    is_over.store(true, Ordering::Relaxed);
                    let _ = fs::remove_file(&part);
                })?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others = 1..AT_ONCE.min(count);
            let others: Vec<_> = others
                .map(|thread| scope.spawn(move || work(thread)))
                .collect();
            let own = work(0);
            let ended = others
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.fold(own, Result::and)
        })
    }

    fn copy_one(&self, object: &Object, part: &Path) -> Result<()> {
        let path = self.path(&object.name)?;
        // Another process may have been here.
        if is_copy(&path, object) {
            return Ok(());
        }
        let url = self.url(&object.name);
        let mut file = File::create(part).map_err(|error| io(part, "create", error))?;
        for bytes in self.bucket.parts(&url, object.size) {
            file.write_all(&bytes.map_err(Error::from)?)
                .map_err(|error| io(part, "write", error))?;
        }
        // Before it has its name: a crash of the machine must not leave a file of the right size and time without contents.
        let finish = || {
            file.set_modified(object.modified)?;
            file.sync_all()
        };
        finish().map_err(|error| io(part, "write", error))?;
        let parent = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).map_err(|error| io(parent, "create", error))?;
        fs::rename(part, &path).map_err(|error| io(&path, "write", error))
    }

    /// Removes copies whose objects are gone.
    fn remove_others(&self) -> Result<()> {
        if self.scope.names == ObjectNames::One {
            return Ok(());
        }
        let kept: HashSet<&str> = self.objects.iter().map(|object| &*object.name).collect();
        let base = self.path("")?;
        if base.is_file() {
            remove_file(&base)?;
        }
        fs::create_dir_all(&base).map_err(|error| io(&base, "create", error))?;
        let mut folders = vec![base.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(|error| io(&folder, "read", error))? {
                let entry = entry.map_err(|error| io(&folder, "read", error))?;
                let path = entry.path();
                let kind = entry
                    .file_type()
                    .map_err(|error| io(&path, "read", error))?;
                let name = path.strip_prefix(&base).ok().and_then(Path::to_str);
                // Kept indexes of TFRecord files are no copies.
                let is_index = path.extension().is_some_and(|end| end == INDEX_ENDING);
                let is_other = !is_index
                    && name.is_none_or(|name| self.scope.has(name) && !kept.contains(name));
                match (kind.is_dir(), is_other) {
                    (true, _) => folders.push(path),
                    (false, true) => {
                        remove_file(&path)?;
                    }
                    (false, false) => {}
                }
            }
        }
        Ok(())
    }

    fn url(&self, name: &str) -> ObjectUrl {
        match self.scope.names {
            ObjectNames::One => self.scope.base.clone(),
            ObjectNames::All | ObjectNames::Matching(_) => self.scope.base.join(name),
        }
    }

    /// Where the copy of an object is, by its name below the base.
    fn path(&self, name: &str) -> Result<PathBuf> {
        let base = &self.scope.base;
        let scheme = base.scheme().name();
        let path = self
            .folder
            .join(scheme)
            .join(base.bucket())
            .join(base.key());
        let is_whole = name.is_empty() || self.scope.names == ObjectNames::One;
        if is_whole {
            return Ok(path);
        }
        if name.split('/').any(|part| matches!(part, "" | "." | "..")) || name.contains('\0') {
            return Err(Error::User(format!(
                "{base} has an object whose name is no path: {}; copy it to another name",
                name.escape_debug().take(100).collect::<String>()
            )));
        }
        Ok(path.join(name))
    }
}

impl Scope {
    fn parse(text: &str) -> Result<Self> {
        let first = start_of_pattern(text).unwrap_or(text.len());
        if first == text.len() {
            let base = ObjectUrl::parse(text).map_err(Error::from)?;
            return Ok(Self {
                base,
                names: ObjectNames::All,
            });
        }
        let start = text[..first].rfind('/').unwrap_or(0);
        let base = ObjectUrl::parse(&text[..start]).map_err(Error::from)?;
        let pattern = Pattern::new(&text[start + 1..]).map_err(|error| {
            Error::User(format!(
                "`{text}` is no pattern of objects: {error}; write *, ? and [a-z] as in a shell"
            ))
        })?;
        Ok(Self {
            base,
            names: ObjectNames::Matching(pattern),
        })
    }

    /// Whether it names what has this name below the base.
    fn has(&self, name: &str) -> bool {
        match &self.names {
            ObjectNames::One => name.is_empty(),
            ObjectNames::All => true,
            ObjectNames::Matching(pattern) => pattern.matches_with(name, MATCHING),
        }
    }

    /// The objects, in the order of their names. A URL without a pattern may turn out to be one object.
    fn objects(&mut self, bucket: &Bucket) -> Result<Vec<Object>> {
        if !matches!(self.names, ObjectNames::Matching(_)) {
            match bucket.stat(&self.base) {
                Ok(object) => {
                    self.names = ObjectNames::One;
                    return Ok(vec![object]);
                }
                Err(StoreError::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let listed = bucket.list(&self.base).map_err(Error::from)?;
        let objects: Vec<Object> = Object::without_markers(listed)
            .into_iter()
            .filter(|object| self.has(&object.name))
            .collect();
        if objects.is_empty() {
            let base = &self.base;
            let what = match &self.names {
                ObjectNames::Matching(pattern) => format!("{base}/{pattern}"),
                ObjectNames::One | ObjectNames::All => base.to_string(),
            };
            return Err(Error::User(format!(
                "there is nothing at {what}; check the name of the bucket and the path"
            )));
        }
        Ok(objects)
    }
}

/// Whether a file has the size and the time of an object, in whole seconds, which is what some servers tell.
fn is_copy(path: &Path, object: &Object) -> bool {
    let seconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    };
    let Ok(found) = fs::metadata(path) else {
        return false;
    };
    let modified = found.modified().map(seconds).ok();
    found.is_file() && found.len() == object.size && modified == Some(seconds(object.modified))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, size: u64) -> Object {
        Object {
            name: name.to_owned(),
            size,
            modified: UNIX_EPOCH,
        }
    }

    #[test]
    fn a_url_names_an_object_a_prefix_or_what_matches_a_pattern() {
        let scope = Scope::parse("s3://bucket/data/train/").unwrap();
        assert_eq!(
            (scope.base.key(), &scope.names),
            ("data/train", &ObjectNames::All)
        );
        let scope = Scope::parse("gs://bucket/data/part-*/[ab]?.csv").unwrap();
        assert_eq!(scope.base.to_string(), "gs://bucket/data");
        let has = |name: &str| scope.has(name);
        assert!(has("part-1/a1.csv") && has("part-/bx.csv"));
        assert!(!has("part-1/c1.csv") && !has("part-1/x/a1.csv") && !has("a1.csv"));
        let deep = Scope::parse("s3://bucket/data/**/*.csv").unwrap();
        assert!(deep.has("a/b/c.csv") && !deep.has("a/b/c.txt"));
    }

    #[test]
    fn what_is_no_url_of_a_bucket_is_refused() {
        let refused = |text: &str| Scope::parse(text).unwrap_err().to_string();
        assert!(refused("http://host/a.csv").contains("`http://` is no store that is known here"));
        assert!(refused("s3://bucket/*.csv").contains("is empty; expected a prefix"));
        assert!(refused("s3://bucket/data/[a.csv").contains("is no pattern of objects"));
        assert!(refused("s3://bucket/../a.csv").contains("`..`"));
    }

    #[test]
    fn a_copy_has_the_size_and_the_time_of_its_object() {
        let folder = phalanx_testkit::Scratch::temporary("bucket-copy");
        let path = folder.join("a");
        let same = Object {
            modified: UNIX_EPOCH + std::time::Duration::from_millis(5_000_300),
            ..object("a", 3)
        };
        assert!(!is_copy(&path, &same));
        fs::write(&path, "abc").unwrap();
        assert!(!is_copy(&path, &same));
        File::open(&path)
            .unwrap()
            .set_modified(same.modified)
            .unwrap();
        assert!(is_copy(&path, &same));
        assert!(!is_copy(
            &path,
            &Object {
                size: 4,
                ..same.clone()
            }
        ));
        assert!(!is_copy(&folder, &same));
    }
}
