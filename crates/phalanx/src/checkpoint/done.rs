//! The word that no checkpoint follows: a file beside the checkpoint, for whoever waits for the next one.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::files::store;
use crate::Result;
use crate::storage::store::Note;

/// Says that a training that writes its checkpoints to this path has ended as it was to.
pub(crate) fn mark_done(checkpoint: &Path) -> Result<()> {
    let text = "no checkpoint follows: the training is done\n";
    store(checkpoint)?.leave_note(Note::Done, text)
}

/// Takes that back: another training begins, or this one goes on.
pub(crate) fn unmark_done(checkpoint: &Path) -> Result<()> {
    store(checkpoint)?.remove_note(Note::Done)
}

/// Whether it was said in a folder, after a time if one is given.
pub(crate) fn is_marked_done(checkpoint: &Path, since: Option<SystemTime>) -> bool {
    let written = fs::metadata(Note::Done.beside(checkpoint)).and_then(|found| found.modified());
    written.is_ok_and(|written| since.is_none_or(|since| written >= since))
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
        let written = fs::metadata(Note::Done.beside(&checkpoint))
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
