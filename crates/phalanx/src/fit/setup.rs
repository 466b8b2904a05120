//! What a trainer was compiled to: the model, and everything that its programs are traced from.

use phalanx_graph::Graph;

use super::LossScale;
use super::accumulation_window::AccumulationWindow;
use super::compile::Compile;
use super::custom_schedule::check_rates;
use super::epoch_totals::EpochTotals;
use super::loss::Objective;
use super::pipeline::{StageId, StagePlan};
use super::state_spec::StateSpec;
use super::tables::tables_by_rows;
use super::uneven_shares::Shares;
use crate::nn::{Model, Policy, Table};
use crate::optim::Optimizer;
use crate::replicas::{Layout, MeshLayout, Placement, Reduction};
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
    /// Whether each replica has the epoch totals of all, so that none are lost with a process, also where one process is left of several.
    pub(super) shares_totals: bool,
    pub(super) reduction: Reduction,
    pub(super) shares: Shares,
    /// Tables whose rows alone travel between workers and parameter servers.
    pub(super) tables: Vec<Table>,
    /// Training steps that are one program.
    pub(super) steps_per_execution: usize,
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

    /// Refuses a model or a loss scale that the layout cannot train.
    pub(super) fn check(&self, setup: &Setup) -> Result<()> {
        self.check_lengths(setup)?;
        match self {
            Self::Sharded(mesh) => check_shardings(setup, mesh),
            Self::Servers => setup.loss_scale.check_on_servers(),
            Self::Replicated | Self::ParameterDevice | Self::Pipelined(_) => Ok(()),
        }
    }

    /// Refuses examples of any length or size where the parts of a step are planned before the batch is known.
    fn check_lengths(&self, setup: &Setup) -> Result<()> {
        let Some(open) = setup.model.open_input() else {
            return Ok(());
        };
        let place = match self {
            Self::Replicated | Self::ParameterDevice => return Ok(()),
            Self::Sharded(_) => "on a mesh",
            Self::Pipelined(_) => "in stages",
            Self::Servers => "with parameter servers",
        };
        Err(Error::User(format!(
            "{open}, and {place} every batch must have the same; give the input fixed dims and pad or resize all batches to them, or train on one device or on replicas in one process"
        )))
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

/// Refuses several steps in one program where a step is more than one program, or is to be taken back alone.
fn check_execution(setup: &Setup, placement: &Placement) -> Result<()> {
    let steps = setup.steps_per_execution;
    let place = match &setup.layout {
        _ if steps == 1 => return Ok(()),
        StepLayout::Replicated if placement.world().is_none() => return Ok(()),
        StepLayout::Replicated => "in several processes, where a lost one costs a step",
        StepLayout::ParameterDevice => "with the variables on a device of their own",
        StepLayout::Sharded(_) => "on a mesh",
        StepLayout::Pipelined(_) => "in stages",
        StepLayout::Servers => "with parameter servers",
    };
    Err(Error::User(format!(
        "`steps_per_execution` is {steps}, and {place} each step is run by itself; leave it out, or train on one device or on replicas in one process"
    )))
}

/// Refuses variables that cannot be sharded as their layers say.
fn check_shardings(setup: &Setup, layout: &MeshLayout) -> Result<()> {
    let variables = setup.model.variables().iter().zip(setup.state.shardings());
    for (variable, sharding) in variables {
        let checked = sharding.check(&variable.shape, &layout.mesh);
        checked
            .map_err(|message| Error::user(format!("variable `{}`: {message}", variable.name)))?;
    }
    Ok(())
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
            shares_totals: false,
            reduction,
            tables: Vec::new(),
            steps_per_execution: compile.steps_per_execution,
        })
    }

    /// The setup for the devices of a placement.
    pub(super) fn on(placement: &Placement, model: Model, compile: Compile) -> Result<Self> {
        let reduction = placement.reduction().clone();
        let mut setup = Self::new(model, compile, placement.replicas(), reduction)?;
        setup.optimizer = setup.optimizer.for_replicas(placement.planned_replicas());
        check_rates(&setup.optimizer.learning_rate(), placement.engine())?;
        setup.workers = placement.workers();
        setup.shares_totals = placement.world().is_some();
        setup.layout = StepLayout::new(&setup.model, placement)?;
        setup.layout.check(&setup)?;
        check_execution(&setup, placement)?;
        if let Some(servers) = placement.servers() {
            setup.tables = tables_by_rows(
                &setup.model,
                &setup.optimizer,
                servers.exchange().table_bytes,
            );
        }
        Ok(setup.with_shares(placement.has_shares()))
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

    /// The batches over which each replica adds its gradients by itself.
    pub(super) fn window(&self) -> AccumulationWindow {
        AccumulationWindow::of(self)
    }

    /// The arrays of which each replica has its own part of a sum.
    pub(super) fn local_sums(&self) -> Vec<usize> {
        match self.window().steps() {
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

    /// The stage of each array of the state; the first where there are no stages.
    pub(super) fn stage_of_array(&self) -> Vec<StageId> {
        match &self.layout {
            StepLayout::Pipelined(plan) => self.state.stages(plan),
            _ => vec![StageId(0); self.state.len()],
        }
    }

    /// The setup of programs for which the tables have as many rows as a batch can name.
    pub(super) fn for_rows(&self, rows: &[usize]) -> Self {
        let tables: Vec<(&Table, usize)> = self.tables.iter().zip(rows.iter().copied()).collect();
        self.with_model(self.model.with_table_rows(&tables))
    }
}
