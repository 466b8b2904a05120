//! How large the outputs of layers are.

use super::layer::Body;
use super::{Model, Policy};

impl Model {
    /// Bytes of the outputs of all layers for one example, in what they compute in: what a training step keeps for the
    /// way back, or more where the compiler finds a way to keep less. Of checkpointed layers the last output counts.
    #[must_use]
    pub fn activation_bytes(&self, policy: Policy) -> u64 {
        let of_call = |(index, call): (usize, &super::model::Call)| {
            let entry = &self.layers[call.layer];
            let policy = match &entry.body {
                Body::Model(model) if !entry.checkpointed => return model.activation_bytes(policy),
                Body::Layer { precision, .. } => precision.unwrap_or(policy),
                Body::Model(_) => policy,
            };
            let size = policy.compute_dtype().size() as u64;
            let elements = |shape: &phalanx_graph::Shape| {
                shape
                    .dims
                    .iter()
                    .skip(1)
                    .map(|&dim| dim as u64)
                    .product::<u64>()
            };
            self.shapes[index].iter().map(elements).sum::<u64>() * size
        };
        self.calls.iter().enumerate().map(of_call).sum()
    }
}
