//! What a pipeline needs beside the program of a micro-batch: how its values go on from one micro-batch to the next, and
//! the programs that run before the first and after the last.

use std::collections::BTreeMap;

use phalanx_graph::{Graph, Program, Shape, Tensor};

use super::{StageId, StagePlan, ValueId};
use crate::Result;
use crate::fit::batch_tensors::BatchTensors;
use crate::fit::end_of_step::{TrainStep, apply_gradients};
use crate::fit::loss_scale::all_finite;
use crate::fit::reduced_gradients::ReducedGradients;
use crate::fit::setup::Setup;
use crate::fit::state_updates::StateUpdates;
use crate::fit::step_program::{StepKind, explain};

/// What a program in stages needs beside itself.
pub(in crate::fit) struct PipelinePrograms {
    /// The number of outputs, the first ones, that come from the forward pass.
    pub(super) forward_outputs: usize,
    pub(super) carried: Vec<Carried>,
    pub(super) gradient_sums: Vec<GradientSum>,
    pub(super) weights: Option<WeightProgram>,
    /// The update that follows all micro-batches of a training step.
    pub(super) update: Option<PipelineUpdate>,
}

/// A parameter that the next micro-batch takes from an output of this one.
#[derive(Clone, Copy)]
pub(super) struct Carried {
    pub(super) into: ValueId,
    /// The position of the output.
    pub(super) output: usize,
}

/// The sum of a gradient over micro-batches: a parameter that is zero for the first.
pub(super) struct GradientSum {
    pub(super) value: ValueId,
    pub(super) shape: Shape,
    pub(super) stage: StageId,
}

/// The program that adds the weights of a micro-batch to the sums over the micro-batches before it.
///
/// The loss divides by the weight of the whole batch, which must therefore be known before the first micro-batch is
/// differentiated: this program runs over all micro-batches first.
pub(in crate::fit) struct WeightProgram {
    pub(super) program: Program,
    /// Which parameters are the sums; they have the same numbers in this program and in the step's.
    pub(super) sums: Vec<ValueId>,
}

/// The update of a step in stages. Where a step may be skipped, it also decides on the state of layers and the epoch
/// totals: micro-batches have changed them before it is known that gradients are not finite.
pub(super) struct PipelineUpdate {
    pub(super) program: Program,
    /// Of each output the parameter of the step that it replaces, and its stage.
    pub(super) replaced: Vec<(ValueId, StageId)>,
    pub(super) inputs: Vec<UpdateInput>,
    pub(super) finite: Option<FiniteProgram>,
}

/// The program that says of the gradients of each stage whether they are finite: an output for each stage that has some.
pub(super) struct FiniteProgram {
    pub(super) program: Program,
    pub(super) stages: Vec<StageId>,
}

/// Where an update has a parameter from.
#[derive(Clone, Copy)]
pub(super) enum UpdateInput {
    /// A parameter of the step, as it was before the first micro-batch.
    Before(ValueId),
    /// A parameter of the step, as it is after the last micro-batch.
    After(ValueId),
    /// An output of the [`FiniteProgram`].
    Finite(usize),
}

impl PipelinePrograms {
    /// For a prediction: forward alone.
    pub(in crate::fit) const fn forward(outputs: usize) -> Self {
        Self {
            forward_outputs: outputs,
            carried: Vec::new(),
            gradient_sums: Vec::new(),
            weights: None,
            update: None,
        }
    }

    /// For a test, whose only output are the epoch totals, which follow `variables` variables in its parameters.
    pub(in crate::fit) fn test(variables: usize, weights: Option<WeightProgram>) -> Self {
        let totals = Carried {
            into: ValueId(variables),
            output: 0,
        };
        Self {
            carried: vec![totals],
            weights,
            ..Self::forward(1)
        }
    }
}

/// Ends the program of one micro-batch of a training step, which adds its gradients to the sums so far.
///
/// Arguments: the state, the epoch totals, the seed, the micro-batch, the weights of the whole batch, the sums of
/// the gradients so far. Outputs: the epoch totals, the state of layers, the sums.
pub(in crate::fit) fn accumulate_micro_batch(
    step: TrainStep<'_>,
    plan: &StagePlan,
) -> Result<(Program, StepKind)> {
    let after = step.totals_after(None);
    step.reduced.check_replaced(step.setup, "in a pipeline")?;
    let TrainStep {
        setup,
        graph,
        state,
        totals,
        batch,
        reduced,
        ..
    } = step;
    let weights = weight_program(&graph, &batch)?;
    let stages = setup.state.stages(plan);
    // Parameters and the positions of the outputs that they are for the next micro-batch.
    let mut carried = vec![(totals, 0)];
    for (at, (index, _)) in reduced.updates.iter().enumerate() {
        carried.push((state[*index].clone(), 1 + at));
    }
    let (mut added, mut sums) = (Vec::new(), Vec::new());
    for (gradient, &param) in reduced.gradients.iter().zip(&reduced.connected) {
        let sum = graph.parameter("sum", gradient.shape());
        added.push(&sum + gradient);
        carried.push((sum.clone(), reduced.updates.len() + added.len()));
        sums.push((sum, stages[setup.state.trained[param]]));
    }
    let updates = reduced.updates.iter().map(|(_, value)| value);
    let values = updates.chain(&added).map(|value| ("value", value));
    let outputs: Vec<(&str, &Tensor)> = [("tally", &after)].into_iter().chain(values).collect();
    let program = graph.finish(&outputs).map_err(explain)?;
    let carried = carried.iter().map(|(tensor, output)| Carried {
        into: parameter_id(&program, tensor),
        output: *output,
    });
    let sums = sums.iter().map(|(sum, stage)| GradientSum {
        value: parameter_id(&program, sum),
        shape: sum.shape(),
        stage: *stage,
    });
    let sums: Vec<GradientSum> = sums.collect();
    let programs = PipelinePrograms {
        forward_outputs: 1 + reduced.updates.len(),
        carried: carried.collect(),
        update: Some(pipeline_update(setup, plan, reduced, &sums)?),
        gradient_sums: sums,
        weights,
    };
    Ok((program, StepKind::Pipelined(Box::new(programs))))
}

/// The update from the sums of the gradients.
///
/// Arguments: the state, the epoch totals, the sums, and, where a step may be skipped, the new state of layers, the
/// finite flags, the new epoch totals. Outputs: the changed state, and then the epoch totals too.
fn pipeline_update(
    setup: &Setup,
    plan: &StagePlan,
    mut reduced: ReducedGradients,
    sums: &[GradientSum],
) -> Result<PipelineUpdate> {
    let finite = match setup.loss_scale.is_dynamic() {
        true => finite_program(sums)?,
        false => None,
    };
    if finite.is_none() {
        // No step is skipped, so the micro-batches' own changes of the layers' state stay.
        reduced.updates.clear();
    }
    let flags = finite.as_ref().map_or(0, |finite| finite.stages.len());
    let graph = Graph::new();
    let state = setup.state.bind(&graph);
    let totals = graph.parameter("tally", setup.epoch_totals.shape());
    let mut updates = StateUpdates::new(&state);
    let reduced = reduced.received(&graph, flags);
    let finite_check = apply_gradients(setup, &state, &reduced, &mut updates);
    let totals_id = ValueId(state.len());
    let mut inputs = update_inputs(totals_id, sums, &reduced);
    let stages = setup.state.stages(plan);
    let of_arrays = |changed: &[usize]| -> Vec<(ValueId, StageId)> {
        let changed = changed.iter();
        changed
            .map(|&index| (ValueId(index), stages[index]))
            .collect()
    };
    let Some(check) = finite_check else {
        let (program, changed) = updates.finish(&graph, None)?;
        return Ok(PipelineUpdate {
            replaced: of_arrays(&changed),
            program,
            inputs,
            finite,
        });
    };
    inputs.push(UpdateInput::After(totals_id));
    let after = graph.parameter("after", setup.epoch_totals.shape());
    let iterations = setup.state.view(&state).iterations;
    let skipped = setup.epoch_totals.add_skipped(&totals, &check, iterations);
    let selected = check.finite.select(&after, &skipped);
    let (program, changed) = updates.finish(&graph, Some(&selected))?;
    let mut replaced = of_arrays(&changed);
    replaced.push((totals_id, plan.last_stage()));
    Ok(PipelineUpdate {
        replaced,
        program,
        inputs,
        finite,
    })
}

/// Where the update has its parameters from, but for the new epoch totals: the state and the totals before, the sums of the
/// gradients, the new state of layers, the finite flags.
fn update_inputs(
    totals_id: ValueId,
    sums: &[GradientSum],
    reduced: &ReducedGradients,
) -> Vec<UpdateInput> {
    let before = (0..=totals_id.0).map(|array| UpdateInput::Before(ValueId(array)));
    let sums = sums.iter().map(|sum| UpdateInput::After(sum.value));
    let layers = reduced.updates.iter();
    let layers = layers.map(|(index, _)| UpdateInput::After(ValueId(*index)));
    let flags = (0..reduced.finite.len()).map(UpdateInput::Finite);
    before.chain(sums).chain(layers).chain(flags).collect()
}

/// The program that says whether the sums of gradients are finite; none without gradients.
fn finite_program(sums: &[GradientSum]) -> Result<Option<FiniteProgram>> {
    let graph = Graph::new();
    let mut of_stage: BTreeMap<StageId, Vec<Tensor>> = BTreeMap::new();
    for sum in sums {
        let parameter = graph.parameter("sum", sum.shape.clone());
        of_stage.entry(sum.stage).or_default().push(parameter);
    }
    let flags = of_stage.values().filter_map(|sums| all_finite(sums));
    let flags: Vec<Tensor> = flags.collect();
    if flags.is_empty() {
        return Ok(None);
    }
    let outputs: Vec<(&str, &Tensor)> = flags.iter().map(|flag| ("finite", flag)).collect();
    let program = graph.finish(&outputs).map_err(explain)?;
    Ok(Some(FiniteProgram {
        program,
        stages: of_stage.into_keys().collect(),
    }))
}

/// The program that sums weights over micro-batches; none where all micro-batches weigh the same.
pub(in crate::fit) fn weight_program(
    graph: &Graph,
    batch: &BatchTensors,
) -> Result<Option<WeightProgram>> {
    let wholes = batch.wholes.take();
    if wholes.is_empty() {
        return Ok(None);
    }
    let sums: Vec<Tensor> = wholes.iter().map(|(own, whole)| own + whole).collect();
    let outputs: Vec<(&str, &Tensor)> = sums.iter().map(|sum| ("whole", sum)).collect();
    let program = graph.finish(&outputs).map_err(explain)?;
    let sums = wholes.iter();
    let sums = sums.map(|(_, whole)| parameter_id(&program, whole));
    Ok(Some(WeightProgram {
        sums: sums.collect(),
        program,
    }))
}

/// Which parameter of the program a tensor is.
fn parameter_id(program: &Program, tensor: &Tensor) -> ValueId {
    let node = tensor.value().node;
    let mut parameters = program.parameters.iter();
    let found = parameters.position(|parameter| parameter.node == node);
    ValueId(found.expect("a parameter of the same graph"))
}
