//! Workers that run operations, as many at the same time as there are processors for.
//!
//! A program with one replica uses all processors for each operation, one operation after the other. With several replicas each gets
//! its share of the processors, so that they compute at the same time instead of waiting for each other. An operation of one thread runs
//! on the thread on which XLA calls it, which has the processor and warm caches. An operation of several threads runs on a dedicated
//! thread, because OpenMP gives every thread that starts a parallel region a team of its own, which costs memory and time.
//!
//! Results depend on the number of threads, never on the worker.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::executor::Executor;
use crate::library::KernelError;
use crate::onednn::OneDnnError;
use crate::sync::lock;
use crate::sys::Api;
use crate::worker_state::WorkerState;

/// Longest wait for a worker: operations take seconds at most.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Workers with the same number of threads; each runs one operation at a time.
pub(crate) struct WorkerPool {
    pool: ObjectPool<Worker>,
}

enum Worker {
    /// On the calling thread alone.
    Inline(Box<WorkerState>),
    /// On a thread of our own, with an OpenMP team.
    Dedicated(Executor<WorkerState>),
}

/// Why an operation did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("other operations use all threads since {} s", .0.as_secs())]
    Busy(Duration),
    #[error(transparent)]
    NotStarted(#[from] KernelError),
}

impl WorkerPool {
    /// Starts workers of `threads` threads each, as many as there are processors for.
    ///
    /// # Errors
    /// The system gives no thread, or oneDNN does not start.
    pub(crate) fn start(
        api: &'static Api,
        threads: usize,
        processors: usize,
    ) -> Result<Self, KernelError> {
        let workers = (0..(processors / threads).max(1)).map(|_| Worker::start(api, threads));
        let workers = workers.collect::<Result<_, _>>()?;
        Ok(Self {
            pool: ObjectPool::new(workers),
        })
    }

    /// Runs a job on the first worker that is free.
    ///
    /// # Errors
    /// No worker becomes free in time.
    pub(crate) fn run<R: Send>(
        &self,
        job: impl FnOnce(&mut WorkerState) -> R + Send,
    ) -> Result<R, WorkerError> {
        let mut worker = self
            .pool
            .take(MAX_WAIT)
            .ok_or(WorkerError::Busy(MAX_WAIT))?;
        Ok(worker.run(job))
    }

    /// The operations made so far on the workers that are free.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut found = Vec::new();
        for worker in self.pool.lock().iter_mut() {
            found.extend(worker.run(|state| state.describe().collect::<Vec<_>>()));
        }
        found
    }
}

impl Worker {
    fn start(api: &'static Api, threads: usize) -> Result<Self, KernelError> {
        if threads < 2 {
            return Ok(Self::Inline(Box::new(WorkerState::new(api, 1)?)));
        }
        let start =
            move || WorkerState::new(api, threads).map_err(|refused: OneDnnError| refused.into());
        Executor::start(start).map(Self::Dedicated)
    }

    fn run<R: Send>(&mut self, job: impl FnOnce(&mut WorkerState) -> R + Send) -> R {
        let entered = |state: &mut WorkerState| {
            let _flushed = state.enter();
            job(state)
        };
        match self {
            Self::Inline(state) => entered(state),
            Self::Dedicated(executor) => executor.run(entered),
        }
    }
}

/// Objects that are used by one thread at a time.
struct ObjectPool<T> {
    free: Mutex<Vec<T>>,
    returned: Condvar,
}

/// A borrowed object, which returns to the pool when dropped.
struct PoolGuard<'a, T> {
    pool: &'a ObjectPool<T>,
    object: Option<T>,
}

impl<T> ObjectPool<T> {
    fn new(objects: Vec<T>) -> Self {
        Self {
            free: Mutex::new(objects),
            returned: Condvar::new(),
        }
    }

    /// The object that was returned last, waiting for one if necessary; none after the timeout.
    fn take(&self, timeout: Duration) -> Option<PoolGuard<'_, T>> {
        let start = Instant::now();
        let mut free = self.lock();
        loop {
            if let Some(object) = free.pop() {
                return Some(PoolGuard {
                    pool: self,
                    object: Some(object),
                });
            }
            let left = timeout.checked_sub(start.elapsed())?;
            let waited = self.returned.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        lock(&self.free)
    }
}

impl<T> std::ops::Deref for PoolGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.object.as_ref().expect("held until dropped")
    }
}

impl<T> std::ops::DerefMut for PoolGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.object.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for PoolGuard<'_, T> {
    fn drop(&mut self) {
        self.pool.lock().extend(self.object.take());
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn no_more_users_than_things() {
        let pool = ObjectPool::new(vec![0u64, 0]);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let mut guard = pool.take(LONG).unwrap();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        *guard += 1;
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        assert_eq!(pool.lock().iter().sum::<u64>(), 800);
    }

    #[test]
    fn a_thing_comes_back_after_a_panic() {
        let pool = ObjectPool::new(vec![1]);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _lent = pool.take(LONG);
            panic!("a job's own");
        }));
        assert!(panic.is_err());
        assert_eq!(*pool.take(LONG).unwrap(), 1);
    }

    #[test]
    fn waiting_ends() {
        let pool = ObjectPool::new(vec![1]);
        let guard = pool.take(LONG);
        assert!(pool.take(Duration::from_millis(5)).is_none());
        drop(guard);
        assert!(pool.take(Duration::ZERO).is_some());
    }
}
