//! Element types that arrays are stored in, while loops compute in f32.

use phalanx_pjrt::{Bf16, Element};

/// An element type of arrays; numbers are f32 in registers.
pub(crate) trait Stored: Element {
    /// The number, exactly.
    fn wide(self) -> f32;
    /// The nearest number that can be stored, of two the even one; a NaN stays one.
    fn narrow(value: f32) -> Self;
    /// Calls `fill` with f32 numbers to be stored in `result`: with `result` itself where it has them, else with `buffer`.
    fn fill_in_f32(result: &mut [Self], buffer: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]));
}

impl Stored for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }

    fn fill_in_f32(result: &mut [Self], _: &mut Vec<Self>, fill: impl FnOnce(&mut [Self])) {
        fill(result);
    }
}

impl Stored for Bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Not by the processor's instruction for it, which only some have and which makes small numbers 0.
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // One bit of a NaN's fraction is set, for the others may all be among those that are lost.
        let kept = if value.is_nan() {
            bits | 0x40_0000
        } else {
            nearest
        };
        Self((kept >> 16) as u16)
    }

    fn fill_in_f32(result: &mut [Self], buffer: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        buffer.resize(result.len(), 0.0);
        fill(buffer);
        narrow_all(buffer, result);
    }
}

crate::simd::compiled_for_wide_vectors! {
    /// Stores each number of an array in another as long.
    pub(crate) fn narrow_all<T: Stored>(from: &[f32], to: &mut [T]) {
        for (from, to) in from.iter().zip(to) {
            *to = T::narrow(*from);
        }
    }
}

crate::simd::compiled_for_wide_vectors! {
    /// Stores each number of an array as f32 in another as long.
    pub(crate) fn widen_all<T: Stored>(from: &[T], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = from.wide();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_is_kept() {
        for bits in 0..=u16::MAX {
            let value = Bf16(bits).wide();
            let kept = Bf16::narrow(value);
            assert!(
                kept.0 == bits || value.is_nan() && kept.wide().is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn the_nearest_is_taken_and_of_two_the_even_one() {
        for (bits, expected) in [
            (0x3f80_7fff_u32, 0x3f80_u16),
            (0x3f80_8000, 0x3f80),
            (0x3f80_8001, 0x3f81),
            (0x3f81_8000, 0x3f82),
            (0xbf81_8000, 0xbf82),
            (0x7f7f_ffff, 0x7f80),
            (0x0000_8001, 0x0001),
            (0x7f80_0001, 0x7fc0),
            (0xffff_ffff, 0xffff),
        ] {
            let found = Bf16::narrow(f32::from_bits(bits));
            assert_eq!(found.0, expected, "{bits:#x}");
        }
    }
}
