//! Where operations run: as many at once as the processors have room for.
//!
//! A program of one replica has all processors for each operation, one operation after the other. Of several replicas each has its
//! share, so that they compute at once instead of waiting for each other. With one thread an operation runs where XLA calls it: the
//! thread has the processor and the caches already. With more it runs on a thread of ours, because OpenMP gives every thread that
//! starts work a team of its own, which costs memory and time to start.
//!
//! Results depend on the number of threads, never on the lane.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::executor::Executor;
use crate::library::KernelError;
use crate::onednn::Refused;
use crate::state::State;
use crate::sys::Api;

/// Longest wait for a lane: operations take seconds at most.
const PATIENCE: Duration = Duration::from_secs(600);

/// Lanes of equal width; each serves one operation at a time.
pub(crate) struct Lanes {
    pool: Pool<Lane>,
}

enum Lane {
    /// On the thread that calls, and no other.
    Caller(Box<State>),
    /// On a thread with a team.
    Thread(Executor<State>),
}

/// Why an operation did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoLane {
    #[error("other operations use all threads since {} s", .0.as_secs())]
    Busy(Duration),
    #[error(transparent)]
    NotStarted(#[from] KernelError),
}

impl Lanes {
    /// Lanes of so many threads, as many as fit on the processors.
    ///
    /// # Errors
    /// The system gives no thread, or oneDNN does not start.
    pub(crate) fn start(
        api: &'static Api,
        threads: usize,
        processors: usize,
    ) -> Result<Self, KernelError> {
        let lanes = (0..(processors / threads).max(1)).map(|_| Lane::start(api, threads));
        let lanes = lanes.collect::<Result<_, _>>()?;
        Ok(Self {
            pool: Pool::new(lanes),
        })
    }

    /// Runs a job on a free lane, the first that there is.
    ///
    /// # Errors
    /// None becomes free for too long.
    pub(crate) fn run<R: Send>(
        &self,
        job: impl FnOnce(&mut State) -> R + Send,
    ) -> Result<R, NoLane> {
        let mut lane = self.pool.take(PATIENCE).ok_or(NoLane::Busy(PATIENCE))?;
        Ok(lane.run(job))
    }

    /// The operations made so far on the lanes that are free.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut found = Vec::new();
        for lane in self.pool.lock().iter_mut() {
            found.extend(lane.run(|state| state.describe().collect::<Vec<_>>()));
        }
        found
    }
}

impl Lane {
    fn start(api: &'static Api, threads: usize) -> Result<Self, KernelError> {
        if threads < 2 {
            return Ok(Self::Caller(Box::new(State::new(api, 1)?)));
        }
        let start = move || State::new(api, threads).map_err(|refused: Refused| refused.into());
        Executor::start(start).map(Self::Thread)
    }

    fn run<R: Send>(&mut self, job: impl FnOnce(&mut State) -> R + Send) -> R {
        let entered = |state: &mut State| {
            let _flushed = state.enter();
            job(state)
        };
        match self {
            Self::Caller(state) => entered(state),
            Self::Thread(executor) => executor.run(entered),
        }
    }
}

/// Things that are lent to one user at a time.
struct Pool<T> {
    free: Mutex<Vec<T>>,
    returned: Condvar,
}

/// One of them; goes back when dropped.
struct Lent<'a, T> {
    pool: &'a Pool<T>,
    thing: Option<T>,
}

impl<T> Pool<T> {
    fn new(things: Vec<T>) -> Self {
        Self {
            free: Mutex::new(things),
            returned: Condvar::new(),
        }
    }

    /// The one that came back last, once there is one; none when that takes too long.
    fn take(&self, patience: Duration) -> Option<Lent<'_, T>> {
        let start = Instant::now();
        let mut free = self.lock();
        loop {
            if let Some(thing) = free.pop() {
                return Some(Lent {
                    pool: self,
                    thing: Some(thing),
                });
            }
            let left = patience.checked_sub(start.elapsed())?;
            let waited = self.returned.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> std::ops::Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect("held until dropped")
    }
}

impl<T> std::ops::DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.thing.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.pool.lock().extend(self.thing.take());
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
        let pool = Pool::new(vec![0u64, 0]);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let mut lent = pool.take(LONG).unwrap();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        *lent += 1;
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
        let pool = Pool::new(vec![1]);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _lent = pool.take(LONG);
            panic!("a job's own");
        }));
        assert!(panic.is_err());
        assert_eq!(*pool.take(LONG).unwrap(), 1);
    }

    #[test]
    fn waiting_ends() {
        let pool = Pool::new(vec![1]);
        let lent = pool.take(LONG);
        assert!(pool.take(Duration::from_millis(5)).is_none());
        drop(lent);
        assert!(pool.take(Duration::ZERO).is_some());
    }
}
