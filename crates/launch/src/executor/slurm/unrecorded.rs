//! Jobs of which nobody has noted the number: the supervisor was killed, or `sbatch` gave up, after Slurm had taken the job.
//!
//! Before `sbatch` a random mark is written beside the scripts, and Slurm is given it as the job's comment. The file is removed once the
//! number is in the job's log; where one is left, Slurm is asked which job has that comment.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use phalanx_proof::draw_hex;

use super::{LOOK_EVERY, ask, tool};
use crate::lifecycle::Life;

/// The file with the mark, in the folder of an attempt.
const MARK: &str = "mark";
/// How long an `sbatch` whose supervisor is gone may still be on its way.
const SUBMITTED_WITHIN: Duration = Duration::from_secs(10);

/// Writes a new mark into the folder of an attempt.
pub(super) fn mark(folder: &Path) -> io::Result<String> {
    let mark = format!("phalanx-{}", draw_hex::<16>()?);
    let mut file = File::create(folder.join(MARK))?;
    file.write_all(mark.as_bytes())?;
    file.sync_all()?;
    Ok(mark)
}

/// Has the mark be as new as another `sbatch` with it.
pub(super) fn renewed(folder: &Path) -> io::Result<()> {
    let mark = File::options().append(true).open(folder.join(MARK))?;
    mark.set_modified(SystemTime::now())
}

/// Removes the mark: the number of its job is known, or it has none.
pub(super) fn recorded(folder: &Path) {
    let _ = fs::remove_file(folder.join(MARK));
}

/// Whether an attempt may have a job whose number is not known.
pub(super) fn may_be(folder: &Path) -> bool {
    folder.join(MARK).exists()
}

/// The folders of a job's attempts and of its trials' attempts that may have one.
pub(super) fn folders(job: &Path) -> Vec<PathBuf> {
    let attempts = fs::read_dir(job.join("slurm")).into_iter().flatten();
    let folders = attempts.filter_map(|entry| Some(entry.ok()?.path()));
    folders.filter(|folder| may_be(folder)).collect()
}

/// The number of the job with the mark of an attempt; none if Slurm has no such job and will get none any more.
///
/// # Errors
/// Slurm has not answered until it was `over`.
pub(super) fn find(
    life: &Life,
    folder: &Path,
    over: &dyn Fn() -> bool,
) -> Result<Option<String>, String> {
    loop {
        match look(life, folder) {
            Ok(None) if may_still_come(folder) => {}
            Err(_) if !over() => {}
            found => return found,
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The number of the job with the mark of an attempt, if Slurm has it now.
pub(super) fn look(life: &Life, folder: &Path) -> Result<Option<String>, String> {
    let Ok(mark) = fs::read_to_string(folder.join(MARK)) else {
        return Ok(None);
    };
    // A supervisor that was killed as it wrote had not come to `sbatch`.
    if mark.is_empty() {
        return Ok(None);
    }
    let mut command = tool("squeue", life);
    let jobs = ask(command.args(["--me", "--noheader", "--states=all", "--format=%i %k"]))?;
    let mut jobs = jobs.lines().filter_map(|line| line.trim().split_once(' '));
    Ok(jobs
        .find(|(_, comment)| *comment == mark)
        .map(|(id, _)| id.to_owned()))
}

fn may_still_come(folder: &Path) -> bool {
    let written = fs::metadata(folder.join(MARK)).and_then(|file| file.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok());
    age.is_some_and(|age| age < SUBMITTED_WITHIN)
}
