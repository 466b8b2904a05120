//! Custom training loops: the methods that strategies have for them.

use phalanx_graph::{HostTensor, Tensor};

use super::Strategy;
use super::distribute::{DistributedDataset, InputContext, Pipelines};
use super::distributed_batch::DistributedBatch;
use super::function::{Argument, Function};
use super::handle::StrategyHandle;
use super::per_replica::{PerReplica, Reduce, ValueContext};
use super::replica_context::ReplicaCx;
use super::state::State;
use crate::Result;
use crate::data::{Batch, Batches};

/// What every strategy offers for custom training loops, beside [`compile`](Strategy::compile) and `fit`.
///
/// A loop has a [`State`], which holds models, optimizers, metrics and other values on the devices, and functions that
/// all replicas run together on it and on their part of a batch:
///
/// ```
/// use phalanx::prelude::*;
///
/// let strategy = OneDeviceStrategy::new()?;
/// let mut state = strategy.state(7)?;
/// let model = state.add_model("line", Sequential::new([1]).add(Dense::new(1)))?;
/// let sgd = state.add_optimizer(Sgd::new(0.1), &[&model])?;
/// let loss = Loss::from(MeanSquaredError);
/// let mut step = strategy.function(|cx, batch: Inputs| {
///     let y = cx.train(&model, &batch.x);
///     let loss = cx.loss(&loss, &batch.y[0], &y[0], None);
///     let gradients = cx.gradients(&loss, &sgd);
///     let gradients = cx.all_reduce_gradients(&gradients);
///     cx.apply(&sgd, &gradients);
///     [loss]
/// });
/// let x = HostTensor::new([3, 1], &[0.0f32, 1.0, 2.0]);
/// let y = HostTensor::new([3, 1], &[1.0f32, 3.0, 5.0]);
/// let data = strategy.distribute_dataset(&Dataset::from_arrays(x, y)?.batch(2));
/// let mut losses = Vec::new();
/// for epoch in 0..10 {
///     for batch in data.epoch(epoch) {
///         let [loss] = step.call(&mut state, &batch?)?;
///         losses.push(strategy.reduce(Reduce::Sum, &loss, None)?.f32s()[0]);
///     }
/// }
/// assert!(losses[19] < 0.1 * losses[0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// With [`MultiWorkerMirroredStrategy`](super::MultiWorkerMirroredStrategy) every process runs the same loop: it makes the same calls in
/// the same order, those among them that read the state, `reduce` and `gather`. The first process gives models and values of your own
/// their first values; [`State::save`] writes in the first process alone. Where a process is lost, the calls of the others end
/// with an error that names it; they go on from a checkpoint.
///
/// With [`ParameterServerStrategy`](super::ParameterServerStrategy) the models of a state and its one optimizer are on the servers, and
/// metrics and values of your own are each worker's. A function that applies gradients runs as a step of a function that a
/// [`ClusterCoordinator`](super::ClusterCoordinator) schedules: [`TaskContext::step`](super::TaskContext::step). Of
/// values that the host sets the ones of the first worker count.
pub trait CustomTraining: Strategy {
    /// A state without models yet; first values and random numbers come from the seed.
    ///
    /// # Errors
    /// When the device fails.
    fn state(&self, seed: u64) -> Result<State> {
        State::new(handle(self), seed)
    }

    /// A function of [`ReplicaCx`] and one argument (`()`, [`Tensor`], [`Inputs`](super::Inputs), ..) with `N` results,
    /// which all replicas run together.
    ///
    /// `body` is traced when the function is called with arguments of new shapes: it describes the step of one replica.
    fn function<'f, A: Argument, const N: usize>(
        &self,
        body: impl Fn(&mut ReplicaCx<'_>, A) -> [Tensor; N] + 'f,
    ) -> Function<'f, A, N> {
        Function::new(handle(self), body)
    }

    /// Global batches that are divided over the replicas as they are read: each gets as many rows as TensorFlow's
    /// rebatch gives it, or the strategy's shares do; where the parts are not equal, all are filled up to the largest. Each of several
    /// processes reads its part, as in `fit`.
    fn distribute_dataset(&self, batches: &Batches) -> DistributedDataset {
        DistributedDataset::global(&handle(self), batches)
    }

    /// Batches that `pipeline` makes for one replica each, which are not divided: shard by the context and batch by
    /// [`InputContext::per_replica_batch_size`]. Parts of different sizes are filled up to the largest.
    ///
    /// Each of several processes makes the pipelines of its own replicas; an epoch has as many steps as the longest of them.
    ///
    /// A warning says so when two pipelines of a process begin with the same batch.
    ///
    /// # Errors
    /// When `pipeline` fails, or the first batch of one of several pipelines does.
    fn distribute_datasets_from_function(
        &self,
        pipelines: Pipelines,
        pipeline: impl FnMut(InputContext) -> Result<Batches>,
    ) -> Result<DistributedDataset> {
        DistributedDataset::from_function(&handle(self), pipelines, pipeline)
    }

    /// One global batch, divided over the replicas; each of several processes is given the whole batch.
    ///
    /// # Errors
    /// When it has no rows or a tensor has other rows, or a device has not the memory.
    fn distribute_batch(&self, batch: &Batch) -> Result<DistributedBatch> {
        DistributedBatch::of_whole(&handle(self), batch)
    }

    /// A value for each replica, for functions that take a tensor; each of several processes makes the values of its own replicas.
    ///
    /// # Errors
    /// When a device has not the memory.
    fn distribute_values_from_function(
        &self,
        mut value: impl FnMut(ValueContext) -> HostTensor,
    ) -> Result<PerReplica> {
        let strategy = handle(self);
        let num_replicas_in_sync = strategy.replicas();
        let first = strategy.first_replica();
        let values = (first..first + strategy.local_replicas()).map(|replica_id| {
            value(ValueContext {
                replica_id,
                num_replicas_in_sync,
            })
        });
        PerReplica::put(&strategy, &values.collect::<Vec<_>>(), false)
    }

    /// The same value for each replica.
    ///
    /// # Errors
    /// When a device has not the memory.
    fn broadcast(&self, value: &HostTensor) -> Result<PerReplica> {
        let strategy = handle(self);
        let values = vec![value.clone(); strategy.local_replicas()];
        PerReplica::put(&strategy, &values, true)
    }

    /// Reduces the values of all replicas to one, and over a dim if it is given. A mean divides by the size of that dim:
    /// over dim 0 every example counts once, however the batch was divided.
    ///
    /// # Errors
    /// When the value is of another strategy, the replicas' shapes differ (in other dims than that one), there is no such
    /// dim, the reduction is none of such elements, or the device fails; when rows may only fill up the batch and the
    /// function did not say so, see [`PerReplica::local_results`].
    fn reduce(&self, how: Reduce, value: &PerReplica, dim: Option<usize>) -> Result<HostTensor> {
        value.reduce(&handle(self), how, dim)
    }

    /// The values of all replicas joined along a dim, in their order.
    ///
    /// # Errors
    /// When the value is of another strategy or a scalar, there is no such dim, other dims differ between replicas, or
    /// the device fails; when rows may only fill up the batch, as for [`reduce`](Self::reduce).
    fn gather(&self, value: &PerReplica, dim: usize) -> Result<HostTensor> {
        value.gather(&handle(self), dim)
    }
}

impl<S: Strategy> CustomTraining for S {}

fn handle(strategy: &(impl Strategy + ?Sized)) -> StrategyHandle {
    StrategyHandle::new(strategy.name(), strategy.placement().clone())
}
