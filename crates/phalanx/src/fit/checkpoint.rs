//! The state of a trainer as a value, and what must fit where it is put back.

use std::collections::HashMap;
use std::path::Path;

use phalanx_graph::{HostTensor, Shape};
use serde_json::Value;

use super::best::Best;
use super::history::{EpochLogs, History, Input, Logs};
use super::tally::Tally;
use super::{Fit, Trainer};
use crate::checkpoint::{About, EpochRecord, Number, TrainingState, rows};
use crate::data::{Position, STAGES, Verdict};
use crate::{Error, Result};

impl Trainer {
    /// Writes a checkpoint to a directory: all that [`restore_checkpoint`](Self::restore_checkpoint) needs to go on as if
    /// the training had never stopped. See [`checkpoint`](crate::checkpoint) for its files.
    ///
    /// # Errors
    /// As for [`training_state`](Self::training_state) and [`TrainingState::save`].
    pub fn save_checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        self.training_state()?.save(path)
    }

    /// Takes the state of a checkpoint, of whatever strategy and number of replicas; [`Fit::resume`]
    /// then goes on with the data.
    ///
    /// On the devices that it was written on, what follows is the same to the bit as without the interruption; on others
    /// it differs as one strategy does from another. The seed becomes that of the checkpoint.
    ///
    /// # Errors
    /// As for [`TrainingState::load`] and [`set_training_state`](Self::set_training_state); nothing is changed then.
    pub fn restore_checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let state = TrainingState::load(path)?;
        self.set_training_state(&state)
            .map_err(|error| match error {
                Error::User(message) => Error::User(format!("`{}`: {message}", path.display())),
                other => other,
            })
    }

    /// All that the training is at this step, on the host; waits for the steps begun.
    ///
    /// # Errors
    /// When the device fails, or the loss of a step of the epoch was not a number.
    pub fn training_state(&self) -> Result<TrainingState> {
        let setup = &self.setup;
        let arrays = setup.arrays().into_iter().enumerate();
        let values =
            arrays.map(|(index, (name, shape))| Ok((name, self.state.get(index, &shape)?)));
        let mut values: Vec<(String, HostTensor)> = values.collect::<Result<_>>()?;
        let iterations = values.pop();
        let slots = values.split_off(setup.model.variables().len());
        let optimizer = &setup.optimizer;
        let best = self.best.as_ref();
        Ok(TrainingState {
            about: About {
                iterations: iterations.map_or(0, |(_, count)| count.to_f64()[0] as i64),
                seed: self.state.seed()?,
                replicas: self.placement.replicas(),
                optimizer: optimizer.kind().to_owned(),
                settings: optimizer.config(),
                logs: self.log_names(),
                position: self.position.clone(),
                skipped_before: Number(self.skipped_before),
                best: best.map(|Best { log, found }| {
                    let value = found.as_ref().map(|(value, _)| Number(*value));
                    (log.clone(), value)
                }),
            },
            variables: values,
            slots,
            sums: self.is_mid_epoch.then(|| self.sums()).transpose()?,
            history: self.history.epochs.iter().map(record).collect(),
            best: best.and_then(|best| Some(best.found.as_ref()?.1.clone())),
        })
    }

    /// Makes a state that of this trainer; see [`restore_checkpoint`](Self::restore_checkpoint).
    ///
    /// # Errors
    /// When the optimizer is another one, when variables or slots are missing, too many or of other shapes, or when an
    /// epoch was begun with other losses or metrics; when the device fails. Nothing is changed then.
    pub fn set_training_state(&mut self, state: &TrainingState) -> Result<()> {
        let about = &state.about;
        self.check_optimizer(about)?;
        let mut wanted = self.setup.arrays();
        wanted.pop();
        let wanted_slots = wanted.split_off(self.setup.model.variables().len());
        let mut values = matched("the model", &wanted, &state.variables)?;
        values.extend(matched("the optimizer", &wanted_slots, &state.slots)?);
        values.push(HostTensor::scalar(about.iterations));
        let sums = state.sums.as_ref();
        let sums = sums
            .map(|sums| self.checked_sums(about, sums))
            .transpose()?;
        let best = self.checked_best(state, &wanted)?;
        self.state.replace(&values, about.seed)?;
        if let Some(sums) = &sums {
            self.state.set_tallies(&self.setup, sums)?;
        }
        self.is_mid_epoch = sums.is_some();
        self.iterations = about.iterations;
        self.position = about.position.clone();
        self.skipped_before = about.skipped_before.0;
        self.history = History {
            epochs: state.history.iter().map(epoch_logs).collect(),
        };
        self.best = best;
        self.tell_other_settings(about);
        Ok(())
    }

    /// The first epoch of a `fit`.
    pub(super) fn begin(&mut self, fit: &Fit, best: Option<Best>) -> Result<usize> {
        if !fit.resume {
            self.position = match &fit.position {
                Some(position) => position.clone(),
                None => Position::start(fit.initial_epoch as u64),
            };
            self.is_mid_epoch = false;
            self.history = History::default();
            self.best = best;
            return Ok(fit.initial_epoch);
        }
        match (&self.best, best) {
            (Some(found), Some(asked)) if found.log == asked.log => {}
            (Some(Best { log, .. }), Some(asked)) => {
                let other = asked.log;
                return Err(Error::user(format!(
                    "the training to go on with keeps the best epoch by `{log}`, and this one by `{other}`; keep it by `{log}`"
                )));
            }
            (_, best) => self.best = best,
        }
        Ok(usize::try_from(self.position.epoch).unwrap_or(usize::MAX))
    }

    pub(super) fn end_epoch(&mut self, done: EpochLogs) -> Result<()> {
        if let Some(mut best) = self.best.take() {
            let seen = best.see(&done, || self.variables());
            self.best = Some(best);
            seen?;
        }
        self.position = Position::start(done.epoch as u64 + 1);
        self.is_mid_epoch = false;
        self.history.epochs.push(done);
        Ok(())
    }

    fn log_names(&self) -> Vec<String> {
        let logs = self.logs(&vec![0.0; self.setup.tally.len], 0.0);
        logs.iter().map(|(name, _)| name.to_owned()).collect()
    }

    /// The sums of the epoch, a row for each replica.
    fn sums(&self) -> Result<HostTensor> {
        let tallies = self.state.tallies(&self.setup)?;
        if let Some(step) = Tally::first_bad(&self.setup.tally.merged(&tallies)) {
            return Err(self.diverged(step));
        }
        let dims = [tallies.len(), self.setup.tally.len];
        Ok(HostTensor::new(dims, &tallies.concat()))
    }

    fn check_optimizer(&self, about: &About) -> Result<()> {
        let (there, here) = (&about.optimizer, self.setup.optimizer.kind());
        if there == here {
            return Ok(());
        }
        Err(Error::user(format!(
            "the state is of the optimizer `{there}`, and the trainer has `{here}`; compile with `{there}`, or {WEIGHTS_ALONE}"
        )))
    }

    fn checked_sums(&self, about: &About, sums: &HostTensor) -> Result<Vec<Vec<f64>>> {
        let (there, here) = (&about.logs, self.log_names());
        let rows = rows(sums, self.setup.tally.len).filter(|_| *there == here);
        rows.ok_or_else(|| {
            let (there, here) = (there.join(", "), here.join(", "));
            Error::user(format!(
                "the state is of the middle of an epoch with the results {there}, and the trainer has {here}; compile with the losses and metrics that it was saved with"
            ))
        })
    }

    fn checked_best(
        &self,
        state: &TrainingState,
        variables: &[(String, Shape)],
    ) -> Result<Option<Best>> {
        let Some((log, value)) = &state.about.best else {
            return Ok(None);
        };
        let found = match (value, &state.best) {
            (Some(Number(value)), Some(values)) => {
                let values = matched("the model", variables, values)?;
                let names = variables.iter().map(|(name, _)| name.clone());
                Some((*value, names.zip(values).collect()))
            }
            _ => None,
        };
        Ok(Some(Best {
            log: log.clone(),
            found,
        }))
    }

    /// A notice of settings of the optimizer that differ.
    fn tell_other_settings(&self, about: &About) {
        let (there, here) = (&about.settings, self.setup.optimizer.config());
        let fields = here.as_object().into_iter().flatten();
        let differing = fields.filter_map(|(field, here)| {
            let there = there.get(field).unwrap_or(&Value::Null);
            (there != here).then(|| format!("`{field}` was {there}, and is {here}"))
        });
        let differing: Vec<String> = differing.collect();
        if !differing.is_empty() {
            self.engine().notice(&format!(
                "note: settings of the optimizer are not those of the checkpoint: {}; a constant learning rate stays that of the checkpoint",
                differing.join(", ")
            ));
        }
    }
}

const WEIGHTS_ALONE: &str =
    "take the weights alone: `load_weights` reads `weights.safetensors` in the checkpoint";

/// The values for these names and shapes, in their order; an error says all that differs.
fn matched(
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
            "the state does not fit {whose} of this trainer: {}; compile what it was saved with, or {WEIGHTS_ALONE}",
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
        seconds: Number(epoch.seconds),
        skipped: epoch.input.skipped,
        validation_skipped: epoch.input.validation_skipped,
        lost_bytes: epoch.input.lost_bytes,
        waited: Number(epoch.input.verdict.waited),
        slowest: epoch.input.verdict.slowest.to_owned(),
        logs: (epoch.logs.iter())
            .map(|(name, value)| (name.to_owned(), Number(value)))
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
        input: Input {
            verdict: Verdict {
                waited: record.waited.0,
                slowest: slowest.copied().unwrap_or(STAGES[0]),
            },
            stages: Vec::new(),
            skipped: record.skipped,
            validation_skipped: record.validation_skipped,
            lost_bytes: record.lost_bytes,
        },
        replica_times: None,
    }
}
