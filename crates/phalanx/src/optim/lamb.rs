use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, moved, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// Adam's direction with a step as long as the variable: `m` and `u` as in Adam, both corrected for
/// their start, `r = m / (sqrt(u) + epsilon)`, `v -= rate * r * |v| / |r|` (You et al. 2019).
///
/// Norms are L2 over a whole variable; where one is 0 the factor is 1. Weight decay does not enter `r`,
/// as in Keras and unlike the paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    learning_rate: Schedule,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

impl Described for Lamb {
    const COMPONENT: Component = Component {
        name: "lamb",
        doc: "Adam with a step size for each variable, for large batches",
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
        ],
    };
}

impl Lamb {
    /// LAMB with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
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

impl Default for Lamb {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Lamb {
    /// The part of the mean gradient that each step keeps, from 0 to below 1.
    beta_1: f64,
    /// The part of the mean squared gradient that each step keeps, from 0 to below 1.
    beta_2: f64,
    /// What keeps the division from being one by zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Lamb {
    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), ("velocity", 0.0)]
    }

    fn begin(&self, step: &Step) -> Begun {
        let (mean, square) = (step.correction(self.beta_1), step.correction(self.beta_2));
        Begun::with([step.rate.clone(), mean, square])
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
        let divisor = (&velocity / &scalars[2]).sqrt() + self.epsilon;
        let direction = &momentum / &scalars[1] / divisor;
        let step = &direction * (trust(param, &direction) * &scalars[0]);
        Updated::new(param - step, [momentum, velocity])
    }

    fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)?;
        above_zero("epsilon", self.epsilon)
    }
}

/// `|v| / |r|`, or 1 where either is 0.
fn trust(param: &Tensor, direction: &Tensor) -> Tensor {
    let norm = |tensor: &Tensor| tensor.square().sum_all().sqrt();
    let (size, length) = (norm(param), norm(direction));
    let zero = size.like(0.0);
    let both = size.greater(&zero).and(&length.greater(&zero));
    both.select(&(size / &length), &length.like(1.0))
}
