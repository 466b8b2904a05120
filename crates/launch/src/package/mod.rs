//! A package: the folder with a job's program, copied when the job is submitted, so that what runs is what was there then.
//!
//! The copy is in a folder that all machines of the job see, or in a bucket, from where [`fetch`] brings it before the tasks start.

mod bucket;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use phalanx_proof::draw_hex;
use phalanx_store::ObjectUrl;
use phalanx_yaml::Bytes;

use crate::spec::{ExecutorKind, JobName, Spec};

/// More files than this, or more bytes, are data and no program.
const MOST_FILES: usize = 20_000;
const MOST_BYTES: u64 = 1 << 30;
/// What no program needs and changes by itself.
const LEFT_OUT: [&str; 2] = [".git", "__pycache__"];

/// The folder of a pod in which its package is.
pub const IN_PODS: &str = "/phalanx-package";
/// The hidden command by which a pod brings it there.
pub const BRING: &str = "bring-package";

/// A folder with a program, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    folder: PathBuf,
    name: String,
    /// Folders in it that are no part of it.
    without: Vec<PathBuf>,
    /// Each folder before what is in it.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Below the folder of the package.
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Folder,
    File {
        size: u64,
        executable: bool,
    },
    /// A link to what is in the package, by a relative path.
    LinkWithin(PathBuf),
    /// A link to what is elsewhere, by its whole path.
    LinkOut(PathBuf),
}

impl Package {
    /// Reads the names and sizes of a folder's files; `.git`, `__pycache__`, the files and folders `without` and links to them are left
    /// out, such as where copies were made before.
    ///
    /// # Errors
    /// It is no folder, or one of those that are left out, something in it is no file, folder or link, or it has more than 20,000 files or 1 GiB.
    pub fn read(folder: &Path, without: &[PathBuf]) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| {
            format!(
                "the package {} cannot be read: {why}; name the folder with the program",
                folder.display()
            )
        };
        let whole = fs::canonicalize(folder).map_err(|error| wrong(&error))?;
        if !whole.is_dir() {
            return Err(wrong(
                &"it is a file, and a package is a folder; unpack an archive first",
            ));
        }
        let name = whole.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| wrong(&"it has no name in UTF-8"))?;
        let without: Vec<PathBuf> = (without.iter())
            .filter_map(|folder| fs::canonicalize(folder).ok())
            .collect();
        if without.contains(&whole) {
            return Err(wrong(&"copies of packages are kept in it"));
        }
        let mut package = Self {
            name: name.to_owned(),
            without,
            entries: Vec::new(),
            folder: whole.clone(),
        };
        package.take(Path::new("")).map_err(|why| wrong(&why))?;
        package.check_size(package.size())?;
        Ok(package)
    }

    fn check_size(&self, (files, size): (usize, u64)) -> Result<(), String> {
        if files <= MOST_FILES && size <= MOST_BYTES {
            return Ok(());
        }
        Err(format!(
            "the package {} has {files} files and {}, expected at most {MOST_FILES} files and {}; keep data elsewhere, and link to it or give the program its path",
            self.folder.display(),
            Bytes(size),
            Bytes(MOST_BYTES)
        ))
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of its files, and the bytes in them.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let sizes = self.entries.iter().filter_map(|entry| match entry.kind {
            Kind::File { size, .. } => Some(size),
            _ => None,
        });
        sizes.fold((0, 0), |(files, sum), size| (files + 1, sum + size))
    }

    fn take(&mut self, within: &Path) -> Result<(), String> {
        let folder = self.folder.join(within);
        let refused = |error: std::io::Error| format!("{}: {error}", folder.display());
        let entries: Result<Vec<_>, _> = fs::read_dir(&folder).map_err(refused)?.collect();
        let mut entries = entries.map_err(refused)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            if LEFT_OUT.iter().any(|out| *name == **out) {
                continue;
            }
            let path = within.join(&name);
            // A link to what is left out is left out, too.
            let leads_to = fs::canonicalize(self.folder.join(&path));
            if leads_to.is_ok_and(|path| self.without.contains(&path)) {
                continue;
            }
            let kind = self.kind(&path)?;
            let is_folder = kind == Kind::Folder;
            let path_of_entry = path.clone();
            self.entries.push(Entry {
                path: path_of_entry,
                kind,
            });
            // Far beyond the limit nothing more is read: somebody has named the folder of all their data.
            if self.entries.len() > 4 * MOST_FILES {
                return Err(format!("it has more than {} entries", 4 * MOST_FILES));
            }
            if is_folder {
                self.take(&path)?;
            }
        }
        Ok(())
    }

    fn kind(&self, path: &Path) -> Result<Kind, String> {
        let whole = self.folder.join(path);
        let refused = |error: std::io::Error| format!("{}: {error}", whole.display());
        let found = fs::symlink_metadata(&whole).map_err(refused)?;
        if found.is_dir() {
            return Ok(Kind::Folder);
        }
        if found.is_symlink() {
            let target = fs::canonicalize(&whole).map_err(refused)?;
            let to = fs::read_link(&whole).map_err(refused)?;
            let is_within = to.is_relative() && target.starts_with(&self.folder);
            return Ok(match is_within {
                true => Kind::LinkWithin(to),
                false => Kind::LinkOut(target),
            });
        }
        if !found.is_file() {
            return Err(format!(
                "{} is neither a file nor a folder",
                whole.display()
            ));
        }
        Ok(Kind::File {
            size: found.len(),
            executable: is_executable(&found),
        })
    }

    /// Copies it into a place of its own, a folder that is made or `s3://..` or `gs://..`. Returns the copy's path or URL, which ends with
    /// the name of the package's folder. The copy is readable by its owner alone, or `for_pods` by every user: theirs may be another.
    ///
    /// # Errors
    /// A file cannot be read or written, has changed meanwhile, or the bucket refuses.
    pub fn copy_to(&self, place: &str, for_pods: bool) -> Result<String, String> {
        if ObjectUrl::is_url(place) {
            let url = ObjectUrl::parse(place).map_err(|error| error.to_string())?;
            return bucket::put(self, &url.join(&self.name));
        }
        let (to, new) = (Path::new(place).join(&self.name), Path::new(place));
        let new = new.join(format!(".{}.new", self.name));
        let copied = || {
            if for_pods {
                // Folders above the copy are made as others are.
                fs::create_dir_all(place)?;
            }
            self.copy_into(&new)?;
            fs::rename(&new, &to)?;
            match for_pods {
                true => open_to_all(Path::new(place)),
                false => Ok(()),
            }
        };
        copied().map_err(|error| {
            let _ = fs::remove_dir_all(&new);
            format!(
                "the package {} cannot be copied to {place}: {error}; choose another folder with --staging-bucket",
                self.folder.display()
            )
        })?;
        Ok(to.display().to_string())
    }

    fn copy_into(&self, new: &Path) -> std::io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(new)?;
        for entry in &self.entries {
            let to = new.join(&entry.path);
            match &entry.kind {
                Kind::Folder => fs::create_dir(&to)?,
                Kind::File { .. } => {
                    fs::copy(self.folder.join(&entry.path), &to)?;
                }
                Kind::LinkWithin(target) | Kind::LinkOut(target) => symlink(target, &to)?,
            }
        }
        Ok(())
    }
}

fn is_executable(file: &fs::Metadata) -> bool {
    file.permissions().mode() & 0o100 != 0
}

/// Where copies of packages are, in the folder of all jobs, unless a job says otherwise.
#[must_use]
pub fn copies(root: &Path) -> PathBuf {
    root.join("packages")
}

/// A place for a job's copy alone, in a folder or a bucket.
///
/// # Errors
/// The system has no random numbers to give.
pub fn place(staging: &str, job: &str) -> std::io::Result<String> {
    Ok(format!("{staging}/{job}-{}", draw_hex::<4>()?))
}

/// The jobs whose copies are in the folder of all jobs, and the folder of each copy.
#[must_use]
pub fn copied(root: &Path) -> Vec<(JobName, PathBuf)> {
    let entries = fs::read_dir(copies(root)).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let (job, number) = name.to_str()?.rsplit_once('-')?;
        let is_number = number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
        let job = job.parse().ok().filter(|_| is_number)?;
        Some((job, entry.path()))
    };
    entries.filter_map(of).collect()
}

/// The folder of a package that a job names: as it is, or fetched from a bucket into a folder of the job, where it is already after a
/// supervisor before this one.
///
/// # Errors
/// There is no such folder or no whole package in the bucket, or what is in it is damaged.
pub fn fetch(named: &str, directory: &Path, into: &Path) -> Result<PathBuf, String> {
    if ObjectUrl::is_url(named) {
        let url = ObjectUrl::parse(named).map_err(|error| error.to_string())?;
        return bucket::get(&url, into);
    }
    let folder = directory.join(named);
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!(
            "the package {} is no folder; it was moved or removed since the job was submitted",
            folder.display()
        )),
    }
}

/// Where a package from a bucket is in pods.
#[must_use]
pub fn in_pods(url: &str) -> String {
    let name = url.rsplit('/').next().unwrap_or_default();
    format!("{IN_PODS}/{name}")
}

/// Brings a package from a bucket into a folder of a pod, readable by every user: a task may run as another than the one that brings it.
///
/// # Errors
/// As of [`fetch`].
pub fn bring(url: &str, into: &Path) -> Result<PathBuf, String> {
    let parsed = ObjectUrl::parse(url).map_err(|error| error.to_string())?;
    let folder = bucket::get(&parsed, into)?;
    let opened = open_to_all(&folder);
    opened.map_err(|error| format!("cannot open {} to all: {error}", folder.display()))?;
    Ok(folder)
}

fn open_to_all(folder: &Path) -> std::io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let found = fs::symlink_metadata(&path)?;
        // What a link leads to may be anybody's.
        if found.is_symlink() {
            continue;
        }
        if found.is_dir() {
            open_to_all(&path)?;
            continue;
        }
        let mode = if is_executable(&found) { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Whether the pods of a job see its package: in a bucket, or below the folder at which their volume is.
///
/// # Errors
/// They do not, and what to do.
pub fn check_for_pods(spec: &Spec, directory: &Path) -> Result<(), String> {
    let pods = spec.ours.executor == ExecutorKind::Kubernetes;
    let folder = (spec.package.as_deref()).filter(|name| pods && !ObjectUrl::is_url(name));
    let Some(folder) = folder.map(|name| directory.join(name)) else {
        return Ok(());
    };
    if spec.ours.kubernetes.claim.is_none() {
        return Err(format!(
            "pods see no folder of this machine, and the package {} is one; keep it in a bucket with --staging-bucket or --job-dir (s3://.., gs://..), or name the claim of its volume in phalanx.kubernetes.claim",
            folder.display()
        ));
    }
    let leads_out = folder.components().any(|part| part == Component::ParentDir);
    if folder.starts_with(directory) && !leads_out {
        return Ok(());
    }
    Err(format!(
        "pods do not see the package {}: their volume is at {}; name a folder in it or a bucket with --staging-bucket",
        folder.display(),
        directory.display()
    ))
}

/// Whether a path stays in the folder that it is joined to.
pub(crate) fn stays_within(path: &Path) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    path.components().next().is_some() && path.components().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_copy_has_what_was_there_then() {
        let scratch = Scratch::new("package");
        let folder = scratch.0.join("code/trainer");
        write(&folder.join("task.py"), "one");
        write(&folder.join("deep/er/data.csv"), "1,2");
        write(&folder.join("__pycache__/task.pyc"), "x");
        write(&folder.join(".git/HEAD"), "x");
        write(&scratch.0.join("outside"), "far");
        fs::create_dir(folder.join("empty")).unwrap();
        symlink("task.py", folder.join("main.py")).unwrap();
        symlink("../../outside", folder.join("data")).unwrap();
        fs::set_permissions(folder.join("task.py"), fs::Permissions::from_mode(0o755)).unwrap();
        let package = Package::read(&folder, &[]).unwrap();
        assert_eq!(package.size(), (2, 6));
        let place = scratch.0.join("staging/job-1");
        let copy = package
            .copy_to(&place.display().to_string(), false)
            .unwrap();
        write(&folder.join("task.py"), "two");
        let copy = fetch(&copy, Path::new("/"), &scratch.0.join("unused")).unwrap();
        assert_eq!(copy, place.join("trainer"));
        let text = |name: &str| fs::read_to_string(copy.join(name)).unwrap();
        assert_eq!(
            (text("task.py"), text("deep/er/data.csv")),
            ("one".into(), "1,2".into())
        );
        assert_eq!(
            (text("main.py"), text("data")),
            ("one".into(), "far".into())
        );
        assert!(copy.join("empty").is_dir() && !copy.join("__pycache__").exists());
        assert!(!copy.join(".git").exists());
        let mode = fs::metadata(copy.join("task.py")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
        // Nothing is left of the name under which it was made.
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    }

    #[test]
    fn a_copy_for_pods_is_readable_by_every_user() {
        let scratch = Scratch::new("for-pods");
        write(&scratch.0.join("outside"), "far");
        let folder = scratch.0.join("code");
        write(&folder.join("deep/task.py"), "one");
        symlink("../outside", folder.join("data")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in [&scratch.0.join("outside"), &folder.join("deep/task.py")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let package = Package::read(&folder, &[]).unwrap();
        for (name, for_pods, modes) in [
            ("own", false, [0o700, 0o700, 0o600]),
            ("pods", true, [0o755, 0o755, 0o644]),
        ] {
            let place = scratch.0.join(name);
            let copy = package.copy_to(&place.display().to_string(), for_pods);
            let copy = PathBuf::from(copy.unwrap());
            let all = [&place, &copy, &copy.join("deep/task.py")];
            assert_eq!(all.map(|path| mode(path)), modes, "{name}");
        }
        assert_eq!(mode(&scratch.0.join("outside")), 0o600);
    }

    #[test]
    fn copies_within_the_package_are_no_part_of_it() {
        let scratch = Scratch::new("within");
        let folder = scratch.0.join("code");
        write(&folder.join("task.py"), "one");
        let staging = folder.join("kept/here");
        write(&folder.join("key.txt"), "secret");
        symlink("key.txt", folder.join("link")).unwrap();
        let without = [staging.clone(), folder.join("none"), folder.join("key.txt")];
        for copy in ["job-1", "job-2"] {
            let package = Package::read(&folder, &without).unwrap();
            assert_eq!(package.size(), (1, 3), "{copy}");
            let place = staging.join(copy);
            package
                .copy_to(&place.display().to_string(), false)
                .unwrap();
        }
        assert!(Package::read(&folder, std::slice::from_ref(&scratch.0)).is_ok());
        let error = Package::read(&folder, std::slice::from_ref(&folder)).unwrap_err();
        assert!(
            error.contains("copies of packages are kept in it"),
            "{error}"
        );
    }

    #[test]
    fn copies_are_known_by_the_names_that_they_were_given() {
        let root = Scratch::new("copies");
        let staging = copies(&root.0).display().to_string();
        let own = PathBuf::from(place(&staging, "demo_1").unwrap());
        for folder in [
            &own,
            &copies(&root.0).join("demo-notanumber"),
            &copies(&root.0).join("x"),
        ] {
            fs::create_dir_all(folder).unwrap();
        }
        assert_eq!(copied(&root.0), [("demo_1".parse().unwrap(), own)]);
        assert_eq!(copied(Path::new("/nowhere")), []);
    }

    #[test]
    fn what_is_no_package_is_refused() {
        let scratch = Scratch::new("no-package");
        write(&scratch.0.join("file.tar.gz"), "x");
        let error = Package::read(&scratch.0.join("file.tar.gz"), &[]).unwrap_err();
        assert!(error.contains("unpack an archive first"), "{error}");
        let error = Package::read(&scratch.0.join("none"), &[]).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        let big = scratch.0.join("big");
        fs::create_dir(&big).unwrap();
        let file = fs::File::create(big.join("data")).unwrap();
        file.set_len(MOST_BYTES + 1).unwrap();
        let error = Package::read(&big, &[]).unwrap_err();
        assert!(error.contains("1 files and 1"), "{error}");
        fs::remove_file(big.join("data")).unwrap();
        symlink("nowhere", big.join("link")).unwrap();
        let error = Package::read(&big, &[]).unwrap_err();
        assert!(error.contains("big/link: No such file"), "{error}");
        let error = fetch("gone", &scratch.0, &scratch.0).unwrap_err();
        assert!(error.contains("gone is no folder"), "{error}");
    }

    #[test]
    fn names_in_a_package_stay_in_it() {
        for (path, stays) in [
            ("a/b.py", true),
            ("../a", false),
            ("a/../../b", false),
            ("/etc/passwd", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(stays_within(Path::new(path)), stays, "{path}");
        }
    }
}
