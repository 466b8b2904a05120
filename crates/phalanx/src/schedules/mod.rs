//! Learning rates as functions of the step, on the host and in a graph.
//!
//! The step is the optimizer's count of batches from 0; with gradient accumulation that is the count of
//! micro-steps, as in Keras 3.

mod cosine;
mod custom;
mod decay;
mod noam;
mod one_cycle;
mod piecewise;
mod ramp_up;

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use cosine::{CosineDecay, CosineDecayRestarts};
pub use custom::{CustomSchedule, LearningRateSchedule};
pub use decay::{ExponentialDecay, InverseTimeDecay, PolynomialDecay};
pub use noam::NoamDecay;
pub use one_cycle::{Anneal, OneCycle};
pub use piecewise::PiecewiseConstantDecay;
pub use ramp_up::RampUpExponentialDecay;

use crate::config::{
    self, Component, Described, Description, Entry, Family, Field, Kind, at_least_zero,
};
use crate::{Error, Result};

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
    /// See [`NoamDecay`].
    NoamDecay(NoamDecay),
    /// See [`OneCycle`].
    OneCycle(OneCycle),
    /// See [`LearningRateSchedule`].
    Custom(CustomSchedule),
}

impl Schedule {
    /// The kinds that [`from_config`](Self::from_config) knows.
    pub const KINDS: [&'static str; 10] = [
        "constant",
        "exponential_decay",
        "inverse_time_decay",
        "polynomial_decay",
        "piecewise_constant_decay",
        "cosine_decay",
        "cosine_decay_restarts",
        "ramp_up_exponential_decay",
        "noam_decay",
        "one_cycle",
    ];

    /// The rate at a step, computed on the host.
    #[must_use]
    pub fn value(&self, step: u64) -> f64 {
        match self {
            Self::Constant(rate) => *rate,
            Self::ExponentialDecay(s) => s.value(step),
            Self::InverseTimeDecay(s) => s.value(step),
            Self::PolynomialDecay(s) => s.value(step),
            Self::PiecewiseConstantDecay(s) => s.value(step),
            Self::CosineDecay(s) => s.value(step),
            Self::CosineDecayRestarts(s) => s.value(step),
            Self::RampUpExponentialDecay(s) => s.value(step),
            Self::NoamDecay(s) => s.value(step),
            Self::OneCycle(s) => s.value(step),
            Self::Custom(s) => s.0.value(step),
        }
    }

    /// The rate as an f32 scalar of a graph, from the i64 scalar of the step.
    #[must_use]
    #[track_caller]
    pub fn trace(&self, step: &Tensor) -> Tensor {
        match self {
            Self::Constant(rate) => step.graph().scalar(DType::F32, *rate),
            Self::ExponentialDecay(s) => s.trace(step),
            Self::InverseTimeDecay(s) => s.trace(step),
            Self::PolynomialDecay(s) => s.trace(step),
            Self::PiecewiseConstantDecay(s) => s.trace(step),
            Self::CosineDecay(s) => s.trace(step),
            Self::CosineDecayRestarts(s) => s.trace(step),
            Self::RampUpExponentialDecay(s) => s.trace(step),
            Self::NoamDecay(s) => s.trace(step),
            Self::OneCycle(s) => s.trace(step),
            Self::Custom(s) => s.trace(step),
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
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Constant(_) => Self::KINDS[0],
            Self::ExponentialDecay(_) => Self::KINDS[1],
            Self::InverseTimeDecay(_) => Self::KINDS[2],
            Self::PolynomialDecay(_) => Self::KINDS[3],
            Self::PiecewiseConstantDecay(_) => Self::KINDS[4],
            Self::CosineDecay(_) => Self::KINDS[5],
            Self::CosineDecayRestarts(_) => Self::KINDS[6],
            Self::RampUpExponentialDecay(_) => Self::KINDS[7],
            Self::NoamDecay(_) => Self::KINDS[8],
            Self::OneCycle(_) => Self::KINDS[9],
            Self::Custom(s) => s.0.kind(),
        }
    }

    /// Whether every number makes sense.
    ///
    /// # Errors
    /// [`Error::User`] naming the field, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        let problem = match self {
            Self::Constant(rate) => at_least_zero("learning_rate", *rate),
            Self::ExponentialDecay(s) => s.check(),
            Self::InverseTimeDecay(s) => s.check(),
            Self::PolynomialDecay(s) => s.check(),
            Self::PiecewiseConstantDecay(s) => s.check(),
            Self::CosineDecay(s) => s.check(),
            Self::CosineDecayRestarts(s) => s.check(),
            Self::RampUpExponentialDecay(s) => s.check(),
            Self::NoamDecay(s) => s.check(),
            Self::OneCycle(s) => s.check(),
            Self::Custom(s) => s.check(),
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
            Self::NoamDecay(s) => config::write(kind, s),
            Self::OneCycle(s) => config::write(kind, s),
            Self::Custom(s) => s.0.config(),
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
        let schedule = Entry::read(&Self::entries(), Family::Schedule, kind, fields)?;
        Self::check(&schedule)?;
        Ok(schedule)
    }

    /// The schedules with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        Entry::descriptions(&Self::entries())
    }

    fn entries() -> Vec<Entry<Self>> {
        let constant = Rate { learning_rate: 0.0 };
        vec![
            Entry::with(Rate::COMPONENT, constant, |rate| {
                Self::Constant(rate.learning_rate)
            }),
            Entry::new(ExponentialDecay::new(0.0, 1, 1.0)),
            Entry::new(InverseTimeDecay::new(0.0, 1, 1.0)),
            Entry::new(PolynomialDecay::new(0.0, 1)),
            Entry::new(PiecewiseConstantDecay::new([], [0.0])),
            Entry::new(CosineDecay::new(0.0, 1)),
            Entry::new(CosineDecayRestarts::new(0.0, 1)),
            Entry::new(RampUpExponentialDecay::new(0.0, 0, 1)),
            Entry::new(NoamDecay::new(1, 1)),
            Entry::new(OneCycle::new(0.0, 1)),
        ]
    }

    /// The schedule of a value in a configuration: a number, a kind with its settings (`{cosine_decay: {..}}`), or
    /// settings with their `kind` among them.
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
        if let Some((kind, settings @ Value::Object(_))) = fields.iter().next()
            && fields.len() == 1
        {
            return Self::from_config(kind, settings);
        }
        match fields.remove("kind") {
            Some(Value::String(kind)) => Self::from_config(&kind, &Value::Object(fields)),
            _ => Err(Error::user(format!(
                "expected a number, or a schedule with its settings as in {{\"cosine_decay\": {{..}}}}, got {value}"
            ))),
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Rate {
    learning_rate: f64,
}

impl Described for Rate {
    const COMPONENT: Component = Component {
        name: "constant",
        doc: "the same at every step",
        fields: &[
            Field::required("learning_rate", Kind::AT_LEAST_ZERO, "the rate").example("0.001"),
        ],
    };
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.config().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        // A number is checked by its owner, which knows the name of the field.
        if let Some(rate) = value.as_f64() {
            return Ok(Self::Constant(rate));
        }
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
    NoamDecay,
    OneCycle,
);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configurations_round_trip() {
        let schedules: [Schedule; 10] = [
            0.1.into(),
            ExponentialDecay::new(0.1, 10, 0.5).staircase().into(),
            InverseTimeDecay::new(0.1, 10, 0.5).into(),
            PolynomialDecay::new(0.1, 10).power(2.0).cycle().into(),
            PiecewiseConstantDecay::new([5, 10], [1.0, 0.5, 0.1]).into(),
            CosineDecay::new(0.0, 20).warmup(0.2, 10).alpha(0.1).into(),
            CosineDecayRestarts::new(0.1, 10).m_mul(0.5).into(),
            RampUpExponentialDecay::new(5e-5, 5, 1).replicas(8).into(),
            NoamDecay::new(512, 4000).factor(2.0).into(),
            OneCycle::new(0.1, 9)
                .pct_start(0.5)
                .anneal_strategy(Anneal::Linear)
                .three_phase()
                .into(),
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
    fn a_ramp_of_epochs_is_one_of_steps_at_their_begins() {
        let steps = RampUpExponentialDecay::new(5e-5, 5, 2).sustain_steps(3);
        let epochs = Schedule::from(steps.clone().steps_per_epoch(40));
        let steps = Schedule::from(steps);
        for epoch in 0..20 {
            let expected = steps.value(epoch);
            for step in [0, 1, 39] {
                assert_eq!(epochs.value(40 * epoch + step), expected, "{epoch}, {step}");
            }
        }
        let wrong = json!({"kind": "ramp_up_exponential_decay", "max_learning_rate": 0.1, "ramp_up_steps": 1, "decay_steps": 1, "steps_per_epoch": 0});
        let message = Schedule::from_value(&wrong).unwrap_err().to_string();
        assert!(message.contains("`steps_per_epoch`"), "{message}");
    }

    #[test]
    fn the_rate_of_a_transformer_rises_and_falls() {
        let schedule = Schedule::from(NoamDecay::new(512, 4000));
        // The paper's formula at its steps 1, 4000 and 16000, which count from 1.
        let peak = (512.0 * 4000.0_f64).powf(-0.5);
        for (step, expected) in [(0, peak / 4000.0), (3999, peak), (15_999, peak / 2.0)] {
            let value = schedule.value(step);
            assert!((value / expected - 1.0).abs() < 1e-12, "{step}: {value}");
        }
        let never = json!({"kind": "noam_decay", "width": 512, "warmup_steps": 0});
        let message = Schedule::from_value(&never).unwrap_err().to_string();
        assert_eq!(
            message,
            "noam_decay: `warmup_steps` must be a whole number of at least 1, got 0"
        );
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
        let share = json!({"kind": "one_cycle", "max_learning_rate": 0.1, "total_steps": 9, "pct_start": 1.5});
        assert_eq!(
            message(share),
            "one_cycle: `pct_start` must be a number from 0 to 1, got 1.5"
        );
        let none = Schedule::from(OneCycle::new(0.1, 9).pct_start(-0.5)).check();
        assert!(none.unwrap_err().to_string().contains("got -0.5"));
        assert!(message(json!("fast")).starts_with("expected a number, or a schedule"));
        assert!(Schedule::from(f64::NAN).check().is_err());
    }
}
