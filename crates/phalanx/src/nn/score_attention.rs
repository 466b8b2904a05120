//! Attention of one head, without projections: by products and by sums.

use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attention_settings::{causal, check_query_value_key};
use super::layer::Layer;
use super::sizes::check_range;
use super::{Cx, Dropout, Initializer};
use crate::config::{self, Component, Described, Field, Kind};

/// Attention by the products of queries and keys (Luong et al. 2015), or by hyperbolic tangents of their sums; kind `attention`.
///
/// Inputs: query `[batch, T, d]`, value `[batch, S, e]` (the query itself when absent) and key `[batch, S, d]` (the value when absent). Output:
/// `[batch, T, e]`, the values with the softmax of the scores as weights; it has the query's padding mask, and is 0 where the query is padding.
/// Steps of the value that are padding have 1e9 taken from their scores, as in Keras.
///
/// Variables: `scale` with `use_scale`, `concat_score_weight` with the scores of sums, a number each. Unlike Keras': `use_causal_mask` is a
/// setting of the layer, one input is enough, and scores are not returned.
///
/// ```
/// use phalanx::nn::{Attention, Sequential};
///
/// let model = Sequential::new([10, 64]).add(Attention::new().use_causal_mask(true)).build()?;
/// assert_eq!(model.outputs()[0].dims, [10, 64]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    use_scale: bool,
    score_mode: ScoreMode,
    dropout: f64,
    use_causal_mask: bool,
}

/// How a query and a key make the score of [`Attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreMode {
    /// Their product, times the scale.
    #[default]
    Dot,
    /// The sum of the hyperbolic tangents of the scale times their sum, times a weight.
    Concat,
}

/// Attention by the sums of the hyperbolic tangents of queries plus keys, with a weight for each feature (Bahdanau et al. 2015); kind
/// `additive_attention`.
///
/// Inputs, output, padding and differences from Keras are as of [`Attention`]. Variable: `scale` `[d]`, unless it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdditiveAttention {
    use_scale: bool,
    dropout: f64,
    use_causal_mask: bool,
}

/// Keras' defaults: weights for the features, no dropout.
impl Default for AdditiveAttention {
    fn default() -> Self {
        Self {
            use_scale: true,
            dropout: 0.0,
            use_causal_mask: false,
        }
    }
}

impl Attention {
    /// Sets how scores are made; products by default.
    #[must_use]
    pub const fn score_mode(mut self, mode: ScoreMode) -> Self {
        self.score_mode = mode;
        self
    }

    fn scores(&self, cx: &mut Cx, query: &Tensor, key: &Tensor) -> Tensor {
        let mut learnt = |name, is_there: bool| {
            let shape = Shape::new(query.dtype(), []);
            is_there.then(|| cx.variable(name, shape, &Initializer::Ones))
        };
        let scale = learnt("scale", self.use_scale);
        let weight = learnt("concat_score_weight", self.score_mode == ScoreMode::Concat);
        let wide = wide(query);
        let Some(weight) = weight else {
            let scores = query.dot(key, of_pairs([2], [2], wide));
            return match scale {
                Some(scale) => scores * scale.convert(wide),
                None => scores,
            };
        };
        let sums = sums(query, key);
        let scaled = match scale {
            Some(scale) => sums * scale,
            None => sums,
        };
        scaled.tanh().convert(wide).sum(&[3]) * weight.convert(wide)
    }
}

impl AdditiveAttention {
    fn scores(&self, cx: &mut Cx, query: &Tensor, key: &Tensor) -> Tensor {
        let features = Shape::new(query.dtype(), [query.dim(2)]);
        let scale = self
            .use_scale
            .then(|| cx.variable("scale", features, &Initializer::GlorotUniform));
        let tanh = sums(query, key).tanh().convert(wide(query));
        match scale {
            Some(scale) => (&tanh * scale.convert(tanh.dtype())).sum(&[3]),
            None => tanh.sum(&[3]),
        }
    }
}

/// A softmax of 16-bit floats would lose what tells far keys apart.
fn wide(x: &Tensor) -> DType {
    match x.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// `[batch, T, S, d]`: each query plus each key.
#[track_caller]
fn sums(query: &Tensor, key: &Tensor) -> Tensor {
    let dims = [query.dim(0), query.dim(1), key.dim(1), query.dim(2)];
    query.broadcast_in(&dims, &[0, 1, 3]) + key.broadcast_in(&dims, &[0, 2, 3])
}

/// A product of each example.
fn of_pairs(lhs_contract: [usize; 1], rhs_contract: [usize; 1], dtype: DType) -> DotDims {
    DotDims {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: lhs_contract.into(),
        rhs_contract: rhs_contract.into(),
        dtype,
    }
}

/// What Keras takes from the scores of what is not looked at.
const FORBIDDEN: f64 = 1e9;

/// The values weighted by the softmax of the scores `[batch, T, S]`, padding and what is later left out.
#[track_caller]
fn attended(
    cx: &mut Cx,
    [query, value]: [&Tensor; 2],
    scores: &Tensor,
    (dropout, is_causal): (f64, bool),
) -> Tensor {
    let dims = scores.dims();
    let of_values = cx.padding_mask(value);
    let of_values = of_values.map(|mask| mask.broadcast_in(&dims, &[0, 2]));
    let earlier = is_causal.then(|| causal(cx, dims[1], dims[2]).broadcast_in(&dims, &[1, 2]));
    let seen = of_values.into_iter().chain(earlier);
    let seen = seen.reduce(|all, mask| all.and(&mask));
    let scores = match seen {
        Some(seen) => seen.select(scores, &(scores - FORBIDDEN)),
        None => scores.clone(),
    };
    let weights = scores.softmax(2).convert(value.dtype());
    let weights = cx.layer("dropout", &Dropout::new(dropout), &[weights]);
    let result = weights.dot(value, of_pairs([2], [1], value.dtype()));
    match cx.padding_mask(query) {
        Some(mask) => mask
            .broadcast_in(&result.dims(), &[0, 1])
            .select(&result, &result.zeros_like()),
        None => result,
    }
}

/// Refuses inputs that are no sequences of one batch, and queries and keys of different features.
fn check_pairs(inputs: &[Shape]) -> Result<(), String> {
    let [query, rest @ ..] = inputs else {
        return Err("expected query, value and key (the last two optional), got 0 inputs".into());
    };
    if rest.len() > 2 {
        let count = inputs.len();
        return Err(format!("expected query, value and key, got {count} inputs"));
    }
    let value = rest.first().unwrap_or(query);
    let key = rest.get(1).unwrap_or(value);
    check_query_value_key(query, value, key)?;
    match query.dims[2] == key.dims[2] {
        true => Ok(()),
        false => Err(format!(
            "expected query and key with as many features, got {query} and {key}"
        )),
    }
}

const DROPOUT: Field = Field::optional(
    "dropout",
    Kind::SHARE,
    "share of the attention weights that is set to 0 in training",
);
const CAUSAL: Field = Field::optional(
    "use_causal_mask",
    Kind::Bool,
    "whether a position sees only itself and earlier positions",
);

impl Described for Attention {
    const COMPONENT: Component = Component {
        name: "attention",
        doc: "attention of one head without projections; with one input, self-attention",
        fields: &[
            Field::optional(
                "use_scale",
                Kind::Bool,
                "whether scores have a factor that is learnt",
            ),
            Field::optional(
                "score_mode",
                Kind::OneOf(&["dot", "concat"]),
                "scores by products, or by hyperbolic tangents of sums",
            ),
            DROPOUT,
            CAUSAL,
        ],
    };
}

impl Described for AdditiveAttention {
    const COMPONENT: Component = Component {
        name: "additive_attention",
        doc: "attention of one head by hyperbolic tangents of sums",
        fields: &[
            Field::optional(
                "use_scale",
                Kind::Bool,
                "whether features have factors that are learnt",
            ),
            DROPOUT,
            CAUSAL,
        ],
    };
}

macro_rules! attention_layer {
    ($name:ident, $kind:literal) => {
        impl $name {
            /// A layer with Keras' defaults.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Sets whether scores have factors that are learnt.
            #[must_use]
            pub const fn use_scale(mut self, use_scale: bool) -> Self {
                self.use_scale = use_scale;
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
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                check_range("`dropout`", self.dropout, 0.0..=1.0)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                check_pairs(inputs)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let query = &inputs[0];
                let value = inputs.get(1).unwrap_or(query);
                let scores = self.scores(cx, query, inputs.get(2).unwrap_or(value));
                let how = (self.dropout, self.use_causal_mask);
                attended(cx, [query, value], &scores, how)
            }

            fn keeps_mask(&self) -> bool {
                true
            }
        }
    };
}
attention_layer!(Attention, "attention");
attention_layer!(AdditiveAttention, "additive_attention");
