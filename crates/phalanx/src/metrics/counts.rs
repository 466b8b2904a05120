//! How many answers are right or wrong, yes or no, at thresholds.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::confusion::{Cases, THRESHOLDS, Thresholds, count, exceeded, vectors};
use super::counting::Counting;
use super::logits::{FROM_LOGITS, divides_probabilities, scores};
use super::{Better, MetricStateSpec};
use crate::config::{Component, Described};

macro_rules! counts {
    ($($(#[$doc:meta])* $metric:ident = $name:literal, $text:literal, $answer:literal, $of:ident, $better:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $metric {
            thresholds: Thresholds,
            from_logits: bool,
        }

        impl $metric {
            /// A result for each of these thresholds.
            #[must_use]
            pub fn at(thresholds: impl Into<Vec<f64>>) -> Self {
                Self {
                    thresholds: Thresholds::Many(thresholds.into()),
                    from_logits: false,
                }
            }

            /// Takes scores as logits: thresholds are for their probabilities.
            #[must_use]
            pub const fn from_logits(mut self) -> Self {
                self.from_logits = true;
                self
            }
        }

        impl Default for $metric {
            /// Keras' threshold of 0.5.
            fn default() -> Self {
                Self {
                    thresholds: Thresholds::One(0.5),
                    from_logits: false,
                }
            }
        }

        impl Described for $metric {
            const COMPONENT: Component = Component {
                name: $name,
                doc: $text,
                fields: &[THRESHOLDS, FROM_LOGITS],
            };
        }

        impl Counting for $metric {
            fn check(&self) -> Result<(), String> {
                self.thresholds.check()
            }

            fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
                let mut thresholds = self.thresholds.values().iter().copied();
                !self.from_logits && thresholds.all(divides_probabilities)
            }

            fn better(&self) -> Option<Better> {
                Some(Better::$better)
            }

            fn state(&self) -> Vec<MetricStateSpec> {
                vectors([$name], self.thresholds.values().len())
            }

            #[track_caller]
            fn update(
                &self,
                y_true: &Tensor,
                y_pred: &Tensor,
                weight: Option<&Tensor>,
            ) -> Option<Vec<Tensor>> {
                let scores = scores(y_pred, self.from_logits);
                let cases = Cases::new($name, y_true, &scores, weight)?;
                let is_yes = exceeded(&cases.scores, self.thresholds.values());
                let counted = if $answer { is_yes } else { is_yes.not() };
                Some(vec![count(&counted, &cases.$of())])
            }
        }
    )*};
}
counts! {
    /// The weight of the positive targets that are found, those with a score above a threshold.
    ///
    /// Where the loss takes logits, thresholds between 0 and 1 are for their probabilities; Keras compares the logits.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 1.0, 1.0, 1.0]);
    /// let y_pred = column([1.0, 0.0, 1.0, 1.0]);
    /// assert_eq!(measure(TruePositives::default(), y_true, y_pred)?, 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    TruePositives = "true_positives", "how many positive targets are found", true, positives, Higher;
    /// The weight of the negative targets whose score is above a threshold; logits as for [`TruePositives`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 1.0, 0.0, 0.0]);
    /// let y_pred = column([0.0, 0.0, 1.0, 1.0]);
    /// assert_eq!(measure(FalsePositives::default(), y_true, y_pred)?, 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    FalsePositives = "false_positives", "how many negative targets are taken for positive ones", true, negatives, Lower;
    /// The weight of the negative targets whose score is not above a threshold; logits as for [`TruePositives`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 1.0, 0.0, 0.0]);
    /// let y_pred = column([1.0, 0.0, 0.0, 0.0]);
    /// assert_eq!(measure(TrueNegatives::default(), y_true, y_pred)?, 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    TrueNegatives = "true_negatives", "how many negative targets are taken for such", false, negatives, Higher;
    /// The weight of the positive targets that are not found; logits as for [`TruePositives`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 1.0, 1.0, 1.0]);
    /// let y_pred = column([0.0, 1.0, 0.0, 0.0]);
    /// assert_eq!(measure(FalseNegatives::default(), y_true, y_pred)?, 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    FalseNegatives = "false_negatives", "how many positive targets are not found", false, positives, Lower;
}
