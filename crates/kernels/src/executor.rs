//! A dedicated thread that runs jobs for other threads, one after the other.
//!
//! XLA calls handlers from any of its threads, several at the same time. Every thread that starts OpenMP work owns a team of threads, and
//! two operations that share the processors are slower than one after the other; a dedicated thread has one team. Handing a job over
//! costs about 10 us (`cargo run --release -p phalanx-bench --bin kernels` prints it).

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

use crate::sync::lock;

/// A thread that owns a state and runs jobs on it, one at a time.
pub(crate) struct Executor<S> {
    queue: Arc<Queue<S>>,
    thread: Option<JoinHandle<()>>,
}

struct Queue<S> {
    state: Mutex<QueueState<S>>,
    filled: Condvar,
}

struct QueueState<S> {
    jobs: VecDeque<Job<S>>,
    closed: bool,
}

/// A job on the stack of a thread that waits for it.
struct Job<S> {
    run: *mut (dyn FnMut(&mut S) + 'static),
    done: *const AtomicBool,
    caller: Thread,
}

// SAFETY: `Executor::run` makes jobs only of closures that are `Send`, and waits until the executor is done with them.
unsafe impl<S> Send for Job<S> {}

impl<S: 'static> Executor<S> {
    /// Starts the thread; `start` makes the state on it.
    ///
    /// # Errors
    /// The system's error when it gives no thread, or the error of `start`.
    pub(crate) fn start<E: From<std::io::Error> + Send + 'static>(
        start: impl FnOnce() -> Result<S, E> + Send + 'static,
    ) -> Result<Self, E> {
        let queue = Arc::new(Queue {
            state: Mutex::new(QueueState {
                jobs: VecDeque::new(),
                closed: false,
            }),
            filled: Condvar::new(),
        });
        let theirs = Arc::clone(&queue);
        let (started_sender, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("phalanx-kernels".into())
            .spawn(move || match start() {
                Ok(mut state) => {
                    let _ = started_sender.send(Ok(()));
                    theirs.serve(&mut state);
                }
                Err(error) => drop(started_sender.send(Err(error))),
            })?;
        let executor = Self {
            queue,
            thread: Some(thread),
        };
        match started.recv() {
            Ok(started) => started.map(|()| executor),
            // It panicked: so does the caller.
            Err(_) => resume_unwind(Box::new("the kernel thread did not start")),
        }
    }

    /// Runs a job on the thread and waits for it; it has no deadline, because XLA could not be started to stop waiting either.
    ///
    /// # Panics
    /// The job does.
    pub(crate) fn run<R: Send>(&self, job: impl FnOnce(&mut S) -> R + Send) -> R {
        let mut job = Some(job);
        let mut outcome = None;
        let mut run = |state: &mut S| {
            let job = job.take().expect("a job runs once");
            outcome = Some(catch_unwind(AssertUnwindSafe(|| job(state))));
        };
        self.queue.submit_and_wait(&mut run);
        match outcome.expect("the executor ran the job") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<S> Queue<S> {
    fn submit_and_wait<'a>(&self, run: &'a mut (dyn FnMut(&mut S) + 'a)) {
        let done = AtomicBool::new(false);
        let run: *mut (dyn FnMut(&mut S) + 'a) = run;
        let job = Job {
            // SAFETY: only the lifetime changes; this function does not return before the executor is done with it.
            run: unsafe {
                std::mem::transmute::<
                    *mut (dyn FnMut(&mut S) + 'a),
                    *mut (dyn FnMut(&mut S) + 'static),
                >(run)
            },
            done: &raw const done,
            caller: std::thread::current(),
        };
        self.lock().jobs.push_back(job);
        self.filled.notify_one();
        while !done.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    fn serve(&self, state: &mut S) {
        while let Some(job) = self.next() {
            // SAFETY: the caller waits, so the closure and the flag live until the flag is set; afterwards neither is touched.
            unsafe {
                (*job.run)(state);
                (*job.done).store(true, Ordering::Release);
            }
            job.caller.unpark();
        }
    }

    fn next(&self) -> Option<Job<S>> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<S>> {
        lock(&self.state)
    }
}

impl<S> Drop for Executor<S> {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.filled.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// While it lives, this thread, and threads that it starts, treat denormal numbers as zero, as XLA's threads do.
pub(crate) struct FlushDenormals {
    #[cfg(target_arch = "x86_64")]
    before: u32,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl FlushDenormals {
    pub(crate) fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            const FLUSH_TO_ZERO: u32 = 1 << 15;
            const DENORMALS_ARE_ZERO: u32 = 1 << 6;
            let before = exchange_register(|before| before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
            Self {
                before,
                _thread: PhantomData,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self {
            _thread: PhantomData,
        }
    }
}

impl Drop for FlushDenormals {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        exchange_register(|_| self.before);
    }
}

/// Changes how this thread rounds; gives what was before.
#[cfg(target_arch = "x86_64")]
fn exchange_register(change: impl FnOnce(u32) -> u32) -> u32 {
    let mut before = 0u32;
    // SAFETY: the register exists on every x86-64.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags));
    }
    let after = change(before);
    // SAFETY: as above; callers change only how denormals are rounded, or put back what was, and decision 62 says why the loops in between
    // may run like that.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const after, options(nostack, preserves_flags));
    }
    before
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn counter() -> Executor<u64> {
        Executor::start(|| Ok::<_, io::Error>(0)).unwrap()
    }

    #[test]
    fn jobs_of_many_threads_run_one_at_a_time_and_give_their_values() {
        let executor = counter();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (before, after) = executor.run(|count| {
                            let before = *count;
                            std::thread::yield_now();
                            *count += 1;
                            (before, *count)
                        });
                        assert_eq!(before + 1, after);
                    }
                });
            }
        });
        assert_eq!(executor.run(|count| *count), 1600);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_thread_goes_on() {
        let executor = counter();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            executor.run(|_| panic!("a job's own"));
        }));
        assert_eq!(
            *panic.unwrap_err().downcast::<&str>().unwrap(),
            "a job's own"
        );
        assert_eq!(executor.run(|count| *count), 0);
    }

    #[test]
    fn a_state_that_cannot_be_made_is_an_error() {
        let failed = Executor::<u64>::start(|| Err(io::Error::other("no state")));
        assert_eq!(failed.err().unwrap().to_string(), "no state");
    }

    #[test]
    fn denormals_are_zero_while_they_are_flushed() {
        let product = || std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5);
        let kept = f32::MIN_POSITIVE / 2.0;
        let flushed = FlushDenormals::new();
        let zero = if cfg!(target_arch = "x86_64") {
            0.0
        } else {
            kept
        };
        assert_eq!(product(), zero);
        drop(flushed);
        assert_eq!(product(), kept);
    }
}
