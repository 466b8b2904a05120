//! A replica's shares of means over the global batch, and of what all replicas have.

use std::collections::HashSet;

use phalanx_graph::op::{BinaryOp, Node, Op, ReduceOp, UnaryOp};
use phalanx_graph::{Program, Tensor, Value};

use super::ReplicaCx;
use super::learning::DifferentiatedLoss;
use crate::fit::{Output, divide_or_zero, weighted_sum, weighted_values};
use crate::losses::Loss;

/// Means over the batch of all replicas.
impl ReplicaCx<'_> {
    /// This replica's share of the mean over the global batch of numbers per example, `[rows, ..]`: their weighted sum
    /// divided by the weight of all replicas' examples, 0 where nothing has weight.
    ///
    /// The sum over replicas is the mean, however the batch is divided, so the gradients of it are to be summed. A mean
    /// over a replica's own rows would make gradients as many times too large as there are replicas, and rows that
    /// only fill up would count.
    ///
    /// Values several to a row of the batch count where their row does, and are to be marked [`folded`](Self::folded) or
    /// [`concatenated`](Self::concatenated); values of any other number of rows all count. A weight of 0 makes 0 of any value, but the derivative of a loss of a target that is not a
    /// number is none even so: replace such targets.
    #[must_use]
    #[track_caller]
    pub fn mean(&self, values: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let weight = self.weight_of_examples(values, weight);
        self.share_of_mean(values, weight.as_ref())
    }

    /// This replica's share of a loss over the global batch, as `fit` computes it and as `loss(y_true, y_pred, sample_weight)` is in Keras.
    ///
    /// Padded steps ([`padding_mask`](Self::padding_mask) of `y_pred`), targets of a class that the loss leaves out and rows that only fill up
    /// weigh nothing; a target of weight 0 may be no number; a loss that compares examples compares the examples of all replicas. `weight`
    /// has a number for each row, or for each number of the loss, and the loss is divided by the sum of the weights, where Keras divides by
    /// their number.
    #[must_use]
    #[track_caller]
    pub fn loss(
        &self,
        loss: &Loss,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Tensor {
        let weight = self.weight_of_examples(y_pred, weight);
        let output = self.output(y_pred);
        let rows = y_pred.dim(0);
        let (values, weight) = weighted_values(loss, y_true, &output, weight.as_ref(), rows);
        self.share_of_mean(&values, weight.as_ref())
    }

    /// This replica's share of what each replica has as a whole, divided by the number of replicas: of a loss of the weights alone, say, or
    /// of one of sums or rows of all replicas. The sum of the gradients of the shares is the gradient of the whole.
    ///
    /// What differs between replicas is to be divided by its examples instead: [`mean`](Self::mean), [`loss`](Self::loss).
    #[must_use]
    #[track_caller]
    pub fn share(&self, whole: &Tensor) -> Tensor {
        let share = whole * (1.0 / self.replicas_in_sync() as f64);
        self.shares.borrow_mut().insert(share.value());
        share
    }

    /// Which values are shares of what all replicas have: those asked for, means over the batch, sums of them, and multiples of one.
    fn shares_in(&self, program: &Program) -> HashSet<Value> {
        let mut shares = self.shares.borrow().clone();
        for (node, made) in program.nodes.iter().enumerate() {
            if is_share(made, &shares) {
                shares.insert(Value { node, output: 0 });
            }
        }
        shares
    }

    /// Predictions with their padding mask.
    pub(super) fn output(&self, y_pred: &Tensor) -> Output {
        Output {
            value: y_pred.clone(),
            mask: self.padding_mask(y_pred),
        }
    }

    /// The weighted sum of values over the weight that all replicas' values have.
    #[track_caller]
    fn share_of_mean(&self, values: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let (sum, own) = weighted_sum(values, weight);
        let whole = match weight {
            Some(_) => own.all_reduce(ReduceOp::Sum),
            None => own * self.replicas_in_sync() as f64,
        };
        let share = divide_or_zero(&sum, &whole);
        self.shares.borrow_mut().insert(share.value());
        share
    }
}

/// The wholes in a loss: what is the same on all replicas and no share of it.
pub(in crate::strategy) struct Wholes<'a> {
    program: &'a Program,
    shares: HashSet<Value>,
    is_replicated: &'a dyn Fn(Value) -> bool,
}

impl<'a> Wholes<'a> {
    pub(in crate::strategy) fn new(
        cx: &ReplicaCx<'_>,
        program: &'a Program,
        is_replicated: &'a dyn Fn(Value) -> bool,
    ) -> Self {
        Self {
            program,
            shares: cx.shares_in(program),
            is_replicated,
        }
    }

    fn is_whole(&self, value: Value) -> bool {
        (self.is_replicated)(value) && !self.shares.contains(&value)
    }

    /// Whether a loss is a whole.
    pub(in crate::strategy) fn is_one(&self, loss: &DifferentiatedLoss) -> bool {
        self.is_whole(loss.value)
    }

    /// Whether a loss has a term that is a whole and on which a variable depends that it was differentiated by. Of what is no sum nobody knows
    /// whether the program has divided it among the replicas.
    pub(in crate::strategy) fn is_term_of(&self, loss: &DifferentiatedLoss) -> bool {
        let trained = self.made_of(&loss.variables);
        let mut seen = HashSet::new();
        let mut terms = vec![loss.value];
        while let Some(term) = terms.pop() {
            if self.shares.contains(&term) || !trained[term.node] || !seen.insert(term) {
                continue;
            }
            let next = self.terms_of(&self.program.nodes[term.node]);
            if next.is_empty() && self.is_whole(term) {
                return true;
            }
            terms.extend(next);
        }
        false
    }

    /// The terms of a sum, or of a multiple of one: a factor that is the same on all replicas changes no term's place.
    fn terms_of(&self, made: &Node) -> Vec<Value> {
        let own = |value: &&Value| !(self.is_replicated)(**value);
        match &made.op {
            Op::Binary(BinaryOp::Add | BinaryOp::Sub)
            | Op::Unary(UnaryOp::Neg)
            | Op::Convert(_) => made.inputs.clone(),
            Op::Select if (self.is_replicated)(made.inputs[0]) => made.inputs[1..].to_vec(),
            Op::Binary(BinaryOp::Mul) if made.inputs.iter().filter(own).count() == 1 => {
                made.inputs.iter().filter(own).copied().collect()
            }
            Op::Binary(BinaryOp::Div)
                if (self.is_replicated)(made.inputs[1])
                    && !(self.is_replicated)(made.inputs[0]) =>
            {
                vec![made.inputs[0]]
            }
            _ => Vec::new(),
        }
    }

    /// Which nodes have a derivative by these values.
    fn made_of(&self, variables: &[Value]) -> Vec<bool> {
        let mut made = vec![false; self.program.nodes.len()];
        for value in variables {
            made[value.node] = true;
        }
        for (node, own) in self.program.nodes.iter().enumerate() {
            let is_float = own.shapes.iter().any(|shape| shape.dtype.is_float());
            let passes = is_float && !matches!(own.op, Op::StopGradient);
            made[node] |= passes && own.inputs.iter().any(|input| made[input.node]);
        }
        made
    }
}

/// Whether a node makes a share out of shares: sums of them, multiples of one, and its elements elsewhere.
fn is_share(made: &Node, shares: &HashSet<Value>) -> bool {
    let mut inputs = made.inputs.iter().map(|input| shares.contains(input));
    match &made.op {
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) => inputs.all(|share| share),
        Op::Binary(BinaryOp::Mul) => inputs.filter(|share| *share).count() == 1,
        Op::Binary(BinaryOp::Div) => inputs.eq([true, false]),
        Op::Unary(UnaryOp::Neg)
        | Op::Convert(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Broadcast { .. }
        | Op::Slice(_)
        | Op::Concat(_)
        | Op::Reduce {
            kind: ReduceOp::Sum,
            ..
        } => inputs.all(|share| share),
        _ => false,
    }
}
