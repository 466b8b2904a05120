//! Rates that fall by a formula of the step.

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};

/// `initial * rate^(step / steps)`, the exponent rounded down when `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExponentialDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    decay_rate: f64,
    staircase: bool,
}

impl Described for ExponentialDecay {
    const COMPONENT: Component = Component {
        name: "exponential_decay",
        doc: "falls by the same factor in every `decay_steps` steps",
        fields: &[
            Field::required(
                "initial_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the start",
            )
            .example("0.1"),
            Field::required(
                "decay_steps",
                Kind::POSITIVE,
                "number of steps of the decay",
            )
            .example("1000"),
            Field::required(
                "decay_rate",
                Kind::ABOVE_ZERO,
                "what the rate is multiplied by in `decay_steps` steps",
            )
            .example("0.5"),
            Field::optional(
                "staircase",
                Kind::Bool,
                "whether it changes only every `decay_steps` steps",
            ),
        ],
    };
}

/// `initial / (1 + rate * step / steps)`, the quotient rounded down when `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InverseTimeDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    decay_rate: f64,
    staircase: bool,
}

impl Described for InverseTimeDecay {
    const COMPONENT: Component = Component {
        name: "inverse_time_decay",
        doc: "divided by a number that grows linearly",
        fields: &[
            Field::required(
                "initial_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the start",
            )
            .example("0.1"),
            Field::required(
                "decay_steps",
                Kind::POSITIVE,
                "number of steps of the decay",
            )
            .example("1000"),
            Field::required(
                "decay_rate",
                Kind::AT_LEAST_ZERO,
                "how much the divisor grows in `decay_steps` steps",
            )
            .example("0.5"),
            Field::optional(
                "staircase",
                Kind::Bool,
                "whether it changes only every `decay_steps` steps",
            ),
        ],
    };
}

/// `(initial - end) * (1 - min(step, steps) / steps)^power + end`; with `cycle`, `steps` grows by its
/// own multiples instead of cutting the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolynomialDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    end_learning_rate: f64,
    power: f64,
    cycle: bool,
}

impl Described for PolynomialDecay {
    const COMPONENT: Component = Component {
        name: "polynomial_decay",
        doc: "falls along a polynomial to an end",
        fields: &[
            Field::required(
                "initial_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the start",
            )
            .example("0.1"),
            Field::required(
                "decay_steps",
                Kind::POSITIVE,
                "number of steps of the decay",
            )
            .example("1000"),
            Field::optional(
                "end_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the end",
            ),
            Field::optional(
                "power",
                Kind::ABOVE_ZERO,
                "power of the polynomial; 1 is a straight line",
            ),
            Field::optional(
                "cycle",
                Kind::Bool,
                "whether it starts again at the end, more slowly",
            ),
        ],
    };
}

macro_rules! staircase_decay {
    ($schedule:ident) => {
        impl $schedule {
            /// A rate that starts at `initial_learning_rate`; see the formula of the type.
            #[must_use]
            pub const fn new(
                initial_learning_rate: f64,
                decay_steps: u64,
                decay_rate: f64,
            ) -> Self {
                Self {
                    initial_learning_rate,
                    decay_steps,
                    decay_rate,
                    staircase: false,
                }
            }

            /// Lowers the rate once every `decay_steps` instead of at every step.
            #[must_use]
            pub const fn staircase(mut self) -> Self {
                self.staircase = true;
                self
            }

            /// How often the rate has been lowered.
            fn periods(&self, step: u64) -> f64 {
                if self.staircase {
                    return (step / self.decay_steps.max(1)) as f64;
                }
                step as f64 / self.decay_steps as f64
            }

            /// Whole periods are counted in integers: f32 would round some to the one before.
            fn trace_periods(&self, step: &Tensor) -> Tensor {
                let steps = self.decay_steps as f64;
                if self.staircase {
                    return (step / steps).convert(DType::F32);
                }
                step.convert(DType::F32) / steps
            }
        }
    };
}
staircase_decay!(ExponentialDecay);
staircase_decay!(InverseTimeDecay);

impl ExponentialDecay {
    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        above_zero("decay_rate", self.decay_rate)
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        self.initial_learning_rate * self.decay_rate.powf(self.periods(step))
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let periods = self.trace_periods(step);
        periods.like(self.decay_rate).pow(&periods) * self.initial_learning_rate
    }
}

impl InverseTimeDecay {
    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        at_least_zero("decay_rate", self.decay_rate)
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        self.initial_learning_rate / (1.0 + self.decay_rate * self.periods(step))
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        self.initial_learning_rate / (self.trace_periods(step) * self.decay_rate + 1.0)
    }
}

impl PolynomialDecay {
    /// A linear decay from `initial_learning_rate` to 1e-4 over `decay_steps`.
    #[must_use]
    pub const fn new(initial_learning_rate: f64, decay_steps: u64) -> Self {
        Self {
            initial_learning_rate,
            decay_steps,
            end_learning_rate: 1e-4,
            power: 1.0,
            cycle: false,
        }
    }

    /// The rate at the end (Keras' default is 1e-4).
    #[must_use]
    pub const fn end_learning_rate(mut self, rate: f64) -> Self {
        self.end_learning_rate = rate;
        self
    }

    /// The exponent of the remaining fraction.
    #[must_use]
    pub const fn power(mut self, power: f64) -> Self {
        self.power = power;
        self
    }

    /// Starts again, from a lower rate, each time the steps are over.
    #[must_use]
    pub const fn cycle(mut self) -> Self {
        self.cycle = true;
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        at_least_zero("end_learning_rate", self.end_learning_rate)?;
        above_zero("power", self.power)
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let total = if self.cycle {
            let cycles = step.div_ceil(self.decay_steps.max(1)).max(1);
            self.decay_steps.saturating_mul(cycles)
        } else {
            self.decay_steps
        };
        let left = total.saturating_sub(step) as f64 / total as f64;
        let range = self.initial_learning_rate - self.end_learning_rate;
        range * left.powf(self.power) + self.end_learning_rate
    }

    /// Steps are counted in integers: in f32 more than all could be over, a negative number to a power.
    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let steps = step.like(self.decay_steps as f64);
        let total = if self.cycle {
            let cycles = (step + &steps - 1.0) / &steps;
            cycles.maximum(&step.like(1.0)) * steps
        } else {
            steps
        };
        let left = (&total - step).maximum(&step.like(0.0));
        let left = left.convert(DType::F32) / total.convert(DType::F32);
        let range = self.initial_learning_rate - self.end_learning_rate;
        left.pow(&left.like(self.power)) * range + self.end_learning_rate
    }
}
