//! Folders for tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new empty folder; two of one name are two folders.
pub(super) fn create(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let folder = std::env::temp_dir().join(format!("phalanx-data-{process}-{number}-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}
