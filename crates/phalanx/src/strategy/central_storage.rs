//! Variables on one device, computation on several.

use phalanx_pjrt::Platform;

use super::{Strategy, default_devices};
use crate::Result;
use crate::engine::{Engine, EngineOptions, GpuOptions};
use crate::replicas::{Placement, Reduction, device_kind, select_devices};

/// Trains with one copy of the variables and the optimizer's state, on a device that need not compute: the memory of
/// the host, say, for a model whose state does not fit the others.
///
/// In each step the variables are copied to the computing devices, which add their gradients; the sum is brought to the
/// variables and applied there. The results equal [`MirroredStrategy`](super::MirroredStrategy).
#[derive(Clone, Debug)]
pub struct CentralStorageStrategy(Placement);

impl CentralStorageStrategy {
    /// All devices of this machine compute (its GPUs or TPU cores, where a plugin for them is found, else the CPU), and as in TensorFlow the CPU has the variables, or the computing device
    /// itself when there is but one.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn new() -> Result<Self> {
        Self::on(&default_devices::engine()?).usual_parameters(&EngineOptions::default())
    }

    /// As [`new`](Self::new), with the devices of an engine with these options.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn with(options: &EngineOptions) -> Result<Self> {
        Self::on(&Engine::new(options)?).usual_parameters(options)
    }

    /// With the variables where TensorFlow has them.
    pub(super) fn usual_parameters(self, options: &EngineOptions) -> Result<Self> {
        let engine = self.0.engine().clone();
        match home(engine.platform_name(), self.0.devices()) {
            Some(device) => Ok(self.parameters(&engine, device)),
            None => Ok(self.parameters(&host(options)?, 0)),
        }
    }

    /// With the variables on the device of this name, which may be the CPU beside other devices that compute.
    pub(super) fn parameters_named(self, name: &str, options: &EngineOptions) -> Result<Self> {
        if device_kind(name) != Some("cpu") || self.0.engine().platform_name() == "cpu" {
            return self.parameter_device(name);
        }
        let host = host(options)?;
        let device = select_devices(&host, [name])?[0];
        Ok(self.parameters(&host, device))
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

    /// With parts of each batch in proportion to these numbers, one for each computing device; see
    /// [`MirroredStrategy::shares`](super::MirroredStrategy::shares) for what that saves and what not.
    ///
    /// # Errors
    /// When there is not one for each, or all are 0.
    pub fn shares(self, shares: &[u32]) -> Result<Self> {
        Ok(Self(self.0.with_shares(shares)?))
    }
}

/// The device of the variables in an engine of this kind: the computing one, if it is one, else the CPU's
/// first; none where the engine has no CPU.
fn home(kind: &str, computing: &[usize]) -> Option<usize> {
    match (kind, computing) {
        (_, &[one]) => Some(one),
        ("cpu", _) => Some(0),
        _ => None,
    }
}

/// The memory of the host, beside devices that are not the CPU.
fn host(options: &EngineOptions) -> Result<Engine> {
    Engine::new(&EngineOptions {
        platform: Platform::Cpu,
        plugin: None,
        gpu: GpuOptions::default(),
        ..options.clone()
    })
}

impl Strategy for CentralStorageStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_on_the_host_beside_several_devices() {
        assert_eq!(home("cpu", &[1, 2]), Some(0));
        assert_eq!(home("cpu", &[1]), Some(1));
        assert_eq!(home("gpu", &[1]), Some(1));
        assert_eq!(home("gpu", &[0, 1]), None);
        assert_eq!(home("tpu", &[0, 1, 2, 3]), None);
    }

    #[test]
    fn the_host_starts_beside_gpus_that_have_options() {
        let options = EngineOptions {
            platform: Platform::Cuda,
            gpu: GpuOptions {
                memory_fraction: Some(0.5),
                ..GpuOptions::default()
            },
            ..EngineOptions::default()
        };
        assert_eq!(host(&options).unwrap().platform_name(), "cpu");
    }

    #[test]
    fn the_device_of_the_variables_is_named() {
        let options = EngineOptions {
            cpu_devices: 2,
            ..EngineOptions::default()
        };
        let engine = Engine::new(&options).unwrap();
        let strategy = || CentralStorageStrategy::on(&engine);
        let named = |name| strategy().parameters_named(name, &options);
        let second = named("/cpu:1").unwrap();
        assert_eq!(second.0.parameter_device().unwrap().1, 1);
        let error = named("gpu:0").unwrap_err().to_string();
        assert!(
            error.contains("there is no device `gpu:0`; there are cpu:0, cpu:1"),
            "{error}"
        );
    }
}
