//! Whether products of bf16 are faster by the processor's instructions for them than in f32.

#[cfg(target_arch = "x86_64")]
use crate::amx::AmxFeatures;

/// What decides how fast a processor multiplies bf16.
#[cfg(any(test, target_arch = "x86_64"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bf16Rate {
    is_intel: bool,
    /// Vectors of bf16 are multiplied and summed in f32 (AVX512-BF16).
    has_vectors: bool,
    /// AMX, by the processor and by the system.
    has_tiles: bool,
}

#[cfg(any(test, target_arch = "x86_64"))]
impl Bf16Rate {
    /// AMD's processors multiply twice as many pairs of bf16 at once as of f32. Intel's do that on one of their two units for f32 alone, so
    /// that what their vectors gain is lost again (decision 63); there AMX is what is faster.
    const fn is_above_f32(self) -> bool {
        self.has_vectors && (self.has_tiles || !self.is_intel)
    }
}

/// Whether this processor multiplies bf16 faster by instructions for it than it multiplies f32. Where it does not, bf16 is how numbers are kept and
/// not how they are multiplied: a product of two bf16 is exact in f32.
#[must_use]
pub fn has_fast_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return of_this_processor().is_above_f32();
    #[cfg(not(target_arch = "x86_64"))]
    true
}

#[cfg(target_arch = "x86_64")]
fn of_this_processor() -> Bf16Rate {
    let leaf = std::arch::x86_64::__cpuid(0);
    let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    Bf16Rate {
        is_intel: vendor.as_flattened() == b"GenuineIntel",
        has_vectors: std::arch::is_x86_feature_detected!("avx512bf16"),
        has_tiles: AmxFeatures::detect().multiplies_bf16(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_where_they_are_faster() {
        let is_fast = |is_intel, has_vectors, has_tiles| {
            let rate = Bf16Rate {
                is_intel,
                has_vectors,
                has_tiles,
            };
            rate.is_above_f32()
        };
        for is_intel in [false, true] {
            assert!(!is_fast(is_intel, false, false));
            assert!(is_fast(is_intel, true, true));
        }
        assert!(is_fast(false, true, false));
        assert!(!is_fast(true, true, false));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_processor_says_who_made_it() {
        let described = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let rate = of_this_processor();
        assert_eq!(rate.is_intel, described.contains("GenuineIntel"));
        assert_eq!(rate.has_vectors, described.contains("avx512_bf16"));
    }
}
