//! Learning rates as functions of the step, on the host and in a graph.
//!
//! The step is the optimizer's count of batches from 0; with gradient accumulation that is the count of
//! micro-steps, as in Keras 3.

use std::f64::consts::PI;

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{Error, Result, config};

/// A learning rate over time; a number is a constant one.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// The same at every step, and settable between steps.
    Constant(f64),
    /// See [`ExponentialDecay`].
    ExponentialDecay(ExponentialDecay),
    /// See [`InverseTimeDecay`].
    InverseTimeDecay(InverseTimeDecay),
    /// See [`PolynomialDecay`].
    PolynomialDecay(PolynomialDecay),
    /// See [`PiecewiseConstantDecay`].
    PiecewiseConstantDecay(PiecewiseConstantDecay),
    /// See [`CosineDecay`].
    CosineDecay(CosineDecay),
    /// See [`CosineDecayRestarts`].
    CosineDecayRestarts(CosineDecayRestarts),
    /// See [`RampUpExponentialDecay`].
    RampUpExponentialDecay(RampUpExponentialDecay),
}

/// `initial * rate^(step / steps)`, the exponent rounded down when `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExponentialDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    decay_rate: f64,
    staircase: bool,
}

/// `initial / (1 + rate * step / steps)`, the quotient rounded down when `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InverseTimeDecay {
    initial_learning_rate: f64,
    decay_steps: u64,
    decay_rate: f64,
    staircase: bool,
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

/// `values[i]` for the first `i` with `step <= boundaries[i]`, else the last value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PiecewiseConstantDecay {
    boundaries: Vec<u64>,
    values: Vec<f64>,
}

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

/// Linear growth to a maximum scaled by the number of replicas, a plateau, then exponential decay:
/// `(max * replicas - min) * decay_rate^((step - ramp_up - sustain) / decay_steps) + min`.
///
/// Not in Keras. `replicas` is filled in by the trainer when it is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RampUpExponentialDecay {
    start_learning_rate: f64,
    max_learning_rate: f64,
    min_learning_rate: f64,
    ramp_up_steps: u64,
    sustain_steps: u64,
    decay_steps: u64,
    decay_rate: f64,
    replicas: Option<usize>,
}

impl Schedule {
    /// The kinds that [`from_config`](Self::from_config) knows.
    pub const KINDS: [&'static str; 8] = [
        "constant",
        "exponential_decay",
        "inverse_time_decay",
        "polynomial_decay",
        "piecewise_constant_decay",
        "cosine_decay",
        "cosine_decay_restarts",
        "ramp_up_exponential_decay",
    ];

    /// The rate at a step, computed on the host.
    #[must_use]
    pub fn value(&self, step: u64) -> f64 {
        let at = step as f64;
        match self {
            Self::Constant(rate) => *rate,
            Self::ExponentialDecay(s) => s.value(at),
            Self::InverseTimeDecay(s) => s.value(at),
            Self::PolynomialDecay(s) => s.value(at),
            Self::PiecewiseConstantDecay(s) => s.value(step),
            Self::CosineDecay(s) => s.value(at),
            Self::CosineDecayRestarts(s) => s.value(at),
            Self::RampUpExponentialDecay(s) => s.value(at),
        }
    }

    /// The rate as an f32 scalar of a graph, from the i64 scalar of the step.
    #[must_use]
    #[track_caller]
    pub fn trace(&self, step: &Tensor) -> Tensor {
        let at = step.convert(DType::F32);
        match self {
            Self::Constant(rate) => at.like(*rate),
            Self::ExponentialDecay(s) => s.trace(&at),
            Self::InverseTimeDecay(s) => s.trace(&at),
            Self::PolynomialDecay(s) => s.trace(&at),
            Self::PiecewiseConstantDecay(s) => s.trace(step),
            Self::CosineDecay(s) => s.trace(&at),
            Self::CosineDecayRestarts(s) => s.trace(&at),
            Self::RampUpExponentialDecay(s) => s.trace(&at),
        }
    }

    /// The schedule with the number of replicas filled in where it was left open.
    #[must_use]
    pub fn for_replicas(mut self, replicas: usize) -> Self {
        if let Self::RampUpExponentialDecay(ramp) = &mut self {
            ramp.replicas.get_or_insert(replicas);
        }
        self
    }

    /// The name in configurations.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Constant(_) => Self::KINDS[0],
            Self::ExponentialDecay(_) => Self::KINDS[1],
            Self::InverseTimeDecay(_) => Self::KINDS[2],
            Self::PolynomialDecay(_) => Self::KINDS[3],
            Self::PiecewiseConstantDecay(_) => Self::KINDS[4],
            Self::CosineDecay(_) => Self::KINDS[5],
            Self::CosineDecayRestarts(_) => Self::KINDS[6],
            Self::RampUpExponentialDecay(_) => Self::KINDS[7],
        }
    }

    /// Whether every number makes sense.
    ///
    /// # Errors
    /// [`Error::User`] naming the field, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        let problem = match self {
            Self::Constant(rate) => rate_at_least_zero("learning_rate", *rate),
            Self::ExponentialDecay(s) => {
                rate_at_least_zero("initial_learning_rate", s.initial_learning_rate)
                    .and_then(|()| above_zero("decay_steps", s.decay_steps as f64))
                    .and_then(|()| above_zero("decay_rate", s.decay_rate))
            }
            Self::InverseTimeDecay(s) => {
                rate_at_least_zero("initial_learning_rate", s.initial_learning_rate)
                    .and_then(|()| above_zero("decay_steps", s.decay_steps as f64))
                    .and_then(|()| rate_at_least_zero("decay_rate", s.decay_rate))
            }
            Self::PolynomialDecay(s) => s.check(),
            Self::PiecewiseConstantDecay(s) => s.check(),
            Self::CosineDecay(s) => s.check(),
            Self::CosineDecayRestarts(s) => s.check(),
            Self::RampUpExponentialDecay(s) => s.check(),
        };
        problem.map_err(|problem| match self {
            Self::Constant(_) => Error::user(problem),
            _ => Error::user(format!("{}: {problem}", self.kind())),
        })
    }

    /// The settings: a number for a constant, else the fields with the `kind` among them.
    #[must_use]
    pub fn config(&self) -> Value {
        let kind = self.kind();
        let mut fields = match self {
            Self::Constant(rate) => return Value::from(*rate),
            Self::ExponentialDecay(s) => config::write(kind, s),
            Self::InverseTimeDecay(s) => config::write(kind, s),
            Self::PolynomialDecay(s) => config::write(kind, s),
            Self::PiecewiseConstantDecay(s) => config::write(kind, s),
            Self::CosineDecay(s) => config::write(kind, s),
            Self::CosineDecayRestarts(s) => config::write(kind, s),
            Self::RampUpExponentialDecay(s) => config::write(kind, s),
        };
        if let Value::Object(fields) = &mut fields {
            fields.insert("kind".to_owned(), Value::from(kind));
        }
        fields
    }

    /// The schedule of a kind and its settings, absent ones as Keras' defaults.
    ///
    /// # Errors
    /// An unknown kind or field (naming the nearest), a missing field, or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        const DECAY: &[&str] = &["initial_learning_rate", "decay_steps", "decay_rate"];
        let schedule = match kind {
            "constant" => {
                let rate = config::read(
                    kind,
                    &Rate { learning_rate: 0.0 },
                    &["learning_rate"],
                    fields,
                )?;
                Self::Constant(rate.learning_rate)
            }
            "exponential_decay" => {
                let template = ExponentialDecay::new(0.0, 1, 1.0);
                config::read(kind, &template, DECAY, fields)?.into()
            }
            "inverse_time_decay" => {
                let template = InverseTimeDecay::new(0.0, 1, 1.0);
                config::read(kind, &template, DECAY, fields)?.into()
            }
            "polynomial_decay" => {
                let template = PolynomialDecay::new(0.0, 1);
                config::read(kind, &template, &DECAY[..2], fields)?.into()
            }
            "piecewise_constant_decay" => {
                let template = PiecewiseConstantDecay::new([], [0.0]);
                config::read(kind, &template, &["boundaries", "values"], fields)?.into()
            }
            "cosine_decay" => {
                let template = CosineDecay::new(0.0, 1);
                config::read(kind, &template, &DECAY[..2], fields)?.into()
            }
            "cosine_decay_restarts" => {
                let template = CosineDecayRestarts::new(0.0, 1);
                let required = ["initial_learning_rate", "first_decay_steps"];
                config::read(kind, &template, &required, fields)?.into()
            }
            "ramp_up_exponential_decay" => {
                let template = RampUpExponentialDecay::new(0.0, 0, 1);
                let required = ["max_learning_rate", "ramp_up_steps", "decay_steps"];
                config::read(kind, &template, &required, fields)?.into()
            }
            _ => return Err(config::unknown_kind("schedule", kind, &Self::KINDS)),
        };
        Self::check(&schedule)?;
        Ok(schedule)
    }

    /// The schedule of a value in a configuration: a number, or fields with their `kind` among them.
    ///
    /// # Errors
    /// As [`from_config`](Self::from_config), and a value that is neither.
    pub fn from_value(value: &Value) -> Result<Self> {
        if let Some(rate) = value.as_f64() {
            let schedule = Self::Constant(rate);
            schedule.check()?;
            return Ok(schedule);
        }
        let mut fields = value.as_object().cloned().unwrap_or_default();
        match fields.remove("kind") {
            Some(Value::String(kind)) => Self::from_config(&kind, &Value::Object(fields)),
            _ => Err(Error::user(format!(
                "expected a number or a schedule with its `kind`, got {value}"
            ))),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Rate {
    learning_rate: f64,
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.config().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_value(&value).map_err(serde::de::Error::custom)
    }
}

impl From<f64> for Schedule {
    fn from(rate: f64) -> Self {
        Self::Constant(rate)
    }
}

impl From<f32> for Schedule {
    fn from(rate: f32) -> Self {
        Self::Constant(f64::from(rate))
    }
}

macro_rules! into_schedule {
    ($($schedule:ident),* $(,)?) => {$(
        impl From<$schedule> for Schedule {
            fn from(schedule: $schedule) -> Self {
                Self::$schedule(schedule)
            }
        }
    )*};
}
into_schedule!(
    ExponentialDecay,
    InverseTimeDecay,
    PolynomialDecay,
    PiecewiseConstantDecay,
    CosineDecay,
    CosineDecayRestarts,
    RampUpExponentialDecay,
);

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

            fn periods(&self, step: f64) -> f64 {
                let periods = step / self.decay_steps as f64;
                if self.staircase {
                    periods.floor()
                } else {
                    periods
                }
            }

            fn trace_periods(&self, step: &Tensor) -> Tensor {
                let periods = step / self.decay_steps as f64;
                if self.staircase {
                    periods.floor()
                } else {
                    periods
                }
            }
        }
    };
}
staircase_decay!(ExponentialDecay);
staircase_decay!(InverseTimeDecay);

impl ExponentialDecay {
    fn value(&self, step: f64) -> f64 {
        self.initial_learning_rate * self.decay_rate.powf(self.periods(step))
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        step.like(self.decay_rate).pow(&self.trace_periods(step)) * self.initial_learning_rate
    }
}

impl InverseTimeDecay {
    fn value(&self, step: f64) -> f64 {
        self.initial_learning_rate / (1.0 + self.decay_rate * self.periods(step))
    }

    fn trace(&self, step: &Tensor) -> Tensor {
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

    fn check(&self) -> std::result::Result<(), String> {
        rate_at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        rate_at_least_zero("end_learning_rate", self.end_learning_rate)?;
        above_zero("power", self.power)
    }

    fn value(&self, step: f64) -> f64 {
        let steps = self.decay_steps as f64;
        let done = if self.cycle {
            step / (steps * (step / steps).ceil().max(1.0))
        } else {
            step.min(steps) / steps
        };
        let range = self.initial_learning_rate - self.end_learning_rate;
        range * (1.0 - done).powf(self.power) + self.end_learning_rate
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        let steps = self.decay_steps as f64;
        let done = if self.cycle {
            let cycles = (step / steps).ceil().maximum(&step.like(1.0));
            step / (cycles * steps)
        } else {
            step.minimum(&step.like(steps)) / steps
        };
        let range = self.initial_learning_rate - self.end_learning_rate;
        let left = (1.0 - done).pow(&step.like(self.power));
        left * range + self.end_learning_rate
    }
}

impl PiecewiseConstantDecay {
    /// `values` has one more number than `boundaries`, which ascend.
    #[must_use]
    pub fn new(boundaries: impl Into<Vec<u64>>, values: impl Into<Vec<f64>>) -> Self {
        Self {
            boundaries: boundaries.into(),
            values: values.into(),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let (boundaries, values) = (self.boundaries.len(), self.values.len());
        if values != boundaries + 1 {
            return Err(format!(
                "`values` must have one more number than `boundaries`, got {values} and {boundaries}"
            ));
        }
        if !self.boundaries.is_sorted_by(|a, b| a < b) {
            return Err(format!(
                "`boundaries` must ascend, got {:?}",
                self.boundaries
            ));
        }
        self.values
            .iter()
            .try_for_each(|&value| rate_at_least_zero("values", value))
    }

    fn value(&self, step: u64) -> f64 {
        let passed = self.boundaries.iter().filter(|&&b| step > b).count();
        self.values.get(passed).copied().unwrap_or(f64::NAN)
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        let rate = |&value: &f64| step.graph().scalar(DType::F32, value);
        let last = rate(self.values.last().unwrap_or(&f64::NAN));
        let pieces = self.boundaries.iter().zip(&self.values);
        pieces.rev().fold(last, |later, (&boundary, value)| {
            let reached = step.less_equal(&step.like(boundary as f64));
            reached.select(&rate(value), &later)
        })
    }
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

    fn check(&self) -> std::result::Result<(), String> {
        rate_at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        rate_at_least_zero("alpha", self.alpha)?;
        self.warmup_target
            .map_or(Ok(()), |target| rate_at_least_zero("warmup_target", target))
    }

    fn value(&self, step: f64) -> f64 {
        let steps = self.decay_steps as f64;
        let (from, start) = self.cosine_start();
        if step < start {
            let growth = from - self.initial_learning_rate;
            return growth * step / start + self.initial_learning_rate;
        }
        let done = (step - start).min(steps) / steps;
        from * ((1.0 - self.alpha) * 0.5 * (1.0 + (PI * done).cos()) + self.alpha)
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        let steps = self.decay_steps as f64;
        let (from, start) = self.cosine_start();
        let done = (step - start).minimum(&step.like(steps)) / steps;
        let height = ((done * PI).cos() + 1.0) * 0.5;
        let cosine = (height * (1.0 - self.alpha) + self.alpha) * from;
        if start == 0.0 {
            return cosine;
        }
        let growth = from - self.initial_learning_rate;
        let warming = step / start * growth + self.initial_learning_rate;
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

    fn check(&self) -> std::result::Result<(), String> {
        rate_at_least_zero("initial_learning_rate", self.initial_learning_rate)?;
        above_zero("first_decay_steps", self.first_decay_steps as f64)?;
        if self.t_mul.is_nan() || self.t_mul < 1.0 || self.t_mul.is_infinite() {
            return Err(format!("`t_mul` must be at least 1, got {}", self.t_mul));
        }
        above_zero("m_mul", self.m_mul)?;
        rate_at_least_zero("alpha", self.alpha)
    }

    /// Keeps a step that lies on a restart from falling short of it by rounding.
    const NUDGE: f64 = 2e-6;

    fn value(&self, step: f64) -> f64 {
        let cycles = step / self.first_decay_steps as f64;
        let (cycle, done) = if self.t_mul == 1.0 {
            (cycles.floor(), cycles.fract())
        } else {
            let grown = 1.0 - cycles * (1.0 - self.t_mul);
            let cycle = (grown.ln() / self.t_mul.ln() + Self::NUDGE).floor();
            let length = self.t_mul.powf(cycle);
            let before = (1.0 - length) / (1.0 - self.t_mul);
            (cycle, (cycles - before) / length)
        };
        let height = 0.5 * self.m_mul.powf(cycle) * (1.0 + (PI * done).cos());
        self.initial_learning_rate * ((1.0 - self.alpha) * height + self.alpha)
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        let cycles = step / self.first_decay_steps as f64;
        let (cycle, done) = if self.t_mul == 1.0 {
            let cycle = cycles.floor();
            let done = cycles - &cycle;
            (cycle, done)
        } else {
            let grown = &cycles * (self.t_mul - 1.0) + 1.0;
            let cycle = (grown.log() / self.t_mul.ln() + Self::NUDGE).floor();
            let length = step.like(self.t_mul).pow(&cycle);
            let before = (&length - 1.0) / (self.t_mul - 1.0);
            let done = (cycles - before) / length;
            (cycle, done)
        };
        let height = step.like(self.m_mul).pow(&cycle) * ((done * PI).cos() + 1.0) * 0.5;
        (height * (1.0 - self.alpha) + self.alpha) * self.initial_learning_rate
    }
}

impl RampUpExponentialDecay {
    /// Growth from 0 to `max_learning_rate` per replica over `ramp_up_steps`, then 0.8 of it every
    /// `decay_steps`.
    #[must_use]
    pub const fn new(max_learning_rate: f64, ramp_up_steps: u64, decay_steps: u64) -> Self {
        Self {
            start_learning_rate: 0.0,
            max_learning_rate,
            min_learning_rate: 0.0,
            ramp_up_steps,
            sustain_steps: 0,
            decay_steps,
            decay_rate: 0.8,
            replicas: None,
        }
    }

    /// The rate of step 0, whatever the number of replicas.
    #[must_use]
    pub const fn start_learning_rate(mut self, rate: f64) -> Self {
        self.start_learning_rate = rate;
        self
    }

    /// The rate that the decay ends in.
    #[must_use]
    pub const fn min_learning_rate(mut self, rate: f64) -> Self {
        self.min_learning_rate = rate;
        self
    }

    /// How long the maximum lasts.
    #[must_use]
    pub const fn sustain_steps(mut self, steps: u64) -> Self {
        self.sustain_steps = steps;
        self
    }

    /// What is left of the range above the minimum after every `decay_steps`.
    #[must_use]
    pub const fn decay_rate(mut self, rate: f64) -> Self {
        self.decay_rate = rate;
        self
    }

    /// The factor of the maximum, in place of the trainer's number of replicas.
    #[must_use]
    pub const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    fn check(&self) -> std::result::Result<(), String> {
        rate_at_least_zero("start_learning_rate", self.start_learning_rate)?;
        rate_at_least_zero("max_learning_rate", self.max_learning_rate)?;
        rate_at_least_zero("min_learning_rate", self.min_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        above_zero("decay_rate", self.decay_rate)?;
        self.replicas
            .map_or(Ok(()), |replicas| above_zero("replicas", replicas as f64))
    }

    fn peak(&self) -> f64 {
        self.max_learning_rate * self.replicas.unwrap_or(1) as f64
    }

    fn value(&self, step: f64) -> f64 {
        let ramp = self.ramp_up_steps as f64;
        if step < ramp {
            return (self.peak() - self.start_learning_rate) / ramp * step
                + self.start_learning_rate;
        }
        let decaying = (step - ramp - self.sustain_steps as f64).max(0.0);
        let left = self.decay_rate.powf(decaying / self.decay_steps as f64);
        (self.peak() - self.min_learning_rate) * left + self.min_learning_rate
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        let ramp = self.ramp_up_steps as f64;
        let decaying = (step - (ramp + self.sustain_steps as f64)).maximum(&step.like(0.0));
        let left = step
            .like(self.decay_rate)
            .pow(&(decaying / self.decay_steps as f64));
        let decayed = left * (self.peak() - self.min_learning_rate) + self.min_learning_rate;
        if self.ramp_up_steps == 0 {
            return decayed;
        }
        let slope = (self.peak() - self.start_learning_rate) / ramp;
        let rising = step * slope + self.start_learning_rate;
        step.less(&step.like(ramp)).select(&rising, &decayed)
    }
}

fn rate_at_least_zero(field: &str, value: f64) -> std::result::Result<(), String> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!(
        "`{field}` must be a number of at least 0, got {value}"
    ))
}

fn above_zero(field: &str, value: f64) -> std::result::Result<(), String> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!("`{field}` must be a number above 0, got {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configurations_round_trip() {
        let schedules: [Schedule; 8] = [
            0.1.into(),
            ExponentialDecay::new(0.1, 10, 0.5).staircase().into(),
            InverseTimeDecay::new(0.1, 10, 0.5).into(),
            PolynomialDecay::new(0.1, 10).power(2.0).cycle().into(),
            PiecewiseConstantDecay::new([5, 10], [1.0, 0.5, 0.1]).into(),
            CosineDecay::new(0.0, 20).warmup(0.2, 10).alpha(0.1).into(),
            CosineDecayRestarts::new(0.1, 10).m_mul(0.5).into(),
            RampUpExponentialDecay::new(5e-5, 5, 1).replicas(8).into(),
        ];
        for schedule in schedules {
            assert_eq!(Schedule::from_value(&schedule.config()).unwrap(), schedule);
        }
    }

    #[test]
    fn the_ramp_scales_its_maximum_by_the_replicas() {
        let ramp = RampUpExponentialDecay::new(5e-5, 5, 1)
            .start_learning_rate(1e-5)
            .min_learning_rate(1e-5)
            .sustain_steps(2);
        let schedule = Schedule::from(ramp).for_replicas(8);
        for (step, expected) in [
            (0, 1e-5),
            (1, 8.8e-5),
            (5, 4e-4),
            (7, 4e-4),
            (8, 3.9e-4 * 0.8 + 1e-5),
        ] {
            assert!((schedule.value(step) - expected).abs() < 1e-12, "{step}");
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let message = |value: Value| Schedule::from_value(&value).unwrap_err().to_string();
        assert_eq!(
            message(json!({"kind": "cosine_decay", "initial_learning_rate": 0.1})),
            "cosine_decay: field `decay_steps` is missing; add it"
        );
        assert_eq!(
            message(json!({"kind": "cosine_decays"})),
            "unknown schedule `cosine_decays`; did you mean `cosine_decay`?"
        );
        assert_eq!(
            message(json!(-0.1)),
            "`learning_rate` must be a number of at least 0, got -0.1"
        );
        let pieces =
            json!({"kind": "piecewise_constant_decay", "boundaries": [3], "values": [1.0]});
        assert_eq!(
            message(pieces),
            "piecewise_constant_decay: `values` must have one more number than `boundaries`, got 1 and 1"
        );
        assert!(message(json!("fast")).starts_with("expected a number or a schedule"));
        assert!(Schedule::from(f64::NAN).check().is_err());
    }
}
