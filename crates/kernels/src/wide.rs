//! Loops compiled for wide vectors.

/// Work whose loops profit from wide vectors.
pub trait WideWork {
    /// What it gives.
    type Output;

    /// Does the work. Mark it, and what it calls, `#[inline(always)]`: only what is inlined is compiled for wide vectors.
    fn run(self) -> Self::Output;
}

/// Does the work with AVX2 where the processor has it.
pub fn with_wide_vectors<W: WideWork>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn wide<W: WideWork>(work: W) -> W::Output {
            work.run()
        }
        let there = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2");
        if there {
            // SAFETY: the processor has the instructions.
            return unsafe { wide(work) };
        }
    }
    work.run()
}
