//! Gradients of slices of one tensor: beside each other they are joined, where a sum would add zeros to all of them.

use super::scattered::is_zeros;
use crate::Tensor;
use crate::op::{Op, PadDim};

/// A tensor between zeros along one dim.
struct Part {
    dim: usize,
    low: i64,
    high: i64,
    inner: Vec<Tensor>,
}

impl Part {
    fn of(tensor: &Tensor) -> Option<Self> {
        let graph = tensor.graph();
        let node = graph.node(tensor.value().node);
        let Op::Pad(pads) = &node.op else {
            return None;
        };
        let mut padded = (pads.iter().enumerate()).filter(|(_, pad)| **pad != PadDim::default());
        let (Some((dim, pad)), None) = (padded.next(), padded.next()) else {
            return None;
        };
        if pad.interior > 0 || pad.low < 0 || pad.high < 0 || !is_zeros(graph, node.inputs[1]) {
            return None;
        }
        let whole = graph.node(node.inputs[0].node);
        let inner = match whole.op {
            Op::Concat(along) if along == dim => whole.inputs,
            _ => vec![node.inputs[0]],
        };
        let inner = inner.into_iter();
        Some(Self {
            dim,
            low: pad.low,
            high: pad.high,
            inner: inner
                .map(|value| Tensor::new(graph.clone(), value))
                .collect(),
        })
    }
}

/// The sum of two gradients of slices that lie beside each other.
pub(super) fn joined(a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let (one, other) = (Part::of(a)?, Part::of(b)?);
    let size = *a.dims().get(one.dim)? as i64;
    let (first, second) = match () {
        () if one.dim != other.dim => return None,
        () if size - one.high == other.low => (one, other),
        () if size - other.high == one.low => (other, one),
        () => return None,
    };
    let inner: Vec<&Tensor> = first.inner.iter().chain(&second.inner).collect();
    let whole = Tensor::concat(&inner, first.dim);
    let mut pads = vec![PadDim::default(); a.rank()];
    (pads[first.dim].low, pads[first.dim].high) = (first.low, second.high);
    match (first.low, second.high) {
        (0, 0) => Some(whole),
        _ => Some(whole.pad(&pads, 0.0)),
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Op;
    use crate::{Graph, Shape, Tensor, gradients};

    fn ops(of: impl Fn(&Tensor) -> Tensor) -> (usize, usize) {
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([2, 12]));
        let gradient = gradients(&of(&x).sum_all(), &[&x]).remove(0).unwrap();
        let program = graph.finish(&[("g", &gradient)]).unwrap().simplified();
        let count = |is: fn(&Op) -> bool| program.nodes.iter().filter(|node| is(&node.op)).count();
        (
            count(|op| matches!(op, Op::Concat(_))),
            count(|op| matches!(op, Op::Pad(_))),
        )
    }

    #[test]
    fn slices_beside_each_other_are_joined_once() {
        let part = |x: &Tensor, i: usize| x.slice_dim(1, 3 * i, 3 * i + 3).square();
        let all = ops(|x| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| part(x, i));
            (a * b) * (c * d)
        });
        assert_eq!(all, (1, 0));
        // A gap, an overlap: as before.
        assert_eq!(ops(|x| part(x, 0) * part(x, 2)), (0, 2));
        assert_eq!(ops(|x| part(x, 0) * x.slice_dim(1, 1, 4).square()), (0, 2));
        // What is left of it stays zeros.
        assert_eq!(ops(|x| part(x, 1) * part(x, 2)), (1, 1));
    }
}
