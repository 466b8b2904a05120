//! An evaluator: a process that looks at the checkpoints of a training that another process writes, until that training is done.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use phalanx_summary::EventWriter;
use serde::{Deserialize, Serialize};

use super::callbacks::better_of;
use super::{Logs, Trainer};
use crate::checkpoint::{CheckpointId, TrainingState, is_marked_done};
use crate::data::Batches;
use crate::metrics::Better;
use crate::storage::store::is_url;
use crate::{Error, Result};

/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often, and for how long, while a checkpoint has no name of its own.
const MOVING_EVERY: Duration = Duration::from_millis(5);
const MOVED_WITHIN: Duration = Duration::from_secs(2);

/// How the checkpoints of another process's training are followed: Keras' `SidecarEvaluator`, which Keras 3 has no more.
///
/// The checkpoints are the one at a path, the older ones beside it, and those that a
/// [`ModelCheckpoint`](super::callbacks::ModelCheckpoint) writes in the same folder. Where Keras waits for ever, this ends when the
/// training says that it is done, and fails when it says nothing for too long.
#[derive(Clone, Debug)]
pub struct Follow {
    checkpoint: PathBuf,
    each: bool,
    within: Duration,
    since: Option<SystemTime>,
    summaries: Option<PathBuf>,
    best: Option<(String, PathBuf)>,
    stop: Option<Arc<AtomicBool>>,
}

/// The evaluation of one checkpoint.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Its path when it was read.
    pub path: PathBuf,
    /// The number of updates that made it.
    pub step: i64,
    /// The number of epochs that were done.
    pub epochs: u64,
    /// What the evaluation gave.
    pub logs: Logs,
    /// Whether it is the best so far, and was exported.
    pub is_best: bool,
}

impl Follow {
    /// Follows the checkpoint that a training writes to this path, the newest each time.
    #[must_use]
    pub fn new(checkpoint: impl Into<PathBuf>) -> Self {
        Self {
            checkpoint: checkpoint.into(),
            each: false,
            within: Duration::from_secs(600),
            since: None,
            summaries: None,
            best: None,
            stop: None,
        }
    }

    /// Evaluates each checkpoint that is found, the oldest first, in place of the newest alone. One that the training replaces before
    /// its turn comes is passed over: [`Fit::keep_checkpoints`](super::Fit::keep_checkpoints) keeps more of them.
    #[must_use]
    pub const fn each(mut self) -> Self {
        self.each = true;
        self
    }

    /// How long to wait for the next checkpoint, or the word that there is none: ten minutes unless this says otherwise.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Passes over what was written before this time, by another training that had the path.
    #[must_use]
    pub const fn since(mut self, time: SystemTime) -> Self {
        self.since = Some(time);
        self
    }

    /// Writes `evaluation_<name>_vs_iterations` by step for TensorBoard, to `validation` in this folder, as Keras' `TensorBoard`
    /// callback of an evaluator does.
    #[must_use]
    pub fn summaries(mut self, folder: impl Into<PathBuf>) -> Self {
        self.summaries = Some(folder.into());
        self
    }

    /// Keeps the model of the checkpoint that is best by a log, in this directory; beside it, `<directory>.json` says which one it is, so
    /// that an evaluator that is started again goes on from there.
    #[must_use]
    pub fn best(mut self, log: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        self.best = Some((log.into(), directory.into()));
        self
    }

    /// Ends when this flag is set, with [`Error::Stopped`].
    #[must_use]
    pub fn stop_when(mut self, flag: &Arc<AtomicBool>) -> Self {
        self.stop = Some(Arc::clone(flag));
        self
    }

    /// What is in the folder beside what was looked at.
    fn found(&self, seen: &BTreeSet<CheckpointId>) -> Found {
        let parent = match self.checkpoint.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name_of = |path: &Path| {
            path.file_name()
                .unwrap_or_default()
                .as_encoded_bytes()
                .to_owned()
        };
        let own = name_of(&self.checkpoint);
        let own_hidden = [b".", &own[..]].concat();
        // Hidden ones are being written, or being removed; those of a hidden checkpoint begin with one more point.
        let is_hidden = |path: &Path| {
            let name = name_of(path);
            name.starts_with(b".") && !name.starts_with(&own)
        };
        let is_candidate = |path: &Path| !is_hidden(path) || name_of(path).starts_with(&own_hidden);
        let paths = fs::read_dir(parent).into_iter().flatten().flatten();
        let paths = paths.map(|entry| entry.path());
        let identified = |path: PathBuf| Some((CheckpointId::of(&path)?, path));
        let all = (paths.filter(|path| is_candidate(path))).filter_map(identified);
        let is_new = |(id, _): &(CheckpointId, PathBuf)| {
            !seen.contains(id) && self.since.is_none_or(|since| id.written >= since)
        };
        let (hidden, mut new): (Vec<_>, Vec<_>) = all.partition(|(_, path)| is_hidden(path));
        let newest = new.iter().map(|(id, _)| *id).max();
        new.retain(is_new);
        new.sort();
        new.dedup_by(|later, earlier| later.0 == earlier.0);
        let moving = hidden.into_iter();
        let moving = moving.filter(|found| is_new(found) && Some(found.0) < newest);
        let moving = moving.map(|(id, _)| id).collect();
        Found { new, moving }
    }

    fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    fn too_late(&self, last: Option<i64>) -> Error {
        let (path, seconds) = (self.checkpoint.display(), self.within.as_secs());
        let last = last.map_or_else(
            || "no checkpoint has come".to_owned(),
            |step| format!("no checkpoint has come after the one of step {step}"),
        );
        Error::Cluster(format!(
            "{last} at {path} for {seconds} seconds, and the training has not said that it is done; see whether it runs, and writes checkpoints there (`save_freq` or --resume of `phalanx train`)"
        ))
    }
}

/// What a look at the folder finds.
#[derive(PartialEq)]
struct Found {
    /// The checkpoints that were not looked at, the oldest first.
    new: Vec<(CheckpointId, PathBuf)>,
    /// Those that another has replaced, and that have no name of their own yet; or never, where the training was ended in between.
    moving: Vec<CheckpointId>,
}

/// What is written beside an export.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct BestRecord {
    log: String,
    value: f64,
    step: i64,
}

/// An evaluator at work.
struct Evaluator<'a> {
    follow: &'a Follow,
    better: Option<Better>,
    best: Option<BestRecord>,
    events: Option<EventWriter>,
    seen: BTreeSet<CheckpointId>,
    /// The newest of them that were evaluated: none before it is.
    newest: Option<CheckpointId>,
    last: Option<i64>,
    /// Since when some have no name, or get another one.
    moving: Option<Instant>,
}

impl Trainer {
    /// Evaluates the checkpoints that another process writes, as they come, until its training is done; `report` is called with each.
    /// This trainer has the variables of the last one then.
    ///
    /// # Errors
    /// [`Error::Cluster`] when no checkpoint comes for too long, [`Error::Stopped`] when that is asked for, and what evaluating gives;
    /// [`Error::User`] when a checkpoint is of another model or `best` names no log.
    pub fn follow(
        &mut self,
        data: &Batches,
        follow: &Follow,
        mut report: impl FnMut(&Followed) -> Result<()>,
    ) -> Result<()> {
        if is_url(&follow.checkpoint) {
            return Err(Error::user(format!(
                "an evaluator follows the checkpoints of a folder, and `{}` is a URL; let the training write to a folder that both reach",
                follow.checkpoint.display()
            )));
        }
        let mut evaluator = Evaluator::new(self, follow)?;
        let mut since = Instant::now();
        loop {
            // Asked before looking: what was written before it was done is found by then.
            let is_done = is_marked_done(&follow.checkpoint, follow.since);
            let Some(found) = evaluator.look() else {
                thread::sleep(MOVING_EVERY);
                continue;
            };
            let is_nothing = found.is_empty();
            for (id, path) in found {
                if follow.is_stopped() {
                    break;
                }
                if let Some(followed) = evaluator.evaluate(self, data, id, &path)? {
                    report(&followed)?;
                    since = Instant::now();
                }
                // It has another name, and comes before the others still.
                if !evaluator.seen.contains(&id) {
                    break;
                }
            }
            if follow.is_stopped() {
                return Err(Error::Stopped(
                    "the evaluation of checkpoints was asked to stop".into(),
                ));
            }
            match (is_nothing, is_done) {
                (false, _) => {}
                (true, true) => return Ok(()),
                (true, false) if since.elapsed() > follow.within => {
                    return Err(follow.too_late(evaluator.last));
                }
                (true, false) => thread::sleep(LOOK_EVERY),
            }
        }
    }
}

impl<'a> Evaluator<'a> {
    fn new(trainer: &Trainer, follow: &'a Follow) -> Result<Self> {
        let (mut better, mut best) = (None, None);
        if let Some((log, directory)) = &follow.best {
            better = Some(better_of(log, &trainer.compiled.setup.goals(), false)?);
            // What is damaged or of another log is no best.
            let text = fs::read(record_path(directory)).unwrap_or_default();
            let record: Option<BestRecord> = serde_json::from_slice(&text).ok();
            best = record.filter(|best| best.log == *log && follow.since.is_none());
        }
        let events = follow.summaries.as_ref();
        let events = events.map(|folder| EventWriter::create(folder.join("validation")));
        Ok(Self {
            follow,
            better,
            best,
            events: events.transpose().map_err(super::tensorboard::io)?,
            seen: BTreeSet::new(),
            newest: None,
            last: None,
            moving: None,
        })
    }

    /// The checkpoints to evaluate, the oldest first; nothing while one that comes before others has no name or is being renamed, so
    /// that each has its turn.
    fn look(&mut self) -> Option<Vec<(CheckpointId, PathBuf)>> {
        let found = self.follow.found(&self.seen);
        if self.follow.each && !self.follow.is_stopped() {
            let is_moving = !found.moving.is_empty();
            // A checkpoint that gets another name during a look may be found under neither.
            let is_steady = || found.new.is_empty() || found == self.follow.found(&self.seen);
            if is_moving || !is_steady() {
                let since = *self.moving.get_or_insert_with(Instant::now);
                if since.elapsed() < MOVED_WITHIN {
                    return None;
                }
            }
        }
        let Found { mut new, moving } = found;
        self.seen.extend(moving);
        self.moving = None;
        let first = match self.follow.each {
            true => new.partition_point(|(id, _)| Some(*id) < self.newest),
            false => new.len().saturating_sub(1),
        };
        self.seen.extend(new.drain(..first).map(|(id, _)| id));
        Some(new)
    }

    /// Evaluates a checkpoint; nothing where another one has its name by now, or none. It is looked for again then: it may have another
    /// name.
    fn evaluate(
        &mut self,
        trainer: &mut Trainer,
        data: &Batches,
        id: CheckpointId,
        path: &Path,
    ) -> Result<Option<Followed>> {
        let state = TrainingState::load(path);
        if CheckpointId::of(path) != Some(id) {
            return Ok(None);
        }
        self.seen.insert(id);
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                let shown = path.display();
                let what = format!("warning: the checkpoint at {shown} is passed over: {error}");
                trainer.engine().notice(&what);
                return Ok(None);
            }
        };
        self.newest = self.newest.max(Some(id));
        let (step, epochs) = (state.iterations(), state.position().epoch);
        if self.last == Some(step) {
            return Ok(None);
        }
        trainer.set_training_state(&state)?;
        let logs = trainer.evaluate(data)?;
        self.write(&logs, step)?;
        let is_best = self.keep_best(trainer, &logs, step)?;
        self.last = Some(step);
        let path = path.to_owned();
        Ok(Some(Followed {
            path,
            step,
            epochs,
            logs,
            is_best,
        }))
    }

    fn write(&mut self, logs: &Logs, step: i64) -> Result<()> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        if self.last.is_none() {
            // An evaluator that is started again repeats what the one before wrote.
            events.session_start(step).map_err(super::tensorboard::io)?;
        }
        for (name, value) in logs.iter() {
            let tag = format!("evaluation_{name}_vs_iterations");
            let written = events.scalar(&tag, value as f32, step);
            written.map_err(super::tensorboard::io)?;
        }
        events.flush().map_err(super::tensorboard::io)
    }

    fn keep_best(&mut self, trainer: &Trainer, logs: &Logs, step: i64) -> Result<bool> {
        let Some(((log, directory), better)) = self.follow.best.as_ref().zip(self.better) else {
            return Ok(false);
        };
        let value = logs.get(log).filter(|value| !value.is_nan());
        let is_better = |value: &f64| match (&self.best, better) {
            (None, _) => true,
            (Some(best), Better::Lower) => *value < best.value,
            (Some(best), Better::Higher) => *value > best.value,
        };
        let Some(value) = value.filter(is_better) else {
            return Ok(false);
        };
        trainer.save(directory)?;
        let log = log.clone();
        let record = BestRecord { log, value, step };
        let path = record_path(directory);
        let text = serde_json::to_vec_pretty(&record).map_err(std::io::Error::other);
        let written = text.and_then(|text| fs::write(&path, text));
        written.map_err(|source| Error::Io {
            path,
            action: "write",
            source,
        })?;
        self.best = Some(record);
        Ok(true)
    }
}

fn record_path(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".json");
    directory.with_file_name(name)
}
