//! Everything on one device.

use super::{Strategy, default_devices};
use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, select_devices};

/// Trains on one device, without any reduction: the strategy to begin with.
#[derive(Clone, Debug)]
pub struct OneDeviceStrategy(Placement);

impl OneDeviceStrategy {
    /// The first GPU or TPU core of this machine, where a plugin for it is found, else the CPU, as for
    /// [`MirroredStrategy::new`](super::MirroredStrategy::new).
    ///
    /// # Errors
    /// When the device does not start; see [`Engine::new`].
    pub fn new() -> Result<Self> {
        Ok(Self::on(&default_devices::engine()?))
    }

    /// The first device of an engine with these options.
    ///
    /// # Errors
    /// When the device does not start; see [`Engine::new`].
    pub fn with(options: &EngineOptions) -> Result<Self> {
        Ok(Self::on(&Engine::new(options)?))
    }

    /// The first device of an engine that runs already.
    #[must_use]
    pub fn on(engine: &Engine) -> Self {
        Self(Placement::first(engine))
    }

    /// The device of this name, such as `cpu:0` or `/gpu:1`.
    ///
    /// # Errors
    /// When the engine has no such device; the error lists those it has.
    pub fn device(engine: &Engine, name: &str) -> Result<Self> {
        let devices = select_devices(engine, [name])?;
        Ok(Self(Placement::on(engine, &devices)?))
    }
}

impl Strategy for OneDeviceStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}
