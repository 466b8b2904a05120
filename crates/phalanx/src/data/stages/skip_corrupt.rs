//! `skip_corrupt`: corrupt examples are left out and counted.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Sharded, Stage, gather_one_by_one};
use crate::data::buffer_pool::BufferPool;
use crate::data::{Batch, Dataset, Example, Worker};
use crate::{Error, Result};

struct SkipCorrupt {
    input: Dataset,
    /// Shared with the same stage over the files of one worker.
    skipped: Arc<AtomicU64>,
}

impl Dataset {
    /// Leaves out corrupt data ([`Error::Data`]) of the stages before, and counts them: a batch has fewer rows then.
    ///
    /// Positions stay as they are, so sharding and resuming are exact. Without this stage the first corrupt example is an
    /// error.
    #[must_use]
    pub fn skip_corrupt(&self) -> Self {
        let input = self.clone();
        let skipped = Arc::new(AtomicU64::new(0));
        Self::of(SkipCorrupt { input, skipped })
    }
}

impl Stage for SkipCorrupt {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn read(&self, epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        match self.input.read_counting_skips(epoch, i, count) {
            Err(Error::Data { .. }) => {
                self.skipped.fetch_add(count, Ordering::Relaxed);
                Ok(None)
            }
            read => read,
        }
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        match self.input.gather(epoch, indices, pool) {
            Err(Error::Data { .. }) => gather_one_by_one(self, epoch, indices, pool),
            gathered => gathered,
        }
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        self.input.identity(epoch, i)
    }

    fn shard_by_file(&self, worker: Worker) -> Sharded {
        let input = self.input.shard_by_file(worker)?;
        let skipped = Arc::clone(&self.skipped);
        Ok(Dataset::of(Self { input, skipped }))
    }

    fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed) + self.input.skipped()
    }

    fn skips_corrupt(&self) -> bool {
        true
    }
}
