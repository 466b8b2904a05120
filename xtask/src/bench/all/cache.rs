//! A folder of compiled programs that a workload finds empty.

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::workspace::Workspace;

/// A cache folder of ours with the libraries that the user's has, and no program.
pub(super) struct EmptyCache(PathBuf);

impl EmptyCache {
    /// Makes it, with links to the libraries.
    pub(super) fn make(workspace: &Workspace) -> Result<Self, String> {
        let folder = workspace.root.join("target/bench-cache");
        let cache = Self(folder);
        cache.empty()?;
        if let Some(libraries) = user_cache().map(|user| user.join("plugins"))
            && libraries.is_dir()
        {
            link_all(&libraries, &cache.0.join("plugins"))
                .map_err(|error| cache.cannot("link libraries into", &error))?;
        }
        Ok(cache)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Removes the compiled programs.
    pub(super) fn empty(&self) -> Result<(), String> {
        match fs::remove_dir_all(self.0.join("programs")) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(self.cannot("empty", &error));
            }
            _ => {}
        }
        fs::create_dir_all(&self.0).map_err(|error| self.cannot("make", &error))
    }

    fn cannot(&self, what: &str, error: &Error) -> String {
        format!("cannot {what} {}: {error}", self.0.display())
    }
}

/// Where ours keeps what it fetched.
fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    variable("PHALANX_CACHE_DIR")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("phalanx")))
        .or_else(|| Some(variable("HOME")?.join(".cache/phalanx")))
}

/// The files of a folder under a new one: links where the file system has them, else copies.
fn link_all(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (old, new) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_all(&old, &new)?;
        } else if !new.exists() && fs::hard_link(&old, &new).is_err() {
            fs::copy(&old, &new)?;
        }
    }
    Ok(())
}
