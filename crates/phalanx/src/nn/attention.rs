//! Attention between sequences.

use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::settings::{WeightSettings, weight_settings};
use super::sizes::{check_range, check_size};
use super::{Constraint, Cx, Dropout, Initializer, Regularizer};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// Attention by several heads at once (Vaswani et al. 2017, 3.2); kind `multi_head_attention`.
///
/// Inputs, in Keras' order: query `[batch, T, d]`, value `[batch, S, e]` (the query itself when absent), key
/// `[batch, S, f]` (the value when absent), and a mask `[batch, T, S]`, bool or a number, zero where a query must not
/// look. Padding masks of query, value and key and the causal mask are combined with it, as Keras does; a query that
/// may look nowhere looks everywhere alike. Output: `[batch, T, output_shape]`, by default the dims of the query, with
/// the query's padding mask.
///
/// Variables, where `in` are the features of each input: `query/kernel` `[in, heads, key_dim]`, `query/bias`
/// `[heads, key_dim]`, `key/..` alike, `value/..` with `value_dim`, `attention_output/kernel`
/// `[heads, value_dim, out]`, `attention_output/bias` `[out]`. The fans of a kernel, by which initializers scale its first
/// values, are the products of its dims of inputs and of outputs.
///
/// Unlike Keras': `use_causal_mask` is a setting of the layer; sequences have one dim; attention scores are not
/// returned; with dropout, too, a query that may look nowhere looks everywhere alike, where Keras' is then given zeros. Inputs keep
/// their padding masks, which Keras' layer takes off them: in a stack of blocks, Keras' sum of an input and its attention has no mask,
/// and the attention of the next block looks at padding, unlike here, but where `use_padding_mask` is off.
///
/// ```
/// use phalanx::nn::{MultiHeadAttention, Sequential};
///
/// let causal = MultiHeadAttention::new(4, 16).use_causal_mask(true);
/// let model = Sequential::new([10, 64]).add(causal).build()?;
/// assert_eq!(model.variables()[0].name, "multi_head_attention/query/kernel");
/// assert_eq!(model.variables()[0].shape.dims, [64, 4, 16]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultiHeadAttention {
    num_heads: usize,
    key_dim: usize,
    value_dim: Option<usize>,
    output_shape: Option<usize>,
    dropout: f64,
    use_causal_mask: bool,
    use_padding_mask: bool,
    #[serde(flatten)]
    weights: WeightSettings,
}

impl MultiHeadAttention {
    /// Attention by `num_heads` heads with queries and keys of `key_dim` numbers each.
    #[must_use]
    pub const fn new(num_heads: usize, key_dim: usize) -> Self {
        Self {
            num_heads,
            key_dim,
            value_dim: None,
            output_shape: None,
            dropout: 0.0,
            use_causal_mask: false,
            use_padding_mask: true,
            weights: WeightSettings::new(),
        }
    }

    /// Sets the numbers per head of values; `key_dim` by default.
    #[must_use]
    pub const fn value_dim(mut self, value_dim: usize) -> Self {
        self.value_dim = Some(value_dim);
        self
    }

    /// Sets the last dim of the output; the last dim of the query by default.
    #[must_use]
    pub const fn output_shape(mut self, features: usize) -> Self {
        self.output_shape = Some(features);
        self
    }

    /// Sets the fraction of attention weights dropped in training; 0 by default.
    #[must_use]
    pub const fn dropout(mut self, rate: f64) -> Self {
        self.dropout = rate;
        self
    }

    /// Sets whether a query sees only places up to its own; not by default.
    #[must_use]
    pub const fn use_causal_mask(mut self, causal: bool) -> Self {
        self.use_causal_mask = causal;
        self
    }

    /// Sets whether padding is not looked at, where query, value or key have a mask of it; by default it is not. The output has the query's
    /// either way.
    ///
    /// Without, as Keras' attentions behind the first of a stack: models that it saved are read so.
    #[must_use]
    pub const fn use_padding_mask(mut self, padding: bool) -> Self {
        self.use_padding_mask = padding;
        self
    }

    weight_settings!(weights);

    fn values(&self) -> usize {
        self.value_dim.unwrap_or(self.key_dim)
    }

    /// `[batch, length, heads, dim]` from `[batch, length, features]`.
    #[track_caller]
    fn project(&self, cx: &mut Cx, name: &str, x: &Tensor, dim: usize) -> Tensor {
        let (heads, features) = (self.num_heads, x.dim(2));
        let kernel = self.kernel(cx, name, x.dtype(), ([features], [heads, dim]));
        let flat = x.matmul(&kernel.reshape(&[features, heads * dim]));
        let biased = self.biased(cx, name, flat, &[heads, dim]);
        biased.reshape(&[x.dim(0), x.dim(1), heads, dim])
    }

    /// `[batch, length, out]` from `[batch, heads, length, dim]`.
    #[track_caller]
    fn merge(&self, cx: &mut Cx, x: &Tensor, out: usize) -> Tensor {
        let name = "attention_output";
        let (heads, length, dim) = (x.dim(1), x.dim(2), x.dim(3));
        let kernel = self.kernel(cx, name, x.dtype(), ([heads, dim], [out]));
        let rows = x.transpose(&[0, 2, 1, 3]);
        let flat = rows.reshape(&[x.dim(0), length, heads * dim]);
        let merged = flat.matmul(&kernel.reshape(&[heads * dim, out]));
        self.biased(cx, name, merged, &[out])
    }

    /// A kernel of these dims of inputs and of outputs, whose products are its fans, as in Keras.
    #[track_caller]
    fn kernel<const I: usize, const O: usize>(
        &self,
        cx: &mut Cx,
        name: &str,
        dtype: DType,
        (inputs, outputs): ([usize; I], [usize; O]),
    ) -> Tensor {
        let first = self.weights.kernel_initializer;
        let first = first.with_fans(inputs.iter().product(), outputs.iter().product());
        let shape = Shape::new(dtype, [&inputs[..], &outputs[..]].concat());
        let name = format!("{name}/kernel");
        self.weights.kernel_from(cx, &name, shape, &first)
    }

    /// With a bias of these dims, which together are the last of `x`.
    #[track_caller]
    fn biased(&self, cx: &mut Cx, name: &str, x: Tensor, dims: &[usize]) -> Tensor {
        let shape = Shape::new(x.dtype(), dims);
        match self.weights.bias(cx, &format!("{name}/bias"), shape) {
            Some(bias) => x + bias.reshape(&[dims.iter().product()]),
            None => x,
        }
    }

    /// Which places each query may look at, as a mask that broadcasts to `[batch, heads, T, S]`; `None` for all.
    #[track_caller]
    fn mask(&self, cx: &Cx, inputs: &[Tensor], dims: &[usize]) -> Option<Tensor> {
        let value = inputs.get(1).unwrap_or(&inputs[0]);
        let mut parts = Vec::new();
        let mut add = |mask: Option<Tensor>, map: &[usize]| {
            parts.extend(mask.map(|mask| mask.broadcast_in(dims, map)));
        };
        if self.use_padding_mask {
            add(cx.padding_mask(&inputs[0]), &[0, 2]);
            add(cx.padding_mask(value), &[0, 3]);
            add(inputs.get(2).and_then(|key| cx.padding_mask(key)), &[0, 3]);
        }
        add(
            self.use_causal_mask.then(|| causal(cx, dims[2], dims[3])),
            &[2, 3],
        );
        let given = inputs.get(3);
        add(
            given.map(|mask| mask.not_equal(&mask.zeros_like())),
            &[0, 2, 3],
        );
        parts.into_iter().reduce(|all, mask| all.and(&mask))
    }
}

/// Whether place `[T, S]` lies on or below the diagonal.
#[track_caller]
pub(super) fn causal(cx: &Cx, queries: usize, keys: usize) -> Tensor {
    let places = Shape::new(DType::I32, [queries, keys]);
    let (row, column) = (
        cx.graph().iota(places.clone(), 0),
        cx.graph().iota(places, 1),
    );
    row.greater_equal(&column)
}

/// Scores of pairs that must not meet: far below every other, but finite, so that a row of them has a softmax.
const FORBIDDEN: f64 = -1e30;

impl Described for MultiHeadAttention {
    const COMPONENT: Component = Component {
        name: "multi_head_attention",
        doc: "attention with several heads; with one input, self-attention",
        fields: joined!(
            &[
                Field::required("num_heads", Kind::SIZE, "number of heads").example("4"),
                Field::required(
                    "key_dim",
                    Kind::SIZE,
                    "size of queries and keys for each head",
                )
                .example("16"),
                Field::optional(
                    "value_dim",
                    Kind::SIZE,
                    "size of values for each head; by default the size of keys",
                ),
                Field::optional(
                    "output_shape",
                    Kind::SIZE,
                    "features of the output; by default as many as the query has",
                ),
                Field::optional(
                    "dropout",
                    Kind::SHARE,
                    "share of the attention weights that is set to 0 in training",
                ),
                Field::optional(
                    "use_causal_mask",
                    Kind::Bool,
                    "whether a position sees only itself and earlier positions",
                ),
                Field::optional(
                    "use_padding_mask",
                    Kind::Bool,
                    "whether padding that a mask tells is not looked at",
                ),
            ],
            WeightSettings::FIELDS
        ),
    };
}

impl Layer for MultiHeadAttention {
    fn kind(&self) -> &'static str {
        "multi_head_attention"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`num_heads`", self.num_heads)?;
        check_size("`key_dim`", self.key_dim)?;
        check_size("`value_dim`", self.values())?;
        check_size("`output_shape`", self.output_shape.unwrap_or(1))?;
        check_range("`dropout`", self.dropout, 0.0..=1.0)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let [query, rest @ ..] = inputs else {
            return Err(
                "expected query, value, key and mask (the last three optional), got 0 inputs"
                    .into(),
            );
        };
        if rest.len() > 3 {
            let count = inputs.len();
            return Err(format!(
                "expected query, value, key and mask, got {count} inputs"
            ));
        }
        let value = rest.first().unwrap_or(query);
        check_query_value_key(query, value, rest.get(1).unwrap_or(value))?;
        let pairs = [query.dims[0], query.dims[1], value.dims[1]];
        match rest.get(2) {
            Some(mask) if mask.dims != pairs => Err(format!(
                "the mask must be [batch, {}, {}], a number for each query and key, got {mask}",
                pairs[1], pairs[2]
            )),
            _ => Ok(()),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let query = &inputs[0];
        let value = inputs.get(1).unwrap_or(query);
        let key = inputs.get(2).unwrap_or(value);
        let dims = [query.dim(0), self.num_heads, query.dim(1), value.dim(1)];
        let out = self.output_shape.unwrap_or_else(|| query.dim(2));
        let mask = self.mask(cx, inputs, &dims);

        let queries = self.project(cx, "query", query, self.key_dim);
        let keys = self.project(cx, "key", key, self.key_dim);
        let values = self.project(cx, "value", value, self.values());
        let queries = queries * (1.0 / (self.key_dim as f64).sqrt());
        // A softmax of 16-bit floats would lose what tells far keys apart.
        let wide = match queries.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let scores = queries.dot(&keys, per_head([0, 2], [3], [0, 2], [3], wide));
        let allowed = mask.map_or_else(
            || scores.clone(),
            |mask| mask.select(&scores, &scores.like(FORBIDDEN)),
        );
        let weights = allowed.softmax(3).convert(values.dtype());
        let dropout = Dropout::new(self.dropout);
        let weights = cx.layer("dropout", &dropout, &[weights]);
        let context = weights.dot(&values, per_head([0, 1], [3], [0, 2], [1], values.dtype()));
        self.merge(cx, &context, out)
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// A product for each example and head.
fn per_head(
    lhs_batch: [usize; 2],
    lhs_contract: [usize; 1],
    rhs_batch: [usize; 2],
    rhs_contract: [usize; 1],
    dtype: DType,
) -> DotDims {
    DotDims {
        lhs_batch: lhs_batch.into(),
        rhs_batch: rhs_batch.into(),
        lhs_contract: lhs_contract.into(),
        rhs_contract: rhs_contract.into(),
        dtype,
    }
}

/// Refuses what are no sequences of one batch, and values and keys of different lengths.
pub(super) fn check_query_value_key(
    query: &Shape,
    value: &Shape,
    key: &Shape,
) -> Result<(), String> {
    check_sequence("query", query)?;
    check_sequence("value", value)?;
    check_sequence("key", key)?;
    if query.dims[0] != value.dims[0] || value.dims[..2] != key.dims[..2] {
        return Err(format!(
            "expected query, value and key of one batch, value and key of one length, got {query}, {value} and {key}"
        ));
    }
    Ok(())
}

fn check_sequence(what: &str, shape: &Shape) -> Result<(), String> {
    if shape.dtype.is_float() && shape.rank() == 3 {
        return Ok(());
    }
    Err(format!(
        "the {what} must be floats [batch, length, features], got {shape}"
    ))
}
