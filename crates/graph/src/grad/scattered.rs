//! Gradients that are rows added to zeros, as the gradients of tables looked up by index are: kept so as long as that is possible.

use super::slices;
use crate::op::{Node, Op};
use crate::{Graph, Shape, Tensor, Value};

/// Rows that belong at indices of a tensor which is zero elsewhere: see [`Tensor::scattered`].
#[derive(Clone, Debug)]
pub struct Scattered {
    /// `i32 [n]`: where each row belongs; some indices may be there more than once, and those out of range count nothing.
    pub indices: Tensor,
    /// The rows: as the whole, but of size `n` along the dim.
    pub rows: Tensor,
    /// The dim that the indices pick along.
    pub dim: usize,
    /// The whole.
    pub shape: Shape,
}

impl Scattered {
    /// The whole: rows of equal indices are added.
    #[must_use]
    #[track_caller]
    pub fn dense(&self) -> Tensor {
        let zeros = self.rows.graph().full(&self.shape, 0.0);
        zeros.scatter_add(&self.indices, &self.rows, self.dim)
    }
}

impl Tensor {
    /// The rows that this tensor is made of, when it is nothing but rows added to zeros: the derivative of one or
    /// several [`gather`](Self::gather)s from a table that is used in no other way.
    ///
    /// The whole that they make has the elements of this tensor, maybe under other dims.
    #[must_use]
    pub fn scattered(&self) -> Option<Scattered> {
        let Scatter {
            base,
            indices,
            updates,
            dim,
        } = Scatter::of(self)?;
        let (shape, n) = (base.shape(), indices.shape().len());
        let mut dims = shape.dims.clone();
        dims[dim] = n;
        let own = Scattered {
            indices: indices.reshape(&[n]),
            rows: updates.reshape(&dims),
            dim,
            shape,
        };
        if is_zeros(base.graph(), base.value()) {
            return Some(own);
        }
        let others = base.scattered()?;
        let joins = others.dim == dim && others.shape == own.shape;
        joins.then(|| Scattered {
            indices: Self::concat(&[&others.indices, &own.indices], 0),
            rows: Self::concat(&[&others.rows, &own.rows], dim),
            ..own
        })
    }
}

impl Tensor {
    /// What `change`, which works on elements by themselves and keeps 0, makes of this gradient: of its rows alone, where it is
    /// rows added to zeros.
    #[must_use]
    #[track_caller]
    pub fn map_gradient(&self, change: impl Fn(&Self) -> Self) -> Self {
        match self.scattered() {
            Some(found) => Scattered {
                rows: change(&found.rows),
                ..found
            }
            .dense()
            .reshape(&self.dims()),
            None => change(self),
        }
    }

    /// This tensor where a condition holds, else `old`. If it is `old` with rows set, then none of them is set otherwise, so that
    /// the step of a large table does not pass over all of it.
    #[track_caller]
    pub(crate) fn unless_kept(&self, condition: &Self, old: &Self) -> Self {
        let node = self.graph().node(self.value().node);
        let Op::ScatterSet { dim } = node.op else {
            return condition.select(self, old);
        };
        if node.inputs[0] != old.value() {
            return condition.select(self, old);
        }
        let [indices, rows] =
            [1, 2].map(|input| Self::new(self.graph().clone(), node.inputs[input]));
        let nowhere = indices
            .like(old.dim(dim) as f64)
            .broadcast_to(&indices.dims());
        old.scatter_set(&condition.select(&indices, &nowhere), &rows, dim)
    }
}

/// A scatter that a tensor is the result of.
struct Scatter {
    base: Tensor,
    indices: Tensor,
    updates: Tensor,
    dim: usize,
}

impl Scatter {
    fn of(tensor: &Tensor) -> Option<Self> {
        let graph = tensor.graph();
        let mut node = graph.node(tensor.value().node);
        while let Op::Reshape(_) = node.op {
            node = graph.node(node.inputs[0].node);
        }
        let Op::ScatterAdd { dim } = node.op else {
            return None;
        };
        let [base, indices, updates] =
            [0, 1, 2].map(|input| Tensor::new(graph.clone(), node.inputs[input]));
        Some(Self {
            base,
            indices,
            updates,
            dim,
        })
    }
}

/// The sum of two gradients: where one is nothing but what a scatter adds to zeros, that is added to the other in place.
/// Slices beside each other are joined.
pub(super) fn total(a: Tensor, b: Tensor) -> Tensor {
    let in_place = |sparse: &Tensor, dense: &Tensor| {
        let scatter = Scatter::of(sparse)?;
        if !is_zeros(sparse.graph(), scatter.base.value()) {
            return None;
        }
        let flat = dense.reshape(&scatter.base.dims());
        let sum = flat.scatter_add(&scatter.indices, &scatter.updates, scatter.dim);
        Some(sum.reshape(&dense.dims()))
    };
    let sum = in_place(&b, &a).or_else(|| in_place(&a, &b));
    let sum = sum.or_else(|| slices::joined(&a, &b));
    sum.unwrap_or_else(|| a + b)
}

pub(super) fn is_zeros(graph: &Graph, value: Value) -> bool {
    match graph.node(value.node) {
        Node {
            op: Op::Constant(value),
            ..
        } => value.to_f64().iter().all(|&x| x == 0.0),
        Node {
            op: Op::Broadcast { .. },
            inputs,
            ..
        } => is_zeros(graph, inputs[0]),
        _ => false,
    }
}
