//! How targets and predictions of an example vary together.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::counting::Counting;
use crate::config::{Component, Described};
use crate::losses::{EPSILON, paired};

/// Pearson's correlation of the outputs of each example with their targets, over the last dim: 1 where they lie on a rising line, -1 on
/// a falling one.
///
/// Targets and predictions `[batch, .., outputs]` of at least 2 outputs. An example whose targets or predictions are all equal counts 0;
/// Keras has NaN.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0, 0.5], [1.0, 1.0, 0.2]]);
/// let y_pred = rows([[0.1, 0.9, 0.5], [1.0, 0.9, 0.2]]);
/// let result = measure(PearsonCorrelation, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.9967");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PearsonCorrelation;

impl Described for PearsonCorrelation {
    const COMPONENT: Component = Component {
        name: "pearson_correlation",
        doc: "how the outputs of an example vary with their targets",
        fields: &[],
    };
}

/// The concordance of the outputs of each example with their targets, over the last dim: a correlation that is less where both differ in
/// their means or in how far they vary (Lin 1989).
///
/// Shapes are as for [`PearsonCorrelation`]; as in Keras, 1e-7 is added to the divisor.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = rows([[0.0, 1.0, 0.5], [1.0, 1.0, 0.2]]);
/// let y_pred = rows([[0.1, 0.9, 0.5], [1.0, 0.9, 0.2]]);
/// let result = measure(ConcordanceCorrelation, y_true, y_pred)?;
/// println!("{result:.4}");
/// assert_eq!(format!("{result:.4}"), "0.9816");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcordanceCorrelation;

impl Described for ConcordanceCorrelation {
    const COMPONENT: Component = Component {
        name: "concordance_correlation",
        doc: "how near the outputs of an example are to their targets, beside how far both vary",
        fields: &[],
    };
}

/// Of each example what both vary together, each of them alone, and the difference of their means.
struct JointMoments {
    covariance: Tensor,
    variances: [Tensor; 2],
    distance: Tensor,
    /// Whether all targets are one number, or all answers: the mean of equal numbers need not be that number.
    is_constant: Tensor,
}

impl JointMoments {
    /// Of targets and predictions over the last dim, or the graph's error.
    #[track_caller]
    fn new(op: &str, y_true: &Tensor, y_pred: &Tensor) -> Option<Self> {
        let (y_true, y_pred) = paired(op, y_true, y_pred)?;
        let last = y_pred.rank() - 1;
        if y_pred.dim(last) < 2 {
            let message = format!(
                "y_pred {} has one output for each example, expected at least 2: it correlates the outputs of an example; for a single one take `r2_score`",
                y_pred.shape()
            );
            y_pred.graph().fail(op, message);
            return None;
        }
        let both = [y_true, y_pred];
        let means = both.each_ref().map(|values| values.mean(&[last]));
        let centred = |i: usize| &both[i] - means[i].keep_dims(&[last]);
        let (targets, answers) = (centred(0), centred(1));
        Some(Self {
            covariance: (&targets * &answers).mean(&[last]),
            variances: [targets, answers].map(|values| values.square().mean(&[last])),
            distance: &means[0] - &means[1],
            is_constant: are_one(&both[0], last).or(&are_one(&both[1], last)),
        })
    }
}

/// Whether the elements along a dim are all equal.
#[track_caller]
fn are_one(values: &Tensor, dim: usize) -> Tensor {
    values.max(&[dim]).equal(&values.min(&[dim]))
}

impl Counting for PearsonCorrelation {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let moments = JointMoments::new(Self::COMPONENT.name, y_true, y_pred)?;
        let [targets, answers] = moments.variances;
        let product = targets.sqrt() * answers.sqrt();
        let is_constant = moments.is_constant.or(&product.equal(&product.like(0.0)));
        let correlation = moments.covariance / is_constant.select(&product.like(1.0), &product);
        Some(is_constant.select(&product.like(0.0), &correlation))
    }
}

impl Counting for ConcordanceCorrelation {
    #[track_caller]
    fn values(&self, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
        let moments = JointMoments::new(Self::COMPONENT.name, y_true, y_pred)?;
        let [targets, answers] = moments.variances;
        let whole = targets + answers + moments.distance.square() + EPSILON;
        Some(moments.covariance * 2.0 / whole)
    }
}
