//! Packages in buckets: an object for each file, and `package.json`, written last, without which there is no package.
//!
//! Objects have numbers for names, so that names of files may have any characters; `package.json` says which file each one is.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use phalanx_store::{Bucket, Limits, ObjectUrl, StoreError};
use serde::{Deserialize, Serialize};

use super::{Entry, Kind, MOST_BYTES, MOST_FILES, Package, is_executable, stays_within};

/// The object that is written last.
const CONTENTS: &str = "package.json";
const VERSION: u32 = 1;
/// More bytes than this no list of files has.
const MOST_CONTENTS: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    files: Vec<Listed>,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    path: String,
    size: u64,
    crc32c: u32,
    executable: bool,
}

fn open(url: &ObjectUrl) -> Result<Bucket, String> {
    let limits = Limits::from_env().map_err(|error| error.to_string())?;
    Bucket::open(url, limits).map_err(|error| error.to_string())
}

fn object(url: &ObjectUrl, number: usize) -> ObjectUrl {
    url.join(&format!("{number:05}"))
}

pub(super) fn put(package: &Package, url: &ObjectUrl) -> Result<String, String> {
    let entries = sent(package)?;
    let bucket = open(url)?;
    let mut files = Vec::new();
    for (entry, executable) in entries {
        let path = package.folder.join(&entry.path);
        let shown = path.display();
        let bytes = fs::read(&path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        let name = entry.path.to_str();
        let name = name.ok_or_else(|| {
            format!("the name of {shown} is not in UTF-8, as names in buckets are; rename it")
        })?;
        let (size, crc32c) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let sent = bucket.put(&object(url, files.len()), bytes);
        sent.map_err(|error| error.to_string())?;
        files.push(Listed {
            path: name.to_owned(),
            size,
            crc32c,
            executable,
        });
    }
    let version = VERSION;
    let contents = serde_json::to_vec(&Contents { version, files }).unwrap_or_default();
    let sent = bucket.put(&url.join(CONTENTS), contents);
    sent.map_err(|error| error.to_string())?;
    Ok(url.to_string())
}

/// What goes into the bucket, and whether it can be executed. Whoever fetches it refuses more than a package may have, and there files
/// behind links count, too.
fn sent(package: &Package) -> Result<Vec<(&Entry, bool)>, String> {
    let (mut all, mut size) = (Vec::new(), 0);
    for entry in &package.entries {
        if let Some(executable) = kept(package, entry)? {
            let path = package.folder.join(&entry.path);
            size += fs::metadata(path).map_or(0, |file| file.len());
            all.push((entry, executable));
        }
    }
    package.check_size((all.len(), size))?;
    Ok(all)
}

/// Whether a file that goes into the bucket can be executed; `None` for what does not go there.
fn kept(package: &Package, entry: &Entry) -> Result<Option<bool>, String> {
    let shown = package.folder.join(&entry.path);
    match &entry.kind {
        Kind::Folder => Ok(None),
        Kind::File { executable, .. } => Ok(Some(*executable)),
        Kind::LinkWithin(_) if shown.is_file() => {
            // The bucket has a copy of what it leads to.
            let found = fs::metadata(&shown);
            let found =
                found.map_err(|error| format!("cannot read {}: {error}", shown.display()))?;
            Ok(Some(is_executable(&found)))
        }
        Kind::LinkWithin(to) | Kind::LinkOut(to) => Err(format!(
            "{} is a link to {}, which cannot be kept in a bucket; copy what it leads to, or give --staging-bucket a folder",
            shown.display(),
            to.display()
        )),
    }
}

pub(super) fn get(url: &ObjectUrl, into: &Path) -> Result<PathBuf, String> {
    let name = url.key().rsplit('/').next().unwrap_or_default();
    let folder = into.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let bucket = open(url)?;
    let contents = contents(&bucket, url)?;
    let new = into.join(format!(".{name}.new"));
    let _ = fs::remove_dir_all(&new);
    let wrong = |error: std::io::Error| format!("cannot write {}: {error}", new.display());
    make(&new).map_err(wrong)?;
    for (number, file) in contents.files.iter().enumerate() {
        let place = object(url, number);
        let mut to = made(&new.join(&file.path), file.executable).map_err(wrong)?;
        let mut crc32c = 0;
        for bytes in bucket.parts(&place, file.size) {
            let bytes = bytes.map_err(|error| error.to_string())?;
            crc32c = crc32c::crc32c_append(crc32c, &bytes);
            to.write_all(&bytes).map_err(wrong)?;
        }
        if crc32c != file.crc32c {
            return Err(format!(
                "{place}, the file {:?} of the package, is damaged: other contents are expected; submit the job again",
                file.path
            ));
        }
    }
    fs::rename(&new, &folder).map_err(wrong)?;
    Ok(folder)
}

/// What is in the package, each name checked: the bucket may be writable by others.
fn contents(bucket: &Bucket, url: &ObjectUrl) -> Result<Contents, String> {
    let place = url.join(CONTENTS);
    let text = bucket.read(&place, 0, MOST_CONTENTS);
    let text = text.map_err(|error| match error {
        StoreError::Missing { .. } => {
            format!("there is no package at {url}: {place} is missing; correct packageUris")
        }
        error => error.to_string(),
    })?;
    read_contents(&text).map_err(|why| format!("{place} {why}; submit the job again"))
}

fn read_contents(text: &[u8]) -> Result<Contents, String> {
    let contents: Result<Contents, _> = serde_json::from_slice(text);
    let contents = contents.map_err(|error| format!("is no list of files: {error}"))?;
    if contents.version != VERSION {
        return Err(format!(
            "has version {}, expected {VERSION}",
            contents.version
        ));
    }
    let out = contents
        .files
        .iter()
        .find(|file| !stays_within(Path::new(&file.path)));
    if let Some(out) = out {
        return Err(format!(
            "has the name {:?}, which leads out of the package",
            out.path
        ));
    }
    let size = (contents.files.iter()).try_fold(0_u64, |sum, file| sum.checked_add(file.size));
    if contents.files.len() > MOST_FILES || size.is_none_or(|size| size > MOST_BYTES) {
        return Err("has more files or bytes than a package may have".to_owned());
    }
    Ok(contents)
}

fn make(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

fn made(path: &Path, executable: bool) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        make(folder)?;
    }
    let mode = if executable { 0o700 } else { 0o600 };
    // A name that is listed twice is refused here.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(files: &str) -> String {
        let text = format!("{{\"version\": 1, \"files\": [{files}]}}");
        read_contents(text.as_bytes()).err().unwrap_or_default()
    }

    #[test]
    fn a_link_to_a_program_can_be_executed() {
        let scratch = crate::testing::Scratch::new("links");
        for (name, mode) in [("run", 0o755), ("data", 0o644)] {
            let path = scratch.0.join(name);
            fs::write(&path, "x").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&path, mode).unwrap();
            std::os::unix::fs::symlink(name, scratch.0.join(format!("to-{name}"))).unwrap();
        }
        let package = Package::read(&scratch.0, &[]).unwrap();
        let all: Vec<_> = (package.entries.iter())
            .map(|entry| (entry.path.to_str().unwrap(), kept(&package, entry).unwrap()))
            .collect();
        let expected = [
            ("data", false),
            ("run", true),
            ("to-data", false),
            ("to-run", true),
        ];
        assert_eq!(all, expected.map(|(name, is)| (name, Some(is))));
    }

    #[test]
    fn files_behind_links_count_as_files_of_the_bucket() {
        let scratch = crate::testing::Scratch::new("large-links");
        let data = File::create(scratch.0.join("data")).unwrap();
        data.set_len(MOST_BYTES / 2 + 1).unwrap();
        std::os::unix::fs::symlink("data", scratch.0.join("link")).unwrap();
        let package = Package::read(&scratch.0, &[]).unwrap();
        let why = sent(&package).unwrap_err();
        assert!(why.contains("has 2 files and "), "{why}");
    }

    #[test]
    fn a_list_that_leads_elsewhere_or_is_too_large_is_refused() {
        let file = |path: &str, size: u64| {
            format!(
                "{{\"path\": \"{path}\", \"size\": {size}, \"crc32c\": 0, \"executable\": false}}"
            )
        };
        assert_eq!(refused(&file("a/b", 1)), "");
        for path in ["../a", "/etc/passwd", "a/../../b", "", "./a/.."] {
            let why = refused(&file(path, 1));
            assert!(why.contains("leads out of the package"), "{path}: {why}");
        }
        let why = refused(&[file("a", u64::MAX), file("b", 2)].join(","));
        assert!(why.contains("more files or bytes"), "{why}");
        assert!(refused("7").contains("no list of files"));
        let other = read_contents(b"{\"version\": 2, \"files\": []}").err();
        assert_eq!(other.unwrap(), "has version 2, expected 1");
    }
}
