//! What a custom training loop changes from step to step: variables of models, slots of optimizers, counts of metrics.

mod on_servers;
mod values;

use std::ops::Range;
use std::sync::Arc;

use phalanx_graph::{DType, HostTensor, Shape, Sharding};
use phalanx_pjrt::Buffer;

use self::on_servers::SharedEntries;
use super::all_workers::of_first_worker;
use super::handle::StrategyHandle;
use crate::engine::PendingRun;
use crate::fit::{InFlight, LossScale};
use crate::metrics::Metric;
use crate::nn::{IntoModel, Model};
use crate::optim::{Optimizer, ParamSpec, SlotSpec};
use crate::{Error, Result};

/// The values that a custom training loop changes, on the devices of a strategy: variables of models, slots of
/// optimizers, counts of metrics, and values of your own.
///
/// What is added gives a handle, by which functions and the host name it. A [`Function`](super::Function) takes the
/// state in and puts the new values out in its place; one state may hold several models, each with an optimizer.
pub struct State {
    pub(super) strategy: StrategyHandle,
    pub(super) entries: Vec<StateArray>,
    /// Tells handles of this state from handles of other states.
    pub(super) state_id: StateId,
    pub(super) seed: u64,
    /// How many models there are.
    models: u64,
    pub(super) in_flight: InFlight,
    /// The entries that parameter servers have, from the first optimizer on.
    shared: Option<SharedEntries>,
}

/// The identity of a state.
#[derive(Clone, Debug)]
pub(super) struct StateId(Arc<()>);

impl StateId {
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One array of the state.
pub(super) struct StateArray {
    /// The path in messages: `generator/dense/kernel`.
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) kind: ValueKind,
    /// One for each replica, or the one on the parameter device; empty once lost in a step that failed.
    pub(super) buffers: Vec<Buffer>,
}

/// How the values of the replicas relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// The same everywhere; a function that would set it to something else on each replica is refused.
    Replicated,
    /// Each replica has its own, and the value is their sum, as for counts.
    Sum,
    /// Each replica has its own, and the value is their mean.
    Mean,
    /// Each replica has its own, and the value is the one of the first replica.
    First,
}

/// A model whose variables are in a [`State`].
#[derive(Clone, Debug)]
pub struct ModelRef {
    pub(super) state_id: StateId,
    pub(super) name: Arc<str>,
    pub(super) model: Arc<Model>,
    /// The entry of its first variable.
    pub(super) first: usize,
}

/// An optimizer whose slots are in a [`State`].
#[derive(Clone, Debug)]
pub struct OptimizerRef {
    pub(super) state_id: StateId,
    pub(super) optimizer: Arc<Optimizer>,
    /// None where nothing was said of it.
    pub(super) loss_scale: Option<LossScale>,
    pub(super) models: Arc<[ModelRef]>,
    /// The variables it trains, and their entries.
    pub(super) params: Arc<[(ParamSpec, usize)]>,
    /// The entry of the number of batches seen; the entries of the slots follow, then the loss scale's.
    pub(super) first: usize,
}

/// A metric whose counts are in a [`State`].
#[derive(Clone, Debug)]
pub struct MetricRef {
    pub(super) state_id: StateId,
    pub(super) metric: Arc<Metric>,
    pub(super) first: usize,
}

/// A value of your own in a [`State`].
#[derive(Clone, Debug)]
pub struct ValueRef {
    pub(super) state_id: StateId,
    pub(super) entry: usize,
}

impl ModelRef {
    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The name in the state.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl OptimizerRef {
    /// Names of the models it trains, for messages.
    pub(super) fn models(&self) -> String {
        let names: Vec<String> = self
            .models
            .iter()
            .map(|m| format!("`{}`", m.name))
            .collect();
        names.join(", ")
    }

    /// What the loss scale carries from step to step.
    pub(super) fn scale_slots(&self) -> Vec<SlotSpec> {
        self.loss_scale.map_or_else(Vec::new, LossScale::slots)
    }

    /// The entries of [`scale_slots`](Self::scale_slots).
    pub(super) fn scale_entries(&self) -> Range<usize> {
        let first = self.first + 1 + self.optimizer.slots(&self.specs()).len();
        first..first + self.scale_slots().len()
    }

    pub(super) fn specs(&self) -> Vec<ParamSpec> {
        self.params.iter().map(|(spec, _)| spec.clone()).collect()
    }
}

/// The entries of the seed of random bits, `u32[2]`, and of the number of steps that drew some.
pub(super) const SEED: usize = 0;
pub(super) const DRAWS: usize = 1;

/// The seed of a model's first values: of the first model the state's.
const fn seed_of(state: u64, model: u64) -> u64 {
    state.wrapping_add(model.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Adding.
impl State {
    pub(super) fn new(strategy: StrategyHandle, seed: u64) -> Result<Self> {
        strategy.check_replicas()?;
        if let Some(world) = strategy.world() {
            world.agree("the seed of a state", &seed.to_string())?;
        }
        let mut state = Self {
            strategy,
            entries: Vec::new(),
            state_id: StateId(Arc::new(())),
            seed,
            models: 0,
            in_flight: InFlight::default(),
            shared: None,
        };
        let key = [(seed >> 32) as u32, seed as u32];
        let same = ValueKind::Replicated;
        state.add("seed".into(), &HostTensor::new([2], &key), same)?;
        state.add("draws".into(), &HostTensor::scalar(0i64), same)?;
        Ok(state)
    }

    /// Adds a model under a name, with a saved model's own values or first ones from the state's seed and the number of models before it:
    /// as in Keras, models of the same layers begin with values of their own. A copy, such as a target network, is added as what
    /// [`saved_model`](Self::saved_model) gives.
    ///
    /// # Errors
    /// When its layers do not fit together, the state has a model of this name, or the device has not the memory.
    pub fn add_model(&mut self, name: &str, model: impl IntoModel) -> Result<ModelRef> {
        self.check_not_shared("a model")?;
        let (model, values) = model.into_parts()?;
        let values = match values {
            Some(values) => {
                model.check_values(&values)?;
                values
            }
            None => model.init(seed_of(self.seed, self.models))?,
        };
        let prefix = format!("{name}/");
        if name.is_empty() || self.entries.iter().any(|e| e.name.starts_with(&prefix)) {
            return Err(Error::user(format!(
                "a model is to be added as `{name}`, but the state has one of this name, or it is empty; give each a name of its own"
            )));
        }
        let first = self.entries.len();
        for (variable, value) in model.variables().iter().zip(&values) {
            let name = format!("{name}/{}", variable.name);
            self.add_of_first(name, value, ValueKind::Replicated)?;
        }
        self.models += 1;
        Ok(ModelRef {
            state_id: self.state_id.clone(),
            name: name.into(),
            model: Arc::new(model),
            first,
        })
    }

    /// Adds an optimizer for the trainable variables of some models, which it clips together.
    ///
    /// # Errors
    /// When a setting makes no sense, there is no model, one is of another state, one is named twice, or none has a
    /// trainable variable.
    pub fn add_optimizer(
        &mut self,
        optimizer: impl Into<Optimizer>,
        models: &[&ModelRef],
    ) -> Result<OptimizerRef> {
        self.add_scaled(optimizer.into(), None, models)
    }

    /// As [`add_optimizer`](Self::add_optimizer), for a function that computes in half precision: gradients are taken of the
    /// loss times a scale and divided by it, and with a dynamic scale a step whose gradients are not all finite is skipped:
    /// [`ReplicaCx::apply`](super::ReplicaCx::apply) then changes neither variables nor slots nor the state of the models'
    /// layers, only the scale. `LossScale::Auto` is [`LossScale::DYNAMIC`] here.
    ///
    /// A loop does not end by itself when steps are skipped with a scale of 1: look at [`loss_scale`](Self::loss_scale).
    ///
    /// # Errors
    /// As for [`add_optimizer`](Self::add_optimizer), and for a scale that makes no sense.
    pub fn add_optimizer_with(
        &mut self,
        optimizer: impl Into<Optimizer>,
        loss_scale: LossScale,
        models: &[&ModelRef],
    ) -> Result<OptimizerRef> {
        let loss_scale = match loss_scale {
            LossScale::Auto => LossScale::DYNAMIC,
            chosen => chosen,
        };
        loss_scale.check()?;
        self.add_scaled(optimizer.into(), Some(loss_scale), models)
    }

    fn add_scaled(
        &mut self,
        optimizer: Optimizer,
        loss_scale: Option<LossScale>,
        models: &[&ModelRef],
    ) -> Result<OptimizerRef> {
        self.check_not_shared("an optimizer")?;
        self.check_scale(loss_scale)?;
        let optimizer = optimizer.for_replicas(self.strategy.replicas());
        optimizer.check()?;
        let kind = optimizer.kind();
        for (index, model) in models.iter().enumerate() {
            self.check_state_id(&model.state_id, &format!("model `{}`", model.name))?;
            if models[..index]
                .iter()
                .any(|other| other.first == model.first)
            {
                return Err(Error::user(format!(
                    "{kind} is to train model `{}` twice; name each model once",
                    model.name
                )));
            }
        }
        let params: Vec<(ParamSpec, usize)> = models.iter().flat_map(|m| trained(m)).collect();
        let handle = OptimizerRef {
            state_id: self.state_id.clone(),
            optimizer: Arc::new(optimizer),
            loss_scale,
            models: models.iter().map(|&model| model.clone()).collect(),
            params: params.into(),
            first: self.entries.len(),
        };
        if handle.params.is_empty() {
            let models = handle.models();
            return Err(Error::user(format!(
                "{kind} has nothing to train: the models ({models}) have no trainable variable; unfreeze a layer, or leave the optimizer out"
            )));
        }
        // A frozen variable may be named, too.
        let paths: Vec<String> = models.iter().flat_map(|model| paths(model)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        handle.optimizer.check_factors(&paths)?;
        self.add_slots(&handle)?;
        self.share(&handle)?;
        Ok(handle)
    }

    fn add_slots(&mut self, handle: &OptimizerRef) -> Result<()> {
        let (kind, same) = (handle.optimizer.kind(), ValueKind::Replicated);
        self.add(
            format!("{kind}/iterations"),
            &HostTensor::scalar(0i64),
            same,
        )?;
        let specs = handle.specs();
        let averages = handle.optimizer.average_slots(&specs);
        for (index, slot) in handle.optimizer.slots(&specs).iter().enumerate() {
            // An average of no steps is the variable; the optimizer lets the first step replace it.
            let value = match averages.iter().position(|&average| average == index) {
                Some(param) => self.read(handle.params[param].1)?,
                None => HostTensor::full(slot.shape.clone(), slot.fill),
            };
            self.add(format!("{kind}/{}", slot.name), &value, same)?;
        }
        for slot in handle.scale_slots() {
            let value = HostTensor::full(slot.shape, slot.fill);
            self.add(format!("{kind}/{}", slot.name), &value, same)?;
        }
        Ok(())
    }

    /// Adds a metric, whose counts each replica keeps for itself until [`result`](Self::result) adds them up.
    ///
    /// A metric that depends on the loss or the number of classes is to be [bound](Metric::bound) before.
    ///
    /// # Errors
    /// When a setting makes no sense, or the device has not the memory.
    pub fn add_metric(&mut self, metric: impl Into<Metric>) -> Result<MetricRef> {
        let metric = metric.into();
        metric.check()?;
        let first = self.entries.len();
        for spec in metric.state() {
            let name = format!("{}/{}", metric.name(), spec.name);
            let zeros = HostTensor::zeros(spec.shape.with_dtype(DType::F64));
            self.add(name, &zeros, ValueKind::Sum)?;
        }
        Ok(MetricRef {
            state_id: self.state_id.clone(),
            metric: Arc::new(metric),
            first,
        })
    }

    /// Adds a value of your own.
    ///
    /// # Errors
    /// For the mean of what are no floating-point numbers and the sum of truth values; when the device has not the
    /// memory.
    pub fn add_value(
        &mut self,
        name: &str,
        value: &HostTensor,
        kind: ValueKind,
    ) -> Result<ValueRef> {
        let dtype = value.dtype();
        let wrong = match kind {
            ValueKind::Mean => !dtype.is_float(),
            ValueKind::Sum => dtype == DType::Bool,
            ValueKind::Replicated | ValueKind::First => false,
        };
        if wrong {
            return Err(Error::user(format!(
                "value `{name}` is {} and cannot be a {kind:?} over replicas; use another element type, or ValueKind::First",
                value.shape()
            )));
        }
        self.check_added(name, kind)?;
        let entry = self.entries.len();
        self.add_of_first(name.to_owned(), value, kind)?;
        let state_id = self.state_id.clone();
        Ok(ValueRef { state_id, entry })
    }

    /// Adds an array with the value that the first of several processes has.
    fn add_of_first(&mut self, name: String, value: &HostTensor, kind: ValueKind) -> Result<()> {
        let Some(world) = self.strategy.world() else {
            return self.add(name, value, kind);
        };
        world.agree(
            "what is added to a state",
            &format!("`{name}` {}", value.shape()),
        )?;
        let first = of_first_worker(world, value)?;
        self.add(name, &first, kind)
    }

    fn add(&mut self, name: String, value: &HostTensor, kind: ValueKind) -> Result<()> {
        self.entries.push(StateArray {
            name,
            shape: value.shape().clone(),
            kind,
            buffers: self.placed(value, kind)?,
        });
        Ok(())
    }

    /// The value as each replica has it.
    pub(super) fn placed(&self, value: &HostTensor, kind: ValueKind) -> Result<Vec<Buffer>> {
        let placement = &self.strategy.placement;
        match kind {
            ValueKind::Replicated => {
                let whole = Sharding::replicated(value.dims().len());
                return placement.place_parameter(value, &whole, 0);
            }
            ValueKind::Mean | ValueKind::First => return placement.replicate(value),
            ValueKind::Sum => {}
        }
        let none = HostTensor::zeros(value.shape().clone());
        let of_first = if self.strategy.first_replica() == 0 {
            value
        } else {
            &none
        };
        let values = std::iter::once(of_first).chain(std::iter::repeat(&none));
        let devices = placement.devices().iter();
        let put = values.zip(devices);
        put.map(|(value, &device)| placement.engine().put(device, value))
            .collect()
    }
}

/// The paths of all variables of a model, below its name.
fn paths(model: &ModelRef) -> impl Iterator<Item = String> {
    let variables = model.model.variables().iter();
    variables.map(|variable| format!("{}/{}", model.name, variable.name))
}

fn trained(model: &ModelRef) -> impl Iterator<Item = (ParamSpec, usize)> {
    let variables = model.model.variables().iter().enumerate();
    let trained = variables.filter(|(_, variable)| variable.trainable);
    trained.map(|(index, variable)| {
        let mut spec = ParamSpec::of(variable);
        spec.name = format!("{}/{}", model.name, variable.name);
        (spec, model.first + index)
    })
}

/// In several processes.
impl State {
    /// Before a run that takes these entries: waits for runs of other states, or that it does not follow from.
    pub(super) fn begin_after_others(&self, taken: &[usize]) -> Result<()> {
        let Some(world) = self.strategy.world() else {
            return Ok(());
        };
        world.check()?;
        world.runs().before(&self.state_id.0, taken)
    }

    /// Waits for runs that may still exchange values: those that come after a change by the host do not follow from them.
    pub(super) fn finish_exchanges(&self) -> Result<()> {
        let world = self.strategy.world();
        world.map_or(Ok(()), |world| world.runs().finish())
    }
}

/// What functions do with a state.
impl State {
    /// The arrays of an entry, or why there are none.
    fn buffers(&self, entry: usize) -> Result<&[Buffer]> {
        let buffers = &self.entries[entry].buffers;
        if buffers.is_empty() {
            return Err(Error::Training(format!(
                "`{}` was lost in a step that failed; make the state again from a saved model",
                self.entries[entry].name
            )));
        }
        Ok(buffers)
    }

    /// Whether an entry is on the parameter device, from which replicas get copies.
    fn is_central(&self, entry: usize) -> bool {
        let central = self.strategy.placement.parameter_device().is_some();
        central && self.entries[entry].kind == ValueKind::Replicated
    }

    /// Copies for each replica of the entries among these that are on the parameter device.
    pub(super) fn copies(&self, entries: &[usize]) -> Result<Vec<Vec<Buffer>>> {
        let central = entries.iter().filter(|&&entry| self.is_central(entry));
        let copy = |&entry: &usize| {
            let (array, shape) = (&self.buffers(entry)?[0], &self.entries[entry].shape);
            let replicas = 0..self.strategy.replicas();
            let placement = &self.strategy.placement;
            replicas
                .map(|replica| placement.to_replica(array, shape, replica))
                .collect()
        };
        central.map(copy).collect()
    }

    /// The arrays of some entries on the device of a replica, some of which are `copies` of these entries.
    pub(super) fn on_replica<'a>(
        &'a self,
        entries: &[usize],
        copies: &'a [Vec<Buffer>],
        replica: usize,
    ) -> Result<Vec<&'a Buffer>> {
        let mut copies = copies.iter();
        let mut arrays = Vec::with_capacity(entries.len());
        for &entry in entries {
            let copy = if self.is_central(entry) {
                copies.next()
            } else {
                None
            };
            arrays.push(match copy {
                Some(copy) => &copy[replica],
                None => &self.buffers(entry)?[replica],
            });
        }
        Ok(arrays)
    }

    /// Takes the arrays of entries that a step is to replace; they are lost unless it does.
    pub(super) fn lose(&mut self, entries: &[usize]) {
        for &entry in entries {
            self.entries[entry].buffers.clear();
        }
    }

    /// Puts what a step gave, an array of each replica, in the place of an entry.
    pub(super) fn replace(&mut self, entry: usize, arrays: Vec<Buffer>) -> Result<()> {
        let shape = self.entries[entry].shape.clone();
        self.entries[entry].buffers = match self.is_central(entry) {
            true => self
                .strategy
                .placement
                .to_parameters(&arrays[..1], &[shape])?,
            false => arrays,
        };
        Ok(())
    }

    /// Notes a run, and the entries that it replaces.
    pub(super) fn began(&mut self, done: PendingRun, replaced: &[usize]) -> Result<()> {
        let (engine, done) = (self.strategy.placement.engine(), Arc::new(done));
        if let Some(world) = self.strategy.world() {
            let run = (&done, self.in_flight.steps() + 1);
            world.runs().begun(engine, run, &self.state_id.0, replaced);
        }
        self.in_flight.push(engine, done, 1)
    }
}

/// The message for a handle of another state.
pub(super) fn foreign(what: &str, strategy: &StrategyHandle) -> String {
    format!(
        "{what} belongs to another state than the one in use, which is of {strategy}; use the handle that `add_model`, `add_optimizer`, `add_metric` or `add_value` of this state gave"
    )
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "State of {} arrays of {}",
            self.entries.len(),
            self.strategy
        )
    }
}
