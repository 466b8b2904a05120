use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, named, setters};
use crate::config::{Component, Described, Field, Kind, fraction};
use crate::schedules::Schedule;

/// Gradient descent: `v -= rate * g`; with momentum `m = momentum * m - rate * g` and `v += m`, or
/// with Nesterov's `v += momentum * m - rate * g`.
///
/// The velocity holds the learning rate, as in Keras and unlike PyTorch.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Sgd::new(0.1).momentum(0.9))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.0000, 7.2000, 4.8600]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    learning_rate: Schedule,
    momentum: f64,
    nesterov: bool,
}

impl Described for Sgd {
    const COMPONENT: Component = Component {
        name: "sgd",
        doc: "gradient descent, with momentum if given",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "momentum",
                Kind::DECAY,
                "share of the last change that is kept",
            ),
            Field::optional("nesterov", Kind::Bool, "whether the momentum is Nesterov's"),
        ],
    };
}

impl Sgd {
    /// Plain gradient descent.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            momentum: 0.0,
            nesterov: false,
        }
    }
}

impl Default for Sgd {
    /// Keras' defaults: a rate of 0.01, no momentum.
    fn default() -> Self {
        Self::new(0.01)
    }
}

setters!(Sgd {
    /// The share of the velocity that each step keeps, from 0 to below 1.
    momentum: f64,
    /// Whether steps look ahead by the momentum (Nesterov 1983).
    nesterov: bool,
});

impl UpdateRule for Sgd {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        if self.momentum == 0.0 {
            return Vec::new();
        }
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
        let [rate] = named(scalars);
        let step = gradient * rate;
        let [momentum] = slots else {
            return Updated::new(param - step, []);
        };
        let velocity = momentum * self.momentum - &step;
        let change = if self.nesterov {
            &velocity * self.momentum - step
        } else {
            velocity.clone()
        };
        Updated::new(param + change, [velocity])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn keeps_what_has_no_gradient(&self) -> bool {
        self.momentum == 0.0
    }

    fn check(&self) -> Result<(), String> {
        fraction("momentum", self.momentum)
    }
}
