//! SIMD: which instructions the processor has, and code that is compiled for them beside the baseline.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_unpackhi_ps,
    _mm256_unpacklo_ps,
};
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Whether the processor has what [`with_wide_vectors`] compiles for.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_wide_vectors() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
}

/// Whether the processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_fma() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// Leaves AVX-512 alone, so that tests run what processors without it run.
#[cfg(target_arch = "x86_64")]
const AVX2_ONLY: &str = "PHALANX_TEST_AVX2_ONLY";

/// Whether the processor has AVX-512F, its instructions for shorter vectors (VL), AVX2 and FMA; never where `PHALANX_TEST_AVX2_ONLY` is set.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        has_fma()
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512vl")
            && std::env::var_os(AVX2_ONLY).is_none()
    })
}

/// Work whose loops the compiler vectorizes; see [`with_wide_vectors`].
pub trait WideWork {
    /// What it returns.
    type Output;

    /// Does the work. Mark it, and what it calls, `#[inline(always)]`: only what is inlined is compiled for wide vectors.
    fn run(self) -> Self::Output;
}

/// Runs the work compiled for AVX2 where the processor has it, else for the baseline.
pub fn with_wide_vectors<W: WideWork>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn wide<W: WideWork>(work: W) -> W::Output {
            work.run()
        }
        if has_wide_vectors() {
            // SAFETY: the processor has the instructions.
            return unsafe { wide(work) };
        }
    }
    work.run()
}

/// Defines a function that is compiled as by [`with_wide_vectors`].
///
/// It is a macro and not a `WideWork` because its arguments must stay arguments: the compiler knows of `&mut [f32]` arguments, unlike of
/// fields of a struct, that they do not overlap, and vectorizes without checks.
macro_rules! compiled_for_wide_vectors {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$t:ident: $bound:ident $(, const $flag:ident: bool)?>)? ($($argument:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        $vis fn $name $(<$t: $bound $(, const $flag: bool)?>)? ($($argument: $ty),*) {
            #[inline(always)]
            fn body $(<$t: $bound $(, const $flag: bool)?>)? ($($argument: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn wide $(<$t: $bound $(, const $flag: bool)?>)? ($($argument: $ty),*) {
                    body $(::<$t $(, $flag)?>)? ($($argument),*);
                }
                if $crate::simd::has_wide_vectors() {
                    // SAFETY: the processor has the instructions.
                    return unsafe { wide $(::<$t $(, $flag)?>)? ($($argument),*) };
                }
            }
            body $(::<$t $(, $flag)?>)? ($($argument),*);
        }
    };
}
pub(crate) use compiled_for_wide_vectors;

/// Transposes 8 x 8 elements.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn transpose_8x8(rows: [__m256; 8]) -> [__m256; 8] {
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
    let mut columns = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
        columns[i + 4] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
    }
    columns
}
