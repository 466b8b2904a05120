//! Reads and writes at computed places.

use super::literal::int_array;
use super::reduction::{with_combiner, working_dtype};
use super::writer::{Operand, Writer, signature};
use crate::Shape;
use crate::op::ReduceOp;

pub(super) fn dynamic_slice(
    w: &mut Writer,
    inputs: &[Operand],
    sizes: &[usize],
    shape: &Shape,
) -> Operand {
    if inputs[0].shape.dims == sizes {
        return inputs[0].clone();
    }
    let attributes = format!("sizes = {sizes:?}");
    w.typed("dynamic_slice", inputs, &attributes, shape, false)
}

pub(super) fn dynamic_update_slice(w: &mut Writer, inputs: &[Operand]) -> Operand {
    let (base, update) = (&inputs[0], &inputs[1]);
    if base.shape == update.shape {
        return update.clone();
    }
    let shape = base.shape.clone();
    w.typed("dynamic_update_slice", inputs, "", &shape, false)
}

/// StableHLO clamps the indices; an empty table, from which nothing can be picked, gives zeros.
pub(super) fn gather(w: &mut Writer, inputs: &[Operand], dim: usize, shape: &Shape) -> Operand {
    let (table, indices) = (&inputs[0], &inputs[1]);
    if table.shape.dims[dim] == 0 {
        return w.full(shape, 0.0);
    }
    let mut sizes = table.shape.dims.clone();
    sizes[dim] = 1;
    let text = format!(
        "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {:?}, collapsed_slice_dims = [{dim}], start_index_map = [{dim}], index_vector_dim = {}>, indices_are_sorted = false, slice_sizes = {}}}> : {}",
        table.name,
        indices.name,
        window_dims(&table.shape, &indices.shape, dim),
        indices.shape.rank(),
        int_array(&sizes),
        signature(inputs, std::slice::from_ref(shape)),
    );
    w.line(shape, &text)
}

pub(super) fn scatter_add(w: &mut Writer, inputs: &[Operand], dim: usize) -> Operand {
    let dtype = inputs[0].shape.dtype;
    let working = working_dtype(ReduceOp::Sum, dtype);
    let (base, indices) = (w.convert(&inputs[0], working), inputs[1].clone());
    let updates = w.convert(&inputs[2], working);
    let text = format!(
        "\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {:?}, inserted_window_dims = [{dim}], scatter_dims_to_operand_dims = [{dim}], index_vector_dim = {}>, unique_indices = false}}> ({{",
        base.name,
        indices.name,
        updates.name,
        window_dims(&base.shape, &indices.shape, dim),
        indices.shape.rank(),
    );
    let shapes = [base.shape.clone()];
    let types = signature(&[base, indices, updates], &shapes);
    let result = with_combiner(w, ReduceOp::Sum, working, &shapes, &text, &types);
    w.convert(&result[0], dtype)
}

/// The dims of gathered rows that come from the table: all but those of the indices, which stand in place of `dim`.
fn window_dims(table: &Shape, indices: &Shape, dim: usize) -> Vec<usize> {
    let rank = table.rank() - 1 + indices.rank();
    (0..dim).chain(dim + indices.rank()..rank).collect()
}
