//! The programs of a step: training, test, prediction.
//!
//! A training step is one program: forward, the loss divided by the true weight of the batch, derivatives, the
//! optimizer's update, metrics. Everything that changes from step to step is an array on the device that goes in and
//! comes out, so neither the host nor the device waits for a number of the other.
//!
//! Each of `R` replicas runs the program on its rows of the batch. Its loss is its share of the whole: its weighted sum
//! over the weight of all replicas' rows, plus its part of the penalties, by its examples. So the sum of the replicas' gradients is the
//! gradient of one replica with all the rows, and what follows (unscaling, the finite check, clipping, the update) is
//! the same everywhere. Keras clips before the sum, and looks at one replica's gradients for what is not finite.

use phalanx_graph::{DType, Graph, GraphError, Program, Shape, Tensor};

use super::batch_tensors::BatchTensors;
use super::end_of_step::TrainStep;
use super::forward_backward::{ForwardPass, LocalGradients, StepInputs};
use super::pipeline::{PipelinePrograms, weight_program};
use super::reduced_gradients::{ReducedGradients, exchange_report};
use super::setup::{Setup, StepLayout};
use crate::optim::WindowPart;
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
    /// It changes nothing; its first parameters are the variables, as many as `variables`.
    ReadOnly { variables: usize },
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

/// Builds the program of a step.
pub(super) struct StepBuilder<'a> {
    setup: &'a Setup,
    graph: Graph,
}

impl<'a> StepBuilder<'a> {
    pub(super) fn new(setup: &'a Setup) -> Self {
        Self {
            graph: setup.graph(),
            setup,
        }
    }

    /// The programs of a training step, or of as many steps, one after the other, as there are parts.
    ///
    /// Arguments: the state (see [`StateSpec`](super::state_spec::StateSpec)), the epoch totals, the seed, the batch of each step.
    /// Outputs: the changed state, the epoch totals. Where the layout is another, the method of [`TrainStep`] for its case says how.
    ///
    /// `parts` are as [`AccumulationWindow::part`](super::accumulation_window::AccumulationWindow::part) has them. A step within a
    /// window exchanges no gradients, its last step the sums over the window.
    pub(super) fn train_steps(
        self,
        shape: &BatchShape,
        parts: &[WindowPart],
    ) -> Result<StepProgram> {
        let (setup, graph) = (self.setup, &self.graph);
        let arguments = match setup.layout {
            StepLayout::ParameterDevice | StepLayout::Servers => {
                setup.state.bind_for_replicas(graph)
            }
            _ => setup.state.bind(graph),
        };
        let totals = graph.parameter("tally", setup.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let (mut last, mut exchange) = (None::<TrainStep<'_>>, None);
        for &part in parts {
            let (state, sums) = match &last {
                Some(step) => step.values_after(),
                None => (arguments.clone(), totals.clone()),
            };
            let batch = self.bind_batch(shape);
            let inputs = StepInputs::of_step(graph, &setup.state.view(&state), &seed);
            let local = ForwardPass::new(setup).forward_backward(&inputs, &batch);
            let (step, exchanged) = self.reduced(local, batch, (state, sums), part)?;
            exchange = exchange.or(exchanged);
            last = Some(step);
        }
        let step = last.ok_or_else(|| Error::Bug("a program without steps".into()))?;
        let disconnected = setup.state.names_of_others(&step.reduced.connected);
        let (program, kind) = step.finish(&arguments)?;
        Ok(StepProgram {
            program,
            kind,
            disconnected,
            exchange,
        })
    }

    /// A training step from this state and these epoch totals, after its derivatives; what replicas exchange in it.
    fn reduced(
        &self,
        mut local: LocalGradients,
        batch: BatchTensors,
        (state, totals): (Vec<Tensor>, Tensor),
        part: WindowPart,
    ) -> Result<(TrainStep<'a>, Option<String>)> {
        let setup = self.setup;
        if part == WindowPart::Last {
            local.add_window(setup, &setup.state.view(&state));
        }
        local.check_connected(setup)?;
        local.gradients = setup
            .loss_scale
            .marked(local.gradients, &local.loss_and_metrics.loss);
        let exchange = exchange_report(setup, &local, part);
        let reduced = ReducedGradients::all_reduce(setup, &local, &batch, part);
        let step = TrainStep {
            loss_and_metrics: local.loss_and_metrics,
            graph: self.graph.clone(),
            setup,
            state,
            totals,
            batch,
            reduced,
        };
        Ok((step, exchange))
    }

    /// The program of the gradients of a batch: of the loss itself, over all replicas and processes, before the optimizer clips them.
    ///
    /// Arguments: as of a training step. Outputs: a gradient for each trained variable, zeros where the loss does not depend on it.
    pub(super) fn gradients(self, shape: &BatchShape) -> Result<StepProgram> {
        let (setup, graph) = (self.setup, &self.graph);
        let state = setup.state.bind(graph);
        let _totals = graph.parameter("tally", setup.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let batch = self.bind_batch(shape);
        let view = setup.state.view(&state);
        let inputs = StepInputs::of_step(graph, &view, &seed);
        let local = ForwardPass::new(setup).forward_backward(&inputs, &batch);
        let summed = match setup.replicas {
            1 => local.gradients,
            _ => setup.reduction.sum(&local.gradients),
        };
        let unscaled = setup.loss_scale.unscaled(summed, view.scale);
        let trained = setup.state.trained.iter();
        let mut all: Vec<Tensor> = trained
            .map(|&index| view.variables[index].like(0.0))
            .collect();
        for (&param, gradient) in local.connected.iter().zip(&unscaled) {
            all[param] = gradient.convert(all[param].dtype());
        }
        let shardings = setup.state.shardings();
        let placed = setup.state.trained.iter().zip(&all);
        let placed: Vec<Tensor> = placed
            .map(|(&index, gradient)| gradient.sharded(&shardings[index]))
            .collect();
        let outputs = placed.iter().map(|gradient| ("gradient", gradient));
        let program = graph
            .finish(&outputs.collect::<Vec<_>>())
            .map_err(explain)?;
        let changed = Vec::new();
        Ok(StepProgram::new(program, StepKind::InPlace { changed }))
    }

    /// The program of a test. Arguments: the variables, the epoch totals, the batch. Output: the epoch totals.
    pub(super) fn test_step(self, shape: &BatchShape) -> Result<StepProgram> {
        let (setup, graph) = (self.setup, &self.graph);
        let variables = setup.state.bind_variables(graph);
        let totals = graph.parameter("tally", setup.epoch_totals.shape());
        let batch = self.bind_batch(shape);
        let pass = ForwardPass::new(setup);
        let loss_and_metrics = pass.forward_loss(&StepInputs::variables(&variables), &batch);
        let after = setup
            .epoch_totals
            .add_batch(&totals, &loss_and_metrics, None, false);
        let weights = weight_program(graph, &batch)?;
        let mut program = graph.finish(&[("tally", &after)]).map_err(explain)?;
        program.donated = vec![(variables.len(), 0)];
        let pipelined = || PipelinePrograms::test(variables.len(), weights);
        Ok(StepProgram::new(
            program,
            self.kind_without_update(pipelined),
        ))
    }

    /// The program of a prediction. Arguments: the variables, the inputs. Outputs: the outputs of the model.
    pub(super) fn predict_step(self, shape: &BatchShape) -> Result<StepProgram> {
        let (setup, graph) = (self.setup, &self.graph);
        let variables = setup.state.bind_variables(graph);
        let batch = BatchTensors::bind(graph, shape, setup.layout.mesh());
        let pass = ForwardPass::new(setup);
        let outputs = pass.forward_outputs(&StepInputs::variables(&variables), &batch);
        let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("output", output)).collect();
        let program = graph.finish(&named).map_err(explain)?;
        let pipelined = || PipelinePrograms::forward(outputs.len());
        Ok(StepProgram::new(
            program,
            self.kind_without_update(pipelined),
        ))
    }

    /// A batch that trains or tests, as parameters of the graph.
    fn bind_batch(&self, shape: &BatchShape) -> BatchTensors {
        let layout = &self.setup.layout;
        let mut batch = BatchTensors::bind(&self.graph, shape, layout.mesh());
        if let Some(plan) = layout.stage_plan() {
            batch.micro_batches = plan.micro_batches;
        }
        batch
    }

    fn kind_without_update(&self, pipelined: impl FnOnce() -> PipelinePrograms) -> StepKind {
        match self.setup.layout {
            StepLayout::Pipelined(_) => StepKind::Pipelined(Box::new(pipelined())),
            _ => StepKind::ReadOnly {
                variables: self.setup.model.variables().len(),
            },
        }
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
                StepBuilder::new(&setup)
                    .train_steps(&batch, &[WindowPart::Counted])
                    .unwrap(),
            ),
            (
                "test_step",
                StepBuilder::new(&setup).test_step(&batch).unwrap(),
            ),
        ];
        let command = "cargo test -p phalanx --lib fit::step_program";
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
            let step = |batches| {
                let part = setup.window().part(batches);
                StepBuilder::new(setup).train_steps(&batch, &[part])
            };
            let steps = (0..3).map(step);
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
        (workers.workers, workers.shares_totals) = (2, true);
        // Between processes the sums of the epoch are exchanged with each batch.
        assert_eq!(exchanges(&workers), [1, 1, 2]);
    }

    #[test]
    fn mixed_precision_converts_each_kernel_once() {
        let mut setup = setup();
        setup.precision = Policy::MixedBfloat16;
        let program = StepBuilder::new(&setup)
            .train_steps(&batch(), &[WindowPart::Counted])
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
        let step = StepBuilder::new(&setup)
            .train_steps(&batch(), &[WindowPart::Counted])
            .unwrap();
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
