//! Whole numbers that name something, as numbers from 0.

use std::collections::HashSet;

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::category_encoding::{CategoryOutput, NOTHING, OUTPUT_MODE};
use super::layer::Layer;
use super::sizes::one_input;
use super::sorted_table::count_before;
use crate::config::{self, Component, Described, Field, Kind};

/// The number of each value in a vocabulary, as tables of embeddings need it; kind `integer_lookup`.
///
/// The `mask_token`, if there is one, is 0; then come `num_oov_indices` numbers of values that are not in the vocabulary, 1 by default, of which the
/// value's remainder chooses one; then the vocabulary in its order. Without numbers for unknown values these give -1, which is NaN in an
/// [`Embedding`](super::Embedding) and in vectors, where Keras ends with an error. Inputs are whole numbers of 64 bits, or floats that are truncated.
/// The output is i32 of the input's dims, or vectors as [`CategoryOutput`] says, in which the `mask_token` has no place. Keras' `IntegerLookup` but for
/// `invert`, `tf_idf` and other ways to choose among the unknown; instead of its `adapt`, [`Vocabulary::adapt`](crate::data::Vocabulary::adapt) finds
/// the values of some data.
///
/// ```
/// use phalanx::nn::{Embedding, Input, IntegerLookup, Sequential};
/// use phalanx_graph::DType;
///
/// let users = IntegerLookup::new([7, 1000, 42]);
/// assert_eq!(users.size(), 4);
/// let model = Sequential::new(Input::new([]).dtype(DType::I32))
///     .add(users)
///     .add(Embedding::new(4, 8))
///     .build()?;
/// assert_eq!(model.variables()[0].shape.dims, [4, 8]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntegerLookup {
    vocabulary: Vec<i64>,
    num_oov_indices: usize,
    mask_token: Option<i64>,
    output_mode: CategoryOutput,
}

/// The most numbers for unknown values, and the most values.
const MOST: usize = 1 << 24;

impl IntegerLookup {
    /// Numbers for these values, and one for all others.
    #[must_use]
    pub fn new(vocabulary: impl Into<Vec<i64>>) -> Self {
        Self {
            vocabulary: vocabulary.into(),
            num_oov_indices: 1,
            mask_token: None,
            output_mode: CategoryOutput::Int,
        }
    }

    /// Sets how many numbers unknown values have, 1 by default.
    #[must_use]
    pub const fn num_oov_indices(mut self, count: usize) -> Self {
        self.num_oov_indices = count;
        self
    }

    /// Sets the value that stands for nothing; none by default.
    #[must_use]
    pub const fn mask_token(mut self, token: i64) -> Self {
        self.mask_token = Some(token);
        self
    }

    /// Sets what becomes of the numbers: themselves by default.
    #[must_use]
    pub const fn output_mode(mut self, mode: CategoryOutput) -> Self {
        self.output_mode = mode;
        self
    }

    /// How many numbers there are: the `input_dim` of an embedding behind it, or the length of a vector.
    #[must_use]
    pub fn size(&self) -> usize {
        self.first_unknown() + self.num_oov_indices + self.vocabulary.len()
    }

    /// The first number of unknown values.
    fn first_unknown(&self) -> usize {
        usize::from(self.mask_token.is_some() && self.output_mode == CategoryOutput::Int)
    }

    /// The numbers of values that are not in the vocabulary.
    #[track_caller]
    fn unknown(&self, x: &Tensor) -> Tensor {
        let number = match self.num_oov_indices {
            0 => x.like(-1.0),
            1 => x.like(self.first_unknown() as f64),
            count => {
                let count = x.like(count as f64);
                let rest = x.remainder(&count);
                let is_below = rest.less(&rest.like(0.0));
                is_below.select(&(&rest + &count), &rest) + self.first_unknown() as f64
            }
        };
        number.convert(DType::I32)
    }

    /// The number of each value.
    #[track_caller]
    fn numbers(&self, x: &Tensor) -> Tensor {
        let first = self.first_unknown() + self.num_oov_indices;
        let numbered = self.vocabulary.iter().copied().zip(first..);
        let mut sorted: Vec<(i64, usize)> = numbered.collect();
        sorted.sort_unstable();
        let (values, numbers): (Vec<i64>, Vec<usize>) = sorted.into_iter().unzip();
        // `MOST` keeps them far below.
        let numbers: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
        let values = HostTensor::new([values.len()], &values);
        let place = count_before(&values, x, |value, x| value.less(x));
        let is_known = x.graph().constant(values).gather(&place, 0).equal(x);
        let numbers = x
            .graph()
            .constant(HostTensor::new([numbers.len()], &numbers));
        is_known.select(&numbers.gather(&place, 0), &self.unknown(x))
    }
}

impl Described for IntegerLookup {
    const COMPONENT: Component = Component {
        name: "integer_lookup",
        doc: "the number of each value in a vocabulary of whole numbers",
        fields: &[
            Field::required(
                "vocabulary",
                Kind::List(&Kind::INTEGER, 1, MOST),
                "values that have numbers, in their order, each once",
            )
            .example("[7, 1000, 42]"),
            Field::optional(
                "num_oov_indices",
                Kind::Whole(0, MOST as i64),
                "how many numbers the values have that are not in the vocabulary; by their remainder one of these. 0: an error, as NaN",
            ),
            Field::optional(
                "mask_token",
                Kind::INTEGER,
                "a value that stands for nothing, which has the number 0, and in vectors none",
            ),
            OUTPUT_MODE,
        ],
    };
}

impl Layer for IntegerLookup {
    fn kind(&self) -> &'static str {
        "integer_lookup"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let (known, unknown) = (self.vocabulary.len(), self.num_oov_indices);
        if !(1..=MOST).contains(&known) || unknown > MOST {
            return Err(format!(
                "`vocabulary` must have 1 to {MOST} values, and `num_oov_indices` be at most {MOST}, got {known} and {unknown}"
            ));
        }
        let mut seen = HashSet::new();
        let mut all = self.vocabulary.iter().chain(&self.mask_token);
        match all.find(|value| !seen.insert(**value)) {
            None => Ok(()),
            Some(value) => Err(format!(
                "`vocabulary` and `mask_token` must have each value once, got {value} twice"
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.output_mode.check(one_input(inputs)?)
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = inputs[0].convert(DType::I64);
        let mut number = self.numbers(&x);
        if let Some(token) = self.mask_token {
            let token = x.graph().constant(HostTensor::scalar(token));
            let nothing = match self.output_mode {
                CategoryOutput::Int => 0.0,
                _ => NOTHING,
            };
            number = x.equal(&token).select(&number.like(nothing), &number);
        }
        self.output_mode
            .of(&number, self.size(), cx.compute_dtype())
    }
}
