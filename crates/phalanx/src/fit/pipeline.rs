//! A step in stages: the same programs as on one device, cut at layers, for micro-batches that follow each other.
//!
//! Cut are programs, not models: each node goes to the stage of the layer that it was built for, forward or backward, so
//! that whatever lies between layers (masks, shared values, sums of gradients) goes where it is needed. The gradients of
//! the micro-batches are summed, where they arise, before one update.

use std::collections::{BTreeMap, HashMap};

use phalanx_graph::{DType, Graph, Program, Shape, Tensor};

use super::batch_tensors::BatchTensors;
use super::loss_scale::all_finite;
use super::state_updates::StateUpdates;
use super::step::{BatchShape, ReducedGradients, Setup, StepProgram, explain};
use crate::nn::Model;
use crate::replicas::{Placement, Stages};
use crate::{Error, Result};

/// Which layers are in which stage.
#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub(super) stages: usize,
    pub(super) micro_batches: usize,
    of_layer: HashMap<String, usize>,
}

/// What a program in stages needs beside itself: which of its parameters the next micro-batch gets from which output,
/// which of those are sums that begin at zero, and what is summed up over all micro-batches first.
pub(super) struct PipelinePrograms {
    /// How many of the outputs, the first ones, come from the forward pass.
    pub(super) forward: usize,
    pub(super) carried: Vec<(usize, usize)>,
    /// Parameters, shapes and stages of the sums of gradients.
    pub(super) sums: Vec<(usize, Shape, usize)>,
    /// The weights of all micro-batches: a program that adds those of one to its parameters.
    pub(super) weight_program: Option<(Program, Vec<usize>)>,
    /// What follows all micro-batches of a training step.
    pub(super) update: Option<PipelineUpdate>,
}

/// The update of a step in stages. Where a step may be skipped, it decides on the state of layers and the totals as well:
/// micro-batches have moved them by the time that gradients are known not to be finite.
pub(super) struct PipelineUpdate {
    pub(super) program: Program,
    /// Of each output the parameter of the pass that it replaces, and its stage.
    pub(super) replaced: Vec<(usize, usize)>,
    pub(super) inputs: Vec<UpdateInput>,
    /// Whether the sums of the gradients are finite, an output for each stage that has some, and its stage.
    pub(super) flags: Option<(Program, Vec<usize>)>,
}

/// Where an update has a parameter from: a parameter of the pass, as it was before the first micro-batch or as it would
/// be for the next, or a flag.
#[derive(Clone, Copy)]
pub(super) enum UpdateInput {
    Before(usize),
    After(usize),
    Flag(usize),
}

impl StagePlan {
    pub(super) fn new(model: &Model, placement: &Placement, stages: &Stages) -> Result<Self> {
        let (layers, count) = (model.layer_order(), placement.devices().len());
        let starts = match &stages.starts {
            Some(names) => named_starts(model, &layers, names, count)?,
            None => balanced_starts(model, &layers, count)?,
        };
        let stage = |at: usize| starts.iter().filter(|&&start| start <= at).count();
        let layers = layers.into_iter().enumerate();
        Ok(Self {
            stages: count,
            micro_batches: stages.micro_batches,
            of_layer: layers.map(|(at, name)| (name, stage(at))).collect(),
        })
    }

    /// The stage of a variable, or of a node by its label: of the layer that its path begins with.
    pub(super) fn stage(&self, path: &str) -> Option<usize> {
        let layer = path.split('/').next()?;
        self.of_layer.get(layer).copied()
    }

    /// The first piece that each node may be in: its layer's, or, of what belongs to none, where it is needed.
    pub(super) fn earliest(&self, program: &Program, forward: usize) -> Vec<usize> {
        let is_forward = program.ancestors(0..forward);
        let last = 2 * self.stages - 1;
        let mut earliest: Vec<Option<usize>> = vec![None; program.nodes.len()];
        for (index, node) in program.nodes.iter().enumerate().rev() {
            let stage = node.label.as_deref().and_then(|label| self.stage(label));
            let needed = earliest[index];
            let own = match (stage, is_forward[index]) {
                (Some(stage), true) => stage,
                (Some(stage), false) => last - stage,
                (None, true) => needed.unwrap_or(self.stages - 1),
                (None, false) => needed.unwrap_or(self.stages),
            };
            earliest[index] = Some(own);
            for input in &node.inputs {
                let first = &mut earliest[input.node];
                *first = Some(first.map_or(own, |first| first.min(own)));
            }
        }
        earliest
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect()
    }
}

/// Where each stage but the first begins, by the names of its first layers.
fn named_starts(
    model: &Model,
    layers: &[String],
    names: &[String],
    count: usize,
) -> Result<Vec<usize>> {
    let place = |name: &String| {
        layers.iter().position(|layer| layer == name).ok_or_else(|| {
            let hint = crate::config::suggest(name, layers.iter().map(String::as_str));
            Error::user(format!(
                "a stage is to start at layer `{name}`, but model `{}` has none of that name outside of models in it; {hint}",
                model.name()
            ))
        })
    };
    let starts: Vec<usize> = names.iter().map(place).collect::<Result<_>>()?;
    let ascending = starts
        .iter()
        .zip(&starts[1.min(starts.len())..])
        .all(|(a, b)| a < b);
    if starts.len() + 1 != count || !ascending || starts.first() == Some(&0) {
        return Err(Error::user(format!(
            "{count} stages start at the layers {names:?}; name {} layers behind the first, in the order of the model",
            count - 1
        )));
    }
    Ok(starts)
}

/// Stages whose variables take about the same memory, each of one layer at least.
fn balanced_starts(model: &Model, layers: &[String], count: usize) -> Result<Vec<usize>> {
    if layers.len() < count {
        return Err(Error::user(format!(
            "model `{}` has {} layers, too few for {count} stages; use fewer stages (the layers of a model inside stay together)",
            model.name(),
            layers.len()
        )));
    }
    let bytes = |layer: &String| {
        let inside = format!("{layer}/");
        let variables = model.variables().iter();
        let own = variables.filter(|variable| variable.name.starts_with(&inside));
        1 + own.map(|variable| variable.shape.byte_len()).sum::<usize>()
    };
    let bytes: Vec<usize> = layers.iter().map(bytes).collect();
    let total: usize = bytes.iter().sum();
    let mut starts = Vec::new();
    let (mut before, mut at) = (0, 0);
    for stage in 1..count {
        // At least one layer for each stage before and behind.
        let most = layers.len() - (count - stage);
        while at < most && (before + bytes[at] / 2) * count < total * stage || at < stage {
            before += bytes[at];
            at += 1;
        }
        starts.push(at.max(starts.last().map_or(1, |last| last + 1)));
    }
    Ok(starts)
}

impl Setup {
    /// The stage of each array of the state; 0 without stages.
    pub(super) fn stage_of_array(&self) -> Vec<usize> {
        let variables = self.model.variables();
        let stage = |name: &str| self.plan.as_ref()?.stage(name);
        let of_variable = |index: usize| stage(&variables[index].name).unwrap_or(0);
        let mut stage_of_array: Vec<usize> = (0..variables.len()).map(of_variable).collect();
        let owner =
            |param: Option<usize>| param.map_or(0, |param| of_variable(self.trained[param]));
        stage_of_array.extend(self.slots.iter().map(|slot| owner(slot.param)));
        stage_of_array.push(0);
        stage_of_array
    }

    /// A training step of a micro-batch, and the update that follows all of them.
    ///
    /// Arguments: the state, the totals, the seed, the batch, the weights of all micro-batches, the sums of the gradients
    /// so far. Outputs: the totals, the state of layers, the sums.
    pub(super) fn staged_step(&self, shape: &BatchShape) -> Result<StepProgram> {
        let graph = Graph::new();
        let state = self.bind_state(&graph);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let seed = graph.parameter("seed", Shape::new(DType::U32, [2]));
        let mut batch = BatchTensors::bind(&graph, shape, None);
        batch.micro_batches = self.plan.as_ref().map_or(1, |plan| plan.micro_batches);
        let view = self.state_view(&state);
        let reduced = self.reduced_gradients(&graph, &view, &seed, &batch)?;
        let after = self.totals_after_step(&totals, &reduced, None, view.iterations);
        let weight_program = weight_program(&graph, &batch)?;
        let stage_of_array = self.stage_of_array();
        let mut sums = Vec::new();
        let (mut added, mut carried) = (Vec::new(), vec![(totals.clone(), 0)]);
        for (at, (index, _)) in reduced.updates.iter().enumerate() {
            carried.push((state[*index].clone(), 1 + at));
        }
        for (gradient, &param) in reduced.gradients.iter().zip(&reduced.connected) {
            let sum = graph.parameter("sum", gradient.shape());
            added.push(&sum + gradient);
            carried.push((sum.clone(), reduced.updates.len() + added.len()));
            sums.push((sum, gradient.shape(), stage_of_array[self.trained[param]]));
        }
        let updates = reduced.updates.iter().map(|(_, value)| value);
        let values = updates.chain(&added);
        let outputs: Vec<(&str, &Tensor)> = [("tally", &after)]
            .into_iter()
            .chain(values.map(|value| ("value", value)))
            .collect();
        let program = graph.finish(&outputs).map_err(explain)?;
        let number = |tensor: &Tensor| position(&program, tensor);
        let sums: Vec<(usize, Shape, usize)> = (sums.into_iter())
            .map(|(sum, shape, stage)| (number(&sum), shape, stage))
            .collect();
        let disconnected = self.disconnected(&reduced);
        let staged = PipelinePrograms {
            forward: 1 + reduced.updates.len(),
            carried: carried
                .iter()
                .map(|(tensor, at)| (number(tensor), *at))
                .collect(),
            update: Some(self.staged_update(reduced, &sums, &stage_of_array)?),
            sums,
            weight_program,
        };
        Ok(StepProgram {
            disconnected,
            apply: None,
            sent: Vec::new(),
            changed: Vec::new(),
            staged: Some(staged),
            exchange: None,
            program,
        })
    }

    /// The update from the sums of the gradients, which are these parameters of the pass.
    ///
    /// Arguments: the state, the totals, the sums, and, where a step may be skipped, the new state of layers, the flags, the
    /// new totals. Outputs: the changed state, the totals.
    fn staged_update(
        &self,
        mut reduced: ReducedGradients,
        sums: &[(usize, Shape, usize)],
        stage_of_array: &[usize],
    ) -> Result<PipelineUpdate> {
        let flags = match self.loss_scale.is_dynamic() {
            true => flags(sums)?,
            false => None,
        };
        if flags.is_none() {
            reduced.updates.clear();
        }
        let count = flags.as_ref().map_or(0, |(_, stages)| stages.len());
        let graph = Graph::new();
        let state = self.bind_state(&graph);
        let totals = graph.parameter("tally", self.epoch_totals.shape());
        let mut state_updates = StateUpdates::new(&state);
        let finite_check = self.apply_received(&graph, &state, &reduced, count, &mut state_updates);
        let mut inputs: Vec<UpdateInput> = (0..=state.len()).map(UpdateInput::Before).collect();
        inputs.extend(sums.iter().map(|(number, ..)| UpdateInput::After(*number)));
        inputs.extend(
            reduced
                .updates
                .iter()
                .map(|(index, _)| UpdateInput::After(*index)),
        );
        inputs.extend((0..count).map(UpdateInput::Flag));
        let Some(finite_check) = finite_check else {
            let step = state_updates.finish_state(&graph)?;
            let replaced = step
                .changed
                .iter()
                .map(|&index| (index, stage_of_array[index]));
            return Ok(PipelineUpdate {
                replaced: replaced.collect(),
                program: step.program,
                inputs,
                flags,
            });
        };
        inputs.push(UpdateInput::After(state.len()));
        let after = graph.parameter("after", self.epoch_totals.shape());
        let iterations = self.state_view(&state).iterations;
        let skipped = self
            .epoch_totals
            .add_skipped(&totals, &finite_check, iterations);
        let step = state_updates.finish(&graph, &finite_check.finite.select(&after, &skipped))?;
        let replaced = step
            .changed
            .iter()
            .map(|&index| (index, stage_of_array[index]));
        let last = self.plan.as_ref().map_or(0, |plan| plan.stages - 1);
        Ok(PipelineUpdate {
            replaced: replaced.chain([(state.len(), last)]).collect(),
            program: step.program,
            inputs,
            flags,
        })
    }
}

/// A program that says of the sums of gradients of each stage whether they are finite, and the stage of each of its outputs; none
/// without gradients.
fn flags(sums: &[(usize, Shape, usize)]) -> Result<Option<(Program, Vec<usize>)>> {
    let graph = Graph::new();
    let mut of_stage: BTreeMap<usize, Vec<Tensor>> = BTreeMap::new();
    for (_, shape, stage) in sums {
        let sum = graph.parameter("sum", shape.clone());
        of_stage.entry(*stage).or_default().push(sum);
    }
    let flags = of_stage.values().filter_map(|sums| all_finite(sums));
    let flags: Vec<Tensor> = flags.collect();
    if flags.is_empty() {
        return Ok(None);
    }
    let outputs: Vec<(&str, &Tensor)> = flags.iter().map(|flag| ("finite", flag)).collect();
    let program = graph.finish(&outputs).map_err(explain)?;
    Ok(Some((program, of_stage.into_keys().collect())))
}

/// A program that adds the weights of a micro-batch to those of the ones before, and where these are in its parameters;
/// none where all micro-batches weight_program the same.
pub(super) fn weight_program(
    graph: &Graph,
    batch: &BatchTensors,
) -> Result<Option<(Program, Vec<usize>)>> {
    let wholes = batch.wholes.take();
    if wholes.is_empty() {
        return Ok(None);
    }
    let sums: Vec<Tensor> = wholes.iter().map(|(own, whole)| own + whole).collect();
    let outputs: Vec<(&str, &Tensor)> = sums.iter().map(|sum| ("whole", sum)).collect();
    let program = graph.finish(&outputs).map_err(explain)?;
    let places = wholes.iter().map(|(_, whole)| position(&program, whole));
    let places = places.collect();
    Ok(Some((program, places)))
}

/// Which parameter a tensor is.
fn position(program: &Program, tensor: &Tensor) -> usize {
    let node = tensor.value().node;
    let mut parameters = program.parameters.iter();
    let found = parameters.position(|parameter| parameter.node == node);
    found.expect("a parameter of the same graph")
}
