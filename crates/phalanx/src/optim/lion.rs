use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, mixed, named, setters};
use crate::config::{Component, Described, Field, Kind, fraction};
use crate::schedules::Schedule;

/// Lion: `v -= rate * sign(beta_1 * m + (1 - beta_1) * g)`, then `m = beta_2 * m + (1 - beta_2) * g`
/// (Chen et al. 2023).
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Lion::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.9000, 9.8000, 9.7000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    learning_rate: Schedule,
    beta_1: f64,
    beta_2: f64,
}

impl Described for Lion {
    const COMPONENT: Component = Component {
        name: "lion",
        doc: "the sign of a running mean of the gradients",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "beta_1",
                Kind::DECAY,
                "share of the mean in the direction of a step",
            ),
            Field::optional(
                "beta_2",
                Kind::DECAY,
                "share that the mean of the gradients keeps in each step",
            ),
        ],
    };
}

impl Lion {
    /// Lion with Keras' `beta_1` 0.9 and `beta_2` 0.99.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            beta_1: 0.9,
            beta_2: 0.99,
        }
    }
}

impl Default for Lion {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Lion {
    /// The share of the momentum in the direction of a step, against the gradient; from 0 to below 1.
    beta_1: f64,
    /// The share of the momentum that each step keeps, from 0 to below 1.
    beta_2: f64,
});

impl UpdateRule for Lion {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0)]
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], [momentum]) = (named(scalars), named(slots));
        let direction = mixed(momentum, gradient, self.beta_1).sign();
        let momentum = mixed(momentum, gradient, self.beta_2);
        Updated::new(param - direction * rate, [momentum])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        fraction("beta_1", self.beta_1)?;
        fraction("beta_2", self.beta_2)
    }
}
