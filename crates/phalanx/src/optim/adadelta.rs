use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, mixed, named, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// Adadelta: `G = rho * G + (1 - rho) * g^2`, `d = -sqrt(D + epsilon) / sqrt(G + epsilon) * g`,
/// `D = rho * D + (1 - rho) * d^2`, `v += rate * d` (Zeiler 2012).
///
/// `G` and `D` are running means of squared gradients and squared changes. The paper has no learning rate; a rate of 1 gives
/// its algorithm.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Adadelta::new(1.0))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.9986, 9.9972, 9.9957]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adadelta {
    learning_rate: Schedule,
    rho: f64,
    epsilon: f64,
}

impl Described for Adadelta {
    const COMPONENT: Component = Component {
        name: "adadelta",
        doc: "changes scaled by running means of squared changes and squared gradients",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "rho",
                Kind::DECAY,
                "share that the running means keep in each step",
            ),
            Field::optional(
                "epsilon",
                Kind::ABOVE_ZERO,
                "what keeps the division from being by zero",
            ),
        ],
    };
}

impl Adadelta {
    /// Adadelta with Keras' `rho` 0.95 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            rho: 0.95,
            epsilon: 1e-7,
        }
    }
}

impl Default for Adadelta {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Adadelta {
    /// The share of both running means that each step keeps, from 0 to below 1.
    rho: f64,
    /// Added inside both roots: it makes the first step possible and keeps the divisor above zero; above 0.
    epsilon: f64,
});

impl UpdateRule for Adadelta {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("accumulated_grad", 0.0), ("accumulated_delta", 0.0)]
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let rms = |mean: &Tensor| (mean + self.epsilon).sqrt();
        let ([rate], [squares, changes]) = (named(scalars), named(slots));
        let squares = mixed(squares, &gradient.square(), self.rho);
        let change = -(rms(changes) * gradient / rms(&squares));
        let changes = mixed(changes, &change.square(), self.rho);
        Updated::new(param + change * rate, [squares, changes])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        fraction("rho", self.rho)?;
        above_zero("epsilon", self.epsilon)
    }
}
