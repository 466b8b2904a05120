//! Metrics: numbers that are accumulated over batches while a model trains or is evaluated.
//!
//! A metric traces what a batch adds to its counts. The counts are summed over batches and replicas on the devices, and
//! [`Metric::result`] computes the number in the logs from them on the host. Numbers agree with Keras 3; each item documents
//! where it differs.

mod accuracy;
mod auc;
mod average;
mod binary_iou;
mod columns;
mod confusion;
mod correlation;
mod counting;
mod counts;
mod custom;
mod f_score;
mod iou;
mod logits;
mod operating_point;
mod regression;

use phalanx_graph::{HostTensor, Shape, Tensor};
use serde_json::{Map, Value};

use accuracy::AccuracyOfLogits;
pub use accuracy::{
    Accuracy, BinaryAccuracy, CategoricalAccuracy, Equality, SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy, TopKCategoricalAccuracy,
};
pub use auc::{Auc, Curve, Summation};
pub use average::{Mean, Sum};
pub use binary_iou::BinaryIou;
pub use confusion::{Precision, Recall};
pub use correlation::{ConcordanceCorrelation, PearsonCorrelation};
use counting::Counting;
pub use counts::{FalseNegatives, FalsePositives, TrueNegatives, TruePositives};
use custom::CustomMetric;
pub use custom::StatefulMetric;
pub use f_score::{F1Average, F1Score, FBetaScore};
pub use iou::MeanIou;
use logits::LinkFunction;
pub use operating_point::{
    PrecisionAtRecall, RecallAtPrecision, SensitivityAtSpecificity, SpecificityAtSensitivity,
};
pub use regression::{R2Average, R2Score, RootMeanSquaredError};

use crate::config::{self, Described, Description, Entry, Family, Field, Kind, Setting};
use crate::losses::{
    BinaryCrossentropy, BinaryFocalCrossentropy, CategoricalCrossentropy,
    CategoricalFocalCrossentropy, CategoricalGeneralizedCrossEntropy, CategoricalHinge,
    CosineSimilarity, Ctc, Dice, Hinge, Huber, KlDivergence, LogCosh, Loss, MeanAbsoluteError,
    MeanAbsolutePercentageError, MeanSquaredError, MeanSquaredLogarithmicError, Poisson,
    SparseCategoricalCrossentropy, SquaredHinge, Tversky, combined, in_dims_of, in_float,
    without_class,
};
use crate::{Error, Result};

/// A metric; made from one of the structs of this module, from a loss or a [`StatefulMetric`] with `.into()`, or by
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
    /// The class that the loss leaves out, where targets are numbers of classes.
    left_out: Option<i64>,
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

/// The enum of metrics, and what differs between them by their types alone: of each its struct, with Keras' defaults.
macro_rules! metrics {
    ($($metric:ident = $default:expr),* $(,)?) => {
        #[derive(Clone, Debug)]
        enum Measure {
            Loss(Loss),
            AccuracyOfLogits(AccuracyOfLogits),
            Custom(CustomMetric),
            $($metric($metric),)*
        }

        /// The kinds that are no losses.
        const OWN_KINDS: [&str; [$($metric::COMPONENT.name),*].len()] = [$($metric::COMPONENT.name),*];

        impl Measure {
            /// What it counts, and how.
            const fn counting(&self) -> &dyn Counting {
                match self {
                    Self::Loss(loss) => loss,
                    Self::AccuracyOfLogits(accuracy) => accuracy,
                    Self::Custom(metric) => metric,
                    $(Self::$metric(metric) => metric,)*
                }
            }

            const fn counting_mut(&mut self) -> &mut dyn Counting {
                match self {
                    Self::Loss(loss) => loss,
                    Self::AccuracyOfLogits(accuracy) => accuracy,
                    Self::Custom(metric) => metric,
                    $(Self::$metric(metric) => metric,)*
                }
            }

            fn kind(&self) -> &str {
                match self {
                    Self::Loss(loss) => loss.name(),
                    Self::AccuracyOfLogits(_) => Accuracy::COMPONENT.name,
                    Self::Custom(metric) => metric.0.kind(),
                    $(Self::$metric(_) => $metric::COMPONENT.name,)*
                }
            }

            /// The settings by their Keras names; `null` for a custom loss.
            fn config(&self) -> Value {
                match self {
                    Self::Loss(loss) => loss.config(),
                    Self::AccuracyOfLogits(_) => Value::Object(Map::new()),
                    Self::Custom(metric) => metric.0.config(),
                    $(Self::$metric(metric) => config::write(self.kind(), metric),)*
                }
            }

            /// The metrics that are no losses.
            fn entries() -> Vec<Entry<Metric>> {
                vec![$(Entry::new($default)),*]
            }
        }

        $(impl From<$metric> for Metric {
            fn from(metric: $metric) -> Self {
                Self::of(Measure::$metric(metric))
            }
        }
)*
    };
}
metrics! {
    Accuracy = Accuracy,
    BinaryAccuracy = BinaryAccuracy::default(),
    CategoricalAccuracy = CategoricalAccuracy,
    SparseCategoricalAccuracy = SparseCategoricalAccuracy,
    TopKCategoricalAccuracy = TopKCategoricalAccuracy::default(),
    SparseTopKCategoricalAccuracy = SparseTopKCategoricalAccuracy::default(),
    Equality = Equality,
    Auc = Auc::default(),
    Precision = Precision::default(),
    Recall = Recall::default(),
    PrecisionAtRecall = PrecisionAtRecall::new(0.5),
    RecallAtPrecision = RecallAtPrecision::new(0.5),
    SensitivityAtSpecificity = SensitivityAtSpecificity::new(0.5),
    SpecificityAtSensitivity = SpecificityAtSensitivity::new(0.5),
    F1Score = F1Score::default(),
    FBetaScore = FBetaScore::default(),
    MeanIou = MeanIou::default(),
    BinaryIou = BinaryIou::default(),
    TruePositives = TruePositives::default(),
    FalsePositives = FalsePositives::default(),
    TrueNegatives = TrueNegatives::default(),
    FalseNegatives = FalseNegatives::default(),
    RootMeanSquaredError = RootMeanSquaredError,
    R2Score = R2Score::default(),
    PearsonCorrelation = PearsonCorrelation,
    ConcordanceCorrelation = ConcordanceCorrelation,
    Mean = Mean,
    Sum = Sum,
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

    const fn of(measure: Measure) -> Self {
        Self {
            name: None,
            measure,
            link: None,
            left_out: None,
            better: None,
        }
    }

    /// The mean of what `function(y_true, y_pred)` traces for each example, `[batch, ..]`; both come as to [`Loss::custom`].
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
    /// metric of your own, a [`Mean`] and a [`Sum`] it is known.
    #[must_use]
    pub const fn better_when(mut self, better: Better) -> Self {
        self.better = Some(better);
        self
    }

    /// Which values are better, where that is known.
    #[must_use]
    pub fn better(&self) -> Option<Better> {
        self.better.or_else(|| self.measure.counting().better())
    }

    /// The name in logs: the kind unless [`named`](Self::named) otherwise.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.kind())
    }

    /// The metric for predictions of this shape that are trained with this loss: what was left open is
    /// filled in, such as the number of classes of [`F1Score`] and the threshold of [`Accuracy`]. Where the loss takes logits and
    /// the metric probabilities, it counts the probabilities of the logits. Where the loss leaves out a class, accuracies of numbers of classes
    /// do, too.
    #[must_use]
    pub fn bound(mut self, loss: Option<&Loss>, y_pred: &Shape) -> Self {
        let link = loss.and_then(LinkFunction::of);
        let is_of_regions = matches!(self.measure, Measure::MeanIou(_));
        let counting = self.measure.counting_mut();
        counting.bind(y_pred);
        self.link = link.filter(|_| counting.takes_probabilities(y_pred));
        let outputs = y_pred.dims.last().copied().unwrap_or(1);
        let takes_over = |class: &i64| match counting.counts_classes(outputs) {
            Some((_, Some(_))) | None => false,
            // A class that regions are counted of is left out only where the metric says so, as in Keras.
            Some((classes, None)) => {
                !is_of_regions
                    || usize::try_from(*class).is_ok_and(|class| class >= classes)
                    || *class < 0
            }
        };
        self.left_out = loss.and_then(Loss::left_out).filter(takes_over);
        if let (Measure::Accuracy(_), Some(_)) = (&self.measure, link) {
            self.measure = Measure::AccuracyOfLogits(AccuracyOfLogits);
        }
        self
    }

    /// Whether it is of the program, which alone can make it.
    pub(crate) const fn is_custom(&self) -> bool {
        matches!(
            self.measure,
            Measure::Custom(_) | Measure::Loss(Loss::Custom(_))
        )
    }

    /// Whether what an example adds depends on the others of the batch.
    pub(crate) fn compares_examples(&self) -> bool {
        matches!(&self.measure, Measure::Loss(loss) if loss.compares_examples())
    }

    /// Whether targets may be numbers of classes: of how many with that many outputs, and the class that is left out, if there is one.
    pub(crate) fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        let (classes, own) = self.measure.counting().counts_classes(outputs)?;
        Some((classes, own.or(self.left_out)))
    }

    /// The weight of each place, of which targets of a class that is left out have none.
    #[track_caller]
    fn weight(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Option<Tensor> {
        let counts = self.left_out.and_then(|class| {
            let rows = y_pred.rank().checked_sub(1)?;
            let places = in_float(y_pred).max(&[rows]);
            without_class(y_true, &places, class)
        });
        match counts {
            Some(counts) => Some(combined(&counts, &counts, weight)),
            None => weight.cloned(),
        }
    }

    /// The arrays that are accumulated.
    #[must_use]
    pub fn state(&self) -> Vec<MetricStateSpec> {
        self.measure.counting().state()
    }

    /// What a batch adds to each array of [`state`](Self::state).
    ///
    /// Weights are `[batch]`, or of more dims of the predictions; an example of weight 0 adds nothing.
    /// Shapes that do not fit and bad settings become the graph's error.
    #[must_use]
    #[track_caller]
    pub fn update(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Vec<Tensor> {
        let graph = y_pred.graph();
        let probabilities = self.link.map(|link| link.probabilities(y_pred));
        let y_pred = probabilities.as_ref().unwrap_or(y_pred);
        let deltas = match self.check() {
            Ok(()) => {
                let weight = self.weight(y_true, y_pred, weight);
                let counting = self.measure.counting();
                counting.update(y_true, y_pred, weight.as_ref())
            }
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
        self.measure.counting().results(&state)
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// [`Error::User`] naming the setting, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        if let Measure::Loss(loss) = &self.measure {
            return loss.check();
        }
        let checked = self.measure.counting().check();
        checked.map_err(|problem| Error::user(format!("{}: {problem}", self.kind())))
    }

    /// The name in configurations.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.measure.kind()
    }

    /// The settings by their Keras names, and the `name` when there is one; `null` for one that [is a function](Self::custom).
    #[must_use]
    pub fn config(&self) -> Value {
        let mut settings = self.measure.config();
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
        if !OWN_KINDS.contains(&kind) {
            return Err(config::unknown_kind("metric", kind, &Self::KINDS));
        }
        Entry::read(&Measure::entries(), Family::Metric, kind, given)
    }

    /// The metrics with their settings and defaults, losses at the end.
    pub(crate) fn descriptions() -> Vec<Description> {
        let mut all = Entry::descriptions(&Measure::entries());
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
}

impl From<Loss> for Metric {
    fn from(loss: Loss) -> Self {
        Self::of(Measure::Loss(loss))
    }
}

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
    CategoricalGeneralizedCrossEntropy,
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
                "recall" => json!({"thresholds": 0.3, "top_k": 2, "class_id": 1}),
                "mean_io_u" => {
                    json!({"num_classes": 4, "ignore_class": 0, "target_class_ids": [1, 3]})
                }
                "binary_io_u" => json!({"threshold": 0.3, "target_class_ids": [0]}),
                "precision_at_recall" => json!({"recall": 0.3, "num_thresholds": 5, "class_id": 1}),
                "recall_at_precision" => json!({"precision": 0.3}),
                "sensitivity_at_specificity" => json!({"specificity": 0.3}),
                "specificity_at_sensitivity" => json!({"sensitivity": 0.3}),
                "fbeta_score" => json!({"beta": 0.5, "average": "macro"}),
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
                "auc: `curve` must be ROC, PR or PRGAIN, got \"XY\"",
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
        check_refusals(&cases);
    }

    #[test]
    fn bad_settings_of_answers_are_named() {
        let cases = [
            (
                "precision",
                json!({"top_k": 101}),
                "precision: `top_k` must be a whole number from 1 to 100, got 101",
            ),
            (
                "auc",
                json!({"num_labels": 2}),
                "auc: `num_labels` is for `multi_label` alone, got 2",
            ),
            (
                "auc",
                json!({"multi_label": true, "num_labels": 2, "label_weights": [1]}),
                "auc: `label_weights` must be 2 numbers, one for each output, got [1.0]",
            ),
            (
                "recall_at_precision",
                json!({"precision": 1.5}),
                "recall_at_precision: `precision` must be a number from 0 to 1, got 1.5",
            ),
            (
                "sensitivity_at_specificity",
                json!({}),
                "sensitivity_at_specificity: field `specificity` is missing; add it",
            ),
            (
                "fbeta_score",
                json!({"beta": 0}),
                "fbeta_score: `beta` must be a number above 0, got 0",
            ),
            (
                "mean_io_u",
                json!({"num_classes": 2, "target_class_ids": [2]}),
                "mean_io_u: `target_class_ids` must be one or more numbers of classes below 2, got [2]",
            ),
        ];
        check_refusals(&cases);
    }

    fn check_refusals(cases: &[(&str, Value, &str)]) {
        for (kind, fields, expected) in cases {
            let message = Metric::from_config(kind, fields).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    type Dims = &'static [usize];

    #[test]
    fn shapes_that_do_not_fit_are_the_graphs_error() {
        let cases: [Misfit; 6] = [
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
        cases.into_iter().for_each(check_misfit);
    }

    #[test]
    fn columns_that_there_are_not_are_the_graphs_error() {
        let cases: [Misfit; 4] = [
            (
                Precision::default().class_id(3).into(),
                &[4, 3],
                &[4, 3],
                &[4],
                "`class_id` must be below 3, the number of outputs of y_pred f32[4,3], got 3",
            ),
            (
                Auc::default().multi_label().num_labels(2).into(),
                &[4, 3],
                &[4, 3],
                &[4],
                "y_pred f32[4,3] has not the 2 labels that were set",
            ),
            (
                Auc::default().label_weights([1.0, 2.0]).into(),
                &[4, 3],
                &[4, 3],
                &[4],
                "`label_weights` must be 3 numbers, one for each output of y_pred f32[4,3], got [1.0, 2.0]",
            ),
            (
                PearsonCorrelation.into(),
                &[4, 1],
                &[4, 1],
                &[4],
                "y_pred f32[4,1] has one output for each example, expected at least 2",
            ),
        ];
        cases.into_iter().for_each(check_misfit);
    }

    /// A metric, dims of targets, predictions and weights, and what is refused.
    type Misfit = (Metric, Dims, Dims, Dims, &'static str);

    fn check_misfit((metric, y_true, y_pred, weight, expected): Misfit) {
        let graph = Graph::new();
        let y_true = graph.parameter("y_true", Shape::f32(y_true));
        let y_pred = graph.parameter("y_pred", Shape::f32(y_pred));
        let weight = graph.parameter("weight", Shape::f32(weight));
        let deltas = metric.update(&y_true, &y_pred, Some(&weight));
        assert_eq!(deltas.len(), metric.state().len());
        let error = graph.error().expect("an error").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn binding_fills_in_what_is_open() {
        let f1 = Metric::from(F1Score::default()).bound(None, &Shape::f32([8, 5]));
        assert_eq!(f1.state()[0].shape.dims, [5]);
        let loss = BinaryCrossentropy::from_logits().into();
        let accuracy = Metric::from(Accuracy).bound(Some(&loss), &Shape::f32([8, 1]));
        assert!(matches!(accuracy.measure, Measure::AccuracyOfLogits(_)));
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

    /// Settings that a kind cannot do without.
    fn required(kind: &str) -> Value {
        match kind.split_once("_at_") {
            Some((_, bound)) => json!({bound: 0.5}),
            None => json!({}),
        }
    }

    #[test]
    fn nothing_counted_is_zero() {
        for kind in Metric::KINDS {
            let metric = Metric::from_config(kind, &required(kind)).unwrap();
            let state = metric
                .state()
                .into_iter()
                .map(|spec| HostTensor::zeros(spec.shape));
            assert_eq!(metric.result(&state.collect::<Vec<_>>()), 0.0, "{kind}");
        }
    }
}
