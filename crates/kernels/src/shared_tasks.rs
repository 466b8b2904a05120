//! Numbered tasks that the thread of a call computes together with idle threads of the plugin's pool.
//!
//! The calling thread takes task after task; others take from the same counter when they have nothing else to do. Nobody waits for a
//! thread that is busy with another operation, only for tasks that were begun.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

use phalanx_pjrt::CustomCallFrame;

use crate::executor::FlushDenormals;
use crate::sync::lock;

/// Work that consists of tasks, in any order and by several threads.
///
/// Pointers in it are valid while tasks are computed, which ends before [`run`] returns; an object may live longer.
pub(crate) trait SharedWork: Send + Sync + 'static {
    /// What a thread keeps from task to task.
    type Scratch;

    /// Number of tasks.
    fn tasks(&self) -> usize;

    /// Called by a thread before its first task.
    fn begin(&self) -> Self::Scratch;

    /// Computes a task, each of which is computed once.
    fn compute(&self, task: usize, scratch: &mut Self::Scratch);

    /// Called by a thread after its last task.
    fn end(&self, scratch: Self::Scratch);
}

/// How long the caller looks for the end before it sleeps until then. What others have begun when it has no task left ends within about that
/// time, and a thread that sleeps is woken up 15 to 50 microseconds later on a virtual machine.
const LOOK: Duration = Duration::from_micros(100);

/// Computes all tasks on the calling thread and at most `threads - 1` others; denormals are zero meanwhile.
///
/// # Panics
/// A task does.
pub(crate) fn run<W: SharedWork>(call: &CustomCallFrame<'_>, threads: usize, work: W) {
    let tasks = Arc::new(Tasks {
        count: work.tasks(),
        work,
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        panic: Mutex::new(None),
        caller: std::thread::current(),
    });
    for _ in 1..threads.min(tasks.count) {
        // A thread that comes when all is done finds nothing, and keeps nothing of it until then.
        let late = Arc::downgrade(&tasks);
        let work = move || {
            if let Some(tasks) = late.upgrade() {
                tasks.work();
            }
        };
        if !call.schedule(work) {
            break;
        }
    }
    tasks.work();
    tasks.wait();
}

/// Tasks of whole rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowTasks {
    rows: usize,
    /// Rows of a task.
    each: usize,
}

impl RowTasks {
    /// Tasks of at most `elements` elements, or of one row.
    pub(crate) fn new([rows, columns]: [usize; 2], elements: usize) -> Self {
        let each = (elements / columns).max(1);
        Self { rows, each }
    }

    pub(crate) fn count(self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// The rows of a task.
    pub(crate) fn rows_of(self, task: usize) -> Range<usize> {
        let first = task * self.each;
        first..(first + self.each).min(self.rows)
    }
}

struct Tasks<W> {
    work: W,
    count: usize,
    /// The next task; there is none left when this reaches their number.
    next: AtomicUsize,
    /// Tasks that are computed.
    done: AtomicUsize,
    /// The panic that ended a task.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

impl<W: SharedWork> Tasks<W> {
    /// Computes tasks until all are claimed.
    fn work(&self) {
        let _flushed = FlushDenormals::new();
        let mut scratch = None;
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.count {
                break;
            }
            // All that may panic is caught: the caller waits for each task that was claimed.
            let computed = catch_unwind(AssertUnwindSafe(|| {
                let scratch = scratch.get_or_insert_with(|| self.work.begin());
                self.work.compute(task, scratch);
            }));
            if let Err(panic) = computed {
                *lock(&self.panic) = Some(panic);
            }
            if self.done.fetch_add(1, Ordering::Release) + 1 == self.count {
                self.caller.unpark();
            }
        }
        if let Some(scratch) = scratch {
            self.work.end(scratch);
        }
    }

    /// Returns when all tasks are computed. There is no deadline: the threads that compute them wait for nothing.
    fn wait(&self) {
        let begun = Instant::now();
        while self.done.load(Ordering::Acquire) < self.count {
            match begun.elapsed() < LOOK {
                true => std::thread::yield_now(),
                false => std::thread::park(),
            }
        }
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }
}
