//! Everything on one device.

use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::fit::{Compile, Trainer};
use crate::nn::IntoModel;

/// Trains on one device, without any reduction: the strategy to begin with.
#[derive(Clone, Debug)]
pub struct OneDeviceStrategy {
    engine: Engine,
}

impl OneDeviceStrategy {
    /// The CPU of this machine.
    ///
    /// # Errors
    /// When the device does not start; see [`Engine::new`].
    pub fn new() -> Result<Self> {
        Self::with(&EngineOptions::default())
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
        let engine = engine.clone();
        Self { engine }
    }

    /// Copies of the model that train together: 1.
    #[must_use]
    pub const fn replicas_in_sync(&self) -> usize {
        1
    }

    /// Puts values of the variables on the device, a saved model's own or first ones from the seed.
    ///
    /// Programs are compiled when the first batch shows their shapes.
    ///
    /// # Errors
    /// When the model's layers do not fit together, a setting makes no sense, or the device has not the memory.
    pub fn compile(&self, model: impl IntoModel, compile: Compile) -> Result<Trainer> {
        let (model, values) = model.into_parts()?;
        Trainer::new(&self.engine, model, values, compile)
    }
}
