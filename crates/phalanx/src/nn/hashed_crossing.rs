//! Whole numbers of several columns as one number below a bound, by a hash.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::category_encoding::CategoryOutput;
use super::hashing::{mixed, unsigned_remainder, word};
use super::layer::Layer;
use super::sizes::check_size;
use crate::config::{self, Component, Described, Field, Kind};

/// The hash with which a crossing begins in TensorFlow.
const START: u64 = 0x00DE_CAFC_AFFE;

/// The factor of MurmurHash (Appleby 2008).
const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;

/// A number below `num_bins` for each combination of whole numbers of two inputs or more; kind `hashed_crossing`.
///
/// Inputs are whole numbers of one shape, `[batch]` or `[batch, 1]`; the output is i32 of that shape, or with `one_hot` vectors `[batch, num_bins]`. The numbers
/// are the same as with Keras' `HashedCrossing` of integers, which TensorFlow's `cross_hashed` makes. Several combinations may have the same number.
///
/// ```
/// use phalanx::nn::{HashedCrossing, Input, Network};
/// use phalanx_graph::DType;
///
/// let mut net = Network::new();
/// let ids = [(); 2].map(|()| net.input(Input::new([]).dtype(DType::I32)));
/// let crossed = net.add(HashedCrossing::new(100), &ids);
/// assert_eq!(net.build(&ids, &[crossed])?.outputs()[0].dtype, DType::I32);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashedCrossing {
    num_bins: usize,
    output_mode: CategoryOutput,
}

impl HashedCrossing {
    /// This many bins.
    #[must_use]
    pub const fn new(num_bins: usize) -> Self {
        Self {
            num_bins,
            output_mode: CategoryOutput::Int,
        }
    }

    /// Gives vectors, 1 at the place of the bin and 0 elsewhere.
    #[must_use]
    pub const fn one_hot(mut self) -> Self {
        self.output_mode = CategoryOutput::OneHot;
        self
    }
}

/// The hash of a hash and one more number, i64 (TensorFlow's `FingerprintCat64`).
#[track_caller]
fn with_one_more(hash: &Tensor, number: &Tensor) -> Tensor {
    let factor = word(hash, FACTOR);
    let more = mixed(&(number * &factor)) * &factor;
    let hash = hash.xor(&factor).xor(&more) * &factor;
    mixed(&(mixed(&hash) * &factor))
}

impl Described for HashedCrossing {
    const COMPONENT: Component = Component {
        name: "hashed_crossing",
        doc: "a number below a bound for each combination of whole numbers, by a hash",
        fields: &[
            Field::required("num_bins", Kind::SIZE, "number of bins").example("1000"),
            Field::optional(
                "output_mode",
                Kind::OneOf(&["int", "one_hot"]),
                "`int`: numbers of bins; `one_hot`: a vector for each",
            ),
        ],
    };
}

impl Layer for HashedCrossing {
    fn kind(&self) -> &'static str {
        "hashed_crossing"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`num_bins`", self.num_bins)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let [first, rest @ ..] = inputs else {
            return Err("expected 2 inputs or more, got none".into());
        };
        let is_column = matches!(first.dims[..], [_] | [_, 1]);
        let are_alike = rest.iter().all(|other| other.dims == first.dims);
        let are_whole = inputs.iter().all(|input| input.dtype.is_integer());
        match is_column && are_alike && are_whole && !rest.is_empty() {
            true => Ok(()),
            false => {
                let got: Vec<String> = inputs.iter().map(ToString::to_string).collect();
                Err(format!(
                    "expected 2 inputs or more of whole numbers, all [batch] or all [batch, 1], got {}",
                    got.join(", ")
                ))
            }
        }
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let numbers: Vec<Tensor> = inputs.iter().map(|x| x.convert(DType::I64)).collect();
        let start = word(&numbers[0], START).broadcast_to(&numbers[0].dims());
        let hash = numbers
            .iter()
            .fold(start, |hash, number| with_one_more(&hash, number));
        let bin = unsigned_remainder(&hash, self.num_bins as f64).convert(DType::I32);
        self.output_mode.of(&bin, self.num_bins, cx.compute_dtype())
    }
}
