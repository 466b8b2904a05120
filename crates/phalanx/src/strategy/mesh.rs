//! One model on a mesh of devices.

use phalanx_graph::Mesh;

use super::Strategy;
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, select_devices};
use crate::{Error, Result};

/// Trains one model sharded over a mesh of devices: batches over the axis `data`, if there is one, and
/// variables as their layers [say](crate::nn::LayerSpec::sharded), so that a model may be larger than a device.
///
/// The step is one program on whole tensors, which XLA's partitioner divides: it decides how everything in between is
/// sharded, and where devices must exchange something, such as the sum of the gradients over the data axis. Results equal
/// one device with the whole batch, batch normalization and dropout included. Kernels other than the
/// compiler's own are not used.
///
/// ```no_run
/// use phalanx::fit::Compile;
/// use phalanx::nn::{Dense, Layer, Sequential, relu};
/// use phalanx::strategy::{Mesh, MeshStrategy, Strategy};
///
/// let strategy = MeshStrategy::new(&Mesh::new([("data", 2), ("model", 2)]))?;
/// let model = Sequential::new([64])
///     .add(Dense::new(4096).activation(relu).sharded("kernel", [None, Some("model")]))
///     .add(Dense::new(10).sharded("kernel", [Some("model"), None]));
/// let trainer = strategy.compile(model, Compile::default())?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MeshStrategy {
    placement: Placement,
    mesh: Mesh,
}

impl MeshStrategy {
    /// The axis that batches are sharded over.
    pub const DATA: &'static str = "data";

    /// A mesh of devices of this machine; the CPU is divided into as many as there are places.
    ///
    /// # Errors
    /// When the mesh makes no sense, or the devices do not start; see [`Engine::new`].
    pub fn new(mesh: &Mesh) -> Result<Self> {
        let options = EngineOptions {
            cpu_devices: mesh.size(),
            ..EngineOptions::default()
        };
        mesh.check().map_err(Error::user)?;
        Self::on(&Engine::new(&options)?, mesh)
    }

    /// A mesh of the first devices of an engine that runs already.
    ///
    /// # Errors
    /// When the mesh makes no sense, or has more places than the engine devices.
    pub fn on(engine: &Engine, mesh: &Mesh) -> Result<Self> {
        mesh.check().map_err(Error::user)?;
        let (places, there) = (mesh.size(), engine.devices());
        if places > there {
            return Err(Error::user(format!(
                "{mesh} has {places} places, but there are {there} devices; make the mesh smaller, or divide the CPU into more devices with `EngineOptions::cpu_devices`"
            )));
        }
        let devices: Vec<usize> = (0..places).collect();
        Self::of(Placement::on(engine, &devices)?, mesh)
    }

    /// On the devices of these names, place by place, the last axis counted fastest.
    ///
    /// # Errors
    /// When there are not as many as places, a device is not there or is named twice.
    pub fn devices<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Result<Self> {
        let devices = select_devices(self.placement.engine(), names)?;
        Self::of(self.placement.on_devices(&devices)?, &self.mesh)
    }

    /// The mesh.
    #[must_use]
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    fn of(placement: Placement, mesh: &Mesh) -> Result<Self> {
        let data = mesh.axis(Self::DATA).map(|_| Self::DATA);
        Ok(Self {
            placement: placement.on_mesh(mesh, data)?,
            mesh: mesh.clone(),
        })
    }
}

impl Strategy for MeshStrategy {
    fn placement(&self) -> &Placement {
        &self.placement
    }
}
