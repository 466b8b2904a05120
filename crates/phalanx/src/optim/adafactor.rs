use std::ops::Bound;

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::ParamSpec;
use super::options::LEARNING_RATE;
use super::rule::{Begun, Step, UpdateRule, Updated, described, named, setters};
use crate::config::{Component, Described, Field, Kind, above_zero};
use crate::schedules::Schedule;

/// What is kept of squared gradients for each row of the last two dims; of a variable without two dims, for each element.
const OF_ROWS: &str = "row_velocity";
/// For each column; of a variable without two dims nothing, in a slot that stays as it is.
const OF_COLUMNS: &str = "column_velocity";

/// Adafactor: squared gradients are kept as one number for each row and one for each column, little memory beside Adam's two for each element.
///
/// In update `t`, with `b = 1 - t^beta_2_decay`, `s = g^2 + epsilon_1` and means over the last dims:
/// `r = b r + (1 - b) mean_columns(s)`, `c = b c + (1 - b) mean_rows(s)`, `u = g / sqrt(r c / mean(r))`,
/// `v -= max(epsilon_2, rms(v)) min(rate, 1 / sqrt(t)) u / max(1, rms(u) / clip_threshold)`, where `rms` is of a whole variable
/// (Shazeer and Stern 2018). A variable of fewer than two dims has a mean of `s` for each element.
///
/// As in Keras the rate is never above `1 / sqrt(t)`, whatever its `relative_step` is, which is no setting here. Keras also keeps
/// `r c / mean(r)`, as large as the variable.
///
/// ```
#[doc = include_str!("example.md")]
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let x = descend(Adafactor::new(0.1))?;
/// println!("{x:.4?}");
/// assert_eq!(format!("{x:.4?}"), "[9.0000, 8.1418, 7.3989]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adafactor {
    learning_rate: Schedule,
    beta_2_decay: f64,
    epsilon_1: f64,
    epsilon_2: f64,
    clip_threshold: f64,
}

impl Described for Adafactor {
    const COMPONENT: Component = Component {
        name: "adafactor",
        doc: "like Adam, with squared gradients of rows and columns alone, for large variables",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "beta_2_decay",
                Kind::Number(Bound::Unbounded, Bound::Excluded(0.0)),
                "power of the number of the update by which running means take in less and less; below 0",
            ),
            Field::optional(
                "epsilon_1",
                Kind::ABOVE_ZERO,
                "what is added to squared gradients",
            ),
            Field::optional(
                "epsilon_2",
                Kind::ABOVE_ZERO,
                "least size that a variable counts as having",
            ),
            Field::optional(
                "clip_threshold",
                Kind::ABOVE_ZERO,
                "largest root mean square of an update, before the rate",
            ),
        ],
    };
}

impl Adafactor {
    /// Adafactor with Keras' `beta_2_decay` -0.8, `epsilon_1` 1e-30, `epsilon_2` 0.001 and `clip_threshold` 1.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            beta_2_decay: -0.8,
            epsilon_1: 1e-30,
            epsilon_2: 1e-3,
            clip_threshold: 1.0,
        }
    }
}

impl Default for Adafactor {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Adafactor {
    /// Running means keep `1 - t^beta_2_decay` of themselves in update `t`; below 0.
    beta_2_decay: f64,
    /// Added to squared gradients, above 0.
    epsilon_1: f64,
    /// The least root mean square of a variable that a step is in proportion to, above 0.
    epsilon_2: f64,
    /// The largest root mean square of an update before the rate, above 0.
    clip_threshold: f64,
});

impl UpdateRule for Adafactor {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![(OF_ROWS, 0.0), (OF_COLUMNS, 0.0)]
    }

    fn slot_dims(&self, slot: &str, spec: &ParamSpec) -> Vec<usize> {
        let dims = &spec.shape.dims;
        let of = |left_out: usize| {
            let kept = dims.iter().enumerate();
            let kept = kept.filter(|(dim, _)| dim + left_out != dims.len());
            kept.map(|(_, size)| *size).collect()
        };
        match (slot, dims.len()) {
            (OF_ROWS, 2..) => of(1),
            (OF_COLUMNS, 2..) => of(2),
            (OF_COLUMNS, _) => Vec::new(),
            _ => dims.clone(),
        }
    }

    fn begin(&self, step: &Step) -> Begun {
        let longest = 1.0 / step.number.sqrt();
        let kept = 1.0 - step.number.pow(&step.number.like(self.beta_2_decay));
        Begun::with([step.rate.minimum(&longest), kept])
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let [rate, kept] = named(scalars);
        let [rows, columns] = named(slots);
        let squares = gradient.square() + self.epsilon_1;
        let mean = |mean: &Tensor, value: &Tensor| mean * kept + value * (1.0 - kept);
        let rank = param.rank();
        let (rows, columns, velocity) = if rank < 2 {
            let velocity = mean(rows, &squares);
            (velocity.clone(), columns.clone(), velocity)
        } else {
            let (row, column) = (rank - 2, rank - 1);
            let rows = mean(rows, &squares.mean(&[column]));
            let columns = mean(columns, &squares.mean(&[row]));
            let shares = &rows / rows.mean(&[row]).keep_dims(&[row]);
            let velocity = shares.keep_dims(&[column]) * columns.keep_dims(&[row]);
            (rows, columns, velocity)
        };
        let update = gradient / velocity.sqrt();
        let excess = rms(&update) / self.clip_threshold;
        let update = update / excess.maximum(&excess.like(1.0));
        let size = rms(param);
        let step = size.maximum(&size.like(self.epsilon_2)) * rate;
        Updated::new(param - update * step, [rows, columns])
    }

    fn check(&self) -> Result<(), String> {
        if !(self.beta_2_decay < 0.0 && self.beta_2_decay.is_finite()) {
            return Err(format!(
                "`beta_2_decay` must be a number below 0, got {}",
                self.beta_2_decay
            ));
        }
        above_zero("epsilon_1", self.epsilon_1)?;
        above_zero("epsilon_2", self.epsilon_2)?;
        above_zero("clip_threshold", self.clip_threshold)
    }
}

/// The root of the mean of squares.
fn rms(tensor: &Tensor) -> Tensor {
    tensor.square().mean_all().sqrt()
}
