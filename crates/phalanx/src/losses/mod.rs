//! Losses, which training minimizes: a number for each example, from its target and its prediction.
//!
//! Every loss follows Keras 3 with `reduction=None`; each item documents where it differs.

mod circle;
mod crossentropy;
mod ctc;
mod focal;
mod generalized;
mod hinge;
mod overlap;
mod reduction;
mod regression;
mod shapes;

use std::fmt;
use std::sync::Arc;

use phalanx_graph::{DType, Graph, Shape, Tensor};
use serde_json::Value;

pub use circle::Circle;
pub use crossentropy::{
    BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy,
};
pub(crate) use crossentropy::{CLASS, check_class};
pub use ctc::Ctc;
pub use focal::{BinaryFocalCrossentropy, CategoricalFocalCrossentropy};
pub use generalized::CategoricalGeneralizedCrossEntropy;
pub use hinge::{CategoricalHinge, Hinge, SquaredHinge};
pub use overlap::{Dice, Tversky};
pub use reduction::{LossReduction, weighted};
pub use regression::{
    CosineSimilarity, Huber, KlDivergence, LogCosh, MeanAbsoluteError, MeanAbsolutePercentageError,
    MeanSquaredError, MeanSquaredLogarithmicError, Poisson,
};
use shapes::without_unweighted;
pub(crate) use shapes::{
    aligned_if_it_fits, aligned_weight, class_labels, in_dims_of, in_float, paired,
    weighted_or_zero,
};

use crate::Result;
use crate::config::{self, Described, Description, Entry, Family};

/// Keras' fuzz factor, `keras.config.epsilon()`.
pub(crate) const EPSILON: f64 = 1e-7;

/// What a loss of this module is: a number for each example.
pub(crate) trait ExampleLoss {
    /// The unreduced loss; shapes that do not fit become the graph's error.
    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor;

    /// The unreduced loss of a replica's rows in a batch that all replicas have parts of; rows without a weight are not compared with others.
    #[track_caller]
    fn in_batch(&self, y_true: &Tensor, y_pred: &Tensor, _weight: Option<&Tensor>) -> Tensor {
        self.per_example(y_true, y_pred)
    }

    /// Whether the loss of an example depends on the others of the batch.
    fn compares_examples(&self) -> bool {
        false
    }

    /// 1 for each of the values that counts, 0 for those that do not; none where all count.
    #[track_caller]
    fn counted(&self, y_true: &Tensor, values: &Tensor) -> Option<Tensor> {
        without_class(y_true, values, self.left_out()?)
    }

    /// Whether predictions are taken as logits; `None` for a loss without that choice.
    fn takes_logits(&self) -> Option<bool> {
        None
    }

    /// The class whose targets have no weight.
    fn left_out(&self) -> Option<i64> {
        None
    }

    /// The dims of predictions of this rank that the loss has, in their order; what is behind the last of its own does no harm.
    fn kept_dims(&self, rank: usize) -> Vec<usize> {
        (0..rank).collect()
    }

    /// Whether the settings make sense.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The enum of losses, and what differs between them by their types alone: of each its sentence, its struct, and the struct with Keras'
/// defaults.
macro_rules! losses {
    ($($(#[$doc:meta])* $loss:ident = $default:expr),* $(,)?) => {
        /// A loss; made from one of the structs of this module with `.into()`, or by [`Loss::custom`].
        #[derive(Clone, Debug)]
        pub enum Loss {
            $($(#[$doc])* $loss($loss),)*
            /// A loss of the user's own.
            Custom(CustomLoss),
        }

        impl Loss {
            /// The kinds that [`from_config`](Self::from_config) knows.
            pub const KINDS: [&'static str; [$($loss::COMPONENT.name),*].len()] = [$($loss::COMPONENT.name),*];

            /// The loss, where it is one of this module.
            const fn provided(&self) -> Option<&dyn ExampleLoss> {
                match self {
                    $(Self::$loss(loss) => Some(loss),)*
                    Self::Custom(_) => None,
                }
            }

            /// The name in logs: the kind, or the name of a custom loss.
            #[must_use]
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$loss(_) => $loss::COMPONENT.name,)*
                    Self::Custom(loss) => &loss.name,
                }
            }

            /// The settings by their Keras names; `null` for a custom loss, which cannot be written down.
            #[must_use]
            pub fn config(&self) -> Value {
                match self {
                    $(Self::$loss(loss) => config::write(self.name(), loss),)*
                    Self::Custom(_) => Value::Null,
                }
            }

            fn entries() -> Vec<Entry<Self>> {
                vec![$(Entry::new($default)),*]
            }
        }

        $(impl From<$loss> for Loss {
            fn from(loss: $loss) -> Self {
                Self::$loss(loss)
            }
        }
)*
    };
}
losses! {
    /// Cross-entropy of integer classes.
    SparseCategoricalCrossentropy = SparseCategoricalCrossentropy::from_probabilities(),
    /// Cross-entropy of one-hot or soft classes.
    CategoricalCrossentropy = CategoricalCrossentropy::from_probabilities(),
    /// Cross-entropy of independent yes-or-no answers.
    BinaryCrossentropy = BinaryCrossentropy::from_probabilities(),
    /// Mean squared error.
    MeanSquaredError = MeanSquaredError,
    /// Mean absolute error.
    MeanAbsoluteError = MeanAbsoluteError,
    /// Quadratic near zero, linear beyond.
    Huber = Huber::default(),
    /// Kullback-Leibler divergence.
    KlDivergence = KlDivergence,
    /// Mean absolute error in percent of the target.
    MeanAbsolutePercentageError = MeanAbsolutePercentageError,
    /// Mean squared difference of logarithms.
    MeanSquaredLogarithmicError = MeanSquaredLogarithmicError,
    /// Logarithm of the hyperbolic cosine of the error.
    LogCosh = LogCosh,
    /// Of counts and predicted rates.
    Poisson = Poisson,
    /// Minus the cosine between target and prediction.
    CosineSimilarity = CosineSimilarity,
    /// What yes-or-no answers lack of being right by a margin.
    Hinge = Hinge,
    /// The square of it.
    SquaredHinge = SquaredHinge,
    /// What the score of a class lacks of being the largest by a margin.
    CategoricalHinge = CategoricalHinge,
    /// Binary cross-entropy in which right answers count less.
    BinaryFocalCrossentropy = BinaryFocalCrossentropy::from_probabilities(),
    /// Categorical cross-entropy in which right answers count less.
    CategoricalFocalCrossentropy = CategoricalFocalCrossentropy::from_probabilities(),
    /// Cross-entropy of integer classes that minds wrong labels less.
    CategoricalGeneralizedCrossEntropy = CategoricalGeneralizedCrossEntropy::default(),
    /// What predicted and true regions do not have in common.
    Dice = Dice::new(),
    /// The same with mistakes that count differently.
    Tversky = Tversky::default(),
    /// How unlikely labels are whose places in the steps are not known.
    Ctc = Ctc,
    /// How far vectors of a class are from each other, and how near to others.
    Circle = Circle::default(),
}

/// 1 for each of the values whose target is another class, 0 for the others; none where targets do not fit.
#[track_caller]
pub(crate) fn without_class(y_true: &Tensor, values: &Tensor, class: i64) -> Option<Tensor> {
    let fits = y_true.shape().len() == values.shape().len();
    let labels = fits.then(|| y_true.convert(DType::I32).reshape(&values.dims()))?;
    let counts = labels.not_equal(&labels.like(class as f64));
    Some(counts.convert(values.dtype()))
}

/// What counts, times the weights where there are some that fit.
#[track_caller]
pub(crate) fn combined(counts: &Tensor, values: &Tensor, weight: Option<&Tensor>) -> Tensor {
    match weight.and_then(|weight| aligned_weight(values, weight)) {
        Some(weight) => counts * weight,
        None => counts.clone(),
    }
}

/// A traced function of targets and predictions, with a name for logs.
#[derive(Clone)]
pub struct CustomLoss {
    name: String,
    function: Arc<LossFunction>,
}

type LossFunction = dyn Fn(&Tensor, &Tensor) -> Tensor + Send + Sync;

impl Loss {
    /// A loss of the user's own: `function(y_true, y_pred)` traces one number per example, `[batch, ..]`.
    ///
    /// Targets that differ from the predictions by a last dim of 1, such as `[batch]` of predictions `[batch, 1]`, come in the dims of the
    /// predictions. Keras evens them out, too, but takes that dim from predictions of rank 3 and more. All others come as they are, and of
    /// another rank than the predictions they are broadcast as in NumPy: more numbers than there are predictions, and numbers for each two
    /// examples, are then refused.
    #[must_use]
    pub fn custom(
        name: &str,
        function: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(CustomLoss {
            name: name.to_owned(),
            function: Arc::new(function),
        })
    }

    /// The unreduced loss: one number per example (and per further dim but the last), at least f32.
    ///
    /// Shapes that do not fit and bad settings become the graph's error. Predictions of rank 1 count as
    /// one output per example and give `[batch]`, where Keras reduces them to one number.
    #[must_use]
    #[track_caller]
    pub fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        self.of(y_true, y_pred, |loss| loss.per_example(y_true, y_pred))
    }

    /// As [`per_example`](Self::per_example), of rows of a batch that all replicas have parts of, with these weights.
    #[track_caller]
    pub(crate) fn in_batch(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Tensor {
        self.of(y_true, y_pred, |loss| loss.in_batch(y_true, y_pred, weight))
    }

    #[track_caller]
    fn of(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        provided: impl FnOnce(&dyn ExampleLoss) -> Tensor,
    ) -> Tensor {
        if let Err(error) = self.check() {
            y_pred.graph().fail(self.name(), error.to_string());
            return y_pred.clone();
        }
        match (self, self.provided()) {
            (Self::Custom(loss), _) => loss.of(y_true, y_pred),
            (_, Some(loss)) => provided(loss),
            (_, None) => y_pred.clone(),
        }
    }

    /// Whether the loss of an example depends on the others of the batch.
    pub(crate) fn compares_examples(&self) -> bool {
        self.provided().is_some_and(ExampleLoss::compares_examples)
    }

    /// The loss weighted and reduced as Keras' `loss(y_true, y_pred, sample_weight)`; an example of weight 0 counts nothing
    /// even if its target is not a number, neither here nor in the derivatives.
    #[must_use]
    #[track_caller]
    pub fn reduced(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
        reduction: LossReduction,
    ) -> Tensor {
        let y_pred = self.without_unweighted(y_pred, weight);
        let values = self.in_batch(y_true, &y_pred, weight);
        let Some(counts) = self.counts(y_true, &values) else {
            return reduction.apply(&values, weight);
        };
        let weight = combined(&counts, &values, weight);
        match reduction {
            // Keras counts what is not left out.
            LossReduction::SumOverBatchSize => {
                let counted = counts.sum_all();
                LossReduction::Sum.apply(&values, Some(&weight))
                    / counted.maximum(&counted.like(1.0))
            }
            _ => reduction.apply(&values, Some(&weight)),
        }
    }

    /// The class whose targets are left out, if there is one.
    pub(crate) fn left_out(&self) -> Option<i64> {
        self.provided()?.left_out()
    }

    /// 1 for each of the loss's values that counts, 0 where its target is left out; none where all count.
    #[track_caller]
    fn counts(&self, y_true: &Tensor, values: &Tensor) -> Option<Tensor> {
        self.provided()?.counted(y_true, values)
    }

    /// The weight of each of the loss's values, of which targets of a class that is left out have none; `weight` where there is no such class.
    #[track_caller]
    pub(crate) fn own_weight(
        &self,
        y_true: &Tensor,
        values: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Tensor> {
        match self.counts(y_true, values) {
            Some(counts) => Some(combined(&counts, values, weight)),
            None => weight.cloned(),
        }
    }

    /// Predictions whose derivative is 0 where the weight is 0, whatever the loss makes of the target; going forward nothing changes.
    #[track_caller]
    pub(crate) fn without_unweighted(&self, y_pred: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let rank = y_pred.rank();
        let kept = self.provided().map(|loss| loss.kept_dims(rank));
        without_unweighted(y_pred, weight, &kept.unwrap_or_else(|| (0..rank).collect()))
    }

    /// Whether predictions are taken as logits; `None` for a loss without that choice.
    #[must_use]
    pub fn takes_logits(&self) -> Option<bool> {
        self.provided()?.takes_logits()
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// [`Error::User`](crate::Error::User) naming the setting, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        self.provided().map_or(Ok(()), ExampleLoss::check)
    }

    /// The loss of a kind and its settings, absent ones as Keras' defaults.
    ///
    /// # Errors
    /// An unknown kind or field (naming the nearest), or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        let loss = Entry::read(&Self::entries(), Family::Loss, kind, fields)?;
        Self::check(&loss)?;
        Ok(loss)
    }

    /// The losses with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        Entry::descriptions(&Self::entries())
    }
}

impl CustomLoss {
    /// The traced function, which of targets of another rank gives no more numbers than there are predictions, and none for each two
    /// examples: these are of dims that were broadcast.
    #[track_caller]
    fn of(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let y_true = &in_dims_of(y_pred, y_true);
        let values = (self.function)(y_true, y_pred);
        let is_broadcast = || {
            values.shape().len() > y_pred.shape().len()
                || self.crosses_examples(y_true, y_pred, &values)
        };
        if y_true.rank() != y_pred.rank() && is_broadcast() {
            let (got, y_true, y_pred) = (values.shape(), y_true.shape(), y_pred.shape());
            let message = format!(
                "it gave {got} of targets {y_true} and predictions {y_pred}, expected a number for each example: targets of another rank are broadcast as in NumPy; give them the rank of the predictions by `y_true.reshape(..)`, and of a loss that compares examples the mean of each one's numbers"
            );
            values.graph().fail(&self.name, message);
        }
        values
    }

    /// Whether a dim behind the examples is as long as there are examples, which one example more shows.
    fn crosses_examples(&self, y_true: &Tensor, y_pred: &Tensor, values: &Tensor) -> bool {
        let behind = |values: &Tensor| values.dims().into_iter().skip(1).collect::<Vec<usize>>();
        if !behind(values).contains(&y_pred.dim(0)) {
            return false;
        }
        let graph = Graph::new();
        let with_one_more = |name: &str, x: &Tensor| {
            let mut dims = x.dims();
            dims.iter_mut().take(1).for_each(|rows| *rows += 1);
            graph.parameter(name, Shape::new(x.dtype(), dims))
        };
        let (y_true, y_pred) = (
            with_one_more("y_true", y_true),
            with_one_more("y_pred", y_pred),
        );
        let other = (self.function)(&y_true, &y_pred);
        // Only as many rows as there are may fit.
        graph.error().is_some() || behind(&other) != behind(values)
    }
}

impl fmt::Debug for CustomLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomLoss({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configurations_round_trip() {
        let smoothed = json!({"from_logits": true, "label_smoothing": 0.1});
        for kind in Loss::KINDS {
            let fields = match kind {
                "categorical_crossentropy" | "binary_crossentropy" => smoothed.clone(),
                "sparse_categorical_crossentropy" => json!({"ignore_class": -1}),
                "categorical_generalized_cross_entropy" => json!({"q": 0.3}),
                "huber" => json!({"delta": 0.5}),
                "binary_focal_crossentropy" => json!({"apply_class_balancing": true, "gamma": 1.5}),
                "categorical_focal_crossentropy" => json!({"alpha": 0.5, "from_logits": true}),
                "dice" => json!({"axis": [1, 2]}),
                "circle" => json!({"gamma": 20.0, "margin": 0.3, "remove_diagonal": false}),
                "tversky" => json!({"alpha": 0.3, "beta": 0.7, "axis": [2]}),
                _ => json!({}),
            };
            let loss = Loss::from_config(kind, &fields).unwrap();
            let again = Loss::from_config(loss.name(), &loss.config()).unwrap();
            assert_eq!(format!("{loss:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let message = |kind, fields| Loss::from_config(kind, &fields).unwrap_err().to_string();
        let kind = message("mean_square_error", json!({}));
        assert_eq!(
            kind,
            "unknown loss `mean_square_error`; did you mean `mean_squared_error`?"
        );
        let field = message(
            "sparse_categorical_crossentropy",
            json!({"from_logit": true}),
        );
        assert!(field.contains("did you mean `from_logits`?"), "{field}");
        let delta = message("huber", json!({"delta": -1.0}));
        assert_eq!(delta, "huber: `delta` must be a number above 0, got -1.0");
        let gamma = message("binary_focal_crossentropy", json!({"gamma": -1.0}));
        assert!(
            gamma.contains("`gamma` must be a number of at least 0"),
            "{gamma}"
        );
        let axis = message("dice", json!({"axis": [1, 0]}));
        assert!(
            axis.contains("`axis` must be null, or a list of values, each a whole number from 1 "),
            "{axis}"
        );
        let axis = message("tversky", json!({"axis": [2, 2]}));
        assert!(axis.contains("each once, got [2, 2]"), "{axis}");
        let margin = message("circle", json!({"margin": 1.5}));
        assert!(
            margin.contains("`margin` must be a number from 0 to 1, got 1.5"),
            "{margin}"
        );
        let smoothing = message("binary_crossentropy", json!({"label_smoothing": 1.5}));
        assert!(smoothing.contains("from 0 to 1, got 1.5"), "{smoothing}");
    }

    #[test]
    fn shapes_that_do_not_fit_are_the_graphs_error() {
        let cases: [(Loss, &[usize], &[usize], &str); 7] = [
            (
                MeanSquaredError.into(),
                &[4, 3],
                &[4, 2],
                "y_true f32[4,3] and y_pred f32[4,2]",
            ),
            (
                SparseCategoricalCrossentropy::from_logits().into(),
                &[3],
                &[4, 2],
                "y_true f32[3] does not hold one class for each row of y_pred f32[4,2]",
            ),
            (
                SparseCategoricalCrossentropy::from_logits().into(),
                &[4],
                &[4],
                "y_pred f32[4] has no dim of classes",
            ),
            (
                CategoricalCrossentropy::from_logits().into(),
                &[4],
                &[4, 2],
                "y_true f32[4] and y_pred f32[4,2] must have the same dims, [batch, ..]; targets that are numbers of classes need `sparse_categorical_crossentropy`",
            ),
            (
                Huber::new(f64::NAN).into(),
                &[4, 1],
                &[4, 1],
                "must be a number above 0, got NaN",
            ),
            (
                Dice::new().axis([1, 2]).into(),
                &[4, 3],
                &[4, 3],
                "`axis` must be from 1 to 1, the dims of an example of y_pred f32[4,3], got [1, 2]",
            ),
            (
                Ctc.into(),
                &[4, 3],
                &[4, 5],
                "expected labels [batch, labels], filled up with 0, and logits [batch, steps, classes]",
            ),
        ];
        for (loss, y_true, y_pred, expected) in cases {
            let error = refusal(&loss, Shape::f32(y_true), Shape::f32(y_pred));
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("losses/mod.rs"), "{error}");
        }
    }

    fn refusal(loss: &Loss, y_true: Shape, y_pred: Shape) -> String {
        let graph = Graph::new();
        let y_true = graph.parameter("y_true", y_true);
        let y_pred = graph.parameter("y_pred", y_pred);
        let _ = loss.per_example(&y_true, &y_pred);
        graph.error().expect("an error").to_string()
    }

    #[test]
    fn shapes_that_do_not_fit_have_a_next_action() {
        let told = |loss: Loss, dims: &[usize]| {
            refusal(&loss, Shape::new(DType::I32, dims), Shape::f32([4, 2]))
        };
        let sparse = told(SparseCategoricalCrossentropy::from_logits().into(), &[4, 2]);
        assert!(
            sparse
                .contains("expected dims [4], and one-hot targets need `categorical_crossentropy`"),
            "{sparse}"
        );
        let binary = told(BinaryCrossentropy::from_logits().into(), &[4]);
        assert!(
            binary.contains("and a yes or no for each example a last layer of 1 unit"),
            "{binary}"
        );
        let squared = told(MeanSquaredError.into(), &[4, 1]);
        assert!(
            squared.contains("y_true i32[4,1] and y_pred f32[4,2] must have the same dims, [batch, ..]; the model has 2 outputs for a target of one number: give the last layer 1 unit, or targets of 2 numbers"),
            "{squared}"
        );
    }
}
