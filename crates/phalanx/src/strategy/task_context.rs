//! What a scheduled function has of the worker that runs it: training steps, and batches of the worker's own.

use std::collections::BTreeMap;

use phalanx_ps::{PUSHES_OF_TASK, Task, Work};

use super::distribute::InputContext;
use super::function::{Argument, Function};
use super::per_replica::PerReplica;
use super::state::State;
use crate::data::{Batch, Batches};
use crate::fit::{Logs, Trainer};
use crate::replicas::Placement;
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
    /// The steps by functions, of which some may push nothing.
    pub(super) steps: u64,
    pub(super) datasets: &'c [Box<MakeBatches>],
    pub(super) iterators: &'c mut BTreeMap<usize, Reading>,
}

/// Where a worker is in its batches.
pub(super) struct Reading {
    batches: Batches,
    epoch: u64,
    next: usize,
}

impl Reading {
    /// The next batch that has rows: a worker's part of a batch may have none. Nothing where that goes on and on.
    fn next_batch(&mut self) -> Result<Option<Batch>> {
        let len = self.batches.len();
        if len == Some(0) {
            return Ok(None);
        }
        for _ in 0..=self.batches.most_empty() {
            if len.is_some_and(|len| self.next >= len) {
                (self.epoch, self.next) = (self.epoch + 1, 0);
            }
            let batch = self.batches.get(self.epoch, self.next)?;
            self.next += 1;
            if batch.rows() > 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
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
        reading.next_batch()?.ok_or_else(|| {
            Error::user(format!(
                "the data of worker {} have no batch; give each worker some",
                self.servers.worker()
            ))
        })
    }

    /// A training step on a batch: pulls the variables, computes gradients and pushes them, as an update by itself. The results are
    /// those before it. Where another worker has made this step of this call, the servers have its gradient and take no other.
    ///
    /// # Errors
    /// The trainer is of another strategy; the batch does not fit, the loss is not a number, or the job has failed; the function has
    /// made 65,536 steps.
    pub fn train(&mut self, trainer: &mut Trainer, batch: &Batch) -> Result<Logs> {
        self.check_servers("the trainer", trainer.placement())?;
        let work = self.next_push()?;
        trainer.push_batch(self.servers, &work, batch)
    }

    /// A step by a function of a custom training loop: pulls the models of the state, runs the function, and pushes the gradients that it
    /// [applies](super::ReplicaCx::apply), as an update by itself. The results are those before it. Where another worker has made this
    /// step of this call, the servers have its gradient and take no other. A function that applies no gradients pushes nothing.
    ///
    /// ```no_run
    /// use phalanx::prelude::*;
    /// use phalanx::strategy::{ClusterCoordinator, ParameterServerStrategy};
    ///
    /// let Some(strategy) = ParameterServerStrategy::from_env()? else {
    ///     return Ok(()); // this process was a parameter server
    /// };
    /// let mut state = strategy.state(7)?;
    /// let network = Sequential::new([8, 8, 1]).add(Flatten).add(Dense::new(10));
    /// let model = state.add_model("digits", network)?;
    /// let sgd = state.add_optimizer(Sgd::new(0.01), &[&model])?;
    /// let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    /// let step = strategy.function(move |cx, batch: Inputs| {
    ///     let y = cx.train(&model, &batch.x);
    ///     let loss = cx.mean(&loss.per_example(&batch.y[0], &y[0]), None);
    ///     let gradients = cx.gradients(&loss, &sgd);
    ///     let gradients = cx.all_reduce_gradients(&gradients);
    ///     cx.apply(&sgd, &gradients); // pushed when the function has ended
    ///     [loss]
    /// });
    /// let mut cluster = ClusterCoordinator::new(&strategy, (state, step))?;
    /// let digits = cluster.per_worker_dataset(|_| Ok(datasets::digits()?.batch(32)));
    /// let of_worker = strategy.clone();
    /// let train = cluster.function("train", move |cx, (state, step): &mut (_, _), (): ()| {
    ///     let batch = cx.next_batch(&digits)?;
    ///     let batch = of_worker.distribute_batch(&batch)?;
    ///     let [loss] = cx.step(step, state, &batch)?;
    ///     Ok(of_worker.reduce(Reduce::Sum, &loss, None)?.to_f64()[0])
    /// })?;
    /// if cluster.start()? {
    ///     println!("loss {}", cluster.schedule(&train, &())?.fetch()?);
    /// }
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// Function, state or argument are of another strategy, or do not fit; the job has failed; the function that was scheduled has made
    /// 65,536 steps.
    pub fn step<A: Argument, const N: usize>(
        &mut self,
        function: &mut Function<'_, A, N>,
        state: &mut State,
        given: &A::Given,
    ) -> Result<[PerReplica; N]> {
        self.check_servers("the state", &state.strategy.placement)?;
        let pulled = state.pull()?;
        // A call that is run again draws the same.
        let number = self.servers.step_of(self.task.first_push + self.steps)?;
        state.set_draws(number)?;
        self.steps += 1;
        let (results, sent) = function.run_for_servers(state, given)?;
        if let (Some(pulled), Some((sent, tensors))) = (pulled, sent) {
            let work = self.next_push()?;
            self.servers.push(&work, &pulled, &sent.pushed(&tensors))?;
        }
        Ok(results)
    }

    fn check_servers(&self, what: &str, of: &Placement) -> Result<()> {
        let servers = of.servers();
        if servers.is_some_and(|own| std::ptr::eq(&raw const **own, self.servers)) {
            return Ok(());
        }
        Err(Error::user(format!(
            "{what} is of another strategy than the coordinator; make both with one strategy"
        )))
    }

    /// The next push of this call.
    fn next_push(&mut self) -> Result<Work> {
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
        Ok(work)
    }
}
