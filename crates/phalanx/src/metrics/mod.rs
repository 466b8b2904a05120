//! Metrics: numbers that are accumulated over batches while a model trains or is evaluated.
//!
//! A metric traces what a batch adds to its counts. The counts are summed over batches and replicas on the devices, and
//! [`Metric::result`] computes the number in the logs from them on the host. Numbers agree with Keras 3; each item documents
//! where it differs.

mod accuracy;
mod auc;
mod average;
mod columns;
mod confusion;
mod counts;
mod f1;
mod iou;
mod logits;
mod regression;

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde_json::{Map, Value};

pub use accuracy::{
    Accuracy, BinaryAccuracy, CategoricalAccuracy, Equality, SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy, TopKCategoricalAccuracy,
};
pub use auc::{Auc, Curve, Summation};
pub use average::Mean;
pub use confusion::{Precision, Recall};
pub use counts::{FalseNegatives, FalsePositives, TrueNegatives, TruePositives};
pub use f1::{F1Average, F1Score};
pub use iou::MeanIou;
use logits::LinkFunction;
pub use regression::{R2Average, R2Score, RootMeanSquaredError};

use crate::config::{self, Description, Entry, Family, Field, Kind, Setting};
use crate::losses::{
    BinaryCrossentropy, BinaryFocalCrossentropy, CategoricalCrossentropy,
    CategoricalFocalCrossentropy, CategoricalHinge, CosineSimilarity, Ctc, Dice, Hinge, Huber,
    KlDivergence, LogCosh, Loss, MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredError,
    MeanSquaredLogarithmicError, Poisson, SparseCategoricalCrossentropy, SquaredHinge, Tversky,
};
use crate::{Error, Result};

/// A metric; made from one of the structs of this module or from a loss with `.into()`, or by
/// [`Metric::custom`].
///
/// # Examples
/// ```
/// use phalanx::metrics::{Accuracy, Auc, Curve, Metric};
/// let accuracy = Metric::from(Accuracy);
/// assert_eq!(accuracy.name(), "accuracy");
/// let curve = Metric::from(Auc::default().curve(Curve::Pr)).named("pr");
/// assert_eq!(curve.name(), "pr");
/// ```
#[derive(Clone, Debug)]
pub struct Metric {
    name: Option<String>,
    measure: Measure,
    /// What makes the probabilities that it compares of the predictions, where these are logits.
    link: Option<LinkFunction>,
    /// Which way is better, where the metric of a program's own says so.
    better: Option<Better>,
}

/// Which values of a metric are the better ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Larger values are better, as for an accuracy.
    Higher,
    /// Smaller values are better, as for an error or a loss.
    Lower,
}

/// One array of a metric's state, all zeros before the first batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricStateSpec {
    /// What it counts.
    pub name: &'static str,
    /// Element type and dims.
    pub shape: Shape,
}

/// A setting of every metric.
const NAME: Field = Field::optional("name", Kind::Text, "its name in the logs");

/// The kinds that are no losses.
const OWN_KINDS: [&str; 19] = [
    "accuracy",
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "top_k_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
    "equality",
    "auc",
    "precision",
    "recall",
    "f1_score",
    "mean_io_u",
    "true_positives",
    "false_positives",
    "true_negatives",
    "false_negatives",
    "root_mean_squared_error",
    "r2_score",
    "mean",
];

#[derive(Clone, Debug)]
enum Measure {
    Mean(Mean),
    Loss(Loss),
    Accuracy(Accuracy),
    AccuracyOfLogits,
    Equality(Equality),
    BinaryAccuracy(BinaryAccuracy),
    CategoricalAccuracy(CategoricalAccuracy),
    SparseCategoricalAccuracy(SparseCategoricalAccuracy),
    TopKCategoricalAccuracy(TopKCategoricalAccuracy),
    SparseTopKCategoricalAccuracy(SparseTopKCategoricalAccuracy),
    Auc(Auc),
    Precision(Precision),
    Recall(Recall),
    F1Score(F1Score),
    MeanIou(MeanIou),
    RootMeanSquaredError(RootMeanSquaredError),
    R2Score(R2Score),
    TruePositives(TruePositives),
    FalsePositives(FalsePositives),
    TrueNegatives(TrueNegatives),
    FalseNegatives(FalseNegatives),
}

impl Metric {
    /// The kinds that [`from_config`](Self::from_config) knows; every loss is one.
    pub const KINDS: [&'static str; OWN_KINDS.len() + Loss::KINDS.len()] = {
        let mut kinds = [""; OWN_KINDS.len() + Loss::KINDS.len()];
        let (own, losses) = kinds.split_at_mut(OWN_KINDS.len());
        own.copy_from_slice(&OWN_KINDS);
        losses.copy_from_slice(&Loss::KINDS);
        kinds
    };

    /// The mean of what `function(y_true, y_pred)` traces for each example, `[batch, ..]`.
    ///
    /// To keep the best epoch by it, say which values are [better](Self::better_when).
    #[must_use]
    pub fn custom(
        name: &str,
        function: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Self {
        Loss::custom(name, function).into()
    }

    /// The metric under another name in the logs.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Says which values are better, for [`Fit::keep_best`](crate::fit::Fit::keep_best); of all but a
    /// [custom](Self::custom) metric and a [`Mean`] it is known.
    #[must_use]
    pub const fn better_when(mut self, better: Better) -> Self {
        self.better = Some(better);
        self
    }

    /// Which values are better, where that is known.
    #[must_use]
    pub const fn better(&self) -> Option<Better> {
        match (self.better, &self.measure) {
            (Some(better), _) => Some(better),
            (None, Measure::Mean(_) | Measure::Loss(Loss::Custom(_))) => None,
            (None, Measure::Loss(Loss::CosineSimilarity(_))) => Some(Better::Higher),
            (
                None,
                Measure::Loss(_)
                | Measure::RootMeanSquaredError(_)
                | Measure::FalsePositives(_)
                | Measure::FalseNegatives(_),
            ) => Some(Better::Lower),
            (None, _) => Some(Better::Higher),
        }
    }

    /// The name in logs: the kind unless [`named`](Self::named) otherwise.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.kind())
    }

    /// The metric for predictions of this shape that are trained with this loss: what was left open is
    /// filled in, such as the number of classes of [`F1Score`] and the threshold of [`Accuracy`]. Where the loss takes logits and
    /// the metric probabilities, it counts the probabilities of the logits.
    #[must_use]
    pub fn bound(mut self, loss: Option<&Loss>, y_pred: &Shape) -> Self {
        let link = loss.and_then(LinkFunction::of);
        self.link = link.filter(|_| self.measure.takes_probabilities(y_pred));
        match &mut self.measure {
            Measure::Accuracy(_) if link.is_some() => self.measure = Measure::AccuracyOfLogits,
            Measure::F1Score(f1) => f1.bind(y_pred),
            Measure::MeanIou(iou) => iou.bind(y_pred),
            Measure::R2Score(r2) => r2.bind(y_pred),
            _ => {}
        }
        self
    }

    /// Whether targets may be numbers of classes: of how many with that many outputs, and the class that is left out, if there is one.
    pub(crate) const fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        match &self.measure {
            Measure::Accuracy(_)
            | Measure::AccuracyOfLogits
            | Measure::SparseCategoricalAccuracy(_)
            | Measure::SparseTopKCategoricalAccuracy(_) => Some((outputs, None)),
            Measure::MeanIou(iou) => Some((MeanIou::classes_of(outputs), iou.left_out())),
            _ => None,
        }
    }

    /// The arrays that are accumulated.
    #[must_use]
    pub fn state(&self) -> Vec<MetricStateSpec> {
        match &self.measure {
            Measure::Auc(auc) => auc.state(),
            Measure::Precision(precision) => precision.state(),
            Measure::Recall(recall) => recall.state(),
            Measure::F1Score(f1) => f1.state(),
            Measure::MeanIou(iou) => iou.state(),
            Measure::R2Score(r2) => r2.state(),
            Measure::TruePositives(count) => count.state(),
            Measure::FalsePositives(count) => count.state(),
            Measure::TrueNegatives(count) => count.state(),
            Measure::FalseNegatives(count) => count.state(),
            _ => average::state(),
        }
    }

    /// What a batch adds to each array of [`state`](Self::state).
    ///
    /// Weights are `[batch]`, or of more dims of the predictions; an example of weight 0 adds nothing.
    /// Shapes that do not fit and bad settings become the graph's error.
    #[must_use]
    #[track_caller]
    pub fn update(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Vec<Tensor> {
        let graph = y_pred.graph();
        let deltas = match self.check() {
            Ok(()) => self.deltas(y_true, y_pred, weight),
            Err(error) => {
                graph.fail(self.name(), error.to_string());
                None
            }
        };
        let zeros = || {
            self.state()
                .iter()
                .map(|s| graph.full(&s.shape, 0.0))
                .collect()
        };
        deltas.unwrap_or_else(zeros)
    }

    /// The number in the logs, from the accumulated state; where there are several, their mean.
    #[must_use]
    pub fn result(&self, state: &[HostTensor]) -> f64 {
        let values = self.values(state);
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }

    /// All results: one for each threshold of [`Precision`] and [`Recall`], one for each class of an
    /// [`F1Score`] that is not averaged, otherwise a single one.
    #[must_use]
    pub fn values(&self, state: &[HostTensor]) -> Vec<f64> {
        let state: Vec<Vec<f64>> = state.iter().map(HostTensor::to_f64).collect();
        match (&self.measure, state.as_slice()) {
            (Measure::Auc(auc), [yes, no]) => vec![auc.area(yes, no)],
            (Measure::Precision(_) | Measure::Recall(_), [right, wrong]) => {
                confusion::fractions(right, wrong)
            }
            (Measure::F1Score(f1), [tp, fp, misses]) => f1.scores(tp, fp, misses),
            (Measure::MeanIou(iou), [matrix]) => vec![iou.mean(matrix)],
            (Measure::R2Score(r2), state) => r2.scores(state),
            (Measure::RootMeanSquaredError(_), [total, count]) => {
                vec![confusion::ratio(total[0], count[0]).sqrt()]
            }
            (_, [counts]) => counts.clone(),
            (_, [total, count]) => confusion::fractions_of(total, count),
            _ => vec![f64::NAN],
        }
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// [`Error::User`] naming the setting, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        let problem = match &self.measure {
            Measure::Loss(loss) => return loss.check(),
            Measure::BinaryAccuracy(accuracy) => accuracy.check(),
            Measure::TopKCategoricalAccuracy(accuracy) => accuracy.check(),
            Measure::SparseTopKCategoricalAccuracy(accuracy) => accuracy.check(),
            Measure::Auc(auc) => auc.check(),
            Measure::Precision(precision) => precision.check(),
            Measure::Recall(recall) => recall.check(),
            Measure::F1Score(f1) => f1.check(),
            Measure::MeanIou(iou) => iou.check(),
            Measure::TruePositives(count) => count.check(),
            Measure::FalsePositives(count) => count.check(),
            Measure::TrueNegatives(count) => count.check(),
            Measure::FalseNegatives(count) => count.check(),
            _ => Ok(()),
        };
        problem.map_err(|problem| Error::user(format!("{}: {problem}", self.kind())))
    }

    /// The name in configurations.
    #[must_use]
    pub fn kind(&self) -> &str {
        match &self.measure {
            Measure::Accuracy(_) | Measure::AccuracyOfLogits => "accuracy",
            Measure::BinaryAccuracy(_) => "binary_accuracy",
            Measure::CategoricalAccuracy(_) => "categorical_accuracy",
            Measure::SparseCategoricalAccuracy(_) => "sparse_categorical_accuracy",
            Measure::TopKCategoricalAccuracy(_) => "top_k_categorical_accuracy",
            Measure::SparseTopKCategoricalAccuracy(_) => "sparse_top_k_categorical_accuracy",
            Measure::Equality(_) => "equality",
            Measure::Auc(_) => "auc",
            Measure::Precision(_) => "precision",
            Measure::Recall(_) => "recall",
            Measure::F1Score(_) => "f1_score",
            Measure::MeanIou(_) => "mean_io_u",
            Measure::RootMeanSquaredError(_) => "root_mean_squared_error",
            Measure::R2Score(_) => "r2_score",
            Measure::TruePositives(_) => "true_positives",
            Measure::FalsePositives(_) => "false_positives",
            Measure::TrueNegatives(_) => "true_negatives",
            Measure::FalseNegatives(_) => "false_negatives",
            Measure::Mean(_) => "mean",
            Measure::Loss(loss) => loss.name(),
        }
    }

    /// The settings by their Keras names, and the `name` when there is one; `null` for a custom metric.
    #[must_use]
    pub fn config(&self) -> Value {
        let kind = self.kind();
        let mut settings = match &self.measure {
            Measure::Loss(loss) => loss.config(),
            Measure::BinaryAccuracy(accuracy) => config::write(kind, accuracy),
            Measure::TopKCategoricalAccuracy(accuracy) => config::write(kind, accuracy),
            Measure::SparseTopKCategoricalAccuracy(accuracy) => config::write(kind, accuracy),
            Measure::Auc(auc) => config::write(kind, auc),
            Measure::Precision(precision) => config::write(kind, precision),
            Measure::Recall(recall) => config::write(kind, recall),
            Measure::F1Score(f1) => config::write(kind, f1),
            Measure::MeanIou(iou) => config::write(kind, iou),
            Measure::R2Score(r2) => config::write(kind, r2),
            Measure::TruePositives(count) => config::write(kind, count),
            Measure::FalsePositives(count) => config::write(kind, count),
            Measure::TrueNegatives(count) => config::write(kind, count),
            Measure::FalseNegatives(count) => config::write(kind, count),
            _ => Value::Object(Map::new()),
        };
        if let (Value::Object(fields), Some(name)) = (&mut settings, &self.name) {
            fields.insert("name".to_owned(), Value::from(name.as_str()));
        }
        settings
    }

    /// The metric of a kind and its settings, absent ones as Keras' defaults; `name` renames it.
    ///
    /// # Errors
    /// An unknown kind or field (naming the nearest), or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        let mut fields = fields.clone();
        let name = fields
            .as_object_mut()
            .and_then(|fields| fields.remove("name"));
        let mut metric = Self::of_kind(kind, &fields)?;
        metric.name = match name {
            None => None,
            Some(Value::String(name)) => Some(name),
            Some(other) => {
                let message = format!("{kind}: `name`: expected a text, got {other}");
                return Err(Error::user(message));
            }
        };
        metric.check()?;
        Ok(metric)
    }

    fn of_kind(kind: &str, given: &Value) -> Result<Self> {
        if Loss::KINDS.contains(&kind) {
            return Ok(Loss::from_config(kind, given)?.into());
        }
        let entries = Self::entries();
        if entries.iter().all(|entry| entry.component.name != kind) {
            return Err(config::unknown_kind("metric", kind, &Self::KINDS));
        }
        Entry::read(&entries, Family::Metric, kind, given)
    }

    /// The metrics with their settings and defaults, losses at the end.
    pub(crate) fn descriptions() -> Vec<Description> {
        let mut all = Entry::descriptions(&Self::entries());
        all.extend(Loss::descriptions());
        for metric in &mut all {
            let setting = Setting {
                field: NAME,
                default: Value::Null,
            };
            metric.settings.push(setting);
        }
        all
    }

    /// The metrics that are no losses.
    fn entries() -> Vec<Entry<Self>> {
        vec![
            Entry::new(Accuracy),
            Entry::new(BinaryAccuracy::default()),
            Entry::new(CategoricalAccuracy),
            Entry::new(SparseCategoricalAccuracy),
            Entry::new(TopKCategoricalAccuracy::default()),
            Entry::new(SparseTopKCategoricalAccuracy::default()),
            Entry::new(Equality),
            Entry::new(Auc::default()),
            Entry::new(Precision::default()),
            Entry::new(Recall::default()),
            Entry::new(F1Score::default()),
            Entry::new(MeanIou::default()),
            Entry::new(TruePositives::default()),
            Entry::new(FalsePositives::default()),
            Entry::new(TrueNegatives::default()),
            Entry::new(FalseNegatives::default()),
            Entry::new(RootMeanSquaredError),
            Entry::new(R2Score::default()),
            Entry::new(Mean),
        ]
    }

    #[track_caller]
    fn deltas(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let probabilities = self.link.map(|link| link.probabilities(y_pred));
        let y_pred = probabilities.as_ref().unwrap_or(y_pred);
        match &self.measure {
            Measure::Auc(auc) => auc.update(y_true, y_pred, weight),
            Measure::Precision(precision) => precision.update(y_true, y_pred, weight),
            Measure::Recall(recall) => recall.update(y_true, y_pred, weight),
            Measure::F1Score(f1) => f1.update(y_true, y_pred, weight),
            Measure::MeanIou(iou) => iou.update(y_true, y_pred, weight),
            Measure::R2Score(r2) => r2.update(y_true, y_pred, weight),
            Measure::TruePositives(count) => count.update(y_true, y_pred, weight),
            Measure::FalsePositives(count) => count.update(y_true, y_pred, weight),
            Measure::TrueNegatives(count) => count.update(y_true, y_pred, weight),
            Measure::FalseNegatives(count) => count.update(y_true, y_pred, weight),
            measure => average::update(&measure.example_values(y_true, y_pred)?, weight),
        }
    }
}

impl Measure {
    /// Whether predictions of this shape are to be probabilities.
    fn takes_probabilities(&self, y_pred: &Shape) -> bool {
        match self {
            Self::Loss(Loss::KlDivergence(_) | Loss::Dice(_) | Loss::Tversky(_)) => true,
            Self::TruePositives(count) => count.takes_probabilities(),
            Self::FalsePositives(count) => count.takes_probabilities(),
            Self::TrueNegatives(count) => count.takes_probabilities(),
            Self::FalseNegatives(count) => count.takes_probabilities(),
            Self::Loss(loss) => loss.takes_logits() == Some(false),
            Self::BinaryAccuracy(accuracy) => accuracy.takes_probabilities(),
            Self::Auc(auc) => auc.takes_probabilities(),
            Self::Precision(precision) => precision.takes_probabilities(),
            Self::Recall(recall) => recall.takes_probabilities(),
            Self::F1Score(f1) => f1.takes_probabilities(),
            Self::MeanIou(_) => columns::columns(y_pred) == 1,
            _ => false,
        }
    }

    /// A number for each example, of which the metric is the weighted mean.
    #[track_caller]
    fn example_values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        match self {
            // As a metric it is the cosine, as in Keras.
            Self::Loss(loss @ Loss::CosineSimilarity(_)) => Some(-loss.per_example(y_true, y_pred)),
            Self::Loss(loss) => Some(loss.per_example(y_true, y_pred)),
            Self::RootMeanSquaredError(error) => error.squares(y_true, y_pred),
            Self::Accuracy(accuracy) => accuracy.values(y_true, y_pred, 0.5),
            Self::AccuracyOfLogits => Accuracy.values(y_true, y_pred, 0.0),
            Self::Equality(equality) => equality.values(y_true, y_pred),
            Self::BinaryAccuracy(accuracy) => accuracy.values(y_true, y_pred),
            Self::CategoricalAccuracy(accuracy) => accuracy.values(y_true, y_pred),
            Self::SparseCategoricalAccuracy(accuracy) => accuracy.values(y_true, y_pred),
            Self::TopKCategoricalAccuracy(accuracy) => accuracy.values(y_true, y_pred),
            Self::SparseTopKCategoricalAccuracy(accuracy) => accuracy.values(y_true, y_pred),
            Self::Mean(_) => Some(y_pred.clone()),
            Self::Auc(_)
            | Self::Precision(_)
            | Self::Recall(_)
            | Self::F1Score(_)
            | Self::MeanIou(_)
            | Self::R2Score(_)
            | Self::TruePositives(_)
            | Self::FalsePositives(_)
            | Self::TrueNegatives(_)
            | Self::FalseNegatives(_) => None,
        }
    }
}

macro_rules! into_metric {
    ($($measure:ident),* $(,)?) => {$(
        impl From<$measure> for Metric {
            fn from(measure: $measure) -> Self {
                Self { name: None, measure: Measure::$measure(measure), link: None, better: None }
            }
        }
    )*};
}
into_metric!(
    Accuracy,
    Auc,
    BinaryAccuracy,
    CategoricalAccuracy,
    Equality,
    F1Score,
    FalseNegatives,
    FalsePositives,
    Loss,
    Mean,
    MeanIou,
    Precision,
    R2Score,
    Recall,
    RootMeanSquaredError,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
    TrueNegatives,
    TruePositives,
);

macro_rules! loss_into_metric {
    ($($loss:ident),* $(,)?) => {$(
        impl From<$loss> for Metric {
            fn from(loss: $loss) -> Self {
                Loss::from(loss).into()
            }
        }
    )*};
}
loss_into_metric!(
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CategoricalHinge,
    CosineSimilarity,
    Ctc,
    Dice,
    Hinge,
    Huber,
    KlDivergence,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
    SparseCategoricalCrossentropy,
    SquaredHinge,
    Tversky,
);

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::Graph;
    use serde_json::json;

    #[test]
    fn configurations_round_trip() {
        for kind in Metric::KINDS {
            let fields = match kind {
                "auc" => json!({"curve": "PR", "thresholds": [0.2, 0.7], "name": "area"}),
                "precision" => json!({"thresholds": [0.5, 0.7], "from_logits": true}),
                "recall" => json!({"thresholds": 0.3}),
                "mean_io_u" => json!({"num_classes": 4, "ignore_class": 0}),
                "r2_score" => json!({"class_aggregation": "variance_weighted_average"}),
                "true_negatives" => json!({"thresholds": [0.3, 0.4]}),
                "f1_score" => json!({"average": "micro", "threshold": 0.4}),
                "top_k_categorical_accuracy" => json!({"k": 3, "name": "top"}),
                _ => json!({"name": "mine"}),
            };
            let metric = Metric::from_config(kind, &fields).unwrap();
            let again = Metric::from_config(metric.kind(), &metric.config()).unwrap();
            assert_eq!(format!("{metric:?}"), format!("{again:?}"));
            assert_eq!(metric.kind(), kind);
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let cases = [
            (
                "acuracy",
                json!({}),
                "unknown metric `acuracy`; did you mean `accuracy`?",
            ),
            (
                "accuracy",
                json!({"k": 1}),
                "accuracy: unknown field `k`; it takes none",
            ),
            (
                "auc",
                json!({"curve": "XY"}),
                "auc: `curve` must be ROC or PR, got \"XY\"",
            ),
            (
                "auc",
                json!({"num_thresholds": 1}),
                "auc: `num_thresholds` must be a whole number of at least 2, got 1",
            ),
            (
                "auc",
                json!({"thresholds": [2]}),
                "auc: `thresholds` must be a list of values, each a number from 0 to 1, got [2]",
            ),
            (
                "recall",
                json!({"thresholds": []}),
                "recall: `thresholds` must be a number or a list of numbers, got []",
            ),
            (
                "precision",
                json!({"thresholds": "x"}),
                "must be a number or a list of numbers",
            ),
            (
                "top_k_categorical_accuracy",
                json!({"k": 0}),
                "`k` must be a whole number of at least 1, got 0",
            ),
            (
                "huber",
                json!({"delta": 0}),
                "huber: `delta` must be a number above 0, got 0",
            ),
            (
                "mean",
                json!({"name": 1}),
                "mean: `name`: expected a text, got 1",
            ),
        ];
        for (kind, fields, expected) in cases {
            let message = Metric::from_config(kind, &fields).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    type Dims = &'static [usize];

    #[test]
    fn shapes_that_do_not_fit_are_the_graphs_error() {
        let cases: [(Metric, Dims, Dims, Dims, &str); 6] = [
            (
                Accuracy.into(),
                &[3],
                &[4, 2],
                &[4],
                "y_true f32[3] does not hold one class",
            ),
            (
                CategoricalAccuracy.into(),
                &[4],
                &[4, 2],
                &[4],
                "must have the same dims, [batch, ..]; targets that are numbers of classes need `sparse_categorical_accuracy`",
            ),
            (
                Precision::default().into(),
                &[4],
                &[4, 2],
                &[4],
                "it counts a yes or no for each of 2 outputs: give one-hot targets, or count classes by `accuracy`",
            ),
            (
                Auc::default().into(),
                &[4, 2],
                &[4, 1],
                &[4],
                "must have the same dims",
            ),
            (
                Recall::default().into(),
                &[4, 1],
                &[4, 1],
                &[3],
                "weights f32[3] do not fit",
            ),
            (
                F1Score::default().into(),
                &[4, 3],
                &[4, 3],
                &[4],
                "set `classes` to 3",
            ),
        ];
        for (metric, y_true, y_pred, weight, expected) in cases {
            let graph = Graph::new();
            let y_true = graph.parameter("y_true", Shape::f32(y_true));
            let y_pred = graph.parameter("y_pred", Shape::f32(y_pred));
            let weight = graph.parameter("weight", Shape::f32(weight));
            let deltas = metric.update(&y_true, &y_pred, Some(&weight));
            assert_eq!(deltas.len(), metric.state().len());
            let error = graph.error().expect("an error").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn binding_fills_in_what_is_open() {
        let f1 = Metric::from(F1Score::default()).bound(None, &Shape::f32([8, 5]));
        assert_eq!(f1.state()[0].shape.dims, [5]);
        let loss = BinaryCrossentropy::from_logits().into();
        let accuracy = Metric::from(Accuracy).bound(Some(&loss), &Shape::f32([8, 1]));
        assert!(matches!(accuracy.measure, Measure::AccuracyOfLogits));
        let loss = BinaryCrossentropy::from_probabilities().into();
        let accuracy = Metric::from(Accuracy).bound(Some(&loss), &Shape::f32([8, 1]));
        assert!(matches!(accuracy.measure, Measure::Accuracy(_)));
    }

    #[test]
    fn a_threshold_of_logits_stays_one() {
        let link = |metric: Metric, loss: Loss| metric.bound(Some(&loss), &Shape::f32([8, 3])).link;
        let logits = || Loss::from(BinaryCrossentropy::from_logits());
        let classes = || Loss::from(CategoricalCrossentropy::from_logits());
        for metric in [
            Metric::from(Precision::default()),
            Recall::at([0.2, 0.9]).into(),
            BinaryAccuracy::default().into(),
            Auc::default().into(),
            F1Score::default().threshold(0.5).into(),
            BinaryCrossentropy::from_probabilities().into(),
            KlDivergence.into(),
            Loss::from(Dice::default()).into(),
            Loss::from(Tversky::default()).into(),
        ] {
            assert_eq!(link(metric.clone(), logits()), Some(LinkFunction::Sigmoid));
            assert_eq!(link(metric.clone(), classes()), Some(LinkFunction::Softmax));
            let loss = BinaryCrossentropy::from_probabilities();
            assert_eq!(link(metric, loss.into()), None);
        }
        for metric in [
            Metric::from(Precision::at([0.0])),
            Recall::at([0.5, 2.0]).into(),
            Precision::default().from_logits().into(),
            BinaryAccuracy::new(0.0).into(),
            Auc::default().from_logits().into(),
            F1Score::default().into(),
            MeanSquaredError.into(),
            BinaryCrossentropy::from_logits().into(),
        ] {
            assert_eq!(link(metric, logits()), None);
        }
    }

    #[test]
    fn nothing_counted_is_zero() {
        for kind in Metric::KINDS {
            let metric = Metric::from_config(kind, &json!({})).unwrap();
            let state = metric
                .state()
                .into_iter()
                .map(|spec| HostTensor::zeros(spec.shape));
            assert_eq!(metric.result(&state.collect::<Vec<_>>()), 0.0, "{kind}");
        }
    }
}
