//! The state of a trainer as a value, and what must fit where it is put back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use phalanx_graph::{HostTensor, Shape};
use serde_json::Value;

use super::callbacks::Callbacks;
use super::compiled_model::CompiledModel;
use super::end_of_fit::ReplacedVariables;
use super::epoch_totals::EpochTotals;
use super::history::{EpochLogs, History, InputReport, Logs};
use super::setup::Setup;
use super::workers::on_chief;
use super::{Fit, Trainer};
use crate::checkpoint::{
    EpochRecord, JsonFloat, Manifest, ReadFrom, TrainingState, check_state, rows,
};
use crate::data::{InputBottleneck, STAGES};
use crate::replicas::Placement;
use crate::storage::atomic_dir::Replaced;
use crate::storage::store::is_url;
use crate::{Error, Result};

/// The paths of checkpoints that a trainer read or wrote.
#[derive(Default)]
pub(super) struct OwnCheckpoints(Mutex<Vec<PathBuf>>);

impl OwnCheckpoints {
    pub(super) fn add(&self, path: &Path) {
        if !self.has(path) {
            let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            paths.push(resolved(path));
        }
    }

    fn has(&self, path: &Path) -> bool {
        let paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.contains(&resolved(path))
    }

    /// Refuses to replace the checkpoint of another training: a launcher may begin the same program again; and what no checkpoint may
    /// replace, at which the first would end the training; and callbacks that would replace each other's.
    pub(super) fn check(&self, placement: &Placement, callbacks: &Callbacks) -> Result<()> {
        callbacks.check_names()?;
        // The first worker of a job may have written its first one before another comes here.
        let servers = placement.servers();
        let is_of_job = servers.is_some_and(|servers| !servers.begins_job());
        if is_of_job {
            return Ok(());
        }
        for path in callbacks.checkpoints() {
            if !self.has(&path) && TrainingState::is_checkpoint(&path)? {
                return Err(replaces_foreign(&path));
            }
        }
        let is_writer = placement.world().is_none_or(|world| world.is_chief());
        let places = callbacks.places_to_go_on_from().into_iter();
        let mut places = places.filter(|_| is_writer);
        places.try_for_each(|path| TrainingState::check_replaceable(&path))
    }
}

fn replaces_foreign(path: &Path) -> Error {
    Error::User(format!(
        "there is a checkpoint at `{}` that this training neither read nor wrote, and it would be replaced; go on from it with `restore_checkpoint` and `Fit::resume`, write to another directory, or remove it with `TrainingState::remove`",
        path.display()
    ))
}

/// One spelling of each path, of those too whose last part is not there.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = std::fs::canonicalize(parent.unwrap_or(Path::new(".")));
    match (std::fs::canonicalize(path), parent, path.file_name()) {
        (Ok(path), ..) => path,
        (Err(_), Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_path_buf(),
    }
}

impl Trainer {
    /// Writes a checkpoint to a directory: all that [`restore_checkpoint`](Self::restore_checkpoint) needs to go on as if
    /// the training had never stopped. See [`checkpoint`](crate::checkpoint) for its files.
    ///
    /// Where several processes train together all must call this, and the first of them writes.
    ///
    /// # Errors
    /// As for [`training_state`](Self::training_state) and [`TrainingState::save`].
    pub fn save_checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        let (path, state) = (path.as_ref(), self.state_unchecked()?);
        let is_alone = self.placement().world().is_none() && self.placement().servers().is_none();
        let checks_beside = is_alone && !is_url(path);
        if !checks_beside {
            // All processes refuse it, and nothing of it comes into a bucket.
            check_state(&state)?;
        }
        let check = || {
            if checks_beside {
                check_state(&state)
            } else {
                Ok(())
            }
        };
        self.writer.removal.finish();
        let mut replaced = Replaced::Nothing;
        on_chief(self.placement(), "checkpoint", || {
            replaced = state.save_keeping(path, 0, &check, &|| Ok(()))?;
            let warning = replaced.warning().into_iter();
            warning.for_each(|line| self.engine().notice(line));
            Ok(())
        })?;
        self.writer.removal.begin(replaced, state);
        self.own_checkpoints.add(path);
        Ok(())
    }

    /// Takes the state of a checkpoint, of whatever strategy and number of replicas; [`Fit::resume`](super::Fit::resume)
    /// then goes on with the data. Where the checkpoint is damaged or gone, the newest of the older ones beside it
    /// ([`Fit::keep_checkpoints`](super::Fit::keep_checkpoints)) that is whole is taken, and a notice says so.
    ///
    /// On the devices that it was written on, what follows is the same to the bit as without the interruption, but for gradients that
    /// several replicas had accumulated within a window of batches, whose sum is added in another order; on others
    /// it differs as one strategy does from another. The seed is taken from the checkpoint.
    ///
    /// # Errors
    /// As for [`TrainingState::load_newest`] and [`set_training_state`](Self::set_training_state); nothing is changed then.
    pub fn restore_checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.restore_if(path.as_ref(), |_, _| true).map(drop)
    }

    /// The same, unless the checkpoint turns out not to be wanted; whether it was.
    fn restore_if(
        &mut self,
        path: &Path,
        is_wanted: impl FnOnce(&Self, &TrainingState) -> bool,
    ) -> Result<bool> {
        let (state, left_out) = TrainingState::load_newest(path)?;
        if !is_wanted(self, &state) {
            return Ok(false);
        }
        if !left_out.is_empty() {
            self.engine()
                .notice(&format!("warning: {}", left_out.join("; ")));
        }
        self.set_training_state(&state)
            .map_err(|error| match error {
                Error::User(message) => Error::User(format!("`{}`: {message}", path.display())),
                other => other,
            })?;
        Ok(true)
    }

    /// The same `fit`, going on from the checkpoint of a callback, if that is there. One that goes on anyway does so from a checkpoint of
    /// another process too, unless it is further.
    pub(super) fn restore_backup<'f>(&mut self, fit: &'f Fit) -> Result<Cow<'f, Fit>> {
        let is_known = |path: &PathBuf| fit.resume && self.own_checkpoints.has(path);
        let Some(path) = fit.callbacks.backup()?.filter(|path| !is_known(path)) else {
            return Ok(Cow::Borrowed(fit));
        };
        let is_wanted = |own: &Self, state: &TrainingState| {
            !fit.resume || state.iterations() >= own.compiled.iterations
        };
        if !self.restore_if(&path, is_wanted)? {
            return Ok(Cow::Borrowed(fit));
        }
        let (path, step) = (path.display(), self.compiled.iterations);
        self.engine().notice(&format!(
            "note: the training goes on from `{path}`, after step {step}"
        ));
        Ok(Cow::Owned(fit.clone().resume()))
    }

    /// All that the training is at this step, on the host; waits for the steps begun. Where the end of a `fit` has put the
    /// best epoch's variables or the averages in their place, its variables are the last step's, from which the
    /// training can go on.
    ///
    /// # Errors
    /// When the device fails, or the loss of a step of the epoch, a variable or a slot of the optimizer is infinite or not a number.
    pub fn training_state(&self) -> Result<TrainingState> {
        let state = self.state_unchecked()?;
        check_state(&state)?;
        Ok(state)
    }

    /// The same, whatever the values are: looking at all of them takes time.
    pub(super) fn state_unchecked(&self) -> Result<TrainingState> {
        let setup = &self.compiled.setup;
        let arrays = setup.state.arrays().into_iter().enumerate();
        let values = arrays
            .map(|(index, (name, shape))| Ok((name, self.compiled.state.get(index, &shape)?)));
        let mut values: Vec<(String, HostTensor)> = values.collect::<Result<_>>()?;
        let iterations = values.pop();
        let mut slots = values.split_off(setup.model.variables().len());
        self.replaced.undo_in(setup, &mut values, &mut slots);
        let optimizer = &setup.optimizer;
        Ok(TrainingState {
            manifest: Manifest {
                iterations: iterations.map_or(0, |(_, count)| count.to_f64()[0] as i64),
                seed: self.compiled.state.seed()?,
                replicas: self.compiled.placement.replicas_in_sync(),
                workers: self.compiled.placement.workers(),
                generation: (self.compiled.placement.world()).map_or(0, |world| world.generation()),
                optimizer: optimizer.kind().to_owned(),
                settings: optimizer.config(),
                logs: log_names(setup),
                position: self.progress.position.clone(),
                examples: self.progress.examples,
                data: self.progress.data_settings,
                meaning: self.progress.data_meaning,
                skipped_before: JsonFloat(self.compiled.skipped_before),
                callbacks: Vec::new(),
            },
            variables: values,
            slots,
            sums: self
                .progress
                .is_mid_epoch
                .then(|| sums(&self.compiled))
                .transpose()?,
            history: self.progress.history.epochs.iter().map(record).collect(),
            source: ReadFrom::default(),
            callbacks: match self.callbacks.is_empty() {
                true => self.callback_states.clone(),
                false => self.callbacks.states(),
            },
        })
    }

    /// Sets the whole state of this trainer; see [`restore_checkpoint`](Self::restore_checkpoint).
    ///
    /// # Errors
    /// When the optimizer is another one, when variables or slots are missing, too many or of other shapes, or when an
    /// epoch was begun with other losses or metrics; when the device fails. Nothing is changed then.
    pub fn set_training_state(&mut self, state: &TrainingState) -> Result<()> {
        let (manifest, setup) = (&state.manifest, &self.compiled.setup);
        check_optimizer(setup, manifest)?;
        let mut wanted = self.compiled.setup.state.arrays();
        wanted.pop();
        let wanted_slots = wanted.split_off(self.compiled.setup.model.variables().len());
        let mut values = match_by_name("the model", &wanted, &state.variables)?;
        values.extend(match_by_name("the optimizer", &wanted_slots, &state.slots)?);
        values.push(HostTensor::scalar(manifest.iterations));
        let sums = state.sums.as_ref();
        let sums = sums
            .map(|sums| checked_sums(setup, manifest, sums))
            .transpose()?;
        let placed = |sums: &Vec<Vec<f64>>| {
            self.compiled
                .state
                .place_epoch_totals(&self.compiled.setup, sums)
        };
        let sums = sums.as_ref().map(placed).transpose()?;
        self.compiled.state.replace(&values, manifest.seed)?;
        self.replaced = ReplacedVariables::default();
        self.progress.is_mid_epoch = sums.is_some();
        if let Some(sums) = sums {
            self.compiled.state.set_epoch_totals(sums);
        }
        (self.progress.examples, self.progress.data_settings) = (manifest.examples, manifest.data);
        self.progress.data_meaning = manifest.meaning;
        self.compiled.iterations = manifest.iterations;
        self.progress.position = manifest.position.clone();
        self.compiled.skipped_before = manifest.skipped_before.0;
        self.progress.history = History {
            epochs: state.history.iter().map(epoch_logs).collect(),
        };
        self.callback_states.clone_from(&state.callbacks);
        if let Some(path) = state.source.path() {
            self.own_checkpoints.add(path);
        }
        notice_other_settings(&self.compiled, manifest);
        notice_other_replicas(&self.compiled, manifest);
        Ok(())
    }
}

fn log_names(setup: &Setup) -> Vec<String> {
    let logs = setup.logs(&vec![0.0; setup.epoch_totals.len], 0.0);
    logs.iter().map(|(name, _)| name.to_owned()).collect()
}

/// The sums of the epoch, a row for each replica.
fn sums(model: &CompiledModel) -> Result<HostTensor> {
    let totals_per_replica = model.state.totals_per_replica(&model.setup)?;
    if let Some(step) =
        EpochTotals::first_non_finite(&model.setup.epoch_totals.merge_replicas(&totals_per_replica))
    {
        return Err(model.divergence_error(step));
    }
    let dims = [totals_per_replica.len(), model.setup.epoch_totals.len];
    Ok(HostTensor::new(dims, &totals_per_replica.concat()))
}

fn check_optimizer(setup: &Setup, manifest: &Manifest) -> Result<()> {
    let (there, here) = (&manifest.optimizer, setup.optimizer.kind());
    if there == here {
        return Ok(());
    }
    Err(Error::user(format!(
        "it is of the optimizer `{there}`, and this training has `{here}`; use `{there}`, or {WEIGHTS_ALONE}"
    )))
}

fn checked_sums(setup: &Setup, manifest: &Manifest, sums: &HostTensor) -> Result<Vec<Vec<f64>>> {
    let (there, here) = (&manifest.logs, log_names(setup));
    if *there != here {
        let (there, here) = (there.join(", "), here.join(", "));
        return Err(Error::user(format!(
            "it is of the middle of an epoch with the results {there}, and this training has {here}; use the losses and metrics that it was saved with"
        )));
    }
    let len = setup.epoch_totals.len;
    rows(sums, len).ok_or_else(|| {
        Error::user(format!(
            "it is of the middle of an epoch, whose sums are {}, expected {len} numbers for each replica: another version of Phalanx wrote it, or the metrics have other settings; go on from a checkpoint of the end of an epoch, with the metrics' settings as they were, or {WEIGHTS_ALONE}",
            sums.shape()
        ))
    })
}

/// A notice of a learning rate that follows the number of replicas, which is another.
fn notice_other_replicas(model: &CompiledModel, manifest: &Manifest) {
    let (there, here) = (manifest.replicas, model.placement.replicas_in_sync());
    let optimizer = &model.setup.optimizer;
    let before = optimizer.clone().for_replicas(there).learning_rate();
    if before != optimizer.learning_rate() {
        model.engine().notice(&format!(
            "note: the checkpoint is of {there} replicas, and this training has {here}: the learning rate, which is scaled by them, changes; to keep it, set `replicas` of the schedule to {there}"
        ));
    }
}

/// A notice of settings of the optimizer that differ.
fn notice_other_settings(model: &CompiledModel, manifest: &Manifest) {
    let (there, here) = (&manifest.settings, model.setup.optimizer.config());
    let fields = here.as_object().into_iter().flatten();
    let differing = fields.filter_map(|(field, here)| {
        // A checkpoint of before a setting came has it as it is by default, which is empty or none.
        let is_empty = here.as_object().is_some_and(serde_json::Map::is_empty);
        let there = there
            .get(field)
            .unwrap_or(if is_empty { here } else { &Value::Null });
        (there != here).then(|| format!("`{field}` was {there}, and is {here}"))
    });
    let differing: Vec<String> = differing.collect();
    if !differing.is_empty() {
        model.engine().notice(&format!(
            "note: settings of the optimizer differ from the checkpoint's: {}; a constant learning rate stays as in the checkpoint",
            differing.join(", ")
        ));
    }
}

const WEIGHTS_ALONE: &str =
    "begin anew with the weights alone, which are in `weights.safetensors` of a checkpoint";

/// The values for these names and shapes, in their order; an error says all that differs.
pub(crate) fn match_by_name(
    whose: &str,
    wanted: &[(String, Shape)],
    given: &[(String, HostTensor)],
) -> Result<Vec<HostTensor>> {
    let values: HashMap<&str, &HostTensor> =
        given.iter().map(|(name, value)| (&**name, value)).collect();
    let known: HashMap<&str, &Shape> = wanted
        .iter()
        .map(|(name, shape)| (&**name, shape))
        .collect();
    let names = wanted.iter().map(|(name, _)| &**name);
    let missing: Vec<&str> = names.filter(|name| !values.contains_key(name)).collect();
    let names = given.iter().map(|(name, _)| &**name);
    let extra: Vec<&str> = names.filter(|name| !known.contains_key(name)).collect();
    let other = wanted.iter().filter_map(|(name, shape)| {
        let found = values.get(&**name)?.shape();
        (found != shape).then(|| format!("`{name}` is {found}, expected {shape}"))
    });
    let other: Vec<String> = other.collect();
    let mut problems = Vec::new();
    if !missing.is_empty() {
        problems.push(format!("it has no {} of {whose}", listed(&missing)));
    }
    if !extra.is_empty() {
        problems.push(format!("{whose} has no {} of it", listed(&extra)));
    }
    problems.extend(first_few(&other, Clone::clone));
    if !problems.is_empty() {
        return Err(Error::user(format!(
            "it does not fit {whose} of this training: {}; use the model and the optimizer that it was saved with, or {WEIGHTS_ALONE}",
            problems.join("; ")
        )));
    }
    Ok(wanted
        .iter()
        .map(|(name, _)| values[&**name].clone())
        .collect())
}

fn listed(names: &[&str]) -> String {
    first_few(names, |name| format!("`{name}`")).join(", ")
}

/// The first few, and how many more there are.
fn first_few<T>(all: &[T], shown: impl Fn(&T) -> String) -> Vec<String> {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = all.iter().take(SHOWN).map(shown).collect();
    if all.len() > SHOWN {
        text.push(format!("{} more", all.len() - SHOWN));
    }
    text
}

fn record(epoch: &EpochLogs) -> EpochRecord {
    EpochRecord {
        epoch: epoch.epoch,
        steps: epoch.steps,
        seconds: JsonFloat(epoch.seconds),
        skipped: epoch.input.skipped,
        validation_skipped: epoch.input.validation_skipped,
        lost_bytes: epoch.input.lost_bytes,
        waited: JsonFloat(epoch.input.bottleneck.waited),
        slowest: epoch.input.bottleneck.slowest.to_owned(),
        logs: (epoch.logs.iter())
            .map(|(name, value)| (name.to_owned(), JsonFloat(value)))
            .collect(),
    }
}

/// The results of an epoch; what each stage of the input and each replica cost is not kept.
fn epoch_logs(record: &EpochRecord) -> EpochLogs {
    let slowest = STAGES.iter().find(|stage| **stage == record.slowest);
    EpochLogs {
        epoch: record.epoch,
        logs: (record.logs.iter())
            .map(|(name, value)| (name.clone(), value.0))
            .collect::<Logs>(),
        steps: record.steps,
        seconds: record.seconds.0,
        throughput: None,
        input: InputReport {
            bottleneck: InputBottleneck {
                waited: record.waited.0,
                slowest: slowest.copied().unwrap_or(STAGES[0]),
            },
            stages: Vec::new(),
            skipped: record.skipped,
            validation_skipped: record.validation_skipped,
            lost_bytes: record.lost_bytes,
        },
        replica_times: None,
        slow_workers: Vec::new(),
        times: None,
        verdict: None,
    }
}
