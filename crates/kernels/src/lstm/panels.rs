//! Products of a few rows by a matrix that was packed once: the inner loop of recurrent layers.
//!
//! A panel has four vectors of columns, three for the gates of a GRU. A block of rows keeps four vectors of sums a row in registers while it walks along the summed
//! dimension; each step loads four vectors of the panel and one number a row. The rows are as many as there are registers for, so that
//! the loop is bound by the multipliers: 24 multiply-adds for 10 loads with AVX-512, 12 for 7 with AVX2.

use std::ops::Range;

use crate::lanes::Lanes;
use crate::scratchpad::AlignedFloats;

/// Most vectors of a panel.
pub(crate) const VECTORS: usize = 4;

/// Sums of `R` rows by the columns of a panel of `N` vectors.
pub(crate) type Sums<V, const R: usize, const N: usize> = [[V; N]; R];

/// Rows of the left operand, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) at: *const f32,
    pub(crate) stride: usize,
}

/// The products of `R` rows with a panel, each summed in the order of `depth`.
///
/// # Safety
/// The instructions are there; the rows and the panel have `depth` numbers, and that many times `N` vectors.
#[inline(always)]
pub(crate) unsafe fn multiply<V: Lanes, const R: usize, const N: usize>(
    rows: Rows,
    panel: *const f32,
    depth: usize,
) -> Sums<V, R, N> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; R];
        let mut right = panel;
        for k in 0..depth {
            let mut left = [V::splat(0.0); R];
            for (row, left) in left.iter_mut().enumerate() {
                *left = V::splat(*rows.at.add(row * rows.stride + k));
            }
            // One vector of the panel at a time: with AVX2 no register is left for a second.
            for vector in 0..N {
                let column = V::load(right.add(vector * V::LEN));
                for (sums, &left) in sums.iter_mut().zip(&left) {
                    sums[vector] = left.mul_add(column, sums[vector]);
                }
            }
            right = right.add(N * V::LEN);
        }
        sums
    }
}

/// What is done with blocks of rows, a function for each number of rows.
pub(crate) trait BlockWork<V: Lanes> {
    /// Computes `R` rows from the row `first` on.
    ///
    /// # Safety
    /// The work's own.
    unsafe fn block<const R: usize>(&self, first: usize);
}

/// Divides rows into blocks of nearly equal size, and computes each.
///
/// # Safety
/// As for the work, of all rows.
#[inline(always)]
pub(crate) unsafe fn for_blocks<V: Lanes>(rows: usize, work: &impl BlockWork<V>) {
    let count = rows.div_ceil(V::ROWS);
    for number in 0..count {
        let block = part(rows, count, number);
        let first = block.start;
        // SAFETY: the caller's promise.
        unsafe {
            match block.len() {
                1 => work.block::<1>(first),
                2 => work.block::<2>(first),
                3 => work.block::<3>(first),
                4 if V::ROWS > 3 => work.block::<4>(first),
                5 if V::ROWS > 3 => work.block::<5>(first),
                6 if V::ROWS > 3 => work.block::<6>(first),
                _ => unreachable!("blocks have at most {} rows", V::ROWS),
            }
        }
    }
}

/// The numbers of one of `count` parts of nearly equal size.
pub(crate) fn part(all: usize, count: usize, number: usize) -> Range<usize> {
    let bound = |number: usize| all / count * number + (all % count).min(number);
    bound(number)..bound(number + 1)
}

/// Packs a matrix into panels: `[panel][depth][column of the panel]`, with zeros for columns that there are not.
///
/// `column(panel, at)` is the number of the column at a place of a panel, if there is one; `strides` are the distances between the rows
/// and between the columns of the matrix.
pub(crate) fn pack(
    matrix: &[f32],
    [row, step]: [usize; 2],
    [panels, depth, width]: [usize; 3],
    column: impl Fn(usize, usize) -> Option<usize>,
) -> AlignedFloats {
    /// Rows that are packed together, whose lines are in the cache where columns are far apart.
    const TOGETHER: usize = 16;
    let mut packed = AlignedFloats::zeros(panels * depth * width);
    for (number, panel) in packed.chunks_exact_mut(depth * width).enumerate() {
        for (group, rows) in panel.chunks_mut(TOGETHER * width).enumerate() {
            for at in 0..width {
                let Some(from) = column(number, at) else {
                    continue;
                };
                let first = group * TOGETHER * row + from * step;
                for (k, packed) in rows.iter_mut().skip(at).step_by(width).enumerate() {
                    *packed = matrix[first + k * row];
                }
            }
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_once_and_differ_by_one() {
        for (all, count) in [(1, 1), (16, 3), (7, 7), (31, 6), (100, 9)] {
            let parts: Vec<_> = (0..count).map(|number| part(all, count, number)).collect();
            let numbers: Vec<usize> = parts.iter().cloned().flatten().collect();
            assert_eq!(numbers, (0..all).collect::<Vec<_>>());
            let sizes = parts.iter().map(ExactSizeIterator::len);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
    }

    #[test]
    fn panels_hold_the_columns_that_were_asked_for() {
        let matrix: Vec<f32> = (0..20 * 5).map(|i| i as f32).collect();
        let column = |panel: usize, at: usize| Some(panel * 3 + at).filter(|&column| column < 5);
        let packed = pack(&matrix, [5, 1], [2, 20, 3], column);
        for (index, &found) in packed.iter().enumerate() {
            let (panel, k, at) = (index / 60, index / 3 % 20, index % 3);
            let expected = column(panel, at).map_or(0.0, |column| matrix[k * 5 + column]);
            assert_eq!(found, expected, "panel {panel}, row {k}, place {at}");
        }
    }
}
