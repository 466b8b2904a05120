//! What the end of a `fit` leaves as variables, and what a later one goes on with.

use std::path::PathBuf;

use phalanx_graph::HostTensor;

use super::Trainer;
use super::compiled_model::CompiledModel;
use super::setup::Setup;
use super::train_loop::FitRun;
use super::workers::on_chief;
use crate::checkpoint::{NamedTensors, TrainingState, is_finite};
use crate::data::Batch;
use crate::{Error, Result};

impl FitRun<'_> {
    /// Replaces the variables by the averages, and by what callbacks set; `resume` goes on with the last step's.
    pub(super) fn take_results(mut self) -> Result<()> {
        self.tell_stop();
        let trainer = &mut *self.trainer;
        if let Some(world) = trainer.placement().world() {
            // What is done from here on, and after `fit`, cannot be done again.
            world.admit(false, self.fit.stop.as_ref())?;
        }
        trainer
            .replaced
            .use_averages(&mut trainer.compiled, false)?;
        let last = self.trainer.variables()?;
        let is_averaged = take_averages(&mut self.trainer.compiled)?;
        // As in Keras, callbacks have the last word.
        let checked = self.call_train_end().and_then(|()| self.check_left(&last));
        // Also where one of them has failed: what goes on after that goes on from the last step.
        if is_averaged || self.wishes.has_set_variables {
            self.trainer.replaced.last = Some(last);
        }
        checked?;
        self.trainer.writer.finish()?;
        let removed = self.removed();
        on_chief(self.trainer.placement(), "removal", || {
            removed.iter().try_for_each(TrainingState::remove)
        })
    }

    /// Refuses to leave values that are not numbers, where they are not known to be lost.
    fn check_left(&self, last: &NamedTensors) -> Result<()> {
        let model = &self.trainer.compiled;
        match (self.wishes.is_lost, self.wishes.has_set_variables) {
            (true, _) => Ok(()),
            (false, true) => model.check_finite(&model.variables()?),
            (false, false) => model.check_finite(last),
        }
    }

    /// What callbacks remove at the end of a training; where its state is lost, the last good one stays.
    fn removed(&mut self) -> Vec<PathBuf> {
        let removed = std::mem::take(&mut self.wishes.removed);
        if !self.wishes.is_lost {
            return removed;
        }
        if self.trainer.placement().is_chief() {
            let is_there = |path: &PathBuf| TrainingState::is_at(path).unwrap_or(true);
            for path in removed.into_iter().filter(is_there) {
                let path = path.display();
                let line = format!("note: `{path}` stays, with the last good state");
                self.trainer.engine().notice(&line);
            }
        }
        Vec::new()
    }

    /// Tells why a callback has ended the training, where it did; a state that is lost was told of when it was found.
    fn tell_stop(&self) {
        let (trainer, wishes) = (&*self.trainer, &self.wishes);
        let is_telling = trainer.placement().is_chief() && !wishes.is_lost;
        if let Some(why) = wishes.stop.as_ref().filter(|_| is_telling) {
            let (done, all) = (trainer.progress.position.epoch, self.place.epochs);
            trainer.engine().notice(&format!(
                "note: the training ends after {done} of {all} epochs: {why}"
            ));
        }
    }
}

/// What stands in the place of the variables of the last step.
#[derive(Default)]
pub(super) struct ReplacedVariables {
    /// The variables after the last step, where the end of a `fit` has replaced them and nothing has changed them since.
    pub(super) last: Option<NamedTensors>,
    /// Whether moving averages are in the place of the variables, and these in theirs.
    uses_averages: bool,
}

impl Trainer {
    /// Runs what may exchange the variables and their moving averages; where it fails, they are as they were.
    pub(super) fn keeping_variables<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let has_averages = self.replaced.uses_averages;
        run(self).inspect_err(|_| self.put_back(has_averages))
    }

    /// After a failure: the averages in the place of the variables, or the variables themselves, as they were before.
    pub(super) fn put_back(&mut self, has_averages: bool) {
        // That this fails too tells nobody more.
        let _ = self.replaced.use_averages(&mut self.compiled, has_averages);
    }
}

impl ReplacedVariables {
    /// Whether moving averages are in the place of the variables.
    pub(super) const fn uses_averages(&self) -> bool {
        self.uses_averages
    }

    /// The moving averages in the place of the variables, or the variables themselves, whichever are there now.
    pub(super) fn variables_of(
        &self,
        model: &CompiledModel,
        are_averages: bool,
    ) -> Result<NamedTensors> {
        let mut variables = model.variables()?;
        if self.uses_averages != are_averages {
            for (variable, slot) in model.setup.state.moving_averages() {
                let (_, value) = &mut variables[variable];
                *value = model.state.get(slot, value.shape())?;
            }
        }
        Ok(variables)
    }

    /// Exchanges the variables and their moving averages, where they are not as asked.
    pub(super) fn use_averages(&mut self, model: &mut CompiledModel, are_used: bool) -> Result<()> {
        if self.uses_averages == are_used {
            return Ok(());
        }
        let averages = model.setup.state.moving_averages();
        if averages.is_empty() {
            return Err(Error::user(
                "swap_ema_weights needs an optimizer that averages the variables; add `ema` to it",
            ));
        }
        let mut exchanged = Vec::with_capacity(2 * averages.len());
        for (variable, slot) in averages {
            let shape = &model.setup.model.variables()[variable].shape;
            exchanged.push((slot, model.state.get(variable, shape)?));
            exchanged.push((variable, model.state.get(slot, shape)?));
        }
        model.state.set(&by_position(&exchanged))?;
        self.uses_averages = are_used;
        Ok(())
    }

    /// Puts back the variables of the last step, if `fit` has replaced them at its end and nothing has changed them since.
    pub(super) fn put_back(&mut self, model: &mut CompiledModel) -> Result<()> {
        match self.last.take() {
            Some(last) => model.set_variables(&last),
            None => Ok(()),
        }
    }

    /// Gives copies of variables and slots the values of the last step, from which a training can go on.
    pub(super) fn undo_in(
        &self,
        setup: &Setup,
        variables: &mut NamedTensors,
        slots: &mut NamedTensors,
    ) {
        if let Some(last) = &self.last {
            variables.clone_from(last);
        }
        if self.uses_averages {
            let count = variables.len();
            for (variable, slot) in setup.state.moving_averages() {
                std::mem::swap(&mut variables[variable].1, &mut slots[slot - count].1);
            }
        }
    }
}

/// Replaces the variables by the optimizer's moving averages, as Keras does at the end of `fit`; returns whether there
/// are any, which takes a step that counts.
fn take_averages(model: &mut CompiledModel) -> Result<bool> {
    let averages = model.setup.state.moving_averages();
    let are_there = !averages.is_empty() && model.state.iterations()? > 0;
    if !are_there {
        return Ok(false);
    }
    let mut taken = Vec::with_capacity(averages.len());
    for (variable, slot) in averages {
        let shape = &model.setup.model.variables()[variable].shape;
        taken.push((variable, model.state.get(slot, shape)?));
    }
    model.state.set(&by_position(&taken))?;
    Ok(are_there)
}

fn by_position(values: &[(usize, HostTensor)]) -> Vec<(usize, &HostTensor)> {
    values
        .iter()
        .map(|(index, value)| (*index, value))
        .collect()
}

/// The first tensor that is infinite or not a number, among the batch of each process where it is still there, the variables and the slots.
pub(super) fn first_bad_tensor(model: &CompiledModel, batch: Option<&Batch>) -> Result<String> {
    let unseen = match batch {
        Some(_) => "",
        None => "its data were no longer there to be looked at; ",
    };
    let own = batch.and_then(bad_of_batch).unwrap_or_default();
    if let Some(world) = model.placement.world() {
        let all = world.all_gather(own.as_bytes())?;
        if let Some(rank) = all.iter().position(|text| !text.is_empty()) {
            let text = String::from_utf8_lossy(&all[rank]);
            return Ok(format!("{text} on worker {rank}"));
        }
    } else if !own.is_empty() {
        return Ok(own);
    }
    for (index, (name, shape)) in model.setup.state.arrays().into_iter().enumerate() {
        if !is_finite(&model.state.get(index, &shape)?) {
            return Ok(format!(
                "{unseen}the first of the state that is, is `{name}`"
            ));
        }
    }
    Ok(match batch {
        Some(_) => {
            "its data and the state are numbers, so it overflowed within the step".to_owned()
        }
        None => format!("{unseen}the state has numbers alone"),
    })
}

/// The first tensor of a batch that is not finite, and its first example.
fn bad_of_batch(batch: &Batch) -> Option<String> {
    let of = |what: &'static str, tensors: &[HostTensor]| {
        let found = tensors
            .iter()
            .enumerate()
            .find(|(_, value)| !is_finite(value));
        found.map(|(index, value)| {
            let values = value.to_f64();
            let place = values.iter().position(|x| !x.is_finite()).unwrap_or(0);
            let row = place / (values.len() / value.rows().max(1)).max(1);
            let example = batch.first + row as u64;
            format!(
                "{what} {index} of its batch has {} in example {example}",
                values[place]
            )
        })
    };
    let weight: Vec<HostTensor> = batch.weight.iter().cloned().collect();
    let targets = || of("target", &batch.y).or_else(|| of("weight", &weight));
    of("input", &batch.x).or_else(targets)
}
