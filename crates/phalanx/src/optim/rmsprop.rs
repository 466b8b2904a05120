use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, mixed, named, setters};
use crate::config::{Component, Described, Field, Kind, above_zero, fraction};
use crate::schedules::Schedule;

/// RMSprop: `s = rho * s + (1 - rho) * g^2`, `i = rate * g / sqrt(s + epsilon)`, `v -= i`; with momentum
/// `b = momentum * b + i`, `v -= b`; centered, the square of the mean gradient is taken off `s` first.
///
/// As in Keras, epsilon is inside the root.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(RmsProp::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.6838, 9.4579, 9.2705]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    learning_rate: Schedule,
    rho: f64,
    momentum: f64,
    epsilon: f64,
    centered: bool,
}

impl Described for RmsProp {
    const COMPONENT: Component = Component {
        name: "rmsprop",
        doc: "gradients divided by the root of a running mean of their squares",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "rho",
                Kind::DECAY,
                "share that the mean of their squares keeps in each step",
            ),
            Field::optional(
                "momentum",
                Kind::DECAY,
                "share of the last change that is kept",
            ),
            Field::optional(
                "epsilon",
                Kind::ABOVE_ZERO,
                "what keeps the division from being by zero",
            ),
            Field::optional(
                "centered",
                Kind::Bool,
                "whether the squares are taken around the mean",
            ),
        ],
    };
}

impl RmsProp {
    /// RMSprop with Keras' `rho` 0.9 and `epsilon` 1e-7, without momentum, not centered.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            rho: 0.9,
            momentum: 0.0,
            epsilon: 1e-7,
            centered: false,
        }
    }
}

impl Default for RmsProp {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(RmsProp {
    /// The share of the running means that each step keeps, from 0 to below 1.
    rho: f64,
    /// The share of a step that the next one repeats, from 0 to below 1.
    momentum: f64,
    /// Added inside the root, so that the divisor is never zero; above 0.
    epsilon: f64,
    /// Whether to divide by the deviation of the gradient from its running mean instead of its root mean square.
    centered: bool,
});

impl UpdateRule for RmsProp {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        let mut slots = vec![("velocity", 0.0)];
        if self.centered {
            slots.push(("average_gradient", 0.0));
        }
        if self.momentum > 0.0 {
            slots.push(("momentum", 0.0));
        }
        slots
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], (velocity, others)) = (named(scalars), slots.split_at(1));
        let (mean, momentum) = others.split_at(usize::from(self.centered));
        let [velocity] = named(velocity);
        let velocity = mixed(velocity, &gradient.square(), self.rho);
        let mut after = vec![velocity.clone()];
        let mut variance = velocity;
        if let [mean] = mean {
            let mean = mixed(mean, gradient, self.rho);
            variance = variance - mean.square();
            after.push(mean);
        }
        let mut step = gradient * rate / (variance + self.epsilon).sqrt();
        if let [momentum] = momentum {
            step = momentum * self.momentum + step;
            after.push(step.clone());
        }
        Updated {
            param: param - step,
            slots: after,
        }
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        fraction("rho", self.rho)?;
        fraction("momentum", self.momentum)?;
        above_zero("epsilon", self.epsilon)
    }
}
