//! What the end of a `fit` leaves as variables, and what a later one goes on with.

use phalanx_graph::HostTensor;

use super::Trainer;
use super::checkpoint::is_finite;
use super::epoch_totals::EpochTotals;
use super::train_loop::FitRun;
use crate::Error;
use crate::Result;
use crate::checkpoint::TrainingState;
use crate::data::Batch;
use crate::metrics::Better;

impl FitRun<'_> {
    /// Replaces the variables by the averages, and by what callbacks set; `resume` goes on with the last step's.
    pub(super) fn take_results(mut self) -> Result<()> {
        self.trainer.use_averages(false)?;
        let last = self.trainer.variables()?;
        let is_averaged = self.trainer.take_averages()?;
        // As in Keras, callbacks have the last word.
        let is_restored = self.call_train_end()?;
        if !is_restored && !self.wishes.is_lost {
            self.trainer.check_finite(&last)?;
        }
        if is_restored || is_averaged {
            self.trainer.last_variables = Some(last);
        }
        self.trainer.writer.finish()?;
        let removed = std::mem::take(&mut self.wishes.removed);
        self.trainer.on_chief("removal", || {
            removed.iter().try_for_each(TrainingState::remove)
        })
    }
}

impl Trainer {
    /// Exchanges the variables and their moving averages, where they are not as asked.
    pub(super) fn use_averages(&mut self, are_used: bool) -> Result<()> {
        if self.uses_averages == are_used {
            return Ok(());
        }
        let averages = self.setup.state.moving_averages();
        if averages.is_empty() {
            return Err(Error::user(
                "swap_ema_weights needs an optimizer that averages the variables; add `ema` to it",
            ));
        }
        for (variable, slot) in averages {
            let shape = self.setup.model.variables()[variable].shape.clone();
            let values = [variable, slot].map(|index| self.state.get(index, &shape));
            let [value, average] = values;
            self.state.set(variable, &average?)?;
            self.state.set(slot, &value?)?;
        }
        self.uses_averages = are_used;
        Ok(())
    }

    /// The first step of the epoch, from 0 on, whose loss is infinite or not a number.
    pub(super) fn first_bad_step(&self) -> Result<Option<u64>> {
        let totals = self.state.read_epoch_totals(&self.setup)?;
        Ok(EpochTotals::first_non_finite(&totals))
    }

    /// The first tensor that is infinite or not a number, among the batch of each process, the variables and the slots.
    pub(super) fn first_bad_tensor(&self, batch: Option<&Batch>) -> Result<String> {
        let own = batch.and_then(bad_of_batch).unwrap_or_default();
        if let Some(world) = self.placement.world() {
            let all = world.all_gather(own.as_bytes())?;
            if let Some(rank) = all.iter().position(|text| !text.is_empty()) {
                let text = String::from_utf8_lossy(&all[rank]);
                return Ok(format!("{text} on worker {rank}"));
            }
        } else if !own.is_empty() {
            return Ok(own);
        }
        for (index, (name, shape)) in self.setup.state.arrays().into_iter().enumerate() {
            if !is_finite(&self.state.get(index, &shape)?) {
                return Ok(format!("the first of the state that is, is `{name}`"));
            }
        }
        Ok("its data and the state are numbers, so it overflowed within the step".to_owned())
    }

    /// Puts back the variables of the last step, if `fit` has replaced them at its end and nothing has changed them since.
    pub(super) fn put_back_last_variables(&mut self) -> Result<()> {
        match self.last_variables.take() {
            Some(last) => self.set_variables(&last),
            None => Ok(()),
        }
    }

    /// The logs of an epoch, and which values of each are better.
    pub(super) fn goals(&self) -> Vec<(String, Option<Better>)> {
        let logs = self.logs(&vec![0.0; self.setup.epoch_totals.len], 0.0);
        let metrics = &self.setup.objective.metrics;
        let better = |name: &str| {
            let metric = metrics.iter().find(|metric| metric.name == name);
            // The others are losses.
            metric.map_or(Some(Better::Lower), |metric| metric.metric.better())
        };
        let logs = logs.iter();
        logs.map(|(name, _)| (name.to_owned(), better(name)))
            .collect()
    }

    /// Replaces the variables by the optimizer's moving averages, as Keras does at the end of `fit`; returns whether it
    /// keeps any.
    fn take_averages(&mut self) -> Result<bool> {
        let averages = self.setup.state.moving_averages();
        let are_there = !averages.is_empty();
        for (variable, slot) in averages {
            let shape = &self.setup.model.variables()[variable].shape;
            let average = self.state.get(slot, shape)?;
            self.state.set(variable, &average)?;
        }
        Ok(are_there)
    }
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
