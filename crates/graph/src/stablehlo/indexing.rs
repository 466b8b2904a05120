//! Reads and writes at computed places.

use super::host_rows::host_rows;
use super::literal::int_array;
use super::reduction::{with_combiner, working_dtype};
use super::writer::{Operand, Writer, signature};
use crate::op::{CompareOp, ReduceOp};
use crate::{DType, Shape};

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
    if let Some(rows) = host_rows(w, inputs, dim, shape) {
        return rows;
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
    let (base, updates) = (
        w.convert(&inputs[0], working),
        w.convert(&inputs[2], working),
    );
    let operands = [base, inputs[1].clone(), updates];
    let (text, types) = scatter(&operands, dim, false);
    let shapes = [operands[0].shape.clone()];
    let result = with_combiner(w, ReduceOp::Sum, working, &shapes, &text, &types);
    w.convert(&result[0], dtype)
}

/// The second of two values, the update, is kept.
pub(super) fn scatter_set(w: &mut Writer, inputs: &[Operand], dim: usize) -> Operand {
    let (text, types) = scatter(inputs, dim, true);
    let scalar = Shape::scalar(inputs[0].shape.dtype);
    let mut results = w.header(std::slice::from_ref(&inputs[0].shape), &text);
    let (old, new) = (w.fresh(&scalar), w.fresh(&scalar));
    let t = scalar.stablehlo();
    w.open(&format!("^bb0({}: {t}, {}: {t}):", old.name, new.name));
    w.finish_block("stablehlo.return", &[new]);
    let location = w.location();
    w.close(&format!("}}) : {types}{location}"));
    results.swap_remove(0)
}

/// The places are carried along while the values are sorted.
pub(super) fn argsort(w: &mut Writer, x: &Operand) -> Operand {
    let shape = x.shape.with_dtype(DType::I32);
    let places = w.line(
        &shape,
        &format!("stablehlo.iota dim = 0 : {}", shape.stablehlo()),
    );
    let shapes = [x.shape.clone(), shape];
    let text = format!(
        "\"stablehlo.sort\"({}, {}) <{{dimension = 0 : i64, is_stable = true}}> ({{",
        x.name, places.name
    );
    let types = signature(&[x.clone(), places.clone()], &shapes);
    let mut results = w.header(&shapes, &text);
    let (value, place) = (Shape::scalar(x.shape.dtype), Shape::scalar(DType::I32));
    let block = [&value, &value, &place, &place].map(|shape| (w.fresh(shape), shape.stablehlo()));
    let arguments: Vec<String> = block
        .iter()
        .map(|(argument, t)| format!("{}: {t}", argument.name))
        .collect();
    w.open(&format!("^bb0({}):", arguments.join(", ")));
    let [(a, _), (b, _), ..] = block;
    let before = super::compare(w, CompareOp::Lt, &[a, b], &Shape::scalar(DType::Bool));
    w.finish_block("stablehlo.return", &[before]);
    let location = w.location();
    w.close(&format!("}}) : {types}{location}"));
    results.swap_remove(1)
}

/// A scatter up to its function, and the types after it.
fn scatter(operands: &[Operand], dim: usize, unique: bool) -> (String, String) {
    let (base, indices) = (&operands[0], &operands[1]);
    let text = format!(
        "\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {:?}, inserted_window_dims = [{dim}], scatter_dims_to_operand_dims = [{dim}], index_vector_dim = {}>, unique_indices = {unique}}}> ({{",
        base.name,
        indices.name,
        operands[2].name,
        window_dims(&base.shape, &indices.shape, dim),
        indices.shape.rank(),
    );
    let types = signature(operands, std::slice::from_ref(&base.shape));
    (text, types)
}

/// The dims of gathered rows that come from the table: all but the dims of the indices, which stand in place of `dim`.
fn window_dims(table: &Shape, indices: &Shape, dim: usize) -> Vec<usize> {
    let rank = table.rank() - 1 + indices.rank();
    (0..dim).chain(dim + indices.rank()..rank).collect()
}
