//! What a threshold can reach that keeps another share at a bound.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::confusion::{CLASS_ID, Cases, count, exceeded, ratio, vectors};
use super::counting::Counting;
use super::logits::{FROM_LOGITS, scores};
use crate::config::{Component, Described, Field, Kind};

const NUM_THRESHOLDS: Field = Field::optional(
    "num_thresholds",
    Kind::POSITIVE,
    "number of thresholds from 0 to 1 that are tried",
);

macro_rules! operating_points {
    ($($(#[$doc:meta])* $metric:ident = $name:literal, $text:literal, $bound:ident, $kept:ident, $best:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $metric {
            $bound: f64,
            num_thresholds: usize,
            class_id: Option<usize>,
            from_logits: bool,
        }

        impl Described for $metric {
            const COMPONENT: Component = Component {
                name: $name,
                doc: $text,
                fields: &[
                    Field::required(stringify!($bound), Kind::SHARE, concat!("the ", stringify!($bound), " that a threshold must have")).example("0.9"),
                    NUM_THRESHOLDS,
                    CLASS_ID,
                    FROM_LOGITS,
                ],
            };
        }

        impl $metric {
            #[doc = concat!("Of thresholds with at least this ", stringify!($bound), ", from 0 to 1; there are 200 of them, as in Keras.")]
            #[must_use]
            pub const fn new($bound: f64) -> Self {
                Self {
                    $bound,
                    num_thresholds: 200,
                    class_id: None,
                    from_logits: false,
                }
            }

            /// Sets the number of thresholds, which are spread evenly from 0 to 1; a single one is 0.5.
            #[must_use]
            pub const fn num_thresholds(mut self, count: usize) -> Self {
                self.num_thresholds = count;
                self
            }

            /// Counts one class alone: targets and scores of this column.
            #[must_use]
            pub const fn class_id(mut self, class: usize) -> Self {
                self.class_id = Some(class);
                self
            }

            /// Takes scores as logits.
            #[must_use]
            pub const fn from_logits(mut self) -> Self {
                self.from_logits = true;
                self
            }
        }

        impl Counting for $metric {
            fn check(&self) -> Result<(), String> {
                if self.num_thresholds == 0 {
                    return Err("`num_thresholds` must be at least 1, got 0".to_owned());
                }
                match self.$bound {
                    share if (0.0..=1.0).contains(&share) => Ok(()),
                    share => Err(format!(concat!("`", stringify!($bound), "` must be a number from 0 to 1, got {}"), share)),
                }
            }

            fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
                !self.from_logits
            }

            fn state(&self) -> Vec<MetricStateSpec> {
                vectors(["positives", "negatives"], bins(self.num_thresholds))
            }

            #[track_caller]
            fn update(
                &self,
                y_true: &Tensor,
                y_pred: &Tensor,
                weight: Option<&Tensor>,
            ) -> Option<Vec<Tensor>> {
                let scores = scores(y_pred, self.from_logits);
                let cases = Cases::of_class($name, self.class_id, y_true, &scores, weight)?;
                Some(binned(&cases, self.num_thresholds))
            }

            fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
                vec![best(state, (self.num_thresholds, self.$bound), Point::$kept, Point::$best)]
            }
        }
    )*};
}
operating_points! {
    /// The highest precision of the thresholds whose recall is at least a given one; 0 where there is none.
    ///
    /// Scores are probabilities from 0 to 1, or logits with [`from_logits`](Self::from_logits) and where the loss takes logits. A score
    /// is a yes above a threshold, and every target but 0 is one.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 0.0, 0.0, 1.0, 1.0]);
    /// let y_pred = column([0.0, 0.3, 0.8, 0.3, 0.8]);
    /// let result = measure(PrecisionAtRecall::new(0.5), y_true, y_pred)?;
    /// println!("{result:.4}");
    /// assert_eq!(format!("{result:.4}"), "0.5000");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    PrecisionAtRecall = "precision_at_recall", "the highest precision at a recall of at least `recall`", recall, recall, precision;
    /// The highest recall of the thresholds whose precision is at least a given one; 0 where there is none.
    ///
    /// Scores and thresholds are as for [`PrecisionAtRecall`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 0.0, 0.0, 1.0, 1.0]);
    /// let y_pred = column([0.0, 0.3, 0.8, 0.3, 0.8]);
    /// let result = measure(RecallAtPrecision::new(0.4), y_true, y_pred)?;
    /// println!("{result:.4}");
    /// assert_eq!(format!("{result:.4}"), "1.0000");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    RecallAtPrecision = "recall_at_precision", "the highest recall at a precision of at least `precision`", precision, precision, recall;
    /// The highest sensitivity, the share of positive targets that is found, of the thresholds with at least a given specificity.
    ///
    /// Scores and thresholds are as for [`PrecisionAtRecall`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 0.0, 0.0, 1.0, 1.0]);
    /// let y_pred = column([0.0, 0.3, 0.8, 0.3, 0.8]);
    /// let result = measure(SensitivityAtSpecificity::new(0.5), y_true, y_pred)?;
    /// println!("{result:.4}");
    /// assert_eq!(format!("{result:.4}"), "0.5000");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    SensitivityAtSpecificity = "sensitivity_at_specificity", "the highest share of positive targets found, with a specificity of at least `specificity`", specificity, specificity, recall;
    /// The highest specificity, the share of negative targets that are taken for such, of the thresholds with at least a given sensitivity.
    ///
    /// Scores and thresholds are as for [`PrecisionAtRecall`].
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let y_true = column([0.0, 0.0, 0.0, 1.0, 1.0]);
    /// let y_pred = column([0.0, 0.3, 0.8, 0.3, 0.8]);
    /// let result = measure(SpecificityAtSensitivity::new(0.5), y_true, y_pred)?;
    /// println!("{result:.4}");
    /// assert_eq!(format!("{result:.4}"), "0.6667");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    SpecificityAtSensitivity = "specificity_at_sensitivity", "the highest share of negative targets taken for such, with a sensitivity of at least `sensitivity`", sensitivity, recall, specificity;
}

/// One for each number of thresholds that a score can be above; none is above 1.
const fn bins(thresholds: usize) -> usize {
    if thresholds > 2 { thresholds } else { 2 }
}

/// Weights of positive and of negative targets by how many thresholds their scores are above.
fn binned(cases: &Cases, thresholds: usize) -> Vec<Tensor> {
    let above = match thresholds {
        1 => exceeded(&cases.scores, &[0.5])
            .convert(DType::F32)
            .sum(&[1]),
        _ => (&cases.scores * (thresholds - 1) as f64).ceil(),
    };
    let bins = bins(thresholds);
    let bin = above.clamp(0.0, (bins - 1) as f64).convert(DType::I32);
    let bin = bin.one_hot(bins, DType::Bool);
    vec![
        count(&bin, &cases.positives()),
        count(&bin, &cases.negatives()),
    ]
}

/// Shares at a threshold.
struct Point {
    true_positives: f64,
    false_positives: f64,
    positives: f64,
    negatives: f64,
}

impl Point {
    fn recall(&self) -> f64 {
        ratio(self.true_positives, self.positives)
    }

    fn precision(&self) -> f64 {
        ratio(
            self.true_positives,
            self.true_positives + self.false_positives,
        )
    }

    fn specificity(&self) -> f64 {
        ratio(self.negatives - self.false_positives, self.negatives)
    }
}

/// The largest of a share over the thresholds of which another share is at least a bound, as near as f32 tells them apart; 0 where
/// there is none.
fn best(
    state: &[Vec<f64>],
    (thresholds, bound): (usize, f64),
    kept: impl Fn(&Point) -> f64,
    share: impl Fn(&Point) -> f64,
) -> f64 {
    let [yes, no] = state else {
        return f64::NAN;
    };
    let (positives, negatives) = (yes.iter().sum(), no.iter().sum());
    let point = |threshold: usize| Point {
        true_positives: yes[threshold + 1..].iter().sum(),
        false_positives: no[threshold + 1..].iter().sum(),
        positives,
        negatives,
    };
    let points = (0..thresholds.min(yes.len())).map(point);
    let feasible = points.filter(|point| kept(point) as f32 >= bound as f32);
    feasible.map(|point| share(&point)).fold(0.0, f64::max)
}
