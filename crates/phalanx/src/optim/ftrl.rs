use std::ops::Bound;

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{UpdateRule, Updated, described, named, setters};
use crate::config::{Component, Described, Field, Kind, at_least_zero};
use crate::schedules::Schedule;

/// Follow the regularised leader: `n' = n + g^2`, `g' = g + 2 * l2_shrinkage * v`,
/// `z += g' - (n'^-p - n^-p) / rate * v`,
/// `v = (clip(z, -l1, l1) - z) / (n'^-p / rate + 2 * l2 + beta / rate)` with `p` the learning rate power
/// (McMahan et al. 2013). A rate of 0 changes nothing, nor does a divisor of 0 its element; Keras makes them NaN.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Ftrl::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.5840, 9.5148, 9.4582]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ftrl {
    learning_rate: Schedule,
    learning_rate_power: f64,
    initial_accumulator_value: f64,
    l1_regularization_strength: f64,
    l2_regularization_strength: f64,
    l2_shrinkage_regularization_strength: f64,
    beta: f64,
}

impl Described for Ftrl {
    const COMPONENT: Component = Component {
        name: "ftrl",
        doc: "follow the regularized leader, for sparse linear models",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "learning_rate_power",
                Kind::Number(Bound::Unbounded, Bound::Included(0.0)),
                "power of the accumulated squares",
            ),
            Field::optional(
                "initial_accumulator_value",
                Kind::AT_LEAST_ZERO,
                "first value of the accumulators",
            ),
            Field::optional(
                "l1_regularization_strength",
                Kind::AT_LEAST_ZERO,
                "factor of the absolute values",
            ),
            Field::optional(
                "l2_regularization_strength",
                Kind::AT_LEAST_ZERO,
                "factor of the squares",
            ),
            Field::optional(
                "l2_shrinkage_regularization_strength",
                Kind::AT_LEAST_ZERO,
                "factor of the squares, in the gradient",
            ),
            Field::optional(
                "beta",
                Kind::AT_LEAST_ZERO,
                "what is added to the root of the accumulated squares",
            ),
        ],
    };
}

impl Ftrl {
    /// FTRL with Keras' `learning_rate_power` -0.5, `initial_accumulator_value` 0.1 and no regularisation.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            learning_rate_power: -0.5,
            initial_accumulator_value: 0.1,
            l1_regularization_strength: 0.0,
            l2_regularization_strength: 0.0,
            l2_shrinkage_regularization_strength: 0.0,
            beta: 0.0,
        }
    }
}

impl Default for Ftrl {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Ftrl {
    /// The power of the sum of squares by which the rate falls, at most 0; -0.5 divides by its root.
    learning_rate_power: f64,
    /// The first value of the sum of squares, at least 0.
    initial_accumulator_value: f64,
    /// The L1 penalty, which sets small elements to exactly 0; at least 0.
    l1_regularization_strength: f64,
    /// The L2 penalty, at least 0.
    l2_regularization_strength: f64,
    /// An L2 penalty that is added to the gradient and so does not count as a square seen; at least 0.
    l2_shrinkage_regularization_strength: f64,
    /// Added to the root of the sum of squares, at least 0.
    beta: f64,
});

impl UpdateRule for Ftrl {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("accumulator", self.initial_accumulator_value),
            ("linear", 0.0),
        ]
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let ([rate], [squares, linear]) = (named(scalars), named(slots));
        let power = |n: &Tensor| n.pow(&n.like(-self.learning_rate_power));
        let shrunk = gradient + param * (2.0 * self.l2_shrinkage_regularization_strength);
        let accumulator = squares + gradient.square();
        let after = power(&accumulator);
        let moved = linear + shrunk - (&after - power(squares)) / rate * param;
        let l1 = self.l1_regularization_strength;
        let pulled = moved.clamp(-l1, l1) - &moved;
        let curvature = (after + self.beta) / rate + 2.0 * self.l2_regularization_strength;
        // Both are divided by. The slots stay too: they hold the variable, which the next step would otherwise move.
        let rests = curvature
            .equal(&curvature.like(0.0))
            .or(&rate.equal(&rate.like(0.0)).broadcast_to(&param.dims()));
        let new = [pulled / &curvature, accumulator, moved];
        let old = [param, squares, linear];
        let [param, accumulator, linear] =
            std::array::from_fn(|at| rests.select(old[at], &new[at]));
        Updated::new(param, [accumulator, linear])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        at_least_zero("initial_accumulator_value", self.initial_accumulator_value)?;
        at_least_zero(
            "l1_regularization_strength",
            self.l1_regularization_strength,
        )?;
        at_least_zero(
            "l2_regularization_strength",
            self.l2_regularization_strength,
        )?;
        let shrinkage = self.l2_shrinkage_regularization_strength;
        at_least_zero("l2_shrinkage_regularization_strength", shrinkage)?;
        at_least_zero("beta", self.beta)?;
        if self.learning_rate_power <= 0.0 && self.learning_rate_power.is_finite() {
            return Ok(());
        }
        let power = self.learning_rate_power;
        Err(format!(
            "`learning_rate_power` must be a number of at most 0, got {power}"
        ))
    }
}
