//! The arrays that training carries from step to step, on their devices, and the steps on them.

mod on_servers;
mod placed_arrays;
mod read_only;
mod replica_arrays;
mod runs;
mod window_sums;

use std::collections::HashMap;
use std::sync::Arc;

use phalanx_graph::{DType, HostTensor, Shape, Sharding};
use phalanx_pjrt::Buffer;

pub(super) use self::on_servers::BegunGradient;
use self::on_servers::layout_on_servers;
use self::replica_arrays::ReplicaArrays;
pub(super) use self::runs::RunOf;
use self::window_sums::WindowSums;
use super::agreement_with_servers::agree_on_model;
use super::pipeline::{BorrowedState, PipelineStep, StageId};
use super::setup::{Setup, StepLayout};
use super::step_cache::StepExecutable;
use crate::data::Facts;
use crate::engine::{Compiled, PendingRun};
use crate::optim::{SlotSpec, WindowPart};
use crate::replicas::{Placement, SAME_PROGRAM};
use crate::servers::PulledValues;
use crate::{Error, Result};

/// The arrays of a training in the order of [`StateSpec`](super::state_spec::StateSpec), and the epoch totals.
///
/// Each replica has a list of arrays. With a parameter device that device has the one list, and replicas get copies of what
/// they need.
///
/// Invariant: a step donates the arrays that it replaces. If it fails they are gone, and `arrays` stays empty.
pub(super) struct TrainState {
    placement: Placement,
    arrays: ReplicaArrays,
    /// So many arrays are the model's variables, which come first.
    variables: usize,
    /// Copies of the variables on the replicas, for tests and predictions with a parameter device.
    copies: Vec<Vec<Buffer>>,
    totals: Vec<Buffer>,
    seed: Vec<Buffer>,
    /// How each array is sharded over a mesh.
    shardings: Vec<Sharding>,
    /// The stage of each array.
    stage_of_array: Vec<StageId>,
    /// The arrays of which each replica has its own part of a sum; the others are equal on all.
    window: WindowSums,
    /// The values of parameter servers that `arrays` holds.
    pulled: Option<PulledValues>,
    /// Tells its runs from runs of others, in the order of runs that exchange values with other processes.
    id: Arc<()>,
}

impl TrainState {
    /// The state before the first step; without values the variables are initialized from the seed.
    pub(super) fn new(
        placement: &Placement,
        setup: &Setup,
        values: Option<Vec<HostTensor>>,
        seed: u64,
    ) -> Result<Self> {
        let is_given = values.is_some();
        let mut host = match values {
            Some(values) => {
                setup.model.check_values(&values)?;
                values
            }
            None if setup.tables.is_empty() => setup.model.init(seed)?,
            None => setup.model.init_without(&setup.tables, seed)?,
        };
        if let Some(world) = placement.world() {
            let variables = setup.model.variables().iter().enumerate();
            let facts: Facts = variables
                .map(|(at, variable)| {
                    let value = format!("`{}` {}", variable.name, variable.shape);
                    (format!("variable {at} of the model"), value)
                })
                .collect();
            world.during("compiles a model", || {
                world.agree_on(&facts, SAME_PROGRAM)?;
                world.broadcast(&mut host)
            })?;
        }
        let variables = host.len();
        let slots = first_slots(setup, &host, setup.tables.is_empty() || is_given);
        let slots = slots.chain([HostTensor::scalar(0i64)]);
        let mut state = Self {
            arrays: ReplicaArrays::default(),
            variables,
            copies: Vec::new(),
            totals: Vec::new(),
            seed: Vec::new(),
            pulled: None,
            placement: placement.clone(),
            shardings: setup.state.shardings(),
            stage_of_array: setup.stage_of_array(),
            window: WindowSums::at(setup.local_sums()),
            id: Arc::default(),
        };
        let Some(servers) = placement.servers() else {
            state.place_all(host.into_iter().chain(slots), seed)?;
            return Ok(state);
        };
        host.extend(slots);
        agree_on_model(servers, setup, seed)?;
        servers.create(layout_on_servers(setup, seed), &host)?;
        if is_given && !setup.tables.is_empty() && servers.begins_job() {
            servers.set_state(&host)?;
        }
        state.set_seed(seed)?;
        state.pull()?;
        Ok(state)
    }

    /// Sets all arrays, in the order of [`StateSpec::arrays`], and the seed; nothing is changed when the devices refuse.
    pub(super) fn replace(&mut self, values: &[HostTensor], seed: u64) -> Result<()> {
        let Some(servers) = self.placement.servers().cloned() else {
            return self.place_all(values.iter().cloned(), seed);
        };
        self.set_seed(seed)?;
        servers.set_state(values)?;
        self.take_values(&servers.values()?)
    }

    /// The same on devices. Slots are made when their turn comes and gone after it: each of a large table needs as much memory as the table.
    fn place_all(&mut self, values: impl Iterator<Item = HostTensor>, seed: u64) -> Result<()> {
        let mut arrays: Vec<Vec<Buffer>> = Vec::new();
        let mut sums = HashMap::new();
        for (index, value) in values.enumerate() {
            let placed = self.placed(index, &value)?;
            arrays.resize_with(placed.len(), Vec::new);
            for (list, array) in arrays.iter_mut().zip(placed) {
                list.push(array);
            }
            if self.window.positions.contains(&index) {
                sums.insert(index, value);
            }
        }
        self.set_seed(seed)?;
        self.window.set(|index| sums.remove(&index));
        *self.arrays = arrays;
        self.copies.clear();
        Ok(())
    }

    fn set_seed(&mut self, seed: u64) -> Result<()> {
        let key = [(seed >> 32) as u32, seed as u32];
        self.seed = self.placement.replicate(&HostTensor::new([2], &key))?;
        Ok(())
    }

    /// The seed of the random numbers of all steps.
    pub(super) fn seed(&self) -> Result<u64> {
        let shape = Shape::new(DType::U32, [2]);
        let key = self.placement.engine().get(&self.seed[0], &shape)?;
        let key = key.values::<u32>().unwrap_or_default();
        Ok(key
            .iter()
            .fold(0, |seed, &half| seed << 32 | u64::from(half)))
    }

    /// Rebuilds the slots after layers were frozen or unfrozen: slots of variables that are still trained stay, others
    /// start afresh.
    pub(super) fn rebuild_slots(&mut self, from: &Setup, to: &Setup) -> Result<()> {
        if self.placement.servers().is_some() {
            return Err(Error::user(
                "layers cannot be frozen or unfrozen once their variables are on parameter servers; do it before the model is compiled",
            ));
        }
        let variables = from.model.variables().len();
        self.arrays()?;
        let (shardings, stage_of_array) = (to.state.shardings(), to.stage_of_array());
        let mut made = Vec::new();
        for (index, slot) in to.state.slots.iter().enumerate() {
            let kept = from
                .state
                .slots
                .iter()
                .position(|old| old.name == slot.name);
            let averaged = to.state.moving_averages().into_iter();
            let averaged = averaged.filter(|&(_, average)| average == variables + index);
            let value = match (kept, averaged.map(|(variable, _)| variable).next()) {
                (Some(_), _) => None,
                (None, Some(variable)) => Some(self.get(variable, &slot.shape)?),
                (None, None) => Some(HostTensor::full(slot.shape.clone(), slot.fill)),
            };
            let value = value.map(|value| {
                let sharding = &shardings[variables + index];
                let StageId(stage) = stage_of_array[variables + index];
                self.placement.place_slot(&value, sharding, stage)
            });
            made.push((kept, value.transpose()?));
        }
        for arrays in self.arrays.iter_mut() {
            let mut old: Vec<Option<Buffer>> = arrays.drain(..).map(Some).collect();
            let mut take = |index: usize| old.get_mut(index).and_then(Option::take);
            arrays.extend((0..variables).filter_map(&mut take));
            for (kept, value) in &mut made {
                let new = value.as_mut().map(|value| value.remove(0));
                arrays.extend(new.or_else(|| take(variables + (*kept)?)));
            }
            arrays.extend(take(variables + from.state.slots.len()));
        }
        (self.shardings, self.stage_of_array) = (shardings, stage_of_array);
        self.window.rebuild(to.local_sums());
        Ok(())
    }

    /// The arrays of each replica, or why there are none.
    pub(super) fn arrays(&self) -> Result<&[Vec<Buffer>]> {
        if self.arrays.is_empty() {
            return Err(Error::Training(
                "the values of this trainer were lost in a step that failed; compile the model again, or load a saved one".into(),
            ));
        }
        Ok(&self.arrays)
    }

    /// Sets arrays by their positions, of all replicas.
    pub(super) fn set(&mut self, values: &[(usize, &HostTensor)]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        if let Some(servers) = self.placement.servers().cloned() {
            let mut state = servers.state()?.to_vec();
            for (index, value) in values {
                state[*index] = (*value).clone();
            }
            servers.set_state(&state)?;
            return self.pull();
        }
        self.arrays()?;
        self.copies.clear();
        for (index, value) in values {
            let placed = self.placed(*index, value)?;
            for (arrays, array) in self.arrays.iter_mut().zip(placed) {
                arrays[*index] = array;
            }
        }
        Ok(())
    }

    /// The number of batches that the devices have counted; waits for the steps begun.
    pub(super) fn iterations(&self) -> Result<i64> {
        if let Some(servers) = self.placement.servers() {
            return servers.iterations();
        }
        let last = self.arrays()?[0].len() - 1;
        Ok(self.get(last, &Shape::scalar(DType::I64))?.to_f64()[0] as i64)
    }

    /// Sets the epoch totals to zero.
    pub(super) fn reset_epoch_totals(&mut self, setup: &Setup) -> Result<()> {
        self.totals = self.zeros(setup)?;
        Ok(())
    }

    /// Restores epoch totals that were saved with a possibly different number of replicas.
    pub(super) fn place_epoch_totals(
        &self,
        setup: &Setup,
        totals_per_replica: &[Vec<f64>],
    ) -> Result<Vec<Buffer>> {
        let placement = &self.placement;
        let replicas = placement.local_replicas();
        if setup.shares_totals {
            let merged = setup.epoch_totals.merge_replicas(totals_per_replica);
            return self.place_same_totals(setup, &HostTensor::new([merged.len()], &merged));
        }
        let mut rows = totals_per_replica.to_vec();
        if rows.len() != replicas {
            rows = vec![vec![0.0; setup.epoch_totals.len]; replicas];
            rows[0] = setup.epoch_totals.merge_replicas(totals_per_replica);
        }
        let rows = rows.iter().map(|row| HostTensor::new([row.len()], row));
        let rows: Vec<HostTensor> = rows.collect();
        match replicas {
            1 => self.place_same_totals(setup, &rows[0]),
            _ => placement.scatter(&rows),
        }
    }

    /// Sets the epoch totals.
    pub(super) fn set_epoch_totals(&mut self, totals_per_replica: Vec<Buffer>) {
        self.totals = totals_per_replica;
    }

    /// Epoch totals of zero for each replica.
    pub(super) fn zeros(&self, setup: &Setup) -> Result<Vec<Buffer>> {
        self.place_same_totals(setup, &HostTensor::zeros(setup.epoch_totals.shape()))
    }

    /// The same totals for each replica.
    fn place_same_totals(&self, setup: &Setup, totals: &HostTensor) -> Result<Vec<Buffer>> {
        let devices = self.placement.devices();
        match (&setup.layout, devices.last()) {
            (StepLayout::Pipelined(_), Some(&last)) => {
                Ok(vec![self.placement.engine().put(last, totals)?])
            }
            _ => self.placement.replicate(totals),
        }
    }

    /// The epoch totals over all replicas; waits for the steps begun.
    pub(super) fn read_epoch_totals(&self, setup: &Setup) -> Result<Vec<f64>> {
        Ok(setup
            .epoch_totals
            .merge_replicas(&self.totals_per_replica(setup)?))
    }

    /// Totals of a test of each replica of each process, merged.
    pub(super) fn merge_replicas(
        &self,
        setup: &Setup,
        totals_per_replica: &[Buffer],
    ) -> Result<Vec<f64>> {
        let own = self.read_totals_per_replica(setup, totals_per_replica)?;
        let all = match self.placement.world() {
            Some(world) => world.all_gather_rows(&own)?,
            None => own,
        };
        Ok(setup.epoch_totals.merge_replicas(&all))
    }

    /// The epoch totals of each replica; waits for the steps begun. Where several processes train each has the sums of all, so that none
    /// are lost with a process: there is one row.
    pub(super) fn totals_per_replica(&self, setup: &Setup) -> Result<Vec<Vec<f64>>> {
        let rows = match setup.shares_totals {
            true => 1,
            false => self.totals.len(),
        };
        self.read_totals_per_replica(setup, &self.totals[..rows.min(self.totals.len())])
    }

    fn read_totals_per_replica(
        &self,
        setup: &Setup,
        totals_per_replica: &[Buffer],
    ) -> Result<Vec<Vec<f64>>> {
        let engine = self.placement.engine();
        let read = |totals| Ok(engine.get(totals, &setup.epoch_totals.shape())?.to_f64());
        // Every device of a mesh has the sums of the one replica.
        let own = totals_per_replica
            .iter()
            .take(self.placement.local_replicas());
        own.map(read).collect()
    }

    /// Begins training steps that are one program, after this number of batches; the arrays of their batches are a list for each replica.
    pub(super) fn train(
        &mut self,
        setup: &Setup,
        step: &StepExecutable,
        batch: &[Vec<Buffer>],
        counted: i64,
    ) -> Result<Arc<PendingRun>> {
        self.arrays()?;
        self.copies.clear();
        let trained = match step {
            StepExecutable::InPlace { compiled, changed } => {
                let part = setup.window().part(counted);
                let keeps = self.leave_begin(counted) && part == WindowPart::Inner;
                self.stepped(part);
                self.train_in_place(compiled, changed, batch, keeps)
            }
            StepExecutable::ParameterDevice {
                compiled,
                apply,
                sent,
                changed,
            } => self
                .begin_on_replicas(setup, compiled, sent, batch)
                .and_then(|(received, done)| {
                    self.apply_on_parameter_device(apply, changed, &received)?;
                    Ok(done)
                }),
            StepExecutable::Pipelined(step) => {
                self.train_pipelined(setup, step, batch).map(Arc::new)
            }
            StepExecutable::ReadOnly { .. } => Err(Error::Bug("a step that does not train".into())),
            StepExecutable::Servers { .. } => Err(Error::Bug("a step of servers".into())),
        };
        if trained.is_err() {
            self.arrays.clear();
        }
        trained
    }

    fn train_in_place(
        &mut self,
        compiled: &Compiled,
        changed: &[usize],
        batch: &[Vec<Buffer>],
        keeps: bool,
    ) -> Result<Arc<PendingRun>> {
        let lists = self.training_arguments(&self.arrays, &self.totals, batch);
        let (outputs, done) = self.run(compiled, &lists, RunOf::Training)?;
        let totals = std::mem::take(&mut self.totals);
        let mut replaced = Vec::new();
        for (arrays, outputs) in self.arrays.iter_mut().zip(outputs) {
            let mut outputs = outputs.into_iter();
            let old = changed.iter().zip(outputs.by_ref());
            let old =
                old.map(|(&index, output)| (index, std::mem::replace(&mut arrays[index], output)));
            let is_kept =
                |(index, _): &(usize, Buffer)| keeps && !self.window.positions.contains(index);
            replaced.push(old.filter(is_kept).collect());
            self.totals.extend(outputs);
        }
        if keeps {
            self.keep_begin(replaced, totals);
        }
        Ok(done)
    }

    /// Copies the variables to the replicas, begins their step, and brings what it sends to the parameter device.
    fn begin_on_replicas(
        &mut self,
        setup: &Setup,
        compiled: &Compiled,
        sent: &[Shape],
        batch: &[Vec<Buffer>],
    ) -> Result<(Vec<Buffer>, Arc<PendingRun>)> {
        let copies = self.copied(&setup.state.arrays_for_replicas())?;
        let lists = self.training_arguments(&copies, &self.totals, batch);
        let (mut outputs, done) = self.run(compiled, &lists, RunOf::Training)?;
        self.totals = outputs.iter_mut().filter_map(Vec::pop).collect();
        // Gradients are reduced, so any replica has them.
        let received = self.placement.to_parameters(&outputs[0], sent)?;
        Ok((received, done))
    }

    fn apply_on_parameter_device(
        &mut self,
        apply: &Compiled,
        changed: &[usize],
        received: &[Buffer],
    ) -> Result<()> {
        let arguments: Vec<&Buffer> = self.arrays[0].iter().chain(received).collect();
        let (applied, _) = apply.run(&[&arguments])?;
        for (&index, output) in changed.iter().zip(applied.into_iter().flatten()) {
            self.arrays[0][index] = output;
        }
        Ok(())
    }

    /// The arrays of each replica.
    pub(super) fn lists(&self) -> Result<Vec<Vec<&Buffer>>> {
        Ok((self.arrays()?.iter())
            .map(|arrays| arrays.iter().collect())
            .collect())
    }

    /// A copy of the whole state for each replica, with a parameter device.
    pub(super) fn copies_of_all(&self, setup: &Setup) -> Result<Option<Vec<Vec<Buffer>>>> {
        if self.placement.parameter_device().is_none() {
            return Ok(None);
        }
        let shapes = setup.state.arrays().into_iter().map(|(_, shape)| shape);
        self.copied(&shapes.enumerate().collect::<Vec<_>>())
            .map(Some)
    }

    /// The arguments of a training step that is one program, on each replica.
    pub(super) fn arguments<'a>(
        &'a self,
        copies: Option<&'a [Vec<Buffer>]>,
        totals: &'a [Buffer],
        batch: &'a [Vec<Buffer>],
    ) -> Result<Vec<Vec<&'a Buffer>>> {
        let arrays = self.arrays()?;
        Ok(self.training_arguments(copies.unwrap_or(arrays), totals, batch))
    }

    /// Puts another array into the state of one replica.
    #[cfg(test)]
    pub(super) fn lead_astray(&mut self, replica: usize, index: usize, array: Buffer) {
        self.arrays[replica][index] = array;
    }

    /// Micro-batches go through the stages, and one update follows.
    fn train_pipelined(
        &mut self,
        setup: &Setup,
        step: &PipelineStep,
        batch: &[Vec<Buffer>],
    ) -> Result<PendingRun> {
        let outputs = BorrowedState {
            totals: self.totals.first(),
            seed: self.seed.first(),
            ..self.borrow(setup, self.arrays[0].len(), batch)?
        }
        .train(step)?;
        for (index, array) in outputs.arrays {
            self.arrays[0][index] = array;
        }
        self.totals = vec![outputs.totals];
        Ok(outputs.done)
    }

    /// The first `count` arrays, for a run of micro-batches.
    fn borrow<'a>(
        &'a self,
        setup: &'a Setup,
        count: usize,
        micro_batches: &'a [Vec<Buffer>],
    ) -> Result<BorrowedState<'a>> {
        let plan = setup.layout.stage_plan();
        Ok(BorrowedState {
            placement: &self.placement,
            plan: plan.ok_or_else(|| Error::Bug("stages without a plan".into()))?,
            stages: &self.stage_of_array,
            arrays: self.arrays()?[0][..count].iter().collect(),
            totals: None,
            seed: None,
            micro_batches,
        })
    }

    fn training_arguments<'a>(
        &'a self,
        arrays: &'a [Vec<Buffer>],
        totals: &'a [Buffer],
        batch: &'a [Vec<Buffer>],
    ) -> Vec<Vec<&'a Buffer>> {
        let replicas = arrays.iter().zip(totals).zip(&self.seed).zip(batch);
        replicas
            .map(|(((arrays, totals), seed), batch)| {
                arrays.iter().chain([totals, seed]).chain(batch).collect()
            })
            .collect()
    }

    /// Copies on each replica of some arrays of the parameter device, given by their positions.
    fn copied(&self, wanted: &[(usize, Shape)]) -> Result<Vec<Vec<Buffer>>> {
        let arrays = &self.arrays()?[0];
        let replica = |replica| {
            let wanted = wanted.iter();
            wanted
                .map(|(index, shape)| self.placement.to_replica(&arrays[*index], shape, replica))
                .collect()
        };
        (0..self.placement.local_replicas()).map(replica).collect()
    }
}

pub(super) fn slices<'a, 'b>(lists: &'a [Vec<&'b Buffer>]) -> Vec<&'a [&'b Buffer]> {
    lists.iter().map(Vec::as_slice).collect()
}

/// The slots before the first step; without values, of a table on parameter servers a number in their place.
fn first_slots<'a>(
    setup: &'a Setup,
    variables: &[HostTensor],
    has_values: bool,
) -> impl Iterator<Item = HostTensor> + use<'a> {
    let is_of_table = |slot: &SlotSpec| {
        let of = slot.param.map(|param| setup.state.trained[param]);
        setup.tables.iter().any(|table| Some(table.variable) == of)
    };
    // An average is the variable itself; the first step replaces it.
    let averages = setup.state.moving_averages().into_iter();
    let averages: HashMap<usize, HostTensor> = averages
        .map(|(variable, average)| (average - variables.len(), variables[variable].clone()))
        .collect();
    let slots = setup.state.slots.iter().enumerate();
    slots.map(move |(index, slot)| match averages.get(&index) {
        Some(variable) => variable.clone(),
        None if !has_values && is_of_table(slot) => HostTensor::zeros(Shape::f32([1])),
        None => HostTensor::full(slot.shape.clone(), slot.fill),
    })
}
