//! Sums of rows of a table, such as averaged embeddings, on host processors: one call of `phalanx.row_sums`, so that no row is written.
//!
//! The call has one index a row: one below 0 leaves the row out, and one past the table stands for a row of NaN.

use std::collections::HashMap;

use super::kernels::call;
use super::select;
use super::writer::{Operand, Writer};
use crate::op::{BinaryOp, Node, Op, ReduceOp, Value, any_node};
use crate::{DType, Program, Shape};

/// Elements of rows from which a call gains more than it costs.
const MIN_ELEMENTS: usize = 1 << 14;
/// Rows of a sum, and numbers of a row, from which the call's vectors are worth their start.
const MIN_ROWS: usize = 4;
const MIN_COLUMNS: usize = 8;

/// How rows of a table become what is summed. Masks and weights have the dims of the indices.
#[derive(Default)]
struct RowSum {
    table: Option<Value>,
    indices: Option<Value>,
    /// Where a row is taken; elsewhere it is NaN.
    inside: Option<Value>,
    /// Where a row is summed; elsewhere 0 is.
    kept: Option<Value>,
    /// What each row is multiplied with.
    weights: Option<Value>,
    /// The nodes in between.
    between: Vec<usize>,
}

/// Those of some nodes.
pub(super) struct RowSums {
    sums: HashMap<usize, RowSum>,
    /// Whether a node is written with its sum.
    delayed: Vec<bool>,
}

impl Program {
    /// Whether this program sums rows of a table, as calls of `phalanx.row_sums` do.
    pub(super) fn gains_from_row_sums(&self) -> bool {
        let sums = |nodes: &[Node], node: &Node| row_sum(nodes, node).is_some();
        any_node(&self.nodes, &sums)
    }
}

impl RowSums {
    /// `uses` has how often each node is used.
    pub(super) fn of(w: &Writer, nodes: &[Node], uses: &[usize]) -> Self {
        let found = nodes.iter().enumerate().filter_map(|(index, node)| {
            let sum = row_sum(nodes, node).filter(|_| w.host_rows)?;
            let are_alone = sum.between.iter().all(|&node| uses[node] == 1);
            are_alone.then_some((index, sum))
        });
        let sums: HashMap<_, _> = found.collect();
        let mut delayed = vec![false; nodes.len()];
        for &node in sums.values().flat_map(|sum| &sum.between) {
            delayed[node] = true;
        }
        Self { sums, delayed }
    }

    /// Whether a node is written with a later one.
    pub(super) fn is_delayed(&self, index: usize) -> bool {
        self.delayed[index]
    }

    /// What a sum is written from, where it is one of these.
    pub(super) fn inputs(&self, index: usize) -> Option<Vec<Value>> {
        let sum = self.sums.get(&index)?;
        let all = [sum.table, sum.indices, sum.inside, sum.kept, sum.weights];
        Some(all.into_iter().flatten().collect())
    }

    /// The sum at a place, where it is one of these.
    pub(super) fn lower(
        &self,
        w: &mut Writer,
        (nodes, index): (&[Node], usize),
        inputs: &[Operand],
    ) -> Option<Operand> {
        let sum = self.sums.get(&index)?;
        let mut inputs = inputs.iter();
        let (table, indices) = (inputs.next()?, inputs.next()?);
        let (rows, shape) = (table.shape.dims[0], &nodes[index].shapes[0]);
        let columns: usize = table.shape.dims[1..].iter().product();
        let bags = shape.len() / columns;
        let of_bags = [bags, indices.shape.len() / bags];
        let mut indices = inside_table(w, indices, rows);
        if sum.inside.is_some() {
            indices = or_index(w, inputs.next()?, &indices, rows as f64);
        }
        if sum.kept.is_some() {
            indices = or_index(w, inputs.next()?, &indices, -1.0);
        }
        let mut operands = vec![
            w.reshape(table, &[rows, columns]),
            w.reshape(&indices, &of_bags),
        ];
        operands.extend(inputs.map(|weights| w.reshape(weights, &of_bags)));
        let outputs = [Shape::f32([bags, columns])];
        let result = call(w, "phalanx.row_sums", &operands, &outputs, Vec::new()).swap_remove(0);
        Some(w.reshape(&result, &shape.dims))
    }
}

/// Indices as a gather takes them: the nearest row for one out of range.
fn inside_table(w: &mut Writer, indices: &Operand, rows: usize) -> Operand {
    let shape = indices.shape.clone();
    let [first, last] = [0.0, (rows - 1) as f64].map(|row| w.full(&shape, row));
    let positive = w.elementwise("maximum", &[indices.clone(), first], &shape);
    w.elementwise("minimum", &[positive, last], &shape)
}

/// The indices where the mask is true, this one elsewhere.
fn or_index(w: &mut Writer, mask: &Operand, indices: &Operand, other: f64) -> Operand {
    let other = w.full(&indices.shape, other);
    select(w, &[mask.clone(), indices.clone(), other], &indices.shape)
}

/// How a node is a sum of enough rows, if it is one.
fn row_sum(nodes: &[Node], node: &Node) -> Option<RowSum> {
    let Op::Reduce {
        kind: ReduceOp::Sum,
        dims,
    } = &node.op
    else {
        return None;
    };
    let (x, of_indices) = (node.inputs[0], dims.last()? + 1);
    let shape = &nodes[x.node].shapes[x.output];
    let columns: usize = shape.dims[of_indices..].iter().product();
    let rows: usize = dims.iter().map(|&dim| shape.dims[dim]).product();
    let follow = dims.iter().copied().eq(dims[0]..of_indices);
    let is_large = shape.len() >= MIN_ELEMENTS && rows >= MIN_ROWS && columns >= MIN_COLUMNS;
    let is_taken = follow && is_large && shape.dtype == DType::F32;
    is_taken.then(|| rows_of(nodes, x, of_indices)).flatten()
}

/// How a value is rows of a table: behind the gather may come NaN for rows out of range, then zeros for rows left out, or weights.
fn rows_of(nodes: &[Node], x: Value, of_indices: usize) -> Option<RowSum> {
    let mut found = RowSum::default();
    let mut value = x;
    loop {
        let node = &nodes[value.node];
        found.between.push(value.node);
        let is_first = found.between.len() == 1;
        value = match (&node.op, &node.inputs[..]) {
            (Op::Gather { dim: 0 }, &[table, indices]) => {
                let of_table = &nodes[table.node].shapes[table.output];
                let rank = nodes[indices.node].shapes[indices.output].rank();
                (found.table, found.indices) = (Some(table), Some(indices));
                return (rank == of_indices && of_table.dims[0] > 0).then_some(found);
            }
            (Op::Select, &[mask, taken, other]) => {
                let mask = repeated(nodes, mask, of_indices)?;
                match splat(nodes, other)? {
                    number if number.is_nan() && found.inside.is_none() => {
                        found.inside = Some(mask);
                    }
                    0.0 if is_first => found.kept = Some(mask),
                    _ => return None,
                }
                taken
            }
            (Op::Binary(BinaryOp::Mul), &[a, b]) if is_first => {
                let pairs = [(a, b), (b, a)].into_iter();
                let mut pairs = pairs.filter_map(|(rows, weights)| {
                    Some((rows, repeated(nodes, weights, of_indices)?))
                });
                let (rows, weights) = pairs.next()?;
                found.weights = Some(weights);
                rows
            }
            _ => return None,
        };
    }
}

/// What a value repeats for each number of a row.
fn repeated(nodes: &[Node], value: Value, of_indices: usize) -> Option<Value> {
    let node = &nodes[value.node];
    match &node.op {
        Op::Broadcast { map, .. } if map.iter().copied().eq(0..of_indices) => Some(node.inputs[0]),
        _ => None,
    }
}

/// The number that a value repeats.
fn splat(nodes: &[Node], value: Value) -> Option<f64> {
    let node = &nodes[value.node];
    match &node.op {
        Op::Constant(number) if number.dims().is_empty() => Some(number.to_f64()[0]),
        Op::Broadcast { .. } => splat(nodes, node.inputs[0]),
        _ => None,
    }
}
