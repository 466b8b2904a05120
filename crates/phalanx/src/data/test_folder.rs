//! Folders for tests, removed when the next run creates them again.

use std::path::PathBuf;

/// A new empty folder of this test process; `name` is unique in it.
pub(super) fn create(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("phalanx-data-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}
