//! `concatenate`: one dataset after another.

use super::{Location, Sharded, Stage, gather_located};
use crate::data::buffer_pool::BufferPool;
use crate::data::random_key::random_key;
use crate::data::shard::NotShardable;
use crate::data::{Batch, Dataset, Worker};
use crate::{Error, Result};

/// Keep the identities of the two datasets apart, also where one of them is of two itself.
const SEEDS: [u64; 2] = [0, 1];

struct Concatenation {
    inputs: [Dataset; 2],
    first_len: usize,
}

impl Dataset {
    /// The examples of this dataset, then the examples of `next`.
    ///
    /// # Errors
    /// When this dataset is endless, so that `next` would never be reached.
    pub fn concatenate(&self, next: &Self) -> Result<Self> {
        let Some(first_len) = self.len() else {
            return Err(Error::user(
                "cannot concatenate after an endless dataset: the second would never be read; \
                 put repeat_forever after concatenate",
            ));
        };
        let inputs = [self.clone(), next.clone()];
        Ok(Self::of(Concatenation { inputs, first_len }))
    }
}

impl Stage for Concatenation {
    fn inputs(&self) -> &[Dataset] {
        &self.inputs
    }

    fn len(&self) -> Option<usize> {
        Some(self.first_len.saturating_add(self.inputs[1].len()?))
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        let (input, index) = match i.checked_sub(self.first_len) {
            None => (0, i),
            Some(i) => (1, i),
        };
        Ok(Location {
            input,
            epoch,
            index,
        })
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        gather_located(self, epoch, indices, pool)
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        let at = self.locate(epoch, i)?;
        let (epoch, id) = self.inputs[at.input].identity(epoch, at.index)?;
        Ok((epoch, random_key(SEEDS[at.input], 0, id)))
    }

    fn coverage_window(&self) -> usize {
        let inputs = self.inputs.iter().map(Dataset::coverage_window);
        inputs.fold(0, usize::saturating_add)
    }

    fn shard_by_file(&self, worker: Worker) -> Sharded {
        let [first, second] = &self.inputs;
        let (first, second) = (first.shard_by_file(worker)?, second.shard_by_file(worker)?);
        first
            .concatenate(&second)
            .map_err(|error| NotShardable::Unfit(error.to_string()))
    }
}
