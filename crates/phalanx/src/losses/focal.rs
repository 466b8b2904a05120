//! Focal cross-entropies, in which examples that are answered well count less (Lin et al., "Focal Loss for Dense Object Detection",
//! 2017).

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::crossentropy::{
    FROM_LOGITS, LABEL_SMOOTHING, binary_crossentropy, check_smoothing, log_probabilities, smooth,
};
use super::shapes::{mean_of_last, of_pairs};
use super::{EPSILON, ExampleLoss};
use crate::config::{Component, Described, Field, Kind};
use crate::{Error, Result};

const ALPHA: Field = Field::optional("alpha", Kind::SHARE, "how much the yes counts");
const GAMMA: Field = Field::optional(
    "gamma",
    Kind::AT_LEAST_ZERO,
    "how much less right answers count; 0 for as much",
);

/// Focal cross-entropy of independent yes-or-no answers: the mean over the last dim of `(1 - p_t)^gamma` times the binary
/// cross-entropy, where `p_t` is the probability of the right answer.
///
/// Targets and predictions `[batch, .., n]`. With logits the cross-entropy is computed from them; Keras clips their probabilities to
/// `[1e-7, 1 - 1e-7]` first, except on TensorFlow.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0], [0.0, 0.0]]);
/// let y_pred = rows([[0.6, 0.4], [0.4, 0.6]]);
/// let loss = per_example(BinaryFocalCrossentropy::from_probabilities(), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.3299, 0.2058]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinaryFocalCrossentropy {
    apply_class_balancing: bool,
    alpha: f64,
    gamma: f64,
    from_logits: bool,
    label_smoothing: f64,
}

impl Described for BinaryFocalCrossentropy {
    const COMPONENT: Component = Component {
        name: "binary_focal_crossentropy",
        doc: "cross-entropy of yes-or-no answers in which right ones count less",
        fields: &[
            Field::optional(
                "apply_class_balancing",
                Kind::Bool,
                "whether a yes counts `alpha` and a no `1 - alpha`",
            ),
            ALPHA,
            GAMMA,
            FROM_LOGITS,
            LABEL_SMOOTHING,
        ],
    };
}

/// Focal cross-entropy of one-hot or soft classes: `-sum(alpha * (1 - p)^gamma * y_true * log(p))` over the last dim.
///
/// Targets and predictions `[batch, .., classes]`. Probabilities are normalised and then clipped; with logits the logarithm is
/// computed from them, where Keras clips their probabilities to `[1e-7, 1 - 1e-7]`.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
/// let y_pred = rows([[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]);
/// let loss = per_example(CategoricalFocalCrossentropy::from_probabilities(), y_true, y_pred)?;
/// println!("{:.4e} {:.4}", loss[0], loss[1]);
/// assert_eq!(format!("{:.4}", loss[1]), "0.4663");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoricalFocalCrossentropy {
    alpha: f64,
    gamma: f64,
    from_logits: bool,
    label_smoothing: f64,
}

impl Described for CategoricalFocalCrossentropy {
    const COMPONENT: Component = Component {
        name: "categorical_focal_crossentropy",
        doc: "cross-entropy of classes given as shares in which right ones count less",
        fields: &[
            Field::optional("alpha", Kind::REAL, "what every class is multiplied by"),
            GAMMA,
            FROM_LOGITS,
            LABEL_SMOOTHING,
        ],
    };
}

macro_rules! focal {
    ($loss:ident, $alpha:expr, { $($field:ident: $value:expr)? }) => {
        impl $loss {
            /// Predictions are logits.
            #[must_use]
            pub const fn from_logits() -> Self {
                Self {
                    from_logits: true,
                    ..Self::from_probabilities()
                }
            }

            /// Predictions are probabilities (Keras' default), `alpha` is 0.25 and `gamma` 2.
            #[must_use]
            pub const fn from_probabilities() -> Self {
                Self {
                    $($field: $value,)?
                    alpha: 0.25,
                    gamma: 2.0,
                    from_logits: false,
                    label_smoothing: 0.0,
                }
            }

            /// Sets how much less right answers count, at least 0.
            #[must_use]
            pub const fn gamma(mut self, gamma: f64) -> Self {
                self.gamma = gamma;
                self
            }

            /// Moves targets this fraction of the way, from 0 to 1, towards the uniform answer.
            #[must_use]
            pub const fn label_smoothing(mut self, fraction: f64) -> Self {
                self.label_smoothing = fraction;
                self
            }

            fn check_settings(&self) -> Result<()> {
                check_smoothing(Self::COMPONENT.name, self.label_smoothing)?;
                let problem = match (self.gamma, self.alpha) {
                    (gamma, _) if !(gamma >= 0.0 && gamma.is_finite()) => {
                        format!("`gamma` must be a number of at least 0, got {gamma}")
                    }
                    (_, alpha) if !$alpha.contains(&alpha) => {
                        format!("`alpha` must be a number from {:?}, got {alpha}", $alpha)
                    }
                    _ => return Ok(()),
                };
                Err(Error::user(format!("{}: {problem}", Self::COMPONENT.name)))
            }
        }
    };
}
focal!(BinaryFocalCrossentropy, (0.0..=1.0), { apply_class_balancing: false });
focal!(CategoricalFocalCrossentropy, (f64::MIN..=f64::MAX), {});

impl BinaryFocalCrossentropy {
    /// Lets a yes count `alpha`, from 0 to 1, and a no `1 - alpha`.
    #[must_use]
    pub const fn balanced(mut self, alpha: f64) -> Self {
        self.apply_class_balancing = true;
        self.alpha = alpha;
        self
    }
}

impl CategoricalFocalCrossentropy {
    /// Multiplies every class by this.
    #[must_use]
    pub const fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }
}

impl ExampleLoss for BinaryFocalCrossentropy {
    fn check(&self) -> Result<()> {
        self.check_settings()
    }

    fn takes_logits(&self) -> Option<bool> {
        Some(self.from_logits)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let t = smooth(t, self.label_smoothing, 0.5);
            let losses = binary_crossentropy(&t, p, self.from_logits);
            let p = if self.from_logits {
                p.logistic()
            } else {
                p.clone()
            };
            let (yes, no) = (&t, 1.0 - &t);
            // The probability of the wrong answer; a sum of products, so that rounding does not take it below 0.
            let wrong = yes * (1.0 - &p) + &no * &p;
            let focal = losses * power(&wrong, self.gamma);
            mean_of_last(&match self.apply_class_balancing {
                true => focal * (yes * self.alpha + no * (1.0 - self.alpha)),
                false => focal,
            })
        })
    }
}

impl ExampleLoss for CategoricalFocalCrossentropy {
    fn check(&self) -> Result<()> {
        self.check_settings()
    }

    fn takes_logits(&self) -> Option<bool> {
        Some(self.from_logits)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        of_pairs(Self::COMPONENT.name, y_true, y_pred, |t, p| {
            let last = p.rank() - 1;
            let t = smooth(t, self.label_smoothing, 1.0 / p.dim(last) as f64);
            let log_p = log_probabilities(p, self.from_logits);
            let wrong = -log_p.expm1();
            -(power(&wrong, self.gamma) * t * log_p).sum(&[last]) * self.alpha
        })
    }
}

/// `base^exponent` of a base from 0 to 1; where roots would have a derivative without bound, the base is at least 1e-7.
fn power(base: &Tensor, exponent: f64) -> Tensor {
    match exponent {
        0.0 => base.like(1.0),
        1.0 => base.clone(),
        2.0 => base.square(),
        exponent => base.maximum(&base.like(EPSILON)).pow(&base.like(exponent)),
    }
}
