//! Sums of columns, such as gradients of biases, and sums and maxima of rows, as in normalisations and softmax: the custom calls
//! `phalanx.column_sums` and `phalanx.row_reduction`.
//!
//! In programs with 16-bit floats XLA's own reductions are loops over windows of 32 numbers, which take ten times as long as reading them.

use std::sync::{Arc, Mutex};

use phalanx_pjrt::{Bf16, Client, CustomCallError, CustomCallFrame, ElementType};

use crate::handlers::{expect_dims, flag, invalid, register, replicas};
use crate::library::KernelError;
use crate::shared_tasks::{self, RowTasks, SharedWork};
use crate::simd::compiled_for_wide_vectors;
use crate::stored::Stored;
use crate::sync::lock;

/// Elements of a task, which is whole rows.
const TASK: usize = 1 << 17;
/// Fewest rows of a task of column sums, however long they are: its sums take 8 bytes a column.
const MIN_TASK_ROWS: usize = 32;
/// Rows whose sums are kept in f32 before they are added up in f64.
const BLOCK_ROWS: usize = 64;
/// Partial results of a row, which are independent of each other.
const LANES: usize = 32;

/// Registers both calls with this client's plugin for the rest of the process; does nothing when they are registered already.
///
/// # Errors
/// The plugin has no custom calls.
pub fn register_reductions(client: &Client) -> Result<(), KernelError> {
    let parts = Arc::new(Mutex::new(Vec::new()));
    register(client, "phalanx.column_sums", move |call| {
        match element(call)? {
            ElementType::F32 => column_sums::<f32>(&parts, call),
            _ => column_sums::<Bf16>(&parts, call),
        }
    })?;
    register(client, "phalanx.row_reduction", |call| {
        match element(call)? {
            ElementType::F32 => row_reduction::<f32>(call),
            _ => row_reduction::<Bf16>(call),
        }
    })
}

/// The element type of the operand and of the result.
fn element(call: &CustomCallFrame<'_>) -> Result<ElementType, CustomCallError> {
    let (element, dims) = call.operand_shape(0)?;
    let of_result = call.result_shape(0)?.0;
    let is_taken = matches!(element, ElementType::F32 | ElementType::Bf16);
    if !is_taken || of_result != element || dims.len() < 2 || dims.contains(&0) {
        return Err(invalid(format!(
            "a reduction is of f32 or bf16 to the same, with elements and at least 2 dimensions, got {dims:?} of {element} to {of_result}"
        )));
    }
    Ok(element)
}

/// Threads of this replica.
fn threads(call: &CustomCallFrame<'_>) -> Result<usize, CustomCallError> {
    Ok((call.threads() / replicas(call)?).max(1))
}

fn column_sums<T: Stored>(
    kept: &Mutex<Vec<Vec<f64>>>,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let dims = call.operand_shape(0)?.1;
    expect_dims(call.result_shape(0)?.1, &dims[dims.len() - 1..])?;
    let (x, sums) = (call.operand::<T>(0)?, call.result::<T>(0)?);
    let columns = sums.len();
    let task = (TASK / columns).max(MIN_TASK_ROWS) * columns;
    let count = x.len().div_ceil(task);
    let mut parts = lock(kept).pop().unwrap_or_default();
    parts.resize(count * columns, 0.0);
    let work = ColumnSums {
        x: x.as_ptr(),
        len: x.len(),
        task,
        columns,
        parts: parts.as_mut_ptr(),
    };
    shared_tasks::run(call, threads(call)?, work);
    let (totals, others) = parts.split_at_mut(columns);
    for part in others.chunks_exact(columns) {
        for (total, part) in totals.iter_mut().zip(part) {
            *total += part;
        }
    }
    for (sum, total) in sums.iter_mut().zip(totals) {
        *sum = T::narrow(*total as f32);
    }
    lock(kept).push(parts);
    Ok(())
}

/// Sums of the columns of some rows for each task, which are added up in order afterwards: bits do not depend on the number of threads.
struct ColumnSums<T> {
    x: *const T,
    len: usize,
    /// Elements of a task.
    task: usize,
    columns: usize,
    /// For each task its sums.
    parts: *mut f64,
}

// SAFETY: the arrays are used between the beginning and the end of a task, and the call, which keeps them alive, ends after the last task;
// each task has sums of its own, and one thread computes it.
unsafe impl<T> Send for ColumnSums<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ColumnSums<T> {}

impl<T: Stored> SharedWork for ColumnSums<T> {
    type Scratch = ();

    fn tasks(&self) -> usize {
        self.len.div_ceil(self.task)
    }

    fn begin(&self) {}

    fn compute(&self, task: usize, (): &mut ()) {
        let first = task * self.task;
        let count = self.task.min(self.len - first);
        // SAFETY: the operand has these elements, and the parts have sums for each task, which nobody else uses.
        let (x, sums) = unsafe {
            let sums = self.parts.add(task * self.columns);
            (
                std::slice::from_raw_parts(self.x.add(first), count),
                std::slice::from_raw_parts_mut(sums, self.columns),
            )
        };
        sum_columns(x, sums);
    }

    fn end(&self, (): ()) {}
}

compiled_for_wide_vectors! {
    /// Sums of the columns of whole rows.
    pub(crate) fn sum_columns<T: Stored>(x: &[T], sums: &mut [f64]) {
        let columns = sums.len();
        let mut block = vec![0.0f32; columns];
        let block = &mut block[..columns];
        sums.fill(0.0);
        for rows in x.chunks(BLOCK_ROWS * columns) {
            let mut fours = rows.chunks_exact(4 * columns);
            for four in &mut fours {
                let (a, four) = four.split_at(columns);
                let (b, four) = four.split_at(columns);
                let (c, d) = four.split_at(columns);
                let d = &d[..columns];
                for i in 0..columns {
                    block[i] += (a[i].wide() + b[i].wide()) + (c[i].wide() + d[i].wide());
                }
            }
            for row in fours.remainder().chunks_exact(columns) {
                for i in 0..columns {
                    block[i] += row[i].wide();
                }
            }
            for (block, sum) in block.iter_mut().zip(&mut *sums) {
                *sum += f64::from(std::mem::take(block));
            }
        }
    }
}

fn row_reduction<T: Stored>(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let dims = call.operand_shape(0)?.1;
    expect_dims(call.result_shape(0)?.1, &dims[..dims.len() - 1])?;
    let maximum = flag(call, "maximum")?;
    let (x, results) = (call.operand::<T>(0)?, call.result::<T>(0)?);
    let columns = x.len() / results.len();
    let work = RowReduction {
        x: x.as_ptr(),
        columns,
        tasks: RowTasks::new([results.len(), columns], TASK),
        results: results.as_mut_ptr(),
        maximum,
    };
    shared_tasks::run(call, threads(call)?, work);
    Ok(())
}

/// A number for each row, which one thread finds.
struct RowReduction<T> {
    x: *const T,
    columns: usize,
    tasks: RowTasks,
    results: *mut T,
    /// The largest number, NaN if there is one; else the sum.
    maximum: bool,
}

// SAFETY: as for `ColumnSums`; each result is of one task.
unsafe impl<T> Send for RowReduction<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for RowReduction<T> {}

impl<T: Stored> SharedWork for RowReduction<T> {
    type Scratch = ();

    fn tasks(&self) -> usize {
        self.tasks.count()
    }

    fn begin(&self) {}

    fn compute(&self, task: usize, (): &mut ()) {
        let rows = self.tasks.rows_of(task);
        let (first, count) = (rows.start, rows.len());
        // SAFETY: the operand has these rows, and the result a number for each, which nobody else uses.
        let (x, results) = unsafe {
            let x = self.x.add(first * self.columns);
            (
                std::slice::from_raw_parts(x, count * self.columns),
                std::slice::from_raw_parts_mut(self.results.add(first), count),
            )
        };
        match self.maximum {
            true => reduce_rows::<T, true>(x, results),
            false => reduce_rows::<T, false>(x, results),
        }
    }

    fn end(&self, (): ()) {}
}

/// The larger number, or a NaN.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

/// Puts a number to a partial result.
#[inline(always)]
fn put<const MAXIMUM: bool>(to: &mut f32, value: f32) {
    *to = if MAXIMUM {
        larger(*to, value)
    } else {
        *to + value
    };
}

compiled_for_wide_vectors! {
    /// The maximum or the sum of each row, as many as there are results: of every [`LANES`]th number, then of those.
    fn reduce_rows<T: Stored, const MAXIMUM: bool>(x: &[T], results: &mut [T]) {
        let columns = x.len() / results.len();
        for (row, result) in x.chunks_exact(columns).zip(results) {
            let nothing = if MAXIMUM { f32::NEG_INFINITY } else { 0.0 };
            let mut lanes = [nothing; LANES];
            let (whole, rest) = row.as_chunks::<LANES>();
            for numbers in whole {
                for (lane, number) in lanes.iter_mut().zip(numbers) {
                    put::<MAXIMUM>(lane, number.wide());
                }
            }
            for (lane, number) in lanes.iter_mut().zip(rest) {
                put::<MAXIMUM>(lane, number.wide());
            }
            let mut count = LANES / 2;
            while count > 0 {
                for i in 0..count {
                    let other = lanes[i + count];
                    put::<MAXIMUM>(&mut lanes[i], other);
                }
                count /= 2;
            }
            *result = T::narrow(lanes[0]);
        }
    }
}
