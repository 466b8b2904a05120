//! Batches made ahead on threads, handed out in their order.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Batch;
use super::batch_iter::BatchLoader;
use crate::{Error, Result};

/// How many batches are made ahead, and on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefetchOptions {
    /// The most batches that are made or being made; with 0 each is made when it is asked for.
    pub(super) depth: usize,
    /// The most threads.
    pub(super) threads: usize,
    /// Whether the number of threads and the depth follow measured waiting times.
    pub(super) tuned: bool,
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        Self {
            depth: 0,
            threads: 1,
            tuned: false,
        }
    }
}

/// Number of batches between two adjustments.
const WINDOW: u32 = 8;
/// The most bytes of batches made ahead when tuned.
pub(super) const MAX_BYTES: usize = 1 << 30;
/// The share of the time spent waiting from which on a thread is added.
const NOTABLE: f64 = 0.05;

/// Threads that make batches, and the queue in which finished batches wait to be taken in order.
///
/// Each thread claims the next index that no thread has claimed, so batches are finished in any order and handed out in
/// theirs. A thread ends with the epoch, after an error, or when the reader is gone; dropping this joins all threads.
pub(super) struct Prefetcher {
    shared: Arc<PrefetchQueue>,
    threads: Vec<JoinHandle<()>>,
    failed_start: Option<Error>,
    tuner: Option<Autotuner>,
}

struct PrefetchQueue {
    maker: BatchLoader,
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    /// The next batch to make.
    next: usize,
    /// The next batch to hand out.
    taken: usize,
    ready: BTreeMap<usize, Result<Batch>>,
    depth: usize,
    /// Threads that may make batches now.
    active: usize,
    /// Whether memory limits the number of batches made ahead.
    bounded: bool,
    /// No more batches are made: the reader is gone, or one failed.
    stopped: bool,
    died: bool,
}

impl Prefetcher {
    pub(super) fn start(maker: BatchLoader, ahead: PrefetchOptions) -> Self {
        let state = QueueState {
            next: maker.next,
            taken: maker.next,
            ready: BTreeMap::new(),
            depth: ahead.depth.max(1),
            // Starts with all threads and takes some away: a short epoch would be over before tuning had added them.
            active: ahead.threads,
            bounded: ahead.tuned,
            stopped: false,
            died: false,
        };
        let shared = Arc::new(PrefetchQueue {
            maker,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut prefetched = Self {
            shared,
            threads: Vec::new(),
            failed_start: None,
            tuner: ahead.tuned.then(|| Autotuner::new(ahead.threads)),
        };
        for rank in 0..ahead.threads {
            let shared = Arc::clone(&prefetched.shared);
            let name = std::thread::Builder::new().name(format!("phalanx-prefetch-{rank}"));
            match name.spawn(move || shared.fill(rank)) {
                Ok(thread) => prefetched.threads.push(thread),
                // Fewer threads than asked for are enough.
                Err(error) if rank == 0 => prefetched.failed_start = Some(no_thread(&error)),
                Err(_) => break,
            }
        }
        prefetched
    }

    pub(super) fn next(&mut self) -> Option<Result<Batch>> {
        if let Some(error) = self.failed_start.take() {
            return Some(Err(error));
        }
        let start = Instant::now();
        let mut state = self.shared.lock();
        while !state.ready.contains_key(&state.taken) {
            if state.died {
                let message = "a prefetch thread panicked outside of the stages";
                return Some(Err(Error::Bug(message.into())));
            }
            if !self.shared.maker.has(state.taken) || state.stopped && state.next <= state.taken {
                return None;
            }
            state = self.shared.wait(state);
        }
        let taken = state.taken;
        state.taken += 1;
        let batch = state.ready.remove(&taken);
        if let (Some(tuner), Some(Ok(_))) = (&mut self.tuner, &batch) {
            let waiting = state.next - taken >= state.depth;
            let room = self.shared.room(state.bounded);
            tuner.took(start.elapsed(), waiting, room, &mut state);
        }
        drop(state);
        self.shared.changed.notify_all();
        batch
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl PrefetchQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes batches until there are no more to make.
    fn fill(&self, rank: usize) {
        let died = PanicGuard(self);
        while let Some(i) = self.claim(rank) {
            let batch = self.maker.make(i);
            if let Ok(batch) = &batch {
                self.maker
                    .largest
                    .fetch_max(batch.byte_len().max(1), Ordering::Relaxed);
            }
            let mut state = self.lock();
            state.stopped |= batch.is_err();
            state.ready.insert(i, batch);
            drop(state);
            self.changed.notify_all();
        }
        std::mem::forget(died);
    }

    /// The number of batches that memory has room for; 1 until the size of a batch is known.
    fn room(&self, bounded: bool) -> usize {
        match self.maker.largest.load(Ordering::Relaxed) {
            _ if !bounded => usize::MAX,
            0 => 1,
            bytes => (MAX_BYTES / bytes).max(1),
        }
    }

    /// The next batch to make, once there is room for it.
    fn claim(&self, rank: usize) -> Option<usize> {
        // Returning at the end of the epoch must not count as waiting.
        if !self.maker.has(self.lock().next) {
            return None;
        }
        self.maker.stage_stats.ahead.time(|| {
            let mut state = self.lock();
            loop {
                if state.stopped || !self.maker.has(state.next) {
                    return None;
                }
                let most = state.depth.min(self.room(state.bounded));
                if state.next < state.taken + most && rank < state.active {
                    state.next += 1;
                    return Some(state.next - 1);
                }
                state = self.wait(state);
            }
        })
    }
}

/// Wakes the reader with an error when a thread panics.
struct PanicGuard<'a>(&'a PrefetchQueue);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().died = true;
        self.0.changed.notify_all();
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::User(format!(
        "cannot start a thread to prefetch: {error}; raise the limit on threads, or use prefetch(0)"
    ))
}

/// Adjusts the number of threads and the depth every [`WINDOW`] batches.
struct Autotuner {
    most: usize,
    seen: WaitSample,
    since: Instant,
}

/// What was measured over a window of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WaitSample {
    batches: u32,
    /// Seconds that the reader waited for a batch.
    starved: f64,
    /// How often the queue was full.
    full: u32,
}

impl Autotuner {
    fn new(most: usize) -> Self {
        let (seen, since) = (WaitSample::default(), Instant::now());
        Self { most, seen, since }
    }

    fn took(&mut self, waited: Duration, full: bool, room: usize, state: &mut QueueState) {
        self.seen.batches += 1;
        self.seen.starved += waited.as_secs_f64();
        self.seen.full += u32::from(full);
        if self.seen.batches == WINDOW {
            let elapsed = self.since.elapsed().as_secs_f64();
            (state.active, state.depth) =
                tuned(self.seen, elapsed, state.active, self.most.min(room));
            (self.seen, self.since) = (WaitSample::default(), Instant::now());
        }
    }
}

/// The number of threads and the depth for the next window.
///
/// One thread more where the reader waited for more than 5 % of the time; one fewer where it waited for less than 0.5 % and the
/// queue was full at every batch. The depth is two batches per thread, within what memory allows.
fn tuned(seen: WaitSample, elapsed: f64, active: usize, most: usize) -> (usize, usize) {
    let share = seen.starved / elapsed.max(1e-9);
    let most = most.max(1);
    let active = if share > NOTABLE {
        (active + 1).min(most)
    } else if seen.full == seen.batches && share < NOTABLE / 10.0 {
        (active - 1).max(1)
    } else {
        active
    };
    let active = active.min(most);
    (active, 2 * active)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_what_is_waited_for() {
        let seen = WaitSample {
            batches: 8,
            starved: 0.5,
            full: 0,
        };
        assert_eq!(tuned(seen, 1.0, 1, 4), (2, 4));
        assert_eq!(tuned(seen, 1.0, 4, 4), (4, 8));
        assert_eq!(tuned(seen, 100.0, 3, 4), (3, 6));
        let idle = WaitSample {
            starved: 0.0,
            full: 8,
            ..seen
        };
        assert_eq!(tuned(idle, 1.0, 3, 4), (2, 4));
        assert_eq!(tuned(idle, 1.0, 1, 4), (1, 2));
        // There is room for fewer.
        assert_eq!(tuned(seen, 1.0, 4, 2), (2, 4));
        assert_eq!(tuned(seen, 1.0, 4, 0), (1, 2));
    }
}
