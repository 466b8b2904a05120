//! A model compiled for its devices: its setup, its values there, and the programs of its steps.

use phalanx_graph::HostTensor;

use super::compile::Compile;
use super::epoch_totals::EpochTotals;
use super::history::Logs;
use super::loss_scale::{FLOOR, LossScale};
use super::progress::short;
use super::setup::Setup;
use super::slow_workers::OwnTimes;
use super::step_cache::StepCache;
use super::step_times::{StepClock, StepPart};
use super::train_state::TrainState;
use super::verify::ReplicaVerifier;
use crate::checkpoint::{divergence_error_of, is_finite};
use crate::engine::Engine;
use crate::nn::Model;
use crate::optim::Optimizer;
use crate::replicas::Placement;
use crate::{Error, Result};

/// What a [`Trainer`](super::Trainer) runs its steps with. It knows neither epochs nor data nor callbacks.
pub(super) struct CompiledModel {
    pub(super) placement: Placement,
    pub(super) setup: Setup,
    pub(super) state: TrainState,
    pub(super) train: StepCache,
    pub(super) test: StepCache,
    pub(super) predict: StepCache,
    pub(super) verifier: Option<ReplicaVerifier>,
    /// Training batches seen: the host's copy of the count on the device, which leaves out skipped steps.
    pub(super) iterations: i64,
    /// Steps skipped before the epoch totals were last reset.
    pub(super) skipped_before: f64,
    /// Whether a callback looks for losses that are not numbers, which are errors otherwise.
    pub(super) watches_bad_steps: bool,
    pub(super) clock: StepClock,
    pub(super) own_times: OwnTimes,
}

impl CompiledModel {
    pub(super) fn new(
        placement: &Placement,
        model: Model,
        values: Option<Vec<HostTensor>>,
        compile: Compile,
    ) -> Result<Self> {
        let seed = compile.seed;
        let setup = Setup::on(placement, model, compile)?;
        Ok(Self {
            state: TrainState::new(placement, &setup, values, seed)?,
            placement: placement.clone(),
            setup,
            train: StepCache::default(),
            test: StepCache::default(),
            predict: StepCache::default(),
            verifier: None,
            iterations: 0,
            skipped_before: 0.0,
            watches_bad_steps: false,
            clock: StepClock::default(),
            own_times: OwnTimes::default(),
        })
    }

    pub(super) const fn engine(&self) -> &Engine {
        self.placement.engine()
    }

    /// The learning rate of the next step.
    pub(super) fn learning_rate(&self) -> Result<f64> {
        match self.scalar_slot(Optimizer::LEARNING_RATE)? {
            Some(rate) => Ok(rate),
            None => Ok(self
                .setup
                .optimizer
                .learning_rate()
                .value(self.iterations.unsigned_abs())),
        }
    }

    /// Changes the learning rate of the steps to come.
    pub(super) fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        let Some(slot) = self.scalar_slot_index(Optimizer::LEARNING_RATE) else {
            return Err(Error::user(
                "the learning rate follows a schedule and cannot be set; compile with a constant rate instead",
            ));
        };
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::user(format!(
                "the learning rate must be a number of at least 0, got {rate}"
            )));
        }
        let index = self.setup.model.variables().len() + slot;
        self.state.set(&[(index, &HostTensor::scalar(rate as f32))])
    }

    /// Whether the learning rate follows a schedule, and cannot be set.
    pub(super) fn follows_schedule(&self) -> bool {
        self.scalar_slot_index(Optimizer::LEARNING_RATE).is_none()
    }

    /// The value of a scalar slot, by its name: [`Optimizer::LEARNING_RATE`] or one of [`LossScale`].
    fn scalar_slot(&self, name: &str) -> Result<Option<f64>> {
        let Some(slot) = self.scalar_slot_index(name) else {
            return Ok(None);
        };
        let index = self.setup.model.variables().len() + slot;
        let value = self.state.get(index, &self.setup.state.slots[slot].shape)?;
        Ok(value.to_f64().first().copied())
    }

    /// The position of the slot of this name that belongs to no variable.
    fn scalar_slot_index(&self, name: &str) -> Option<usize> {
        let mut slots = self.setup.state.slots.iter();
        slots.position(|slot| slot.param.is_none() && slot.name == name)
    }

    pub(super) fn reset_epoch_totals(&mut self) -> Result<()> {
        self.state.reset_epoch_totals(&self.setup)?;
        self.skipped_before = self.skipped_steps()?;
        Ok(())
    }

    /// The results so far, the loss `none` where nothing has weight; an error when the loss of some step was not a number.
    pub(super) fn results(&mut self, none: f64) -> Result<Logs> {
        let totals = self.state.read_epoch_totals(&self.setup)?;
        self.iterations = self.state.iterations()?;
        // What was read has waited for the steps begun, and one whose exchange failed has changed nothing.
        if let Some(world) = self.placement.world() {
            world.check()?;
        }
        if let Some(step) = EpochTotals::first_non_finite(&totals)
            && !self.watches_bad_steps
        {
            return Err(self.divergence_error(step));
        }
        let none = if self.has_skipped()? { f64::NAN } else { none };
        let mut logs = self.setup.logs(&totals, none);
        for name in [LossScale::SCALE, LossScale::SKIPPED_STEPS] {
            if let Some(value) = self.scalar_slot(name)? {
                logs.push(name, value);
            }
        }
        Ok(logs)
    }

    /// Whether a step since the totals began counted an example, its loss a number or not.
    pub(super) fn has_trained(&self) -> Result<bool> {
        let (totals, epoch) = (
            self.state.read_epoch_totals(&self.setup)?,
            &self.setup.epoch_totals,
        );
        Ok(epoch.has_weight(&totals) || EpochTotals::first_non_finite(&totals).is_some())
    }

    /// Whether the loss scale has skipped a step since the totals began.
    pub(super) fn has_skipped(&self) -> Result<bool> {
        Ok(self.skipped_steps()? > self.skipped_before)
    }

    /// Steps that the loss scale has skipped since the training began.
    pub(super) fn skipped_steps(&self) -> Result<f64> {
        Ok(self.scalar_slot(LossScale::SKIPPED_STEPS)?.unwrap_or(0.0))
    }

    /// Batches that the device has trained on, those skipped for their gradients among them; waits for the steps begun.
    pub(super) fn counted_batches(&self) -> Result<i64> {
        let skipped = self.skipped_steps()?;
        Ok(self.state.iterations()? + skipped as i64)
    }

    pub(super) fn divergence_error(&self, step: u64) -> Error {
        let rate = self
            .learning_rate()
            .map_or(String::new(), |rate| format!(" (now {})", short(rate)));
        let scale = self.scalar_slot(LossScale::SCALE);
        if scale.is_ok_and(|scale| scale.is_some_and(|scale| scale <= FLOOR)) {
            return Error::Training(format!(
                "the loss or gradients of step {step} (counted from 0) are infinite or not numbers even with a loss scale of 1; try a lower learning rate{rate}, Policy::MixedBfloat16 or Policy::Float32, and check the data for values that are not numbers or too large for half precision"
            ));
        }
        let labels = match self.setup.objective.labels.is_empty() {
            true => "",
            false => ", such as labels that need more steps than there are",
        };
        Error::Training(format!(
            "the loss of step {step} (counted from 0) is infinite or not a number, and what was learned is lost with it; try a lower learning rate{rate} or gradient clipping (`clipnorm`), and check the data for values that are not numbers and targets outside the range of the loss{labels}"
        ))
    }

    /// Changes which layers are trainable: programs are traced again, and the slots of variables that stay trained are kept.
    pub(super) fn update_trainable<T>(
        &mut self,
        change: impl FnOnce(&mut Model) -> Result<T>,
    ) -> Result<T> {
        let mut model = self.setup.model.clone();
        let result = change(&mut model)?;
        let setup = self.setup.with_model(model);
        self.state.rebuild_slots(&self.setup, &setup)?;
        self.setup = setup;
        // Frozen layers have no penalties, in tests neither.
        self.train.clear();
        self.test.clear();
        self.verifier = None;
        Ok(result)
    }

    /// Programs for as many processes as there are now, and accumulated gradients where they belong in them.
    pub(super) fn fit_to_world(&mut self) -> Result<()> {
        let sums = self.state.whole_sums(&self.setup)?;
        if self.setup.workers != self.placement.workers() {
            self.setup.workers = self.placement.workers();
            self.setup.replicas = self.placement.replicas();
            self.setup.layout.check(&self.setup)?;
            self.train.clear();
            self.test.clear();
            self.predict.clear();
        }
        self.state.place_whole_sums(&self.setup, sums)
    }

    /// Goes back to the last step that all processes can go on from; returns the number of batches counted there.
    pub(super) fn rewind(&mut self) -> Result<i64> {
        self.state.rewind(&self.setup)?;
        self.iterations = self.state.iterations()?;
        self.counted_batches()
    }

    /// Exchanges what processes have accumulated of gradients, within a window of batches; no step is in flight.
    pub(super) fn exchange_sums(&mut self) -> Result<()> {
        if let Some(world) = self.placement.world() {
            world.check()?;
        }
        let before = self.clock.enter(StepPart::Exchange);
        self.state.exchange_sums(&self.setup)?;
        self.clock.enter(before);
        Ok(())
    }

    /// Names and values of the model's variables, in its order.
    pub(super) fn variables(&self) -> Result<Vec<(String, HostTensor)>> {
        let variables = self.setup.model.variables().iter().enumerate();
        variables
            .map(|(index, variable)| {
                let value = self.state.get(index, &variable.shape)?;
                Ok((variable.name.clone(), value))
            })
            .collect()
    }

    /// Sets variables by name; the others stay.
    pub(super) fn set_variables(&mut self, values: &[(impl AsRef<str>, HostTensor)]) -> Result<()> {
        self.state.arrays()?;
        let variables = self.setup.model.variables();
        let mut found = Vec::with_capacity(values.len());
        for (name, value) in values {
            let name = name.as_ref();
            let index = variables.iter().position(|variable| variable.name == name);
            let index = index.ok_or_else(|| {
                let known = variables.iter().map(|variable| variable.name.as_str());
                let suggestion = crate::config::suggest(name, known);
                Error::user(format!("the model has no variable `{name}`; {suggestion}"))
            })?;
            if *value.shape() != variables[index].shape {
                let (expected, got) = (&variables[index].shape, value.shape());
                return Err(Error::user(format!(
                    "variable `{name}` is {expected}, got {got}"
                )));
            }
            found.push((index, value));
        }
        self.state.set(&found)
    }

    /// Refuses variables that are not numbers: nobody wants to keep them, and the loss of a last update is never computed.
    pub(super) fn check_finite(&self, variables: &[(String, HostTensor)]) -> Result<()> {
        let found = variables.iter().find(|(_, value)| !is_finite(value));
        found.map_or(Ok(()), |(name, _)| {
            Err(divergence_error_of(name, self.iterations))
        })
    }

    /// The first step of the epoch, from 0 on, whose loss is infinite or not a number.
    pub(super) fn first_bad_step(&self) -> Result<Option<u64>> {
        let totals = self.state.read_epoch_totals(&self.setup)?;
        Ok(EpochTotals::first_non_finite(&totals))
    }
}
