//! Sequences made single vectors.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::position::one_sequence;
use super::precision::widened;
use super::{Cx, fields};
use crate::config::{self, Component, Described};

/// The mean of the vectors of a sequence; kind `global_average_pool1d`.
///
/// `[batch, length, features]` to `[batch, features]`. With a padding mask only what is not padding counts, as in
/// Keras; a sequence of padding alone gives zeros, where Keras gives NaN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalAveragePool1d {
    keepdims: bool,
}

/// The largest number of each feature over a sequence; kind `global_max_pool1d`.
///
/// `[batch, length, features]` to `[batch, features]`. Padding counts as any other step, as in Keras.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalMaxPool1d {
    keepdims: bool,
}

impl Described for GlobalAveragePool1d {
    const COMPONENT: Component = Component {
        name: "global_average_pool1d",
        doc: "the mean over the steps of a sequence, padding left out",
        fields: &[fields::KEEPDIMS],
    };
}

impl Described for GlobalMaxPool1d {
    const COMPONENT: Component = Component {
        name: "global_max_pool1d",
        doc: "the maximum over the steps of a sequence",
        fields: &[fields::KEEPDIMS],
    };
}

macro_rules! pooled {
    ($layer:ident, $kind:literal, $pool:expr) => {
        impl $layer {
            /// A layer with Keras' defaults.
            #[must_use]
            pub const fn new() -> Self {
                Self { keepdims: false }
            }

            /// Sets whether the dim of steps stays, at size 1.
            #[must_use]
            pub const fn keepdims(mut self, keepdims: bool) -> Self {
                self.keepdims = keepdims;
                self
            }
        }

        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                one_sequence(inputs).map(|_| ())
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let pool: fn(&Cx, &Tensor) -> Tensor = $pool;
                let pooled = pool(cx, &inputs[0]);
                if self.keepdims {
                    return pooled.keep_dims(&[1]);
                }
                pooled
            }
        }
    };
}
pooled!(GlobalAveragePool1d, "global_average_pool1d", masked_mean);
pooled!(GlobalMaxPool1d, "global_max_pool1d", |_, x| x.max(&[1]));

#[track_caller]
fn masked_mean(cx: &Cx, x: &Tensor) -> Tensor {
    let Some(mask) = cx.padding_mask(x) else {
        return x.mean(&[1]);
    };
    let dtype = x.dtype();
    let x = widened(x);
    let counts = mask.convert(x.dtype()).sum(&[1]);
    let steps = counts.maximum(&counts.like(1.0)).keep_dims(&[1]);
    let kept = mask.broadcast_in(&x.dims(), &[0, 1]);
    let total = kept.select(&x, &x.zeros_like()).sum(&[1]);
    (total / steps).convert(dtype)
}
