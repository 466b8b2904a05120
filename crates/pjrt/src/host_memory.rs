//! How the process' allocator treats memory that programs free.

/// Makes the C allocator keep what is freed, for the next step needs the same again.
///
/// XLA:CPU allocates results and scratch anew for each run. glibc gives blocks of that size back to the system at once, and the next
/// run then touches every page for the first time: on large tensors that takes four times as long as the arithmetic. Afterwards the
/// process keeps its largest size until it ends, and all threads share one heap. Returns whether the allocator is one that was told.
///
/// Programs that build this crate with the feature `allocator` also have functions of their own for the process: large blocks wait whole for
/// the next of their size, where the heap grows by what lies between, and C++ has another allocator for small ones (decision 56). It
/// is for programs, not for libraries: a program has one of each.
///
/// To be called before threads start: those that exist keep their own heaps.
#[must_use]
pub fn keep_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        const TRIM_THRESHOLD: c_int = -1;
        const MMAP_MAX: c_int = -4;
        const ARENA_MAX: c_int = -8;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        #[cfg(feature = "allocator")]
        crate::large_blocks::enable();
        #[cfg(exported_operators)]
        crate::operators::link();
        // SAFETY: these parameters of glibc's allocator may be set at any time, from any thread; -1 turns trimming off.
        [(TRIM_THRESHOLD, -1), (MMAP_MAX, 0), (ARENA_MAX, 1)]
            .into_iter()
            .all(|(parameter, value)| unsafe { mallopt(parameter, value) == 1 })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}

/// Gives what the compiler has used and freed back to the system at once: a first run takes its scratch in the next moment, and the process
/// would have both.
pub(crate) fn give_back_unused() {
    #[cfg(exported_operators)]
    crate::operators::give_back_unused();
}
