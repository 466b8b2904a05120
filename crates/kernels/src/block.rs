//! Blocks of 6 x 16 sums in registers, for processors with AVX2 or AVX-512.
//!
//! A block is kept while it goes through all places of its lines: at each, the elements of up to 6 rows are multiplied by 16 columns
//! and added. With AVX2 16 sums are two registers, with AVX-512 one; 6 rows are as many as fit into 16 registers.

use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use crate::processor;

/// Most rows of a block.
pub(crate) const ROWS: usize = 6;
/// Columns of a block.
pub(crate) const COLUMNS: usize = 16;
/// Places that the loop goes on by.
const AT_ONCE: usize = 4;

/// 16 numbers in registers; made only where the processor has the instructions.
pub(crate) trait Columns: Copy {
    /// Sets of sums that take turns, 1 or 2: a processor that begins two products at a time needs more sums than 6 that do not wait
    /// for one another.
    const SETS: usize;

    /// # Safety
    /// The instructions are there.
    unsafe fn zero() -> Self;

    /// # Safety
    /// The instructions are there, and 16 numbers.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// There is room for 16 numbers.
    unsafe fn store(self, to: *mut f32);

    fn plus(self, other: Self) -> Self;

    /// These, and the products of one number and 16 others.
    fn plus_products(self, left: f32, right: Self) -> Self;
}

/// 16 numbers with AVX2 and FMA.
#[derive(Clone, Copy)]
struct Two(__m256, __m256);

impl Columns for Two {
    const SETS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise; the instructions are there, or this would not be.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: the instructions are there, or these would not be.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }

    #[inline(always)]
    fn plus_products(self, left: f32, right: Self) -> Self {
        // SAFETY: as in `plus`.
        unsafe {
            let left = _mm256_broadcast_ss(&left);
            Self(
                _mm256_fmadd_ps(left, right.0, self.0),
                _mm256_fmadd_ps(left, right.1, self.1),
            )
        }
    }
}

/// 16 numbers with AVX-512.
#[derive(Clone, Copy)]
struct One(__m512);

impl Columns for One {
    const SETS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm512_setzero_ps()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise; the instructions are there, or this would not be.
        unsafe { _mm512_storeu_ps(to, self.0) };
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: the instructions are there, or these would not be.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    fn plus_products(self, left: f32, right: Self) -> Self {
        // SAFETY: as in `plus`.
        unsafe { Self(_mm512_fmadd_ps(_mm512_set1_ps(left), right.0, self.0)) }
    }
}

/// Rows that are multiplied: the first element, and the distances between rows and between places.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) at: *const f32,
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// What they are multiplied by: 16 numbers at each place, so far apart.
#[derive(Clone, Copy)]
pub(crate) struct Right {
    pub(crate) at: *const f32,
    pub(crate) step: usize,
}

/// `R` rows of 16 sums in registers, in sets that take turns: each has the products of every second place where there are two.
pub(crate) struct Block<C, const R: usize>([[C; R]; 2]);

impl<C: Columns, const R: usize> Block<C, R> {
    /// # Safety
    /// The instructions are there.
    #[inline(always)]
    pub(crate) unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        Self([[unsafe { C::zero() }; R]; 2])
    }

    /// Adds the products of so many places.
    ///
    /// # Safety
    /// There are `R` rows of so many places, and as many of 16 numbers.
    #[inline(always)]
    pub(crate) unsafe fn add_products(&mut self, mut left: Left, mut right: Right, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            for _ in 0..count / AT_ONCE {
                for place in 0..AT_ONCE {
                    self.add_product(left.moved(place), right.moved(place), place % C::SETS);
                }
                (left, right) = (left.moved(AT_ONCE), right.moved(AT_ONCE));
            }
            for _ in 0..count % AT_ONCE {
                self.add_product(left, right, 0);
                (left, right) = (left.moved(1), right.moved(1));
            }
        }
    }

    /// Adds the products of one place to a set.
    ///
    /// # Safety
    /// As for [`Block::add_products`].
    #[inline(always)]
    unsafe fn add_product(&mut self, left: Left, right: Right, set: usize) {
        // SAFETY: the caller's promise; the instructions are there, or the block would not be.
        unsafe {
            let columns = C::load(right.at);
            for (row, sums) in self.0[set].iter_mut().enumerate() {
                *sums = sums.plus_products(*left.at.add(row * left.row), columns);
            }
        }
    }

    /// Writes the sums to rows so far apart, or adds them to what is there.
    ///
    /// # Safety
    /// There is room for `R` rows of 16 elements.
    #[inline(always)]
    pub(crate) unsafe fn store(self, to: *mut f32, stride: usize, add: bool) {
        for row in 0..R {
            let mut sums = self.0[0][row];
            if C::SETS == 2 {
                sums = sums.plus(self.0[1][row]);
            }
            // SAFETY: the caller's promise; the instructions are there, or the block would not be.
            unsafe {
                let to = to.add(row * stride);
                if add {
                    sums = C::load(to).plus(sums);
                }
                sums.store(to);
            }
        }
    }
}

impl Left {
    /// So many places on.
    #[inline(always)]
    fn moved(self, places: usize) -> Self {
        Self {
            at: self.at.wrapping_add(places * self.step),
            ..self
        }
    }
}

impl Right {
    /// So many places on.
    #[inline(always)]
    fn moved(self, places: usize) -> Self {
        Self {
            at: self.at.wrapping_add(places * self.step),
            ..self
        }
    }
}

/// A product of matrices, as wide as a block.
pub(crate) struct Product {
    pub(crate) left: Left,
    pub(crate) right: Right,
    /// Places that are summed over.
    pub(crate) depth: usize,
    pub(crate) rows: usize,
    pub(crate) to: *mut f32,
    /// Distance between rows of the result.
    pub(crate) stride: usize,
    /// Whether to add to the result; else it is overwritten.
    pub(crate) add: bool,
}

impl Product {
    /// Computes it, block by block.
    ///
    /// # Safety
    /// The instructions and all of these elements are there, and nobody else uses the result meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn compute<C: Columns>(&self) {
        for row in (0..self.rows).step_by(ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                match self.rows - row {
                    1 => self.block::<C, 1>(row),
                    2 => self.block::<C, 2>(row),
                    3 => self.block::<C, 3>(row),
                    4 => self.block::<C, 4>(row),
                    5 => self.block::<C, 5>(row),
                    _ => self.block::<C, ROWS>(row),
                }
            }
        }
    }

    /// # Safety
    /// As for [`Product::compute`], of which these are `R` rows.
    #[inline(always)]
    unsafe fn block<C: Columns, const R: usize>(&self, row: usize) {
        let left = Left {
            at: self.left.at.wrapping_add(row * self.left.row),
            ..self.left
        };
        // SAFETY: the caller's promise.
        unsafe {
            let mut block = Block::<C, R>::zero();
            block.add_products(left, self.right, self.depth);
            block.store(self.to.add(row * self.stride), self.stride, self.add);
        }
    }
}

/// Work that is done in blocks.
pub(crate) trait BlockWork {
    /// Does the work. Mark it, and what it calls, `#[inline(always)]`: only what is inlined is compiled for the instructions.
    ///
    /// # Safety
    /// The instructions are there; the rest is the work's own.
    unsafe fn run<C: Columns>(self);
}

/// The registers that blocks are kept in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Avx2,
    Avx512,
}

impl Form {
    /// The widest that there is.
    pub(crate) fn widest() -> Self {
        match processor::has_avx512() {
            true => Self::Avx512,
            false => Self::Avx2,
        }
    }

    /// All that there are.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let there = [processor::has_fma(), processor::has_avx512()];
        let forms = [Self::Avx2, Self::Avx512].into_iter().zip(there);
        forms.filter_map(|(form, there)| there.then_some(form))
    }

    /// Does the work in this form.
    ///
    /// # Safety
    /// The processor has the form's instructions; the rest is the work's own.
    pub(crate) unsafe fn run<W: BlockWork>(self, work: W) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Avx2 => with_avx2(work),
                Self::Avx512 => with_avx512(work),
            }
        }
    }
}

/// # Safety
/// As for [`BlockWork::run`].
#[target_feature(enable = "avx2,fma")]
unsafe fn with_avx2<W: BlockWork>(work: W) {
    // SAFETY: the caller's promise.
    unsafe { work.run::<Two>() };
}

/// # Safety
/// As for [`BlockWork::run`].
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn with_avx512<W: BlockWork>(work: W) {
    // SAFETY: the caller's promise.
    unsafe { work.run::<One>() };
}

#[cfg(test)]
mod tests {
    use super::*;

    impl BlockWork for Product {
        #[inline(always)]
        unsafe fn run<C: Columns>(self) {
            // SAFETY: the caller's promise.
            unsafe { self.compute::<C>() };
        }
    }

    /// Small integers: every order of their sums is exact.
    fn integers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| (i * step % 29) as f32 - 14.0).collect()
    }

    #[test]
    fn every_number_of_rows_and_places_is_summed_in_every_form() {
        for form in Form::all() {
            for (rows, depth) in (1..=13).flat_map(|rows| (0..=9).map(move |depth| (rows, depth))) {
                let (a, b) = (integers(rows * depth, 7), integers(depth * 20, 11));
                for (across, add) in [(false, false), (false, true), (true, false), (true, true)] {
                    let [row, step] = if across { [1, rows] } else { [depth, 1] };
                    let mut result = vec![1.0; rows * 18];
                    let product = Product {
                        left: Left {
                            at: a.as_ptr(),
                            row,
                            step,
                        },
                        right: Right {
                            at: b.as_ptr(),
                            step: 20,
                        },
                        depth,
                        rows,
                        to: result.as_mut_ptr(),
                        stride: 18,
                        add,
                    };
                    // SAFETY: the form is there; the lengths are those of the matrices, the last rows of which end with their columns.
                    unsafe { form.run(product) };
                    for (index, &found) in result.iter().enumerate() {
                        let (i, j) = (index / 18, index % 18);
                        let products = (0..depth).map(|k| a[i * row + k * step] * b[k * 20 + j]);
                        let expected = match j < COLUMNS {
                            true => products.sum::<f32>() + f32::from(u8::from(add)),
                            false => 1.0,
                        };
                        assert_eq!(found, expected, "{form:?}, {rows} rows of {depth}, {i} {j}");
                    }
                }
            }
        }
    }
}
