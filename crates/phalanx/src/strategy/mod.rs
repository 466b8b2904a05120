//! Strategies: on which devices a model is trained, and how they share the work.

mod all_workers;
mod central_storage;
mod checkpoint;
mod communication;
mod communication_settings;
mod coordinator;
mod custom_training;
mod default_devices;
mod distribute;
mod distributed_batch;
mod function;
mod handle;
mod mesh;
mod mirrored;
mod multi_worker;
mod named;
mod named_fields;
mod one_device;
mod parameter_server;
mod per_replica;
mod pipeline;
mod remote_value;
mod replica_context;
mod replication;
mod state;
mod task_context;
mod tpu;

pub use central_storage::CentralStorageStrategy;
pub use communication::{CommunicationImplementation, CommunicationOptions};
pub use coordinator::{ClusterCoordinator, TaskFunction};
pub use custom_training::CustomTraining;
pub use distribute::{DistributedDataset, DistributedIter, InputContext, Pipelines};
pub use distributed_batch::DistributedBatch;
pub use function::{Argument, Function, Inputs};
pub use mesh::MeshStrategy;
pub use mirrored::MirroredStrategy;
pub use multi_worker::MultiWorkerMirroredStrategy;
pub use named::NamedStrategy;
pub use one_device::OneDeviceStrategy;
pub use parameter_server::{ParameterServerOptions, ParameterServerStrategy};
pub use per_replica::{PerReplica, Reduce, ValueContext};
pub use phalanx_cluster::{Address, Membership};
pub use phalanx_collectives::{Communicator, CommunicatorOptions, Transport};
pub use phalanx_graph::Mesh;
pub use phalanx_ps::{Durability, Mode, Partitioner};
pub use pipeline::PipelineStrategy;
pub use remote_value::{RemoteValue, ScheduleError};
pub use replica_context::{Gradients, ReplicaCx};
pub use state::{MetricRef, ModelRef, OptimizerRef, State, ValueKind, ValueRef};
pub use task_context::{TaskContext, WorkerDataset};
pub use tpu::TpuStrategy;

use crate::Result;
use crate::fit::{Compile, StepEstimator, Trainer};
use crate::nn::IntoModel;
use crate::replicas::Placement;

/// Where a model is trained; the same program serves every strategy.
///
/// A strategy decides which devices compute, which rows of a batch each gets, where variables live and how gradients are
/// reduced; [`Placement`] holds its decisions. There is no scope to enter and no global strategy, as there is in
/// TensorFlow: the strategy compiles the model.
pub trait Strategy {
    /// The devices of the strategy, and how it uses them.
    fn placement(&self) -> &Placement;

    /// The name in messages: the name of the type.
    fn name(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name)
    }

    /// The number of replicas that train together. Batches are global: `64 * replicas_in_sync()` rows are 64 for each. With parameter
    /// servers a batch is one worker's, or, where they step together ([`Mode::Sync`]), the one of all workers.
    fn replicas_in_sync(&self) -> usize {
        self.placement().replicas_in_sync()
    }

    /// Puts the variables on the devices, with the values of a saved model or initialized from the seed.
    ///
    /// Programs are compiled when the first batch shows their shapes.
    ///
    /// # Errors
    /// When the model's layers do not fit together, a setting makes no sense, or a device has not the memory.
    fn compile(&self, model: impl IntoModel, compile: Compile) -> Result<Trainer>
    where
        Self: Sized,
    {
        let (model, values) = model.into_parts()?;
        Trainer::new(self.placement(), model, values, compile)
    }

    /// A training step as [`compile`](Self::compile) would make it, to learn what it takes: no variable gets a value or
    /// memory.
    ///
    /// # Errors
    /// When the model's layers do not fit together, or a setting makes no sense.
    fn estimator(&self, model: impl IntoModel, compile: Compile) -> Result<StepEstimator>
    where
        Self: Sized,
    {
        let (model, _) = model.into_parts()?;
        StepEstimator::new(self.placement(), model, compile)
    }
}

impl Strategy for Box<dyn Strategy> {
    fn placement(&self) -> &Placement {
        (**self).placement()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}
