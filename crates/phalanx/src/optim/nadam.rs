use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::moments::{MomentSettings, moment_setters};
use super::rule::{Begun, Step, UpdateRule, Updated, described, moved, named};
use crate::config::{Component, Described};
use crate::schedules::Schedule;

/// Adam with Nesterov's momentum, warmed up: with `b(t) = beta_1 (1 - 0.96^t / 2)` and `B` the product
/// of `b(1) .. b(t)`, `m` and `u` as in Adam, `m' = b(t+1) m / (1 - B b(t+1)) + (1 - b(t)) g / (1 - B)`,
/// `v -= rate * m' / (sqrt(u / (1 - beta_2^t)) + epsilon)` (Dozat 2016).
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Nadam::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.8937, 9.8167, 9.7461]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nadam {
    #[serde(flatten)]
    moments: MomentSettings,
}

impl Described for Nadam {
    const COMPONENT: Component = Component {
        name: "nadam",
        doc: "Adam with Nesterov momentum",
        fields: MomentSettings::FIELDS,
    };
}

impl Nadam {
    /// Nadam with Keras' `beta_1` 0.9, `beta_2` 0.999 and `epsilon` 1e-7.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            moments: MomentSettings::new(learning_rate.into()),
        }
    }

    /// `b(t)` of the formula.
    fn momentum_at(&self, number: &Tensor) -> Tensor {
        let warming = number.like(0.96).pow(number) * 0.5;
        (1.0 - warming) * self.moments.beta_1
    }
}

impl Default for Nadam {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

moment_setters!(Nadam, moments);

impl UpdateRule for Nadam {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.moments.learning_rate
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
        let [product] = named(&step.own_slots);
        let product = product * &now;
        let of_mean = &step.rate * &next / (1.0 - &product * &next);
        let of_gradient = &step.rate * (1.0 - now) / (1.0 - &product);
        let of_square = 1.0 / step.correction(self.moments.beta_2);
        Begun {
            scalars: vec![of_mean, of_gradient, of_square],
            own_slots: vec![product],
        }
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let [of_mean, of_gradient, of_square] = named(scalars);
        let [momentum, velocity] = named(slots);
        let momentum = moved(momentum, gradient, self.moments.beta_1);
        let velocity = moved(velocity, &gradient.square(), self.moments.beta_2);
        let ahead = &momentum * of_mean + gradient * of_gradient;
        let divisor = (&velocity * of_square).sqrt() + self.moments.epsilon;
        Updated::new(param - ahead / divisor, [momentum, velocity])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        self.moments.check()
    }
}
