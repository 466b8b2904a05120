//! Programs whose one replica is divided among the devices of a mesh.

use phalanx_graph::{Graph, Shape, Sharding, Tensor};

use super::step::Setup;
use crate::{Error, Result};

impl Setup {
    /// The graph of a program.
    pub(super) fn graph(&self) -> Graph {
        match &self.mesh_layout {
            Some(mesh_layout) => Graph::with_mesh(&mesh_layout.mesh),
            None => Graph::with_replicas(self.replicas),
        }
    }

    /// How the arrays of the state are cut; slots are as their variables.
    pub(super) fn shardings(&self) -> Vec<Sharding> {
        let variables = self.model.variables();
        let whole = |shape: &Shape| Sharding::replicated(shape.rank());
        let of_variable = |index: usize| {
            let variable = &variables[index];
            let sharding = variable.sharding.clone();
            sharding.unwrap_or_else(|| whole(&variable.shape))
        };
        let mut shardings: Vec<Sharding> = (0..variables.len()).map(of_variable).collect();
        for slot in &self.slots {
            let owner = slot.param.map(|param| self.trained[param]);
            let owner = owner.filter(|&index| variables[index].shape.dims == slot.shape.dims);
            shardings.push(owner.map_or_else(|| whole(&slot.shape), of_variable));
        }
        // The batches seen.
        shardings.push(Sharding::replicated(0));
        shardings
    }

    /// Refuses variables that cannot be cut as their layers say.
    pub(super) fn check_shardings(&self) -> Result<()> {
        let Some(mesh_layout) = &self.mesh_layout else {
            return Ok(());
        };
        let variables = self.model.variables().iter().zip(self.shardings());
        for (variable, sharding) in variables {
            let checked = sharding.check(&variable.shape, &mesh_layout.mesh);
            checked.map_err(|message| {
                Error::user(format!("variable `{}`: {message}", variable.name))
            })?;
        }
        Ok(())
    }

    /// An output of the model, cut as batches are.
    pub(super) fn shard_like_batch(&self, output: &Tensor) -> Tensor {
        match &self.mesh_layout {
            Some(mesh_layout) => output.sharded(&mesh_layout.of_batch(output.rank())),
            None => output.clone(),
        }
    }
}
