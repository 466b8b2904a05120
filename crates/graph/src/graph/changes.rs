//! Changes that all happen or none of which does.

use std::collections::HashMap;

use super::Graph;
use crate::Tensor;
use crate::op::{Op, Value};

impl Graph {
    /// Of pairs of a new tensor and the old one of the same shape: the new ones where `condition`, a bool scalar, holds, else the old
    /// ones. A new one that is an old one with rows set is not passed over as a whole.
    ///
    /// What one new tensor is computed from another by elementwise ops is computed from what was selected of the other: where the
    /// condition holds that is the same, and elsewhere nobody sees it. So the last use of the old tensor is its own selection, which may
    /// be written in its place. Were a momentum selected by itself, a variable that moves by it would be computed from the old momentum
    /// once more, and the compiler would copy the old one first.
    #[must_use]
    #[track_caller]
    pub fn all_or_nothing(
        &self,
        condition: &Tensor,
        changes: &[(&Tensor, &Tensor)],
    ) -> Vec<Tensor> {
        let at = |change: usize| changes[change].0.value();
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by_key(|&change| at(change));
        let mut selected: Vec<Tensor> = changes.iter().map(|(new, _)| (*new).clone()).collect();
        // What stands for a value from there on.
        let mut instead: HashMap<Value, Value> = HashMap::new();
        let mut next = order.first().map_or(0, |&change| at(change).node);
        for change in order {
            let (new, old) = changes[change];
            let value = new.value();
            (next..=value.node).for_each(|node| self.copy_elementwise(node, &mut instead));
            next = next.max(value.node + 1);
            let computed = instead.get(&value).copied().unwrap_or(value);
            let computed = Tensor::new(self.clone(), computed);
            selected[change] = computed.unless_kept(condition, old);
            instead.insert(value, selected[change].value());
        }
        selected
    }

    /// Repeats an elementwise node for what stands for its operands, if something does.
    fn copy_elementwise(&self, index: usize, instead: &mut HashMap<Value, Value>) {
        let mut inner = self.0.borrow_mut();
        let node = &inner.nodes[index];
        let is_changed = node.inputs.iter().any(|input| instead.contains_key(input));
        if !is_changed || !is_elementwise(&node.op) {
            return;
        }
        let mut node = node.clone();
        for input in &mut node.inputs {
            *input = instead.get(input).copied().unwrap_or(*input);
        }
        inner.nodes.push(node);
        let copy = inner.nodes.len() - 1;
        let at = |node| Value { node, output: 0 };
        instead.insert(at(index), at(copy));
    }
}

/// Whether an element of the result depends on an element of each operand, at no cost worth naming.
const fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert(_)
            | Op::Reshape(_)
            | Op::Broadcast { .. }
    )
}
