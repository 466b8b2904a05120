use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};
use crate::schedules::Schedule;

/// Adagrad: `a += g^2`, `v -= rate * g / sqrt(a + epsilon)` (Duchi et al. 2011).
///
/// As in Keras, epsilon is inside the root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    learning_rate: Schedule,
    initial_accumulator_value: f64,
    epsilon: f64,
}

impl Described for Adagrad {
    const COMPONENT: Component = Component {
        name: "adagrad",
        doc: "gradients divided by the root of the sum of their squares",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "initial_accumulator_value",
                Kind::AT_LEAST_ZERO,
                "first value of the accumulators",
            ),
            Field::optional(
                "epsilon",
                Kind::ABOVE_ZERO,
                "what keeps the division from being by zero",
            ),
        ],
    };
}

impl Adagrad {
    /// Adagrad with Keras' `initial_accumulator_value` 0.1 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            initial_accumulator_value: 0.1,
            epsilon: 1e-7,
        }
    }
}

impl Default for Adagrad {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Adagrad {
    /// What the sum of squares starts from, at least 0.
    initial_accumulator_value: f64,
    /// What keeps the division from being one by zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Adagrad {
    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("accumulator", self.initial_accumulator_value)]
    }

    fn update(
        &self,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let accumulator = &slots[0] + gradient.square();
        let divisor = (&accumulator + self.epsilon).sqrt();
        let step = gradient * &scalars[0] / divisor;
        Updated::new(param - step, [accumulator])
    }

    fn check(&self) -> Result<(), String> {
        at_least_zero("initial_accumulator_value", self.initial_accumulator_value)?;
        above_zero("epsilon", self.epsilon)
    }
}
