//! 32-bit floats that travel as bfloat16.

use half::bf16;
use phalanx_graph::{AlignedBytes, DType, HostTensor};
use serde::{Deserialize, Serialize};

/// As what 32-bit floats travel between servers and steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wire {
    /// As they are.
    #[default]
    Same,
    /// As bfloat16.
    Bf16,
}

/// Whether elements of this type travel as bfloat16.
pub(super) fn is_narrow(dtype: DType, wire: Wire) -> bool {
    dtype == DType::F32 && wire == Wire::Bf16
}

/// Appends f32, given as bytes, as bfloat16: rounded to the nearest, of two as near to the even one.
pub(super) fn narrow(wide: &[u8], bytes: &mut Vec<u8>) {
    let element = |of: &[u8; 4]| bf16::from_f32(f32::from_le_bytes(*of)).to_le_bytes();
    bytes.extend(wide.as_chunks::<4>().0.iter().flat_map(element));
}

/// Writes bfloat16, given as bytes, as f32 of the same values.
pub(super) fn widen(narrow: &[u8], wide: &mut [u8]) {
    let elements = narrow.as_chunks::<2>().0.iter();
    for (own, of) in elements.zip(wide.as_chunks_mut::<4>().0) {
        *of = bf16::from_le_bytes(*own).to_f32().to_le_bytes();
    }
}

/// A tensor as it is computed with: f32 where it came as bfloat16 of an f32.
pub(super) fn widened(tensor: &HostTensor) -> HostTensor {
    let mut wide = AlignedBytes::zeroed(2 * tensor.bytes().len());
    widen(tensor.bytes(), wide.as_mut_slice());
    HostTensor::from_aligned(tensor.shape().with_dtype(DType::F32), wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each bit pattern of the upper 16 bits of an f32 with some lower bits: the formula of rounding to the nearest even.
    #[test]
    fn values_are_rounded_to_the_nearest_even_and_what_is_no_number_stays_none() {
        for upper in 0..=u16::MAX {
            for lower in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                let mut bytes = Vec::new();
                narrow(&value.to_le_bytes(), &mut bytes);
                let mut back = [0; 4];
                widen(&bytes, &mut back);
                let found = f32::from_le_bytes(back);
                assert_eq!(bytes.len(), 2);
                if value.is_nan() {
                    assert!(found.is_nan(), "{value} {found}");
                    continue;
                }
                let odd = u32::from(upper) & 1;
                let expected = (value.to_bits() + 0x7fff + odd) & 0xffff_0000;
                assert_eq!(found.to_bits(), expected, "{value:e} {found:e}");
            }
        }
    }
}
