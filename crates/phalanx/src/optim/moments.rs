//! The settings of Adam and the rules made from it: a rate, and two running moments of the gradient.

use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use crate::config::{Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// The settings that [`Adam`](super::Adam), [`Adamax`](super::Adamax), [`Nadam`](super::Nadam) and
/// [`Lamb`](super::Lamb) share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MomentSettings {
    pub(super) learning_rate: Schedule,
    pub(super) beta_1: f64,
    pub(super) beta_2: f64,
    pub(super) epsilon: f64,
}

impl MomentSettings {
    pub(super) const FIELDS: &[Field] = &[LEARNING_RATE, Self::BETA_1, Self::BETA_2, Self::EPSILON];

    pub(super) const BETA_1: Field = Field::optional(
        "beta_1",
        Kind::DECAY,
        "share that the mean of the gradients keeps in each step",
    );

    pub(super) const BETA_2: Field = Field::optional(
        "beta_2",
        Kind::DECAY,
        "share that the mean of their squares keeps in each step",
    );

    pub(super) const EPSILON: Field = Field::optional(
        "epsilon",
        Kind::ABOVE_ZERO,
        "what keeps the division from being by zero",
    );

    /// Keras' settings beside the rate: `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    pub(super) const fn new(learning_rate: Schedule) -> Self {
        Self {
            learning_rate,
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)?;
        above_zero("epsilon", self.epsilon)
    }
}

/// Chained setters of a rule's [`MomentSettings`], which are its field named here.
macro_rules! moment_setters {
    ($rule:ident, $($settings:ident).+) => {
        impl $rule {
            /// The share of the mean gradient that each step keeps, from 0 to below 1.
            #[must_use]
            pub const fn beta_1(mut self, beta_1: f64) -> Self {
                self.$($settings).+.beta_1 = beta_1;
                self
            }

            /// The share of the mean squared gradient, in Adamax of the largest gradient, that each step keeps, from 0 to
            /// below 1.
            #[must_use]
            pub const fn beta_2(mut self, beta_2: f64) -> Self {
                self.$($settings).+.beta_2 = beta_2;
                self
            }

            /// Added to the divisor, so that it is never zero; above 0.
            #[must_use]
            pub const fn epsilon(mut self, epsilon: f64) -> Self {
                self.$($settings).+.epsilon = epsilon;
                self
            }
        }
    };
}
pub(super) use moment_setters;
