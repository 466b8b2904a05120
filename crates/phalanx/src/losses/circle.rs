//! Circle loss, by which vectors of one class come near each other and go away from vectors of other classes (Sun et al. 2020).

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::{ExampleLoss, class_labels, in_float};
use crate::config::{Component, Described, Field, Kind};
use crate::{Error, Result};

/// Circle loss of integer classes and vectors of length 1, as `unit_norm` gives them: of each example the softplus of two sums in logarithms,
/// over the others of its class and over the examples of other classes.
///
/// Targets `[batch]` or `[batch, 1]`, predictions `[batch, n]`. With the distance `d = max(1 - x.y, 0)` of two vectors another of the class adds
/// `gamma (m + d) (d - m)`, one of another class `gamma max(1 + m - d, 0) (1 - m - d)`, where `m` is the margin. An example whose loss is 0, as one
/// that is alone in its class has it, has no weight in the mean, as in Keras; unlike there, one whose weight is 0 is not compared with the others.
///
/// In a training every example is compared with the examples of all replicas; in a pipeline it needs `micro_batches: 1`, and under a parameter server the batch
/// is the worker's. [`Loss::per_example`](super::Loss::per_example) compares the rows that it is given, and is refused on several replicas.
///
/// ```
#[doc = include_str!("example.md")]
/// let y_true = HostTensor::new([3], &[0i32, 0, 1]);
/// let y_pred = rows([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]);
/// let loss = per_example(Circle::default().gamma(1.0), y_true, y_pred)?;
/// println!("{loss:.4?}");
/// assert_eq!(format!("{loss:.4?}"), "[0.5629, 0.7339, 0.0000]");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Circle {
    gamma: f64,
    margin: f64,
    remove_diagonal: bool,
}

impl Described for Circle {
    const COMPONENT: Component = Component {
        name: "circle",
        doc: "how far vectors of length 1 are from others of their class, and how near to vectors of other classes; targets are whole numbers",
        fields: &[
            Field::optional("gamma", Kind::ABOVE_ZERO, "how steep it is"),
            Field::optional(
                "margin",
                Kind::SHARE,
                "the distance at which two vectors of a class are near enough, and by how much less than 1 two of other classes are far enough",
            ),
            Field::optional(
                "remove_diagonal",
                Kind::Bool,
                "whether an example is not compared with itself",
            ),
        ],
    };
}

impl Default for Circle {
    /// Keras' `gamma` of 80 and margin of 0.4, without comparing an example with itself.
    fn default() -> Self {
        Self {
            gamma: 80.0,
            margin: 0.4,
            remove_diagonal: true,
        }
    }
}

impl Circle {
    /// Sets how steep the loss is, above 0; 80 by default.
    #[must_use]
    pub const fn gamma(mut self, gamma: f64) -> Self {
        self.gamma = gamma;
        self
    }

    /// Sets the margin, from 0 to 1; 0.4 by default.
    #[must_use]
    pub const fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    /// Sets whether an example is not compared with itself, as it is not by default.
    #[must_use]
    pub const fn remove_diagonal(mut self, remove: bool) -> Self {
        self.remove_diagonal = remove;
        self
    }

    /// The losses of the distances `[rows, all]`, of those that are of a class and those that are not.
    fn of_distances(&self, distances: &Tensor, [same, other]: [&Tensor; 2]) -> Tensor {
        let (gamma, margin) = (self.gamma, self.margin);
        let zero = distances.like(0.0);
        let positive = (distances + margin) * (distances - margin) * gamma;
        let negative =
            (1.0 + margin - distances).maximum(&zero) * (1.0 - margin - distances) * gamma;
        // Of none, far below every sum, but finite, so that derivatives are numbers.
        let none = distances.like(-1e30);
        let of_same = same.select(&positive, &none).logsumexp(1);
        let of_other = other.select(&negative, &none).logsumexp(1);
        let sum = of_same + of_other;
        let zero = sum.like(0.0);
        let above = sum.greater_equal(&zero);
        above.select(&sum, &zero) + above.select(&-&sum, &sum).exp().log1p()
    }
}

impl ExampleLoss for Circle {
    fn check(&self) -> Result<()> {
        let name = Self::COMPONENT.name;
        let problem = match (self.gamma, self.margin) {
            (gamma, _) if !(gamma > 0.0 && gamma.is_finite()) => {
                format!("`gamma` must be a number above 0, got {gamma}")
            }
            (_, margin) if !(0.0..=1.0).contains(&margin) => {
                format!("`margin` must be a number from 0 to 1, got {margin}")
            }
            _ => return Ok(()),
        };
        Err(Error::user(format!("{name}: {problem}")))
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let replicas = y_pred.graph().replicas();
        if replicas > 1 {
            let message = format!(
                "it compares the examples of a batch, and each of {replicas} replicas has some of them; train with `fit`, which compares all, or on one device"
            );
            y_pred.graph().fail(Self::COMPONENT.name, message);
            return y_pred.clone();
        }
        self.in_batch(y_true, y_pred, None)
    }

    #[track_caller]
    fn in_batch(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let Some(own) = ComparedExamples::of(y_true, y_pred, weight) else {
            return y_pred.clone();
        };
        let all = own.of_all_replicas();
        let pairs = [own.labels.dim(0), all.labels.dim(0)];
        let products = own.vectors.matmul(&all.vectors.transpose(&[1, 0]));
        let distances = (1.0 - products).maximum(&own.vectors.like(0.0));
        let [rows, columns] = [(&own.labels, 0), (&all.labels, 1)]
            .map(|(labels, dim)| labels.broadcast_in(&pairs, &[dim]));
        let counts = all.counts.broadcast_in(&pairs, &[1]);
        let (same, other) = (rows.equal(&columns), rows.not_equal(&columns));
        let same = match self.remove_diagonal {
            true => same.and(&own.are_others(pairs)),
            false => same,
        };
        let losses = self.of_distances(&distances, [&same.and(&counts), &other.and(&counts)]);
        own.counts.select(&losses, &losses.zeros_like())
    }

    fn compares_examples(&self) -> bool {
        true
    }

    #[track_caller]
    fn counted(&self, _y_true: &Tensor, values: &Tensor) -> Option<Tensor> {
        // One that is no number counts, too: a diverged training is to be seen.
        let counts = values.not_equal(&values.like(0.0));
        Some(counts.convert(values.dtype()))
    }
}

/// The examples of a replica, or of all.
struct ComparedExamples {
    labels: Tensor,
    vectors: Tensor,
    /// Whether a row is compared with others, and does not only fill up or weigh nothing.
    counts: Tensor,
}

impl ComparedExamples {
    #[track_caller]
    fn of(y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Option<Self> {
        let name = Circle::COMPONENT.name;
        let labels = class_labels(name, y_true, y_pred)?;
        let vectors = in_float(y_pred);
        if vectors.rank() != 2 {
            let message = format!("expected predictions [batch, n], got {}", y_pred.shape());
            y_pred.graph().fail(name, message);
            return None;
        }
        let rows = labels.dim(0);
        // One that does not fit is a mistake where the loss is weighed.
        let weight = weight.filter(|weight| weight.shape().len() == rows);
        let counts = match weight {
            Some(weight) => weight.reshape(&[rows]).not_equal(&weight.like(0.0)),
            None => labels.equal(&labels),
        };
        // What does not count may be no number.
        let kept = counts.broadcast_in(&vectors.dims(), &[0]);
        Some(Self {
            labels,
            vectors: kept.select(&vectors, &vectors.zeros_like()),
            counts,
        })
    }

    #[track_caller]
    fn of_all_replicas(&self) -> Self {
        let gathered = |own: &Tensor| match own.graph().replicas() {
            1 => own.clone(),
            _ => own.all_gather(0),
        };
        Self {
            labels: gathered(&self.labels),
            vectors: gathered(&self.vectors),
            counts: gathered(&self.counts.convert(DType::I32)).convert(DType::Bool),
        }
    }

    /// For each of these rows which of all replicas' is another.
    #[track_caller]
    fn are_others(&self, pairs: [usize; 2]) -> Tensor {
        let graph = self.labels.graph();
        let places = Shape::new(DType::I32, pairs);
        let (row, column) = (graph.iota(places.clone(), 0), graph.iota(places, 1));
        let first = match graph.replicas() {
            1 => row.like(0.0),
            _ => graph.replica_id().convert(DType::I32) * pairs[0] as f64,
        };
        (row + first).not_equal(&column)
    }
}
