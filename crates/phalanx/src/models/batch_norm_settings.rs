//! The batch normalizations of an image model.

use serde::{Deserialize, Serialize};

use crate::nn::BatchNorm;

/// What all batch normalizations of a model have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct BatchNormSettings {
    pub(super) epsilon: f64,
    pub(super) momentum: f64,
    pub(super) synchronized: bool,
}

impl BatchNormSettings {
    pub(super) const fn new(epsilon: f64, momentum: f64) -> Self {
        Self {
            epsilon,
            momentum,
            synchronized: false,
        }
    }

    pub(super) fn layer(self) -> BatchNorm {
        BatchNorm::new()
            .epsilon(self.epsilon)
            .momentum(self.momentum)
            .synchronized(self.synchronized)
    }
}

/// Builders of the settings in [`BatchNormSettings`].
macro_rules! norm_settings {
    () => {
        /// Sets what batch normalizations add to the variance.
        #[must_use]
        pub const fn epsilon(mut self, epsilon: f64) -> Self {
            self.norms.epsilon = epsilon;
            self
        }

        /// Sets how much of the moving statistics stays in each step.
        #[must_use]
        pub const fn momentum(mut self, momentum: f64) -> Self {
            self.norms.momentum = momentum;
            self
        }

        /// Sets whether batch normalizations share their statistics over all replicas, which they do not by default; see
        /// [`BatchNorm::synchronized`](crate::nn::BatchNorm::synchronized).
        #[must_use]
        pub const fn synchronized(mut self, synchronized: bool) -> Self {
            self.norms.synchronized = synchronized;
            self
        }
    };
}

pub(super) use norm_settings;
