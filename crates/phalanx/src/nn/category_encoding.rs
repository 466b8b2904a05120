//! Numbers of categories as vectors.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::embedding::whole;
use super::layer::Layer;
use super::sizes::{check_size, one_input};
use crate::config::{self, Component, Described, Field, Kind};

/// What a layer makes of the numbers of categories: Keras' `output_mode`.
///
/// A number that is no category gives NaN, so that the loss tells, as with [`Embedding`](super::Embedding): Keras' answer is an error, zeros, or
/// nothing at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CategoryOutput {
    /// The numbers themselves, i32.
    #[default]
    Int,
    /// A vector for each number, which is 1 at its place and 0 elsewhere: `[.., categories]`, of `[batch, .., 1]` without the 1.
    OneHot,
    /// A vector for each example of numbers `[batch, n]`: 1 at the places of all that are there.
    MultiHot,
    /// As `MultiHot`, with how often each is there.
    Count,
}

/// A number that stands for nothing: in no vector it has a place.
pub(super) const NOTHING: f64 = i32::MAX as f64;

/// `output_mode` of layers that number categories.
pub(super) const OUTPUT_MODE: Field = Field::optional(
    "output_mode",
    Kind::OneOf(&["int", "one_hot", "multi_hot", "count"]),
    "`int`: numbers of categories; `one_hot`: a vector for each number; `multi_hot`: one for all numbers of an example; `count`: how often each is there",
);

impl CategoryOutput {
    /// Checks that an input of numbers has the dims that are asked for.
    pub(super) fn check(self, input: &Shape) -> Result<(), String> {
        if input.dtype == DType::Bool {
            return Err(format!("expected numbers, got {input}"));
        }
        match self {
            Self::MultiHot | Self::Count if input.rank() != 2 => Err(format!(
                "`output_mode` multi_hot and count take [batch, n], got {input}; choose `one_hot`, or reshape the input"
            )),
            _ => Ok(()),
        }
    }

    /// Numbers below `categories`, or [`NOTHING`], as vectors of an element type.
    #[track_caller]
    pub(super) fn of(self, index: &Tensor, categories: usize, dtype: DType) -> Tensor {
        let dims = index.dims();
        let index = match (self, &dims[..]) {
            (Self::Int, _) => return index.clone(),
            (Self::OneHot, [batch @ .., 1]) if !batch.is_empty() => index.reshape(batch),
            _ => index.clone(),
        };
        let above = index.greater_equal(&index.like(categories as f64));
        let above = above.and(&index.not_equal(&index.like(NOTHING)));
        let outside = index.less(&index.like(0.0)).or(&above);
        let hot = index.one_hot(categories, DType::F32);
        let leading: Vec<usize> = (0..index.rank()).collect();
        let outside = outside.broadcast_in(&hot.dims(), &leading);
        let hot = outside.select(&hot.like(f64::NAN), &hot);
        let vectors = match self {
            Self::Int | Self::OneHot => hot,
            Self::Count => hot.sum(&[1]),
            Self::MultiHot => {
                let count = hot.sum(&[1]);
                let one = count.like(1.0);
                // A comparison with NaN does not hold, and NaN stays.
                count.greater(&one).select(&one, &count)
            }
        };
        vectors.convert(dtype)
    }
}

/// Numbers of categories as vectors; kind `category_encoding`.
///
/// The input is whole numbers from 0 and below `num_tokens`; floats of other layers are truncated, inputs of the model must be whole.
/// The output is floats as [`CategoryOutput`] says, `multi_hot` by default. Keras' `CategoryEncoding` without its `count_weights`, for which
/// [`EmbeddingBag`](super::EmbeddingBag) has weights; it takes `[batch]` and `[batch, n]` alone, and of `[batch]` makes one vector for the whole batch
/// with `multi_hot` and `count`, which take `[batch, n]` here.
///
/// ```
/// use phalanx::nn::{CategoryEncoding, CategoryOutput, Dense, Input, Sequential};
/// use phalanx_graph::DType;
///
/// let colours = Sequential::new(Input::new([]).dtype(DType::I32))
///     .add(CategoryEncoding::new(4).output_mode(CategoryOutput::OneHot))
///     .add(Dense::new(2));
/// assert_eq!(colours.build()?.variables()[0].shape.dims, [4, 2]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoryEncoding {
    num_tokens: usize,
    output_mode: CategoryOutput,
}

impl CategoryEncoding {
    /// Vectors of this many numbers, 1 at the places of what is there.
    #[must_use]
    pub const fn new(num_tokens: usize) -> Self {
        Self {
            num_tokens,
            output_mode: CategoryOutput::MultiHot,
        }
    }

    /// Sets what becomes of the numbers; not `Int`, which they are already.
    #[must_use]
    pub const fn output_mode(mut self, mode: CategoryOutput) -> Self {
        self.output_mode = mode;
        self
    }
}

impl Described for CategoryEncoding {
    const COMPONENT: Component = Component {
        name: "category_encoding",
        doc: "numbers of categories as vectors that are 1 at their places",
        fields: &[
            Field::required("num_tokens", Kind::SIZE, "number of categories").example("10"),
            OUTPUT_MODE.kind(Kind::OneOf(&["one_hot", "multi_hot", "count"])).doc(
                "`one_hot`: a vector for each number; `multi_hot`: one for all numbers of an example; `count`: how often each is there",
            ),
        ],
    };
}

impl Layer for CategoryEncoding {
    fn kind(&self) -> &'static str {
        "category_encoding"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`num_tokens`", self.num_tokens)?;
        match self.output_mode {
            CategoryOutput::Int => {
                Err("`output_mode` must be one_hot, multi_hot or count, got int".into())
            }
            _ => Ok(()),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.output_mode.check(one_input(inputs)?)
    }

    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        Some((self.num_tokens, None))
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let index = whole(&inputs[0]);
        self.output_mode
            .of(&index, self.num_tokens, cx.compute_dtype())
    }
}
