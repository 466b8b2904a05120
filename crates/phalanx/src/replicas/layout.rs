//! How the model lies on the devices of a placement.

use phalanx_graph::{Mesh, Sharding};

use super::placement::Placement;
use crate::engine::Engine;

/// How the model lies on the devices of one process.
///
/// The four cases exclude each other, and every question that depends on the kind of strategy is answered by a `match` on
/// them. Only `Replicated` and `ParameterDevice` have several replicas; training with several processes multiplies
/// replicas and changes nothing here.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// A replica on each device, with its own copy of the variables.
    Replicated,
    /// A replica on each device; one further device holds the variables and updates them.
    ParameterDevice(ParameterDevice),
    /// One model, sharded over a mesh of devices by XLA's partitioner.
    Sharded(MeshLayout),
    /// One model, cut into stages with a device each, through which micro-batches flow.
    Pipelined(Stages),
}

impl Layout {
    pub(crate) const fn is_replicated(&self) -> bool {
        matches!(self, Self::Replicated)
    }

    /// Whether both put the same things on the same devices.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Replicated, Self::Replicated) => true,
            (Self::ParameterDevice(a), Self::ParameterDevice(b)) => {
                a.engine.is_same(&b.engine) && a.device == b.device
            }
            (Self::Sharded(a), Self::Sharded(b)) => a == b,
            (Self::Pipelined(a), Self::Pipelined(b)) => a == b,
            _ => false,
        }
    }
}

/// The device that holds the variables, which may belong to another engine than the replicas.
#[derive(Clone, Debug)]
pub(crate) struct ParameterDevice {
    pub(crate) engine: Engine,
    /// The position of the device in that engine.
    pub(crate) device: usize,
}

/// One model sharded over a mesh: batches over one axis, variables as their layers say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeshLayout {
    pub(crate) mesh: Mesh,
    /// The axis that batches are sharded over.
    pub(crate) data: Option<String>,
}

impl MeshLayout {
    /// The sharding of a tensor whose first dim is the batch.
    pub(crate) fn of_batch(&self, rank: usize) -> Sharding {
        match &self.data {
            Some(axis) => Sharding::rows(axis, rank),
            None => Sharding::replicated(rank),
        }
    }

    /// The size of the data axis: the rows of a batch are padded to a multiple of it.
    pub(crate) fn data_parts(&self) -> usize {
        let axis = self.data.as_deref();
        axis.and_then(|axis| self.mesh.axis(axis)).unwrap_or(1)
    }
}

/// One model in pipeline stages, a device each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stages {
    /// The first layer of every stage but the first, where the user names them.
    pub(crate) starts: Option<Vec<String>>,
    /// The number of micro-batches that a training batch is cut into.
    pub(crate) micro_batches: usize,
}

/// This process among others, which mirrored variables or parameter servers bring together.
impl Placement {
    /// The number of this process among those that train together.
    pub(crate) fn worker(&self) -> usize {
        match (self.servers(), self.world()) {
            (Some(servers), _) => servers.worker(),
            (None, Some(world)) => world.worker(),
            (None, None) => 0,
        }
    }

    /// The number of copies whose gradients make an update together: with parameter servers all workers' where they step together, else
    /// this worker's.
    pub(crate) fn replicas_in_sync(&self) -> usize {
        let together = self
            .servers()
            .filter(|servers| servers.mode().backup_workers().is_some());
        self.replicas() * together.map_or(1, |servers| servers.workers())
    }
}
