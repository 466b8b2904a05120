//! The folder of a training: `model`, `checkpoint`, `history.jsonl`, `speed.jsonl`, `test.json`, `training.json`.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::{EpochLogs, History, Logs, SlowWorker};
use phalanx::replicas::Placement;
use phalanx_cluster::Variables;
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::commands::session::failed;
use crate::config::TrainConfig;
use crate::failure::{Exit, Failure};

/// The speed within epochs.
const SPEED: &str = "speed.jsonl";
/// What names the folder.
const OUTPUT: &str = "--output";
/// The name that a launcher gives a job.
const JOB: &str = "PHALANX_JOB_ID";
/// What follows it in `.job` once the model is saved. The model alone does not say it: `--overwrite` leaves the one before until then.
const SAVED: &str = "\nsaved\n";

/// The folder of a training.
#[derive(Debug, Clone)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Where the model is, if not in its folder `model`.
    model: Option<PathBuf>,
    /// Where the checkpoint is, if not in the folder.
    checkpoint: Option<PathBuf>,
    /// Whether files are written: not by all workers of a training.
    writes: bool,
    /// Where this training runs, whose first worker writes; another one becomes that when it is lost.
    placement: Option<Placement>,
}

/// While this lives no other training writes to the folder, nor to the checkpoint, which may be elsewhere.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "closing them ends the locks")] Vec<File>);

impl RunFolder {
    /// The folder of a training that was.
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            model: None,
            checkpoint: None,
            writes: true,
            placement: None,
        }
    }

    /// The same, written by the process that is the first of this placement.
    pub(crate) fn written_by(self, placement: &Placement) -> Self {
        Self {
            placement: Some(placement.clone()),
            ..self
        }
    }

    /// Whether this process writes files now.
    pub(crate) fn writes(&self) -> bool {
        let placement = self.placement.as_ref();
        placement.map_or(self.writes, Placement::is_chief)
    }

    /// The folder that a training file names.
    pub(crate) fn of_config(config: &TrainConfig) -> Self {
        Self {
            checkpoint: config.checkpoint.clone(),
            ..Self::of(&config.output)
        }
    }

    /// The folder of a training of which another worker writes the files.
    pub(crate) fn of_another(config: &TrainConfig) -> Self {
        Self {
            writes: false,
            ..Self::of_config(config)
        }
    }

    /// The same of a training that was, whose model alone may be named: the folder that training prints as `model:`.
    pub(crate) fn or_of_model(self) -> Self {
        Self {
            model: is_model(&self.path).then(|| self.path.clone()),
            ..self
        }
    }

    /// Makes the folder where there is none, for one training at a time. What a training before left there stays until this one
    /// has its own.
    pub(crate) fn create(config: &TrainConfig) -> Result<(Self, Lock), Failure> {
        let folder = Self::of_config(config);
        let path = folder.path();
        if is_url(path) {
            let message = format!("output is `{}`, and expected is a folder", path.display());
            let next = "give a folder; `checkpoint: s3://bucket/prefix` keeps the checkpoints of a training in a bucket";
            return Err(Failure::new(Exit::Usage, message).next(next));
        }
        let mut locks = vec![locked(path, &path.join(".lock"), OUTPUT)?];
        let checkpoint = folder.checkpoint();
        if !is_url(&checkpoint) {
            let lock = lock_beside(&checkpoint);
            locks.push(locked(&checkpoint, &lock, "`checkpoint`")?);
        }
        Ok((folder, Lock(locks)))
    }

    /// Refuses a folder with the model or the checkpoint of another training, which this one would replace.
    pub(crate) fn check_unused(&self, resume: bool) -> Result<(), Failure> {
        let model = self.model().join("model.json").exists();
        let checkpoint = self.has_checkpoint()?;
        let has = match (model, checkpoint) {
            (_, true) if resume => return Ok(()),
            (false, false) => return Ok(()),
            (true, false) => "the model of a training before, and no checkpoint",
            (false, true) => "the checkpoint of a training before",
            (true, true) => "the model and the checkpoint of a training before",
        };
        let message = format!("{} has {has}", self.path.display());
        let go_on = if checkpoint {
            "go on with it with --resume, "
        } else {
            ""
        };
        Err(Failure::new(Exit::Usage, message).next(format!(
            "{go_on}replace it with --overwrite, or choose another folder with --output"
        )))
    }

    /// Whether a launcher has started this process again, and the checkpoint here is of its own job, which goes on with it: it neither
    /// refuses nor removes what was trained until then.
    pub(crate) fn is_of_restart(&self) -> Result<bool, Failure> {
        let noted = self.noted_of_restart();
        Ok(noted.is_some_and(|noted| ["", SAVED].contains(&&*noted)) && self.has_checkpoint()?)
    }

    /// Refuses to train once more where a launcher has started this process again after its job had saved the model, and no checkpoint
    /// says that all is done.
    pub(crate) fn check_not_over(&self) -> Result<(), Failure> {
        let is_over = self.noted_of_restart().is_some_and(|noted| noted == SAVED);
        if !is_over || !is_model(&self.model()) || self.has_checkpoint()? {
            return Ok(());
        }
        let (model, shown) = (self.model(), self.path.display());
        let message = format!(
            "the training is over and its model saved in {}, and this process was started again after that",
            model.display()
        );
        Err(Failure::new(Exit::Failed, message)
            .next(format!("test it with `phalanx evaluate {shown}`")))
    }

    /// What follows the name of this job in `.job`, where a launcher has started this process again.
    fn noted_of_restart(&self) -> Option<String> {
        let variables = Variables::of_process();
        variables
            .get("PHALANX_RESTART_COUNT")
            .filter(|count| *count != "0")?;
        let job = variables.get(JOB).filter(|job| !job.is_empty())?;
        let noted = fs::read_to_string(self.path.join(".job")).ok()?;
        noted.strip_prefix(job).map(str::to_owned)
    }

    /// Notes of which job the training here is, where a launcher has given it a name, and whether its model is saved.
    pub(crate) fn write_job(&self, is_saved: bool) -> Result<(), Failure> {
        let saved = if is_saved { SAVED } else { "" };
        match Variables::of_process().get(JOB) {
            Some(job) => self.write(".job", &format!("{job}{saved}")),
            None => Ok(()),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the model is.
    pub(crate) fn model(&self) -> PathBuf {
        let own = || self.path.join("model");
        self.model.clone().unwrap_or_else(own)
    }

    /// Where the checkpoint is.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        let own = || self.path.join("checkpoint");
        self.checkpoint.clone().unwrap_or_else(own)
    }

    /// Whether a checkpoint is there.
    pub(crate) fn has_checkpoint(&self) -> Result<bool, Failure> {
        TrainingState::is_at(self.checkpoint()).map_err(|error| failed(&error))
    }

    /// Writes a JSON object a line for each epoch done, in place of the lines before. Where they would be the same the file is left as it is:
    /// when it was written says when the last epoch ended.
    pub(crate) fn write_history(&self, history: &History) -> Result<(), Failure> {
        let before = fs::read_to_string(self.path.join("history.jsonl")).ok();
        let lines = lines(history, before.as_deref().unwrap_or_default());
        match before {
            Some(before) if before == lines => Ok(()),
            _ => self.write("history.jsonl", &lines),
        }
    }

    /// Adds the line of an epoch, whole or not at all, in place of what is there of it and of later ones: a first worker that was started
    /// again may hear of epochs once more that its checkpoint had.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn append_history(&self, epoch: &EpochLogs) -> io::Result<()> {
        if !self.writes() {
            return Ok(());
        }
        let path = self.path.join("history.jsonl");
        drop_from(&path, epoch.epoch as u64 + 1)?;
        append(&path, &line(epoch))
    }

    /// Adds a line of the speed of some steps, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn append_speed(&self, line: &Value) -> io::Result<()> {
        match self.writes() {
            true => append(&self.path.join(SPEED), &format!("{line}\n")),
            false => Ok(()),
        }
    }

    /// Removes what a training before has written of its speed.
    pub(crate) fn forget_speed(&self) {
        // What is not there needs no removal.
        let _ = fs::remove_file(self.path.join(SPEED));
    }

    /// Writes the results of the test rows, if there are any.
    pub(crate) fn write_test(&self, logs: Option<&Logs>) -> Result<(), Failure> {
        if !self.writes() {
            return Ok(());
        }
        let Some(logs) = logs else {
            // What is not there needs no removal.
            let _ = fs::remove_file(self.path.join("test.json"));
            return Ok(());
        };
        self.write("test.json", &format!("{}\n", logs.to_json()))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        if !self.writes() {
            return Ok(());
        }
        let path = self.path.join(name);
        // Another machine's first worker may have made it there alone.
        let made = fs::create_dir_all(&self.path);
        made.and_then(|()| fs::write(&path, text))
            .map_err(|error| refused("write", &path, &error, OUTPUT))
    }
}

fn refused(action: &str, path: &Path, error: &io::Error, option: &str) -> Failure {
    let message = format!("cannot {action} {}: {error}", path.display());
    Failure::new(Exit::Failed, message).next(format!("choose another folder with {option}"))
}

/// Whether a path names something elsewhere, such as in a bucket.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

/// The lock of a checkpoint: beside it, as each save replaces the folder.
fn lock_beside(checkpoint: &Path) -> PathBuf {
    let path = fs::canonicalize(checkpoint).unwrap_or_else(|_| checkpoint.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.lock"))
}

/// Takes the lock of what a training writes, for one training at a time; the folder of the lock is made.
fn locked(written: &Path, lock: &Path, option: &str) -> Result<File, Failure> {
    let parent = lock.parent().unwrap_or(lock);
    fs::create_dir_all(parent).map_err(|error| refused("make", parent, &error, option))?;
    let wrong = |error| refused("write", lock, &error, option);
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let file = options.open(lock).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!("another training is writing to {} now", written.display());
            let next = format!("wait for its end, or choose another folder with {option}");
            Err(Failure::new(Exit::Usage, message).next(next))
        }
        // A file system without locks keeps nobody out.
        Err(TryLockError::Error(error))
            if error.kind() == io::ErrorKind::Unsupported
                || Errno::from_io_error(&error) == Some(Errno::NOLCK) =>
        {
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(wrong(error)),
    }
}

/// Adds to a file, all of the text or none of it.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).open(path)?;
    let length = file.metadata()?.len();
    file.write_all(text.as_bytes()).or_else(|error| {
        file.set_len(length)?;
        Err(error)
    })
}

/// Whether a folder is of a saved model.
pub(crate) fn is_model(folder: &Path) -> bool {
    let mut files = ["model.json", "weights.safetensors"].iter();
    files.all(|name| folder.join(name).is_file())
}

/// Drops the lines of an epoch and of later ones. The file is read only where there are some, which its end says: an epoch is added as fast to a
/// long history as to a short one.
fn drop_from(path: &Path, epoch: u64) -> io::Result<()> {
    let is_before = |line: &&str| {
        let line: Option<Value> = serde_json::from_str(line).ok();
        line.is_some_and(|line| line["epoch"].as_u64() < Some(epoch))
    };
    let end = match end_of(path) {
        Ok(end) => end,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if end.lines().next_back().as_ref().is_none_or(is_before) {
        return Ok(());
    }
    let text = fs::read_to_string(path)?;
    let kept = text.split_inclusive('\n').filter(is_before);
    let new = path.with_extension("jsonl.new");
    fs::write(&new, kept.collect::<String>())?;
    fs::rename(new, path)
}

/// The lines of a history. A checkpoint does not have all that was measured of its epochs: the lines of those stay as they were `before`.
fn lines(history: &History, before: &str) -> String {
    let before = before
        .lines()
        .filter_map(|line| Some((results(line)?, line)));
    let before: HashMap<String, &str> = before.collect();
    let line = |epoch: &EpochLogs| {
        let new = line(epoch);
        let kept = results(&new).and_then(|results| before.get(&results));
        match kept.filter(|_| epoch.times.is_none()) {
            Some(kept) => format!("{kept}\n"),
            None => new,
        }
    };
    history.epochs.iter().map(line).collect()
}

/// What the line of an epoch has of a checkpoint.
fn results(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    Some(
        ["epoch", "steps", "seconds", "logs"]
            .map(|key| line[key].to_string())
            .concat(),
    )
}

/// The line of an epoch.
fn line(epoch: &EpochLogs) -> String {
    let mut line = json!({
        "epoch": epoch.epoch + 1,
        "steps": epoch.steps,
        "seconds": epoch.seconds,
        "logs": epoch.logs.to_json(),
    });
    if let Some(throughput) = epoch.throughput {
        line["throughput"] = throughput.to_json();
    }
    if let Some(times) = &epoch.times {
        line["times"] = times.to_json();
        line["verdict"] = json!(epoch.verdict);
    }
    if !epoch.slow_workers.is_empty() {
        let slow = epoch.slow_workers.iter().map(SlowWorker::to_json);
        line["stragglers"] = slow.collect();
    }
    format!("{line}\n")
}

/// The end of a file, longer than a line of an epoch.
fn end_of(path: &Path) -> io::Result<String> {
    const LENGTH: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LENGTH)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_comes_again_takes_the_place_of_its_line_and_of_later_ones() {
        let path = std::env::temp_dir().join(format!("history-{}.jsonl", std::process::id()));
        let left = |text: &str, epoch: u64| {
            fs::write(&path, text).unwrap();
            drop_from(&path, epoch).unwrap();
            let left = fs::read_to_string(&path).unwrap();
            fs::remove_file(&path).unwrap();
            left
        };
        let [first, second, third] = [1, 2, 3].map(|epoch| format!("{{\"epoch\":{epoch}}}\n"));
        let all = [&first[..], &second, &third].concat();
        assert_eq!(left(&all, 4), all);
        assert_eq!(left(&all, 2), first);
        assert_eq!(left(&all, 1), "");
        // Of a line that was cut off nothing is read.
        assert_eq!(left(&format!("{first}{{\"epo"), 2), first);
        drop_from(&path, 1).unwrap();
    }
}
