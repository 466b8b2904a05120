//! Whether files that this process runs are its user's own: the libraries and programs of the cache.
//!
//! A file is trusted when it and its folder belong to this user or to root, and nobody else may write to them. Beside a library
//! lies a stamp with its size, time of change and SHA-256. While size and time agree with the stamp the library is taken as it is;
//! else it is hashed again, for libraries are large. The stamp finds damage; owner and mode keep out others.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::cache::write_atomically;
use crate::install::sha256_of;

/// A file or folder that may have been changed by somebody else, or was damaged.
#[derive(Debug, thiserror::Error)]
#[error("{} {reason}; {next}", path.display())]
pub struct Untrusted {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What to do.
    pub next: String,
}

/// Whether only this user and root can write to a folder.
///
/// # Errors
/// When it is another user's, others may write to it, or it cannot be looked at.
pub fn check_folder(path: &Path) -> Result<(), Untrusted> {
    look(path).map(drop)
}

/// Whether a library is this user's or root's own, and as it was installed.
///
/// # Errors
/// As [`check_folder`], of the library and its folder; when its contents are not what its stamp says.
pub fn check_library(path: &Path) -> Result<(), Untrusted> {
    if let Some(folder) = path.parent() {
        check_folder(folder)?;
    }
    let metadata = look(path)?;
    let unreadable = |error: io::Error| untrusted(path, format!("cannot be read: {error}"));
    let state = state_of(&metadata).map_err(unreadable)?;
    let stamp = stamp_path(path);
    let kept = fs::read_to_string(&stamp).unwrap_or_default();
    let mut kept = kept.lines();
    let (same, kept_hash) = (kept.next() == Some(&state), kept.next());
    if same && kept_hash.is_some() {
        return Ok(());
    }
    let hash = sha256_of(path).map_err(unreadable)?;
    if let Some(kept_hash) = kept_hash.filter(|kept| *kept != hash) {
        let reason =
            format!("is not what was installed: its sha-256 is {hash}, and was {kept_hash}");
        return Err(Untrusted {
            next: "remove its folder, and it is installed again".into(),
            ..untrusted(path, reason)
        });
    }
    // A cache that cannot be written to costs a hash at each start.
    let _ = write_atomically(&stamp, &[state.as_bytes(), b"\n", hash.as_bytes(), b"\n"]);
    Ok(())
}

fn stamp_path(library: &Path) -> PathBuf {
    let mut name = library.as_os_str().to_owned();
    name.push(".stamp");
    name.into()
}

/// Size and time of change.
fn state_of(metadata: &Metadata) -> io::Result<String> {
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH);
    let changed = changed.unwrap_or_default().as_nanos();
    Ok(format!("{} {changed}", metadata.len()))
}

fn look(path: &Path) -> Result<Metadata, Untrusted> {
    let metadata =
        fs::metadata(path).map_err(|error| untrusted(path, format!("cannot be read: {error}")))?;
    match distrust(metadata.uid(), metadata.mode(), user()) {
        None => Ok(metadata),
        Some(reason) => Err(untrusted(path, reason)),
    }
}

fn untrusted(path: &Path, reason: String) -> Untrusted {
    Untrusted {
        path: path.to_owned(),
        reason,
        next: format!(
            "what is in it is run as this user: make it your own (chmod go-w {}), or set PHALANX_CACHE_DIR to a folder of your own",
            path.display()
        ),
    }
}

/// Why something of this owner and mode is not trusted, if it is not.
fn distrust(owner: u32, mode: u32, user: u32) -> Option<String> {
    if owner != user && owner != 0 {
        return Some(format!("belongs to user {owner}, and this is user {user}"));
    }
    (mode & 0o022 != 0).then(|| format!("can be written to by others (mode {:o})", mode & 0o777))
}

/// The user that this process acts as.
fn user() -> u32 {
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    geteuid()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::TempDir;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_the_user_and_root_are_trusted() {
        assert_eq!(distrust(1000, 0o100_755, 1000), None);
        assert_eq!(distrust(0, 0o755, 1000), None);
        assert!(
            distrust(1001, 0o700, 1000)
                .unwrap()
                .contains("belongs to user 1001")
        );
        assert!(distrust(1000, 0o775, 1000).unwrap().contains("mode 775"));
        assert!(
            distrust(0, 0o707, 1000)
                .unwrap()
                .contains("written to by others")
        );
    }

    #[test]
    fn libraries_are_refused_where_others_can_write_and_when_they_change() {
        let dir = TempDir::new();
        let folder = dir.join("plugin");
        fs::create_dir(&folder).unwrap();
        set_mode(&folder, 0o755);
        let library = folder.join("x.so");
        fs::write(&library, "machine code").unwrap();
        set_mode(&library, 0o644);
        check_library(&library).unwrap();
        // Another time and the same contents, as of a copied cache.
        let file = fs::File::options().append(true).open(&library).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
        check_library(&library).unwrap();
        fs::write(&library, "other code!!").unwrap();
        let error = check_library(&library).unwrap_err().to_string();
        assert!(error.contains("is not what was installed"), "{error}");
        set_mode(&folder, 0o777);
        let error = check_library(&library).unwrap_err().to_string();
        assert!(
            error.contains("can be written to by others (mode 777)"),
            "{error}"
        );
    }
}
