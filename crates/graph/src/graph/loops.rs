//! Graphs inside graphs: loops and branches.

use crate::op::{Op, ScanDims};
use crate::{Graph, Shape, Tensor};

impl Graph {
    /// Repeats `body` on the carried values while `condition` holds. No gradient: see [`scan`](Self::scan).
    #[must_use]
    #[track_caller]
    pub fn while_loop(
        &self,
        initial: &[&Tensor],
        condition: impl FnOnce(&[Tensor]) -> Tensor,
        body: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let shapes: Vec<Shape> = initial.iter().map(|tensor| tensor.shape()).collect();
        let condition = self.subgraph(&shapes, |values| vec![condition(values)]);
        let body = self.subgraph(&shapes, body);
        let op = Op::While { condition, body };
        self.push_many(op, initial)
    }

    /// Runs `body` over the rows of `xs`, with carried values and constants: see [`ScanDims`].
    ///
    /// `body(carry, rows, constants)` returns `(next carry, rows of results)`; the result is the last
    /// carry and the stacked rows.
    #[must_use]
    #[track_caller]
    pub fn scan(
        &self,
        length: usize,
        initial: &[&Tensor],
        xs: &[&Tensor],
        constants: &[&Tensor],
        body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        let mut shapes: Vec<Shape> = initial.iter().map(|tensor| tensor.shape()).collect();
        shapes.extend(xs.iter().map(|x| {
            let shape = x.shape();
            Shape::new(shape.dtype, shape.dims.get(1..).unwrap_or_default())
        }));
        shapes.extend(constants.iter().map(|tensor| tensor.shape()));
        let (carry, rows) = (initial.len(), xs.len());
        let body = self.subgraph(&shapes, |values| {
            let (carried, rest) = values.split_at(carry);
            let (row, constant) = rest.split_at(rows);
            let (mut next, ys) = body(carried, row, constant);
            next.extend(ys);
            next
        });
        let op = Op::Scan(ScanDims {
            body,
            length,
            carry,
            xs: rows,
            reverse: false,
        });
        let inputs: Vec<&Tensor> = [initial, xs, constants].concat();
        let mut outputs = self.push_many(op, &inputs);
        let ys = outputs.split_off(carry.min(outputs.len()));
        (outputs, ys)
    }

    /// What one of `count` branches makes of the inputs: the branch with the number `index` (i32), the last one when there is none.
    ///
    /// `branch(number, inputs)` builds each; all give the same shapes. Only the one that is chosen computes, so replicas may
    /// choose other ones, and none may wait for other replicas. No gradient: differentiate inside the branches.
    #[must_use]
    #[track_caller]
    pub fn case(
        &self,
        index: &Tensor,
        inputs: &[&Tensor],
        count: usize,
        mut branch: impl FnMut(usize, &[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let shapes: Vec<Shape> = inputs.iter().map(|tensor| tensor.shape()).collect();
        let mut branches = Vec::new();
        // No closure: it would be the caller that the nodes remember.
        for number in 0..count {
            branches.push(self.subgraph(&shapes, |values| branch(number, values)));
        }
        self.push_many(Op::Case(branches), &[&[index], inputs].concat())
    }
}
