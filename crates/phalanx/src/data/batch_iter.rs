//! The iterator over the batches of an epoch, made here or on prefetch threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::batches::all_corrupt;
use super::prefetch::Prefetcher;
use super::stage_stats::StageStats;
use super::{Batch, Batches, Position, Segment, StageTime, Worker, WorkerPart};
use crate::{Error, Result};

impl Batches {
    /// The batches of an epoch from batch `start` on: the tail of what `start` 0 gives.
    ///
    /// With [`prefetch`](Self::prefetch) a thread starts at once. It ends with the epoch or the iterator, whichever
    /// is first; dropping the iterator waits at most for the batch in the making.
    /// After an error the iterator ends. A batch size of 0 gives one error.
    #[must_use]
    pub fn iter(&self, epoch: u64, start: usize) -> BatchIter {
        let stage_stats = Arc::new(self.stage_stats());
        let maker = BatchLoader {
            len: if self.size() == 0 { None } else { self.len() },
            batches: self.clone(),
            largest: Arc::clone(&self.largest),
            epoch,
            next: start,
            stage_stats: Arc::clone(&stage_stats),
        };
        let maker = match self.ahead.filter(|ahead| ahead.depth > 0) {
            None => LoaderOrigin::Here(maker),
            Some(ahead) => LoaderOrigin::Threads(Prefetcher::start(maker, ahead)),
        };
        BatchIter {
            maker,
            stage_stats,
            ended: false,
            passes_over_empty: self.sharding.worker.count == 1,
            batches: self.clone(),
            most_empty: self.most_empty(),
            past: Vec::new(),
            segment: Segment {
                steps: start,
                ..self.segment()
            },
            epoch,
        }
    }
}

/// Makes the batches of an epoch, each by its index.
pub(super) struct BatchLoader {
    batches: Batches,
    len: Option<usize>,
    epoch: u64,
    pub(super) next: usize,
    /// Bytes of the largest batch so far.
    pub(super) largest: Arc<AtomicUsize>,
    pub(super) stage_stats: Arc<StageStats>,
}

impl BatchLoader {
    pub(super) fn has(&self, i: usize) -> bool {
        i < self.len.unwrap_or(usize::MAX)
    }

    pub(super) fn make(&self, i: usize) -> Result<Batch> {
        self.batches.make(self.epoch, i, &self.stage_stats)
    }
}

impl Iterator for BatchLoader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if !self.has(self.next) {
            return None;
        }
        self.next += 1;
        Some(self.make(self.next - 1))
    }
}

/// The batches of one epoch, in order; see [`Batches::iter`].
pub struct BatchIter {
    maker: LoaderOrigin,
    stage_stats: Arc<StageStats>,
    ended: bool,
    batches: Batches,
    /// Whether a batch without rows is no step, as it is where several workers take each step together.
    pub(super) passes_over_empty: bool,
    /// The most consecutive batches without rows that are passed over.
    most_empty: usize,
    pub(super) past: Vec<Segment>,
    pub(super) segment: Segment,
    epoch: u64,
}

enum LoaderOrigin {
    Here(BatchLoader),
    Threads(Prefetcher),
}

impl BatchIter {
    /// The position after the batches that were handed out: what [`Batches::iter_at`] goes on from.
    #[must_use]
    pub fn position(&self) -> Position {
        let segments = self
            .past
            .iter()
            .chain(Some(&self.segment))
            .copied()
            .collect();
        let epoch = self.epoch;
        Position { epoch, segments }
    }

    /// How the rows of the batch handed out last lie in its global batch; `None` where batches are whole.
    ///
    /// # Errors
    /// When no batch was handed out.
    pub(crate) fn worker_part(&self) -> Result<Option<WorkerPart>> {
        match self.segment.steps.checked_sub(1) {
            Some(last) => self.batches.worker_part(self.epoch, last),
            None => Ok(None),
        }
    }

    /// Number of rows of a full batch like the one handed out last, where batches are by length.
    pub(crate) fn full_rows(&self) -> Option<usize> {
        let last = self.segment.steps.checked_sub(1)?;
        self.batches.full_rows(self.epoch, last)
    }

    /// The batches, each with the number of rows of a full one like it.
    pub(crate) fn with_full_rows(mut self) -> impl Iterator<Item = Result<(Batch, usize)>> {
        std::iter::from_fn(move || {
            let batch = self.next()?;
            let most = || self.batches.most_rows_of_all();
            Some(batch.map(|batch| (batch, self.full_rows().unwrap_or_else(most))))
        })
    }

    /// The same without batches that have no rows here, for who takes steps alone with the part of a worker.
    pub(crate) fn passing_over_empty(mut self, passes: bool) -> Self {
        self.passes_over_empty |= passes;
        self
    }

    /// What each stage has cost so far, in the order of the data: `examples` (source and example maps), each batch
    /// `map`, `prefetch` (waiting for room: the consumer is slower), `next` (the consumer waiting: the input is slower).
    #[must_use]
    pub fn stage_times(&self) -> Vec<StageTime> {
        self.stage_stats.times()
    }
}

impl Iterator for BatchIter {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.ended {
            return None;
        }
        let mut empty = 0;
        loop {
            let batch = self.stage_stats.next.time(|| match &mut self.maker {
                LoaderOrigin::Here(maker) => maker.next(),
                LoaderOrigin::Threads(prefetched) => prefetched.next(),
            });
            self.ended = !matches!(batch, Some(Ok(_)));
            self.segment.steps += usize::from(!self.ended);
            let is_empty = matches!(&batch, Some(Ok(batch)) if batch.rows() == 0);
            if !is_empty || !self.passes_over_empty {
                return batch;
            }
            self.segment.left_out += 1;
            empty += 1;
            if empty > self.most_empty {
                self.ended = true;
                return Some(Err(match self.batches.worker().count {
                    1 => all_corrupt(),
                    _ => none_here(&self.batches),
                }));
            }
        }
    }
}

/// The error of data of which a worker has nothing.
fn none_here(batches: &Batches) -> Error {
    let Worker { index, count, .. } = batches.worker();
    Error::User(format!(
        "worker {index} of {count} has no row of any batch: each is divided among the workers, and is too small, or its examples are corrupt; use larger batches or fewer workers"
    ))
}

impl fmt::Debug for BatchIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchIter {:?}", self.stage_times())
    }
}
