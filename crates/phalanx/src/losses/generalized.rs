//! Generalized cross-entropy, for labels of which some are wrong (Zhang and Sabuncu 2018).

use phalanx_graph::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::{ExampleLoss, class_labels, in_float};
use crate::config::{Component, Described, Field, Kind};
use crate::{Error, Result};

/// Generalized cross-entropy of integer classes: `(1 - p^q) / q` of the probability of the class, near the cross-entropy for a small `q`
/// and near the absolute error for one near 1, which minds wrong labels less.
///
/// Targets `[batch, ..]` or `[batch, .., 1]` of any number type; predictions `[batch, .., classes]`, probabilities. A class out of range
/// gives NaN, and Keras counts its probability as 0. Where the probability is 0 the derivative is 0, and infinite in Keras.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([2], &[0i32, 1]);
/// let y_pred = rows([[0.7, 0.2, 0.1], [0.25, 0.36, 0.39]]);
/// let loss = per_example(CategoricalGeneralizedCrossEntropy::new(0.5), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.3267, 0.8000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoricalGeneralizedCrossEntropy {
    q: f64,
}

impl Described for CategoricalGeneralizedCrossEntropy {
    const COMPONENT: Component = Component {
        name: "categorical_generalized_cross_entropy",
        doc: "cross-entropy of classes given as whole numbers that minds wrong labels less; of probabilities",
        fields: &[Field::optional(
            "q",
            Kind::Number(
                std::ops::Bound::Excluded(0.0),
                std::ops::Bound::Excluded(1.0),
            ),
            "how little it minds them",
        )],
    };
}

impl CategoricalGeneralizedCrossEntropy {
    /// With this `q`, above 0 and below 1.
    #[must_use]
    pub const fn new(q: f64) -> Self {
        Self { q }
    }
}

impl Default for CategoricalGeneralizedCrossEntropy {
    /// Keras' `q` of 0.5.
    fn default() -> Self {
        Self::new(0.5)
    }
}

impl ExampleLoss for CategoricalGeneralizedCrossEntropy {
    fn check(&self) -> Result<()> {
        if self.q > 0.0 && self.q < 1.0 {
            return Ok(());
        }
        let (name, q) = (Self::COMPONENT.name, self.q);
        Err(Error::user(format!(
            "{name}: `q` must be a number above 0 and below 1, got {q}"
        )))
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some(labels) = class_labels(Self::COMPONENT.name, y_true, y_pred) else {
            return y_pred.clone();
        };
        let probabilities = in_float(y_pred);
        let last = probabilities.rank() - 1;
        let classes = probabilities.dim(last);
        let of_class = labels.one_hot(classes, DType::Bool);
        let zeros = probabilities.like(0.0);
        let of_class = of_class.select(&probabilities, &zeros).sum(&[last]);
        let is_zero = of_class.equal(&of_class.like(0.0));
        let some = is_zero.select(&of_class.like(1.0), &of_class);
        let power = is_zero.select(&of_class.like(0.0), &some.pow(&some.like(self.q)));
        let loss = (1.0 - power) / self.q;
        let in_range = labels
            .greater_equal(&labels.like(0.0))
            .and(&labels.less(&labels.like(classes as f64)));
        in_range.select(&loss, &loss.like(f64::NAN))
    }
}
