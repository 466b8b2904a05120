//! The area under a curve over all thresholds.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::columns::{columns, refuse_columns};
use super::confusion::{Cases, exceeded, ratio};
use super::counting::Counting;
use super::logits::{FROM_LOGITS, scores};

use crate::config::{Component, Described, Field, Kind};
use crate::losses::aligned_weight;

/// The area under the ROC or the precision-recall curve, from counts at thresholds.
///
/// Scores are probabilities from 0 to 1, or logits with [`from_logits`](Self::from_logits) and where the loss takes logits. As in Keras, the area under the
/// ROC curve is 0 where one of the two classes has no example, and every target but 0 is a yes. All columns count together, or with
/// [`multi_label`](Self::multi_label) each has an area of its own, and the mean is the result.
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
    multi_label: bool,
    num_labels: Option<usize>,
    label_weights: Option<Vec<f64>>,
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
            Field::optional("curve", Kind::OneOf(&["ROC", "PR", "PRGAIN"]), "the curve"),
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
            Field::optional(
                "multi_label",
                Kind::Bool,
                "whether each output has an area of its own, of which the mean is logged",
            ),
            Field::optional(
                "num_labels",
                Kind::SIZE,
                "number of outputs with `multi_label`; by default of the model",
            ),
            Field::optional(
                "label_weights",
                Kind::List(&Kind::AT_LEAST_ZERO, 1, usize::MAX),
                "how much each output counts; by default as much as the others",
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
    /// Precision gain over recall gain: how far both are above what a model that always answers yes has (Flach & Kull 2015).
    #[serde(rename = "PRGAIN")]
    PrGain,
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
            multi_label: false,
            num_labels: None,
            label_weights: None,
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

    /// Computes an area for each column of the predictions, and their mean.
    #[must_use]
    pub const fn multi_label(mut self) -> Self {
        self.multi_label = true;
        self
    }

    /// Sets the number of columns with [`multi_label`](Self::multi_label); by default it is the last dim of the predictions.
    #[must_use]
    pub const fn num_labels(mut self, labels: usize) -> Self {
        self.num_labels = Some(labels);
        self
    }

    /// Sets how much each column counts, numbers of at least 0: its area with [`multi_label`](Self::multi_label), otherwise its scores.
    #[must_use]
    pub fn label_weights(mut self, weights: impl Into<Vec<f64>>) -> Self {
        self.label_weights = Some(weights.into());
        self
    }

    fn check_thresholds(&self) -> Result<(), String> {
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

    fn check_labels(&self) -> Result<(), String> {
        if let (Some(labels), false) = (self.num_labels, self.multi_label) {
            return Err(format!(
                "`num_labels` is for `multi_label` alone, got {labels}; set `multi_label`, or leave it out"
            ));
        }
        match (&self.label_weights, self.num_labels) {
            (Some(weights), _)
                if !weights
                    .iter()
                    .all(|weight| *weight >= 0.0 && weight.is_finite()) =>
            {
                Err(format!(
                    "`label_weights` must be numbers of at least 0, got {weights:?}"
                ))
            }
            (Some(weights), Some(labels)) if weights.len() != labels => Err(format!(
                "`label_weights` must be {labels} numbers, one for each output, got {weights:?}"
            )),
            _ => Ok(()),
        }
    }
}

/// A score falls into the bin of the highest threshold that it exceeds, so a batch adds to one bin for
/// each score; bins are summed to counts above each threshold on the host.
impl Counting for Auc {
    fn check(&self) -> Result<(), String> {
        self.check_thresholds()?;
        self.check_labels()
    }

    fn takes_probabilities(&self, _y_pred: &Shape) -> bool {
        !self.from_logits
    }

    fn bind(&mut self, y_pred: &Shape) {
        if self.multi_label {
            self.num_labels.get_or_insert(columns(y_pred));
        }
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let shape = match self.multi_label {
            true => Shape::f32([self.num_labels.unwrap_or(1), self.bins()]),
            false => Shape::f32([self.bins()]),
        };
        let spec = |name| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        ["positives", "negatives"].map(spec).into()
    }

    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let labels = columns(&y_pred.shape());
        if self.multi_label && self.num_labels != Some(labels) {
            let set = self.num_labels;
            refuse_columns("auc", ["labels", "num_labels"], set, labels, y_pred);
            return None;
        }
        let weight = self.weight(y_pred, weight)?;
        let scores = scores(y_pred, self.from_logits);
        let cases = Cases::new("auc", y_true, &scores, weight.as_ref())?;
        let bins = self.bin_of(&cases.scores).one_hot(self.bins(), DType::Bool);
        let counts = [cases.positives(), cases.negatives()].map(|weights| {
            let weights = weights.keep_dims(&[1]);
            let counted = bins.select(&weights, &weights.like(0.0));
            match self.multi_label {
                true => counted.reshape(&[counted.dim(0) / labels, labels, self.bins()]),
                false => counted,
            }
            .sum(&[0])
        });
        Some(counts.into())
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        let [yes, no] = state else {
            return vec![f64::NAN];
        };
        let labels = yes.chunks(self.bins()).zip(no.chunks(self.bins()));
        let areas: Vec<f64> = labels.map(|(yes, no)| self.area(yes, no)).collect();
        let even = || vec![1.0; areas.len()];
        let weights = match &self.label_weights {
            Some(weights) if self.multi_label => weights.clone(),
            _ => even(),
        };
        let sum: f64 = areas
            .iter()
            .zip(&weights)
            .map(|(area, weight)| area * weight)
            .sum();
        vec![ratio(sum, weights.iter().sum())]
    }
}

/// Counting.
impl Auc {
    /// One for each threshold, those outside 0 to 1 included.
    fn bins(&self) -> usize {
        match &self.thresholds {
            Some(thresholds) => thresholds.len() + 2,
            None => self.num_thresholds,
        }
    }

    /// The weight of each score, or the graph's error; with `multi_label` areas are weighed and not scores.
    #[track_caller]
    fn weight(&self, y_pred: &Tensor, weight: Option<&Tensor>) -> Option<Option<Tensor>> {
        let Some(labels) = &self.label_weights else {
            return Some(weight.cloned());
        };
        let columns = columns(&y_pred.shape());
        if labels.len() != columns {
            let shape = y_pred.shape();
            let message = format!(
                "`label_weights` must be {columns} numbers, one for each output of y_pred {shape}, got {labels:?}"
            );
            y_pred.graph().fail("auc", message);
            return None;
        }
        if self.multi_label {
            return Some(weight.cloned());
        }
        let values: Vec<f32> = labels.iter().map(|&label| label as f32).collect();
        let labels = y_pred.graph().constant(HostTensor::new([columns], &values));
        let dims = match y_pred.rank() {
            0 | 1 => vec![y_pred.shape().len(), 1],
            _ => y_pred.dims(),
        };
        let labels = labels.broadcast_to(&dims);
        Some(Some(match weight {
            Some(weight) => aligned_weight(&labels, weight)? * labels,
            None => labels,
        }))
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
    fn area(&self, positives: &[f64], negatives: &[f64]) -> f64 {
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
            (Curve::PrGain, method) => method.sum(&counts.recall_gain(), &counts.precision_gain()),
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

    /// 0 where it is below, or where nothing is found.
    fn recall_gain(&self) -> Vec<f64> {
        let of_each = self.true_positives.iter().map(|&tp| match tp {
            0.0 => 0.0,
            _ => (1.0 - self.odds() * ratio(self.positives - tp, tp)).max(0.0),
        });
        of_each.collect()
    }

    /// 1 where nothing is found.
    fn precision_gain(&self) -> Vec<f64> {
        let counts = self.true_positives.iter().zip(&self.false_positives);
        let of_each = counts.map(|(&tp, &fp)| match tp {
            0.0 => 1.0,
            _ => 1.0 - self.odds() * ratio(fp, tp),
        });
        of_each.collect()
    }

    /// How many positives there are for each negative.
    fn odds(&self) -> f64 {
        ratio(self.positives, self.negatives)
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
