//! Whole numbers as numbers below a bound, by a hash.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::category_encoding::{CategoryOutput, OUTPUT_MODE};
use super::layer::Layer;
use super::sizes::{check_size, one_input};
use crate::config::{self, Component, Described, Field, Kind};
use crate::farmhash::{K0, K1, K2};

/// A number from 0 and below `num_bins` for each whole number; kind `hashing`.
///
/// FarmHash's 64-bit fingerprint of the decimal text, `-7` say, modulo the bins: Keras' `Hashing` of integers without `salt`. Several numbers may
/// have the same bin. The `mask_value`, if there is one, has the bin 0 to itself. Inputs are whole numbers of 64 bits, or floats, which are
/// truncated where they are not the `mask_value`; the output is i32 of the input's dims, or vectors as [`CategoryOutput`] says. Names are hashed
/// alike by [`hash_bucket`](crate::data::hash_bucket), as data are read.
///
/// ```
/// use phalanx::nn::{Embedding, Hashing, Input, Sequential};
/// use phalanx_graph::DType;
///
/// let model = Sequential::new(Input::new([]).dtype(DType::I32))
///     .add(Hashing::new(1000))
///     .add(Embedding::new(1000, 8))
///     .build()?;
/// assert_eq!(model.variables()[0].shape.dims, [1000, 8]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hashing {
    num_bins: usize,
    mask_value: Option<i64>,
    output_mode: CategoryOutput,
}

impl Hashing {
    /// This many bins.
    #[must_use]
    pub const fn new(num_bins: usize) -> Self {
        Self {
            num_bins,
            mask_value: None,
            output_mode: CategoryOutput::Int,
        }
    }

    /// Sets the value that has the bin 0 to itself; none by default.
    #[must_use]
    pub const fn mask_value(mut self, value: i64) -> Self {
        self.mask_value = Some(value);
        self
    }

    /// Sets what becomes of the bins: their numbers by default.
    #[must_use]
    pub const fn output_mode(mut self, mode: CategoryOutput) -> Self {
        self.output_mode = mode;
        self
    }

    /// The bin of each number, i64.
    #[track_caller]
    fn bins(&self, x: &Tensor) -> Tensor {
        let (given, x) = (x, x.convert(DType::I64));
        let bins = self.num_bins as f64;
        // One bin alone has room for no mask.
        let Some(mask) = self.mask_value.filter(|_| self.num_bins > 1) else {
            return unsigned_remainder(&fingerprint(&x), bins);
        };
        // A float is compared as it is: 3.9 is not the mask 3, and has the bin of 3 without one.
        let is_mask = match given.dtype().is_float() {
            true => given.equal(&given.like(mask as f64)),
            false => x.equal(&x.graph().constant(HostTensor::scalar(mask))),
        };
        let others = unsigned_remainder(&fingerprint(&x), bins - 1.0) + 1.0;
        is_mask.select(&others.like(0.0), &others)
    }
}

/// The remainder of an i64 whose bits are an unsigned number, of less than 2^31.
#[track_caller]
pub(super) fn unsigned_remainder(x: &Tensor, by: f64) -> Tensor {
    let one = x.like(1.0);
    let by = x.like(by);
    let half = x.shift_right(&one).remainder(&by);
    (half * 2.0 + x.and(&one)).remainder(&by)
}

/// Decimal texts of at most 20 bytes, as i64 words in which the first byte is the lowest.
struct DecimalText {
    /// The first 8 bytes, and those after them.
    words: [Tensor; 2],
    /// The last 8 bytes, and the 8 before them.
    ends: [Tensor; 2],
    length: Tensor,
}

impl DecimalText {
    /// The texts of whole numbers, written from their last digit to the first.
    #[track_caller]
    fn of(x: &Tensor) -> Self {
        const DIGITS: usize = 19;
        let zeros = x.zeros_like();
        let mut text = Self {
            words: [zeros.clone(), zeros.clone()],
            ends: [zeros.clone(), zeros.clone()],
            length: zeros.clone(),
        };
        let (mut rest, mut is_there) = (x.clone(), zeros.equal(&zeros));
        for _ in 0..DIGITS {
            // A number below 0 has such digits.
            let digit = rest.remainder(&rest.like(10.0)).abs() + f64::from(b'0');
            text = text.behind(&digit, &is_there);
            rest = rest / 10.0;
            is_there = rest.not_equal(&zeros);
        }
        text.behind(&(&zeros + f64::from(b'-')), &x.less(&zeros))
    }

    /// The text with a byte before it, where that is there.
    #[track_caller]
    fn behind(self, byte: &Tensor, is_there: &Tensor) -> Self {
        let Self {
            words: [first, second],
            ends: [last, before],
            length,
        } = self;
        let eight = length.like(8.0);
        let carried = first.shift_right(&length.like(56.0));
        let words = [
            first.shift_left(&eight).or(byte),
            second.shift_left(&eight).or(&carried),
        ];
        let place = (56.0 - &length * 8.0).and(&length.like(63.0));
        let byte = byte.shift_left(&place);
        let is_last = is_there.and(&length.less(&eight));
        let is_before = is_there.and(&length.greater_equal(&eight));
        let is_before = is_before.and(&length.less(&length.like(16.0)));
        Self {
            ends: [
                is_last.select(&last.or(&byte), &last),
                is_before.select(&before.or(&byte), &before),
            ],
            words: [
                is_there.select(&words[0], &first),
                is_there.select(&words[1], &second),
            ],
            length: is_there.select(&(&length + 1.0), &length),
        }
    }
}

/// The fingerprints of decimal texts, i64 with the bits of a u64: `fingerprint64` of `crates/phalanx/src/farmhash.rs` for 1 to 20 bytes.
#[track_caller]
fn fingerprint(x: &Tensor) -> Tensor {
    let text = DecimalText::of(x);
    let DecimalText {
        words: [first, second],
        ends: [last, before],
        length,
    } = &text;
    let [k0, k1, k2] = [K0, K1, K2].map(|bits| word(x, bits));
    let factor = length * 2.0 + &k2;
    let right = |x: &Tensor, bits: f64| x.shift_right(&x.like(bits));
    let byte = |x: &Tensor| x.and(&x.like(255.0));

    let middle = first.shift_right(&(right(length, 1.0) * 8.0));
    let y = byte(first) + byte(&middle) * 256.0;
    let z = length + right(last, 56.0) * 4.0;
    let up_to_3 = mixed(&(y * &k2).xor(&(z * k0))) * &k2;

    let four = first.and(&first.like(f64::from(u32::MAX)));
    let up_to_7 = hash_16(&(length + four * 8.0), &right(last, 32.0), &factor);

    let a = first + &k2;
    let c = rotated(last, 37) * &factor + &a;
    let d = (rotated(&a, 25) + last) * &factor;
    let up_to_16 = hash_16(&c, &d, &factor);

    let a = first * k1;
    let c = last * &factor;
    let y = rotated(&(&a + second), 43) + rotated(&c, 30) + before * &k2;
    let z = a + rotated(&(second + k2), 18) + c;
    let longer = hash_16(&y, &z, &factor);

    let below = |bytes: f64| length.less(&length.like(bytes));
    let eight_or_more = below(17.0).select(&up_to_16, &longer);
    below(4.0).select(&up_to_3, &below(8.0).select(&up_to_7, &eight_or_more))
}

/// The i64 of these bits.
#[track_caller]
pub(super) fn word(x: &Tensor, bits: u64) -> Tensor {
    x.graph().constant(HostTensor::scalar(bits.cast_signed()))
}

#[track_caller]
pub(super) fn mixed(x: &Tensor) -> Tensor {
    x.xor(&x.shift_right(&x.like(47.0)))
}

#[track_caller]
fn rotated(x: &Tensor, bits: u32) -> Tensor {
    let left = x.shift_left(&x.like(f64::from(64 - bits)));
    x.shift_right(&x.like(f64::from(bits))).or(&left)
}

#[track_caller]
fn hash_16(u: &Tensor, v: &Tensor, factor: &Tensor) -> Tensor {
    let a = mixed(&(u.xor(v) * factor));
    mixed(&(v.xor(&a) * factor)) * factor
}

impl Described for Hashing {
    const COMPONENT: Component = Component {
        name: "hashing",
        doc: "a number below a bound for each whole number, by a hash of its decimal text",
        fields: &[
            Field::required("num_bins", Kind::SIZE, "number of bins").example("1000"),
            Field::optional(
                "mask_value",
                Kind::INTEGER,
                "a value that has the bin 0 to itself",
            ),
            OUTPUT_MODE,
        ],
    };
}

impl Layer for Hashing {
    fn kind(&self) -> &'static str {
        "hashing"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`num_bins`", self.num_bins)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.output_mode.check(one_input(inputs)?)
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let bin = self.bins(&inputs[0]);
        let bin = bin.convert(DType::I32);
        self.output_mode.of(&bin, self.num_bins, cx.compute_dtype())
    }
}
