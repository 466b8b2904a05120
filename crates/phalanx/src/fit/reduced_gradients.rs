//! From the gradients of one replica to the gradients of all.

use phalanx_graph::{DType, Graph, Shape, Tensor};

use super::batch_tensors::BatchTensors;
use super::forward_backward::LocalGradients;
use super::setup::Setup;
use super::state_spec::StateView;
use crate::optim::WindowPart;
use crate::{Error, Result};

/// The gradients of a step over all replicas.
pub(super) struct ReducedGradients {
    /// Positions, among the trained variables, of those that the loss depends on.
    pub(super) connected: Vec<usize>,
    /// Their gradients, of the scaled loss.
    pub(super) gradients: Vec<Tensor>,
    /// New state of layers, by the positions of the variables.
    pub(super) updates: Vec<(usize, Tensor)>,
    /// Whether the gradients are finite, in parts, where another program has found out.
    pub(super) finite: Vec<Tensor>,
    /// Which part of a window they are of: within one they are this replica's alone.
    pub(super) part: WindowPart,
}

impl ReducedGradients {
    /// Sums the gradients of all replicas, unless the window goes on, and lets them agree on the new state of layers.
    pub(super) fn all_reduce(
        setup: &Setup,
        local: &LocalGradients,
        batch: &BatchTensors,
        part: WindowPart,
    ) -> Self {
        let gradients = match is_exchanged(setup, part) {
            true => setup.reduction.sum(&local.gradients),
            false => local.gradients.clone(),
        };
        Self {
            connected: local.connected.clone(),
            updates: synced_layer_state(setup, &local.updates, batch),
            finite: Vec::new(),
            gradients,
            part,
        }
    }

    /// Refuses layers that replace variables before their update, where variables are updated elsewhere: `by` what.
    pub(super) fn check_replaced(&self, setup: &Setup, by: &str) -> Result<()> {
        let variables = setup.model.variables();
        let mut replaced = self.updates.iter().map(|(index, _)| &variables[*index]);
        match replaced.find(|variable| !variable.state) {
            None => Ok(()),
            Some(variable) => Err(Error::user(format!(
                "variable `{}` is normalized by its layer before each update, which training {by} does not do; use `mirrored`, or leave `spectral_norm` out",
                variable.name
            ))),
        }
    }

    /// What a step starts from in a variable with this position: what a layer replaced it with, where one did.
    pub(super) fn start<'t>(&'t self, variables: &'t [Tensor], index: usize) -> &'t Tensor {
        let replaced = self.updates.iter().find(|(at, _)| *at == index);
        replaced.map_or(&variables[index], |(_, value)| value)
    }

    /// The same as parameters of a graph, for gradients that another program computed: the gradients, the new state of layers, and
    /// `flags` scalars that say whether gradients are finite, in this order.
    pub(super) fn received(&self, graph: &Graph, flags: usize) -> Self {
        let bind = |value: &Tensor| graph.parameter("received", value.shape());
        let gradients = self.gradients.iter().map(bind).collect();
        let updates = self.updates.iter();
        let updates = updates.map(|(index, value)| (*index, bind(value)));
        let updates = updates.collect();
        let flag = |_| graph.parameter("finite", Shape::scalar(DType::Bool));
        Self {
            connected: self.connected.clone(),
            gradients,
            updates,
            finite: (0..flags).map(flag).collect(),
            part: self.part,
        }
    }
}

impl LocalGradients {
    /// Adds what a replica has accumulated over the batches of a window to the gradients of the last one; they are of the
    /// scaled loss, accumulated ones are not.
    pub(super) fn add_window(&mut self, setup: &Setup, view: &StateView<'_>) {
        let accumulated = setup.state.accumulated();
        let first = view.variables.len();
        for (&param, gradient) in self.connected.iter().zip(&mut self.gradients) {
            let sum = &view.slots[accumulated[param] - first];
            let sum = setup.loss_scale.scaled(sum, view.scale);
            *gradient = gradient.convert(sum.dtype()) + sum;
        }
    }

    /// Refuses a loss that depends on nothing that is trained.
    pub(super) fn check_connected(&self, setup: &Setup) -> Result<()> {
        let trains = !setup.state.trained.is_empty();
        if self.connected.is_empty() && trains && self.graph().error().is_none() {
            return Err(Error::user(
                "the loss depends on no trainable variable, so there is nothing to train; check that the loss uses the model's output and that it is differentiable",
            ));
        }
        Ok(())
    }

    fn graph(&self) -> &Graph {
        self.loss_and_metrics.loss.graph()
    }
}

/// Whether replicas exchange gradients in a step that is this part of a window.
fn is_exchanged(setup: &Setup, part: WindowPart) -> bool {
    setup.replicas > 1 && part != WindowPart::Inner
}

/// What replicas exchange and when, in words; `None` where they exchange nothing.
pub(super) fn exchange_report(
    setup: &Setup,
    local: &LocalGradients,
    part: WindowPart,
) -> Option<String> {
    if !is_exchanged(setup, part) || local.graph().error().is_some() {
        return None;
    }
    let exchange = setup.reduction.report(&local.gradients);
    Some(match setup.window().steps() {
        None => format!("replicas add in each step {exchange}"),
        Some(steps) => format!("replicas add after every {steps} batches {exchange}"),
    })
}

/// The new state of layers that all replicas agree on: the mean over their examples of floats, the maximum of integers. What replaces a
/// variable before its update depends on variables alone, which all have alike.
///
/// Keras keeps what one replica has and saves that; TensorFlow 2 evaluates with each replica's own.
fn synced_layer_state(
    setup: &Setup,
    updates: &[(usize, Tensor)],
    batch: &BatchTensors,
) -> Vec<(usize, Tensor)> {
    if setup.replicas == 1 {
        return updates.to_vec();
    }
    let variables = setup.model.variables();
    let (own, replaced): (Vec<_>, Vec<_>) = updates
        .iter()
        .cloned()
        .partition(|(index, _)| variables[*index].state);
    let values: Vec<Tensor> = own.iter().map(|(_, value)| value.clone()).collect();
    let rows = batch.rows.as_ref().map(|rows| rows.convert(DType::F32));
    let agreed = setup.reduction.agreed(&values, rows.as_ref());
    let own = own.iter().map(|(index, _)| *index).zip(agreed);
    own.chain(replaced).collect()
}
