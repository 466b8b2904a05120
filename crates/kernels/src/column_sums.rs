//! Sums of the columns of a matrix, such as gradients of biases.
//!
//! XLA's own sums of bf16 columns take ten times as long as reading the matrix.

use crate::onednn::Scratchpad;
use crate::openmp::ThreadTeam;
use crate::simd::compiled_for_wide_vectors;
use crate::stored::Stored;

/// Elements of a chunk, which is whole rows.
const CHUNK: usize = 1 << 17;
/// Fewest rows of a chunk, however long they are: its sums take 8 bytes a column.
const MIN_CHUNK_ROWS: usize = 32;
/// Rows whose sums are kept in f32 before they are added up in f64.
const BLOCK_ROWS: usize = 64;

pub(crate) struct ColumnSums<'a, T> {
    /// Whole rows of as many elements as there are sums.
    pub(crate) x: &'a [T],
    pub(crate) sums: &'a mut [T],
}

impl<T: Stored> ColumnSums<'_, T> {
    /// Fills the sums, in an order that does not depend on the number of threads; there is at least one column.
    pub(crate) fn run(self, team: &ThreadTeam, scratch: &mut Scratchpad) {
        let columns = self.sums.len();
        let chunk = (CHUNK / columns).max(MIN_CHUNK_ROWS) * columns;
        let parts = scratch.doubles(self.x.len().div_ceil(chunk).max(1) * columns);
        parts[..columns].fill(0.0);
        let tasks = self.x.chunks(chunk).zip(parts.chunks_mut(columns));
        team.for_each(tasks, |(x, sums)| sum_rows(x, sums));
        for (column, sum) in self.sums.iter_mut().enumerate() {
            let total: f64 = parts.iter().skip(column).step_by(columns).sum();
            *sum = T::narrow(total as f32);
        }
    }
}

compiled_for_wide_vectors! {
    /// Sums of whole rows.
    fn sum_rows<T: Stored>(x: &[T], sums: &mut [f64]) {
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
