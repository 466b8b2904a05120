use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::moments::{MomentSettings, moment_setters};
use super::rule::{Begun, Step, UpdateRule, Updated, described, moved, named, setters};
use super::{Optimizer, Options, ParamSpec};
use crate::config::{Component, Described, Field, Kind, joined};
use crate::schedules::Schedule;

/// Adam: `m += (g - m)(1 - beta_1)`, `u += (g^2 - u)(1 - beta_2)`,
/// `v -= m * rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) / (sqrt(u) + epsilon)`; with `amsgrad` the
/// largest `u` so far divides (Kingma & Ba 2014, section 2).
///
/// `m` is a running mean of the gradients, `u` of their squares, `t` the number of the step from 1. As in Keras, epsilon is
/// added before the bias correction: the paper's "epsilon hat".
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Adam::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.9000, 9.8000, 9.7001]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    #[serde(flatten)]
    moments: MomentSettings,
    amsgrad: bool,
}

impl Described for Adam {
    const COMPONENT: Component = Component {
        name: "adam",
        doc: "running means of the gradients and of their squares",
        fields: joined!(
            MomentSettings::FIELDS,
            &[Field::optional(
                "amsgrad",
                Kind::Bool,
                "whether the largest mean of squares so far is used",
            )],
        ),
    };
}

/// [`Adam`] with decoupled weight decay (Loshchilov & Hutter 2017), 0.004 by default.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(AdamW::new(0.1).weight_decay(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.8000, 9.6021, 9.4062]");
/// # Ok::<(), phalanx::Error>(())
/// ```
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
            moments: MomentSettings::new(learning_rate.into()),
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

moment_setters!(Adam, moments);
moment_setters!(AdamW, adam.moments);
setters!(Adam {
    /// Whether to divide by the largest mean of squares seen so far instead of the present one.
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

    /// Before each update, every variable is reduced by this fraction of itself times the learning rate.
    #[must_use]
    pub const fn weight_decay(mut self, rate: f64) -> Self {
        self.weight_decay = rate;
        self
    }

    /// Whether to divide by the largest mean of squares seen so far instead of the present one.
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
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.moments.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        let mut slots = vec![("momentum", 0.0), ("velocity", 0.0)];
        if self.amsgrad {
            slots.push(("velocity_hat", 0.0));
        }
        slots
    }

    fn begin(&self, step: &Step) -> Begun {
        let (mean, square) = (
            step.correction(self.moments.beta_1),
            step.correction(self.moments.beta_2),
        );
        Begun::with([&step.rate * square.sqrt() / mean])
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], (moments, largest)) = (named(scalars), slots.split_at(2));
        let [momentum, velocity] = named(moments);
        let momentum = moved(momentum, gradient, self.moments.beta_1);
        let velocity = moved(velocity, &gradient.square(), self.moments.beta_2);
        let largest = largest.first().map(|largest| largest.maximum(&velocity));
        let divisor = largest.as_ref().unwrap_or(&velocity).sqrt() + self.moments.epsilon;
        let param = param - &momentum * rate / divisor;
        let mut updated = Updated::new(param, [momentum, velocity]);
        updated.slots.extend(largest);
        updated
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        self.moments.check()
    }
}
