//! Folders of tests.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// A folder for one test, empty at first and removed at the end.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// The folder `name` inside `parent`, such as `env!("CARGO_TARGET_TMPDIR")`; what an earlier run left there is removed.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    pub fn new(parent: impl AsRef<Path>, name: &str) -> Self {
        let path = parent.as_ref().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        Self(path)
    }

    /// A folder of this process in the folder of the system for temporary files; two of one name are two folders.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn temporary(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("phalanx-{name}-{}-{number}", process::id());
        Self::new(env::temp_dir(), &name)
    }

    /// The names of what is in it, sorted.
    ///
    /// # Panics
    /// The folder cannot be read.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder that can be read");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_empty_at_first_and_gone_at_the_end() {
        let outside = Scratch::temporary("scratch");
        fs::create_dir_all(outside.join("one/left")).unwrap();
        let inside = Scratch::new(&outside, "one");
        assert!(inside.is_dir() && inside.names().is_empty());
        fs::write(inside.join("b"), "").unwrap();
        fs::create_dir(inside.join("a")).unwrap();
        assert_eq!(inside.names(), ["a", "b"]);
        drop(inside);
        assert!(outside.names().is_empty());
    }

    /// Tests of one process run at once: one must not empty the folder of another.
    #[test]
    fn folders_of_one_name_are_two() {
        let first = Scratch::temporary("same");
        fs::write(first.join("kept"), "").unwrap();
        let second = Scratch::temporary("same");
        assert!(second.names().is_empty());
        assert_eq!(first.names(), ["kept"]);
    }
}
