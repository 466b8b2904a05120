//! Which instructions the processor has, of those that our own loops are written in.

/// AVX2 and FMA.
pub(crate) fn has_fma() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// AVX-512F, its instructions for shorter vectors, and what [`has_fma`] asks for.
pub(crate) fn has_avx512() -> bool {
    has_fma()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vl")
}
