//! What training reads: one interface of batches by index and of batches of a stream.

use super::{
    AutoShardPolicy, Batch, BatchIter, Batches, LostBytes, Position, StageTime, StreamBatches,
    StreamIter, Worker, WorkerPart,
};
use crate::{Error, Result};

/// Data to train on: what `Trainer::fit` takes by reference, [`Batches`] or [`StreamBatches`].
pub trait TrainingData {
    /// Number of examples in a full batch.
    fn batch_size(&self) -> usize;

    /// How many batches an epoch has, as far as is known before it is read.
    fn epoch_length(&self) -> EpochLength;

    /// Number of examples behind the batches; `None` where there is no end or it is not known.
    fn examples(&self) -> Option<usize> {
        None
    }

    /// Number of examples in the largest batch there is: fewer than in a full one where there are not as many.
    fn most_rows(&self) -> usize {
        let rows = self.examples().unwrap_or(usize::MAX).max(1);
        self.batch_size().min(rows)
    }

    /// Number of examples left out so far because they are corrupt.
    fn skipped(&self) -> u64 {
        0
    }

    /// Whether corrupt examples are left out, so that any batch may have fewer rows.
    fn skips_corrupt(&self) -> bool {
        false
    }

    /// The bytes of files that were left out when they were opened.
    fn lost(&self) -> Vec<LostBytes> {
        Vec::new()
    }

    /// These data as batches by index; `None` where they can only be read in order.
    fn by_index(&self) -> Option<&Batches> {
        None
    }

    /// One worker's part of the data, sharded automatically unless they are sharded already.
    ///
    /// # Errors
    /// When these data cannot be sharded, or are sharded for other workers.
    fn for_worker(&self, worker: Worker) -> Result<Box<dyn TrainingData>>;

    /// The batches of an epoch from a position on.
    ///
    /// # Errors
    /// When the position is of other data.
    fn batches_from(&self, position: &Position) -> Result<Box<dyn EpochBatches>>;
}

/// The number of batches in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochLength {
    /// This many.
    Known(usize),
    /// There is no end.
    Endless,
    /// The data end, and only reading them shows where.
    Unknown,
}

/// The batches of an epoch in order, with the place that reading has reached.
pub trait EpochBatches: Iterator<Item = Result<Batch>> {
    /// The position after the batches that were handed out; [`Iterator::position`] has the shorter name.
    fn data_position(&self) -> Position;

    /// What each stage has cost so far.
    fn stage_times(&self) -> Vec<StageTime>;

    /// How the rows of the batch handed out last lie in its global batch; `None` where batches are whole.
    ///
    /// # Errors
    /// When no batch was handed out.
    fn worker_part(&self) -> Result<Option<WorkerPart>> {
        Ok(None)
    }

    /// Number of rows of a full batch like the one handed out last; `None` where all full batches have as many.
    fn full_rows(&self) -> Option<usize> {
        None
    }

    /// Passes over batches that have no rows here from now on: for who takes steps alone with data that are divided among several workers.
    fn pass_over_empty(&mut self) {}

    /// A checksum of all examples of the epoch up to the last batch, where every worker reads all of them and so must have the same.
    fn checksum(&self) -> Option<u32> {
        None
    }
}

impl TrainingData for Batches {
    fn batch_size(&self) -> usize {
        self.size()
    }

    fn epoch_length(&self) -> EpochLength {
        self.len().map_or(EpochLength::Endless, EpochLength::Known)
    }

    fn examples(&self) -> Option<usize> {
        self.dataset().len()
    }

    fn most_rows(&self) -> usize {
        self.most_rows_of_all()
    }

    fn by_index(&self) -> Option<&Batches> {
        Some(self)
    }

    fn skipped(&self) -> u64 {
        self.dataset().skipped()
    }

    fn skips_corrupt(&self) -> bool {
        self.dataset().skips_corrupt()
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.dataset().lost()
    }

    fn for_worker(&self, worker: Worker) -> Result<Box<dyn TrainingData>> {
        Ok(Box::new(self.sharded_for(worker)?))
    }

    fn batches_from(&self, position: &Position) -> Result<Box<dyn EpochBatches>> {
        Ok(Box::new(self.read_ahead().iter_at(position)?))
    }
}

impl Batches {
    /// A worker's part of these batches, sharded automatically unless they are sharded already.
    ///
    /// # Errors
    /// When they are sharded for other workers.
    pub(crate) fn sharded_for(&self, worker: Worker) -> Result<Self> {
        let own = self.worker();
        if own.count == 1 {
            return self.shard(worker, AutoShardPolicy::Auto);
        }
        if own == worker {
            return Ok(self.clone());
        }
        Err(Error::User(format!(
            "the data are sharded for {own}, and this process is {worker}; leave the sharding to the strategy, or shard for that worker"
        )))
    }
}

impl TrainingData for StreamBatches {
    fn batch_size(&self) -> usize {
        self.size()
    }

    fn epoch_length(&self) -> EpochLength {
        EpochLength::Unknown
    }

    fn for_worker(&self, worker: Worker) -> Result<Box<dyn TrainingData>> {
        Ok(Box::new(self.shard(worker)?))
    }

    fn batches_from(&self, position: &Position) -> Result<Box<dyn EpochBatches>> {
        Ok(Box::new(self.iter_at(position)?))
    }
}

impl EpochBatches for BatchIter {
    fn data_position(&self) -> Position {
        Self::position(self)
    }

    fn pass_over_empty(&mut self) {
        self.passes_over_empty = true;
    }

    fn stage_times(&self) -> Vec<StageTime> {
        Self::stage_times(self)
    }

    fn worker_part(&self) -> Result<Option<WorkerPart>> {
        Self::worker_part(self)
    }

    fn full_rows(&self) -> Option<usize> {
        Self::full_rows(self)
    }
}

impl EpochBatches for StreamIter {
    fn data_position(&self) -> Position {
        Self::position(self)
    }

    fn pass_over_empty(&mut self) {
        self.passes_over_empty = true;
    }

    fn stage_times(&self) -> Vec<StageTime> {
        Self::stage_times(self)
    }

    fn worker_part(&self) -> Result<Option<WorkerPart>> {
        Ok(Self::worker_part(self))
    }

    fn checksum(&self) -> Option<u32> {
        Some(Self::checksum(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, HostTensor};

    #[test]
    fn the_largest_batch_has_no_more_rows_than_there_are() {
        let x = HostTensor::new([5], &[0.0f32; 5]);
        let data = Dataset::from_arrays(x, Vec::new()).unwrap();
        assert_eq!(data.batch(20_000).most_rows(), 5);
        assert_eq!(data.batch(3).most_rows(), 3);
        assert_eq!(data.repeat_forever().batch(20_000).most_rows(), 20_000);
    }
}
