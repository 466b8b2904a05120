use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, moved, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// Adamax: `m += (g - m)(1 - beta_1)`, `u = max(beta_2 * u, |g|)`,
/// `v -= rate * m / ((1 - beta_1^t)(u + epsilon))` (Kingma & Ba 2014, section 7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adamax {
    learning_rate: Schedule,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

impl Described for Adamax {
    const COMPONENT: Component = Component {
        name: "adamax",
        doc: "Adam with the largest gradient in place of the mean of squares",
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
                "share that the largest gradient keeps in each step",
            ),
            Field::optional(
                "epsilon",
                Kind::ABOVE_ZERO,
                "what keeps the division from being by zero",
            ),
        ],
    };
}

impl Adamax {
    /// Adamax with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
        }
    }
}

impl Default for Adamax {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Adamax {
    /// The part of the mean gradient that each step keeps, from 0 to below 1.
    beta_1: f64,
    /// The part of the largest gradient that each step keeps, from 0 to below 1.
    beta_2: f64,
    /// What keeps the division from being one by zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Adamax {
    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), ("norm", 0.0)]
    }

    fn begin(&self, step: &Step) -> Begun {
        Begun::with([&step.rate / step.correction(self.beta_1)])
    }

    fn update(
        &self,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let momentum = moved(&slots[0], gradient, self.beta_1);
        let norm = (&slots[1] * self.beta_2).maximum(&gradient.abs());
        let step = &momentum * &scalars[0] / (&norm + self.epsilon);
        Updated::new(param - step, [momentum, norm])
    }

    fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)?;
        above_zero("epsilon", self.epsilon)
    }
}
