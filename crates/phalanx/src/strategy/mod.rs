//! Where a model is trained: which devices, and later which machines.

mod central_storage;
mod checkpoint;
mod custom_training;
mod default_devices;
mod distribute;
mod function;
mod handle;
mod mesh;
mod mirrored;
mod named;
mod one_device;
mod per_replica;
mod pipeline;
mod replica_cx;
mod replication;
mod state;
mod tpu;

pub use central_storage::CentralStorageStrategy;
pub use custom_training::CustomTraining;
pub use distribute::{
    DistributedBatch, DistributedDataset, DistributedIter, InputContext, Pipelines,
};
pub use function::{Argument, Function, Inputs};
pub use mesh::MeshStrategy;
pub use mirrored::MirroredStrategy;
pub use named::NamedStrategy;
pub use one_device::OneDeviceStrategy;
pub use per_replica::{PerReplica, Reduce, ValueContext};
pub use phalanx_graph::Mesh;
pub use pipeline::PipelineStrategy;
pub use replica_cx::{Gradients, ReplicaCx};
pub use state::{MetricRef, ModelRef, OptimizerRef, State, ValueKind, ValueRef};
pub use tpu::TpuStrategy;

use crate::Result;
use crate::fit::{Compile, Trainer};
use crate::nn::IntoModel;
use crate::replicas::Placement;

/// Where a model is trained; the same program serves every strategy.
///
/// A strategy answers five questions, and [`Placement`] holds the answers: which devices, which rows of a batch each
/// gets, where variables live, how gradients become one, and who saves and logs, which within one process is the process.
/// There is no scope to enter and no strategy in the air, as there is in TensorFlow: the strategy compiles the model.
pub trait Strategy {
    /// The answers.
    fn placement(&self) -> &Placement;

    /// The name in messages: that of the type.
    fn name(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name)
    }

    /// Copies of the model that train together: `R`. Batches are global, so `64 * replicas_in_sync()` is 64 for each.
    fn replicas_in_sync(&self) -> usize {
        self.placement().replicas()
    }

    /// Puts values of the variables on the devices, a saved model's own or first ones from the seed.
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
}

impl Strategy for Box<dyn Strategy> {
    fn placement(&self) -> &Placement {
        (**self).placement()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}
