use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::moments::{MomentSettings, moment_setters};
use super::rule::{Begun, Step, UpdateRule, Updated, described, moved, named};
use crate::config::{Component, Described};
use crate::schedules::Schedule;

/// LAMB: Adam's direction, with steps in proportion to the size of each variable. `m` and `u` are as in Adam, both corrected for
/// starting at 0; `r = m / (sqrt(u) + epsilon)`, `v -= rate * r * |v| / |r|` (You et al. 2019).
///
/// `|v|` and `|r|` are L2 norms over a whole variable; where either is 0, the factor `|v| / |r|` is 1. As in Keras and unlike
/// in the paper, weight decay is not part of `r`.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Lamb::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.0000, 8.1000, 7.2900]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    #[serde(flatten)]
    moments: MomentSettings,
}

impl Described for Lamb {
    const COMPONENT: Component = Component {
        name: "lamb",
        doc: "Adam with a step size for each variable, for large batches",
        fields: MomentSettings::FIELDS,
    };
}

impl Lamb {
    /// LAMB with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            moments: MomentSettings::new(learning_rate.into()),
        }
    }
}

impl Default for Lamb {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

moment_setters!(Lamb, moments);

impl UpdateRule for Lamb {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.moments.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), ("velocity", 0.0)]
    }

    fn begin(&self, step: &Step) -> Begun {
        let (mean, square) = (
            step.correction(self.moments.beta_1),
            step.correction(self.moments.beta_2),
        );
        Begun::with([step.rate.clone(), mean, square])
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let [rate, mean_correction, square_correction] = named(scalars);
        let [momentum, velocity] = named(slots);
        let momentum = moved(momentum, gradient, self.moments.beta_1);
        let velocity = moved(velocity, &gradient.square(), self.moments.beta_2);
        let divisor = (&velocity / square_correction).sqrt() + self.moments.epsilon;
        let direction = &momentum / mean_correction / divisor;
        let step = &direction * (trust(param, &direction) * rate);
        Updated::new(param - step, [momentum, velocity])
    }

    fn check(&self) -> Result<(), String> {
        self.moments.check()
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
