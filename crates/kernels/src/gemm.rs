//! Single-threaded f32 matrix multiplication (GEMM) for processors with AVX2 or AVX-512.
//!
//! As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): a block of the right matrix is packed
//! into panels of 16 columns that stay in the outer caches, one of the left into panels of 6 rows for the second where that pays
//! ([`InPlace`]), and the inner loop keeps 6 x 16 sums, with AVX-512 6 x 32 of two panels, in registers ([`crate::microkernel`]) while
//! it goes through a panel of each, of which the wider stays in the first cache. With AVX2 it runs at the speed of the processor's
//! multipliers (102 of 103 GFLOP/s measured); prefetches inside of it cost a fourth of that.

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};
use std::ops::Range;

use crate::microkernel::{Isa, Lhs, MR, NR, PanelGemm, Rhs, SimdKernel, Target};
use crate::simd::{has_fma, transpose_8x8};
use crate::simd_row::SimdRow;

/// Length of the slices of the summed dimension (`kc` of Goto and van de Geijn): a result element is read and written once per slice.
const KC: usize = 256;
/// Rows of a packed block of the left matrix (`mc`), sized for the second-level cache.
const MC: usize = 144;
/// Panels of the right matrix that are multiplied together at most.
const MAX_PANELS: usize = 2;
/// f32 elements of an AVX2 vector.
const LANES: usize = 8;
/// Columns of a product up to which a left matrix whose rows are adjacent in memory is not packed: with 256 columns a panel of it is used eight
/// times, and products are 5 to 18 % faster without, with 512 as fast.
const FEW_COLUMNS: usize = 256;
/// f32 elements of a page: places so far apart share the sets of a first-level cache, of which each holds 8 or 12 of them.
const SAME_SETS: usize = 1024;
/// How many steps of `k` are packed together when `k` is the strided dimension: the number of streams that the hardware prefetcher
/// follows.
const STREAMS: usize = 8;

/// A matrix operand, seen as `count` vectors of `depth` elements: the rows of the left matrix, or the columns of the right one.
#[derive(Clone, Copy)]
pub(crate) struct GemmOperand<'a> {
    values: &'a [f32],
    count: usize,
    depth: usize,
    /// Whether the elements of a vector are adjacent in memory; otherwise the elements of equal `k` are.
    k_contiguous: bool,
}

impl<'a> GemmOperand<'a> {
    /// An operand stored densely.
    ///
    /// # Panics
    /// `values` has not `count * depth` elements: a bug of the caller.
    pub(crate) fn new(values: &'a [f32], count: usize, depth: usize, k_contiguous: bool) -> Self {
        assert_eq!(values.len(), count * depth);
        Self {
            values,
            count,
            depth,
            k_contiguous,
        }
    }
}

/// Size of the packing buffer for a tile of `columns` columns, in elements.
pub(crate) fn scratch_len(columns: usize) -> usize {
    left_len() + right_len(columns)
}

fn left_len() -> usize {
    MC.next_multiple_of(MR) * KC
}

fn right_len(columns: usize) -> usize {
    columns.next_multiple_of(NR) * KC
}

/// Computes the tile `rows` x `columns` of `left * right` and writes it to `result`, the dense matrix of all rows and columns.
///
/// # Safety
/// The processor supports `isa`; `result` has room for the whole matrix, and nobody else uses the elements of this tile meanwhile.
///
/// # Panics
/// The processor lacks AVX2 or FMA, the tile exceeds the matrix, or `scratch` is too small: bugs of the caller.
pub(crate) unsafe fn multiply(
    isa: Isa,
    left: GemmOperand<'_>,
    right: GemmOperand<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: &mut [f32],
    result: *mut f32,
) {
    assert!(has_fma() && left.depth == right.depth);
    assert!(rows.end <= left.count && columns.end <= right.count);
    let (packed_left, packed_right) = scratch.split_at_mut(left_len());
    assert!(packed_right.len() >= right_len(columns.len()));
    let mut first = 0;
    while first < left.depth {
        let ks = first..(first + KC).min(left.depth);
        // SAFETY: the processor has the instructions.
        unsafe { pack::<NR>(right, &columns, &ks, packed_right) };
        for start in rows.clone().step_by(MC) {
            let block = start..(start + MC).min(rows.end);
            let in_place = left.in_place(&block, &ks, columns.len());
            let to_pack = match in_place {
                Some(_) => block.end - block.len() % MR..block.end,
                None => block.clone(),
            };
            // SAFETY: as above.
            unsafe { pack::<MR>(left, &to_pack, &ks, packed_left) };
            let product = BlockGemm {
                in_place,
                packed: packed_left,
                packed_from: to_pack.start,
                right: packed_right,
                depth: ks.len(),
                rows: block,
                columns: columns.clone(),
                result,
                width: right.count,
                add: first > 0,
            };
            // SAFETY: the caller's promise.
            unsafe { isa.run(product) };
        }
        first = ks.end;
    }
}

/// A block of the left matrix where the matrix has it: no element is read often enough to pay for packing, or the rows are read in order anyway.
#[derive(Clone, Copy)]
enum InPlace {
    /// The steps of a row are adjacent; rows are this far apart.
    Rows(*const f32, usize),
    /// The rows of a step are adjacent; steps are this far apart.
    Steps(*const f32, usize),
}

impl GemmOperand<'_> {
    /// These steps of a block of rows where they are, to be multiplied by this number of columns; none where packing is faster.
    ///
    /// Rows need no packing: six of them are six streams. Adjacent rows are read a few at a time, in as many places as there are steps, for
    /// each pair of panels again. Packing them pays from some columns on, and where all of these places fall into the same sets of a cache.
    fn in_place(self, block: &Range<usize>, ks: &Range<usize>, columns: usize) -> Option<InPlace> {
        if self.k_contiguous {
            let at = &self.values[block.start * self.depth + ks.start..];
            return Some(InPlace::Rows(at.as_ptr(), self.depth));
        }
        let few = columns <= FEW_COLUMNS && !self.count.is_multiple_of(SAME_SETS);
        few.then(|| {
            let at = &self.values[ks.start * self.count + block.start..];
            InPlace::Steps(at.as_ptr(), self.count)
        })
    }
}

/// A block of rows of the left matrix, packed panels of the right one, and the part of the result that they make.
struct BlockGemm<'a> {
    /// The left rows that fill a panel, unless they are packed.
    in_place: Option<InPlace>,
    /// Panels of the left rows from [`packed_from`](Self::packed_from) on.
    packed: &'a [f32],
    packed_from: usize,
    right: &'a [f32],
    depth: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    result: *mut f32,
    /// Columns of the result.
    width: usize,
    /// Whether to add to the result; else it is overwritten.
    add: bool,
}

impl SimdKernel for BlockGemm<'_> {
    /// Once for each kind of left operand, so that the inner loop knows which of its distances are constant.
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.in_place {
                None => self.panels::<C>(|row| self.packed_panel(row)),
                Some(InPlace::Rows(at, apart)) => self.panels::<C>(|row| Lhs {
                    at: at.wrapping_add((row - self.rows.start) * apart),
                    row: apart,
                    step: 1,
                }),
                Some(InPlace::Steps(at, apart)) => self.panels::<C>(|row| Lhs {
                    at: at.wrapping_add(row - self.rows.start),
                    row: 1,
                    step: apart,
                }),
            }
        }
    }
}

impl BlockGemm<'_> {
    /// All of the block, with whole panels of left rows from where `whole` has them.
    ///
    /// # Safety
    /// As for [`multiply`]; the panels that `whole` gives have `MR` rows of this depth.
    #[inline(always)]
    unsafe fn panels<C: SimdRow>(&self, whole: impl Fn(usize) -> Lhs) {
        let (panel, count) = (self.depth * NR, self.columns.len().div_ceil(NR));
        for first in (0..count).step_by(C::PANELS) {
            let panels = C::PANELS.min(count - first);
            let right = &self.right[first * panel..][..panels * panel];
            let column = self.columns.start + first * NR;
            let across = panels * NR;
            let width = across.min(self.columns.end - column);
            for row in self.rows.clone().step_by(MR) {
                let height = MR.min(self.rows.end - row);
                // SAFETY: the caller's promise; at the edges only the elements that there are are touched.
                unsafe {
                    let at = self.result.add(row * self.width + column);
                    if height == MR && width == across {
                        let to = (at, self.width, self.add);
                        tile_gemm::<C>(whole(row), right, self.depth, panels, to);
                        continue;
                    }
                    let mut edge = [0.0f32; MR * MAX_PANELS * NR];
                    let to = (edge.as_mut_ptr(), across, false);
                    if height == MR {
                        tile_gemm::<C>(whole(row), right, self.depth, panels, to);
                    } else {
                        tile_gemm::<C>(self.packed_panel(row), right, self.depth, panels, to);
                    }
                    for (i, sums) in edge.chunks(across).take(height).enumerate() {
                        for (j, &sum) in sums.iter().take(width).enumerate() {
                            let step = at.add(i * self.width + j);
                            *step = if self.add { *step + sum } else { sum };
                        }
                    }
                }
            }
        }
    }

    /// The packed panel that begins with a row.
    #[inline(always)]
    fn packed_panel(&self, row: usize) -> Lhs {
        let panel = &self.packed[(row - self.packed_from) * self.depth..][..self.depth * MR];
        Lhs {
            at: panel.as_ptr(),
            row: 1,
            step: MR,
        }
    }
}

/// Multiplies a panel of `MR` rows by some of `NR` columns, into a place with rows that far apart, by adding or overwriting.
///
/// # Safety
/// All panels have the same depth; there are `MR` rows of all columns in the result; the processor supports the ISA.
#[inline(always)]
unsafe fn tile_gemm<C: SimdRow>(
    left: Lhs,
    right: &[f32],
    depth: usize,
    panels: usize,
    (result, stride, add): (*mut f32, usize, bool),
) {
    let product = PanelGemm {
        left,
        right: Rhs {
            at: right.as_ptr(),
            step: NR,
            panel: depth * NR,
        },
        depth,
        rows: MR,
        panels,
        to: Target {
            at: result,
            row: stride,
            panel: NR,
        },
        add,
    };
    // SAFETY: the caller's promise.
    unsafe { product.compute::<C>() };
}

/// Packs the steps `ks` of the vectors `range` into panels of `WIDTH` vectors, `[panel][k][vector]`, padding the last panel with zeros.
///
/// # Safety
/// The processor has AVX2.
///
/// # Panics
/// The ranges exceed the operand, or `panels` is too small: bugs of the caller.
#[target_feature(enable = "avx2")]
unsafe fn pack<const WIDTH: usize>(
    operand: GemmOperand<'_>,
    range: &Range<usize>,
    ks: &Range<usize>,
    panels: &mut [f32],
) {
    assert!(range.end <= operand.count && ks.end <= operand.depth);
    let size = WIDTH * ks.len();
    let at_once = if operand.k_contiguous {
        ks.len()
    } else {
        STREAMS
    };
    for start in ks.clone().step_by(at_once) {
        let some = start..(start + at_once).min(ks.end);
        for (index, first) in range.clone().step_by(WIDTH).enumerate() {
            let count = WIDTH.min(range.end - first);
            let panel = &mut panels[index * size..][..size][(start - ks.start) * WIDTH..];
            let done = match (count == WIDTH, operand.k_contiguous) {
                (false, _) => 0,
                // SAFETY: the processor has the instructions; the ranges were checked above.
                (true, true) => unsafe { pack_transposed::<WIDTH>(operand, first, &some, panel) },
                // SAFETY: as above.
                (true, false) => unsafe { pack_contiguous::<WIDTH>(operand, first, &some, panel) },
            };
            let rest = panel.chunks_exact_mut(WIDTH).zip(some.clone()).skip(done);
            for (packed, step) in rest {
                for (i, packed) in packed.iter_mut().enumerate() {
                    *packed = match i < count {
                        true => operand.at(first + i, step),
                        false => 0.0,
                    };
                }
            }
        }
    }
}

impl GemmOperand<'_> {
    fn at(&self, vector: usize, step: usize) -> f32 {
        match self.k_contiguous {
            true => self.values[vector * self.depth + step],
            false => self.values[step * self.count + vector],
        }
    }
}

/// Packs vectors that lie side by side (`k` strided), by copying. Returns the number of steps of `k` it packed.
///
/// # Safety
/// The operand has `WIDTH` vectors from `first` on and all steps `ks`; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn pack_contiguous<const WIDTH: usize>(
    operand: GemmOperand<'_>,
    first: usize,
    ks: &Range<usize>,
    panel: &mut [f32],
) -> usize {
    let reach = WIDTH.next_multiple_of(LANES);
    for step in 0..ks.len() {
        let from = (ks.start + step) * operand.count + first;
        let to = step * WIDTH;
        // WIDTH need not be a multiple of 8: the last store writes beyond this step, and the next step overwrites that.
        if from + reach > operand.values.len() || to + reach > panel.len() {
            return step;
        }
        // The next call's, whose runs are too short for the hardware to find.
        let next = from + STREAMS * operand.count;
        _mm_prefetch::<_MM_HINT_T0>(operand.values.as_ptr().wrapping_add(next).cast());
        for start in (0..reach).step_by(LANES) {
            // SAFETY: checked above.
            unsafe {
                let vector = _mm256_loadu_ps(operand.values.as_ptr().add(from + start));
                _mm256_storeu_ps(panel.as_mut_ptr().add(to + start), vector);
            }
        }
    }
    ks.len()
}

/// Packs vectors that are contiguous in `k`, by transposing squares of 8 x 8. Returns the number of steps of `k` it packed.
///
/// # Safety
/// As for [`pack_contiguous`].
#[target_feature(enable = "avx2")]
unsafe fn pack_transposed<const WIDTH: usize>(
    operand: GemmOperand<'_>,
    first: usize,
    ks: &Range<usize>,
    panel: &mut [f32],
) -> usize {
    let whole = ks.len() / LANES * LANES;
    for step in (0..whole).step_by(LANES) {
        if (step + LANES - 1) * WIDTH + WIDTH.next_multiple_of(LANES) > panel.len() {
            return step;
        }
        for start in (0..WIDTH).step_by(LANES) {
            let count = LANES.min(WIDTH - start);
            let mut square = [_mm256_setzero_ps(); LANES];
            for (i, vector) in square.iter_mut().enumerate().take(count) {
                let from = (first + start + i) * operand.depth + ks.start + step;
                // SAFETY: the vector has these 8 steps.
                *vector = unsafe { _mm256_loadu_ps(operand.values.as_ptr().add(from)) };
            }
            for (i, vector) in transpose_8x8(square).into_iter().enumerate() {
                // SAFETY: checked above.
                unsafe {
                    let to = panel.as_mut_ptr().add((step + i) * WIDTH + start);
                    _mm256_storeu_ps(to, vector);
                }
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_of_every_layout_is_the_sum_of_products() {
        let mut state = 1u32;
        let mut noise = |count: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 27) as f32 - 16.0
            };
            (0..count).map(|_| next()).collect()
        };
        let sizes = [
            [1, 1, 1],
            [6, 16, 8],
            [5, 15, 7],
            [7, 17, 9],
            [13, 40, 257],
            [150, 33, 24],
            [145, 16, 515],
            [12, 64, 5],
            [17, 75, 300],
            // Packed although the rows are adjacent: many columns, or rows that share the sets of a cache.
            [9, 2 * FEW_COLUMNS + 8, 3],
            [SAME_SETS, 20, 5],
        ];
        for [rows, columns, depth] in sizes {
            let (a, b) = (noise(rows * depth), noise(columns * depth));
            for (isa, layout) in Isa::available().flat_map(|isa| (0..4).map(move |n| (isa, n))) {
                let left = GemmOperand::new(&a, rows, depth, layout & 1 == 0);
                let right = GemmOperand::new(&b, columns, depth, layout & 2 == 0);
                let mut scratch = vec![f32::NAN; scratch_len(columns)];
                let mut result = vec![f32::NAN; rows * columns];
                let half = columns / 2;
                for part in [0..half, half..columns] {
                    let result = result.as_mut_ptr();
                    // SAFETY: the result is of that size, and ours; the processor supports the ISA.
                    unsafe { multiply(isa, left, right, 0..rows, part, &mut scratch, result) };
                }
                for (index, &found) in result.iter().enumerate() {
                    let (row, column) = (index / columns, index % columns);
                    let products = (0..depth).map(|k| left.at(row, k) * right.at(column, k));
                    // Small integers: every order of sums is exact.
                    let expected: f32 = products.sum();
                    assert_eq!(
                        found, expected,
                        "{isa:?}, {rows}x{columns}x{depth}, layout {layout}, element {row} {column}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_nan_reaches_its_row_and_no_other() {
        let (rows, columns, depth) = (9, 20, 11);
        let mut a = vec![1.0; rows * depth];
        a[4 * depth + 10] = f32::NAN;
        let b = vec![0.0; columns * depth];
        let (left, right) = (
            GemmOperand::new(&a, rows, depth, true),
            GemmOperand::new(&b, columns, depth, false),
        );
        for isa in Isa::available() {
            let mut scratch = vec![f32::NAN; scratch_len(columns)];
            let mut result = vec![1.0; rows * columns];
            let (to, all) = (result.as_mut_ptr(), 0..columns);
            // SAFETY: the result is of that size, and ours; the processor supports the ISA.
            unsafe { multiply(isa, left, right, 0..rows, all, &mut scratch, to) };
            for (index, value) in result.iter().enumerate() {
                let of_nan = index / columns == 4;
                assert_eq!(value.is_nan(), of_nan, "{isa:?}, element {index}");
                assert!(value.is_nan() || *value == 0.0);
            }
        }
    }
}
