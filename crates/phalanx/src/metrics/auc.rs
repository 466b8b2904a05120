//! The area under a curve over all thresholds.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::confusion::{Cases, count, exceeded, ratio};
use super::logits::{FROM_LOGITS, scores};

use crate::config::{Component, Described, Field, Kind};

/// The area under the ROC or the precision-recall curve, from counts at thresholds.
///
/// Scores are probabilities from 0 to 1, or logits with [`from_logits`](Self::from_logits) and where the loss takes logits. As in Keras, the area under the
/// ROC curve is 0 where one of the two classes has no example, and every target but 0 is a yes. There is no `multi_label`: all columns
/// count together.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = column([0.0, 0.0, 1.0, 1.0]);
/// let y_pred = column([0.0, 0.5, 0.3, 0.9]);
/// let result = measure(Auc::default().num_thresholds(3), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.7500");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auc {
    num_thresholds: usize,
    curve: Curve,
    summation_method: Summation,
    thresholds: Option<Vec<f64>>,
    from_logits: bool,
}

impl Described for Auc {
    const COMPONENT: Component = Component {
        name: "auc",
        doc: "area under the ROC or precision-recall curve",
        fields: &[
            Field::optional(
                "num_thresholds",
                Kind::Whole(2, i64::MAX),
                "number of thresholds that the curve is computed at",
            ),
            Field::optional("curve", Kind::OneOf(&["ROC", "PR"]), "the curve"),
            Field::optional(
                "summation_method",
                Kind::OneOf(&["interpolation", "minoring", "majoring"]),
                "how the area between two thresholds is summed",
            ),
            Field::optional(
                "thresholds",
                Kind::List(&Kind::SHARE, 1, usize::MAX),
                "the thresholds themselves",
            ),
            FROM_LOGITS,
        ],
    };
}

/// Which curve the area is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Curve {
    /// True positive rate over false positive rate.
    #[serde(rename = "ROC")]
    Roc,
    /// Precision over recall.
    #[serde(rename = "PR")]
    Pr,
}

/// How the curve goes between neighbouring thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Summation {
    /// The straight line (ROC), or the counts on straight lines (PR; Davis & Goadrich 2006).
    Interpolation,
    /// The lower value.
    Minoring,
    /// The higher value.
    Majoring,
}

impl Default for Auc {
    /// Keras' 200 thresholds under the ROC curve.
    fn default() -> Self {
        Self {
            num_thresholds: 200,
            curve: Curve::Roc,
            summation_method: Summation::Interpolation,
            thresholds: None,
            from_logits: false,
        }
    }
}

/// Settings.
impl Auc {
    /// Sets the number of thresholds, at least 2, which are spread evenly from 0 to 1.
    #[must_use]
    pub const fn num_thresholds(mut self, count: usize) -> Self {
        self.num_thresholds = count;
        self
    }

    /// Sets which curve the area is under.
    #[must_use]
    pub const fn curve(mut self, curve: Curve) -> Self {
        self.curve = curve;
        self
    }

    /// Sets how the curve goes between thresholds.
    #[must_use]
    pub const fn summation_method(mut self, method: Summation) -> Self {
        self.summation_method = method;
        self
    }

    /// Sets the thresholds, from 0 to 1; one just below 0 and one just above 1 are added.
    #[must_use]
    pub fn thresholds(mut self, thresholds: impl Into<Vec<f64>>) -> Self {
        self.thresholds = Some(thresholds.into());
        self
    }

    /// Takes scores as logits.
    #[must_use]
    pub const fn from_logits(mut self) -> Self {
        self.from_logits = true;
        self
    }

    pub(super) const fn takes_probabilities(&self) -> bool {
        !self.from_logits
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match &self.thresholds {
            Some(values)
                if values.is_empty() || !values.iter().all(|v| (0.0..=1.0).contains(v)) =>
            {
                Err(format!(
                    "`thresholds` must be numbers from 0 to 1, got {values:?}"
                ))
            }
            None if self.num_thresholds < 2 => {
                let count = self.num_thresholds;
                Err(format!("`num_thresholds` must be at least 2, got {count}"))
            }
            _ => Ok(()),
        }
    }
}

/// Counting.
///
/// A score falls into the bin of the highest threshold that it exceeds, so a batch adds to one bin for
/// each score; bins are summed to counts above each threshold on the host.
impl Auc {
    pub(super) fn state(&self) -> Vec<MetricStateSpec> {
        let shape = Shape::f32([self.bins()]);
        let spec = |name| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        ["positives", "negatives"].map(spec).into()
    }

    /// One for each threshold, those outside 0 to 1 included.
    fn bins(&self) -> usize {
        match &self.thresholds {
            Some(thresholds) => thresholds.len() + 2,
            None => self.num_thresholds,
        }
    }

    #[track_caller]
    pub(super) fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let cases = Cases::new("auc", y_true, &scores(y_pred, self.from_logits), weight)?;
        let bins = self.bin_of(&cases.scores).one_hot(self.bins(), DType::Bool);
        let (positives, negatives) = (cases.positives(), cases.negatives());
        Some(vec![count(&bins, &positives), count(&bins, &negatives)])
    }

    fn bin_of(&self, scores: &Tensor) -> Tensor {
        let bin = match &self.thresholds {
            Some(thresholds) => exceeded(scores, thresholds).convert(DType::F32).sum(&[1]),
            None => (scores * (self.num_thresholds - 1) as f64).ceil() - 1.0,
        };
        bin.clamp(0.0, (self.bins() - 1) as f64).convert(DType::I32)
    }
}

/// True and false positives at each threshold, and how many of either there are.
struct Counts {
    true_positives: Vec<f64>,
    false_positives: Vec<f64>,
    positives: f64,
    negatives: f64,
}

/// The area.
impl Auc {
    pub(super) fn area(&self, positives: &[f64], negatives: &[f64]) -> f64 {
        let counts = Counts {
            true_positives: from_each_on(positives),
            false_positives: from_each_on(negatives),
            positives: positives.iter().sum(),
            negatives: negatives.iter().sum(),
        };
        let recall = divided(&counts.true_positives, counts.positives);
        match (self.curve, self.summation_method) {
            (Curve::Pr, Summation::Interpolation) => counts.interpolated_precision(),
            (Curve::Pr, method) => method.sum(&recall, &counts.precision()),
            (Curve::Roc, method) => {
                method.sum(&divided(&counts.false_positives, counts.negatives), &recall)
            }
        }
    }
}

impl Counts {
    fn precision(&self) -> Vec<f64> {
        super::confusion::fractions(&self.true_positives, &self.false_positives)
    }

    /// Between thresholds true positives grow linearly with all positive answers.
    fn interpolated_precision(&self) -> f64 {
        let counts = self.true_positives.iter().zip(&self.false_positives);
        let points: Vec<(f64, f64)> = counts.map(|(tp, fp)| (*tp, tp + fp)).collect();
        let areas = points.windows(2).map(|pair| {
            let ((high_tp, high), (low_tp, low)) = (pair[0], pair[1]);
            let slope = ratio(high_tp - low_tp, high - low);
            let intercept = low_tp - slope * low;
            let growth = if high > 0.0 && low > 0.0 {
                high / low
            } else {
                1.0
            };
            slope * (high_tp - low_tp + intercept * growth.ln())
        });
        ratio(areas.sum(), self.positives)
    }
}

impl Summation {
    /// The area of `y` over `x`, which falls.
    fn sum(self, x: &[f64], y: &[f64]) -> f64 {
        let heights = y.windows(2).map(|pair| match self {
            Self::Interpolation => f64::midpoint(pair[0], pair[1]),
            Self::Minoring => pair[0].min(pair[1]),
            Self::Majoring => pair[0].max(pair[1]),
        });
        let widths = x.windows(2).map(|pair| pair[0] - pair[1]);
        widths
            .zip(heights)
            .map(|(width, height)| width * height)
            .sum()
    }
}

/// Sums of each bin and those after it.
fn from_each_on(bins: &[f64]) -> Vec<f64> {
    let mut sums = bins.to_vec();
    for i in (1..sums.len()).rev() {
        sums[i - 1] += sums[i];
    }
    sums
}

fn divided(counts: &[f64], whole: f64) -> Vec<f64> {
    counts.iter().map(|&count| ratio(count, whole)).collect()
}
