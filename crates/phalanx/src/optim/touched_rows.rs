//! The update of a table from the rows of a batch, without passing over the others.
//!
//! The gradient of an embedding is rows at indices, and zero elsewhere. Where an elementwise rule leaves alone what has no gradient, or is
//! set to ([`Options::lazy`](super::Options::lazy)), the rows seen are gathered from the variable and its slots, updated as if they were
//! the variable, and put back. A step then costs what its rows cost, however large the table.
//!
//! An index may be there several times, and a rule like Adagrad's must see the sum of its gradients once. So the indices are
//! sorted, and each gradient is added to the first of its index:
//!
//! ```text
//! sorted   3  3  5  7  7  7        first   0  0  2  3  3  3     (the running maximum of the places where an index begins)
//! rows     a  b  c  d  e  f        merged  a+b 0 c d+e+f 0 0    at 3 - 5 7 - -
//! ```
//!
//! where `-` is an index out of range, which nothing is put at. Shapes are fixed, so there are as many rows as in the
//! batch; equal indices are added in the order of the batch, as the dense gradient adds them.
//!
//! Of a table with few rows, and of a gradient that comes whole from other replicas or servers, all rows are updated, which is faster or all
//! that can be done; a lazy step then takes the old rows where [`rows_with_gradient`] has none.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};

/// A table with fewer rows than this for each row of the batch is computed as a whole.
const ROWS_FOR_EACH: usize = 4;

/// Rows of a variable that have a gradient.
pub(super) struct TouchedRows {
    /// Each index once; the rest is out of range.
    indices: Tensor,
    pub(super) dim: usize,
    /// The gradient of each row; of rows out of range 0.
    pub(super) gradient: Tensor,
}

impl TouchedRows {
    /// The rows of a gradient that is nothing but rows, where they are few beside the whole.
    pub(super) fn of(gradient: &Tensor) -> Option<Self> {
        let found = gradient.scattered()?;
        let (count, size) = (found.indices.dim(0), found.shape.dims[found.dim]);
        let is_few = count.saturating_mul(ROWS_FOR_EACH) <= size;
        if !is_few || count == 0 || found.shape.dims != gradient.dims() {
            return None;
        }
        let order = found.indices.argsort();
        let sorted = found.indices.gather(&order, 0);
        let begins = begins(&sorted);
        let first = first_of_its_index(&begins);
        let rows = only_inside(
            &found.rows.gather(&order, found.dim),
            &sorted,
            size,
            found.dim,
        );
        let merged = rows.zeros_like().scatter_add(&first, &rows, found.dim);
        let counts = begins.and(&has_gradient(&merged, found.dim));
        Some(Self {
            indices: counts.select(&sorted, &sorted.like(size as f64)),
            dim: found.dim,
            gradient: merged,
        })
    }

    /// These rows of a tensor; any row in place of those out of range.
    pub(super) fn take(&self, whole: &Tensor) -> Tensor {
        whole.gather(&self.indices, self.dim)
    }

    /// The tensor with these rows replaced.
    pub(super) fn put(&self, whole: &Tensor, rows: &Tensor) -> Tensor {
        whole.scatter_set(&self.indices, rows, self.dim)
    }
}

/// Rows with 0 in place of those whose index is out of range, which norms of the gradient must not count.
fn only_inside(rows: &Tensor, indices: &Tensor, size: usize, dim: usize) -> Tensor {
    let inside = indices.greater_equal(&indices.like(0.0));
    let inside = inside.and(&indices.less(&indices.like(size as f64)));
    let inside = inside.broadcast_in(&rows.dims(), &[dim]);
    inside.select(rows, &rows.zeros_like())
}

/// For each element of a gradient, whether its row has an element other than 0.
pub(super) fn rows_with_gradient(gradient: &Tensor, dim: usize) -> Tensor {
    has_gradient(gradient, dim).broadcast_in(&gradient.dims(), &[dim])
}

/// Whether each row has an element other than 0. Rows that only fill up a batch have none, and must not count as seen: how many
/// there are depends on the number of replicas.
fn has_gradient(rows: &Tensor, dim: usize) -> Tensor {
    let others: Vec<usize> = (0..rows.rank()).filter(|&other| other != dim).collect();
    rows.not_equal(&rows.like(0.0))
        .reduce(ReduceOp::Or, &others)
}

/// Whether each element of a sorted vector is another than the one before.
fn begins(sorted: &Tensor) -> Tensor {
    let count = sorted.dim(0);
    let first = sorted.graph().constant(HostTensor::new([1], &[true]));
    if count == 1 {
        return first;
    }
    let differs = part(sorted, 1, count).not_equal(&part(sorted, 0, count - 1));
    Tensor::concat(&[&first, &differs], 0)
}

/// The place at or before each where `begins` last holds: the running maximum, by doubling the distance that it looks back.
fn first_of_its_index(begins: &Tensor) -> Tensor {
    let (graph, count): (&Graph, usize) = (begins.graph(), begins.dim(0));
    let places = graph.iota(Shape::new(DType::I32, [count]), 0);
    let mut last = begins.select(&places, &places.like(0.0));
    let mut back = 1;
    while back < count {
        let before = Tensor::concat(&[&part(&last, 0, back), &part(&last, 0, count - back)], 0);
        last = last.maximum(&before);
        back *= 2;
    }
    last
}

fn part(vector: &Tensor, from: usize, to: usize) -> Tensor {
    vector.slice_dim(0, from, to)
}
