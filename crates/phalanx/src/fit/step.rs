//! The three programs of a model: a training step, a test step, a prediction.
//!
//! A training step is one program: forward, the loss divided by the true weight of the batch, derivatives, the
//! optimizer's update, metrics. Everything that changes from step to step comes in and goes out as arrays on the
//! device, so a step needs no number from the host and the host none from it.
//!
//! Each of `R` replicas runs the program on its rows of the batch. Its loss is its share of the whole: its weighted sum
//! over the weight of all replicas' rows, and `1 / R` of the penalties. So the sum of the gradients is the gradient of
//! one replica with all the rows, and what follows (unscaling, the finite check, clipping, the update) is the same
//! everywhere. Keras clips before the sum, and looks at one replica's gradients for what is not finite.

use phalanx_graph::{DType, Graph, GraphError, Program, Shape, Tensor};

use super::LossScale;
use super::batch_tensors::BatchTensors;
use super::compile::{Compile, LossTerm, Losses, NamedMetric};
use super::epoch_totals::{EpochTotals, LossAndMetrics};
use super::loss_scale::FiniteCheck;
use super::parts::StepInputs;
use super::pipeline::{PipelinePrograms, StagePlan, weight_program};
use super::state_updates::StateUpdates;
use crate::losses::Loss;
use crate::nn::{Model, Policy, Variable};
use crate::optim::{Optimizer, ParamSpec, SlotSpec};
use crate::replicas::{MeshLayout, Reduction};
use crate::{Error, Result};

/// What a model is compiled to: the model, what it is trained with, and the arrays that a step carries.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) model: Model,
    pub(super) optimizer: Optimizer,
    pub(super) losses: Losses,
    pub(super) metrics: Vec<NamedMetric>,
    /// The outputs that have targets, in order.
    pub(super) targets: Vec<usize>,
    /// Targets that hold classes, by position among them, and how many classes their outputs have.
    pub(super) classes: Vec<(usize, usize)>,
    /// Positions of the trained variables in those of the model.
    pub(super) trained: Vec<usize>,
    params: Vec<ParamSpec>,
    pub(super) precision: Policy,
    pub(super) loss_scale: LossScale,
    /// Those of the optimizer, then those of the loss scale.
    pub(super) slots: Vec<SlotSpec>,
    pub(super) epoch_totals: EpochTotals,
    pub(super) replicas: usize,
    pub(super) reduction: Reduction,
    /// Whether the variables are on a device of their own.
    pub(super) is_central: bool,
    /// How the one replica is divided among devices, if it is.
    pub(super) mesh_layout: Option<MeshLayout>,
    /// Which layers are in which stage, where there are stages.
    pub(super) plan: Option<StagePlan>,
    /// Whether replicas have unequal shares, and whether they compute by themselves on parts of their sizes.
    pub(super) has_shares: bool,
    pub(super) by_size: bool,
}

/// The shapes of a batch as one replica gets it, with the batch dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchShape {
    pub(super) x: Vec<Shape>,
    pub(super) y: Vec<Shape>,
    pub(super) weight: Option<Shape>,
    /// Whether rows may be there only to fill up the arrays.
    pub(super) filled: bool,
    /// The numbers of rows that are examples on some replica, the largest first; none where it may be any.
    pub(super) sizes: Vec<usize>,
}

/// A program and which arrays of the state it replaces: its outputs are those, then its own results.
pub(super) struct StepProgram {
    pub(super) program: Program,
    /// The program that replaces them in its place, on another device, from what it sends.
    pub(super) apply: Option<Program>,
    /// The shapes of that.
    pub(super) sent: Vec<Shape>,
    pub(super) changed: Vec<usize>,
    /// Trained variables that the loss does not depend on.
    pub(super) disconnected: Vec<String>,
    /// How micro-batches follow each other, in stages.
    pub(super) staged: Option<PipelinePrograms>,
    /// What replicas exchange of their gradients.
    pub(super) exchange: Option<String>,
}

impl Setup {
    pub(super) fn new(
        model: Model,
        compile: Compile,
        replicas: usize,
        reduction: Reduction,
    ) -> Result<Self> {
        check(&model, &compile)?;
        let outputs = model.output_names();
        let metrics = compile.named_metrics(&outputs, &model.outputs());
        let has_target = |output: &usize| {
            compile.loss.terms.iter().any(|term| term.output == *output)
                || metrics.iter().any(|metric| metric.output == *output)
        };
        let targets: Vec<usize> = (0..outputs.len()).filter(has_target).collect();
        let loss_scale = compile.loss_scale.under(compile.precision);
        let mut setup = Self {
            classes: classes(&model, &compile.loss, &targets),
            targets,
            precision: compile.precision,
            loss_scale,
            epoch_totals: EpochTotals::new(&compile.loss, &metrics),
            optimizer: compile.optimizer.for_replicas(replicas),
            losses: compile.loss,
            metrics,
            trained: Vec::new(),
            params: Vec::new(),
            slots: Vec::new(),
            model,
            replicas,
            reduction,
            is_central: false,
            mesh_layout: None,
            plan: None,
            has_shares: false,
            by_size: false,
        };
        setup.find_trained();
        Ok(setup)
    }

    /// The setup after a change of which layers of the model are trained.
    pub(super) fn with_model(&self, model: Model) -> Self {
        let mut changed = self.clone();
        changed.model = model;
        changed.find_trained();
        changed.with_shares(self.has_shares)
    }

    /// Finds which variables the optimizer changes, and what it carries for them.
    fn find_trained(&mut self) {
        let variables = self.model.variables().iter().enumerate();
        let trained = variables.filter(|(_, variable)| variable.trainable);
        let spec = |(index, variable): (usize, &Variable)| {
            let (name, shape) = (variable.name.clone(), variable.shape.clone());
            (index, ParamSpec { name, shape })
        };
        (self.trained, self.params) = trained.map(spec).unzip();
        self.slots = self.optimizer.slots(&self.params);
        self.slots.extend(self.loss_scale.slots());
    }

    /// Where in the state a variable is, and where its average.
    pub(super) fn ema_slots(&self) -> Vec<(usize, usize)> {
        let slots = self.optimizer.average_slots(&self.params);
        let first = self.model.variables().len();
        let slots = slots.into_iter().map(|slot| first + slot);
        self.trained.iter().copied().zip(slots).collect()
    }

    /// The setup of one replica by itself.
    pub(super) fn for_single_replica(&self) -> Self {
        Self {
            replicas: 1,
            is_central: false,
            ..self.clone()
        }
    }

    /// Names and shapes of the state.
    pub(super) fn arrays(&self) -> Vec<(String, Shape)> {
        let variables = self.model.variables().iter();
        let variables = variables.map(|variable| (variable.name.clone(), variable.shape.clone()));
        let slots = self.slots.iter();
        let slots = slots.map(|slot| (slot.name.clone(), slot.shape.clone()));
        let iterations = ("iterations".to_owned(), Shape::scalar(DType::I64));
        variables.chain(slots).chain([iterations]).collect()
    }

    /// A training step: one program, or two where the variables are on a device of their own.
    pub(super) fn train_program(&self, shape: &BatchShape) -> Result<StepProgram> {
        if self.is_central {
            return self.central_step(shape);
        }
        if self.plan.is_some() {
            return self.staged_step(shape);
        }
        self.train_step(shape)
    }

    /// The state is variables, slots, and the number of batches seen, of which skipped ones are none.
    ///
    /// Arguments: the state, the totals, the seed, the batch. Outputs: the changed state, the totals.
    pub(super) fn train_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let state = self.bind_state(&graph);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let batch = BatchTensors::bind(&graph, shape, self.mesh_layout.as_ref());
        let view = self.state_view(&state);
        let reduced = self.reduced_gradients(&graph, &view, &seed, &batch)?;
        let mut state_updates = StateUpdates::new(&state);
        let finite_check = self.update(&view, &reduced, &mut state_updates);
        state_updates.shard(&self.shardings());
        let after =
            self.totals_after_step(&totals, &reduced, finite_check.as_ref(), view.iterations);
        let mut step = state_updates.finish(&graph, &after)?;
        step.disconnected = self.disconnected(&reduced);
        step.exchange = reduced.exchange;
        Ok(step)
    }

    /// The same as two programs, for variables that are on a device of their own.
    ///
    /// The first, of the replicas: arguments are variables, the slots of the loss scale, the batches seen, the totals,
    /// the seed, the batch; outputs the gradients, the new state of layers, the totals. The second, of the other device:
    /// arguments are the state, the gradients, the new state of layers; outputs the changed state.
    pub(super) fn central_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let slots = &self.slots[self.slots.len() - self.loss_scale.slots().len()..];
        let state = self.bind(&graph, slots);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let batch = BatchTensors::bind(&graph, shape, self.mesh_layout.as_ref());
        let view = self.state_view(&state);
        let reduced = self.reduced_gradients(&graph, &view, &seed, &batch)?;
        let unscaled = self
            .loss_scale
            .unscaled(reduced.gradients.clone(), view.scale);
        let finite_check = self.loss_scale.finite_check(&unscaled, &[], view.scale);
        let after =
            self.totals_after_step(&totals, &reduced, finite_check.as_ref(), view.iterations);
        let updates = reduced.updates.iter().map(|(_, value)| value);
        let sent: Vec<&Tensor> = reduced.gradients.iter().chain(updates).collect();
        let named = sent.iter().map(|value| ("sent", *value));
        let outputs: Vec<(&str, &Tensor)> = named.chain([("tally", &after)]).collect();
        let mut program = graph.finish(&outputs).map_err(explain)?;
        program.donated = vec![(state.len(), outputs.len() - 1)];
        let apply = self.apply_step(&reduced)?;
        Ok(StepProgram {
            program,
            apply: Some(apply.program),
            sent: sent.iter().map(|value| value.shape()).collect(),
            changed: apply.changed,
            disconnected: self.disconnected(&reduced),
            staged: None,
            exchange: reduced.exchange,
        })
    }

    /// Which arrays of the state the replicas need for [`central_step`](Self::central_step), with their shapes.
    pub(super) fn sent_to_replicas(&self) -> Vec<(usize, Shape)> {
        let variables = self.model.variables().iter().enumerate();
        let mut wanted: Vec<(usize, Shape)> = variables
            .map(|(index, variable)| (index, variable.shape.clone()))
            .collect();
        let (first, scale) = (wanted.len(), self.loss_scale.slots().len());
        let slots = self.slots.iter().enumerate().skip(self.slots.len() - scale);
        wanted.extend(slots.map(|(slot, spec)| (first + slot, spec.shape.clone())));
        wanted.push((first + self.slots.len(), Shape::scalar(DType::I64)));
        wanted
    }

    fn apply_step(&self, reduced: &ReducedGradients) -> Result<StepProgram> {
        let graph = Graph::new();
        let state = self.bind_state(&graph);
        let mut state_updates = StateUpdates::new(&state);
        self.apply_received(&graph, &state, reduced, 0, &mut state_updates);
        state_updates.finish_state(&graph)
    }

    /// Sets the state after a pass that another program made, whose gradients, new state of layers, and as many flags as
    /// are given, which say whether gradients are finite, are parameters in this order; returns whether the step counts.
    pub(super) fn apply_received(
        &self,
        graph: &Graph,
        state: &[Tensor],
        reduced: &ReducedGradients,
        flags: usize,
        state_updates: &mut StateUpdates,
    ) -> Option<FiniteCheck> {
        let bind = |value: &Tensor| graph.parameter("received", value.shape());
        let gradients = reduced.gradients.iter().map(bind).collect();
        let updates = reduced.updates.iter();
        let updates = updates.map(|(index, value)| (*index, bind(value)));
        let updates = updates.collect();
        let flag = |_| graph.parameter("finite", Shape::scalar(DType::Bool));
        let received = ReducedGradients {
            loss_and_metrics: None,
            connected: reduced.connected.clone(),
            gradients,
            updates,
            finite: (0..flags).map(flag).collect(),
            exchange: None,
        };
        self.update(&self.state_view(state), &received, state_updates)
    }

    /// Forward and backward: what the replicas' rows of a batch say of the variables.
    pub(super) fn reduced_gradients(
        &self,
        graph: &Graph,
        view: &StateView<'_>,
        seed: &Tensor,
        batch: &BatchTensors,
    ) -> Result<ReducedGradients> {
        let inputs = StepInputs {
            variables: view.variables.to_vec(),
            scale: view.scale.to_vec(),
            key: Some(step_key(graph, seed, view.iterations)),
        };
        let local_gradients = self.local_gradients(&inputs, batch);
        if local_gradients.connected.is_empty()
            && !self.trained.is_empty()
            && graph.error().is_none()
        {
            return Err(Error::user(
                "the loss depends on no trainable variable, so there is nothing to train; check that the loss uses the model's output and that it is differentiable",
            ));
        }
        let mut gradients = local_gradients.gradients;
        let is_exchanged = self.replicas > 1 && graph.error().is_none();
        let exchange = is_exchanged.then(|| self.reduction.report(&gradients));
        if self.replicas > 1 {
            gradients = self.reduction.sum(&gradients);
        }
        Ok(ReducedGradients {
            exchange,
            updates: self.synced_layer_state(&local_gradients.updates, batch),
            loss_and_metrics: Some(local_gradients.loss_and_metrics),
            finite: Vec::new(),
            connected: local_gradients.connected,
            gradients,
        })
    }

    /// The names of the variables without a gradient.
    pub(super) fn disconnected(&self, reduced: &ReducedGradients) -> Vec<String> {
        let params = self.params.iter().enumerate();
        let lost = params.filter(|(param, _)| !reduced.connected.contains(param));
        lost.map(|(_, param)| param.name.clone()).collect()
    }

    /// The totals after a training step, skipped or not.
    pub(super) fn totals_after_step(
        &self,
        totals: &Tensor,
        reduced: &ReducedGradients,
        finite_check: Option<&FiniteCheck>,
        iterations: &Tensor,
    ) -> Tensor {
        let Some(loss_and_metrics) = &reduced.loss_and_metrics else {
            return totals.clone();
        };
        let after = self
            .epoch_totals
            .add_batch(totals, loss_and_metrics, Some(iterations));
        match finite_check {
            Some(finite_check) => {
                let skipped = self
                    .epoch_totals
                    .add_skipped(totals, finite_check, iterations);
                finite_check.finite.select(&after, &skipped)
            }
            None => after,
        }
    }

    /// Arguments: the variables, the totals, the batch. Output: the totals.
    pub(super) fn test_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let variables = self.bind_variables(&graph);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let mut batch = BatchTensors::bind(&graph, shape, self.mesh_layout.as_ref());
        batch.micro_batches = self.plan.as_ref().map_or(1, |plan| plan.micro_batches);
        let inputs = StepInputs::variables(&variables);
        let loss_and_metrics = self.forward_loss(&inputs, &batch);
        let totals = self
            .epoch_totals
            .add_batch(&totals, &loss_and_metrics, None);
        let weight_program = weight_program(&graph, &batch)?;
        let state_updates = StateUpdates::new(&[]);
        let mut step = state_updates.finish(&graph, &totals)?;
        step.program.donated = vec![(variables.len(), 0)];
        step.staged = self.plan.is_some().then(|| PipelinePrograms {
            forward: 1,
            carried: vec![(variables.len(), 0)],
            sums: Vec::new(),
            weight_program,
            update: None,
        });
        Ok(step)
    }

    /// Arguments: the variables, the inputs. Outputs: those of the model.
    pub(super) fn predict_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let variables = self.bind_variables(&graph);
        let batch = BatchTensors::bind(&graph, shape, self.mesh_layout.as_ref());
        let inputs = StepInputs::variables(&variables);
        let outputs = self.forward_outputs(&inputs, &batch);
        let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("output", output)).collect();
        let program = graph.finish(&named).map_err(explain)?;
        Ok(StepProgram {
            program,
            apply: None,
            sent: Vec::new(),
            changed: Vec::new(),
            disconnected: Vec::new(),
            staged: None,
            exchange: None,
        })
    }

    /// Sets the state after a step with these gradients; returns whether the step counts.
    fn update(
        &self,
        view: &StateView<'_>,
        reduced: &ReducedGradients,
        state_updates: &mut StateUpdates,
    ) -> Option<FiniteCheck> {
        let (variables, slots, connected) = (view.variables, view.slots, &reduced.connected);
        let gradients = self
            .loss_scale
            .unscaled(reduced.gradients.clone(), view.scale);
        let finite_check = self
            .loss_scale
            .finite_check(&gradients, &reduced.finite, view.scale);
        let specs: Vec<ParamSpec> = connected.iter().map(|&p| self.params[p].clone()).collect();
        let params = connected
            .iter()
            .map(|&p| variables[self.trained[p]].clone());
        let params: Vec<Tensor> = params.collect();
        let kept: Vec<usize> = (0..slots.len())
            .filter(|&slot| {
                self.slots[slot]
                    .param
                    .is_none_or(|p| connected.contains(&p))
            })
            .collect();
        let slots: Vec<Tensor> = kept.iter().map(|&slot| slots[slot].clone()).collect();
        let applied = self
            .optimizer
            .apply(&specs, view.iterations, &params, &gradients, &slots);
        for (&param, value) in connected.iter().zip(&applied.params) {
            state_updates.set(self.trained[param], value);
        }
        for (&slot, value) in kept.iter().zip(&applied.slots) {
            state_updates.set(variables.len() + slot, value);
        }
        for (index, value) in &reduced.updates {
            state_updates.set(*index, value);
        }
        state_updates.set(state_updates.len() - 1, &(view.iterations + 1.0));
        if let Some(finite_check) = &finite_check {
            state_updates.select_if(&finite_check.finite);
            for (slot, value) in finite_check.slots.iter().enumerate() {
                state_updates.set(view.scale_at + slot, value);
            }
        }
        finite_check
    }

    /// The inputs of the model in its element types.
    pub(super) fn inputs(&self, batch: &BatchTensors) -> Vec<Tensor> {
        let expected = self.model.inputs().map(|(_, shape)| shape.dtype);
        let inputs = batch.x.iter().zip(expected);
        inputs.map(|(x, dtype)| x.convert(dtype)).collect()
    }

    pub(super) fn bind_variables(&self, graph: &Graph) -> Vec<Tensor> {
        let variables = self.model.variables().iter().zip(self.shardings());
        variables
            .map(|(variable, sharding)| {
                graph.parameter_sharded(&variable.name, variable.shape.clone(), &sharding)
            })
            .collect()
    }

    pub(super) fn bind_state(&self, graph: &Graph) -> Vec<Tensor> {
        self.bind(graph, &self.slots)
    }

    /// Variables, some slots, and the batches seen.
    fn bind(&self, graph: &Graph, slots: &[SlotSpec]) -> Vec<Tensor> {
        let mut state = self.bind_variables(graph);
        let shardings = self.shardings();
        let slots = slots.iter().zip(&shardings[state.len()..]);
        state.extend(slots.map(|(slot, sharding)| {
            graph.parameter_sharded(&slot.name, slot.shape.clone(), sharding)
        }));
        state.push(graph.parameter("iterations", Shape::scalar(DType::I64)));
        state
    }

    pub(super) fn state_view<'a>(&self, state: &'a [Tensor]) -> StateView<'a> {
        let (variables, rest) = state.split_at(self.model.variables().len());
        let (slots, iterations) = rest.split_at(rest.len() - 1);
        let (slots, scale) = slots.split_at(slots.len() - self.loss_scale.slots().len());
        StateView {
            variables,
            slots,
            scale,
            scale_at: variables.len() + slots.len(),
            iterations: &iterations[0],
        }
    }
}

/// What a forward and a backward pass say of a batch.
pub(super) struct ReducedGradients {
    /// On a replica.
    loss_and_metrics: Option<LossAndMetrics>,
    /// Positions, among the trained variables, of those that the loss depends on.
    pub(super) connected: Vec<usize>,
    /// Their gradients, over all replicas, of the scaled loss.
    pub(super) gradients: Vec<Tensor>,
    /// State of layers, over all replicas.
    pub(super) updates: Vec<(usize, Tensor)>,
    /// Whether the gradients are finite, in parts, where that is known before.
    finite: Vec<Tensor>,
    /// How the gradients became one.
    exchange: Option<String>,
}

/// The state before a step.
pub(super) struct StateView<'a> {
    variables: &'a [Tensor],
    /// Of the optimizer.
    slots: &'a [Tensor],
    /// Of the loss scale.
    scale: &'a [Tensor],
    /// Where in the state those of the loss scale begin.
    scale_at: usize,
    pub(super) iterations: &'a Tensor,
}

/// Which of the targets are integer classes, and of how many.
fn classes(model: &Model, losses: &Losses, targets: &[usize]) -> Vec<(usize, usize)> {
    let outputs = model.outputs();
    let of_term = |term: &LossTerm| {
        let Loss::SparseCategoricalCrossentropy(_) = term.loss else {
            return None;
        };
        let target = targets.iter().position(|&target| target == term.output)?;
        Some((target, *outputs[term.output].dims.last()?))
    };
    losses.terms.iter().filter_map(of_term).collect()
}

/// A key of its own for each step: a hash of the seed and the number of the step.
pub(crate) fn step_key(graph: &Graph, seed: &Tensor, iterations: &Tensor) -> Tensor {
    let number = iterations.convert(DType::U32);
    graph.random_bits(seed, &number, &[1, 2]).reshape(&[2])
}

fn check(model: &Model, compile: &Compile) -> Result<()> {
    compile.optimizer.check()?;
    compile.loss_scale.check()?;
    let outputs = model.outputs().len();
    for term in &compile.loss.terms {
        term.loss.check()?;
        check_output("loss", term.loss.name(), term.output, outputs)?;
        if !term.weight.is_finite() {
            let (name, weight) = (term.loss.name(), term.weight);
            return Err(Error::user(format!(
                "loss `{name}` has the weight {weight}; expected a finite number"
            )));
        }
    }
    for metric in compile.metrics.iter().chain(&compile.weighted_metrics) {
        check_output("metric", metric.metric.name(), metric.output, outputs)?;
    }
    Ok(())
}

fn check_output(what: &str, name: &str, output: usize, outputs: usize) -> Result<()> {
    if output < outputs {
        return Ok(());
    }
    Err(Error::user(format!(
        "{what} `{name}` is of output {output}, but the model has {outputs}; outputs are counted from 0"
    )))
}

/// Mistakes of losses, metrics and optimizers have no place in the user's source.
pub(super) fn explain(error: GraphError) -> Error {
    let GraphError {
        op, message, label, ..
    } = &error;
    match label {
        Some(_) => Error::Graph(error),
        None => Error::user(format!("{op}: {message}")),
    }
}

#[cfg(test)]
#[path = "../../../graph/tests/support/golden.rs"]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::losses::SparseCategoricalCrossentropy;
    use crate::metrics::Accuracy;
    use crate::nn::{BatchNorm, Dense, Dropout, Layer, Regularizer, Sequential, relu};
    use crate::optim::Sgd;
    use phalanx_graph::op::{Node, Op, Value};
    use phalanx_graph::{Lowering, Platform};

    fn setup() -> Setup {
        let model = Sequential::new([4])
            .add(
                Dense::new(3)
                    .activation(relu)
                    .kernel_regularizer(Regularizer::L2 { l2: 0.01 }),
            )
            .add(BatchNorm::new())
            .add(Dropout::new(0.5))
            .add(Dense::new(2).named("class"))
            .build()
            .unwrap();
        let compile = Compile {
            optimizer: Sgd::new(0.1).momentum(0.9).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            metrics: vec![Accuracy.into()],
            ..Compile::default()
        };
        Setup::new(model, compile, 1, Reduction::default()).unwrap()
    }

    fn batch() -> BatchShape {
        BatchShape {
            x: vec![Shape::f32([8, 4])],
            y: vec![Shape::new(DType::I32, [8])],
            weight: Some(Shape::f32([8])),
            filled: false,
            sizes: Vec::new(),
        }
    }

    #[test]
    fn the_programs_are_as_they_were() {
        let (setup, batch) = (setup(), batch());
        let steps = [
            ("training_step", setup.train_step(&batch).unwrap()),
            ("test_step", setup.test_step(&batch).unwrap()),
        ];
        let command = "cargo test -p phalanx --lib fit::step";
        for (name, step) in steps {
            let lowering = Lowering::new(Platform::Cpu, name);
            let text = step.program.simplified().to_stablehlo(&lowering);
            assert_eq!(golden::mismatch(name, &text, command), None);
        }
    }

    #[test]
    fn mixed_precision_converts_each_kernel_once() {
        let mut setup = setup();
        setup.precision = Policy::MixedBfloat16;
        let program = setup.train_step(&batch()).unwrap().program.simplified();
        let dtype = |value: &Value| program.shape(*value).dtype;
        let narrowed = |name: &str| {
            let parameter = program.parameters.iter().find(|p| p.name == name).unwrap();
            let of_it = |node: &&Node| {
                node.op == Op::Convert(DType::Bf16) && node.inputs[0].node == parameter.node
            };
            program.nodes.iter().filter(of_it).count()
        };
        for name in [
            "dense/kernel",
            "dense/bias",
            "class/kernel",
            "class/bias",
            "x",
        ] {
            assert_eq!(narrowed(name), 1, "{name}");
        }
        assert_eq!(narrowed("batch_norm/gamma"), 0);
        let dots = program
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::Dot(_)));
        for dot in dots.clone() {
            assert!(dot.inputs.iter().all(|input| dtype(input) == DType::Bf16));
            assert_eq!(dot.shapes[0].dtype, DType::F32);
        }
        assert_eq!(dots.count(), 2 + 3);
        for parameter in &program.parameters {
            assert_ne!(parameter.shape.dtype, DType::Bf16, "{}", parameter.name);
        }
        assert!(
            program
                .outputs
                .iter()
                .all(|(_, value)| dtype(value) != DType::Bf16)
        );
    }

    #[test]
    fn a_training_step_replaces_all_that_it_changes_in_place() {
        let setup = setup();
        let step = setup.train_step(&batch()).unwrap();
        // Variables and slots of the two layers, gamma and beta, the two moving statistics, the counters; the rate stays.
        assert_eq!(step.changed.len(), 6 + 2 + 6 + 1);
        assert!(step.disconnected.is_empty());
        let program = step.program;
        for (parameter, output) in program.donated {
            let given = &program.parameters[parameter].shape;
            assert_eq!(*given, *{
                let value = program.outputs[output].1;
                &program.nodes[value.node].shapes[value.output]
            });
        }
    }
}
