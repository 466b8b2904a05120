//! Products of matrices in f32 on one thread, for processors with AVX2 or AVX-512.
//!
//! As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): a block of the right matrix is packed
//! into panels of 16 columns that stay in the outer caches, one of the left into panels of 6 rows for the second, and the inner
//! loop keeps 6 x 16 sums in registers ([`crate::block`]) while it goes through a panel of each, of which the wider stays in the first
//! cache. It runs at the speed of the processor's multipliers (102 of 103 GFLOP/s measured); prefetches inside of it cost a fourth of that.

use std::arch::x86_64::{
    __m256, _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps,
    _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};
use std::ops::Range;

use crate::block::{BlockWork, COLUMNS, Columns, Form, Left, Product, ROWS, Right};
use crate::processor::has_fma;

/// Most products of a sum between two visits of its place in memory.
const DEPTH: usize = 256;
/// Most rows of a packed block of the left matrix.
const BLOCK: usize = 144;
/// Elements of a vector.
const LANES: usize = 8;
/// Places of lines that lie side by side that are packed together: so many streams the processor fetches ahead.
const STREAMS: usize = 8;

/// The rows of the left matrix, or the columns of the right: lines whose products of equal place are summed.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    values: &'a [f32],
    count: usize,
    depth: usize,
    /// Whether the elements of a line follow one another; else those of a place do.
    whole: bool,
}

impl<'a> Lines<'a> {
    /// Lines of a dense matrix, one after the other (`whole`) or side by side.
    ///
    /// # Panics
    /// There are not so many elements: a bug of the caller.
    pub(crate) fn new(values: &'a [f32], count: usize, depth: usize, whole: bool) -> Self {
        assert_eq!(values.len(), count * depth);
        Self {
            values,
            count,
            depth,
            whole,
        }
    }
}

/// Elements of the memory that a tile of so many columns is computed in.
pub(crate) fn scratch_len(columns: usize) -> usize {
    left_len() + right_len(columns)
}

fn left_len() -> usize {
    BLOCK.next_multiple_of(ROWS) * DEPTH
}

fn right_len(columns: usize) -> usize {
    columns.next_multiple_of(COLUMNS) * DEPTH
}

/// Writes the products of some rows and some columns to their places in `result`, a dense matrix of as many columns as `right` has.
///
/// # Safety
/// The processor has the form's instructions; `result` has place for the whole matrix, and nobody else uses the elements of these rows
/// and columns meanwhile.
///
/// # Panics
/// The processor lacks AVX2 or FMA, the ranges are not of the lines, or the scratch is too small: bugs of the caller.
pub(crate) unsafe fn multiply(
    form: Form,
    left: Lines<'_>,
    right: Lines<'_>,
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
        let places = first..(first + DEPTH).min(left.depth);
        // SAFETY: the processor has the instructions.
        unsafe { pack::<COLUMNS>(right, &columns, &places, packed_right) };
        for start in rows.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(rows.end);
            // SAFETY: as above.
            unsafe { pack::<ROWS>(left, &block, &places, packed_left) };
            let panels = Panels {
                left: packed_left,
                right: packed_right,
                depth: places.len(),
                rows: block,
                columns: columns.clone(),
                result,
                width: right.count,
                add: first > 0,
            };
            // SAFETY: the caller's promise.
            unsafe { form.run(panels) };
        }
        first = places.end;
    }
}

/// Packed lines of both matrices, and where their products belong.
struct Panels<'a> {
    left: &'a [f32],
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

impl BlockWork for Panels<'_> {
    #[inline(always)]
    unsafe fn run<C: Columns>(self) {
        let rights = self.right.chunks_exact(self.depth * COLUMNS);
        for (column, right) in self.columns.clone().step_by(COLUMNS).zip(rights) {
            let lefts = self.left.chunks_exact(self.depth * ROWS);
            for (row, left) in self.rows.clone().step_by(ROWS).zip(lefts) {
                let height = ROWS.min(self.rows.end - row);
                let width = COLUMNS.min(self.columns.end - column);
                // SAFETY: the caller's promise; at the edges only the elements that there are are touched.
                unsafe {
                    let target = self.result.add(row * self.width + column);
                    if height == ROWS && width == COLUMNS {
                        outer_products::<C>(left, right, target, self.width, self.add);
                        continue;
                    }
                    let mut edge = [0.0f32; ROWS * COLUMNS];
                    outer_products::<C>(left, right, edge.as_mut_ptr(), COLUMNS, false);
                    for (i, sums) in edge.chunks(COLUMNS).take(height).enumerate() {
                        for (j, &sum) in sums.iter().take(width).enumerate() {
                            let place = target.add(i * self.width + j);
                            *place = if self.add { *place + sum } else { sum };
                        }
                    }
                }
            }
        }
    }
}

/// The sums of products of a panel of 6 rows and one of 16 columns.
///
/// # Safety
/// The panels have as many places each; `result` has 6 rows of 16 elements, `stride` apart; the instructions are there.
#[inline(always)]
unsafe fn outer_products<C: Columns>(
    left: &[f32],
    right: &[f32],
    result: *mut f32,
    stride: usize,
    add: bool,
) {
    let product = Product {
        left: Left {
            at: left.as_ptr(),
            row: 1,
            step: ROWS,
        },
        right: Right {
            at: right.as_ptr(),
            step: COLUMNS,
        },
        depth: left.len() / ROWS,
        rows: ROWS,
        to: result,
        stride,
        add,
    };
    // SAFETY: the caller's promise.
    unsafe { product.compute::<C>() };
}

/// Packs places of some lines into panels of `WIDTH` lines, `[panel][place][line]`, with zeros for lines beyond the last.
///
/// # Safety
/// The processor has AVX2.
///
/// # Panics
/// The ranges are not of the lines, or there is no place for the panels: bugs of the caller.
#[target_feature(enable = "avx2")]
unsafe fn pack<const WIDTH: usize>(
    lines: Lines<'_>,
    range: &Range<usize>,
    places: &Range<usize>,
    panels: &mut [f32],
) {
    assert!(range.end <= lines.count && places.end <= lines.depth);
    let size = WIDTH * places.len();
    let at_once = if lines.whole { places.len() } else { STREAMS };
    for first in places.clone().step_by(at_once) {
        let some = first..(first + at_once).min(places.end);
        for (index, line) in range.clone().step_by(WIDTH).enumerate() {
            let count = WIDTH.min(range.end - line);
            let panel = &mut panels[index * size..][..size][(first - places.start) * WIDTH..];
            let done = match (count == WIDTH, lines.whole) {
                (false, _) => 0,
                // SAFETY: the processor has the instructions; these lines and places were checked above.
                (true, true) => unsafe { pack_across::<WIDTH>(lines, line, &some, panel) },
                // SAFETY: as above.
                (true, false) => unsafe { pack_along::<WIDTH>(lines, line, &some, panel) },
            };
            let rest = panel.chunks_exact_mut(WIDTH).zip(some.clone()).skip(done);
            for (packed, place) in rest {
                for (i, packed) in packed.iter_mut().enumerate() {
                    *packed = match i < count {
                        true => lines.at(line + i, place),
                        false => 0.0,
                    };
                }
            }
        }
    }
}

impl Lines<'_> {
    fn at(&self, line: usize, place: usize) -> f32 {
        match self.whole {
            true => self.values[line * self.depth + place],
            false => self.values[place * self.count + line],
        }
    }
}

/// Packs lines that lie side by side; how many places it did.
///
/// # Safety
/// There are `WIDTH` lines from `line` on and these places of them; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn pack_along<const WIDTH: usize>(
    lines: Lines<'_>,
    line: usize,
    places: &Range<usize>,
    panel: &mut [f32],
) -> usize {
    let reach = WIDTH.next_multiple_of(LANES);
    for place in 0..places.len() {
        let from = (places.start + place) * lines.count + line;
        let to = place * WIDTH;
        // The last vector reaches beyond the lines; what it writes too much is overwritten by the next place.
        if from + reach > lines.values.len() || to + reach > panel.len() {
            return place;
        }
        for start in (0..reach).step_by(LANES) {
            // SAFETY: checked above.
            unsafe {
                let vector = _mm256_loadu_ps(lines.values.as_ptr().add(from + start));
                _mm256_storeu_ps(panel.as_mut_ptr().add(to + start), vector);
            }
        }
    }
    places.len()
}

/// Packs lines whose elements follow one another, 8 places of 8 lines at a time; how many places it did.
///
/// # Safety
/// As for [`pack_along`].
#[target_feature(enable = "avx2")]
unsafe fn pack_across<const WIDTH: usize>(
    lines: Lines<'_>,
    line: usize,
    places: &Range<usize>,
    panel: &mut [f32],
) -> usize {
    let whole = places.len() / LANES * LANES;
    for place in (0..whole).step_by(LANES) {
        if (place + LANES - 1) * WIDTH + WIDTH.next_multiple_of(LANES) > panel.len() {
            return place;
        }
        for start in (0..WIDTH).step_by(LANES) {
            let count = LANES.min(WIDTH - start);
            let mut square = [_mm256_setzero_ps(); LANES];
            for (i, vector) in square.iter_mut().enumerate().take(count) {
                let from = (line + start + i) * lines.depth + places.start + place;
                // SAFETY: the line has these 8 places.
                *vector = unsafe { _mm256_loadu_ps(lines.values.as_ptr().add(from)) };
            }
            for (i, vector) in transposed(square).into_iter().enumerate() {
                // SAFETY: checked above.
                unsafe {
                    let to = panel.as_mut_ptr().add((place + i) * WIDTH + start);
                    _mm256_storeu_ps(to, vector);
                }
            }
        }
    }
    whole
}

/// Rows as columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; LANES]) -> [__m256; LANES] {
    let [a, b, c, d, e, f, g, h] = rows;
    let pairs = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let fours = |(a, b), (c, d)| {
        [
            _mm256_shuffle_ps::<0x44>(a, c),
            _mm256_shuffle_ps::<0xee>(a, c),
            _mm256_shuffle_ps::<0x44>(b, d),
            _mm256_shuffle_ps::<0xee>(b, d),
        ]
    };
    let (low, high) = (
        fours(pairs(a, b), pairs(c, d)),
        fours(pairs(e, f), pairs(g, h)),
    );
    let mut columns = [_mm256_setzero_ps(); LANES];
    for i in 0..LANES / 2 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
        columns[i + LANES / 2] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
    }
    columns
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
        ];
        for [rows, columns, depth] in sizes {
            let (a, b) = (noise(rows * depth), noise(columns * depth));
            for (form, layout) in Form::all().flat_map(|form| (0..4).map(move |n| (form, n))) {
                let left = Lines::new(&a, rows, depth, layout & 1 == 0);
                let right = Lines::new(&b, columns, depth, layout & 2 == 0);
                let mut scratch = vec![f32::NAN; scratch_len(columns)];
                let mut result = vec![f32::NAN; rows * columns];
                let half = columns / 2;
                for part in [0..half, half..columns] {
                    let result = result.as_mut_ptr();
                    // SAFETY: the result is of that size, and ours; the form is there.
                    unsafe { multiply(form, left, right, 0..rows, part, &mut scratch, result) };
                }
                for (index, &found) in result.iter().enumerate() {
                    let (row, column) = (index / columns, index % columns);
                    let products = (0..depth).map(|k| left.at(row, k) * right.at(column, k));
                    // Small integers: every order of sums is exact.
                    let expected: f32 = products.sum();
                    assert_eq!(
                        found, expected,
                        "{form:?}, {rows}x{columns}x{depth}, layout {layout}, element {row} {column}"
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
            Lines::new(&a, rows, depth, true),
            Lines::new(&b, columns, depth, false),
        );
        for form in Form::all() {
            let mut scratch = vec![f32::NAN; scratch_len(columns)];
            let mut result = vec![1.0; rows * columns];
            let (to, whole) = (result.as_mut_ptr(), 0..columns);
            // SAFETY: the result is of that size, and ours; the form is there.
            unsafe { multiply(form, left, right, 0..rows, whole, &mut scratch, to) };
            for (index, value) in result.iter().enumerate() {
                let of_nan = index / columns == 4;
                assert_eq!(value.is_nan(), of_nan, "{form:?}, element {index}");
                assert!(value.is_nan() || *value == 0.0);
            }
        }
    }
}
