//! What a trainer was compiled to: the model, and everything that its programs are traced from.

use phalanx_graph::{DType, Graph};
use phalanx_ps::Partitioner;

use super::LossScale;
use super::batch_tensors::BatchTensors;
use super::compile::Compile;
use super::epoch_totals::EpochTotals;
use super::loss::Objective;
use super::pipeline::{StageId, StagePlan};
use super::state_spec::StateSpec;
use super::step::BatchShape;
use super::uneven_shares::Shares;
use crate::nn::{Model, Policy, Table};
use crate::optim::{Optimizer, ParamSpec, WindowPart};
use crate::replicas::{Layout, MeshLayout, Placement, Reduction};
use crate::servers::{HeldTable, StateLayout};
use crate::{Error, Result};

/// What a model is compiled to.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) model: Model,
    pub(super) objective: Objective,
    pub(super) optimizer: Optimizer,
    pub(super) loss_scale: LossScale,
    pub(super) precision: Policy,
    /// The arrays that a step takes and replaces.
    pub(super) state: StateSpec,
    pub(super) epoch_totals: EpochTotals,
    pub(super) layout: StepLayout,
    /// Replicas that train together, in all processes: the divisor of everything that each computes alike.
    pub(super) replicas: usize,
    /// The processes among which they are divided.
    pub(super) workers: usize,
    pub(super) reduction: Reduction,
    pub(super) shares: Shares,
    /// Tables whose rows alone travel between workers and parameter servers.
    pub(super) tables: Vec<Table>,
}

/// How the programs of a step use the devices: the [`Layout`] of the placement, with what the model adds to it.
#[derive(Clone)]
pub(super) enum StepLayout {
    /// One program; each replica updates its own copy of the variables.
    Replicated,
    /// A program of the replicas, and one that updates the variables on their own device.
    ParameterDevice,
    /// One program that XLA's partitioner divides over a mesh.
    Sharded(MeshLayout),
    /// A program for each stage, run once for each micro-batch.
    Pipelined(StagePlan),
    /// A program of this worker's replicas; what it computes is sent to parameter servers.
    Servers,
}

impl StepLayout {
    fn new(model: &Model, placement: &Placement) -> Result<Self> {
        Ok(match placement.layout() {
            Layout::Replicated if placement.servers().is_some() => Self::Servers,
            Layout::Replicated => Self::Replicated,
            Layout::ParameterDevice(_) => Self::ParameterDevice,
            Layout::Sharded(mesh) => Self::Sharded(mesh.clone()),
            Layout::Pipelined(stages) => {
                Self::Pipelined(StagePlan::new(model, placement.devices().len(), stages)?)
            }
        })
    }

    pub(super) const fn mesh(&self) -> Option<&MeshLayout> {
        match self {
            Self::Sharded(mesh) => Some(mesh),
            Self::Replicated | Self::ParameterDevice | Self::Pipelined(_) | Self::Servers => None,
        }
    }

    pub(super) const fn stage_plan(&self) -> Option<&StagePlan> {
        match self {
            Self::Pipelined(plan) => Some(plan),
            Self::Replicated | Self::ParameterDevice | Self::Sharded(_) | Self::Servers => None,
        }
    }
}

impl Setup {
    /// The setup of one or more replicas with equal shares, each with its own variables.
    pub(super) fn new(
        model: Model,
        compile: Compile,
        replicas: usize,
        reduction: Reduction,
    ) -> Result<Self> {
        compile.check(&model)?;
        let objective = Objective::new(&model, &compile);
        let loss_scale = compile.loss_scale.under(compile.precision);
        let optimizer = compile.optimizer.for_replicas(replicas);
        Ok(Self {
            epoch_totals: EpochTotals::new(&objective.losses, &objective.metrics),
            state: StateSpec::new(&model, &optimizer, loss_scale),
            precision: compile.precision,
            layout: StepLayout::Replicated,
            shares: Shares::Equal,
            objective,
            optimizer,
            loss_scale,
            model,
            replicas,
            workers: 1,
            reduction,
            tables: Vec::new(),
        })
    }

    /// The setup for the devices of a placement.
    pub(super) fn on(placement: &Placement, model: Model, compile: Compile) -> Result<Self> {
        let reduction = placement.reduction().clone();
        let mut setup = Self::new(model, compile, placement.replicas(), reduction)?;
        setup.optimizer = setup.optimizer.for_replicas(placement.planned_replicas());
        setup.workers = placement.workers();
        setup.layout = StepLayout::new(&setup.model, placement)?;
        setup.check_shardings()?;
        setup.check_servers()?;
        if let Some(servers) = placement.servers() {
            setup.tables = setup.tables_of(servers.table_bytes());
        }
        Ok(setup.with_shares(placement.has_shares()))
    }

    pub(super) fn require_loss(&self, doing: &str) -> Result<()> {
        if self.objective.losses.terms.is_empty() {
            return Err(Error::user(format!(
                "cannot {doing}: the model was compiled without a loss; set `loss` in Compile"
            )));
        }
        Ok(())
    }

    /// The setup after other layers of the model were frozen or unfrozen.
    pub(super) fn with_model(&self, model: Model) -> Self {
        let changed = Self {
            state: StateSpec::new(&model, &self.optimizer, self.loss_scale),
            model,
            ..self.clone()
        };
        changed.with_shares(self.shares != Shares::Equal)
    }

    /// The setup whose step is one program, with the variables on the devices that compute.
    pub(super) fn with_local_parameters(&self) -> Self {
        let layout = match &self.layout {
            StepLayout::ParameterDevice | StepLayout::Servers => StepLayout::Replicated,
            layout => layout.clone(),
        };
        Self {
            layout,
            ..self.clone()
        }
    }

    /// The setup of a single replica, which exchanges nothing with others.
    pub(super) fn for_single_replica(&self) -> Self {
        Self {
            replicas: 1,
            workers: 1,
            ..self.with_local_parameters()
        }
    }

    /// The batches of a window over which each replica adds its gradients by itself, before the sums are exchanged and the
    /// variables updated; `None` where every step exchanges what it has. See decision 39.
    pub(super) fn local_window(&self) -> Option<u64> {
        let is_replicated = matches!(self.layout, StepLayout::Replicated) && self.replicas > 1;
        let is_local = is_replicated && self.workers == 1 && !self.loss_scale.is_dynamic();
        let steps = self.optimizer.options().gradient_accumulation_steps;
        steps.filter(|_| is_local)
    }

    /// Which part of a window the step after this number of batches is.
    pub(super) fn window_part(&self, iterations: i64) -> WindowPart {
        let is_inner = |steps| !(iterations.unsigned_abs() + 1).is_multiple_of(steps);
        match self.local_window().is_some_and(is_inner) {
            true => WindowPart::Inner,
            false => self.last_part(),
        }
    }

    /// Which part of a window a step is that ends in an update.
    pub(super) fn last_part(&self) -> WindowPart {
        match self.local_window() {
            Some(_) => WindowPart::Last,
            None => WindowPart::Counted,
        }
    }

    /// The arrays of which each replica has its own part of a sum.
    pub(super) fn local_sums(&self) -> Vec<usize> {
        match self.local_window() {
            Some(_) => self.state.accumulated(),
            None => Vec::new(),
        }
    }

    /// The empty graph of a program.
    pub(super) fn graph(&self) -> Graph {
        match &self.layout {
            StepLayout::Sharded(layout) => Graph::with_mesh(&layout.mesh),
            _ => Graph::with_workers(self.workers, self.replicas / self.workers),
        }
    }

    /// A batch that trains or tests, as parameters of a graph.
    pub(super) fn bind_batch(&self, graph: &Graph, shape: &BatchShape) -> BatchTensors {
        let mut batch = BatchTensors::bind(graph, shape, self.layout.mesh());
        if let StepLayout::Pipelined(plan) = &self.layout {
            batch.micro_batches = plan.micro_batches;
        }
        batch
    }

    /// The stage of each array of the state; the first where there are no stages.
    pub(super) fn stage_of_array(&self) -> Vec<StageId> {
        match &self.layout {
            StepLayout::Pipelined(plan) => self.state.stages(plan),
            _ => vec![StageId(0); self.state.len()],
        }
    }

    /// Where the arrays of the state lie, of a partitioner and a number of servers.
    pub(super) fn layout_on_servers(
        &self,
        seed: u64,
    ) -> impl FnOnce(&Partitioner, usize) -> StateLayout + '_ {
        move |partitioner, servers| {
            let variables = self.model.variables().iter();
            let variables = variables.map(|v| (v.name.clone(), v.shape.clone()));
            StateLayout::new(
                variables.collect(),
                self.state.slots.clone(),
                self.state.trained.clone(),
                (&self.optimizer, self.replicas),
                (partitioner, servers),
                self.held_tables(seed),
            )
        }
    }

    /// The tables of at least this number of bytes of which a step needs some rows alone.
    fn tables_of(&self, bytes: usize) -> Vec<Table> {
        let is_by_rows = |table: &Table| {
            let variable = &self.model.variables()[table.variable];
            let spec = ParamSpec {
                name: variable.name.clone(),
                shape: variable.shape.clone(),
            };
            let rows = variable.initializer.rows([table.rows, table.width], 0, "");
            variable.shape.byte_len() >= bytes
                && variable.shape.dtype == DType::F32
                && rows.is_some()
                && self.optimizer.is_by_rows(&spec)
        };
        let mut tables = self.model.tables();
        tables.retain(is_by_rows);
        tables
    }

    /// The tables as servers get to know them, with first rows of this seed.
    fn held_tables(&self, seed: u64) -> Vec<(usize, HeldTable)> {
        let held = |table: &Table| {
            let variable = &self.model.variables()[table.variable];
            let param = self.state.trained.iter().position(|&v| v == table.variable);
            let slots = self.state.slots.iter();
            let own = slots.filter(|slot| param.is_some() && slot.param == param);
            let spec = ParamSpec {
                name: variable.name.clone(),
                shape: variable.shape.clone(),
            };
            let held = HeldTable {
                name: variable.name.clone(),
                rows: table.rows,
                width: table.width,
                initializer: variable.initializer,
                seed,
                decays: self.optimizer.options().decays(&spec),
                fills: own.map(|slot| slot.fill).collect(),
            };
            (table.variable, held)
        };
        self.tables.iter().map(held).collect()
    }

    /// The setup of programs for which the tables have as many rows as a batch can name.
    pub(super) fn for_rows(&self, rows: &[usize]) -> Self {
        let tables: Vec<(&Table, usize)> = self.tables.iter().zip(rows.iter().copied()).collect();
        self.with_model(self.model.with_table_rows(&tables))
    }

    /// Refuses what servers cannot do.
    fn check_servers(&self) -> Result<()> {
        if !matches!(self.layout, StepLayout::Servers) {
            return Ok(());
        }
        if self.loss_scale.is_dynamic() {
            return Err(Error::user(
                "a dynamic loss scale is for workers that step together, and parameter servers take pushes of workers that do not; use LossScale::Fixed, or Policy::MixedBfloat16",
            ));
        }
        Ok(())
    }

    /// Refuses variables that cannot be sharded as their layers say.
    fn check_shardings(&self) -> Result<()> {
        let Some(layout) = self.layout.mesh() else {
            return Ok(());
        };
        let variables = self.model.variables().iter().zip(self.state.shardings());
        for (variable, sharding) in variables {
            let checked = sharding.check(&variable.shape, &layout.mesh);
            checked.map_err(|message| {
                Error::user(format!("variable `{}`: {message}", variable.name))
            })?;
        }
        Ok(())
    }
}
