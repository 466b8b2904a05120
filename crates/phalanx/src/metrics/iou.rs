//! How far predicted and true regions of a picture overlap.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::columns::{columns, refuse_columns};
use super::counting::Counting;
use crate::config::{Component, Described, Field, Kind};
use crate::losses::{
    CLASS, aligned_weight, check_class, class_labels, in_float, paired, weighted_or_zero,
};

/// The setting of both metrics of regions.
pub(super) const TARGET_CLASS_IDS: Field = Field::optional(
    "target_class_ids",
    Kind::List(&Kind::Whole(0, i32::MAX as i64), 1, usize::MAX),
    "the classes that are averaged; by default all",
);

/// The mean over classes of intersection over union: of the places that are a class by target or by prediction, the share that are
/// by both. A class that is nowhere is left out.
///
/// Predictions are scores `[batch, .., classes]`, of which the largest is the answer; targets are numbers of classes
/// `[batch, ..]`, or one-hot rows of the same dims as the predictions. Keras' `MeanIoU` takes numbers of classes for both, its
/// `OneHotMeanIoU` scores; it truncates weights to whole numbers. A target that is no class of the model is left out. With
/// [`target_class_ids`](Self::target_class_ids) it is Keras' `IoU` or `OneHotIoU`.
///
/// A single output `[batch, .., 1]` is the probability of class 1 of two, which is the answer from 0.5 on, as in
/// [`BinaryIou`](super::BinaryIou); where the loss takes logits, their probabilities are compared.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = phalanx::HostTensor::new([4], &[0_i32, 0, 1, 1]);
/// let y_pred = rows([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]);
/// let result = measure(MeanIou::default(), y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.3333");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanIou {
    num_classes: Option<usize>,
    target_class_ids: Option<Vec<usize>>,
    ignore_class: Option<i64>,
}

impl Described for MeanIou {
    const COMPONENT: Component = Component {
        name: "mean_io_u",
        doc: "intersection over union of each class, averaged",
        fields: &[
            Field::optional(
                "num_classes",
                Kind::Whole(2, i32::MAX as i64),
                "number of classes; by default the number of outputs, or 2 for a single one",
            ),
            TARGET_CLASS_IDS,
            Field::optional("ignore_class", CLASS, "targets of this class are left out"),
        ],
    };
}

impl MeanIou {
    /// Sets the number of classes, at least 2; by default it is the last dim of the predictions, or 2 for a single output.
    #[must_use]
    pub const fn num_classes(mut self, classes: usize) -> Self {
        self.num_classes = Some(classes);
        self
    }

    /// Averages these classes alone.
    #[must_use]
    pub fn target_class_ids(mut self, classes: impl Into<Vec<usize>>) -> Self {
        self.target_class_ids = Some(classes.into());
        self
    }

    /// Leaves out targets of this class, such as one for what is not labelled.
    #[must_use]
    pub const fn ignore_class(mut self, class: i64) -> Self {
        self.ignore_class = Some(class);
        self
    }

    /// The classes that as many outputs tell apart.
    const fn classes_of(outputs: usize) -> usize {
        match outputs {
            1 => 2,
            classes => classes,
        }
    }

    /// Whether a target is counted.
    fn counts(&self, labels: &Tensor) -> Tensor {
        let ignored = self
            .ignore_class
            .map_or(f64::from(i32::MIN), |class| class as f64);
        labels.not_equal(&labels.like(ignored))
    }
}

impl Counting for MeanIou {
    fn bind(&mut self, y_pred: &Shape) {
        let classes = Self::classes_of(columns(y_pred));
        self.num_classes.get_or_insert(classes);
    }

    fn check(&self) -> Result<(), String> {
        check_class(self.ignore_class)?;
        match self.num_classes {
            Some(classes) if classes < 2 => Err(format!(
                "`num_classes` must be at least 2, got {classes}; a single output tells 2 classes apart"
            )),
            classes => check_targets(self.target_class_ids.as_deref(), classes),
        }
    }

    fn takes_probabilities(&self, y_pred: &Shape) -> bool {
        columns(y_pred) == 1
    }

    fn counts_classes(&self, outputs: usize) -> Option<(usize, Option<i64>)> {
        Some((Self::classes_of(outputs), self.ignore_class))
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let classes = self.num_classes.unwrap_or(1);
        vec![MetricStateSpec {
            name: "total_confusion_matrix",
            shape: Shape::f32([classes, classes]),
        }]
    }

    /// Weights by target (rows) and answer (columns).
    #[track_caller]
    fn update(
        &self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let classes = Self::classes_of(columns(&y_pred.shape()));
        if Some(classes) != self.num_classes {
            refuse_columns(
                "mean_io_u",
                ["classes", "num_classes"],
                self.num_classes,
                classes,
                y_pred,
            );
            return None;
        }
        let (labels, answers) = labels_and_answers(y_true, y_pred)?;
        let counts = self.counts(&labels);
        let matrix = confusion_matrix([&labels, &answers], &counts, classes, weight)?;
        Some(vec![matrix])
    }

    fn results(&self, state: &[Vec<f64>]) -> Vec<f64> {
        let classes = self.num_classes.unwrap_or(1);
        match state {
            [matrix] => vec![mean(matrix, classes, self.target_class_ids.as_deref())],
            _ => vec![f64::NAN],
        }
    }
}

/// Refuses classes that there are not.
pub(super) fn check_targets(
    targets: Option<&[usize]>,
    classes: Option<usize>,
) -> Result<(), String> {
    let most = classes.unwrap_or(usize::MAX);
    match targets {
        Some(targets) if targets.is_empty() || targets.iter().any(|class| *class >= most) => {
            Err(format!(
                "`target_class_ids` must be one or more numbers of classes below {most}, got {targets:?}"
            ))
        }
        _ => Ok(()),
    }
}

/// Weights by target (rows) and answer (columns) of the places that count, or the graph's error.
#[track_caller]
pub(super) fn confusion_matrix(
    [labels, answers]: [&Tensor; 2],
    counts: &Tensor,
    classes: usize,
    weight: Option<&Tensor>,
) -> Option<Tensor> {
    let rows = labels.dims().iter().product();
    let weights = match weight {
        Some(weight) => aligned_weight(&labels.convert(DType::F32), weight)?,
        None => labels.convert(DType::F32).like(1.0),
    };
    let counts = counts.reshape(&[rows, 1]);
    let weights = weights.broadcast_to(&labels.dims()).reshape(&[rows, 1]);
    // A row without a one where the target is left out.
    let targets = labels
        .one_hot(classes, DType::F32)
        .reshape(&[rows, classes]);
    let targets = weighted_or_zero(&targets, &weights) * counts.convert(DType::F32);
    let answers = answers
        .one_hot(classes, DType::F32)
        .reshape(&[rows, classes]);
    Some(targets.transpose(&[1, 0]).matmul(&answers))
}

/// The mean over the classes that are anywhere, of all or of these, from the matrix of counts; 0 where none is.
pub(super) fn mean(matrix: &[f64], classes: usize, targets: Option<&[usize]>) -> f64 {
    let of_class = |class: usize| {
        let both = matrix[class * classes + class];
        let target: f64 = matrix[class * classes..][..classes].iter().sum();
        let answer: f64 = matrix[class..].iter().step_by(classes).sum();
        let either = target + answer - both;
        (either > 0.0).then(|| both / either)
    };
    let all: Vec<usize> = (0..classes).collect();
    let targets = targets.unwrap_or(&all).iter();
    let shares: Vec<f64> = targets.filter_map(|&class| of_class(class)).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

/// The class of each place by target and by answer as i32, in the same dims, or the graph's error.
#[track_caller]
fn labels_and_answers(y_true: &Tensor, y_pred: &Tensor) -> Option<(Tensor, Tensor)> {
    if columns(&y_pred.shape()) == 1 {
        let (y_true, scores) = paired("mean_io_u", y_true, y_pred)?;
        let answers = scores.greater_equal(&scores.like(0.5));
        return Some((y_true.convert(DType::I32), answers.convert(DType::I32)));
    }
    let last = y_pred.rank() - 1;
    let labels = match y_true.dims() == y_pred.dims() {
        true => y_true.argmax(last),
        false => class_labels("mean_io_u", y_true, y_pred)?,
    };
    Some((labels, in_float(y_pred).argmax(last)))
}
