//! The register-blocked inner kernel of all our matrix products, for processors with AVX2 or AVX-512.
//!
//! It computes a block of `MR` x `NR` = 6 x 16 elements of a product and keeps all 96 sums in registers while it walks along the summed
//! dimension `k`. Each step is a rank-one update: load 16 elements of a row of the right operand, broadcast one element of each of 6 rows
//! of the left operand, and do 6 x 16 fused multiply-adds. Every loaded element is so used 6 or 16 times, and the loop is bound by the
//! multipliers instead of by loads. Six rows are as many as fit: with AVX2 a row of sums takes two of the 16 registers, which leaves 4 for
//! operands. With AVX-512 it takes one of 32, and there a block is two neighbouring panels of 16 columns (`PANELS`): processors that start
//! two multiply-adds and two loads a cycle would wait for the 7 loads of 6 multiply-adds, and have 8 for 12. A second set of sums
//! (`ACCUMULATOR_SETS`) hides the latency of the multiply-add where a block is one panel, and sums are made alike in both.
//!
//! Invariant: each sum adds its products in an order that depends on `k` and the instruction set only, never on the number of rows or on
//! the thread, so that results are reproducible.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use crate::lanes::Lanes;
use crate::simd;
use crate::simd_row::SimdRow;
use crate::simd_row::{Avx2, Avx512};

/// Rows of a register block.
pub(crate) const MR: usize = 6;
/// Columns of a register block.
pub(crate) const NR: usize = 16;
/// Steps of `k` per iteration of the unrolled loop.
const K_UNROLL: usize = 4;

/// The left operand: its first element, and the distances between rows of a block, between blocks and between steps of `k`.
#[derive(Clone, Copy)]
pub(crate) struct Lhs {
    pub(crate) at: *const f32,
    pub(crate) row: usize,
    pub(crate) block: usize,
    pub(crate) step: usize,
}

/// The right operand: `NR` adjacent elements at each step of `k`, the distance between steps, and that between panels of `NR` columns.
#[derive(Clone, Copy)]
pub(crate) struct Rhs {
    pub(crate) at: *const f32,
    pub(crate) step: usize,
    pub(crate) panel: usize,
}

/// `R` rows of `P` panels of `NR` sums in registers. Where there are two sets, even steps of `k` add to the first and odd ones to the second.
struct Accumulators<C, const R: usize, const P: usize>([[[C; P]; R]; 2]);

impl<C: SimdRow, const R: usize, const P: usize> Accumulators<C, R, P> {
    /// # Safety
    /// The instructions are there.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        Self([[[unsafe { C::zero() }; P]; R]; 2])
    }

    /// Adds the products of `count` steps of `k`, and has lines fetched meanwhile.
    ///
    /// # Safety
    /// Both operands have `count` steps of `k`, the left one `R` rows, the right one `P` panels.
    #[inline(always)]
    unsafe fn multiply_accumulate(
        &mut self,
        mut left: Lhs,
        mut right: Rhs,
        count: usize,
        mut fetch: Fetch,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            for _ in 0..count / K_UNROLL {
                fetch.some::<P>();
                for step in 0..K_UNROLL {
                    self.rank_one_update(
                        left.advanced(step),
                        right.advanced(step),
                        step % C::ACCUMULATOR_SETS,
                    );
                }
                (left, right) = (left.advanced(K_UNROLL), right.advanced(K_UNROLL));
            }
            for _ in 0..count % K_UNROLL {
                self.rank_one_update(left, right, 0);
                (left, right) = (left.advanced(1), right.advanced(1));
            }
        }
    }

    /// Adds the products of one step of `k` to a set of sums.
    ///
    /// # Safety
    /// As for [`Accumulators::multiply_accumulate`].
    #[inline(always)]
    unsafe fn rank_one_update(&mut self, left: Lhs, right: Rhs, set: usize) {
        // SAFETY: the caller's promise; the instructions are there, or the block would not be.
        unsafe {
            let mut columns = [C::zero(); P];
            for (panel, columns) in columns.iter_mut().enumerate() {
                *columns = C::load(right.at.add(panel * right.panel));
            }
            for (row, sums) in self.0[set].iter_mut().enumerate() {
                let left = *left.at.add(row * left.row);
                for (sums, columns) in sums.iter_mut().zip(columns) {
                    *sums = sums.mul_add(left, columns);
                }
            }
        }
    }

    /// Writes the sums to where a product has them, or adds them to what is there; then adds the biases of the columns, if there are any.
    ///
    /// # Safety
    /// There is room for `R` rows of 16 elements in each panel, and there are as many biases as columns.
    #[inline(always)]
    unsafe fn store(self, target: Target, add: bool, bias: Option<*const f32>) {
        for row in 0..R {
            for panel in 0..P {
                let mut sums = self.0[0][row][panel];
                if C::ACCUMULATOR_SETS == 2 {
                    sums = sums.add(self.0[1][row][panel]);
                }
                // SAFETY: the caller's promise; the instructions are there, or the block would not be.
                unsafe {
                    let to = target.at.add(row * target.row + panel * target.panel);
                    if add {
                        sums = C::load(to).add(sums);
                    }
                    if let Some(bias) = bias {
                        sums = sums.add(C::load(bias.add(panel * NR)));
                    }
                    sums.store(to);
                }
            }
        }
    }
}

impl Lhs {
    /// All rows are equally far apart.
    #[inline(always)]
    pub(crate) fn even(at: *const f32, row: usize, step: usize) -> Self {
        Self {
            at,
            row,
            block: MR * row,
            step,
        }
    }

    /// The operand from a block of rows on.
    #[inline(always)]
    pub(crate) fn block(self, index: usize) -> Self {
        Self {
            at: self.at.wrapping_add(index * self.block),
            ..self
        }
    }

    /// The operand from a later step of `k` on.
    #[inline(always)]
    fn advanced(self, steps: usize) -> Self {
        Self {
            at: self.at.wrapping_add(steps * self.step),
            ..self
        }
    }
}

impl Rhs {
    /// The operand from a panel on.
    #[inline(always)]
    pub(crate) fn panel(self, index: usize) -> Self {
        Self {
            at: self.at.wrapping_add(index * self.panel),
            ..self
        }
    }

    /// The operand from a later step of `k` on.
    #[inline(always)]
    fn advanced(self, steps: usize) -> Self {
        Self {
            at: self.at.wrapping_add(steps * self.step),
            ..self
        }
    }
}

/// Lines of the right operand that are used next, which are fetched while others are multiplied.
///
/// A product of few rows uses each line of a large right operand a few times, and waits for memory: panels are streams that end before the
/// processor has found them. A few lines at a time between the multiplications are there in time and cost nothing. All lines of a block
/// together would keep what its multiplications need from coming (decision 60).
#[derive(Clone, Copy)]
struct Fetch {
    right: Rhs,
    /// Steps of `k` that are fetched while `K_UNROLL` are multiplied.
    steps: usize,
}

impl Fetch {
    /// What is fetched with block number `index` of `blocks` blocks of rows: the steps of `next` are divided among the first of them.
    #[inline(always)]
    fn part(next: Option<Rhs>, depth: usize, index: usize, blocks: usize) -> Self {
        let steps = K_UNROLL.div_ceil(blocks);
        let first = index * steps * (depth / K_UNROLL);
        match next.filter(|_| first < depth) {
            Some(next) => Self {
                right: next.advanced(first),
                steps,
            },
            None => Self {
                right: Rhs {
                    at: std::ptr::null(),
                    step: 0,
                    panel: 0,
                },
                steps: 0,
            },
        }
    }

    #[inline(always)]
    fn some<const P: usize>(&mut self) {
        for _ in 0..self.steps {
            for panel in 0..P {
                let line = self.right.at.wrapping_add(panel * self.right.panel);
                // SAFETY: it has no effect but in the caches, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
            }
            self.right = self.right.advanced(1);
        }
    }
}

/// The result: its first element, and the distances between rows and between panels of `NR` columns.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) at: *mut f32,
    pub(crate) row: usize,
    pub(crate) panel: usize,
}

impl Target {
    /// Has the lines of `R` rows of `P` panels fetched, which take as long as a block's multiplications where they come from memory.
    #[inline(always)]
    fn fetch<const R: usize, const P: usize>(self) {
        for row in 0..R {
            for panel in 0..P {
                let line = self.at.wrapping_add(row * self.row + panel * self.panel);
                // SAFETY: it has no effect but in the caches, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast()) };
            }
        }
    }
}

/// A matrix product of any number of rows and of panels of `NR` columns.
pub(crate) struct PanelGemm {
    pub(crate) left: Lhs,
    pub(crate) right: Rhs,
    /// Length of the summed dimension `k`.
    pub(crate) depth: usize,
    pub(crate) rows: usize,
    pub(crate) panels: usize,
    pub(crate) to: Target,
    /// Whether to add to the result; else it is overwritten.
    pub(crate) add: bool,
    /// What is added to each row of the result at last, for each column.
    pub(crate) bias: Option<*const f32>,
    /// The first panel of what is multiplied next, where the right operand comes from memory; none where it is in the caches.
    pub(crate) next: Option<*const f32>,
}

impl PanelGemm {
    /// Computes it, as many panels and rows at a time as the registers hold.
    ///
    /// # Safety
    /// The instructions and all of these elements are there, and nobody else uses the result meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn compute<C: SimdRow>(&self) {
        for panel in (0..self.panels).step_by(C::PANELS) {
            // SAFETY: the caller's promise.
            unsafe {
                match C::PANELS.min(self.panels - panel) {
                    2 => self.columns::<C, 2>(panel),
                    _ => self.columns::<C, 1>(panel),
                }
            }
        }
    }

    /// # Safety
    /// As for [`PanelGemm::compute`], of which these are `P` panels.
    #[inline(always)]
    unsafe fn columns<C: SimdRow, const P: usize>(&self, panel: usize) {
        let blocks = self.rows.div_ceil(MR);
        let next = self.next_panels(panel + P);
        for (index, row) in (0..self.rows).step_by(MR).enumerate() {
            let fetch = Fetch::part(next, self.depth, index, blocks);
            // SAFETY: the caller's promise.
            unsafe {
                match self.rows - row {
                    1 => self.block::<C, 1, P>(row, panel, fetch),
                    2 => self.block::<C, 2, P>(row, panel, fetch),
                    3 => self.block::<C, 3, P>(row, panel, fetch),
                    4 => self.block::<C, 4, P>(row, panel, fetch),
                    5 => self.block::<C, 5, P>(row, panel, fetch),
                    _ => self.block::<C, MR, P>(row, panel, fetch),
                }
            }
        }
    }

    /// The panels from one on, or what is multiplied after the last, if they are to be fetched.
    #[inline(always)]
    fn next_panels(&self, panel: usize) -> Option<Rhs> {
        let after = self.next?;
        Some(match panel < self.panels {
            true => self.right.panel(panel),
            false => Rhs {
                at: after,
                ..self.right
            },
        })
    }

    /// # Safety
    /// As for [`PanelGemm::compute`], of which these are `R` rows of `P` panels.
    #[inline(always)]
    unsafe fn block<C: SimdRow, const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        fetch: Fetch,
    ) {
        let (left, right) = (self.left.block(row / MR), self.right.panel(panel));
        let to = Target {
            at: self
                .to
                .at
                .wrapping_add(row * self.to.row + panel * self.to.panel),
            ..self.to
        };
        // SAFETY: the caller's promise.
        unsafe {
            if C::FETCHES_RESULT {
                to.fetch::<R, P>();
            }
            let mut block = Accumulators::<C, R, P>::zero();
            block.multiply_accumulate(left, right, self.depth, fetch);
            let bias = self.bias.map(|bias| bias.wrapping_add(panel * NR));
            block.store(to, self.add, bias);
        }
    }
}

/// Work that is written once for any vector width; see [`Isa::run`].
pub(crate) trait SimdKernel {
    /// Does the work. Mark it, and what it calls, `#[inline(always)]`: only what is inlined is compiled for the instructions.
    ///
    /// # Safety
    /// The instructions are there; the rest is the work's own.
    unsafe fn run<C: SimdRow>(self);
}

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Isa {
    Avx2,
    Avx512,
}

impl Isa {
    /// The best_available that there is.
    pub(crate) fn best_available() -> Self {
        match simd::has_avx512() {
            true => Self::Avx512,
            false => Self::Avx2,
        }
    }

    /// Lanes of a vector register.
    pub(crate) fn lanes(self) -> usize {
        match self {
            Self::Avx2 => <Avx2 as SimdRow>::Vector::LEN,
            Self::Avx512 => <Avx512 as SimdRow>::Vector::LEN,
        }
    }

    /// All that this processor has.
    #[cfg(test)]
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        let there = [simd::has_fma(), simd::has_avx512()];
        let forms = [Self::Avx2, Self::Avx512].into_iter().zip(there);
        forms.filter_map(|(isa, there)| there.then_some(isa))
    }

    /// Runs the work compiled for this instruction set.
    ///
    /// # Safety
    /// The processor has the instructions; the rest is the work's own.
    pub(crate) unsafe fn run<W: SimdKernel>(self, work: W) {
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
/// As for [`SimdKernel::run`].
#[target_feature(enable = "avx2,fma")]
unsafe fn with_avx2<W: SimdKernel>(work: W) {
    // SAFETY: the caller's promise.
    unsafe { work.run::<Avx2>() };
}

/// # Safety
/// As for [`SimdKernel::run`].
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn with_avx512<W: SimdKernel>(work: W) {
    // SAFETY: the caller's promise.
    unsafe { work.run::<Avx512>() };
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SimdKernel for PanelGemm {
        #[inline(always)]
        unsafe fn run<C: SimdRow>(self) {
            // SAFETY: the caller's promise.
            unsafe { self.compute::<C>() };
        }
    }

    /// Small integers: every order of their sums is exact.
    fn integers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| (i * step % 29) as f32 - 14.0).collect()
    }

    #[test]
    fn every_number_of_rows_panels_and_places_is_summed_in_every_form() {
        let sizes = (1..=13).flat_map(|rows| (0..=9).map(move |depth| (rows, depth)));
        let sizes: Vec<_> = sizes
            .flat_map(|(rows, depth)| (1..=3).map(move |panels| (rows, depth, panels)))
            .collect();
        for isa in Isa::available() {
            for &(rows, depth, panels) in &sizes {
                // Panels are apart, in the right operand and in the result, and so are rows.
                let (wide, tall) = (panels * 20, panels * 18);
                let (a, b) = (integers(rows * depth, 7), integers(depth * wide, 11));
                let biases = integers(panels * NR, 5);
                for (across, add) in [(false, false), (false, true), (true, false), (true, true)] {
                    let [row, step] = if across { [1, rows] } else { [depth, 1] };
                    let mut result = vec![1.0; rows * tall];
                    let product = PanelGemm {
                        left: Lhs::even(a.as_ptr(), row, step),
                        right: Rhs {
                            at: b.as_ptr(),
                            step: wide,
                            panel: 20,
                        },
                        depth,
                        rows,
                        panels,
                        to: Target {
                            at: result.as_mut_ptr(),
                            row: tall,
                            panel: 18,
                        },
                        add,
                        bias: across.then_some(biases.as_ptr()),
                        next: add.then_some(b.as_ptr()),
                    };
                    // SAFETY: the processor supports the ISA; the lengths are those of the matrices, the last rows of which end with their columns.
                    unsafe { isa.run(product) };
                    for (index, &found) in result.iter().enumerate() {
                        let (i, panel, j) = (index / tall, index % tall / 18, index % 18);
                        let right = |k: usize| b[k * wide + panel * 20 + j];
                        let products = (0..depth).map(|k| a[i * row + k * step] * right(k));
                        let expected = match j < NR {
                            true => {
                                let bias = if across { biases[panel * NR + j] } else { 0.0 };
                                products.sum::<f32>() + f32::from(u8::from(add)) + bias
                            }
                            false => 1.0,
                        };
                        assert_eq!(
                            found, expected,
                            "{isa:?}, {rows} rows of {depth}, panel {panel} of {panels}, {i} {j}"
                        );
                    }
                }
            }
        }
    }
}
