//! Sums of rows of a table at indices in any order, such as averaged embeddings: the custom call `phalanx.row_sums`.
//!
//! No row is written, and rows are asked for long before they are added, as in [`crate::rows`].

use phalanx_pjrt::{CustomCallError, CustomCallFrame, ElementType};

use crate::handlers::{expect_dims, invalid, replicas};
use crate::rows::ask_for;
use crate::shared_tasks::{self, RowTasks, SharedWork};
use crate::simd::compiled_for_wide_vectors;

/// Elements of a task, which is whole sums.
const TASK: usize = 1 << 16;
/// Rows whose sum is kept in f32 before it is added in f64.
const BLOCK_ROWS: usize = 64;
/// So many rows are asked for before they are added.
const AHEAD: usize = 32;

/// Operands: the table `[rows, columns]`, indices `[sums, rows of each]`, optionally weights like the indices.
/// Result: `[sums, columns]`. An index below 0 leaves its row out, one past the table stands for a row of NaN.
pub(crate) fn row_sums(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let (element, table) = call.operand_shape(0)?;
    let (of_indices, indices) = call.operand_shape(1)?;
    let (&[rows, columns], &[sums, of_each]) = (table, indices) else {
        return Err(invalid(format!(
            "sums of rows are of a table [rows, columns] at indices [sums, rows], got {table:?} at {indices:?}"
        )));
    };
    if (element, of_indices) != (ElementType::F32, ElementType::I32) || columns < 1 || of_each < 1 {
        return Err(invalid(format!(
            "sums of rows are of f32 at i32 indices, some of each, got {table:?} of {element} at {indices:?} of {of_indices}"
        )));
    }
    expect_dims(call.result_shape(0)?.1, &[sums, columns])?;
    let has_weights = call.operands() > 2;
    if has_weights {
        expect_dims(call.operand_shape(2)?.1, indices)?;
    }
    let [rows, columns, sums, of_each] =
        [rows, columns, sums, of_each].map(|size| usize::try_from(size).unwrap_or(0));
    let threads = (call.threads() / replicas(call)?).max(1);
    let weights = match has_weights {
        true => Some(call.operand::<f32>(2)?.as_ptr()),
        false => None,
    };
    let work = SummedRows {
        table: call.operand::<f32>(0)?.as_ptr(),
        rows,
        columns,
        indices: call.operand::<i32>(1)?.as_ptr(),
        weights,
        of_each,
        tasks: RowTasks::new([sums, of_each * columns], TASK),
        result: call.result::<f32>(0)?.as_mut_ptr(),
    };
    shared_tasks::run(call, threads, work);
    Ok(())
}

/// Sums that several threads find, each by one.
struct SummedRows {
    table: *const f32,
    rows: usize,
    columns: usize,
    indices: *const i32,
    /// As many as there are indices.
    weights: Option<*const f32>,
    /// Rows of each sum.
    of_each: usize,
    tasks: RowTasks,
    result: *mut f32,
}

// SAFETY: the arrays are used between the beginning and the end of a task, and the call, which keeps them alive, ends after the last task;
// each sum is of one task, which one thread computes.
unsafe impl Send for SummedRows {}
// SAFETY: as above.
unsafe impl Sync for SummedRows {}

/// What a thread adds in.
struct RowTotals {
    /// A row of NaN.
    nan: Vec<f32>,
    block: Vec<f32>,
    total: Vec<f64>,
}

impl SharedWork for SummedRows {
    type Scratch = RowTotals;

    fn tasks(&self) -> usize {
        self.tasks.count()
    }

    fn begin(&self) -> RowTotals {
        RowTotals {
            nan: vec![f32::NAN; self.columns],
            block: vec![0.0; self.columns],
            total: vec![0.0; self.columns],
        }
    }

    fn compute(&self, task: usize, sums: &mut RowTotals) {
        let bags = self.tasks.rows_of(task);
        let (first, count) = (bags.start * self.of_each, bags.len() * self.of_each);
        // SAFETY: the operands have these elements, and the result has a sum for each bag, which nobody else uses.
        let (table, indices, weights, results) = unsafe {
            let results = self.result.add(bags.start * self.columns);
            (
                std::slice::from_raw_parts(self.table, self.rows * self.columns),
                std::slice::from_raw_parts(self.indices.add(first), count),
                self.weights
                    .map(|weights| std::slice::from_raw_parts(weights.add(first), count)),
                std::slice::from_raw_parts_mut(results, bags.len() * self.columns),
            )
        };
        let rows = TableRows {
            numbers: table,
            columns: self.columns,
        };
        for &index in &indices[..AHEAD.min(count)] {
            rows.ask_for(index);
        }
        for (bag, result) in results.chunks_exact_mut(self.columns).enumerate() {
            let first = bag * self.of_each;
            let weights = weights.map(|weights| &weights[first..][..self.of_each]);
            sums.add_up(rows, (&indices[first..], weights, self.of_each), result);
        }
    }

    fn end(&self, _: RowTotals) {}
}

/// A table.
#[derive(Clone, Copy)]
struct TableRows<'a> {
    numbers: &'a [f32],
    columns: usize,
}

impl<'a> TableRows<'a> {
    /// None past the table.
    fn at(self, index: usize) -> Option<&'a [f32]> {
        self.numbers.chunks_exact(self.columns).nth(index)
    }

    fn ask_for(self, index: i32) {
        let row = usize::try_from(index).ok().and_then(|index| self.at(index));
        if let Some(row) = row {
            ask_for(row.as_ptr().cast(), size_of_val(row));
        }
    }
}

impl RowTotals {
    /// The sum of the rows at the first `count` indices; behind these are the ones of the next sums.
    fn add_up(
        &mut self,
        table: TableRows<'_>,
        (indices, weights, count): (&[i32], Option<&[f32]>, usize),
        result: &mut [f32],
    ) {
        self.total.fill(0.0);
        for first in (0..count).step_by(BLOCK_ROWS) {
            let mut rows = [&self.nan[..]; BLOCK_ROWS];
            let mut factors = [1.0; BLOCK_ROWS];
            let mut kept = 0;
            for place in first..count.min(first + BLOCK_ROWS) {
                if let Some(&later) = indices.get(place + AHEAD) {
                    table.ask_for(later);
                }
                let Ok(index) = usize::try_from(indices[place]) else {
                    continue;
                };
                rows[kept] = table.at(index).unwrap_or(&self.nan);
                if let Some(weights) = weights {
                    factors[kept] = weights[place];
                }
                kept += 1;
            }
            match weights {
                Some(_) => add_weighted(&rows[..kept], &factors, &mut self.block),
                None => add(&rows[..kept], &mut self.block),
            }
            for (total, block) in self.total.iter_mut().zip(&mut self.block) {
                *total += f64::from(std::mem::take(block));
            }
        }
        for (result, total) in result.iter_mut().zip(&self.total) {
            *result = *total as f32;
        }
    }
}

compiled_for_wide_vectors! {
    /// Adds rows to their sum.
    fn add(rows: &[&[f32]], sum: &mut [f32]) {
        let columns = sum.len();
        let (fours, rest) = rows.as_chunks::<4>();
        for four in fours {
            let [a, b, c, d] = four.map(|row| &row[..columns]);
            for i in 0..columns {
                sum[i] += (a[i] + b[i]) + (c[i] + d[i]);
            }
        }
        for row in rest {
            for (sum, number) in sum.iter_mut().zip(*row) {
                *sum += number;
            }
        }
    }
}

compiled_for_wide_vectors! {
    /// Adds rows to their sum, each multiplied with its factor.
    fn add_weighted(rows: &[&[f32]], factors: &[f32], sum: &mut [f32]) {
        for (row, &factor) in rows.iter().zip(factors) {
            for (sum, number) in sum.iter_mut().zip(*row) {
                *sum += factor * number;
            }
        }
    }
}
