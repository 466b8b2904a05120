//! Distances between numbers and between distributions, meaned or summed over the last dim.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::{EPSILON, paired};
use crate::config::{self, Component, Described, Field, Kind};
use crate::{Error, Result};

/// Mean squared error: `mean((y_true - y_pred)^2)` over the last dim.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[1.0, 3.0], [1.0, 0.0]]);
/// let loss = per_example(MeanSquaredError, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[2.5000, 0.5000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanSquaredError;

impl Described for MeanSquaredError {
    const COMPONENT: Component = Component {
        name: "mean_squared_error",
        doc: "the mean of squared differences",
        fields: &[],
    };
}

/// Mean absolute error: `mean(|y_true - y_pred|)` over the last dim.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[1.0, 3.0], [1.0, 0.0]]);
/// let loss = per_example(MeanAbsoluteError, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[1.5000, 0.5000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanAbsoluteError;

impl Described for MeanAbsoluteError {
    const COMPONENT: Component = Component {
        name: "mean_absolute_error",
        doc: "the mean of absolute differences",
        fields: &[],
    };
}

/// Huber loss, quadratic for small errors and linear for large ones: the mean over the last dim of `e^2 / 2` where
/// `|e| <= delta`, and of `delta * |e| - delta^2 / 2` elsewhere.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.5, 3.0]]);
/// let loss = per_example(Huber::new(1.0), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.1800, 1.3125]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Huber {
    delta: f64,
}

impl Described for Huber {
    const COMPONENT: Component = Component {
        name: "huber",
        doc: "squared differences below `delta`, absolute ones above",
        fields: &[Field::optional(
            "delta",
            Kind::ABOVE_ZERO,
            "where it becomes linear",
        )],
    };
}

/// Kullback-Leibler divergence of distributions: `sum(y_true * log(y_true / y_pred))` over the last dim, both clipped to
/// `[1e-7, 1]`.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.5, 0.5]]);
/// let y_pred = rows([[0.25, 0.75]]);
/// let loss = per_example(KlDivergence, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.1438]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KlDivergence;

impl Described for KlDivergence {
    const COMPONENT: Component = Component {
        name: "kl_divergence",
        doc: "the Kullback-Leibler divergence",
        fields: &[],
    };
}

impl MeanSquaredError {
    #[track_caller]
    pub(super) fn per_example(self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some((y_true, y_pred)) = paired("mean_squared_error", y_true, y_pred) else {
            return y_pred.clone();
        };
        (y_true - &y_pred).square().mean(&[y_pred.rank() - 1])
    }
}

impl MeanAbsoluteError {
    #[track_caller]
    pub(super) fn per_example(self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some((y_true, y_pred)) = paired("mean_absolute_error", y_true, y_pred) else {
            return y_pred.clone();
        };
        (y_true - &y_pred).abs().mean(&[y_pred.rank() - 1])
    }
}

impl Huber {
    /// A loss that is linear for errors above `delta`, which must be above 0.
    #[must_use]
    pub const fn new(delta: f64) -> Self {
        Self { delta }
    }

    pub(super) fn check(self) -> Result<()> {
        config::above_zero("delta", self.delta)
            .map_err(|problem| Error::user(format!("huber: {problem}")))
    }

    #[track_caller]
    pub(super) fn per_example(self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some((y_true, y_pred)) = paired("huber", y_true, y_pred) else {
            return y_pred.clone();
        };
        let error = &y_pred - y_true;
        let size = error.abs();
        let near = error.square() * 0.5;
        let far = &size * self.delta - 0.5 * self.delta * self.delta;
        let is_near = size.less_equal(&size.like(self.delta));
        is_near.select(&near, &far).mean(&[y_pred.rank() - 1])
    }
}

impl Default for Huber {
    /// Keras' `delta` of 1.
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl KlDivergence {
    #[track_caller]
    pub(super) fn per_example(self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some((y_true, y_pred)) = paired("kl_divergence", y_true, y_pred) else {
            return y_pred.clone();
        };
        let (t, p) = (y_true.clamp(EPSILON, 1.0), y_pred.clamp(EPSILON, 1.0));
        (&t * (&t / p).log()).sum(&[y_pred.rank() - 1])
    }
}
