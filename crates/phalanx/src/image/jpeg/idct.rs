//! The inverse cosine transform of a block, with the very numbers of libjpeg's integer methods.

use std::num::Wrapping;

use super::Idct;

/// Where coefficient `k` of a scan is in a block; corrupt data may step past the end.
pub(super) const ZIGZAG: [u8; 80] = {
    let mut order = [63; 80];
    let (mut k, mut row, mut column) = (0, 0i32, 0i32);
    while k < 64 {
        order[k] = (row * 8 + column) as u8;
        let up = (row + column) % 2 == 0;
        let (rows, columns) = if up { (-1, 1) } else { (1, -1) };
        if up && column == 7 || !up && row == 7 {
            // Along the far edge.
            if up { row += 1 } else { column += 1 }
        } else if up && row == 0 {
            column += 1;
        } else if !up && column == 0 {
            row += 1;
        } else {
            row += rows;
            column += columns;
        }
        k += 1;
    }
    order
};

/// Factors of the quantised coefficients in natural order, with what the method wants multiplied in.
pub(super) fn factors(method: Idct, quantisation: &[u16; 64]) -> [i16; 64] {
    /// The scales of Arai, Agui and Nakajima, in 14 bits after the point.
    const SCALES: [f64; 8] = [
        1.0,
        1.387_039_845,
        1.306_562_965,
        1.175_875_602,
        1.0,
        0.785_694_958,
        0.541_196_100,
        0.275_899_379,
    ];
    std::array::from_fn(|i| match method {
        Idct::Accurate => quantisation[i] as i16,
        Idct::Fast => {
            let scale = (16384.0 * SCALES[i / 8] * SCALES[i % 8]).round() as i64;
            ((i64::from(quantisation[i]) * scale + 2048) >> 12) as i16
        }
    })
}

/// The samples of a block, to `out` with rows `stride` apart.
#[inline(always)]
pub(super) fn transform(method: Idct, block: &[i16; 64], out: &mut [u8], stride: usize) {
    let samples = match method {
        Idct::Fast => fast(block),
        Idct::Accurate => accurate(block),
    };
    for (row, samples) in samples.as_chunks::<8>().0.iter().enumerate() {
        let place = out[row * stride..].first_chunk_mut();
        *place.expect("a plane has whole blocks") = *samples;
    }
}

/// The sample of a block that has only its first coefficient.
#[inline(always)]
pub(super) fn flat(method: Idct, first: i16) -> u8 {
    let level = match method {
        Idct::Fast => i32::from(first) >> 5,
        Idct::Accurate => (i32::from(first) + 4) >> 3,
    };
    (level + 128).clamp(0, 255) as u8
}

#[inline(always)]
fn fast(block: &[i16; 64]) -> [u8; 64] {
    let columns = fast_pass(block);
    let rows = fast_pass(&transposed(&columns));
    let samples = transposed(&rows);
    block_of(|i| ((samples[i] >> 5).clamp(-128, 127) + 128) as u8)
}

/// A block made of an element for each index: a loop where `array::from_fn` is calls, which a build need not inline.
#[inline(always)]
pub(super) fn block_of<T: Copy + Default>(element: impl Fn(usize) -> T) -> [T; 64] {
    let mut block = [T::default(); 64];
    for (i, value) in block.iter_mut().enumerate() {
        *value = element(i);
    }
    block
}

#[inline(always)]
fn transposed<T: Copy + Default>(block: &[T; 64]) -> [T; 64] {
    block_of(|i| block[i % 8 * 8 + i / 8])
}

/// The product with a number of 8 bits after the point, rounded down.
#[inline(always)]
const fn times(value: Wrapping<i16>, factor: i16) -> Wrapping<i16> {
    // A shift by 16 in all: the upper half of a product is one instruction.
    let product = (value.0 << 2) as i32 * ((factor << 6) as i32);
    Wrapping((product >> 16) as i16)
}

/// One dimension of the method of Arai, Agui and Nakajima on all columns.
#[inline(always)]
fn fast_pass(x: &[i16; 64]) -> [i16; 64] {
    let mut out = [0i16; 64];
    for c in 0..8 {
        let at = |row: usize| Wrapping(x[row * 8 + c]);
        let (e0, e1) = (at(0) + at(4), at(0) - at(4));
        let e3 = at(2) + at(6);
        let e2 = times(at(2) - at(6), 362) - e3;
        let even = [e0 + e3, e1 + e2, e1 - e2, e0 - e3];
        let (z13, z10) = (at(5) + at(3), at(5) - at(3));
        let (z11, z12) = (at(1) + at(7), at(1) - at(7));
        let z5 = times(z10 + z12, 473);
        let o0 = z11 + z13;
        // 669 = 413 + 256 would not fit with its six zeros behind it.
        let o1 = times(z10, -413) - z10 + z5 - o0;
        let o2 = times(z11 - z13, 362) - o1;
        let o3 = times(z12, 277) - z5 + o2;
        let odd = [o0, o1, o2, -o3];
        for i in 0..4 {
            out[i * 8 + c] = (even[i] + odd[i]).0;
            out[(7 - i) * 8 + c] = (even[i] - odd[i]).0;
        }
    }
    out
}

#[inline(always)]
fn accurate(block: &[i16; 64]) -> [u8; 64] {
    let columns = accurate_pass::<11>(&block_of(|i| i32::from(block[i])));
    let rows = accurate_pass::<18>(&transposed(&columns));
    let samples = transposed(&rows);
    block_of(|i| (samples[i] + 128).clamp(0, 255) as u8)
}

/// One dimension of the method of Loeffler, Ligtenberg and Moschytz on all columns, with 13 bits after the point of the
/// factors, of which `DROP` are rounded off at the end.
#[inline(always)]
fn accurate_pass<const DROP: usize>(x: &[i32; 64]) -> [i32; 64] {
    let mut out = [0i32; 64];
    for c in 0..8 {
        let at = |row: usize| Wrapping(x[row * 8 + c]);
        let by = |value: Wrapping<i32>, factor: i32| value * Wrapping(factor);
        let z = by(at(2) + at(6), 4433);
        let (e2, e3) = (z - by(at(6), 15137), z + by(at(2), 6270));
        let (e0, e1) = (by(at(0) + at(4), 8192), by(at(0) - at(4), 8192));
        let even = [e0 + e3, e1 + e2, e1 - e2, e0 - e3];
        let (z1, z2) = (at(7) + at(1), at(5) + at(3));
        let (z3, z4) = (at(7) + at(3), at(5) + at(1));
        let z5 = by(z3 + z4, 9633);
        let (z1, z2) = (by(z1, -7373), by(z2, -20995));
        let (z3, z4) = (by(z3, -16069) + z5, by(z4, -3196) + z5);
        let odd = [
            by(at(1), 12299) + z1 + z4,
            by(at(3), 25172) + z2 + z3,
            by(at(5), 16819) + z2 + z4,
            by(at(7), 2446) + z1 + z3,
        ];
        let half = Wrapping(1 << (DROP - 1));
        for i in 0..4 {
            out[i * 8 + c] = ((even[i] + odd[i] + half) >> DROP).0;
            out[(7 - i) * 8 + c] = ((even[i] - odd[i] + half) >> DROP).0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in floating point.
    fn exact(block: &[i16; 64]) -> [f64; 64] {
        let basis = |x: usize, u: usize| {
            let scale = if u == 0 { 0.125f64.sqrt() } else { 0.5 };
            scale * ((2 * x + 1) as f64 * u as f64 * std::f64::consts::PI / 16.0).cos()
        };
        std::array::from_fn(|i| {
            let sum: f64 = (0..64)
                .map(|k| f64::from(block[k]) * basis(i / 8, k / 8) * basis(i % 8, k % 8))
                .sum();
            (sum + 128.0).clamp(0.0, 255.0)
        })
    }

    #[test]
    fn the_order_of_a_scan_is_a_zigzag() {
        assert_eq!(ZIGZAG[..11], [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32]);
        assert_eq!(ZIGZAG[60..66], [47, 55, 62, 63, 63, 63]);
        let mut all = ZIGZAG[..64].to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<u8>>());
    }

    #[test]
    fn both_methods_are_near_the_definition() {
        let mut state = 1u32;
        for _ in 0..50 {
            let coefficients: [i16; 64] = std::array::from_fn(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let range = 600 / (1 + i as i32);
                (((state >> 8) as i32).rem_euclid(2 * range + 1) - range) as i16
            });
            let expected = exact(&coefficients);
            for (method, most) in [(Idct::Accurate, 1.0), (Idct::Fast, 16.0)] {
                let factors = factors(method, &[1; 64]);
                let block = std::array::from_fn(|i| coefficients[i].wrapping_mul(factors[i]));
                let mut out = [0; 64];
                transform(method, &block, &mut out, 8);
                for (got, expected) in out.iter().zip(expected) {
                    let off = (f64::from(*got) - expected).abs();
                    assert!(off <= most, "{method:?}: {got} for {expected}");
                }
            }
        }
    }

    #[test]
    fn flat_blocks_have_a_short_way() {
        for method in [Idct::Fast, Idct::Accurate] {
            for first in [-3000, -700, -33, -4, 0, 3, 4, 12, 800, 2500] {
                let mut block = [0; 64];
                block[0] = first;
                let mut out = [0; 64];
                transform(method, &block, &mut out, 8);
                assert_eq!(out, [flat(method, first); 64], "{method:?} {first}");
            }
        }
    }
}
