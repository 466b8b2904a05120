//! Tables of vectors that are looked up by index, and whose products with vectors are scores of the indices.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::embedding::{look_up_steps, table_setters};
use super::layer::{Body, Layer};
use super::model::{Call, Model, Place};
use super::sizes::{check_range, check_size, one_input};
use super::{Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// An [`Embedding`](super::Embedding) that also goes the other way, from vectors to scores of the indices (Press and Wolf 2017); kind
/// `reversible_embedding`.
///
/// Whole numbers become rows of the table, as by an embedding. Floats `[.., output_dim]` become `[.., input_dim]`, their products with each row, or
/// with weights of their own where these are not tied: `reverse=True` in a call of Keras' says so. Padding masks are passed on, which Keras' layer loses
/// on the way back. There is no `reverse_dtype`: both ways compute in the layer's types.
///
/// Variables: `embeddings` `[input_dim, output_dim]`, `reverse_embeddings` `[output_dim, input_dim]` where weights are not tied.
///
/// ```
/// use phalanx::nn::{Dense, Input, Network, ReversibleEmbedding};
/// use phalanx_graph::DType;
///
/// let mut net = Network::new();
/// let tokens = net.input(Input::new([10]).dtype(DType::I32));
/// let table = net.layer(ReversibleEmbedding::new(1000, 32));
/// let x = net.call(table, &[tokens]);
/// let x = net.add(Dense::new(32), &[x]);
/// let scores = net.call(table, &[x]);
/// assert_eq!(net.build(&[tokens], &[scores])?.outputs()[0].dims, [10, 1000]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReversibleEmbedding {
    input_dim: usize,
    output_dim: usize,
    tie_weights: bool,
    embeddings_initializer: Initializer,
    embeddings_regularizer: Option<Regularizer>,
    embeddings_constraint: Option<Constraint>,
    mask_zero: bool,
    logit_soft_cap: Option<f64>,
}

impl ReversibleEmbedding {
    /// A table of `input_dim` rows of `output_dim` numbers, which goes both ways.
    #[must_use]
    pub const fn new(input_dim: usize, output_dim: usize) -> Self {
        Self {
            input_dim,
            output_dim,
            tie_weights: true,
            embeddings_initializer: Initializer::embedding(),
            embeddings_regularizer: None,
            embeddings_constraint: None,
            mask_zero: false,
            logit_soft_cap: None,
        }
    }

    /// Sets whether the way back has the table's numbers, as by default, or weights of its own.
    #[must_use]
    pub const fn tie_weights(mut self, tie_weights: bool) -> Self {
        self.tie_weights = tie_weights;
        self
    }

    table_setters!();

    /// Sets whether index 0 is padding, as of [`Embedding`](super::Embedding::mask_zero).
    #[must_use]
    pub const fn mask_zero(mut self, mask_zero: bool) -> Self {
        self.mask_zero = mask_zero;
        self
    }

    /// Keeps scores within this: `cap tanh(score / cap)`.
    #[must_use]
    pub const fn logit_soft_cap(mut self, cap: f64) -> Self {
        self.logit_soft_cap = Some(cap);
        self
    }

    #[track_caller]
    fn scored(&self, cx: &mut Cx, kernel: &Tensor, x: &Tensor) -> Tensor {
        let dtype = cx.compute_dtype();
        let scores = x.convert(dtype).matmul(&kernel.convert(dtype));
        let scores = match self.logit_soft_cap {
            Some(cap) => (scores / cap).tanh() * cap,
            None => scores,
        };
        if let Some(mask) = cx.padding_mask(x) {
            cx.set_padding_mask(&scores, &mask);
        }
        scores
    }
}

impl Described for ReversibleEmbedding {
    const COMPONENT: Component = Component {
        name: "reversible_embedding",
        doc: "looks up a row of a table for each index, and gives vectors scores of the indices",
        fields: &[
            fields::INPUT_DIM,
            fields::OUTPUT_DIM,
            Field::optional(
                "tie_weights",
                Kind::Bool,
                "whether the way back has the table's numbers",
            ),
            fields::EMBEDDINGS_INITIALIZER,
            fields::EMBEDDINGS_REGULARIZER,
            fields::EMBEDDINGS_CONSTRAINT,
            fields::MASK_ZERO,
            Field::optional(
                "logit_soft_cap",
                Kind::Either(&[Kind::Null, Kind::ABOVE_ZERO]),
                "within what scores are kept",
            )
            .example("30.0"),
        ],
    };
}

impl Model {
    /// Whether a call of such a layer goes from vectors to scores.
    pub(super) fn is_reversed(&self, call: &Call) -> bool {
        let is_float = |place: &Place| self.shape_at(*place).dtype.is_float();
        let kind = match &self.layers[call.layer].body {
            Body::Layer { layer, .. } => layer.kind(),
            Body::Model(_) => "",
        };
        kind == ReversibleEmbedding::COMPONENT.name && call.inputs.first().is_some_and(is_float)
    }
}

impl Layer for ReversibleEmbedding {
    fn kind(&self) -> &'static str {
        "reversible_embedding"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`input_dim`", self.input_dim)?;
        check_size("`output_dim`", self.output_dim)?;
        let cap = self.logit_soft_cap.unwrap_or(1.0);
        check_range("`logit_soft_cap`", cap, f64::MIN_POSITIVE..f64::INFINITY)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        let is_vectors = input.rank() > 1 && input.dims.last() == Some(&self.output_dim);
        match input.dtype {
            DType::Bool => Err(format!(
                "expected indices or vectors, got {input}; declare the input as i32"
            )),
            dtype if dtype.is_float() && !is_vectors => Err(format!(
                "floats go the way back and must be [.., {}], got {input}; declare indices as i32",
                self.output_dim
            )),
            dtype if !dtype.is_float() && self.mask_zero && input.rank() != 2 => Err(format!(
                "`mask_zero` needs indices [batch, steps], got {input}"
            )),
            _ => Ok(()),
        }
    }

    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        Some((self.input_dim, None))
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let dims = [self.input_dim, self.output_dim];
        let limits = (
            self.embeddings_regularizer,
            self.embeddings_constraint.as_ref(),
        );
        let first = &self.embeddings_initializer;
        let table = cx.limited("embeddings", Shape::f32(dims), first, limits);
        let kernel = match self.tie_weights {
            true => table.transpose(&[1, 0]),
            false => {
                let shape = Shape::f32([self.output_dim, self.input_dim]);
                cx.variable("reverse_embeddings", shape, first)
            }
        };
        match inputs[0].dtype().is_float() {
            true => self.scored(cx, &kernel, &inputs[0]),
            false => look_up_steps(cx, &table, &inputs[0], self.mask_zero),
        }
    }
}
