//! The forward pass of a replica's rows, and the backward pass through it.

use phalanx_graph::{Graph, Tensor, gradients};

use super::batch_tensors::BatchTensors;
use super::epoch_totals::LossAndMetrics;
use super::outputs::Output;
use super::setup::Setup;
use super::state_spec::StateView;
use super::step_program::step_key;
use super::uneven_shares::{branch_by_size, padded_to};
use crate::nn::{Cx, Effects};

/// What a pass takes beside the batch.
pub(super) struct StepInputs {
    pub(super) variables: Vec<Tensor>,
    /// The slots of the loss scale.
    pub(super) scale: Vec<Tensor>,
    /// The key of the random numbers of a training step; a test or prediction has none.
    pub(super) key: Option<Tensor>,
}

/// One replica's gradients, before the all-reduce.
pub(super) struct LocalGradients {
    pub(super) loss_and_metrics: LossAndMetrics,
    /// Positions, among the trained variables, of those that the loss depends on.
    pub(super) connected: Vec<usize>,
    /// Their gradients, of the scaled loss.
    pub(super) gradients: Vec<Tensor>,
    /// New state of layers, by the positions of the variables.
    pub(super) updates: Vec<(usize, Tensor)>,
}

impl StepInputs {
    /// The inputs of a training step.
    pub(super) fn of_step(graph: &Graph, view: &StateView<'_>, seed: &Tensor) -> Self {
        Self {
            variables: view.variables.to_vec(),
            scale: view.scale.to_vec(),
            key: Some(step_key(graph, seed, view.iterations)),
        }
    }

    /// The inputs of a test or a prediction.
    pub(super) fn variables(variables: &[Tensor]) -> Self {
        Self {
            variables: variables.to_vec(),
            scale: Vec::new(),
            key: None,
        }
    }
}

/// The forward pass of a replica, and what follows from its outputs.
pub(super) struct ForwardPass<'a> {
    setup: &'a Setup,
}

impl<'a> ForwardPass<'a> {
    pub(super) const fn new(setup: &'a Setup) -> Self {
        Self { setup }
    }

    pub(super) const fn setup(&self) -> &'a Setup {
        self.setup
    }

    /// Forward pass, loss and derivatives on this replica's rows.
    pub(super) fn forward_backward(
        &self,
        inputs: &StepInputs,
        batch: &BatchTensors,
    ) -> LocalGradients {
        let differentiate = |inputs: &StepInputs, batch: &BatchTensors| {
            let (outputs, effects) = self.forward(inputs, batch);
            let loss_and_metrics = self.loss_and_metrics(&outputs, batch, &effects);
            let trained = self.setup.state.trained.iter();
            let trained: Vec<&Tensor> = trained.map(|&index| &inputs.variables[index]).collect();
            let loss = self
                .setup
                .loss_scale
                .scaled(&loss_and_metrics.loss, &inputs.scale);
            let gradients = gradients(&loss, &trained);
            let is_connected = |param: &usize| gradients[*param].is_some();
            LocalGradients {
                connected: (0..trained.len()).filter(is_connected).collect(),
                gradients: gradients.into_iter().flatten().collect(),
                updates: effects.updates,
                loss_and_metrics,
            }
        };
        match self.reduced_weights(inputs, batch) {
            Some(weights) => LocalGradients::by_size(
                &self.setup.reduction,
                inputs,
                batch,
                weights,
                differentiate,
            ),
            None => differentiate(inputs, batch),
        }
    }

    /// Forward pass, loss and metrics of a test.
    pub(super) fn forward_loss(&self, inputs: &StepInputs, batch: &BatchTensors) -> LossAndMetrics {
        let compute = |inputs: &StepInputs, batch: &BatchTensors| {
            let (outputs, effects) = self.forward(inputs, batch);
            self.loss_and_metrics(&outputs, batch, &effects)
        };
        let Some(weights) = self.reduced_weights(inputs, batch) else {
            return compute(inputs, batch);
        };
        let (loss_and_metrics, results) =
            branch_by_size(inputs, batch, weights, compute, LossAndMetrics::tensors);
        loss_and_metrics.with(&mut results.into_iter())
    }

    /// The outputs of the model; where a replica has fewer rows than its arrays, zeros follow.
    pub(super) fn forward_outputs(&self, inputs: &StepInputs, batch: &BatchTensors) -> Vec<Tensor> {
        let predict = |inputs: &StepInputs, batch: &BatchTensors| {
            let (outputs, _) = self.forward(inputs, batch);
            let outputs = outputs.iter();
            outputs
                .map(|output| self.shard_like_batch(&output.value))
                .collect()
        };
        if batch.sizes.is_empty() {
            return predict(inputs, batch);
        }
        let padded = |outputs: &Vec<Tensor>| {
            let outputs = outputs.iter();
            outputs.map(|y| padded_to(y, 0, batch.rows())).collect()
        };
        branch_by_size(inputs, batch, Vec::new(), predict, padded).1
    }

    /// The forward pass: outputs with their padding masks, and what layers did beside.
    pub(super) fn forward(
        &self,
        inputs: &StepInputs,
        batch: &BatchTensors,
    ) -> (Vec<Output>, Effects) {
        let graph = batch.x[0].graph();
        let mut cx =
            Cx::new(graph, &self.setup.model, &inputs.variables).with_policy(self.setup.precision);
        if let Some(key) = &inputs.key {
            let first = batch.first_row(graph);
            cx = cx.with_training(true).with_random(key.clone(), first);
        }
        if let Some(mask) = &batch.mask {
            cx = cx.with_example_mask(mask.clone());
        }
        let expected = self.setup.model.inputs().map(|(_, shape)| shape.dtype);
        let x = batch.x.iter().zip(expected);
        let x: Vec<Tensor> = x.map(|(x, dtype)| x.convert(dtype)).collect();
        let outputs = Output::all(&mut cx, &self.setup.model, &x);
        let effects = cx.finish();
        (outputs, effects)
    }

    /// This replica's share of the loss, and what its rows add to the metrics.
    pub(super) fn loss_and_metrics(
        &self,
        outputs: &[Output],
        batch: &BatchTensors,
        effects: &Effects,
    ) -> LossAndMetrics {
        let (objective, replicas) = (&self.setup.objective, self.setup.replicas);
        objective.loss_and_metrics(outputs, batch, effects, replicas)
    }

    /// An output of the model, sharded as batches are.
    fn shard_like_batch(&self, output: &Tensor) -> Tensor {
        match self.setup.layout.mesh() {
            Some(mesh) => output.sharded(&mesh.of_batch(output.rank())),
            None => output.clone(),
        }
    }
}
