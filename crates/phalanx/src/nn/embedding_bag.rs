//! Several rows of a table as one vector.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::embedding::{look_up, table_setters, whole};
use super::layer::Layer;
use super::sizes::check_size;
use super::{Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// How the rows of a bag become one vector, with weights `w`, all 1 where none are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combiner {
    /// `sum(w row)`.
    Sum,
    /// `sum(w row) / sum(w)`.
    Mean,
    /// `sum(w row) / sqrt(sum(w^2))`.
    Sqrtn,
}

/// The rows of a table at several indices, combined to one vector; kind `embedding_bag`.
///
/// Inputs: indices `[batch, n]`, and perhaps a weight for each. Output: `[batch, output_dim]`, zeros where a bag is
/// empty. Variable: `embeddings` `[input_dim, output_dim]`. An index that is `padding` is not in the bag; one that is
/// not in the table gives NaN, as [`Embedding`](super::Embedding) does. Not in Keras: numbers agree with TensorFlow's
/// `embedding_lookup_sparse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingBag {
    input_dim: usize,
    output_dim: usize,
    combiner: Combiner,
    padding: Option<i32>,
    embeddings_initializer: Initializer,
    embeddings_regularizer: Option<Regularizer>,
    embeddings_constraint: Option<Constraint>,
}

impl EmbeddingBag {
    /// A table of `input_dim` rows of `output_dim` numbers, of which bags take the mean.
    #[must_use]
    pub const fn new(input_dim: usize, output_dim: usize) -> Self {
        Self {
            input_dim,
            output_dim,
            combiner: Combiner::Mean,
            padding: None,
            embeddings_initializer: Initializer::embedding(),
            embeddings_regularizer: None,
            embeddings_constraint: None,
        }
    }

    /// Sets how rows are combined; their mean by default.
    #[must_use]
    pub const fn combiner(mut self, combiner: Combiner) -> Self {
        self.combiner = combiner;
        self
    }

    /// Sets the index that fills up bags with fewer than `n`, such as 0 or -1; none by default.
    #[must_use]
    pub const fn padding(mut self, padding: i32) -> Self {
        self.padding = Some(padding);
        self
    }

    table_setters!();

    /// Whether each index is none of padding; unsigned ones are never below 0.
    #[track_caller]
    fn kept(&self, index: &Tensor) -> Option<Tensor> {
        let padding = f64::from(self.padding?);
        let index = match index.dtype().is_float() {
            true => index.clone(),
            false => whole(index),
        };
        Some(index.not_equal(&index.like(padding)))
    }

    /// The sum of weighed rows, combined; 0 where it would be divided by 0, as TensorFlow does.
    #[track_caller]
    fn combined(&self, sum: Tensor, weights: &Tensor) -> Tensor {
        let total = match self.combiner {
            Combiner::Sum => return sum,
            Combiner::Mean => weights.sum(&[1]),
            Combiner::Sqrtn => weights.square().sum(&[1]),
        };
        let empty = total.equal(&total.like(0.0));
        let total = empty.select(&total.like(1.0), &total);
        let divisor = match self.combiner {
            Combiner::Sqrtn => total.sqrt(),
            _ => total,
        };
        let empty = empty.keep_dims(&[1]).broadcast_in(&sum.dims(), &[0, 1]);
        empty.select(&sum.zeros_like(), &(sum / divisor.keep_dims(&[1])))
    }
}

impl Described for EmbeddingBag {
    const COMPONENT: Component = Component {
        name: "embedding_bag",
        doc: "looks up several rows of a table and combines them",
        fields: &[
            fields::INPUT_DIM,
            fields::OUTPUT_DIM,
            Field::optional(
                "combiner",
                Kind::OneOf(&["sum", "mean", "sqrtn"]),
                "how the rows are combined; `sqrtn` divides their sum by the square root of the sum of squared weights",
            ),
            Field::optional(
                "padding",
                Kind::Whole(i32::MIN as i64, i32::MAX as i64),
                "an index that is left out",
            ),
            fields::EMBEDDINGS_INITIALIZER,
            fields::EMBEDDINGS_REGULARIZER,
            fields::EMBEDDINGS_CONSTRAINT,
        ],
    };
}

impl Layer for EmbeddingBag {
    fn kind(&self) -> &'static str {
        "embedding_bag"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`input_dim`", self.input_dim)?;
        check_size("`output_dim`", self.output_dim)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let ([index] | [index, _]) = inputs else {
            let count = inputs.len();
            return Err(format!(
                "expected indices and perhaps weights, got {count} inputs"
            ));
        };
        if index.dtype == DType::Bool || index.rank() != 2 {
            return Err(format!("expected indices [batch, n], got {index}"));
        }
        match inputs.get(1) {
            Some(weights) if !weights.dtype.is_float() || weights.dims != index.dims => Err(
                format!("expected a weight for each index of {index}, got {weights}"),
            ),
            _ => Ok(()),
        }
    }

    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        Some((self.input_dim, self.padding))
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let shape = Shape::f32([self.input_dim, self.output_dim]);
        let limits = (
            self.embeddings_regularizer,
            self.embeddings_constraint.as_ref(),
        );
        let table = cx.limited("embeddings", shape, &self.embeddings_initializer, limits);
        let index = &inputs[0];
        let kept = self.kept(index);
        let or_zero = |values: &Tensor| match &kept {
            Some(kept) => kept.select(values, &values.zeros_like()),
            None => values.clone(),
        };
        let rows = look_up(&table, &or_zero(index), table.dtype());
        let weights = or_zero(&match inputs.get(1) {
            Some(given) => given.convert(rows.dtype()),
            None => {
                let shape = Shape::new(rows.dtype(), index.dims());
                index.graph().full(&shape, 1.0)
            }
        });
        let weighed = &rows * weights.broadcast_in(&rows.dims(), &[0, 1]);
        let sum = weighed.sum(&[1]);
        self.combined(sum, &weights).convert(cx.compute_dtype())
    }
}
