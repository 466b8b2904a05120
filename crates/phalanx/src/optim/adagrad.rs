use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, named, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};
use crate::schedules::Schedule;

/// Adagrad: `a += g^2`, `v -= rate * g / sqrt(a + epsilon)` (Duchi et al. 2011).
///
/// Each element has a rate of its own, which falls with the squares of its gradients so far. As in Keras, epsilon is inside
/// the root.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Adagrad::new(0.2))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.8001, 9.6601, 9.5466]");
/// # Ok::<(), phalanx::Error>(())
/// ```
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
    /// The first value of the sum of squares, at least 0.
    initial_accumulator_value: f64,
    /// Added inside the root, so that the divisor is never zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Adagrad {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("accumulator", self.initial_accumulator_value)]
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], [accumulator]) = (named(scalars), named(slots));
        let accumulator = accumulator + gradient.square();
        let divisor = (&accumulator + self.epsilon).sqrt();
        let step = gradient * rate / divisor;
        Updated::new(param - step, [accumulator])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn keeps_what_has_no_gradient(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        at_least_zero("initial_accumulator_value", self.initial_accumulator_value)?;
        above_zero("epsilon", self.epsilon)
    }
}
