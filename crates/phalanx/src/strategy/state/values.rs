//! Values of a state, read and set by handles.

use std::path::Path;

use phalanx_graph::HostTensor;

use super::{
    MetricRef, ModelRef, OptimizerRef, State, StateArray, StateId, ValueKind, ValueRef, foreign,
};
use crate::fit::LossScale;
use crate::import::{self, LoadReport, LoadWeights};
use crate::optim::Optimizer;
use crate::saved::SavedModel;
use crate::strategy::all_workers::{of_all_replicas, of_first_worker};
use crate::strategy::per_replica::{Reduce, reduced};
use crate::{Error, Result};

/// Reading and setting, by handles.
impl State {
    /// Names and values of a model's variables, in its order.
    ///
    /// # Errors
    /// When the model is of another state, or the device fails.
    pub fn variables(&self, model: &ModelRef) -> Result<Vec<(String, HostTensor)>> {
        self.check_state_id(&model.state_id, &format!("model `{}`", model.name))?;
        let variables = model.model.variables().iter().enumerate();
        variables
            .map(|(index, variable)| Ok((variable.name.clone(), self.read(model.first + index)?)))
            .collect()
    }

    /// Sets variables of a model by name; the others stay.
    ///
    /// # Errors
    /// When the model is of another state, has no variable of a name, or one of another shape; nothing is set then.
    pub fn set_variables(
        &mut self,
        model: &ModelRef,
        values: &[(impl AsRef<str>, HostTensor)],
    ) -> Result<()> {
        self.check_state_id(&model.state_id, &format!("model `{}`", model.name))?;
        let variables = model.model.variables();
        let place = |name: &str| {
            let index = variables.iter().position(|variable| variable.name == name);
            index.map(|index| model.first + index).ok_or_else(|| {
                let known = variables.iter().map(|variable| variable.name.as_str());
                let suggestion = crate::config::suggest(name, known);
                let of = &model.name;
                Error::user(format!(
                    "model `{of}` has no variable `{name}`; {suggestion}"
                ))
            })
        };
        let mut placed = Vec::with_capacity(values.len());
        for (name, value) in values {
            let entry = place(name.as_ref())?;
            self.check_shape(entry, value)?;
            placed.push((entry, value));
        }
        self.write_all(placed)
    }

    /// Takes values of a model from a file of weights of ours, of Keras or of PyTorch, as
    /// [`Trainer::load_weights`](crate::fit::Trainer::load_weights) does; the optimizer's state stays as it is. Of several processes
    /// all read the file.
    ///
    /// # Errors
    /// As for [`set_variables`](Self::set_variables), or when the file cannot be read, or a variable finds no value of its shape in it and
    /// `skip_mismatch` is not set; nothing is changed then.
    pub fn load_weights(
        &mut self,
        model: &ModelRef,
        path: impl AsRef<Path>,
        options: LoadWeights,
    ) -> Result<LoadReport> {
        let (values, report) = import::load(&model.model, path.as_ref(), options)?;
        let variables = model.model.variables();
        let named = values.into_iter();
        let named = named.map(|(index, value)| (variables[index].name.as_str(), value));
        self.set_variables(model, &named.collect::<Vec<_>>())?;
        Ok(report)
    }

    /// A model with its present values, apart from the devices: a plain one, whatever the strategy.
    ///
    /// # Errors
    /// As for [`variables`](Self::variables).
    pub fn saved_model(&self, model: &ModelRef) -> Result<SavedModel> {
        let values = self.variables(model)?.into_iter().map(|(_, value)| value);
        SavedModel::new((*model.model).clone(), values.collect())
    }

    /// Writes a model and its present values to a directory, as [`SavedModel::save`] does. Of several processes the first writes, and
    /// the others wait for it.
    ///
    /// # Errors
    /// As for [`variables`](Self::variables) and [`SavedModel::save`].
    pub fn save(&self, model: &ModelRef, path: impl AsRef<Path>) -> Result<()> {
        let saved = self.saved_model(model)?;
        let Some(world) = self.strategy.world() else {
            return saved.save(path);
        };
        if world.is_chief() {
            self.strategy.placement.or_fail_together(saved.save(path))?;
        }
        world.barrier()
    }

    /// The result of a metric over all batches since it was added or [reset](Self::reset), of all replicas.
    ///
    /// # Errors
    /// When the metric is of another state, or the device fails.
    pub fn result(&self, metric: &MetricRef) -> Result<f64> {
        self.check_state_id(
            &metric.state_id,
            &format!("metric `{}`", metric.metric.name()),
        )?;
        let count = metric.metric.state().len();
        let entries = metric.first..metric.first + count;
        let state: Vec<HostTensor> = entries.map(|e| self.read(e)).collect::<Result<_>>()?;
        Ok(metric.metric.result(&state))
    }

    /// Sets the counts of a metric to zero.
    ///
    /// # Errors
    /// As for [`result`](Self::result).
    pub fn reset(&mut self, metric: &MetricRef) -> Result<()> {
        self.check_state_id(
            &metric.state_id,
            &format!("metric `{}`", metric.metric.name()),
        )?;
        for entry in metric.first..metric.first + metric.metric.state().len() {
            let zeros = HostTensor::zeros(self.entries[entry].shape.clone());
            self.write(entry, &zeros)?;
        }
        Ok(())
    }

    /// A value of your own; a sum or mean is over all replicas.
    ///
    /// # Errors
    /// When it is of another state, or the device fails.
    pub fn value(&self, value: &ValueRef) -> Result<HostTensor> {
        self.check_state_id(&value.state_id, "a value")?;
        self.read(value.entry)
    }

    /// Sets a value of your own; of a sum the first replica has all.
    ///
    /// # Errors
    /// When it is of another state or shape, or the device fails.
    pub fn set_value(&mut self, value: &ValueRef, to: &HostTensor) -> Result<()> {
        self.check_state_id(&value.state_id, "a value")?;
        self.check_shape(value.entry, to)?;
        self.write(value.entry, to)
    }

    /// Batches that an optimizer has seen.
    ///
    /// # Errors
    /// When it is of another state, or the device fails.
    pub fn iterations(&self, optimizer: &OptimizerRef) -> Result<i64> {
        self.check_state_id(&optimizer.state_id, "an optimizer")?;
        let count = self.read(optimizer.first)?.values::<i64>();
        Ok(count.map_or(0, |count| count[0]))
    }

    /// The present scale of an optimizer with a [`LossScale`] that skips steps, 1 of one that does not scale, and how many it has
    /// skipped; `None` of another.
    ///
    /// # Errors
    /// When it is of another state, or the device fails.
    pub fn loss_scale(&self, optimizer: &OptimizerRef) -> Result<Option<(f64, u64)>> {
        self.check_state_id(&optimizer.state_id, "an optimizer")?;
        let number = |entry| Ok::<f64, Error>(self.read(entry)?.to_f64()[0]);
        let Some(skipped) = optimizer.scale_entries().last() else {
            return Ok(None);
        };
        let scale = match optimizer.loss_scale {
            Some(LossScale::Dynamic { .. }) => number(optimizer.scale_entries().start)?,
            _ => 1.0,
        };
        Ok(Some((scale, number(skipped)? as u64)))
    }

    /// Changes the learning rate of the steps to come.
    ///
    /// # Errors
    /// When the optimizer is of another state or follows a schedule, or the rate is negative or not a number.
    pub fn set_learning_rate(&mut self, optimizer: &OptimizerRef, rate: f64) -> Result<()> {
        self.check_state_id(&optimizer.state_id, "an optimizer")?;
        let slots = optimizer.optimizer.slots(&optimizer.specs());
        let slot = slots
            .iter()
            .position(|slot| slot.param.is_none() && slot.name == Optimizer::LEARNING_RATE);
        let Some(slot) = slot else {
            return Err(Error::user(
                "the learning rate follows a schedule and cannot be set; give the optimizer a constant rate instead",
            ));
        };
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::user(format!(
                "the learning rate must be a number of at least 0, got {rate}"
            )));
        }
        self.write(optimizer.first + 1 + slot, &HostTensor::scalar(rate as f32))
    }

    /// Replaces the variables that an optimizer trains by the moving averages that it keeps of them ([`Optimizer::ema`]), for the end of a
    /// loop: Keras' `finalize_variable_values`. `fit` does so by itself. Nothing changes before a step has counted, and a variable that had no
    /// gradient in the last step stays as it was then: Keras would put averages of earlier values there.
    ///
    /// # Errors
    /// When it is of another state or keeps no averages, or the device fails.
    pub fn take_averages(&mut self, optimizer: &OptimizerRef) -> Result<()> {
        self.check_state_id(&optimizer.state_id, "an optimizer")?;
        let slots = optimizer.optimizer.average_slots(&optimizer.specs());
        if slots.is_empty() {
            let models = optimizer.models();
            return Err(Error::user(format!(
                "the optimizer of {models} keeps no averages; give it some by `Optimizer::ema`"
            )));
        }
        // Averages are of the values before, which may have been set since.
        if self.iterations(optimizer)? == 0 {
            return Ok(());
        }
        let averages = slots
            .iter()
            .map(|slot| self.read(optimizer.first + 1 + slot));
        let averages: Vec<HostTensor> = averages.collect::<Result<_>>()?;
        let entries = optimizer.params.iter().map(|(_, entry)| *entry);
        self.write_all(entries.zip(&averages))
    }

    /// Waits until all steps begun are done.
    ///
    /// # Errors
    /// When one of them failed.
    pub fn finish(&mut self) -> Result<()> {
        self.in_flight.finish(self.strategy.placement.engine())?;
        self.check_world()
    }

    /// An error where an exchange with another process has failed.
    fn check_world(&self) -> Result<()> {
        self.strategy.world().map_or(Ok(()), |world| world.check())
    }

    /// Refuses a handle of another state.
    pub(in crate::strategy) fn check_state_id(&self, state_id: &StateId, what: &str) -> Result<()> {
        if self.state_id.is(state_id) {
            return Ok(());
        }
        Err(Error::user(foreign(what, &self.strategy)))
    }

    fn check_shape(&self, entry: usize, value: &HostTensor) -> Result<()> {
        let StateArray { name, shape, .. } = &self.entries[entry];
        if value.shape() == shape {
            return Ok(());
        }
        let got = value.shape();
        Err(Error::user(format!("`{name}` is {shape}, got {got}")))
    }

    /// Sets entries; to servers they go at once, since each time the whole state does.
    fn write_all<'v>(
        &mut self,
        values: impl IntoIterator<Item = (usize, &'v HostTensor)>,
    ) -> Result<()> {
        let values = values.into_iter();
        let (shared, own): (Vec<_>, Vec<_>) =
            values.partition(|(entry, _)| self.shared_position(*entry).is_some());
        if !shared.is_empty() {
            self.write_shared(shared)?;
        }
        for (entry, value) in own {
            self.finish_exchanges()?;
            self.entries[entry].buffers = self.placed(value, self.entries[entry].kind)?;
        }
        Ok(())
    }

    fn write(&mut self, entry: usize, value: &HostTensor) -> Result<()> {
        self.write_all([(entry, value)])
    }

    /// The value of an entry, as its kind says; waits for the steps begun.
    pub(in crate::strategy) fn read(&self, entry: usize) -> Result<HostTensor> {
        if let Some(value) = self.read_shared(entry) {
            return value;
        }
        let StateArray { kind, shape, .. } = &self.entries[entry];
        let engine = self.strategy.placement.engine();
        let buffers = self.buffers(entry)?;
        let runs = self.in_flight.steps();
        let how = match kind {
            ValueKind::Replicated => {
                let placement = &self.strategy.placement;
                let engine = placement.parameter_engine();
                let value = engine.get_of(&buffers[0], shape, runs)?;
                return self.check_world().map(|()| value);
            }
            ValueKind::First => {
                let own = engine.get_of(&buffers[0], shape, runs)?;
                let world = self.strategy.world();
                return world.map_or(Ok(own.clone()), |world| of_first_worker(world, &own));
            }
            ValueKind::Sum => Reduce::Sum,
            ValueKind::Mean => Reduce::Mean,
        };
        let values = buffers.iter().map(|b| engine.get_of(b, shape, runs));
        let values: Vec<HostTensor> = values.collect::<Result<_>>()?;
        let values = of_all_replicas(&self.strategy, values)?;
        Ok(reduced(&values, how, None))
    }
}
