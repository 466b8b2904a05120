//! How far predicted and true regions of a picture overlap.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::MetricStateSpec;
use super::columns::refuse_columns;
use crate::config::{Component, Described, Field, Kind};
use crate::losses::{aligned_weight, class_labels, in_float, weighted_or_zero};

/// The mean over classes of intersection over union: of the places that are a class by target or by prediction, the share that are
/// by both. A class that is nowhere is left out.
///
/// Predictions are scores `[batch, .., classes]`, of which the largest is the answer; targets are numbers of classes
/// `[batch, ..]`, or one-hot rows of the same dims as the predictions. Keras' `MeanIoU` takes numbers of classes for both, its
/// `OneHotMeanIoU` scores; it truncates weights to whole numbers. A target that is no class of the model is left out.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanIou {
    num_classes: Option<usize>,
    ignore_class: Option<i64>,
}

impl Described for MeanIou {
    const COMPONENT: Component = Component {
        name: "mean_io_u",
        doc: "intersection over union of each class, averaged",
        fields: &[
            Field::optional(
                "num_classes",
                Kind::SIZE,
                "number of classes; by default the number of outputs",
            ),
            Field::optional(
                "ignore_class",
                Kind::INTEGER,
                "targets of this class are left out",
            ),
        ],
    };
}

impl MeanIou {
    /// Sets the number of classes; by default it is the last dim of the predictions.
    #[must_use]
    pub const fn num_classes(mut self, classes: usize) -> Self {
        self.num_classes = Some(classes);
        self
    }

    /// Leaves out targets of this class, such as one for what is not labelled.
    #[must_use]
    pub const fn ignore_class(mut self, class: i64) -> Self {
        self.ignore_class = Some(class);
        self
    }

    /// The class whose targets are left out.
    pub(super) const fn left_out(self) -> Option<i64> {
        self.ignore_class
    }

    pub(super) fn bind(&mut self, y_pred: &Shape) {
        let classes = y_pred.dims.last().copied().unwrap_or(1);
        self.num_classes.get_or_insert(classes);
    }

    pub(super) fn state(self) -> Vec<MetricStateSpec> {
        let classes = self.num_classes.unwrap_or(1);
        vec![MetricStateSpec {
            name: "total_confusion_matrix",
            shape: Shape::f32([classes, classes]),
        }]
    }

    /// Weights by target (rows) and answer (columns).
    #[track_caller]
    pub(super) fn update(
        self,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) -> Option<Vec<Tensor>> {
        let last = y_pred.rank().checked_sub(1)?;
        let classes = y_pred.dim(last);
        if Some(classes) != self.num_classes {
            refuse_columns(
                "mean_io_u",
                ["classes", "num_classes"],
                self.num_classes,
                y_pred,
            );
            return None;
        }
        let labels = if y_true.dims() == y_pred.dims() && last > 0 {
            y_true.argmax(last)
        } else {
            class_labels("mean_io_u", y_true, y_pred)?
        };
        let rows = labels.dims().iter().product();
        let weights = match weight {
            Some(weight) => aligned_weight(&labels.convert(DType::F32), weight)?,
            None => labels.convert(DType::F32).like(1.0),
        };
        let counts = self.counts(&labels).reshape(&[rows, 1]);
        let weights = weights.broadcast_to(&labels.dims()).reshape(&[rows, 1]);
        // A row without a one where the target is left out.
        let targets = labels
            .one_hot(classes, DType::F32)
            .reshape(&[rows, classes]);
        let targets = weighted_or_zero(&targets, &weights) * counts.convert(DType::F32);
        let answers = in_float(y_pred).argmax(last);
        let answers = answers
            .one_hot(classes, DType::F32)
            .reshape(&[rows, classes]);
        Some(vec![targets.transpose(&[1, 0]).matmul(&answers)])
    }

    /// Whether a target is counted.
    fn counts(self, labels: &Tensor) -> Tensor {
        let ignored = self
            .ignore_class
            .map_or(f64::from(i32::MIN), |class| class as f64);
        labels.not_equal(&labels.like(ignored))
    }

    /// The mean over the classes that are anywhere, from the matrix of counts; 0 where none is.
    pub(super) fn mean(self, matrix: &[f64]) -> f64 {
        let classes = self.num_classes.unwrap_or(1);
        let of_class = |class: usize| {
            let both = matrix[class * classes + class];
            let target: f64 = matrix[class * classes..][..classes].iter().sum();
            let answer: f64 = matrix[class..].iter().step_by(classes).sum();
            let either = target + answer - both;
            (either > 0.0).then(|| both / either)
        };
        let shares: Vec<f64> = (0..classes).filter_map(of_class).collect();
        shares.iter().sum::<f64>() / shares.len().max(1) as f64
    }
}
