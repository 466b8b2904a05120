//! Which group of processes may write a checkpoint.
//!
//! A process that stands still for long is taken for lost: its place is taken, or all of them are started again. When it goes on it
//! may be about to write a checkpoint, of a step that is long past, over those that the others have written since. So the first of
//! several processes leaves its mark beside a checkpoint when it begins to train, at the start and in each generation, and looks for it
//! before it puts a new checkpoint in the place of the old one: where the mark is another's, it writes nothing.
//!
//! Between the look and the exchange of names nothing keeps a process from standing still; that is a system call or two, or the request
//! that writes the last object.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::files::store;
use crate::storage::store::Note;
use crate::storage::this_process;
use crate::{Error, Result};

/// The right of this process to write a checkpoint, which another may have taken since.
#[derive(Debug)]
pub(crate) struct CheckpointWriterMark {
    checkpoint: PathBuf,
    mark: String,
}

impl CheckpointWriterMark {
    /// Takes the right to write the checkpoint at this path from whoever has it, for a generation of processes.
    pub(crate) fn take(checkpoint: &Path, generation: u64) -> Result<Self> {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_nanos());
        let process = this_process();
        let taken = Self {
            checkpoint: checkpoint.to_path_buf(),
            mark: format!("process {process}, generation {generation}, {time}.{number}\n"),
        };
        store(checkpoint)?.leave_note(Note::Writer, &taken.mark)?;
        Ok(taken)
    }

    /// An error where another process has taken the right since. A mark that is gone was removed by hand, with the checkpoint.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(found) = store(&self.checkpoint)?.note(Note::Writer)? else {
            return Ok(());
        };
        if found == self.mark {
            return Ok(());
        }
        Err(Error::Cluster(format!(
            "the checkpoint `{}` belongs to other processes now ({}), and this one ({}) writes nothing: it stood still until it was taken for lost; nothing is to be done, the others go on",
            self.checkpoint.display(),
            found.trim_end(),
            self.mark.trim_end(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn who_takes_it_last_may_write() {
        let folder = std::env::temp_dir().join(format!("phalanx-writer-{}", std::process::id()));
        let checkpoint = folder.join("checkpoint");
        let first = CheckpointWriterMark::take(&checkpoint, 1).unwrap();
        first.check().unwrap();
        let second = CheckpointWriterMark::take(&checkpoint, 2).unwrap();
        second.check().unwrap();
        let error = first.check().unwrap_err().to_string();
        assert!(
            error.contains("generation 2") && error.contains("generation 1"),
            "{error}"
        );
        let other = CheckpointWriterMark::take(&folder.join("other"), 1).unwrap();
        second.check().unwrap();
        other.check().unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
        first.check().unwrap();
    }
}
