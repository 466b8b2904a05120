//! One row of the register blocks of [`crate::microkernel`], for each instruction set.

use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use crate::lanes::{Lanes, Lanes8, Lanes16};

/// 16 f32 lanes: one row of a register block. Values exist only where the processor has the instructions, so that safe methods may use
/// them.
pub(crate) trait SimdRow: Copy {
    /// A vector register with these instructions.
    type Vector: Lanes;

    /// Number of sets of sums that take turns, 1 or 2. A processor that starts two multiply-adds a cycle needs more than 6
    /// independent sums to hide their latency.
    const ACCUMULATOR_SETS: usize;

    /// Panels of a register block, 1 or 2: as many as the registers hold.
    const PANELS: usize;

    /// Whether lines of the result are asked for before the block that is written there is multiplied. It made products slower where it was
    /// measured with AVX2 (Zen 3), and up to 5 % faster with AVX-512 (Sapphire Rapids).
    const FETCHES_RESULT: bool;

    /// # Safety
    /// The instructions are there.
    unsafe fn zero() -> Self;

    /// # Safety
    /// The instructions are there, and 16 numbers.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// There is room for 16 numbers.
    unsafe fn store(self, to: *mut f32);

    fn add(self, other: Self) -> Self;

    /// `self + left * right`, with `left` broadcast.
    fn mul_add(self, left: f32, right: Self) -> Self;
}

/// 16 numbers with AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

impl SimdRow for Avx2 {
    type Vector = Lanes8;

    const ACCUMULATOR_SETS: usize = 1;
    const PANELS: usize = 1;
    const FETCHES_RESULT: bool = false;

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
    fn add(self, other: Self) -> Self {
        // SAFETY: the instructions are there, or these would not be.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }

    #[inline(always)]
    fn mul_add(self, left: f32, right: Self) -> Self {
        // SAFETY: as in `add`.
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
pub(crate) struct Avx512(__m512);

impl SimdRow for Avx512 {
    type Vector = Lanes16;

    const ACCUMULATOR_SETS: usize = 2;
    const PANELS: usize = 2;
    const FETCHES_RESULT: bool = true;

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
    fn add(self, other: Self) -> Self {
        // SAFETY: the instructions are there, or these would not be.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    fn mul_add(self, left: f32, right: Self) -> Self {
        // SAFETY: as in `add`.
        unsafe { Self(_mm512_fmadd_ps(_mm512_set1_ps(left), right.0, self.0)) }
    }
}
