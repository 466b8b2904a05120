//! What attentions have in common: projections to heads and back, masks, and the softmax between them.

use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::settings::WeightSettings;
use super::sizes::check_range;
use super::{Cx, Dropout};
use crate::config::{Field, Kind, joined};

/// Settings of attention with projections, however its heads are shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AttentionSettings {
    pub(super) dropout: f64,
    pub(super) use_causal_mask: bool,
    pub(super) use_padding_mask: bool,
    #[serde(flatten)]
    pub(super) weights: WeightSettings,
}

impl AttentionSettings {
    pub(super) const FIELDS: &[Field] = joined!(
        &[
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
    );

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            dropout: 0.0,
            use_causal_mask: false,
            use_padding_mask: true,
            weights: WeightSettings::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_range("`dropout`", self.dropout, 0.0..=1.0)
    }

    /// `[batch, length, heads, dim]` from `[batch, length, features]`.
    #[track_caller]
    pub(super) fn project(
        &self,
        cx: &mut Cx,
        name: &str,
        x: &Tensor,
        [heads, dim]: [usize; 2],
    ) -> Tensor {
        let features = x.dim(2);
        let kernel = self.kernel(cx, name, x.dtype(), ([features], [heads, dim]));
        let flat = x.matmul(&kernel.reshape(&[features, heads * dim]));
        let biased = self.biased(cx, name, flat, &[heads, dim]);
        biased.reshape(&[x.dim(0), x.dim(1), heads, dim])
    }

    /// `[batch, length, out]` from the heads of each step, `[batch, length, .., dim]`.
    #[track_caller]
    pub(super) fn merge(
        &self,
        cx: &mut Cx,
        rows: &Tensor,
        [heads, dim]: [usize; 2],
        out: usize,
    ) -> Tensor {
        let name = "attention_output";
        let kernel = self.kernel(cx, name, rows.dtype(), ([heads, dim], [out]));
        let flat = rows.reshape(&[rows.dim(0), rows.dim(1), heads * dim]);
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
        let first = self.weights.rules.kernel_initializer;
        let first = first.with_fans(inputs.iter().product(), outputs.iter().product());
        let shape = Shape::new(dtype, [&inputs[..], &outputs[..]].concat());
        let name = format!("{name}/kernel");
        self.weights.rules.kernel_from(cx, &name, shape, &first)
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

    /// What queries `[batch, T, heads, .., dim]` find with keys and values `[batch, S, heads, dim]`: `[batch, heads, T, .., dim]`.
    ///
    /// Several queries of a step to each head of keys and values are between its dim and the last.
    #[track_caller]
    pub(super) fn attend(
        &self,
        cx: &mut Cx,
        inputs: &[Tensor],
        [queries, keys, values]: [&Tensor; 3],
    ) -> Tensor {
        let last = queries.rank() - 1;
        let queries = queries * (1.0 / (queries.dim(last) as f64).sqrt());
        // A softmax of 16-bit floats would lose what tells far keys apart.
        let wide = match queries.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let scores = queries.dot(keys, per_head([0, 2], last, [0, 2], 3, wide));
        let allowed = match self.mask(cx, inputs, &scores.dims()) {
            Some(mask) => mask.select(&scores, &scores.like(FORBIDDEN)),
            None => scores,
        };
        let weights = allowed.softmax(last).convert(values.dtype());
        let dropout = Dropout::new(self.dropout);
        let weights = cx.layer("dropout", &dropout, &[weights]);
        weights.dot(values, per_head([0, 1], last, [0, 2], 1, values.dtype()))
    }

    /// Which places each query may look at, as a mask of the dims of the scores, `[batch, heads, T, .., S]`; `None` for all.
    #[track_caller]
    fn mask(&self, cx: &Cx, inputs: &[Tensor], dims: &[usize]) -> Option<Tensor> {
        let [query, value, _] = query_value_key(inputs);
        let last = dims.len() - 1;
        let mut parts = Vec::new();
        let mut add = |mask: Option<Tensor>, map: &[usize]| {
            parts.extend(mask.map(|mask| mask.broadcast_in(dims, map)));
        };
        if self.use_padding_mask {
            add(cx.padding_mask(query), &[0, 2]);
            add(cx.padding_mask(value), &[0, last]);
            let key = inputs.get(2);
            add(key.and_then(|key| cx.padding_mask(key)), &[0, last]);
        }
        let earlier = self.use_causal_mask;
        add(earlier.then(|| causal(cx, dims[2], dims[last])), &[2, last]);
        let given = inputs.get(3);
        add(
            given.map(|mask| mask.not_equal(&mask.zeros_like())),
            &[0, 2, last],
        );
        parts.into_iter().reduce(|all, mask| all.and(&mask))
    }
}

/// Builders of a layer's [`AttentionSettings`], which are its field `settings`.
macro_rules! attention_settings {
    () => {
        /// Sets the fraction of attention weights dropped in training; 0 by default.
        #[must_use]
        pub const fn dropout(mut self, rate: f64) -> Self {
            self.settings.dropout = rate;
            self
        }

        /// Sets whether a query sees only places up to its own; not by default.
        #[must_use]
        pub const fn use_causal_mask(mut self, causal: bool) -> Self {
            self.settings.use_causal_mask = causal;
            self
        }

        /// Sets whether padding is not looked at, where query, value or key have a mask of it; by default it is not. The output has the query's
        /// either way.
        ///
        /// Without, as Keras' attentions behind the first of a stack: models that it saved are read so.
        #[must_use]
        pub const fn use_padding_mask(mut self, padding: bool) -> Self {
            self.settings.use_padding_mask = padding;
            self
        }

        crate::nn::settings::weight_settings!(settings.weights);
    };
}
pub(super) use attention_settings;

/// Scores of pairs that must not meet: far below every other, but finite, so that a row of them has a softmax.
const FORBIDDEN: f64 = -1e30;

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

/// A product for each example and head.
fn per_head(
    lhs_batch: [usize; 2],
    lhs_contract: usize,
    rhs_batch: [usize; 2],
    rhs_contract: usize,
    dtype: DType,
) -> DotDims {
    DotDims {
        lhs_batch: lhs_batch.into(),
        rhs_batch: rhs_batch.into(),
        lhs_contract: vec![lhs_contract],
        rhs_contract: vec![rhs_contract],
        dtype,
    }
}

/// Query, value and key of the inputs of attention: the value is the query itself when absent, the key the value.
pub(super) fn query_value_key(inputs: &[Tensor]) -> [&Tensor; 3] {
    let query = &inputs[0];
    let value = inputs.get(1).unwrap_or(query);
    [query, value, inputs.get(2).unwrap_or(value)]
}

/// Refuses what is not query, value, key and mask, the last three optional.
pub(super) fn check_attention(inputs: &[Shape]) -> Result<(), String> {
    let [query, rest @ ..] = inputs else {
        return Err(
            "expected query, value, key and mask (the last three optional), got 0 inputs".into(),
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
