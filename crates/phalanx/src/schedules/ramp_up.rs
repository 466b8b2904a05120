use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};

/// Linear growth to a maximum scaled by the number of replicas, a plateau, then exponential decay:
/// `(max * replicas - min) * decay_rate^((step - ramp_up - sustain) / decay_steps) + min`.
///
/// Not in Keras. `replicas` is filled in by the trainer when it is absent. With `steps_per_epoch` steps are counted in whole epochs: the rate stays
/// the same through each, as where a callback sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RampUpExponentialDecay {
    start_learning_rate: f64,
    max_learning_rate: f64,
    min_learning_rate: f64,
    ramp_up_steps: u64,
    sustain_steps: u64,
    decay_steps: u64,
    decay_rate: f64,
    pub(super) replicas: Option<usize>,
    steps_per_epoch: Option<u64>,
}

impl Described for RampUpExponentialDecay {
    const COMPONENT: Component = Component {
        name: "ramp_up_exponential_decay",
        doc: "rises to a maximum, stays there, then falls exponentially",
        fields: &[
            Field::optional(
                "start_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate at the start",
            ),
            Field::required(
                "max_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the highest rate for one replica; it is multiplied by their number",
            )
            .example("0.00005"),
            Field::optional(
                "min_learning_rate",
                Kind::AT_LEAST_ZERO,
                "the rate that it falls to",
            ),
            Field::required("ramp_up_steps", Kind::COUNT, "number of steps of the rise")
                .example("500"),
            Field::optional(
                "sustain_steps",
                Kind::COUNT,
                "number of steps at the maximum",
            ),
            Field::required(
                "decay_steps",
                Kind::POSITIVE,
                "number of steps in which it falls by `decay_rate`",
            )
            .example("1000"),
            Field::optional(
                "decay_rate",
                Kind::ABOVE_ZERO,
                "what the distance to the minimum is multiplied by in `decay_steps` steps",
            ),
            Field::optional(
                "replicas",
                Kind::POSITIVE,
                "number of replicas; by default the strategy's",
            ),
            Field::optional(
                "steps_per_epoch",
                Kind::POSITIVE,
                "number of steps of an epoch: where it is given, the other numbers of steps are numbers of epochs, and the rate stays the same through each",
            ),
        ],
    };
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
            steps_per_epoch: None,
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

    /// Counts in epochs of this number of steps: `ramp_up_steps`, `sustain_steps` and `decay_steps` are numbers of epochs then.
    #[must_use]
    pub const fn steps_per_epoch(mut self, steps: u64) -> Self {
        self.steps_per_epoch = Some(steps);
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("start_learning_rate", self.start_learning_rate)?;
        at_least_zero("max_learning_rate", self.max_learning_rate)?;
        at_least_zero("min_learning_rate", self.min_learning_rate)?;
        above_zero("decay_steps", self.decay_steps as f64)?;
        above_zero("decay_rate", self.decay_rate)?;
        let steps = self.steps_per_epoch.unwrap_or(1);
        above_zero("steps_per_epoch", steps as f64)?;
        self.replicas
            .map_or(Ok(()), |replicas| above_zero("replicas", replicas as f64))
    }

    fn peak(&self) -> f64 {
        self.max_learning_rate * self.replicas.unwrap_or(1) as f64
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let step = self.steps_per_epoch.map_or(step, |steps| step / steps);
        let (step, ramp) = (step as f64, self.ramp_up_steps as f64);
        if step < ramp {
            return (self.peak() - self.start_learning_rate) / ramp * step
                + self.start_learning_rate;
        }
        let decaying = (step - ramp - self.sustain_steps as f64).max(0.0);
        let left = self.decay_rate.powf(decaying / self.decay_steps as f64);
        (self.peak() - self.min_learning_rate) * left + self.min_learning_rate
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let step = match self.steps_per_epoch {
            None => step.clone(),
            Some(steps) => step / steps as f64,
        };
        let (step, ramp) = (step.convert(DType::F32), self.ramp_up_steps as f64);
        let decaying = (&step - (ramp + self.sustain_steps as f64)).maximum(&step.like(0.0));
        let left = step
            .like(self.decay_rate)
            .pow(&(decaying / self.decay_steps as f64));
        let decayed = left * (self.peak() - self.min_learning_rate) + self.min_learning_rate;
        if self.ramp_up_steps == 0 {
            return decayed;
        }
        let slope = (self.peak() - self.start_learning_rate) / ramp;
        let rising = &step * slope + self.start_learning_rate;
        step.less(&step.like(ramp)).select(&rising, &decayed)
    }
}
