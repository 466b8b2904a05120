//! Which arrays training carries from step to step, in which order, and where each belongs.

use phalanx_graph::{DType, Graph, Shape, Sharding, Tensor};

use super::LossScale;
use super::pipeline::{StageId, StagePlan};
use crate::nn::{Model, Variable};
use crate::optim::{Optimizer, ParamSpec, SlotSpec};

/// The arrays of the state, in this order: the variables of the model, the slots of the optimizer, the slots of the
/// loss scale, and `iterations`, the number of batches seen without those that the loss scale skipped.
#[derive(Clone)]
pub(super) struct StateSpec {
    variables: Vec<Variable>,
    /// Positions of the trained variables among the model's variables.
    pub(super) trained: Vec<usize>,
    /// The trained variables as the optimizer sees them.
    pub(super) params: Vec<ParamSpec>,
    /// The slots of the optimizer, then the slots of the loss scale.
    pub(super) slots: Vec<SlotSpec>,
    /// The number of slots that belong to the optimizer.
    optimizer_slots: usize,
    /// Of each trained variable the slot of its moving average, where the optimizer keeps one.
    averages: Vec<usize>,
    /// Of each trained variable the slot of its accumulated gradient, where the optimizer keeps one.
    accumulated: Vec<usize>,
}

/// The state before a step, as symbols of a graph.
pub(super) struct StateView<'a> {
    pub(super) variables: &'a [Tensor],
    /// The slots of the optimizer.
    pub(super) slots: &'a [Tensor],
    /// The slots of the loss scale.
    pub(super) scale: &'a [Tensor],
    /// The position in the state of the first slot of the loss scale.
    pub(super) scale_at: usize,
    pub(super) iterations: &'a Tensor,
}

impl StateSpec {
    pub(super) fn new(model: &Model, optimizer: &Optimizer, loss_scale: LossScale) -> Self {
        let variables = model.variables().iter().enumerate();
        let trained = variables.filter(|(_, variable)| variable.trainable);
        let param = |(index, variable): (usize, &Variable)| (index, ParamSpec::of(variable));
        let (trained, params): (Vec<usize>, Vec<ParamSpec>) = trained.map(param).unzip();
        let mut slots = optimizer.slots(&params);
        let optimizer_slots = slots.len();
        slots.extend(loss_scale.slots());
        Self {
            variables: model.variables().to_vec(),
            averages: optimizer.average_slots(&params),
            accumulated: optimizer.accumulated_slots(&params),
            trained,
            params,
            slots,
            optimizer_slots,
        }
    }

    /// The number of arrays.
    pub(super) const fn len(&self) -> usize {
        self.variables.len() + self.slots.len() + 1
    }

    /// Names and shapes of the arrays.
    pub(super) fn arrays(&self) -> Vec<(String, Shape)> {
        let variables = self.variables.iter();
        let variables = variables.map(|variable| (variable.name.clone(), variable.shape.clone()));
        let slots = self.slots.iter();
        let slots = slots.map(|slot| (slot.name.clone(), slot.shape.clone()));
        let iterations = ("iterations".to_owned(), Shape::scalar(DType::I64));
        variables.chain(slots).chain([iterations]).collect()
    }

    /// Positions in the state of each averaged variable and of its moving average.
    pub(super) fn moving_averages(&self) -> Vec<(usize, usize)> {
        let first = self.variables.len();
        let slots = self.averages.iter().map(|slot| first + slot);
        self.trained.iter().copied().zip(slots).collect()
    }

    /// Positions in the state of the accumulated gradient of each trained variable.
    pub(super) fn accumulated(&self) -> Vec<usize> {
        let first = self.variables.len();
        self.accumulated.iter().map(|slot| first + slot).collect()
    }

    /// How each array is sharded over a mesh; slots are as their variables.
    pub(super) fn shardings(&self) -> Vec<Sharding> {
        let variables = &self.variables;
        let whole = |shape: &Shape| Sharding::replicated(shape.rank());
        let of_variable = |index: usize| {
            let variable = &variables[index];
            let sharding = variable.sharding.clone();
            sharding.unwrap_or_else(|| whole(&variable.shape))
        };
        let mut shardings: Vec<Sharding> = (0..variables.len()).map(of_variable).collect();
        for slot in &self.slots {
            let owner = slot.param.map(|param| self.trained[param]);
            let owner = owner.filter(|&index| variables[index].shape.dims == slot.shape.dims);
            shardings.push(owner.map_or_else(|| whole(&slot.shape), of_variable));
        }
        // The iterations.
        shardings.push(Sharding::replicated(0));
        shardings
    }

    /// The stage of each array: the stage of its layer, or the first where it belongs to no layer.
    pub(super) fn stages(&self, plan: &StagePlan) -> Vec<StageId> {
        let of_variable = |index: usize| {
            let stage = plan.stage_of_path(&self.variables[index].name);
            stage.unwrap_or(StageId(0))
        };
        let of_slot = |slot: &SlotSpec| {
            let owner = slot.param.map(|param| self.trained[param]);
            owner.map_or(StageId(0), of_variable)
        };
        let mut stages: Vec<StageId> = (0..self.variables.len()).map(of_variable).collect();
        stages.extend(self.slots.iter().map(of_slot));
        stages.push(StageId(0));
        stages
    }

    /// The variables as parameters of a graph.
    pub(super) fn bind_variables(&self, graph: &Graph) -> Vec<Tensor> {
        let variables = self.variables.iter().zip(self.shardings());
        variables
            .map(|(variable, sharding)| {
                graph.parameter_sharded(&variable.name, variable.shape.clone(), &sharding)
            })
            .collect()
    }

    /// The whole state as parameters of a graph.
    pub(super) fn bind(&self, graph: &Graph) -> Vec<Tensor> {
        self.bind_slots_from(0, graph)
    }

    /// What replicas need of a state on a parameter device: all but the slots of the optimizer.
    pub(super) fn bind_for_replicas(&self, graph: &Graph) -> Vec<Tensor> {
        self.bind_slots_from(self.optimizer_slots, graph)
    }

    fn bind_slots_from(&self, first: usize, graph: &Graph) -> Vec<Tensor> {
        let mut state = self.bind_variables(graph);
        let shardings = self.shardings();
        let shardings = &shardings[state.len() + first..];
        let slots = self.slots[first..].iter().zip(shardings);
        state.extend(slots.map(|(slot, sharding)| {
            graph.parameter_sharded(&slot.name, slot.shape.clone(), sharding)
        }));
        state.push(graph.parameter("iterations", Shape::scalar(DType::I64)));
        state
    }

    /// Positions and shapes of the arrays that [`bind_for_replicas`](Self::bind_for_replicas) binds.
    pub(super) fn arrays_for_replicas(&self) -> Vec<(usize, Shape)> {
        let first = self.variables.len();
        let skipped = first..first + self.optimizer_slots;
        let arrays = self.arrays().into_iter().enumerate();
        let sent = arrays.filter(|(index, _)| !skipped.contains(index));
        sent.map(|(index, (_, shape))| (index, shape)).collect()
    }

    /// The parts of a state that was bound, whole or for replicas.
    pub(super) fn view<'a>(&self, state: &'a [Tensor]) -> StateView<'a> {
        let (variables, rest) = state.split_at(self.variables.len());
        let (slots, iterations) = rest.split_at(rest.len() - 1);
        let scale_slots = self.slots.len() - self.optimizer_slots;
        let (slots, scale) = slots.split_at(slots.len() - scale_slots);
        StateView {
            variables,
            slots,
            scale,
            scale_at: variables.len() + slots.len(),
            iterations: &iterations[0],
        }
    }

    /// Names of the trained variables that are not among these.
    pub(super) fn names_of_others(&self, params: &[usize]) -> Vec<String> {
        let all = self.params.iter().enumerate();
        let others = all.filter(|(param, _)| !params.contains(param));
        others.map(|(_, param)| param.name.clone()).collect()
    }
}
