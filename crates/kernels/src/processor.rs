//! Which instructions the processor has, of those that our own loops are written in.

/// AVX2 and FMA.
pub(crate) fn has_fma() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// Whether loops in AVX2 are the fastest there are: with wider vectors the libraries' own are faster, or were not measured.
pub(crate) fn prefers_avx2() -> bool {
    has_fma() && !std::arch::is_x86_feature_detected!("avx512f")
}
