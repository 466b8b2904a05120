//! The word that no checkpoint follows: a file beside the checkpoint, for whoever waits for the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Error, Result};

/// Says that a training that writes its checkpoints to this path has ended as it was to.
pub(crate) fn mark_done(checkpoint: &Path) -> Result<()> {
    let path = marker(checkpoint);
    if let Some(folder) = path.parent() {
        // A file below tells what is wrong with it.
        let _ = fs::create_dir_all(folder);
    }
    let written = fs::write(&path, "no checkpoint follows: the training is done\n");
    written.map_err(|source| Error::Io {
        path,
        action: "write",
        source,
    })
}

/// Takes that back: another training begins, or this one goes on.
pub(crate) fn unmark_done(checkpoint: &Path) -> Result<()> {
    let path = marker(checkpoint);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Io {
            path,
            action: "remove",
            source,
        }),
        _ => Ok(()),
    }
}

/// Whether it was said, after a time if one is given.
pub(crate) fn is_marked_done(checkpoint: &Path, since: Option<SystemTime>) -> bool {
    let written = fs::metadata(marker(checkpoint)).and_then(|found| found.modified());
    written.is_ok_and(|written| since.is_none_or(|since| written >= since))
}

fn marker(checkpoint: &Path) -> PathBuf {
    let mut name = checkpoint.file_name().unwrap_or_default().to_os_string();
    name.push(".done");
    checkpoint.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    #[test]
    fn a_mark_of_an_earlier_training_does_not_count() {
        let process = std::process::id();
        let checkpoint = std::env::temp_dir().join(format!("phalanx-done-{process}"));
        unmark_done(&checkpoint).unwrap();
        assert!(!is_marked_done(&checkpoint, None));
        mark_done(&checkpoint).unwrap();
        let written = fs::metadata(marker(&checkpoint))
            .unwrap()
            .modified()
            .unwrap();
        let second = Duration::from_secs(1);
        assert!(is_marked_done(&checkpoint, None));
        assert!(is_marked_done(&checkpoint, Some(written)));
        assert!(is_marked_done(&checkpoint, Some(written - second)));
        assert!(!is_marked_done(&checkpoint, Some(written + second)));
        unmark_done(&checkpoint).unwrap();
        assert!(!is_marked_done(&checkpoint, Some(written)));
    }
}
