//! AMX: matrix tiles for bf16, which the processor must have, the system must save and the library must use.

/// Bits of EDX of `cpuid` leaf 7.
const BF16: u32 = 1 << 22;
const TILES: u32 = 1 << 24;
/// Bits of XCR0: the system keeps the tiles' configuration and the tiles when it changes threads.
const TILE_STATE: u64 = 0b11 << 17;

/// What the processor and the operating system say of AMX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmxFeatures {
    leaf_7_edx: u32,
    xcr0: u64,
}

impl AmxFeatures {
    /// Of a processor that answers `cpuid` leaf 7 with this EDX, and has this XCR0, the register that says what the system saves.
    #[must_use]
    pub const fn new(leaf_7_edx: u32, xcr0: u64) -> Self {
        Self { leaf_7_edx, xcr0 }
    }

    /// Of the processor that this runs on.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        return x86::detect();
        #[cfg(not(target_arch = "x86_64"))]
        Self::new(0, 0)
    }

    /// Whether there may be products of bf16 on tiles. The system also grants each process the use of tiles: oneDNN asks for it and
    /// [`Support::amx_bf16`](crate::Support::amx_bf16) has the answer.
    #[must_use]
    pub const fn multiplies_bf16(self) -> bool {
        let needed = BF16 | TILES;
        self.leaf_7_edx & needed == needed && self.xcr0 & TILE_STATE == TILE_STATE
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};

    use super::AmxFeatures;

    /// Of ECX of leaf 1: the system has switched `xgetbv` on.
    const OSXSAVE: u32 = 1 << 27;

    pub(super) fn detect() -> AmxFeatures {
        #[target_feature(enable = "xsave")]
        fn xcr0() -> u64 {
            // SAFETY: register 0 exists wherever the instruction does.
            unsafe { _xgetbv(0) }
        }
        if __get_cpuid_max(0).0 < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return AmxFeatures::new(0, 0);
        }
        // SAFETY: OSXSAVE says that there is `xgetbv`.
        let xcr0 = unsafe { xcr0() };
        AmxFeatures::new(__cpuid_count(7, 0).edx, xcr0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_need_both_instructions_and_a_system_that_saves_them() {
        let all = AmxFeatures::new(BF16 | TILES, TILE_STATE);
        assert!(all.multiplies_bf16());
        assert!(AmxFeatures::new(u32::MAX, u64::MAX).multiplies_bf16());
        for (edx, xcr0) in [
            (0, 0),
            (BF16, TILE_STATE),
            (TILES, TILE_STATE),
            (BF16 | TILES, 0),
            (BF16 | TILES, 1 << 17),
            (BF16 | TILES, 1 << 18),
            (!BF16, u64::MAX),
            (!TILES, u64::MAX),
        ] {
            assert!(
                !AmxFeatures::new(edx, xcr0).multiplies_bf16(),
                "{edx:x} {xcr0:x}"
            );
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_processor_is_asked() {
        let features = AmxFeatures::detect();
        // x87 and SSE, which every system for x86-64 saves.
        assert!(features.xcr0 == 0 || features.xcr0 & 0b11 == 0b11);
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(features.xcr0 & 0b1110_0110, 0b1110_0110);
        }
        assert_eq!(features, AmxFeatures::detect());
    }
}
