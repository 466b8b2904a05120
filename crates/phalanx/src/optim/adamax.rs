use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::moments::{MomentSettings, moment_setters};
use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, described, moved, named};
use crate::config::{Component, Described};
use crate::schedules::Schedule;

/// Adamax: `m += (g - m)(1 - beta_1)`, `u = max(beta_2 * u, |g|)`,
/// `v -= rate * m / ((1 - beta_1^t)(u + epsilon))` (Kingma & Ba 2014, section 7).
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Adamax::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.9000, 9.8004, 9.7013]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adamax {
    #[serde(flatten)]
    moments: MomentSettings,
}

impl Described for Adamax {
    const COMPONENT: Component = Component {
        name: "adamax",
        doc: "Adam with the largest gradient in place of the mean of squares",
        fields: &[
            LEARNING_RATE,
            MomentSettings::BETA_1,
            MomentSettings::BETA_2.doc("share that the largest gradient keeps in each step"),
            MomentSettings::EPSILON,
        ],
    };
}

impl Adamax {
    /// Adamax with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            moments: MomentSettings::new(learning_rate.into()),
        }
    }
}

impl Default for Adamax {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

moment_setters!(Adamax, moments);

impl UpdateRule for Adamax {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.moments.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), ("norm", 0.0)]
    }

    fn begin(&self, step: &Step) -> Begun {
        Begun::with([&step.rate / step.correction(self.moments.beta_1)])
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], [momentum, norm]) = (named(scalars), named(slots));
        let momentum = moved(momentum, gradient, self.moments.beta_1);
        let norm = (norm * self.moments.beta_2).maximum(&gradient.abs());
        let step = &momentum * rate / (&norm + self.moments.epsilon);
        Updated::new(param - step, [momentum, norm])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        self.moments.check()
    }
}
