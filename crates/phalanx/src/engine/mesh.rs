//! Programs divided among the devices of a mesh: their tensors in parts.

use phalanx_graph::{HostTensor, Mesh, Program, Shape, Sharding};
use phalanx_pjrt::Buffer;

use super::Engine;
use crate::{Error, Result};

impl Engine {
    /// Copies the parts of a tensor to the devices of a mesh, by their positions in this engine: a buffer for each.
    ///
    /// # Errors
    /// [`Error::User`] when the sharding does not fit the tensor and the mesh; [`Error::Device`] when the plugin refuses.
    pub fn put_parts(
        &self,
        devices: &[usize],
        mesh: &Mesh,
        sharding: &Sharding,
        tensor: &HostTensor,
    ) -> Result<Vec<Buffer>> {
        sharding.check(tensor.shape(), mesh).map_err(Error::user)?;
        let parts = devices.iter().enumerate();
        parts
            .map(|(place, &device)| self.put(device, &sharding.part(tensor, mesh, place)))
            .collect()
    }

    /// Reads a tensor of a known shape back from its parts, in the order of the mesh, waiting for them.
    ///
    /// # Errors
    /// As for [`put_parts`](Self::put_parts) and [`get`](Self::get).
    pub fn get_parts(
        &self,
        parts: &[&Buffer],
        mesh: &Mesh,
        sharding: &Sharding,
        shape: &Shape,
    ) -> Result<HostTensor> {
        sharding.check(shape, mesh).map_err(Error::user)?;
        let local = sharding.local(shape, mesh);
        // What is whole on every device is read from one.
        let needed = if local == *shape { 1 } else { parts.len() };
        let read = |part: &&Buffer| self.get(part, &local);
        let parts: Vec<HostTensor> = parts.iter().take(needed).map(read).collect::<Result<_>>()?;
        Ok(sharding.whole(shape, mesh, &parts))
    }
}

/// Refuses a program for more devices than there are.
pub(super) fn check(engine: &Engine, name: &str, program: &Program) -> Result<()> {
    let (needed, there) = (program.devices(), engine.client().devices().len());
    match &program.mesh {
        Some(mesh) if needed > there => Err(Error::user(format!(
            "{name} is for the {needed} devices of {mesh}, but there are {there}; make the mesh smaller, or divide the CPU into more devices with `EngineOptions::cpu_devices`"
        ))),
        _ => Ok(()),
    }
}
