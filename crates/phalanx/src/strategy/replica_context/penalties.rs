//! Penalties of the models that a function trains.

use std::collections::HashSet;

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Tensor, Value};

use super::ReplicaCx;
use crate::fit::divide_or_zero;
use crate::strategy::state::ModelRef;

/// The penalties of a model with the values that its trained variables have now.
#[derive(Default)]
pub(super) struct Penalties {
    /// These values.
    values: Vec<Value>,
    /// The variables whose penalties are there.
    pub(super) penalized: HashSet<String>,
    /// This replica's share of them.
    pub(super) added: Vec<Tensor>,
}

impl ReplicaCx<'_> {
    /// This replica's share of the penalties of a model that was [trained](Self::train) in this function, by its examples (1 / R of them
    /// where replicas have as many): of each variable once, as in Keras, however often the model was called since its variables were set
    /// last; and what layers added in each of these calls.
    #[must_use]
    #[track_caller]
    pub fn penalties(&self, model: &ModelRef) -> Tensor {
        let found = self.penalties.get(&model.first);
        let added = found.into_iter().flat_map(|found| &found.added);
        let sum = added.cloned().reduce(|sum, loss| sum + loss);
        sum.unwrap_or_else(|| self.share(&self.graph.scalar(DType::F32, 0.0)))
    }

    /// This replica's share of what layers added in a call on rows of which these are examples.
    #[track_caller]
    pub(super) fn share_of(&self, added: &[Tensor], mask: Option<&Tensor>) -> Option<Tensor> {
        let added = added.iter().map(|loss| loss.convert(DType::F32));
        let added = added.reduce(|all, loss| all + loss)?;
        let own = mask.map(Tensor::sum_all);
        Some(match own {
            Some(own) => added * divide_or_zero(&own, &own.all_reduce(ReduceOp::Sum)),
            None => self.share(&added),
        })
    }

    /// The penalties of a model with these variables, to which another call adds its own.
    pub(super) fn take_penalties(&mut self, model: &ModelRef, variables: &[Tensor]) -> Penalties {
        let trained = model.model.variables().iter().zip(variables);
        let trained = trained.filter(|(variable, _)| variable.trainable);
        let values: Vec<Value> = trained.map(|(_, tensor)| tensor.value()).collect();
        let before = self.penalties.remove(&model.first);
        before
            .filter(|before| before.values == values)
            .unwrap_or(Penalties {
                values,
                ..Penalties::default()
            })
    }
}
