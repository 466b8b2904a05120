//! A batch divided over the replicas of this process: the rows of each, and the shapes that its programs see.

use super::compiled_model::CompiledModel;
use super::setup::StepLayout;
use super::step_program::BatchShape;
use crate::data::{Batch, Batches, TrainingData, WorkerPart};
use crate::replicas::BatchPartition;
use crate::{Error, Result};

/// A batch, and how it is divided over the replicas of this process.
pub(super) struct DividedBatch {
    pub(super) batch: Batch,
    pub(super) partition: BatchPartition,
    pub(super) shape: BatchShape,
}

impl CompiledModel {
    /// Refuses examples of any length or size in several processes, unless these data give all of them batches of equal dims in a step.
    pub(super) fn check_lengths(&self, data: Option<&Batches>) -> Result<()> {
        let is_alike = self.setup.workers == 1 || data.is_some_and(Batches::is_by_length);
        match self.setup.model.open_input() {
            Some(open) if !is_alike => Err(Error::User(format!(
                "{open}, and in several processes all have the same in a step; make batches by `bucket_by_sequence_length`, give the input fixed dims and pad or resize all batches to them, or train on one device or on replicas in one process"
            ))),
            _ => Ok(()),
        }
    }

    /// Which rows of a batch of the data are whose, and the shapes of a part; `full` is the number of rows of a full batch like it, where
    /// these have not all as many.
    ///
    /// Where any batch may have lost examples, all that have are filled up: a program for each number of rows would be
    /// compiled otherwise. What processes know of each other's parts says nothing of the replicas of one that trains alone.
    pub(super) fn part_of(
        &self,
        batch: &Batch,
        data: &dyn TrainingData,
        (part, full): (Option<WorkerPart>, Option<usize>),
    ) -> Result<(BatchPartition, BatchShape)> {
        let most = full.unwrap_or_else(|| data.most_rows());
        let with_others = part.filter(|_| self.placement.world().is_some());
        if let Some(WorkerPart { first_row, is_even }) = with_others {
            let is_even = is_even && !data.skips_corrupt();
            let (rows, full) = (batch.rows(), full.unwrap_or_else(|| data.batch_size()));
            let partition = self.placement.worker_partition(rows, full, is_even);
            return self.shaped_for(batch, partition.after(first_row), is_even);
        }
        if !data.skips_corrupt() {
            return self.part(batch, most);
        }
        let partition = self.placement.padded_partition(batch.rows(), most);
        self.shaped(batch, partition)
    }

    /// The partition of a batch of `full` rows or fewer, and the shapes of each replica's part.
    pub(super) fn part(&self, batch: &Batch, full: usize) -> Result<(BatchPartition, BatchShape)> {
        let partition = self.placement.partition(batch.rows(), full);
        self.shaped(batch, partition)
    }

    fn shaped(
        &self,
        batch: &Batch,
        partition: BatchPartition,
    ) -> Result<(BatchPartition, BatchShape)> {
        let is_even = partition.is_even();
        self.shaped_for(batch, partition, is_even)
    }

    /// As [`shaped`](Self::shaped), with arrays that may be padded unless `is_even`.
    pub(super) fn shaped_for(
        &self,
        batch: &Batch,
        partition: BatchPartition,
        is_even: bool,
    ) -> Result<(BatchPartition, BatchShape)> {
        let whole = BatchShape::of(&self.setup, batch)?;
        // Micro-batches get their position among the rows of the batch the same way as padded parts do.
        let is_cut =
            matches!(self.setup.layout, StepLayout::Pipelined(_)) && partition.replicas() > 1;
        let shape = whole.part(
            &partition,
            is_cut || !is_even,
            self.setup.branches_by_size(),
        );
        Ok((partition, shape))
    }
}
