use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, moved, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// Adam with Nesterov's momentum, warmed up: with `b(t) = beta_1 (1 - 0.96^t / 2)` and `B` the product
/// of `b(1) .. b(t)`, `m` and `u` as in Adam, `m' = b(t+1) m / (1 - B b(t+1)) + (1 - b(t)) g / (1 - B)`,
/// `v -= rate * m' / (sqrt(u / (1 - beta_2^t)) + epsilon)` (Dozat 2016).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nadam {
    learning_rate: Schedule,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

impl Described for Nadam {
    const COMPONENT: Component = Component {
        name: "nadam",
        doc: "Adam with Nesterov momentum",
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

impl Nadam {
    /// Nadam with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
        }
    }

    /// `b(t)` of the formula.
    fn momentum_at(&self, number: &Tensor) -> Tensor {
        let warming = number.like(0.96).pow(number) * 0.5;
        (1.0 - warming) * self.beta_1
    }
}

impl Default for Nadam {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Nadam {
    /// The part of the mean gradient that each step keeps, from 0 to below 1.
    beta_1: f64,
    /// The part of the mean squared gradient that each step keeps, from 0 to below 1.
    beta_2: f64,
    /// What keeps the division from being one by zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Nadam {
    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), ("velocity", 0.0)]
    }

    fn own_slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum_product", 1.0)]
    }

    /// Factors of the mean, of the gradient and of the mean square.
    fn begin(&self, step: &Step) -> Begun {
        let now = self.momentum_at(&step.number);
        let next = self.momentum_at(&(&step.number + 1.0));
        let product = &step.own_slots[0] * &now;
        let of_mean = &step.rate * &next / (1.0 - &product * &next);
        let of_gradient = &step.rate * (1.0 - now) / (1.0 - &product);
        let of_square = 1.0 / step.correction(self.beta_2);
        Begun {
            scalars: vec![of_mean, of_gradient, of_square],
            own_slots: vec![product],
        }
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
        let ahead = &momentum * &scalars[0] + gradient * &scalars[1];
        let divisor = (&velocity * &scalars[2]).sqrt() + self.epsilon;
        Updated::new(param - ahead / divisor, [momentum, velocity])
    }

    fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)?;
        above_zero("epsilon", self.epsilon)
    }
}
