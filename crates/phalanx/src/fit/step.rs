//! The programs of a step: training, test, prediction.
//!
//! A training step is one program: forward, the loss divided by the true weight of the batch, derivatives, the
//! optimizer's update, metrics. Everything that changes from step to step is an array on the device that goes in and
//! comes out, so neither the host nor the device waits for a number of the other.
//!
//! Each of `R` replicas runs the program on its rows of the batch. Its loss is its share of the whole: its weighted sum
//! over the weight of all replicas' rows, plus `1 / R` of the penalties. So the sum of the replicas' gradients is the
//! gradient of one replica with all the rows, and what follows (unscaling, the finite check, clipping, the update) is
//! the same everywhere. Keras clips before the sum, and looks at one replica's gradients for what is not finite.

use phalanx_graph::{DType, Graph, GraphError, Program, Shape, Tensor};

use super::batch_tensors::BatchTensors;
use super::epoch_totals::LossAndMetrics;
use super::forward_backward::{LocalGradients, StepInputs};
use super::loss_scale::FiniteCheck;
use super::pipeline::{PipelinePrograms, weight_program};
use super::setup::{Setup, StepLayout};
use super::state_spec::StateView;
use super::state_updates::StateUpdates;
use crate::optim::{ParamSpec, WindowPart};
use crate::{Error, Result};

/// The shapes of a batch as one replica gets it, with the batch dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchShape {
    pub(super) x: Vec<Shape>,
    pub(super) y: Vec<Shape>,
    pub(super) weight: Option<Shape>,
    /// Whether rows may be padding.
    pub(super) filled: bool,
    /// The sizes of the replicas' shares, each once, the largest first; empty where a share may have any size.
    pub(super) sizes: Vec<usize>,
}

/// A step that was traced and is not compiled yet.
pub(super) struct StepProgram {
    /// The program of the devices that compute.
    pub(super) program: Program,
    pub(super) kind: StepKind,
    /// Trained variables that the loss does not depend on.
    pub(super) disconnected: Vec<String>,
    /// What replicas exchange of their gradients and when, in words.
    pub(super) exchange: Option<String>,
}

/// How the program of a step changes the state.
pub(super) enum StepKind {
    /// Its first outputs replace the `changed` arrays of the state.
    InPlace { changed: Vec<usize> },
    /// Its first outputs, of these shapes, are sent to the parameter device, where `apply` replaces the `changed` arrays.
    ParameterDevice {
        apply: Box<Program>,
        sent: Vec<Shape>,
        changed: Vec<usize>,
    },
    /// It is the program of one micro-batch, to be cut into stages.
    Pipelined(Box<PipelinePrograms>),
    /// Its first outputs are sent to parameter servers.
    Servers(SentToServers),
}

/// What a step sends to parameter servers: gradients of the `connected` variables, then what layers changed of the `changed` ones, by
/// their positions.
pub(super) struct SentToServers {
    pub(super) connected: Vec<usize>,
    pub(super) changed: Vec<usize>,
    pub(super) shapes: Vec<Shape>,
}

/// The gradients of a step over all replicas.
pub(super) struct ReducedGradients {
    /// This replica's loss and metrics; none where another program has counted them.
    loss_and_metrics: Option<LossAndMetrics>,
    /// Positions, among the trained variables, of those that the loss depends on.
    pub(super) connected: Vec<usize>,
    /// Their gradients, of the scaled loss.
    pub(super) gradients: Vec<Tensor>,
    /// New state of layers, by the positions of the variables.
    pub(super) updates: Vec<(usize, Tensor)>,
    /// Whether the gradients are finite, in parts, where another program has found out.
    finite: Vec<Tensor>,
    /// Which part of a window they are of: within one they are this replica's alone.
    part: WindowPart,
    /// What replicas exchange, in words.
    exchange: Option<String>,
}

impl StepProgram {
    fn new(program: Program, kind: StepKind) -> Self {
        Self {
            program,
            kind,
            disconnected: Vec::new(),
            exchange: None,
        }
    }
}

impl Setup {
    /// The programs of a training step.
    ///
    /// Arguments: the state (see [`StateSpec`](super::state_spec::StateSpec)), the epoch totals, the seed, the batch.
    /// Outputs: the changed state, the epoch totals. Where the layout is another, the function of its case says how.
    ///
    /// `part` is as [`window_part`](Self::window_part) has it. A step within a window exchanges no gradients, its last step the
    /// sums over the window.
    pub(super) fn train_step(&self, shape: &BatchShape, part: WindowPart) -> Result<StepProgram> {
        let graph = self.graph();
        let state = match self.layout {
            StepLayout::ParameterDevice | StepLayout::Servers => {
                self.state.bind_for_replicas(&graph)
            }
            _ => self.state.bind(&graph),
        };
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let batch = self.bind_batch(&graph, shape);
        let view = self.state.view(&state);
        let inputs = StepInputs::of_step(&graph, &view, &seed);
        let mut local = self.forward_backward(&inputs, &batch);
        if part == WindowPart::Last {
            self.add_window(&view, &mut local);
        }
        let reduced = self.all_reduce(&graph, local, &batch, part)?;
        let disconnected = self.state.names_of_others(&reduced.connected);
        let exchange = reduced.exchange.clone();
        let (program, kind) = match &self.layout {
            StepLayout::Replicated | StepLayout::Sharded(_) => {
                self.update_in_place(&graph, &state, &totals, &reduced)
            }
            StepLayout::ParameterDevice => {
                self.send_to_parameter_device(&graph, &state, &totals, &reduced)
            }
            StepLayout::Servers => self.send_to_servers(&graph, &state, &totals, &reduced),
            StepLayout::Pipelined(plan) => {
                self.accumulate_micro_batch(&graph, plan, &state, &totals, &batch, reduced)
            }
        }?;
        Ok(StepProgram {
            program,
            kind,
            disconnected,
            exchange,
        })
    }

    /// Ends a step that replaces the state on the devices that computed.
    fn update_in_place(
        &self,
        graph: &Graph,
        state: &[Tensor],
        totals: &Tensor,
        reduced: &ReducedGradients,
    ) -> Result<(Program, StepKind)> {
        let view = self.state.view(state);
        let mut updates = StateUpdates::new(state);
        let finite_check = self.update(&view, reduced, &mut updates);
        updates.shard(&self.state.shardings());
        let mut after = self.totals_after_step(totals, reduced, finite_check.as_ref(), &view);
        if self.workers > 1 {
            // A step is a transaction: if an exchange failed, every array stays as it was.
            let succeeded = graph.exchanges_succeeded();
            updates.select_if(&succeeded);
            after = succeeded.select(&after, totals);
        }
        let (program, changed) = updates.finish(graph, Some(&after))?;
        Ok((program, StepKind::InPlace { changed }))
    }

    /// Ends a step whose variables are on a parameter device, as two programs.
    ///
    /// The first, of the replicas: arguments are variables, slots of the loss scale, iterations, epoch totals, seed,
    /// batch; outputs the gradients, the new state of layers, the epoch totals. The second, of the parameter device:
    /// arguments are the state, the gradients, the new state of layers; outputs the changed state.
    fn send_to_parameter_device(
        &self,
        graph: &Graph,
        state: &[Tensor],
        totals: &Tensor,
        reduced: &ReducedGradients,
    ) -> Result<(Program, StepKind)> {
        let view = self.state.view(state);
        let unscaled = self
            .loss_scale
            .unscaled(reduced.gradients.clone(), view.scale);
        let finite_check = self.loss_scale.finite_check(&unscaled, &[], view.scale);
        let after = self.totals_after_step(totals, reduced, finite_check.as_ref(), &view);
        let updates = reduced.updates.iter().map(|(_, value)| value);
        let sent: Vec<&Tensor> = reduced.gradients.iter().chain(updates).collect();
        let named = sent.iter().map(|value| ("sent", *value));
        let outputs: Vec<(&str, &Tensor)> = named.chain([("tally", &after)]).collect();
        let mut program = graph.finish(&outputs).map_err(explain)?;
        program.donated = vec![(state.len(), outputs.len() - 1)];
        let apply_graph = Graph::new();
        let state = self.state.bind(&apply_graph);
        let mut updates = StateUpdates::new(&state);
        self.apply_received(&apply_graph, &state, reduced, 0, &mut updates);
        let (apply, changed) = updates.finish(&apply_graph, None)?;
        let kind = StepKind::ParameterDevice {
            apply: Box::new(apply),
            sent: sent.iter().map(|value| value.shape()).collect(),
            changed,
        };
        Ok((program, kind))
    }

    /// Ends a step whose variables are on parameter servers. Arguments: variables, iterations, epoch totals, seed, batch; outputs: the
    /// gradients, by how much layers changed their state (of integers the new state), the epoch totals.
    fn send_to_servers(
        &self,
        graph: &Graph,
        state: &[Tensor],
        totals: &Tensor,
        reduced: &ReducedGradients,
    ) -> Result<(Program, StepKind)> {
        let view = self.state.view(state);
        let unscaled = self
            .loss_scale
            .unscaled(reduced.gradients.clone(), view.scale);
        let after = self.totals_after_step(totals, reduced, None, &view);
        let connected = reduced.connected.iter();
        let connected: Vec<usize> = connected.map(|&p| self.state.trained[p]).collect();
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
        let named = sent.iter().map(|value| ("sent", value));
        let outputs: Vec<(&str, &Tensor)> = named.chain([("tally", &after)]).collect();
        let mut program = graph.finish(&outputs).map_err(explain)?;
        program.donated = vec![(state.len(), outputs.len() - 1)];
        let kind = StepKind::Servers(SentToServers {
            connected,
            changed: reduced.updates.iter().map(|(index, _)| *index).collect(),
            shapes: sent.iter().map(Tensor::shape).collect(),
        });
        Ok((program, kind))
    }

    /// Updates the state from gradients that another program computed: they, the new state of layers and `flags` scalars
    /// that say whether gradients are finite become parameters, in this order. Returns whether the step counts.
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
            part: reduced.part,
            exchange: None,
        };
        self.update(&self.state.view(state), &received, state_updates)
    }

    /// Adds what a replica has accumulated over the batches of a window to the gradients of the last one; they are of the
    /// scaled loss, accumulated ones are not.
    fn add_window(&self, view: &StateView<'_>, local: &mut LocalGradients) {
        let accumulated = self.state.accumulated();
        let first = view.variables.len();
        for (&param, gradient) in local.connected.iter().zip(&mut local.gradients) {
            let sum = &view.slots[accumulated[param] - first];
            let sum = self.loss_scale.scaled(sum, view.scale);
            *gradient = gradient.convert(sum.dtype()) + sum;
        }
    }

    /// Sums the gradients of all replicas, unless the window goes on, and lets them agree on the new state of layers.
    fn all_reduce(
        &self,
        graph: &Graph,
        local: LocalGradients,
        batch: &BatchTensors,
        part: WindowPart,
    ) -> Result<ReducedGradients> {
        let trains = !self.state.trained.is_empty();
        if local.connected.is_empty() && trains && graph.error().is_none() {
            return Err(Error::user(
                "the loss depends on no trainable variable, so there is nothing to train; check that the loss uses the model's output and that it is differentiable",
            ));
        }
        let mut gradients = local.gradients;
        let is_exchanged = self.replicas > 1 && part != WindowPart::Inner;
        let is_told = is_exchanged && graph.error().is_none();
        let exchange = is_told.then(|| self.told_exchange(&gradients));
        if is_exchanged {
            gradients = self.reduction.sum(&gradients);
        }
        Ok(ReducedGradients {
            part,
            exchange,
            updates: self.synced_layer_state(&local.updates, batch),
            loss_and_metrics: Some(local.loss_and_metrics),
            finite: Vec::new(),
            connected: local.connected,
            gradients,
        })
    }

    /// What replicas exchange, and when.
    fn told_exchange(&self, gradients: &[Tensor]) -> String {
        let exchange = self.reduction.report(gradients);
        match self.local_window() {
            None => format!("replicas add in each step {exchange}"),
            Some(steps) => format!("replicas add after every {steps} batches {exchange}"),
        }
    }

    /// The epoch totals after a training step, skipped or not.
    pub(super) fn totals_after_step(
        &self,
        totals: &Tensor,
        reduced: &ReducedGradients,
        finite_check: Option<&FiniteCheck>,
        view: &StateView<'_>,
    ) -> Tensor {
        let Some(loss_and_metrics) = &reduced.loss_and_metrics else {
            return totals.clone();
        };
        let counted = Some(view.iterations);
        let after = self
            .epoch_totals
            .add_batch(totals, loss_and_metrics, counted, self.workers);
        match finite_check {
            Some(check) => {
                let skipped = self
                    .epoch_totals
                    .add_skipped(totals, check, view.iterations);
                check.finite.select(&after, &skipped)
            }
            None => after,
        }
    }

    /// The program of a test. Arguments: the variables, the epoch totals, the batch. Output: the epoch totals.
    pub(super) fn test_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let variables = self.state.bind_variables(&graph);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let batch = self.bind_batch(&graph, shape);
        let loss_and_metrics = self.forward_loss(&StepInputs::variables(&variables), &batch);
        let after = self
            .epoch_totals
            .add_batch(&totals, &loss_and_metrics, None, 1);
        let weights = weight_program(&graph, &batch)?;
        let mut program = graph.finish(&[("tally", &after)]).map_err(explain)?;
        program.donated = vec![(variables.len(), 0)];
        let pipelined = || PipelinePrograms::test(variables.len(), weights);
        Ok(StepProgram::new(
            program,
            self.kind_without_update(pipelined),
        ))
    }

    /// The program of a prediction. Arguments: the variables, the inputs. Outputs: the outputs of the model.
    pub(super) fn predict_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = self.graph();
        let variables = self.state.bind_variables(&graph);
        let batch = BatchTensors::bind(&graph, shape, self.layout.mesh());
        let outputs = self.forward_outputs(&StepInputs::variables(&variables), &batch);
        let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("output", output)).collect();
        let program = graph.finish(&named).map_err(explain)?;
        let pipelined = || PipelinePrograms::forward(outputs.len());
        Ok(StepProgram::new(
            program,
            self.kind_without_update(pipelined),
        ))
    }

    fn kind_without_update(&self, pipelined: impl FnOnce() -> PipelinePrograms) -> StepKind {
        match self.layout {
            StepLayout::Pipelined(_) => StepKind::Pipelined(Box::new(pipelined())),
            _ => StepKind::InPlace {
                changed: Vec::new(),
            },
        }
    }

    /// Updates the state with these gradients; returns whether the step counts.
    fn update(
        &self,
        view: &StateView<'_>,
        reduced: &ReducedGradients,
        state_updates: &mut StateUpdates,
    ) -> Option<FiniteCheck> {
        let (spec, connected) = (&self.state, &reduced.connected);
        let (variables, slots) = (view.variables, view.slots);
        let gradients = self
            .loss_scale
            .unscaled(reduced.gradients.clone(), view.scale);
        let finite_check = self
            .loss_scale
            .finite_check(&gradients, &reduced.finite, view.scale);
        let params = connected.iter().map(|&param| spec.params[param].clone());
        let params: Vec<ParamSpec> = params.collect();
        let values = connected.iter();
        let values = values.map(|&param| variables[spec.trained[param]].clone());
        let values: Vec<Tensor> = values.collect();
        // Without a gradient neither the variable nor its slots change.
        let is_used = |&slot: &usize| {
            let owner = spec.slots[slot].param;
            owner.is_none_or(|param| connected.contains(&param))
        };
        let used: Vec<usize> = (0..slots.len()).filter(is_used).collect();
        let slots: Vec<Tensor> = used.iter().map(|&slot| slots[slot].clone()).collect();
        let step = (reduced.part, view.iterations);
        let applied = self
            .optimizer
            .apply_in_window(&params, step, &values, &gradients, &slots);
        for (&param, value) in connected.iter().zip(&applied.params) {
            state_updates.set(spec.trained[param], value);
        }
        for (&slot, value) in used.iter().zip(&applied.slots) {
            state_updates.set(variables.len() + slot, value);
        }
        for (index, value) in &reduced.updates {
            state_updates.set(*index, value);
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
}

/// The random key of a step: a hash of the seed and the number of the step.
pub(crate) fn step_key(graph: &Graph, seed: &Tensor, iterations: &Tensor) -> Tensor {
    let number = iterations.convert(DType::U32);
    graph.random_bits(seed, &number, &[1, 2]).reshape(&[2])
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
    use crate::fit::{Compile, LossScale};
    use crate::losses::SparseCategoricalCrossentropy;
    use crate::metrics::Accuracy;
    use crate::nn::{BatchNorm, Dense, Dropout, Layer, Policy, Regularizer, Sequential, relu};
    use crate::optim::{Optimizer, Sgd};
    use crate::replicas::Reduction;
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
            (
                "training_step",
                setup.train_step(&batch, WindowPart::Counted).unwrap(),
            ),
            ("test_step", setup.test_step(&batch).unwrap()),
        ];
        let command = "cargo test -p phalanx --lib fit::step";
        for (name, step) in steps {
            let lowering = Lowering::new(Platform::Cpu, name);
            let text = step.program.simplified().to_stablehlo(&lowering);
            assert_eq!(golden::mismatch(name, &text, command), None);
        }
    }

    /// The exchanges of a window of three batches on two replicas, and of the trainings that exchange each batch.
    #[test]
    fn a_window_of_batches_is_exchanged_once() {
        let setup = |loss_scale| {
            let model = Sequential::new([4])
                .add(Dense::new(3).activation(relu))
                .add(Dense::new(2));
            let compile = Compile {
                optimizer: Optimizer::from(Sgd::new(0.1)).gradient_accumulation(3),
                loss: SparseCategoricalCrossentropy::from_logits().into(),
                loss_scale,
                ..Compile::default()
            };
            Setup::new(model.build().unwrap(), compile, 2, Reduction::default()).unwrap()
        };
        let batch = BatchShape {
            weight: None,
            ..batch()
        };
        let exchanges = |setup: &Setup| {
            let steps = (0..3).map(|batches| setup.train_step(&batch, setup.window_part(batches)));
            let is_exchange = |node: &&Node| matches!(node.op, Op::AllReduce { .. });
            let count = |step: Result<StepProgram>| {
                let program = step.unwrap().program.simplified();
                program.nodes.iter().filter(is_exchange).count()
            };
            steps.map(count).collect::<Vec<usize>>()
        };
        assert_eq!(exchanges(&setup(LossScale::Off)), [0, 0, 1]);
        assert_eq!(exchanges(&setup(LossScale::Fixed(8.0))), [0, 0, 1]);
        // A batch that is left out is left out of the window on all replicas.
        assert_eq!(exchanges(&setup(LossScale::SkipNonFinite)), [1, 1, 1]);
        let mut workers = setup(LossScale::Off);
        workers.workers = 2;
        assert_eq!(workers.window_part(0), WindowPart::Counted);
    }

    #[test]
    fn mixed_precision_converts_each_kernel_once() {
        let mut setup = setup();
        setup.precision = Policy::MixedBfloat16;
        let program = setup
            .train_step(&batch(), WindowPart::Counted)
            .unwrap()
            .program
            .simplified();
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
        let step = setup.train_step(&batch(), WindowPart::Counted).unwrap();
        // Variables and slots of the two layers, gamma and beta, the two moving statistics, the counters; the rate stays.
        let StepKind::InPlace { changed } = step.kind else {
            panic!("the step of one replica replaces its state in place");
        };
        assert_eq!(changed.len(), 6 + 2 + 6 + 1);
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
