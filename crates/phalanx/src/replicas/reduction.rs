//! How the gradients of replicas become one.

use phalanx_graph::Tensor;
use phalanx_graph::op::ReduceOp;

/// How the gradients of replicas become one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reduction {}

impl Reduction {
    /// Stand-in.
    pub fn from_config(_fields: &serde_json::Value) -> crate::Result<Self> {
        Ok(Self {})
    }

    /// The sums over replicas of local gradients, in the order given.
    pub(crate) fn sum(&self, gradients: &[Tensor]) -> Vec<Tensor> {
        let sums = gradients.iter().map(|g| g.all_reduce(ReduceOp::Sum));
        sums.collect()
    }

    /// A few words for the line at the start of a training.
    pub(crate) fn describe(&self) -> String {
        "all-reduce".to_owned()
    }
}
