//! Single-threaded matrix multiplication (GEMM) in f32 for processors with AVX2 or AVX-512, of matrices of f32 or bf16.
//!
//! As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): a block of the right matrix is packed
//! into panels of 16 columns that stay in the outer caches, unless it was packed ahead, one of the left into panels of 6 rows for the second
//! where that pays ([`LeftBlock`]), and the inner loop keeps 6 x 16 sums, with AVX-512 6 x 32 of two panels, in registers ([`crate::microkernel`]) while
//! it goes through a panel of each, of which the wider stays in the first cache. With AVX2 it runs at the speed of the processor's
//! multipliers (102 of 103 GFLOP/s measured). Elements of bf16 are widened where they are packed, so that they move half the bytes.

mod packed;

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm256_setzero_ps, _mm256_storeu_ps};
use std::ops::Range;

pub(crate) use self::packed::{PackedMatrix, RightOperand, pack_ahead, pack_part, packed_parts};
use crate::microkernel::{Isa, Lhs, MR, NR, PanelGemm, Rhs, SimdKernel, Target};
use crate::simd::{has_fma, transpose_8x8};
use crate::simd_element::SimdElement;
use crate::simd_row::SimdRow;

/// Length of the slices of the summed dimension (`kc` of Goto and van de Geijn): a result element is read and written once per slice.
const KC: usize = 256;
/// Rows of a packed block of the left matrix (`mc`), sized for the second-level cache.
const MC: usize = 144;
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
pub(crate) struct GemmOperand<'a, T = f32> {
    values: &'a [T],
    count: usize,
    depth: usize,
    /// Whether the elements of a vector are adjacent in memory; otherwise the elements of equal `k` are.
    k_contiguous: bool,
    /// How far apart vectors are then, or the steps of `k`.
    apart: usize,
}

impl<'a, T: SimdElement> GemmOperand<'a, T> {
    /// An operand stored densely.
    ///
    /// # Panics
    /// `values` has not `count * depth` elements: a bug of the caller.
    pub(crate) fn new(values: &'a [T], count: usize, depth: usize, k_contiguous: bool) -> Self {
        assert_eq!(values.len(), count * depth);
        let apart = if k_contiguous { depth } else { count };
        Self::strided(values, [count, depth], k_contiguous, apart)
    }

    /// An operand whose vectors, or steps of `k`, are `apart` elements apart.
    ///
    /// # Panics
    /// They overlap, or `values` ends before the last of them: bugs of the caller.
    pub(crate) fn strided(
        values: &'a [T],
        [count, depth]: [usize; 2],
        k_contiguous: bool,
        apart: usize,
    ) -> Self {
        let [outer, inner] = match k_contiguous {
            true => [count, depth],
            false => [depth, count],
        };
        assert!(apart >= inner);
        assert!(outer == 0 || values.len() >= (outer - 1) * apart + inner);
        Self {
            values,
            count,
            depth,
            k_contiguous,
            apart,
        }
    }
}

/// Size of the packing buffer for a tile of `columns` columns, in elements.
pub(crate) fn scratch_len(columns: usize) -> usize {
    left_len() + right_len(columns)
}

/// Size of the part of it where a block of the left matrix is packed.
pub(crate) fn left_len() -> usize {
    MC.next_multiple_of(MR) * KC
}

fn right_len(columns: usize) -> usize {
    columns.next_multiple_of(NR) * KC
}

/// A part of a product's result, and where it is written: element `[row, column]` of the whole to `result + row * width + column`.
#[derive(Clone)]
pub(crate) struct ResultTile<'a> {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
    pub(crate) result: *mut f32,
    pub(crate) width: usize,
    /// What is added to the columns of the whole.
    pub(crate) bias: Option<&'a [f32]>,
}

/// Computes a tile of `left * right`.
///
/// # Safety
/// The processor supports `isa`; there is room for the tile where it is written, and nobody else uses its elements meanwhile.
///
/// # Panics
/// The processor lacks AVX2 or FMA, the tile exceeds the matrix, or `scratch` is too small: bugs of the caller.
pub(crate) unsafe fn multiply<T: SimdElement>(
    isa: Isa,
    left: GemmOperand<'_, T>,
    right: RightOperand<'_, T>,
    tile: &ResultTile<'_>,
    scratch: &mut [f32],
) {
    let [width, depth] = right.dims();
    let (rows, columns) = (&tile.rows, &tile.columns);
    assert!(has_fma() && left.depth == depth);
    assert!(rows.end <= left.count && columns.end <= width);
    assert!(tile.bias.is_none_or(|bias| bias.len() == width));
    let (packed_left, packed_right) = scratch.split_at_mut(left_len());
    for start in (0..depth).step_by(KC) {
        let ks = start..(start + KC).min(depth);
        let (panels, next) = match right {
            RightOperand::Packed(packed) => {
                let next = ks.end..(ks.end + KC).min(depth);
                let next = packed.part(columns, &next).as_ptr();
                (packed.part(columns, &ks), Some(next))
            }
            RightOperand::Matrix(matrix) => {
                // SAFETY: the processor has the instructions.
                unsafe { pack::<NR, T>(matrix, columns, &ks, packed_right) };
                (&*packed_right, None)
            }
        };
        for start in rows.clone().step_by(MC) {
            let block = start..(start + MC).min(rows.end);
            let product = BlockGemm {
                // SAFETY: as above.
                left: unsafe { left.block(&block, &ks, columns.len(), packed_left) },
                right: panels,
                next: next.filter(|_| start == rows.start),
                depth: ks.len(),
                tile: ResultTile {
                    rows: block,
                    bias: tile.bias.filter(|_| ks.end == depth),
                    ..tile.clone()
                },
                add: ks.start > 0,
            };
            // SAFETY: the caller's promise.
            unsafe { isa.run(product) };
        }
    }
}

/// A block of rows of the left matrix.
#[derive(Clone, Copy)]
enum LeftBlock {
    /// Panels of `MR` rows.
    Packed(*const f32),
    /// Where the matrix has it: the steps of a row are adjacent; rows are this far apart.
    Rows(*const f32, usize),
    /// Where the matrix has it: the rows of a step are adjacent; steps are this far apart.
    Steps(*const f32, usize),
}

impl<T: SimdElement> GemmOperand<'_, T> {
    /// These steps of a block of rows, to be multiplied by this number of columns: where they are, or packed or widened, whichever is faster.
    ///
    /// Rows of f32 need no packing: six of them are six streams. Adjacent rows are read a few at a time, in as many places as there are steps,
    /// for each pair of panels again. Packing them pays from some columns on, and where all of these places fall into the same sets of a cache.
    ///
    /// # Safety
    /// The processor has AVX2.
    ///
    /// # Panics
    /// The ranges exceed the operand, or `packed` is too small: bugs of the caller.
    unsafe fn block(
        self,
        block: &Range<usize>,
        ks: &Range<usize>,
        columns: usize,
        packed: &mut [f32],
    ) -> LeftBlock {
        let first = match self.k_contiguous {
            true => &self.values[block.start * self.apart + ks.start..],
            false => &self.values[ks.start * self.apart + block.start..],
        };
        let few = columns <= FEW_COLUMNS && !self.apart.is_multiple_of(SAME_SETS);
        match (T::in_f32(first.as_ptr()), self.k_contiguous) {
            (Some(at), true) => LeftBlock::Rows(at, self.apart),
            (Some(at), false) if few => LeftBlock::Steps(at, self.apart),
            (None, true) => {
                // SAFETY: the caller's promise.
                unsafe { widen_rows(self, block, ks, packed) };
                LeftBlock::Rows(packed.as_ptr(), KC)
            }
            (_, false) => {
                // SAFETY: the caller's promise.
                unsafe { pack::<MR, T>(self, block, ks, packed) };
                LeftBlock::Packed(packed.as_ptr())
            }
        }
    }
}

/// Copies the steps `ks` of the vectors `range`, whose elements are adjacent, to rows of `KC` numbers.
///
/// # Safety
/// The processor has AVX2.
///
/// # Panics
/// The ranges exceed the operand, or `wide` is too small: bugs of the caller.
#[target_feature(enable = "avx2")]
unsafe fn widen_rows<T: SimdElement>(
    operand: GemmOperand<'_, T>,
    range: &Range<usize>,
    ks: &Range<usize>,
    wide: &mut [f32],
) {
    for (vector, wide) in range.clone().zip(wide.chunks_mut(KC)) {
        let values = &operand.values[vector * operand.apart..][ks.clone()];
        let (values, rest) = values.as_chunks::<LANES>();
        let (eights, last) = wide[..ks.len()].as_chunks_mut::<LANES>();
        for (from, to) in values.iter().zip(eights) {
            // SAFETY: the processor has the instructions; there are 8 of each.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), T::load_8(from.as_ptr())) };
        }
        for (from, to) in rest.iter().zip(last) {
            *to = from.wide();
        }
    }
}

/// A block of rows of the left matrix, packed panels of the right one, and the part of the result that they make.
struct BlockGemm<'a> {
    left: LeftBlock,
    right: &'a [f32],
    /// The first panel of what is multiplied next, where panels come from memory.
    next: Option<*const f32>,
    depth: usize,
    tile: ResultTile<'a>,
    /// Whether to add to the result; else it is overwritten.
    add: bool,
}

impl SimdKernel for BlockGemm<'_> {
    /// Once for each kind of left operand, so that the inner loop knows which of its distances are constant.
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.left {
                LeftBlock::Packed(at) => self.multiply::<C>(Lhs {
                    at,
                    row: 1,
                    block: MR * self.depth,
                    step: MR,
                }),
                LeftBlock::Rows(at, apart) => self.multiply::<C>(Lhs::even(at, apart, 1)),
                LeftBlock::Steps(at, apart) => self.multiply::<C>(Lhs::even(at, 1, apart)),
            }
        }
    }
}

impl BlockGemm<'_> {
    /// Whole panels at once, and what is left of the last one by way of a buffer.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn multiply<C: SimdRow>(&self, left: Lhs) {
        let whole = self.tile.columns.len() / NR;
        let rest = self.tile.columns.len() % NR;
        let panel = self.depth * NR;
        let product = PanelGemm {
            left,
            right: Rhs {
                at: self.right.as_ptr(),
                step: NR,
                panel,
            },
            depth: self.depth,
            rows: self.tile.rows.len(),
            panels: whole,
            to: Target {
                at: self.at(0, 0),
                row: self.tile.width,
                panel: NR,
            },
            add: self.add,
            bias: self.bias().map(<[f32]>::as_ptr),
            next: match (self.next, rest) {
                (next, 0) => next,
                (next, _) => next.map(|_| self.right[whole * panel..].as_ptr()),
            },
        };
        // SAFETY: the caller's promise.
        unsafe { product.compute::<C>() };
        if rest == 0 {
            return;
        }
        for row in (0..self.tile.rows.len()).step_by(MR) {
            let mut sums = [0.0f32; MR * NR];
            let block = PanelGemm {
                left: left.block(row / MR),
                right: product.right.panel(whole),
                rows: MR.min(self.tile.rows.len() - row),
                panels: 1,
                to: Target {
                    at: sums.as_mut_ptr(),
                    row: NR,
                    panel: NR,
                },
                add: false,
                bias: None,
                next: None,
                ..product
            };
            // SAFETY: as above; only the elements that there are are written.
            unsafe {
                block.compute::<C>();
                self.store(&sums[..block.rows * NR], [row, whole * NR], rest);
            }
        }
    }

    /// The place of a row and a column of the block in the result.
    fn at(&self, row: usize, column: usize) -> *mut f32 {
        let row = self.tile.rows.start + row;
        self.tile
            .result
            .wrapping_add(row * self.tile.width + self.tile.columns.start + column)
    }

    /// What is added to the columns of the tile.
    fn bias(&self) -> Option<&[f32]> {
        self.tile.bias.map(|bias| &bias[self.tile.columns.clone()])
    }

    /// Writes or adds the first columns of rows of `NR` sums to the result from a row and a column of the block on.
    ///
    /// # Safety
    /// The result has them.
    unsafe fn store(&self, sums: &[f32], [row, column]: [usize; 2], columns: usize) {
        for (i, sums) in sums.chunks_exact(NR).enumerate() {
            for (j, &sum) in sums.iter().take(columns).enumerate() {
                let bias = self.bias().map_or(0.0, |bias| bias[column + j]);
                // SAFETY: the caller's promise.
                unsafe {
                    let to = self.at(row + i, column + j);
                    *to = if self.add { *to + sum } else { sum } + bias;
                }
            }
        }
    }
}

/// Packs the steps `ks` of the vectors `range` into panels of `WIDTH` vectors, `[panel][k][vector]`, padding the last panel with zeros.
///
/// # Safety
/// The processor has AVX2.
///
/// # Panics
/// The ranges exceed the operand, or `panels` is too small: bugs of the caller.
#[target_feature(enable = "avx2")]
unsafe fn pack<const WIDTH: usize, T: SimdElement>(
    operand: GemmOperand<'_, T>,
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
                (true, true) => unsafe {
                    pack_transposed::<WIDTH, T>(operand, first, &some, panel)
                },
                // SAFETY: as above.
                (true, false) => unsafe {
                    pack_contiguous::<WIDTH, T>(operand, first, &some, panel)
                },
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

impl<T: SimdElement> GemmOperand<'_, T> {
    fn at(&self, vector: usize, step: usize) -> f32 {
        let place = match self.k_contiguous {
            true => vector * self.apart + step,
            false => step * self.apart + vector,
        };
        self.values[place].wide()
    }
}

/// Packs vectors that lie side by side (`k` strided), by copying. Returns the number of steps of `k` it packed.
///
/// # Safety
/// The operand has `WIDTH` vectors from `first` on and all steps `ks`; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn pack_contiguous<const WIDTH: usize, T: SimdElement>(
    operand: GemmOperand<'_, T>,
    first: usize,
    ks: &Range<usize>,
    panel: &mut [f32],
) -> usize {
    let reach = WIDTH.next_multiple_of(LANES);
    for step in 0..ks.len() {
        let from = (ks.start + step) * operand.apart + first;
        let to = step * WIDTH;
        // WIDTH need not be a multiple of 8: the last store writes beyond this step, and the next step overwrites that.
        if from + reach > operand.values.len() || to + reach > panel.len() {
            return step;
        }
        // The next call's, whose runs are too short for the hardware to find.
        let next = from + STREAMS * operand.apart;
        _mm_prefetch::<_MM_HINT_T0>(operand.values.as_ptr().wrapping_add(next).cast());
        for start in (0..reach).step_by(LANES) {
            // SAFETY: checked above.
            unsafe {
                let vector = T::load_8(operand.values.as_ptr().add(from + start));
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
unsafe fn pack_transposed<const WIDTH: usize, T: SimdElement>(
    operand: GemmOperand<'_, T>,
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
                let from = (first + start + i) * operand.apart + ks.start + step;
                // SAFETY: the vector has these 8 steps.
                *vector = unsafe { T::load_8(operand.values.as_ptr().add(from)) };
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
    use phalanx_pjrt::Bf16;

    use super::*;
    use crate::openmp::ThreadTeam;
    use crate::stored::Stored;

    /// Multiplies the columns before one, and those from it on, and adds the biases.
    fn multiply_halves<T: SimdElement>(
        (isa, left, right): (Isa, GemmOperand<'_, T>, RightOperand<'_, T>),
        (half, bias): (usize, Option<&[f32]>),
        scratch: &mut [f32],
        result: &mut [f32],
    ) {
        let [columns, _] = right.dims();
        assert_eq!(result.len(), left.count * columns);
        for part in [0..half, half..columns] {
            let to = result.as_mut_ptr();
            let tile = ResultTile {
                rows: 0..left.count,
                columns: part,
                result: to,
                width: columns,
                bias,
            };
            // SAFETY: the result is of that size, and ours; the processor supports the ISA.
            unsafe { multiply(isa, left, right, &tile, scratch) };
        }
    }

    /// Rows, columns and depth.
    const SIZES: [[usize; 3]; 11] = [
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

    /// Of small integers: every order of sums is exact.
    fn element<T: SimdElement>(
        [left, right]: [GemmOperand<'_, T>; 2],
        bias: Option<&[f32]>,
        [row, column]: [usize; 2],
    ) -> f32 {
        let products = (0..left.depth).map(|k| left.at(row, k) * right.at(column, k));
        products.sum::<f32>() + bias.map_or(0.0, |bias| bias[column])
    }

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
        for [rows, columns, depth] in SIZES {
            let (a, b) = (noise(rows * depth), noise(columns * depth));
            let biases = noise(columns);
            for (isa, layout) in Isa::available().flat_map(|isa| (0..4).map(move |n| (isa, n))) {
                let left = GemmOperand::new(&a, rows, depth, layout & 1 == 0);
                let right = GemmOperand::new(&b, columns, depth, layout & 2 == 0);
                let mut scratch = vec![f32::NAN; scratch_len(columns)];
                let mut result = vec![f32::NAN; rows * columns];
                let half = columns / 2;
                let bias = (layout != 2).then_some(&biases[..]);
                let by = RightOperand::Matrix(right);
                multiply_halves((isa, left, by), (half, bias), &mut scratch, &mut result);
                let mut panels = vec![f32::NAN; PackedMatrix::len(columns, depth)];
                pack_ahead(right, &mut panels, &ThreadTeam::alone());
                let by = RightOperand::Packed(PackedMatrix::new(&panels, columns, depth));
                let mut packed = vec![f32::NAN; rows * columns];
                multiply_halves(
                    (isa, left, by),
                    (half / NR * NR, bias),
                    &mut scratch,
                    &mut packed,
                );
                assert_eq!(packed, result, "{isa:?}, {rows}x{columns}x{depth}");
                let [a, b] =
                    [&a, &b].map(|all| all.iter().map(|&x| Bf16::narrow(x)).collect::<Vec<_>>());
                let left = GemmOperand::new(&a, rows, depth, layout & 1 == 0);
                let right = GemmOperand::new(&b, columns, depth, layout & 2 == 0);
                let by = RightOperand::Matrix(right);
                let mut wide = vec![f32::NAN; rows * columns];
                multiply_halves((isa, left, by), (half, bias), &mut scratch, &mut wide);
                assert_eq!(wide, result, "{isa:?}, {rows}x{columns}x{depth} of bf16");
                for (index, &found) in result.iter().enumerate() {
                    let place = [index / columns, index % columns];
                    let expected = element([left, right], bias, place);
                    assert_eq!(
                        found, expected,
                        "{isa:?}, {rows}x{columns}x{depth}, layout {layout}, element {place:?}"
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
            let tile = ResultTile {
                rows: 0..rows,
                columns: 0..columns,
                result: result.as_mut_ptr(),
                width: columns,
                bias: None,
            };
            let right = RightOperand::Matrix(right);
            // SAFETY: the result is of that size, and ours; the processor supports the ISA.
            unsafe { multiply(isa, left, right, &tile, &mut scratch) };
            for (index, value) in result.iter().enumerate() {
                let of_nan = index / columns == 4;
                assert_eq!(value.is_nan(), of_nan, "{isa:?}, element {index}");
                assert!(value.is_nan() || *value == 0.0);
            }
        }
    }
}
