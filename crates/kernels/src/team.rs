//! The threads that oneDNN's operations run on, for loops of our own.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::sys::Api;

/// OpenMP's team of the calling thread: loops of our own on other threads would fight it for the processors.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    api: &'static Api,
    threads: usize,
}

/// Work of a region, and the panic that ended a thread's share of it.
struct Region<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Where threads write to that have different elements of it.
#[derive(Clone, Copy)]
pub(crate) struct Target(pub(crate) *mut f32);

// SAFETY: what is written through it is the promise of who does.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Team {
    pub(crate) fn new(api: &'static Api, threads: usize) -> Self {
        Self { api, threads }
    }

    /// Gives OpenMP's work that the calling thread starts the threads of this team, and no others.
    pub(crate) fn enter(&self) {
        // SAFETY: the function has no conditions; it is about this thread alone.
        unsafe { (self.api.set_threads)(c_int::try_from(self.threads).unwrap_or(c_int::MAX)) };
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` with each part, several at once, in any order; returns when all are done.
    pub(crate) fn each<P: Send>(
        &self,
        parts: impl Iterator<Item = P> + Send,
        work: impl Fn(P) + Sync,
    ) {
        let parts = Mutex::new(parts);
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        self.everywhere(&|| {
            while let Some(part) = next() {
                work(part);
            }
        });
    }

    /// Calls `work` once on every thread of the team.
    fn everywhere(&self, work: &(dyn Fn() + Sync)) {
        if self.threads < 2 {
            return work();
        }
        let region = Region {
            work,
            panic: Mutex::new(None),
        };
        let threads = u32::try_from(self.threads).unwrap_or(1);
        // SAFETY: OpenMP calls `enter` with the region on each thread and returns when all of them have returned.
        unsafe { (self.api.parallel)(enter, (&raw const region).cast_mut().cast(), threads, 0) };
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
/// `region` is a [`Region`] that lives during the call.
unsafe extern "C" fn enter(region: *mut c_void) {
    // SAFETY: the caller's promise.
    let region = unsafe { &*region.cast::<Region<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(region.work)) {
        *region.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
    }
}

/// Compiles a function twice, and calls the one with wide vectors where the processor has them.
macro_rules! with_wide_vectors {
    ($(#[$doc:meta])* fn $name:ident $(<const $flag:ident: bool>)? ($($argument:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        fn $name $(<const $flag: bool>)? ($($argument: $ty),*) {
            #[inline(always)]
            fn body $(<const $flag: bool>)? ($($argument: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide $(<const $flag: bool>)? ($($argument: $ty),*) {
                    body $(::<$flag>)? ($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the instructions.
                    return unsafe { wide $(::<$flag>)? ($($argument),*) };
                }
            }
            body $(::<$flag>)? ($($argument),*);
        }
    };
}
pub(crate) use with_wide_vectors;
