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

    /// Whether an output is computed, of what replicas have exchanged and without another exchange, by an op that adds several elements, such as
    /// the norm of all gradients. Compilers that choose how to add by timing it choose differently in two processes, whose replicas would then
    /// have variables that differ in their last bits.
    #[must_use]
    pub fn adds_after_exchange(&self) -> bool {
        let mut exchanged = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let of_exchanged = node.inputs.iter().any(|input| exchanged[input.node]);
            exchanged[index] = of_exchanged || is_exchange(&node.op);
        }
        let mut seen = vec![false; self.nodes.len()];
        let mut open: Vec<usize> = self.outputs.iter().map(|(_, value)| value.node).collect();
        while let Some(index) = open.pop() {
            let node = &self.nodes[index];
            if is_exchange(&node.op) || std::mem::replace(&mut seen[index], true) {
                continue;
            }
            if exchanged[index] && adds_elements(&node.op) {
                return true;
            }
            open.extend(node.inputs.iter().map(|input| input.node));
        }
        false
    }
}

const fn is_exchange(op: &Op) -> bool {
    matches!(
        op,
        Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. }
    )
}

/// Whether the result depends on the order in which elements are added. Of loops and branches it is not looked at.
const fn adds_elements(op: &Op) -> bool {
    matches!(
        op,
        Op::Reduce { .. }
            | Op::ReduceWindow { .. }
            | Op::Dot(_)
            | Op::Conv(_)
            | Op::ScatterAdd { .. }
            | Op::Kernel(_)
            | Op::While { .. }
            | Op::Scan(_)
            | Op::Case(_)
    )
}

impl Graph {
    /// The first op that waits for other replicas, of those that `trace` adds.
    #[must_use]
    pub fn communication_of(&self, trace: impl FnOnce()) -> Option<&'static str> {
        let before = self.0.borrow().nodes.len();
        trace();
        communication(&self.0.borrow().nodes[before..])
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

    /// Means over the replicas of floating-point tensors, in one exchange of all of them; 16-bit floats are sent in f32, for their sum may
    /// be beyond what 16 bits hold.
    #[must_use]
    #[track_caller]
    pub fn all_mean(&self, tensors: &[&Tensor], via: Via) -> Vec<Tensor> {
        if let Some(tensor) = tensors.iter().find(|tensor| !tensor.dtype().is_float()) {
            let message = format!("expected floats, got {}; convert first", tensor.shape());
            self.fail("all_mean", message);
            return tensors.iter().map(|&tensor| tensor.clone()).collect();
        }
        let count = self.replicas() as f64;
        // No closures: they would be the callers that the nodes remember.
        let mut wide = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            wide.push(tensor.convert(tensor.wide()));
        }
        let sums = self.all_reduce(&wide.iter().collect::<Vec<_>>(), ReduceOp::Sum, via);
        let mut means = Vec::with_capacity(sums.len());
        for (sum, own) in sums.iter().zip(tensors) {
            means.push((sum / count).convert(own.dtype()));
        }
        means
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn adds(build: impl FnOnce(&Graph, &Tensor, &Tensor) -> Tensor) -> bool {
        let graph = Graph::with_replicas(2);
        let own = graph.parameter("own", Shape::f32([4]));
        let sum = own.all_reduce(ReduceOp::Sum);
        let result = build(&graph, &own, &sum);
        let program = graph.finish(&[("y", &result)]).unwrap();
        program.adds_after_exchange()
    }

    #[test]
    fn what_is_added_behind_the_last_exchange_is_found() {
        let norm = |x: &Tensor| (x * x).sum_all();
        assert!(adds(|_, _, sum| sum * norm(sum)));
        assert!(adds(|graph, _, sum| {
            let count = graph.scalar(crate::DType::I32, 0.0);
            let turns = |v: &[Tensor]| vec![&v[0] + 1.0, norm(&v[1]).broadcast_to(&[4])];
            let less = |v: &[Tensor]| v[0].less(&v[0].like(3.0));
            graph.while_loop(&[&count, sum], less, turns).swap_remove(1)
        }));
        // Element by element, before an exchange, or of what was never exchanged.
        assert!(!adds(|_, _, sum| sum * 2.0));
        assert!(!adds(
            |_, _, sum| (sum * norm(sum)).all_reduce(ReduceOp::Sum)
        ));
        assert!(!adds(|_, own, _| norm(own)));
    }
}
