//! Parallel loops of our own on the OpenMP threads that oneDNN's operations use.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::sync::lock;
use crate::sys::Api;

/// The OpenMP team of the calling thread. Loops on other threads would compete with it for the processors.
#[derive(Clone, Copy)]
pub(crate) struct ThreadTeam {
    /// None for the calling thread alone.
    api: Option<&'static Api>,
    threads: usize,
}

/// The body of a parallel region, and the panic that ended it on some thread.
struct ParallelRegion<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// An output array that several threads write to, each to its own elements.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only loops for its vectors use it")
)]
pub(crate) struct OutputPointer<T = f32>(pub(crate) *mut T);

impl<T> OutputPointer<T> {
    /// The first element. It is a method so that closures take the whole pointer, which may go to other threads.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn start(self) -> *mut T {
        self.0
    }
}

// SAFETY: what is written through it is the promise of who does.
unsafe impl<T> Send for OutputPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for OutputPointer<T> {}

impl ThreadTeam {
    pub(crate) fn new(api: &'static Api, threads: usize) -> Self {
        Self {
            api: Some(api),
            threads,
        }
    }

    /// The calling thread alone, which needs no library.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn alone() -> Self {
        Self::alone_as(1)
    }

    /// The calling thread alone, which divides its work as a team of this size does.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn alone_as(threads: usize) -> Self {
        Self { api: None, threads }
    }

    /// Sets the number of threads of the parallel regions that the calling thread starts. oneDNN plans for this number and is wrong, or
    /// waits for ever, where there are fewer, as `OMP_DYNAMIC=true` would have it.
    pub(crate) fn bind_to_current_thread(&self) {
        let Some(api) = self.api else { return };
        // SAFETY: the functions have no conditions; they are about this thread alone.
        unsafe {
            (api.omp_set_dynamic)(0);
            (api.omp_set_num_threads)(c_int::try_from(self.threads).unwrap_or(c_int::MAX));
        }
    }

    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only loops for its vectors use it")
    )]
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` with each task, several at the same time and in any order; returns when all are done.
    pub(crate) fn for_each<P: Send>(
        &self,
        tasks: impl Iterator<Item = P> + Send,
        work: impl Fn(P) + Sync,
    ) {
        let tasks = Mutex::new(tasks);
        let next = || lock(&tasks).next();
        self.on_every_thread(&|| {
            while let Some(task) = next() {
                work(task);
            }
        });
    }

    /// Calls `work` once on every thread of the team.
    fn on_every_thread(&self, work: &(dyn Fn() + Sync)) {
        let Some(api) = self.api.filter(|_| self.threads > 1) else {
            return work();
        };
        let region = ParallelRegion {
            work,
            panic: Mutex::new(None),
        };
        let threads = u32::try_from(self.threads).unwrap_or(1);
        // SAFETY: OpenMP calls `run_region` with the region on each thread and returns when all of them have returned.
        unsafe {
            (api.gomp_parallel)(
                run_region,
                (&raw const region).cast_mut().cast(),
                threads,
                0,
            );
        }
        let panic = region
            .panic
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// # Safety
/// `region` is a [`ParallelRegion`] that lives during the call.
unsafe extern "C" fn run_region(region: *mut c_void) {
    // SAFETY: the caller's promise.
    let region = unsafe { &*region.cast::<ParallelRegion<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(region.work)) {
        *lock(&region.panic) = Some(panic);
    }
}
