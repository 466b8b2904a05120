//! Rates that fall along a cosine.

use std::f64::consts::PI;
use std::ops::Bound;

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};

/// Half a cosine from the start to `alpha` times it over `decay_steps`, after an optional linear warm-up.
///
/// With `warmup_target` the rate first grows from `initial` to it over `warmup_steps`, and the cosine
/// starts there. Without a target `warmup_steps` is not looked at, as in Keras.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CosineDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    alpha: f64,
    warmup_target: Option<f64>,
    warmup_steps: u64,
}

impl Described for CosineDecay {
    const COMPONENT: Component = Component {
        name: "cosine_decay",
        doc: "falls along half a cosine wave, after a linear warmup if given",
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
                "alpha",
                Kind::AT_LEAST_ZERO,
                "the rate at the end, as a share of that at the start",
            ),
            Field::optional(
                "warmup_target",
                Kind::AT_LEAST_ZERO,
                "the rate at the end of the warmup",
            ),
            Field::optional("warmup_steps", Kind::COUNT, "number of steps of the warmup"),
        ],
    };
}

/// Cosines that start again: cycle `i` lasts `first_decay_steps * t_mul^i` and starts at
/// `initial * m_mul^i`.
///
/// At a restart Keras' f32 rounding decides the side; here the new cycle has always begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CosineDecayRestarts {
    initial_learning_rate: f64,
    first_decay_steps: u64,
    t_mul: f64,
    m_mul: f64,
    alpha: f64,
}

impl Described for CosineDecayRestarts {
    const COMPONENT: Component = Component {
        name: "cosine_decay_restarts",
        doc: "falls along half a cosine wave again and again",
        fields: &[
            Field::required(
                "initial_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the start",
            )
            .example("0.1"),
            Field::required(
                "first_decay_steps",
                Kind::POSITIVE,
                "number of steps of the first fall",
            )
            .example("1000"),
            Field::optional(
                "t_mul",
                Kind::Number(Bound::Included(1.0), Bound::Unbounded),
                "how many times as long each fall is as the one before",
            ),
            Field::optional(
                "m_mul",
                Kind::ABOVE_ZERO,
                "how many times as high each start is as the one before",
            ),
            Field::optional(
                "alpha",
                Kind::AT_LEAST_ZERO,
                "the rate at the end of a fall, as a share of that at its start",
            ),
        ],
    };
}

impl CosineDecay {
    /// A cosine from `initial_learning_rate` to 0 over `decay_steps`.
    #[must_use]
    pub const fn new(initial_learning_rate: f64, decay_steps: u64) -> Self {
        Self {
            initial_learning_rate,
            decay_steps,
            alpha: 0.0,
            warmup_target: None,
            warmup_steps: 0,
        }
    }

    /// The fraction of the starting rate that is left at the end.
    #[must_use]
    pub const fn alpha(mut self, fraction: f64) -> Self {
        self.alpha = fraction;
        self
    }

    /// Grows linearly from the initial rate to `target` over `steps` first.
    #[must_use]
    pub const fn warmup(mut self, target: f64, steps: u64) -> Self {
        self.warmup_target = Some(target);
        self.warmup_steps = steps;
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        at_least_zero("alpha", self.alpha)?;
        self.warmup_target
            .map_or(Ok(()), |target| at_least_zero("warmup_target", target))
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let (step, steps) = (step as f64, self.decay_steps as f64);
        let (from, start) = self.cosine_start();
        if step < start {
            let growth = from - self.initial_learning_rate;
            return growth * step / start + self.initial_learning_rate;
        }
        let done = (step - start).min(steps) / steps;
        from * ((1.0 - self.alpha) * 0.5 * (1.0 + (PI * done).cos()) + self.alpha)
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let (step, steps) = (step.convert(DType::F32), self.decay_steps as f64);
        let (from, start) = self.cosine_start();
        let done = (&step - start).minimum(&step.like(steps)) / steps;
        let height = ((done * PI).cos() + 1.0) * 0.5;
        let cosine = (height * (1.0 - self.alpha) + self.alpha) * from;
        if start == 0.0 {
            return cosine;
        }
        let growth = from - self.initial_learning_rate;
        let warming = &step / start * growth + self.initial_learning_rate;
        step.less(&step.like(start)).select(&warming, &cosine)
    }

    /// The rate the cosine starts from and the step it starts at.
    fn cosine_start(&self) -> (f64, f64) {
        match self.warmup_target {
            Some(target) => (target, self.warmup_steps as f64),
            None => (self.initial_learning_rate, 0.0),
        }
    }
}

impl CosineDecayRestarts {
    /// Cycles of which each is twice as long as the one before and as high.
    #[must_use]
    pub const fn new(initial_learning_rate: f64, first_decay_steps: u64) -> Self {
        Self {
            initial_learning_rate,
            first_decay_steps,
            t_mul: 2.0,
            m_mul: 1.0,
            alpha: 0.0,
        }
    }

    /// How many times longer each cycle is than the one before.
    #[must_use]
    pub const fn t_mul(mut self, factor: f64) -> Self {
        self.t_mul = factor;
        self
    }

    /// How many times higher each cycle starts than the one before.
    #[must_use]
    pub const fn m_mul(mut self, factor: f64) -> Self {
        self.m_mul = factor;
        self
    }

    /// The fraction of the initial rate that is never gone below.
    #[must_use]
    pub const fn alpha(mut self, fraction: f64) -> Self {
        self.alpha = fraction;
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("first_decay_steps", self.first_decay_steps as f64)?;
        if self.t_mul.is_nan() || self.t_mul < 1.0 || self.t_mul.is_infinite() {
            return Err(format!("`t_mul` must be at least 1, got {}", self.t_mul));
        }
        above_zero("m_mul", self.m_mul)?;
        at_least_zero("alpha", self.alpha)
    }

    /// Keeps a step that lies on a restart from falling short of it by rounding, of f64: of f32 it would be more than a step of cycles
    /// that hardly grow.
    const NUDGE: f64 = 1e-9;

    pub(super) fn value(&self, step: u64) -> f64 {
        let first = self.first_decay_steps.max(1);
        let (cycle, done) = if self.t_mul == 1.0 {
            let done = (step % first) as f64 / first as f64;
            ((step / first) as f64, done)
        } else {
            let cycles = step as f64 / first as f64;
            let grown = 1.0 + cycles * (self.t_mul - 1.0);
            let cycle = (grown.ln() / self.t_mul.ln() + Self::NUDGE).floor();
            let length = self.t_mul.powf(cycle);
            let before = (length - 1.0) / (self.t_mul - 1.0);
            (cycle, (cycles - before) / length)
        };
        let height = 0.5 * self.m_mul.powf(cycle) * (1.0 + (PI * done).cos());
        self.initial_learning_rate * ((1.0 - self.alpha) * height + self.alpha)
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let first = self.first_decay_steps as f64;
        let (cycle, done) = if self.t_mul == 1.0 {
            let done = (step % first).convert(DType::F32) / first;
            ((step / first).convert(DType::F32), done)
        } else {
            let cycles = step.convert(DType::F64) / first;
            let grown = &cycles * (self.t_mul - 1.0) + 1.0;
            let cycle = (grown.log() / self.t_mul.ln() + Self::NUDGE).floor();
            let length = cycle.like(self.t_mul).pow(&cycle);
            let before = (&length - 1.0) / (self.t_mul - 1.0);
            let done = (cycles - before) / length;
            (cycle.convert(DType::F32), done.convert(DType::F32))
        };
        let height = cycle.like(self.m_mul).pow(&cycle) * ((done * PI).cos() + 1.0) * 0.5;
        (height * (1.0 - self.alpha) + self.alpha) * self.initial_learning_rate
    }
}
