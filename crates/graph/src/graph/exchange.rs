//! What the replicas of a program say to each other, several tensors at once.

use crate::infer::communication;
use crate::op::{Op, ReduceOp, Via};
use crate::{Graph, Program, Tensor};

impl Program {
    /// The first op that waits for other replicas.
    #[must_use]
    pub fn communication(&self) -> Option<&'static str> {
        communication(&self.nodes)
    }
}

impl Graph {
    /// The first op so far that waits for other replicas.
    #[must_use]
    pub fn communication(&self) -> Option<&'static str> {
        communication(&self.0.borrow().nodes)
    }

    /// This replica's number, a u32 scalar.
    #[must_use]
    #[track_caller]
    pub fn replica_id(&self) -> Tensor {
        self.push(Op::ReplicaId, &[])
    }

    /// Whether every exchange with other processes so far succeeded, a bool scalar; true in one process.
    ///
    /// An exchange that fails, since a process died or was too late, gives zeros and makes this false; the program goes on.
    #[must_use]
    #[track_caller]
    pub fn exchanges_succeeded(&self) -> Tensor {
        self.push(Op::ExchangesSucceeded, &[])
    }

    /// Combinations of every replica's tensors, in one exchange of all of them.
    ///
    /// Sums of 16-bit floats are sent in 16 bits, added in f32 and rounded once ([`Via::Hierarchical`], and replicas of several
    /// processes: once in groups and once across them). Truth values are combined with `And`, `Or`, `Max` and `Min`. Sums alone have a
    /// derivative.
    #[must_use]
    #[track_caller]
    pub fn all_reduce(&self, tensors: &[&Tensor], kind: ReduceOp, via: Via) -> Vec<Tensor> {
        if tensors.is_empty() {
            return Vec::new();
        }
        self.push_many(Op::AllReduce { kind, via }, tensors)
    }

    /// Means over the replicas of floating-point tensors, in one exchange of all of them.
    #[must_use]
    #[track_caller]
    pub fn all_mean(&self, tensors: &[&Tensor], via: Via) -> Vec<Tensor> {
        if let Some(tensor) = tensors.iter().find(|tensor| !tensor.dtype().is_float()) {
            let message = format!("expected floats, got {}; convert first", tensor.shape());
            self.fail("all_mean", message);
            return tensors.iter().map(|&tensor| tensor.clone()).collect();
        }
        let mut means = self.all_reduce(tensors, ReduceOp::Sum, via);
        if self.replicas() > 1 {
            let count = self.replicas() as f64;
            // No closure: it would be the caller that the nodes remember.
            for mean in &mut means {
                *mean = mean.clone() / count;
            }
        }
        means
    }
}
