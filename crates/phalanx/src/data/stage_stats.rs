//! Time, examples and bytes of each stage of an input pipeline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Batch;
use super::stream_reader::StreamPart;
use crate::Result;

/// The cost of one stage of an input pipeline so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTime {
    /// `examples`, `map`, `prefetch` or `next`.
    pub stage: &'static str,
    /// Batches that went through.
    pub batches: u64,
    /// Examples in them; 0 for stages that wait.
    pub examples: u64,
    /// Bytes of their tensors; 0 for stages that wait.
    pub bytes: u64,
    /// Time spent working.
    pub busy: Duration,
    /// Time spent waiting for another stage or the consumer.
    pub wait: Duration,
}

/// The names of stages.
pub(crate) const STAGES: [&str; 4] = ["examples", "map", "prefetch", "next"];

/// A counter for each stage of one iterator.
pub(super) struct StageStats {
    pub(super) stages: Vec<StageCounter>,
    pub(super) ahead: StageCounter,
    pub(super) next: StageCounter,
}

impl StageStats {
    /// Counters for a pipeline with `maps` batch maps.
    pub(super) fn new(maps: usize) -> Self {
        Self {
            stages: (0..=maps).map(|_| StageCounter::default()).collect(),
            ahead: StageCounter::default(),
            next: StageCounter::default(),
        }
    }

    /// Times the making of a batch of a stream, if there is one more.
    pub(super) fn examples(
        &self,
        make: impl FnOnce() -> Option<Result<StreamPart>>,
    ) -> Option<Result<StreamPart>> {
        let part = self.stages[0].time(make)?;
        if let Ok(part) = &part {
            self.stages[0].count(&part.batch);
        }
        Some(part)
    }

    pub(super) fn times(&self) -> Vec<StageTime> {
        let maps = self.stages[1..].iter().map(|clock| clock.read("map"));
        let mut times = vec![self.stages[0].read("examples")];
        times.extend(maps);
        times.push(self.ahead.read_wait("prefetch"));
        times.push(self.next.read_wait("next"));
        times
    }
}

/// Number and total time of the passes through a stage, and what went through.
#[derive(Default)]
pub(super) struct StageCounter {
    passes: AtomicU64,
    nanoseconds: AtomicU64,
    examples: AtomicU64,
    bytes: AtomicU64,
}

impl StageCounter {
    pub(super) fn time<T>(&self, pass: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let out = pass();
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.passes.fetch_add(1, Ordering::Relaxed);
        out
    }

    /// Times what makes a batch, and counts what is in it.
    pub(super) fn made<E>(
        &self,
        make: impl FnOnce() -> std::result::Result<Batch, E>,
    ) -> std::result::Result<Batch, E> {
        let batch = self.time(make)?;
        self.count(&batch);
        Ok(batch)
    }

    fn count(&self, batch: &Batch) {
        self.examples
            .fetch_add(batch.rows() as u64, Ordering::Relaxed);
        self.bytes
            .fetch_add(batch.byte_len() as u64, Ordering::Relaxed);
    }

    fn read(&self, stage: &'static str) -> StageTime {
        StageTime {
            stage,
            batches: self.passes.load(Ordering::Relaxed),
            examples: self.examples.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            wait: Duration::ZERO,
        }
    }

    fn read_wait(&self, stage: &'static str) -> StageTime {
        let time = self.read(stage);
        StageTime {
            busy: Duration::ZERO,
            wait: time.busy,
            ..time
        }
    }
}
