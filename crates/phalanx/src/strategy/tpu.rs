//! A copy of the model on each core of a TPU.

use phalanx_pjrt::Platform;

use super::{MirroredStrategy, Strategy};
use crate::Result;
use crate::engine::EngineOptions;
use crate::replicas::{Placement, Reduction};

/// Trains copies of the model on the cores of the TPUs of this machine, through libtpu: a
/// [`MirroredStrategy`] whose devices are TPU cores, with the same programs.
#[derive(Clone, Debug)]
pub struct TpuStrategy(MirroredStrategy);

impl TpuStrategy {
    /// All cores of this machine.
    ///
    /// # Errors
    /// When no libtpu is found, with the places where it was looked for, or it does not start.
    pub fn new() -> Result<Self> {
        Self::with(&EngineOptions::default())
    }

    /// All cores, with options of which the platform is a TPU's whatever they say.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with(options: &EngineOptions) -> Result<Self> {
        let options = EngineOptions {
            platform: Platform::Tpu,
            ..options.clone()
        };
        Ok(Self(MirroredStrategy::with(&options)?))
    }

    /// With this way of adding gradients.
    #[must_use]
    pub fn reduction(self, reduction: Reduction) -> Self {
        Self(self.0.reduction(reduction))
    }
}

impl Strategy for TpuStrategy {
    fn placement(&self) -> &Placement {
        self.0.placement()
    }
}
