//! Scans that return more of what they compute, for derivatives.

use std::sync::Arc;

use crate::op::{Op, Value};
use crate::{Graph, Shape, Tensor};

impl Graph {
    /// Makes the scan at `index` also return these values of its body, each stacked to `[length, ..]`; one that it
    /// returns already is not returned twice.
    ///
    /// The node is extended in place: a second loop just to recover them would double its cost.
    pub(crate) fn save_rows(&self, index: usize, values: &[Value]) -> Vec<Tensor> {
        let mut inner = self.0.borrow_mut();
        let node = &mut inner.nodes[index];
        let Op::Scan(dims) = &mut node.op else {
            return Vec::new();
        };
        let mut body = (*dims.body).clone();
        let mut outputs = Vec::with_capacity(values.len());
        for value in values {
            let known = body.outputs[dims.carry..].iter().position(|y| y == value);
            let output = known.map_or(body.outputs.len(), |at| dims.carry + at);
            if known.is_none() {
                let row = body.shape(*value);
                let stacked = [&[dims.length], row.dims.as_slice()].concat();
                node.shapes.push(Shape::new(row.dtype, stacked));
                body.outputs.push(*value);
            }
            outputs.push(Value {
                node: index,
                output,
            });
        }
        dims.body = Arc::new(body);
        drop(inner);
        let tensor = |value| Tensor::new(self.clone(), value);
        outputs.into_iter().map(tensor).collect()
    }
}
