//! Stages that only change which example is read, by arithmetic: for datasets, and for batches too.

use std::slice::from_ref;

use super::{Location, Sharded, Stage, gather_located};
use crate::Result;
use crate::data::buffer_pool::BufferPool;
use crate::data::shard::NotShardable;
use crate::data::{Batch, Dataset, Worker};

/// A change of order or length: which index of the input an index of the output reads.
pub(in crate::data) trait Reindex: Send + Sync + 'static {
    /// The length of the output from the length of the input; `None` is endless.
    fn len(&self, input: Option<usize>) -> Option<usize>;

    /// The epoch and index of the input that output index `i` of `epoch` reads.
    fn locate(&self, input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)>;

    /// Window length guaranteed to contain every example at least once, from the input's window length.
    fn coverage_window(&self, input: usize) -> usize {
        input
    }

    /// Whether it means the same over the files of one worker as over all files.
    fn shards_by_file(&self) -> bool {
        false
    }

    /// Whether the order changes with the epoch.
    fn shuffles(&self) -> bool {
        false
    }

    /// Whether examples come more than once.
    fn repeats(&self) -> bool {
        false
    }
}

/// A dataset read in another order.
struct Reindexed<R> {
    input: Dataset,
    /// Asked for once: a dataset keeps its length.
    input_len: Option<usize>,
    reindex: R,
}

impl Dataset {
    pub(in crate::data) fn reindexed(&self, reindex: impl Reindex + Copy) -> Self {
        Self::of(Reindexed {
            input_len: self.len(),
            input: self.clone(),
            reindex,
        })
    }
}

impl<R: Reindex + Copy> Stage for Reindexed<R> {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn len(&self) -> Option<usize> {
        self.reindex.len(self.input_len)
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        let (epoch, index) = self.reindex.locate(self.input_len, epoch, i)?;
        Ok(Location {
            input: 0,
            epoch,
            index,
        })
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        gather_located(self, epoch, indices, pool)
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        let at = self.locate(epoch, i)?;
        self.input.identity(at.epoch, at.index)
    }

    fn coverage_window(&self) -> usize {
        self.reindex.coverage_window(self.input.coverage_window())
    }

    fn shard_by_file(&self, worker: Worker) -> Sharded {
        if self.reindex.shards_by_file() {
            return Ok(self.input.shard_by_file(worker)?.reindexed(self.reindex));
        }
        Err(NotShardable::Unfit(
            "take or skip counts the examples of all files".into(),
        ))
    }

    fn shuffles(&self) -> bool {
        self.reindex.shuffles() || self.input.stage().shuffles()
    }

    fn repeats(&self) -> bool {
        self.reindex.repeats() || self.input.stage().repeats()
    }
}
