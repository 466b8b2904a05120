//! The results of a job in a bucket: what tasks write into the folder `results` of the job, and their logs, as objects of the same names.
//!
//! Checkpoints are not among them: `phalanx train` writes these into the bucket itself, each as a whole. Nothing is removed from the bucket.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use phalanx_store::{Bucket, Limits, Object, ObjectUrl, StoreError};

use crate::package::stays_within;
use crate::spec::JobName;

/// The folder of a job in which its tasks write what goes into the bucket.
pub(crate) const FOLDER: &str = "results";
/// Below `jobDir`, where `phalanx train` keeps checkpoints.
pub(crate) const CHECKPOINT: &str = "checkpoint";
const LOGS: &str = "logs";
/// In a trial's folder: the bucket has results of its number, and not all of them are here. Hidden, so that it is not copied.
const TAKEN: &str = ".taken";
/// The time between two copies of a file that grows, and how much more each MiB of it takes.
const PAUSE: Duration = Duration::from_secs(10);
/// More than a step of the clock of any file system, which has 2 s at most. A file that was written within it of being read may be written
/// again with the same size and the same time.
const TICK: Duration = Duration::from_secs(3);

pub(super) struct Results {
    bucket: Bucket,
    url: ObjectUrl,
    job: JobName,
    /// The job's folder.
    folder: PathBuf,
    sent: BTreeMap<PathBuf, Sent>,
}

/// A file as it was copied last.
#[derive(Debug, Clone, Copy)]
struct Sent {
    size: u64,
    /// None where the time does not tell whether it has changed since.
    modified: Option<SystemTime>,
    at: Instant,
}

impl Sent {
    fn new(size: u64, modified: Option<SystemTime>) -> Self {
        let is_settled = |time: &SystemTime| time.elapsed().is_ok_and(|age| age > TICK);
        Self {
            size,
            modified: modified.filter(is_settled),
            at: Instant::now(),
        }
    }

    fn is_other(&self, size: u64, modified: Option<SystemTime>) -> bool {
        self.modified.is_none() || (self.size, self.modified) != (size, modified)
    }

    fn is_due(&self, size: u64, modified: Option<SystemTime>) -> bool {
        let pause = PAUSE + Duration::from_secs(size >> 20);
        self.is_other(size, modified) && self.at.elapsed() >= pause
    }
}

impl Results {
    pub(super) fn open(url: &str, job: &JobName, folder: &Path) -> Result<Self, String> {
        let text = |error: StoreError| error.to_string();
        let url = ObjectUrl::parse(url).map_err(text)?;
        let limits = Limits::from_env().map_err(text)?;
        Ok(Self {
            bucket: Bucket::open(&url, limits).map_err(text)?,
            url,
            job: job.clone(),
            folder: folder.to_owned(),
            sent: BTreeMap::new(),
        })
    }

    /// Brings what a job before this one has left there, but for checkpoints and logs, unless this job has begun before; not the results
    /// themselves where it does not `fetch`. A number whose objects do not come has a folder, too: no trial may begin in it.
    pub(super) fn restore(&self, fetch: bool) -> Result<(), String> {
        let results = self.folder.join(FOLDER);
        if results.is_dir() {
            return Ok(());
        }
        let new = self.folder.join(format!(".{FOLDER}.new"));
        let wrong = |error: std::io::Error| format!("cannot write {}: {error}", new.display());
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new).map_err(wrong)?;
        let text = |error: StoreError| error.to_string();
        let listed = self.bucket.list(&self.url).map_err(text)?;
        for object in Object::without_markers(listed) {
            let comes = fetch && is_result(&object.name);
            let path = match trial_of(&object.name) {
                _ if comes => new.join(&object.name),
                Some(trial) => new.join(trial).join(TAKEN),
                None => continue,
            };
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            let mut file = made.and_then(|()| File::create(&path)).map_err(wrong)?;
            if !comes {
                continue;
            }
            let url = self.url.join(&object.name);
            for bytes in self.bucket.parts(&url, object.size) {
                file.write_all(&bytes.map_err(text)?).map_err(wrong)?;
            }
        }
        fs::rename(&new, &results).map_err(wrong)
    }

    /// Copies what has changed, large files less often.
    pub(super) fn copy_changed(&mut self) -> Result<(), String> {
        self.copy(Sent::is_due)
    }

    /// Copies what has changed.
    pub(super) fn copy_all(&mut self) -> Result<(), String> {
        self.copy(Sent::is_other)
    }

    fn copy(
        &mut self,
        is_due: impl Fn(&Sent, u64, Option<SystemTime>) -> bool,
    ) -> Result<(), String> {
        let mut files = Vec::new();
        files_in(&self.folder.join(FOLDER), "", &mut files);
        let logs = format!("{LOGS}/{}/", self.job);
        files_in(&self.folder.join(LOGS), &logs, &mut files);
        let mut refused = None;
        for (path, name) in files {
            let Ok(found) = fs::metadata(&path) else {
                continue;
            };
            let (size, modified) = (found.len(), found.modified().ok());
            let sent = self.sent.get(&path);
            if sent.is_some_and(|sent| !is_due(sent, size, modified)) {
                continue;
            }
            // Before it is read: what changes meanwhile is copied again.
            let now = Sent::new(size, modified);
            // What is renamed or removed meanwhile is seen at the next look.
            let Ok(bytes) = fs::read(&path) else { continue };
            if let Err(error) = self.bucket.put(&self.url.join(&name), bytes) {
                // The others go there all the same.
                refused.get_or_insert(error.to_string());
                continue;
            }
            let at = Instant::now();
            self.sent.insert(path, Sent { at, ..now });
        }
        refused.map_or(Ok(()), Err)
    }
}

/// Whether an object is a result that tasks may need again.
fn is_result(name: &str) -> bool {
    let mut parts = name.split('/');
    let is_log = name.starts_with("logs/");
    !is_log && parts.all(|part| part != CHECKPOINT) && stays_within(Path::new(name))
}

/// The folder of the trial that an object is of.
fn trial_of(name: &str) -> Option<&str> {
    let (first, _) = name.split_once('/')?;
    first.parse::<u32>().is_ok().then_some(first)
}

/// The files of a folder and those below it, with their names as objects. Hidden ones are left out: locks, and what is being written.
fn files_in(folder: &Path, prefix: &str, files: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_in(&path, &format!("{name}/"), files),
            Ok(kind) if kind.is_file() => files.push((path, name)),
            // A link may lead anywhere.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn checkpoints_and_logs_are_no_results() {
        for (name, is) in [
            ("history.jsonl", true),
            ("model/weights.safetensors", true),
            ("3/history.jsonl", true),
            ("logs.txt", true),
            ("checkpoint/0000000001-ab/checkpoint.json", false),
            ("3/checkpoint/0000000001-ab/checkpoint.json", false),
            ("logs/demo/chief-0.log", false),
            ("../../token", false),
        ] {
            assert_eq!(is_result(name), is, "{name}");
        }
    }

    #[test]
    fn files_have_the_names_of_their_paths_and_hidden_ones_none() {
        let scratch = Scratch::new("results");
        let folder = &scratch.0;
        fs::create_dir_all(folder.join("3/validation")).unwrap();
        fs::create_dir_all(folder.join(".model.new")).unwrap();
        for name in [
            "history.jsonl",
            ".lock",
            "3/validation/events",
            ".model.new/x",
        ] {
            fs::write(folder.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).unwrap();
        let mut files = Vec::new();
        files_in(folder, "", &mut files);
        let mut names: Vec<String> = files.into_iter().map(|(_, name)| name).collect();
        names.sort();
        assert_eq!(names, ["3/validation/events", "history.jsonl"]);
    }

    #[test]
    fn a_file_that_grows_is_copied_again_after_a_pause_by_its_size() {
        let long_ago = Duration::from_secs(15);
        let at = Instant::now().checked_sub(long_ago).unwrap();
        let modified = Some(SystemTime::UNIX_EPOCH);
        let sent = Sent {
            size: 1,
            modified,
            at,
        };
        assert!(!sent.is_due(1, modified), "it has not changed");
        assert!(sent.is_due(2, modified) && sent.is_due(1, None));
        // What was written a moment ago may have been written again.
        let now = SystemTime::now();
        assert!(Sent::new(1, Some(now)).is_other(1, Some(now)));
        assert!(!Sent::new(1, modified).is_other(1, modified));
        // 10 s and 3600 s more.
        assert!(!sent.is_due(3600 << 20, modified));
    }
}
