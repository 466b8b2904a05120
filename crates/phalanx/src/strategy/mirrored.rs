//! A copy of the model on each device of this machine.

use super::{Strategy, default_devices};
use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, Reduction, select_devices};

/// Trains copies of the model on several devices of this machine, which add their gradients after each step.
///
/// With equal variables at the start and equal updates they stay equal. A batch is split over the devices, and the
/// results equal one device with the whole batch, whether it divides or not, except for the statistics of a
/// batch normalization that is not [synchronized](crate::nn::BatchNorm::synchronized).
#[derive(Clone, Debug)]
pub struct MirroredStrategy(Placement);

impl MirroredStrategy {
    /// All devices of this machine: its GPUs or TPU cores, where a plugin for them is found, else the CPU, which
    /// [`with`](Self::with) divides.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn new() -> Result<Self> {
        Ok(Self::on(&default_devices::engine()?))
    }

    /// All devices of an engine with these options: the devices of its platform, or as many as
    /// [`cpu_devices`](EngineOptions::cpu_devices) says of the CPU.
    ///
    /// # Errors
    /// When the devices do not start; see [`Engine::new`].
    pub fn with(options: &EngineOptions) -> Result<Self> {
        Ok(Self::on(&Engine::new(options)?))
    }

    /// All devices of an engine that runs already.
    #[must_use]
    pub fn on(engine: &Engine) -> Self {
        Self(Placement::all(engine))
    }

    /// On the devices of these names alone, replica 0 on the first: see [`select_devices`] for how they are spelled.
    ///
    /// # Errors
    /// When a device is not there, is named twice, or none is named; the error lists those that are there.
    pub fn devices<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Result<Self> {
        let devices = select_devices(self.0.engine(), names)?;
        Ok(Self(self.0.on_devices(&devices)?))
    }

    /// With this way of adding gradients: TensorFlow's `cross_device_ops`, never ignored.
    #[must_use]
    pub fn reduction(self, reduction: Reduction) -> Self {
        Self(self.0.with_reduction(reduction))
    }

    /// With parts of each batch in proportion to these numbers, one for each replica.
    ///
    /// Results equal one device with the whole batch, as with equal parts, where statistics of batches are synchronized. A smaller
    /// part of a full batch takes less time: the program has a branch for each size of a part, which computes on as many rows, so it takes as many times as
    /// long to compile. [`ReplicaTimes::shares`](crate::fit::ReplicaTimes::shares) says which shares devices of unequal
    /// speed should have.
    ///
    /// Replicas compute on as many rows as the largest part has, of which some weigh nothing, in batches of fewer rows than a
    /// full one, where some share is 0, where layers exchange values between replicas (synchronized batch normalization,
    /// of which a line tells at the start), and in functions of your own ([`CustomTraining`](super::CustomTraining)). Memory is as for the largest part
    /// on every device.
    ///
    /// # Errors
    /// When there is not one for each replica, or all are 0.
    pub fn shares(self, shares: &[u32]) -> Result<Self> {
        Ok(Self(self.0.with_shares(shares)?))
    }

    /// Compares the replicas' variables every `steps` steps of `fit`, which stops the training with the name
    /// of the first that differs. Training loops of your own ([`CustomTraining`](super::CustomTraining)) are not compared.
    #[must_use]
    pub fn verify_every(self, steps: u64) -> Self {
        Self(self.0.with_verification(steps))
    }
}

impl Strategy for MirroredStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}
