//! Which layers, and so which nodes of a program, are in which stage.

use std::collections::HashMap;

use phalanx_graph::Program;

use super::StageId;
use crate::nn::Model;
use crate::replicas::Stages;
use crate::{Error, Result};

/// Which layers are in which stage.
#[derive(Clone, Debug)]
pub(in crate::fit) struct StagePlan {
    pub(super) stages: usize,
    pub(in crate::fit) micro_batches: usize,
    of_layer: HashMap<String, StageId>,
}

impl StagePlan {
    /// A stage for each of `count` devices.
    pub(in crate::fit) fn new(model: &Model, count: usize, stages: &Stages) -> Result<Self> {
        let layers = model.layer_order();
        let starts = match &stages.starts {
            Some(names) => named_starts(model, &layers, names, count)?,
            None => balanced_starts(model, &layers, count)?,
        };
        let stage = |at: usize| StageId(starts.iter().filter(|&&start| start <= at).count());
        let layers = layers.into_iter().enumerate();
        Ok(Self {
            stages: count,
            micro_batches: stages.micro_batches,
            of_layer: layers.map(|(at, name)| (name, stage(at))).collect(),
        })
    }

    /// The stage of a variable by its name, or of a node by its label: both begin with the path of their layer.
    pub(in crate::fit) fn stage_of_path(&self, path: &str) -> Option<StageId> {
        let layer = path.split('/').next()?;
        self.of_layer.get(layer).copied()
    }

    /// The last stage, where the loss is computed.
    pub(super) const fn last_stage(&self) -> StageId {
        StageId(self.stages - 1)
    }

    /// The stage of a piece of a program: pieces go forward through the stages and then back.
    ///
    /// ```text
    /// piece   0  1  2 | 3  4  5
    /// stage   0  1  2 | 2  1  0      of 3 stages
    /// ```
    pub(super) fn stage_of_piece(&self, piece: usize) -> StageId {
        StageId(piece.min(2 * self.stages - 1 - piece))
    }

    /// The first piece that each node may be in. The first `forward` outputs come from the forward pass, and all that
    /// they depend on belongs to it.
    ///
    /// A node that was built for a layer belongs to the piece of that layer. One that was built between layers goes
    /// with the first node that needs it, or to the place where the loss is, if none does. Nodes are visited from
    /// the last to the first, so that whoever needs a node has been placed before it.
    pub(super) fn earliest_pieces(&self, program: &Program, forward: usize) -> Vec<usize> {
        let is_forward = program.ancestors(0..forward);
        let last = 2 * self.stages - 1;
        let mut earliest: Vec<Option<usize>> = vec![None; program.nodes.len()];
        for (index, node) in program.nodes.iter().enumerate().rev() {
            let label = node.label.as_deref();
            let stage = label.and_then(|label| self.stage_of_path(label));
            let needed = earliest[index];
            let own = match (stage, is_forward[index]) {
                (Some(StageId(stage)), true) => stage,
                (Some(StageId(stage)), false) => last - stage,
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
