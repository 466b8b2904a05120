use std::f64::consts::FRAC_PI_2;

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero};

/// One cycle (Smith and Topin 2018): from `max / div_factor` up to the maximum in `pct_start` of the steps, then down to
/// `max / div_factor / final_div_factor` at the last of `total_steps`.
///
/// With `three_phase` it comes down to where it began in as many steps, and falls to the end in the rest. The formula and the defaults are
/// PyTorch's `OneCycleLR`; momentum stays as it is, as with its `cycle_momentum=False`. After the last step the rate stays, where PyTorch's ends
/// with an error. Not in Keras.
///
/// ```
/// use phalanx::optim::{Optimizer, Sgd};
/// use phalanx::schedules::{OneCycle, Schedule};
///
/// let schedule = OneCycle::new(0.5, 1000);
/// assert!((Schedule::from(schedule.clone()).value(299) - 0.5).abs() < 1e-12);
/// let optimizer = Optimizer::from(Sgd::new(schedule));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneCycle {
    max_learning_rate: f64,
    total_steps: u64,
    pct_start: f64,
    anneal_strategy: Anneal,
    div_factor: f64,
    final_div_factor: f64,
    three_phase: bool,
}

/// How a rate goes from one number to another in [`OneCycle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anneal {
    /// Along half a cosine.
    #[default]
    Cos,
    /// Along a line.
    Linear,
}

impl Described for OneCycle {
    const COMPONENT: Component = Component {
        name: "one_cycle",
        doc: "rises to a maximum, then falls far below its start, as PyTorch's OneCycleLR",
        fields: &[
            Field::required("max_learning_rate", Kind::AT_LEAST_ZERO, "the highest rate")
                .example("0.1"),
            Field::required(
                "total_steps",
                Kind::POSITIVE,
                "number of steps of the cycle",
            )
            .example("1000"),
            Field::optional(
                "pct_start",
                Kind::SHARE,
                "share of the steps in which it rises",
            ),
            Field::optional(
                "anneal_strategy",
                Kind::OneOf(&["cos", "linear"]),
                "along half a cosine wave, or along a line",
            ),
            Field::optional(
                "div_factor",
                Kind::ABOVE_ZERO,
                "how many times the highest rate is what it starts at",
            ),
            Field::optional(
                "final_div_factor",
                Kind::ABOVE_ZERO,
                "how many times what it starts at is what it ends at",
            ),
            Field::optional(
                "three_phase",
                Kind::Bool,
                "whether it first falls to its start, in as many steps as it rose, and then to the end",
            ),
        ],
    };
}

/// A part of the cycle: the steps at which it begins and ends, and the rates there.
struct Phase {
    steps: [f64; 2],
    rates: [f64; 2],
}

impl OneCycle {
    /// A cycle of `total_steps` with a rise to `max_learning_rate` in the first 3 tenths of them, along cosines.
    #[must_use]
    pub const fn new(max_learning_rate: f64, total_steps: u64) -> Self {
        Self {
            max_learning_rate,
            total_steps,
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    /// The share of the steps in which the rate rises, from 0 to 1; 0.3 by default.
    #[must_use]
    pub const fn pct_start(mut self, share: f64) -> Self {
        self.pct_start = share;
        self
    }

    /// How the rate goes from one number to another; along cosines by default.
    #[must_use]
    pub const fn anneal_strategy(mut self, strategy: Anneal) -> Self {
        self.anneal_strategy = strategy;
        self
    }

    /// How many times the rate at the start the maximum is; 25 by default.
    #[must_use]
    pub const fn div_factor(mut self, factor: f64) -> Self {
        self.div_factor = factor;
        self
    }

    /// How many times the rate at the end the rate at the start is; 10 000 by default.
    #[must_use]
    pub const fn final_div_factor(mut self, factor: f64) -> Self {
        self.final_div_factor = factor;
        self
    }

    /// Falls to the rate at the start in as many steps as it rose, and to the end in the rest.
    #[must_use]
    pub const fn three_phase(mut self) -> Self {
        self.three_phase = true;
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        at_least_zero("max_learning_rate", self.max_learning_rate)?;
        above_zero("total_steps", self.total_steps as f64)?;
        above_zero("div_factor", self.div_factor)?;
        above_zero("final_div_factor", self.final_div_factor)?;
        if (0.0..=1.0).contains(&self.pct_start) {
            return Ok(());
        }
        Err(format!(
            "`pct_start` must be a number from 0 to 1, got {}",
            self.pct_start
        ))
    }

    fn last_step(&self) -> f64 {
        self.total_steps.saturating_sub(1) as f64
    }

    /// The phases in their order; one whose end is before the first step is over at once, as in PyTorch.
    fn phases(&self) -> Vec<Phase> {
        let (most, first) = (
            self.max_learning_rate,
            self.max_learning_rate / self.div_factor,
        );
        let least = first / self.final_div_factor;
        let rise = self.pct_start * self.total_steps as f64;
        let (ends, rates) = match self.three_phase {
            false => (vec![rise - 1.0], vec![first, most, least]),
            true => (
                vec![rise - 1.0, 2.0 * rise - 2.0],
                vec![first, most, first, least],
            ),
        };
        let steps = [vec![0.0], ends, vec![self.last_step()]].concat();
        let phases = steps.windows(2).zip(rates.windows(2));
        let phase = |(steps, rates): (&[f64], &[f64])| Phase {
            steps: [steps[0], steps[1]],
            rates: [rates[0], rates[1]],
        };
        phases.map(phase).collect()
    }

    pub(super) fn value(&self, step: u64) -> f64 {
        let step = (step as f64).min(self.last_step());
        let mut phases = self.phases();
        let at = phases.iter().position(|phase| step <= phase.steps[1]);
        let phase = phases.swap_remove(at.unwrap_or(phases.len() - 1));
        let [from, to] = phase.rates;
        let done = phase.done(step);
        match self.anneal_strategy {
            // `(1 + cos(pi done)) / 2`, without the difference that has no digits near the end.
            Anneal::Cos => to + (from - to) * (done * FRAC_PI_2).cos().powi(2),
            Anneal::Linear => (to - from) * done + from,
        }
    }

    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let step = step.convert(DType::F32);
        let step = step.minimum(&step.like(self.last_step()));
        let rate = |phase: &Phase| {
            let [from, to] = phase.rates;
            let done = phase.traced(&step);
            match self.anneal_strategy {
                Anneal::Cos => (done * FRAC_PI_2).cos().square() * (from - to) + to,
                Anneal::Linear => done * (to - from) + from,
            }
        };
        let phases = self.phases();
        let mut rates = phases.iter().rev();
        let last = rates.next().map_or_else(|| step.zeros_like(), rate);
        rates.fold(last, |later, phase| {
            let reached = step.less_equal(&step.like(phase.steps[1]));
            reached.select(&rate(phase), &later)
        })
    }
}

impl Phase {
    /// How much of the phase lies behind at a step; all of one without steps.
    fn done(&self, step: f64) -> f64 {
        let [begin, end] = self.steps;
        match end == begin {
            true => 1.0,
            false => (step - begin) / (end - begin),
        }
    }

    fn traced(&self, step: &Tensor) -> Tensor {
        let [begin, end] = self.steps;
        match end == begin {
            true => step.like(1.0),
            false => (step - begin) / (end - begin),
        }
    }
}
