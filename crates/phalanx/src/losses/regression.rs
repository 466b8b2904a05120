//! Distances between numbers and between distributions, meaned or summed over the last dim.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::shapes::{mean_of_last, of_pairs};
use super::{EPSILON, ExampleLoss};
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

/// Mean absolute percentage error: `100 * mean(|y_true - y_pred| / max(|y_true|, 1e-7))` over the last dim.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[2.0, 4.0], [1.0, 5.0]]);
/// let y_pred = rows([[1.0, 5.0], [1.0, 4.0]]);
/// let loss = per_example(MeanAbsolutePercentageError, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[37.5000, 10.0000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanAbsolutePercentageError;

impl Described for MeanAbsolutePercentageError {
    const COMPONENT: Component = Component {
        name: "mean_absolute_percentage_error",
        doc: "the mean of absolute differences in percent of the target",
        fields: &[],
    };
}

/// Mean squared logarithmic error: `mean((log(1 + y_true) - log(1 + y_pred))^2)` over the last dim, both raised to 1e-7 where they
/// are below.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[1.0, 1.0], [1.0, 0.0]]);
/// let loss = per_example(MeanSquaredLogarithmicError, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.2402, 0.2402]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanSquaredLogarithmicError;

impl Described for MeanSquaredLogarithmicError {
    const COMPONENT: Component = Component {
        name: "mean_squared_logarithmic_error",
        doc: "the mean of squared differences of logarithms",
        fields: &[],
    };
}

/// The logarithm of the hyperbolic cosine of the error: `mean(log(cosh(y_pred - y_true)))` over the last dim, near `e^2 / 2` for
/// small errors and `|e| - log(2)` for large ones.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[1.0, 1.0], [0.0, 0.0]]);
/// let loss = per_example(LogCosh, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.2169, 0.0000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCosh;

impl Described for LogCosh {
    const COMPONENT: Component = Component {
        name: "log_cosh",
        doc: "squared differences near 0, absolute ones far from it, without a corner",
        fields: &[],
    };
}

/// Poisson loss of counts: `mean(y_pred - y_true * log(y_pred + 1e-7))` over the last dim, for predicted rates above 0.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[2.0, 0.0], [1.0, 3.0]]);
/// let y_pred = rows([[1.0, 1.0], [1.0, 3.0]]);
/// let loss = per_example(Poisson, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[1.0000, 0.3521]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poisson;

impl Described for Poisson {
    const COMPONENT: Component = Component {
        name: "poisson",
        doc: "how unlikely counts are with the predicted rates, which have to be above 0",
        fields: &[],
    };
}

/// Minus the cosine of the angle between target and prediction along the last dim, from -1 (the same direction) to 1.
///
/// As a metric it is the cosine itself, of which larger values are better, as in Keras. Keras' `axis` is always the last.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [1.0, 1.0]]);
/// let y_pred = rows([[1.0, 0.0], [2.0, 2.0]]);
/// let loss = per_example(CosineSimilarity, y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{:.4} {:.4}", loss[0].abs(), loss[1]), "0.0000 -1.0000");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CosineSimilarity;

impl Described for CosineSimilarity {
    const COMPONENT: Component = Component {
        name: "cosine_similarity",
        doc: "minus the cosine of the angle between target and prediction; as a metric the cosine",
        fields: &[],
    };
}

impl ExampleLoss for MeanSquaredError {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            mean_of_last(&(t - p).square())
        })
    }
}

impl ExampleLoss for MeanAbsoluteError {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            mean_of_last(&(t - p).abs())
        })
    }
}

impl ExampleLoss for MeanAbsolutePercentageError {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let size = t.abs().maximum(&t.like(EPSILON));
            mean_of_last(&((t - p) / size).abs()) * 100.0
        })
    }
}

impl ExampleLoss for MeanSquaredLogarithmicError {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let log = |x: &Tensor| x.maximum(&x.like(EPSILON)).log1p();
            mean_of_last(&(log(p) - log(t)).square())
        })
    }
}

impl ExampleLoss for LogCosh {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let size = (p - t).abs();
            // log((e^x + e^-x) / 2), without a power that overflows and without a difference from log 2 near 0.
            let tail = ((&size * -2.0).expm1() * 0.5).log1p();
            mean_of_last(&(size + tail))
        })
    }
}

impl ExampleLoss for Poisson {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            mean_of_last(&(p - t * (p + EPSILON).log()))
        })
    }
}

impl ExampleLoss for CosineSimilarity {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let last = p.rank() - 1;
            -(direction(t, last) * direction(p, last)).sum(&[last])
        })
    }
}

/// Vectors along the last dim at length 1; those below a length of 1e-7 become as much longer as one of 1e-7, so that 0 stays 0.
fn direction(vectors: &Tensor, last: usize) -> Tensor {
    let square = vectors.square().sum(&[last]);
    let length = square.maximum(&square.like(EPSILON * EPSILON)).sqrt();
    vectors / length.keep_dims(&[last])
}

impl Huber {
    /// A loss that is linear for errors above `delta`, which must be above 0.
    #[must_use]
    pub const fn new(delta: f64) -> Self {
        Self { delta }
    }
}

impl ExampleLoss for Huber {
    fn check(&self) -> Result<()> {
        config::above_zero("delta", self.delta)
            .map_err(|problem| Error::user(format!("huber: {problem}")))
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let error = p - t;
            let size = error.abs();
            let near = error.square() * 0.5;
            let far = &size * self.delta - 0.5 * self.delta * self.delta;
            let is_near = size.less_equal(&size.like(self.delta));
            mean_of_last(&is_near.select(&near, &far))
        })
    }
}

impl Default for Huber {
    /// Keras' `delta` of 1.
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl ExampleLoss for KlDivergence {
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let (t, p) = (t.clamp(EPSILON, 1.0), p.clamp(EPSILON, 1.0));
            (&t * (&t / &p).log()).sum(&[t.rank() - 1])
        })
    }
}
