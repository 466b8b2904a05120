//! Attention between sequences.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attention_settings::{
    AttentionSettings, attention_settings, check_attention, query_value_key,
};
use super::layer::Layer;
use super::sizes::check_size;
use super::{Constraint, Cx, Initializer, Regularizer};
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
    #[serde(flatten)]
    settings: AttentionSettings,
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
            settings: AttentionSettings::new(),
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

    attention_settings!();

    fn values(&self) -> usize {
        self.value_dim.unwrap_or(self.key_dim)
    }
}

/// Attention in which several heads of queries share each head of keys and values (Ainslie et al. 2023); kind
/// `group_query_attention`, Keras' `GroupQueryAttention`.
///
/// Query head `i` looks at head `i / (num_query_heads / num_key_value_heads)`: with one head of keys and values it is multi-query attention, with
/// as many as queries have multi-head attention. Inputs, masks, padding and differences from Keras are as of [`MultiHeadAttention`], but that query
/// and value have as many features, and that Keras' layer leaves the inputs their padding masks, too. Output: the dims of the query, with its
/// padding mask.
///
/// Variables: `query/kernel` `[in, num_query_heads, head_dim]`, `key/kernel` and `value/kernel` `[in, num_key_value_heads, head_dim]`,
/// `attention_output/kernel` `[num_query_heads, head_dim, in]`; each with a `bias` of its last dims, or last dim. Keras' `sliding_window` and
/// `use_gate` are not there.
///
/// ```
/// use phalanx::nn::{GroupQueryAttention, Sequential};
///
/// let model = Sequential::new([10, 64]).add(GroupQueryAttention::new(16, 4, 2)).build()?;
/// assert_eq!(model.variables()[2].name, "group_query_attention/key/kernel");
/// assert_eq!(model.variables()[2].shape.dims, [64, 2, 16]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupQueryAttention {
    head_dim: usize,
    num_query_heads: usize,
    num_key_value_heads: usize,
    #[serde(flatten)]
    settings: AttentionSettings,
}

impl GroupQueryAttention {
    /// Attention by `num_query_heads` heads of queries, which `num_key_value_heads` divides, with `head_dim` numbers each.
    #[must_use]
    pub const fn new(head_dim: usize, num_query_heads: usize, num_key_value_heads: usize) -> Self {
        Self {
            head_dim,
            num_query_heads,
            num_key_value_heads,
            settings: AttentionSettings::new(),
        }
    }

    attention_settings!();
}

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
            ],
            AttentionSettings::FIELDS
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
        self.settings.check()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        check_attention(inputs)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let [query, value, key] = query_value_key(inputs);
        let (heads, settings) = (self.num_heads, &self.settings);
        let out = self.output_shape.unwrap_or_else(|| query.dim(2));
        let queries = settings.project(cx, "query", query, [heads, self.key_dim]);
        let keys = settings.project(cx, "key", key, [heads, self.key_dim]);
        let values = settings.project(cx, "value", value, [heads, self.values()]);
        let context = settings.attend(cx, inputs, [&queries, &keys, &values]);
        let rows = context.transpose(&[0, 2, 1, 3]);
        settings.merge(cx, &rows, [heads, self.values()], out)
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

impl Described for GroupQueryAttention {
    const COMPONENT: Component = Component {
        name: "group_query_attention",
        doc: "attention in which several heads of queries share a head of keys and values",
        fields: joined!(
            &[
                Field::required("head_dim", Kind::SIZE, "size of each head").example("16"),
                Field::required("num_query_heads", Kind::SIZE, "number of heads of queries")
                    .example("4"),
                Field::required(
                    "num_key_value_heads",
                    Kind::SIZE,
                    "number of heads of keys and values, which divides the former",
                )
                .example("2"),
            ],
            AttentionSettings::FIELDS
        ),
    };
}

impl Layer for GroupQueryAttention {
    fn kind(&self) -> &'static str {
        "group_query_attention"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let (queries, groups) = (self.num_query_heads, self.num_key_value_heads);
        check_size("`head_dim`", self.head_dim)?;
        check_size("`num_query_heads`", queries)?;
        check_size("`num_key_value_heads`", groups)?;
        if !queries.is_multiple_of(groups) {
            return Err(format!(
                "`num_key_value_heads` must divide `num_query_heads`, got {groups} and {queries}"
            ));
        }
        self.settings.check()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        check_attention(inputs)?;
        match inputs {
            [query, value, ..] if query.dims[2] != value.dims[2] => Err(format!(
                "expected query and value with as many features, got {query} and {value}; bring them there with `dense`"
            )),
            _ => Ok(()),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let [query, value, key] = query_value_key(inputs);
        let (settings, dim) = (&self.settings, self.head_dim);
        let (heads, groups) = (self.num_query_heads, self.num_key_value_heads);
        let queries = settings.project(cx, "query", query, [heads, dim]);
        let keys = settings.project(cx, "key", key, [groups, dim]);
        let values = settings.project(cx, "value", value, [groups, dim]);
        let [batch, steps] = [query.dim(0), query.dim(1)];
        let grouped = queries.reshape(&[batch, steps, groups, heads / groups, dim]);
        let context = settings.attend(cx, inputs, [&grouped, &keys, &values]);
        let rows = context.transpose(&[0, 2, 1, 3, 4]);
        settings.merge(cx, &rows, [heads, dim], query.dim(2))
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
