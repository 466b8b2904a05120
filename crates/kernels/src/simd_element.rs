//! Element types that vectors of f32 are loaded from and stored to.

use std::arch::x86_64::{
    __m256, _CMP_UNORD_Q, _mm_loadu_si128, _mm_packus_epi32, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_extracti128_si256,
    _mm256_loadu_ps, _mm256_or_si256, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_storeu_ps,
};
use std::fmt::Debug;

use phalanx_pjrt::Bf16;

use crate::stored::Stored;

/// An element type of arrays, which are computed with in vectors of f32.
pub(crate) trait SimdElement: Stored + Debug {
    /// Whether numbers in memory are f32, as loops read and write them.
    const IS_F32: bool;

    /// Numbers in memory, if they are f32.
    fn in_f32(at: *const Self) -> Option<*const f32> {
        Self::IS_F32.then_some(at.cast())
    }

    /// 8 numbers, exactly.
    ///
    /// # Safety
    /// There are 8 numbers, and the processor has AVX2.
    unsafe fn load_8(from: *const Self) -> __m256;

    /// Stores 8 numbers as [`Stored::narrow`] does.
    ///
    /// # Safety
    /// There is room for 8 numbers, and the processor has AVX2.
    unsafe fn store_8(values: __m256, to: *mut Self);
}

impl SimdElement for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load_8(from: *const Self) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_8(values: __m256, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, values) };
    }
}

impl SimdElement for Bf16 {
    const IS_F32: bool = false;

    #[inline(always)]
    unsafe fn load_8(from: *const Self) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    unsafe fn store_8(values: __m256, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(values);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let nearest = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            let kept = _mm256_blendv_ps(nearest, _mm256_castsi256_ps(quiet), is_nan);
            let halves = _mm256_srli_epi32::<16>(_mm256_castps_si256(kept));
            let [low, high] = [
                _mm256_castsi256_si128(halves),
                _mm256_extracti128_si256::<1>(halves),
            ];
            _mm_storeu_si128(to.cast(), _mm_packus_epi32(low, high));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::has_fma;

    #[test]
    fn eight_are_stored_as_one_is() {
        if !has_fma() {
            return;
        }
        let fractions = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000];
        for high in 0..=u32::from(u16::MAX) {
            let values = fractions.map(|low| f32::from_bits(high << 16 | low));
            let (mut found, mut wide) = ([Bf16(0); 8], [0.0; 8]);
            // SAFETY: the processor has the instructions, and there are 8 of each.
            unsafe {
                Bf16::store_8(f32::load_8(values.as_ptr()), found.as_mut_ptr());
                f32::store_8(Bf16::load_8(found.as_ptr()), wide.as_mut_ptr());
            }
            for i in 0..8 {
                assert_eq!(
                    found[i].0,
                    Bf16::narrow(values[i]).0,
                    "{:#x}",
                    values[i].to_bits()
                );
                assert_eq!(wide[i].to_bits(), found[i].wide().to_bits());
            }
        }
    }
}
