//! How a training step ends: what its program replaces or sends once the gradients are there.

use phalanx_graph::{Graph, Program, Tensor};

use super::batch_tensors::BatchTensors;
use super::epoch_totals::LossAndMetrics;
use super::loss_scale::FiniteCheck;
use super::pipeline::accumulate_micro_batch;
use super::reduced_gradients::ReducedGradients;
use super::setup::{Setup, StepLayout};
use super::state_spec::StateView;
use super::state_updates::StateUpdates;
use super::step_program::{SentToServers, StepKind, explain};
use crate::Result;
use crate::optim::{ParamSpec, WindowPart};

/// A training step whose gradients are computed: the state before it, and what it has of the batch.
pub(super) struct TrainStep<'a> {
    pub(super) setup: &'a Setup,
    pub(super) graph: Graph,
    pub(super) state: Vec<Tensor>,
    pub(super) totals: Tensor,
    pub(super) batch: BatchTensors,
    pub(super) loss_and_metrics: LossAndMetrics,
    pub(super) reduced: ReducedGradients,
}

impl TrainStep<'_> {
    /// Ends the last step of a program as the layout wants it; the arguments are the state before the first.
    pub(super) fn finish(self, arguments: &[Tensor]) -> Result<(Program, StepKind)> {
        match &self.setup.layout {
            StepLayout::Replicated | StepLayout::Sharded(_) => self.update_in_place(arguments),
            StepLayout::ParameterDevice => self.send_to_parameter_device(),
            StepLayout::Servers => self.send_to_servers(),
            StepLayout::Pipelined(plan) => accumulate_micro_batch(self, plan),
        }
    }

    /// State and epoch totals after the step.
    pub(super) fn values_after(&self) -> (Vec<Tensor>, Tensor) {
        let (updates, after) = self.after();
        (updates.state(), after)
    }

    /// What the step changes, and the epoch totals after it.
    fn after(&self) -> (StateUpdates, Tensor) {
        let mut updates = StateUpdates::new(&self.state);
        let finite_check = apply_gradients(self.setup, &self.state, &self.reduced, &mut updates);
        let mut after = self.totals_after(finite_check.as_ref());
        if self.setup.workers > 1 {
            // A step is a transaction: if an exchange failed, every array stays as it was.
            let succeeded = self.graph.exchanges_succeeded();
            updates.select_if(&succeeded);
            after = succeeded.select(&after, &self.totals);
        }
        updates.shard(&self.setup.state.shardings());
        (updates, after)
    }

    /// Ends a step that replaces the state on the devices that computed.
    fn update_in_place(&self, arguments: &[Tensor]) -> Result<(Program, StepKind)> {
        let (updates, after) = self.after();
        let updates = updates.since(arguments);
        let (mut program, changed) = updates.finish(&self.graph, Some(&after))?;
        if self.reduced.part == WindowPart::Inner {
            // The rest is what a training goes back to when a process is lost.
            let sums = self.setup.local_sums();
            program.donated.retain(|(index, _)| sums.contains(index));
        }
        Ok((program, StepKind::InPlace { changed }))
    }

    /// Ends a step whose variables are on a parameter device, as two programs.
    ///
    /// The first, of the replicas: arguments are variables, slots of the loss scale, iterations, epoch totals, seed,
    /// batch; outputs the gradients, the new state of layers, the epoch totals. The second, of the parameter device:
    /// arguments are the state, the gradients, the new state of layers; outputs the changed state.
    fn send_to_parameter_device(&self) -> Result<(Program, StepKind)> {
        let (setup, reduced) = (self.setup, &self.reduced);
        let unscaled = self.unscaled();
        let finite_check = setup
            .loss_scale
            .finite_check(&unscaled, &[], self.view().scale);
        let updates = reduced.updates.iter().map(|(_, value)| value);
        let sent: Vec<Tensor> = reduced.gradients.iter().chain(updates).cloned().collect();
        let program = self.send(&sent, &self.totals_after(finite_check.as_ref()))?;
        let graph = Graph::new();
        let state = setup.state.bind(&graph);
        let mut updates = StateUpdates::new(&state);
        apply_gradients(setup, &state, &reduced.received(&graph, 0), &mut updates);
        let (apply, changed) = updates.finish(&graph, None)?;
        let kind = StepKind::ParameterDevice {
            apply: Box::new(apply),
            sent: sent.iter().map(Tensor::shape).collect(),
            changed,
        };
        Ok((program, kind))
    }

    /// Ends a step whose variables are on parameter servers. Arguments: variables, iterations, epoch totals, seed, batch; outputs: the
    /// gradients, by how much layers changed their state (of integers the new state), the epoch totals.
    fn send_to_servers(&self) -> Result<(Program, StepKind)> {
        let (view, reduced) = (self.view(), &self.reduced);
        reduced.check_replaced(self.setup, "with parameter servers")?;
        let unscaled = self.unscaled();
        let after = self.totals_after(None);
        let connected = reduced.connected.iter();
        let connected: Vec<usize> = connected.map(|&p| self.setup.state.trained[p]).collect();
        let gradients = unscaled.iter().zip(&connected);
        let gradients =
            gradients.map(|(value, &index)| value.convert(view.variables[index].dtype()));
        let changes = reduced.updates.iter().map(|(index, value)| {
            let old = &view.variables[*index];
            let value = value.convert(old.dtype());
            match value.dtype().is_float() {
                true => value - old,
                false => value,
            }
        });
        let sent: Vec<Tensor> = gradients.chain(changes).collect();
        let program = self.send(&sent, &after)?;
        let kind = StepKind::Servers(SentToServers {
            connected,
            changed: reduced.updates.iter().map(|(index, _)| *index).collect(),
            shapes: sent.iter().map(Tensor::shape).collect(),
        });
        Ok((program, kind))
    }

    /// The program whose outputs are these tensors and the epoch totals, which replace the ones before.
    fn send(&self, sent: &[Tensor], totals: &Tensor) -> Result<Program> {
        let sent = sent.iter().map(|value| ("sent", value));
        let outputs: Vec<(&str, &Tensor)> = sent.chain([("tally", totals)]).collect();
        let mut program = self.graph.finish(&outputs).map_err(explain)?;
        program.donated = vec![(self.state.len(), outputs.len() - 1)];
        Ok(program)
    }

    /// The state before the step.
    fn view(&self) -> StateView<'_> {
        self.setup.state.view(&self.state)
    }

    /// The gradients of the loss itself.
    fn unscaled(&self) -> Vec<Tensor> {
        let gradients = self.reduced.gradients.clone();
        self.setup.loss_scale.unscaled(gradients, self.view().scale)
    }

    /// The epoch totals after the step, skipped or not.
    pub(super) fn totals_after(&self, finite_check: Option<&FiniteCheck>) -> Tensor {
        let (setup, totals) = (self.setup, &self.totals);
        let iterations = self.view().iterations;
        let counted = Some(iterations);
        let is_shared = setup.shares_totals && setup.replicas > 1;
        let after =
            setup
                .epoch_totals
                .add_batch(totals, &self.loss_and_metrics, counted, is_shared);
        match finite_check {
            Some(check) => {
                let skipped = setup.epoch_totals.add_skipped(totals, check, iterations);
                check.finite.select(&after, &skipped)
            }
            None => after,
        }
    }
}

/// Updates the state with these gradients; returns whether the step counts.
pub(super) fn apply_gradients(
    setup: &Setup,
    state: &[Tensor],
    reduced: &ReducedGradients,
    state_updates: &mut StateUpdates,
) -> Option<FiniteCheck> {
    let view = setup.state.view(state);
    let (spec, connected) = (&setup.state, &reduced.connected);
    let (variables, slots) = (view.variables, view.slots);
    let gradients = setup
        .loss_scale
        .unscaled(reduced.gradients.clone(), view.scale);
    let finite_check = setup
        .loss_scale
        .finite_check(&gradients, &reduced.finite, view.scale);
    let params = connected.iter().map(|&param| spec.params[param].clone());
    let params: Vec<ParamSpec> = params.collect();
    let values = connected.iter();
    let values = values.map(|&param| reduced.start(variables, spec.trained[param]).clone());
    let values: Vec<Tensor> = values.collect();
    // Without a gradient neither the variable nor its slots change.
    let is_used = |&slot: &usize| {
        let owner = spec.slots[slot].param;
        owner.is_none_or(|param| connected.contains(&param))
    };
    let used: Vec<usize> = (0..slots.len()).filter(is_used).collect();
    let slots: Vec<Tensor> = used.iter().map(|&slot| slots[slot].clone()).collect();
    let step = (reduced.part, view.iterations);
    let applied = setup
        .optimizer
        .apply_in_window(&params, step, &values, &gradients, &slots);
    for (index, value) in &reduced.updates {
        state_updates.set(*index, value);
    }
    for (&param, value) in connected.iter().zip(&applied.params) {
        state_updates.set(spec.trained[param], value);
    }
    for (&slot, value) in used.iter().zip(&applied.slots) {
        state_updates.set(variables.len() + slot, value);
    }
    // What has no gradient is its own average: it changes only when it is set.
    for (param, (variable, average)) in spec.moving_averages().into_iter().enumerate() {
        if !connected.contains(&param) {
            // A value of its own: a step in stages makes no outputs that are parameters.
            state_updates.set(average, &variables[variable].computed_once());
        }
    }
    state_updates.set(state_updates.len() - 1, &(view.iterations + 1.0));
    if let Some(finite_check) = &finite_check {
        // The scale changes in a skipped step too, so it is set behind the selection.
        state_updates.select_if(&finite_check.finite);
        for (slot, value) in finite_check.slots.iter().enumerate() {
            state_updates.set(view.scale_at + slot, value);
        }
    }
    finite_check
}
