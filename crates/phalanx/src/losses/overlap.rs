//! What the overlap of targets and predictions lacks of both, for regions of images: losses of whole examples.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::shapes::paired;
use super::{EPSILON, ExampleLoss};
use crate::config::{self, Component, Described, Field, Kind};
use crate::{Error, Result};

const AXIS: Field = Field::optional(
    "axis",
    Kind::Either(&[Kind::Null, Kind::List(&Kind::SIZE, 1, usize::MAX)]),
    "the dimensions, from 1 on, of which one number is made: [1, 2] for a number for each channel of an image; null for all",
);

/// Dice loss, of regions: `1 - 2 sum(y_true * y_pred) / (sum(y_true) + sum(y_pred) + 1e-7)`, summed over an example (Milletari et al.,
/// "V-Net", 2016).
///
/// Targets and predictions `[batch, ..]`, shares from 0 to 1; one number for each example, or for each of what
/// [`axis`](Self::axis) leaves. Keras without `axis` makes one number of the whole batch, which depends on what else is in the batch
/// and how replicas divide it; this is Keras' loss with `axis` naming all dims but the first.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]);
/// let y_pred = rows([[0.0, 1.0, 0.0, 1.0], [0.4, 0.0, 0.0, 0.9]]);
/// let loss = per_example(Dice::new(), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.5000, 0.7576]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dice {
    axis: Option<Vec<usize>>,
}

impl Described for Dice {
    const COMPONENT: Component = Component {
        name: "dice",
        doc: "what the overlap of predicted and true regions of an example lacks of both",
        fields: &[AXIS],
    };
}

/// Tversky loss, a Dice loss whose mistakes count differently: `1 - both / (both + alpha * missed + beta * wrong + 1e-7)` with
/// `both = sum(y_true * y_pred)`, `missed = sum(y_true * (1 - y_pred))` and `wrong = sum((1 - y_true) * y_pred)` over an example (Salehi
/// et al. 2017).
///
/// Which of the mistakes `alpha` and `beta` are of is as Keras computes it; its text has them the other way round. Shapes and `axis`
/// are as for [`Dice`].
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]);
/// let y_pred = rows([[0.0, 1.0, 0.0, 1.0], [0.4, 0.0, 0.0, 0.9]]);
/// let loss = per_example(Tversky::new(0.7, 0.3), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.5000, 0.7765]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tversky {
    alpha: f64,
    beta: f64,
    axis: Option<Vec<usize>>,
}

impl Described for Tversky {
    const COMPONENT: Component = Component {
        name: "tversky",
        doc: "a Dice loss whose mistakes count differently",
        fields: &[
            Field::optional(
                "alpha",
                Kind::AT_LEAST_ZERO,
                "how much of the true region that is missed counts",
            ),
            Field::optional(
                "beta",
                Kind::AT_LEAST_ZERO,
                "how much of the predicted region that is wrong counts",
            ),
            AXIS,
        ],
    };
}

impl Dice {
    /// A number for each example.
    #[must_use]
    pub const fn new() -> Self {
        Self { axis: None }
    }

    /// Makes one number of these dims, from 1 on: 1 and 2 for a number for each channel of an image.
    #[must_use]
    pub fn axis(mut self, dims: impl Into<Vec<usize>>) -> Self {
        self.axis = Some(dims.into());
        self
    }
}

impl Tversky {
    /// A number for each example, with what is missed counted `alpha` times and what is wrong `beta` times, both at least 0.
    #[must_use]
    pub const fn new(alpha: f64, beta: f64) -> Self {
        let axis = None;
        Self { alpha, beta, axis }
    }

    /// Makes one number of these dims, from 1 on: 1 and 2 for a number for each channel of an image.
    #[must_use]
    pub fn axis(mut self, dims: impl Into<Vec<usize>>) -> Self {
        self.axis = Some(dims.into());
        self
    }
}

impl Default for Tversky {
    /// Keras' `alpha` and `beta` of 0.5, with which it is nearly [`Dice`].
    fn default() -> Self {
        Self::new(0.5, 0.5)
    }
}

impl ExampleLoss for Dice {
    fn check(&self) -> Result<()> {
        check_axis(Self::COMPONENT.name, self.axis.as_deref())
    }

    fn kept_dims(&self, rank: usize) -> Vec<usize> {
        kept_dims(self.axis.as_deref(), rank)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let axis = self.axis.as_deref();
        of_examples(Self::COMPONENT.name, axis, y_true, y_pred, |t, p, dims| {
            let both = (t * p).sum(dims) * 2.0;
            1.0 - both / (t.sum(dims) + p.sum(dims) + EPSILON)
        })
    }
}

impl ExampleLoss for Tversky {
    fn check(&self) -> Result<()> {
        let name = Self::COMPONENT.name;
        config::at_least_zero("alpha", self.alpha)
            .and_then(|()| config::at_least_zero("beta", self.beta))
            .map_err(|problem| Error::user(format!("{name}: {problem}")))?;
        check_axis(name, self.axis.as_deref())
    }

    fn kept_dims(&self, rank: usize) -> Vec<usize> {
        kept_dims(self.axis.as_deref(), rank)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let axis = self.axis.as_deref();
        of_examples(Self::COMPONENT.name, axis, y_true, y_pred, |t, p, dims| {
            let both = (t * p).sum(dims);
            let missed = (t * (1.0 - p)).sum(dims);
            let wrong = ((1.0 - t) * p).sum(dims);
            1.0 - &both / (&both + missed * self.alpha + wrong * self.beta + EPSILON)
        })
    }
}

/// The dims of which no number is made.
fn kept_dims(axis: Option<&[usize]>, rank: usize) -> Vec<usize> {
    let is_kept = |dim: &usize| *dim == 0 || axis.is_some_and(|axis| !axis.contains(dim));
    (0..rank).filter(is_kept).collect()
}

/// Refuses the batch among the dims of which a number is made, and dims that are named twice.
fn check_axis(name: &str, axis: Option<&[usize]>) -> Result<()> {
    let axis = axis.unwrap_or(&[1]);
    let is_twice = |(place, dim)| axis[..place].contains(dim);
    if !axis.is_empty() && !axis.contains(&0) && !axis.iter().enumerate().any(is_twice) {
        return Ok(());
    }
    Err(Error::user(format!(
        "{name}: `axis` must be a list of dims from 1 on, each once, got {axis:?}; 0 is the batch, whose examples have a number each"
    )))
}

/// What `of_pair` makes of targets, predictions and the dims that it sums over; the graph's error where they do not fit.
///
/// Both have the predictions' dims, so that masks `[batch, height, width]` fit predictions with a channel.
#[track_caller]
fn of_examples(
    name: &str,
    axis: Option<&[usize]>,
    y_true: &Tensor,
    y_pred: &Tensor,
    of_pair: impl FnOnce(&Tensor, &Tensor, &[usize]) -> Tensor,
) -> Tensor {
    let Some((t, p)) = paired(name, y_true, y_pred) else {
        return y_pred.clone();
    };
    let given = if y_pred.rank() > 1 { y_pred } else { &p };
    let (rank, shape) = (given.rank(), given.dims());
    let dims = axis.map_or_else(|| (1..rank).collect(), <[usize]>::to_vec);
    if !dims.iter().all(|dim| (1..rank).contains(dim)) {
        let message = format!(
            "`axis` must be from 1 to {}, the dims of an example of y_pred {}, got {dims:?}",
            rank - 1,
            y_pred.shape()
        );
        y_pred.graph().fail(name, message);
        return y_pred.clone();
    }
    of_pair(&t.reshape(&shape), &p.reshape(&shape), &dims)
}
