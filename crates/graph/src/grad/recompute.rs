//! Values computed again on the way back: see [`Graph::checkpointed`].

use std::collections::{BTreeMap, HashMap};

use crate::graph::Region;
use crate::op::{Op, Value};
use crate::{Graph, Tensor};

/// The regions to be computed again, and the copies made of those that were reached.
pub(super) struct Recomputed {
    regions: Vec<Region>,
    copies: HashMap<usize, usize>,
}

impl Recomputed {
    pub(super) fn new(graph: &Graph) -> Self {
        let (regions, copies) = (graph.regions(), HashMap::new());
        Self { regions, copies }
    }

    /// The node that the derivative of a node is taken at: its copy where it lies in a region.
    ///
    /// All cotangents from behind the region must be there when its last node is asked for.
    pub(super) fn place(
        &mut self,
        graph: &Graph,
        node: usize,
        cotangents: &mut HashMap<Value, Tensor>,
    ) -> usize {
        let inside = |region: &Region| region.nodes.contains(&node);
        if let Some(reached) = self.regions.iter().position(inside) {
            let region = self.regions.swap_remove(reached);
            self.copies.extend(copy(graph, &region, cotangents));
        }
        self.copies.get(&node).copied().unwrap_or(node)
    }
}

/// Repeats the nodes of a region that depend on its inputs, behind a barrier: until the cotangents are there nothing is
/// computed again, and nobody finds out that it is the same.
fn copy(
    graph: &Graph,
    region: &Region,
    cotangents: &mut HashMap<Value, Tensor>,
) -> HashMap<usize, usize> {
    let mut inputs = region.inputs.clone();
    // Counters of random bits: the bits themselves may be larger than what they decide about.
    inputs.extend(graph.integers_from_outside(region));
    inputs.sort_unstable();
    inputs.dedup();
    let arrived: BTreeMap<Value, Tensor> = cotangents
        .iter()
        .filter(|(value, _)| region.nodes.contains(&value.node))
        .map(|(value, cotangent)| (*value, cotangent.clone()))
        .collect();
    let tensor = |value: &Value| Tensor::new(graph.clone(), *value);
    let held = inputs.iter().map(tensor).chain(arrived.values().cloned());
    let held: Vec<Tensor> = held.collect();
    let held: Vec<&Tensor> = held.iter().collect();
    let behind = graph.push_many(Op::OptimizationBarrier, &held);
    let (again, late) = behind.split_at(inputs.len());
    for (value, cotangent) in arrived.keys().zip(late) {
        cotangents.insert(*value, cotangent.clone());
    }
    let again = again.iter().map(Tensor::value);
    graph.repeat(region, inputs.into_iter().zip(again).collect())
}
