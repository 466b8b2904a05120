//! Rows of a large table at indices in any order: the custom call `phalanx.rows`.
//!
//! Of a table that is not in the caches each row is somewhere else in memory. A loop that copies row after row waits for nearly each: what a
//! processor looks ahead is three rows. Here the rows that come are asked for long before they are copied, and threads share the rows.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use phalanx_pjrt::{Client, CustomCallError, CustomCallFrame, ElementType};

use crate::handlers::{invalid, register, replicas};
use crate::library::KernelError;
use crate::row_sums::row_sums;
use crate::shared_tasks::{self, SharedWork};

/// So many rows are asked for before they are copied: more than a processor has misses in flight.
const AHEAD: usize = 16;
/// Rows of a task.
const TASK: usize = 256;

/// Registers `phalanx.rows` and `phalanx.row_sums` with this client's plugin for the rest of the process; does nothing when they are registered already.
///
/// # Errors
/// The plugin has no custom calls.
pub fn register_rows(client: &Client) -> Result<(), KernelError> {
    register(client, "phalanx.rows", rows)?;
    register(client, "phalanx.row_sums", row_sums)
}

/// Operands: the table, whose first dim is the rows', and indices; an index out of range is the first or last row, as in StableHLO.
/// Result: the rows, the dims of the indices first.
fn rows(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let (element, table) = call.operand_shape(0)?;
    let (of_indices, indices) = call.operand_shape(1)?;
    let (of_result, result) = call.result_shape(0)?;
    let [count, of_row @ ..] = table else {
        return Err(invalid("the table has no rows: it is a scalar".to_owned()));
    };
    let expected: Vec<i64> = indices.iter().chain(of_row).copied().collect();
    if of_indices != ElementType::I32 || of_result != element || *count < 1 || result != expected {
        return Err(invalid(format!(
            "expected rows {expected:?} of a table with some, at i32 indices, got {result:?} of {table:?} at {of_indices}"
        )));
    }
    let threads = (call.threads() / replicas(call)?).max(1);
    let (table, indices) = (call.operand_bytes(0)?, call.operand::<i32>(1)?);
    let result = call.result_bytes(0)?;
    let row = table.len() / usize::try_from(*count).unwrap_or(usize::MAX);
    if row == 0 || indices.is_empty() {
        return Ok(());
    }
    let work = CopiedRows {
        table: table.as_ptr(),
        last: i32::try_from(count - 1).unwrap_or(i32::MAX),
        row,
        indices: indices.as_ptr(),
        count: indices.len(),
        result: result.as_mut_ptr(),
    };
    shared_tasks::run(call, threads, work);
    Ok(())
}

/// Rows that several threads copy.
struct CopiedRows {
    table: *const u8,
    /// The last row of the table.
    last: i32,
    /// Bytes of a row.
    row: usize,
    indices: *const i32,
    count: usize,
    result: *mut u8,
}

// SAFETY: the arrays are used between the beginning and the end of a task, and the call, which keeps them alive, ends after the last task;
// each row of the result is of one task, which one thread computes.
unsafe impl Send for CopiedRows {}
// SAFETY: as above.
unsafe impl Sync for CopiedRows {}

impl CopiedRows {
    /// Where a row of the table begins: one that is there for any index.
    fn at(&self, index: i32) -> *const u8 {
        let row = usize::try_from(index.clamp(0, self.last)).unwrap_or(0);
        self.table.wrapping_add(row * self.row)
    }
}

impl SharedWork for CopiedRows {
    type Scratch = ();

    fn tasks(&self) -> usize {
        self.count.div_ceil(TASK)
    }

    fn begin(&self) {}

    fn compute(&self, task: usize, _: &mut ()) {
        let first = task * TASK;
        let count = TASK.min(self.count - first);
        // SAFETY: the operand has `self.count` indices.
        let indices = unsafe { std::slice::from_raw_parts(self.indices.add(first), count) };
        for &index in &indices[..AHEAD.min(count)] {
            ask_for(self.at(index), self.row);
        }
        for (place, &index) in indices.iter().enumerate() {
            if let Some(&later) = indices.get(place + AHEAD) {
                ask_for(self.at(later), self.row);
            }
            // SAFETY: `at` is a row of the table; the result has a row for each index, and nobody else writes to this one.
            unsafe {
                let to = self.result.add((first + place) * self.row);
                std::ptr::copy_nonoverlapping(self.at(index), to, self.row);
            }
        }
    }

    fn end(&self, (): ()) {}
}

/// Asks for the first lines of a row, which may be none of the table's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ask_for(row: *const u8, bytes: usize) {
    /// Bytes of a line of the caches.
    const LINE: usize = 64;
    /// The processor finds out that the following are wanted.
    const LINES: usize = 8;
    for line in (0..bytes.min(LINES * LINE)).step_by(LINE) {
        // SAFETY: a hint reads nothing that the program sees, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(line).cast()) };
    }
}

/// Rust has no such hint for other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ask_for(_: *const u8, _: usize) {}
