//! One replica divided among the devices of a mesh.

use phalanx_graph::{Mesh, Sharding};

/// One replica divided among the devices of a mesh: batches over one axis, variables as their layers say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeshLayout {
    pub(crate) mesh: Mesh,
    /// The axis that batches are cut over.
    pub(crate) data: Option<String>,
}

impl MeshLayout {
    /// How a tensor whose first dim is the batch is cut.
    pub(crate) fn of_batch(&self, rank: usize) -> Sharding {
        match &self.data {
            Some(axis) => Sharding::rows(axis, rank),
            None => Sharding::replicated(rank),
        }
    }

    /// What the rows of a batch must divide by.
    pub(crate) fn parts(&self) -> usize {
        let axis = self.data.as_deref();
        axis.and_then(|axis| self.mesh.axis(axis)).unwrap_or(1)
    }
}
