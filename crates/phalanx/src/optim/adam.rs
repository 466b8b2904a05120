use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, moved, setters};
use super::{Optimizer, Options};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// Adam: `m += (g - m)(1 - beta_1)`, `u += (g^2 - u)(1 - beta_2)`,
/// `v -= m * rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) / (sqrt(u) + epsilon)`; with `amsgrad` the
/// largest `u` so far divides (Kingma & Ba 2014, section 2).
///
/// As in Keras, epsilon is added before the bias correction: the paper's "epsilon hat".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    learning_rate: Schedule,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    amsgrad: bool,
}

impl Described for Adam {
    const COMPONENT: Component = Component {
        name: "adam",
        doc: "running means of the gradients and of their squares",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "beta_1",
                Kind::DECAY,
                "share that the mean of the gradients keeps in each step",
            ),
            Field::optional(
                "beta_2",
                Kind::DECAY,
                "share that the mean of their squares keeps in each step",
            ),
            Field::optional(
                "epsilon",
                Kind::ABOVE_ZERO,
                "what keeps the division from being by zero",
            ),
            Field::optional(
                "amsgrad",
                Kind::Bool,
                "whether the largest mean of squares so far is used",
            ),
        ],
    };
}

/// [`Adam`] with decoupled weight decay (Loshchilov & Hutter 2017), 0.004 by default.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    adam: Adam,
    weight_decay: f64,
}

impl Adam {
    /// Adam with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            amsgrad: false,
        }
    }
}

impl Default for Adam {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Adam {
    /// The part of the mean gradient that each step keeps, from 0 to below 1.
    beta_1: f64,
    /// The part of the mean squared gradient that each step keeps, from 0 to below 1.
    beta_2: f64,
    /// What keeps the division from being one by zero; above 0.
    epsilon: f64,
    /// Whether the largest mean square so far is divided by.
    amsgrad: bool,
});

impl AdamW {
    /// Keras' default decay.
    pub(super) const WEIGHT_DECAY: f64 = 0.004;

    /// AdamW with Keras' defaults.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            adam: Adam::new(learning_rate),
            weight_decay: Self::WEIGHT_DECAY,
        }
    }

    /// The fraction of each variable, times the learning rate, taken off before each update.
    #[must_use]
    pub const fn weight_decay(mut self, rate: f64) -> Self {
        self.weight_decay = rate;
        self
    }

    /// The part of the mean gradient that each step keeps, from 0 to below 1.
    #[must_use]
    pub fn beta_1(mut self, beta_1: f64) -> Self {
        self.adam = self.adam.beta_1(beta_1);
        self
    }

    /// The part of the mean squared gradient that each step keeps, from 0 to below 1.
    #[must_use]
    pub fn beta_2(mut self, beta_2: f64) -> Self {
        self.adam = self.adam.beta_2(beta_2);
        self
    }

    /// What keeps the division from being one by zero; above 0.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.adam = self.adam.epsilon(epsilon);
        self
    }

    /// Whether the largest mean square so far is divided by.
    #[must_use]
    pub fn amsgrad(mut self, amsgrad: bool) -> Self {
        self.adam = self.adam.amsgrad(amsgrad);
        self
    }
}

impl From<AdamW> for Optimizer {
    fn from(adamw: AdamW) -> Self {
        let options = Options {
            weight_decay: Some(adamw.weight_decay),
            ..Options::default()
        };
        Self::new(adamw.adam.into(), options)
    }
}

impl UpdateRule for Adam {
    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        let mut slots = vec![("momentum", 0.0), ("velocity", 0.0)];
        if self.amsgrad {
            slots.push(("velocity_hat", 0.0));
        }
        slots
    }

    fn begin(&self, step: &Step) -> Begun {
        let (mean, square) = (step.correction(self.beta_1), step.correction(self.beta_2));
        Begun::with([&step.rate * square.sqrt() / mean])
    }

    fn update(
        &self,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let momentum = moved(&slots[0], gradient, self.beta_1);
        let velocity = moved(&slots[1], &gradient.square(), self.beta_2);
        let largest = slots.get(2).map(|largest| largest.maximum(&velocity));
        let divisor = largest.as_ref().unwrap_or(&velocity).sqrt() + self.epsilon;
        let param = param - &momentum * &scalars[0] / divisor;
        let mut updated = Updated::new(param, [momentum, velocity]);
        updated.slots.extend(largest);
        updated
    }

    fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)?;
        above_zero("epsilon", self.epsilon)
    }
}
