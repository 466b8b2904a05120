//! Variables on one device, computation on several.

use super::Strategy;
use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, Reduction, select_devices};

/// Trains with one copy of the variables and the optimizer's state, on a device that need not compute: the memory of
/// the host, say, for a model whose state does not fit the others.
///
/// In each step the variables are copied to the computing devices, which add their gradients; the sum is brought to the
/// variables and applied there. The results are those of [`MirroredStrategy`](super::MirroredStrategy).
#[derive(Clone, Debug)]
pub struct CentralStorageStrategy(Placement);

impl CentralStorageStrategy {
    /// All devices of this machine compute, and as in TensorFlow the CPU has the variables, or the computing device
    /// itself when there is but one.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn new() -> Result<Self> {
        Self::with(&EngineOptions::default())
    }

    /// As [`new`](Self::new), with the devices of an engine with these options.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn with(options: &EngineOptions) -> Result<Self> {
        let engine = Engine::new(options)?;
        if engine.kind() == "cpu" || engine.devices() == 1 {
            return Ok(Self::on(&engine));
        }
        let host = Engine::new(&EngineOptions {
            platform: EngineOptions::default().platform,
            plugin: None,
            ..options.clone()
        })?;
        Ok(Self::on(&engine).parameters(&host, 0))
    }

    /// All devices of an engine that runs already compute, and the first has the variables.
    #[must_use]
    pub fn on(engine: &Engine) -> Self {
        Self(Placement::all(engine).with_parameters(engine, 0))
    }

    /// The devices of these names alone compute, replica 0 on the first: see [`select_devices`] for how they are spelled.
    ///
    /// # Errors
    /// When a device is not there, is named twice, or none is named; the error lists those that are there.
    pub fn compute_devices<N: AsRef<str>>(
        self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self> {
        let devices = select_devices(self.0.engine(), names)?;
        Ok(Self(self.0.on_devices(&devices)?))
    }

    /// The device of this name, of the same engine, has the variables.
    ///
    /// # Errors
    /// When the device is not there; the error lists those that are.
    pub fn parameter_device(self, name: &str) -> Result<Self> {
        let device = select_devices(self.0.engine(), [name])?[0];
        let engine = self.0.engine().clone();
        Ok(self.parameters(&engine, device))
    }

    /// A device, by its position, of this engine has the variables: another one's than those that compute, for instance.
    #[must_use]
    pub fn parameters(self, engine: &Engine, device: usize) -> Self {
        Self(self.0.with_parameters(engine, device))
    }

    /// With this way of adding gradients.
    #[must_use]
    pub fn reduction(self, reduction: Reduction) -> Self {
        Self(self.0.with_reduction(reduction))
    }

    /// With parts of each batch in proportion to these numbers, one for each computing device.
    ///
    /// # Errors
    /// When there is not one for each, or all are 0.
    pub fn shares(self, shares: &[u32]) -> Result<Self> {
        Ok(Self(self.0.with_shares(shares)?))
    }
}

impl Strategy for CentralStorageStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}
