//! What a scheduled function has of the worker that runs it: training steps, and batches of the worker's own.

use std::collections::BTreeMap;

use phalanx_ps::{PUSHES_OF_TASK, Task, Work};

use super::distribute::InputContext;
use crate::data::{Batch, Batches};
use crate::fit::{Logs, Trainer};
use crate::servers::Servers;
use crate::{Error, Result};

/// Data of which each worker has batches of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerDataset {
    pub(super) index: usize,
}

/// Makes the batches of a worker.
pub(super) type MakeBatches = dyn Fn(InputContext) -> Result<Batches>;

/// What a function has of the worker that runs it.
pub struct TaskContext<'c> {
    pub(super) servers: &'c Servers,
    pub(super) task: &'c Task,
    pub(super) pushes: u64,
    pub(super) datasets: &'c [Box<MakeBatches>],
    pub(super) iterators: &'c mut BTreeMap<usize, Reading>,
}

/// Where a worker is in its batches.
pub(super) struct Reading {
    batches: Batches,
    epoch: u64,
    next: usize,
}

impl std::fmt::Debug for TaskContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskContext of {:?}", self.task)
    }
}

impl TaskContext<'_> {
    /// The number of this worker, from 1: worker 0 schedules.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.servers.worker()
    }

    /// The number of the call, from 0: equal when a lost worker's call is run again.
    #[must_use]
    pub const fn call(&self) -> u64 {
        self.task.number
    }

    /// The next batch of this worker's own data, epoch after epoch.
    ///
    /// # Errors
    /// The data cannot be made or read, or have no batch.
    pub fn next_batch(&mut self, dataset: &WorkerDataset) -> Result<Batch> {
        let context = InputContext {
            num_input_pipelines: self.servers.workers() - 1,
            input_pipeline_id: self.servers.worker() - 1,
            num_replicas_in_sync: 1,
        };
        if !self.iterators.contains_key(&dataset.index) {
            let make = self.datasets.get(dataset.index);
            let make = make.ok_or_else(|| Error::user("the data belong to another coordinator"))?;
            let reading = Reading {
                batches: make(context)?,
                epoch: 0,
                next: 0,
            };
            self.iterators.insert(dataset.index, reading);
        }
        let reading = self.iterators.get_mut(&dataset.index);
        let reading = reading.ok_or_else(|| Error::Bug("data that are not kept".into()))?;
        let len = reading.batches.len();
        if len == Some(0) {
            return Err(Error::user(format!(
                "the data of worker {} have no batch; give each worker some",
                self.servers.worker()
            )));
        }
        if len.is_some_and(|len| reading.next >= len) {
            (reading.epoch, reading.next) = (reading.epoch + 1, 0);
        }
        let batch = reading.batches.get(reading.epoch, reading.next)?;
        reading.next += 1;
        Ok(batch)
    }

    /// A training step on a batch: pulls the variables, computes gradients and pushes them, as an update by itself. The results are
    /// those before it. Where another worker has made this step of this call, the servers have its gradient and take no other.
    ///
    /// # Errors
    /// The trainer is of another strategy; the batch does not fit, the loss is not a number, or the job has failed; the function has
    /// made 65,536 steps.
    pub fn train(&mut self, trainer: &mut Trainer, batch: &Batch) -> Result<Logs> {
        let own = trainer.placement().servers();
        if !own.is_some_and(|own| std::ptr::eq(&raw const **own, self.servers)) {
            return Err(Error::user(
                "the trainer was compiled by another strategy; compile it by the one of the coordinator",
            ));
        }
        if self.pushes == PUSHES_OF_TASK {
            return Err(Error::user(format!(
                "a function makes at most {PUSHES_OF_TASK} steps; schedule more functions of fewer"
            )));
        }
        let work = Work {
            id: self.task.first_push + self.pushes,
            item: self.pushes,
            part: 0,
            parts: 1,
            done_below: self.task.done_below,
            version: 0,
            commit: None,
            clock: None,
        };
        self.pushes += 1;
        trainer.push_batch(self.servers, &work, batch)
    }
}
