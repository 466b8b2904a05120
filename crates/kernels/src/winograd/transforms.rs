//! The transforms of a row: B' of x, G of the kernel, A' to y, and the transposes of the last two.
//!
//! They follow Toom and Cook: rows of x and of the kernel are polynomials, and their product is determined by its values at the points 0,
//! 3/4, -3/4, 3/2, -3/2 and infinity. The usual points are 1 and 2; with ours the coefficients are nearer to 1, and errors are a third: at
//! most 3e-6 of the largest result at 256 channels, where direct sums have 4e-7.

use super::tiles::{TileRow, Transform, padded_row};

/// The points other than 0 and infinity, each of which is also used with a minus sign, and their squares.
const P: f32 = 0.75;
const Q: f32 = 1.5;
const P2: f32 = P * P;
const Q2: f32 = Q * Q;
/// Avx512 over the products of each point's distances from the others.
const AT_ZERO: f32 = 1.0 / (P2 * Q2);
const AT_P: f32 = 0.5 / (P2 * (P2 - Q2));
const AT_Q: f32 = 0.5 / (Q2 * (Q2 - P2));

/// B': a row of x to six points.
pub(super) struct InputTransform;

impl Transform for InputTransform {
    const INPUTS: usize = 6;
    const OUTPUTS: usize = 6;

    #[inline(always)]
    fn row(&[a, b, c, d, e, f]: &TileRow) -> TileRow {
        let (even_p, odd_p) = (e - c * Q2, (d - b * Q2) * P);
        let (even_q, odd_q) = (e - c * P2, (d - b * P2) * Q);
        [
            e - c * (P2 + Q2) + a * (P2 * Q2),
            even_p + odd_p,
            even_p - odd_p,
            even_q + odd_q,
            even_q - odd_q,
            f - d * (P2 + Q2) + b * (P2 * Q2),
        ]
    }
}

/// G: a row of the kernel to six points.
pub(super) struct KernelTransform;

impl Transform for KernelTransform {
    const INPUTS: usize = 3;
    const OUTPUTS: usize = 6;

    #[inline(always)]
    fn row(&[a, b, c, ..]: &TileRow) -> TileRow {
        let (even_p, odd_p) = ((a + c * P2) * AT_P, b * (P * AT_P));
        let (even_q, odd_q) = ((a + c * Q2) * AT_Q, b * (Q * AT_Q));
        [
            a * AT_ZERO,
            even_p + odd_p,
            even_p - odd_p,
            even_q + odd_q,
            even_q - odd_q,
            c,
        ]
    }
}

/// A': six points to a row of y.
pub(super) struct OutputTransform;

impl Transform for OutputTransform {
    const INPUTS: usize = 6;
    const OUTPUTS: usize = 4;

    #[inline(always)]
    fn row(&[a, b, c, d, e, f]: &TileRow) -> TileRow {
        let (even_p, odd_p) = (b + c, (b - c) * P);
        let (even_q, odd_q) = (d + e, (d - e) * Q);
        padded_row([
            a + even_p + even_q,
            odd_p + odd_q,
            even_p * P2 + even_q * Q2,
            odd_p * P2 + odd_q * Q2 + f,
        ])
    }
}

/// A: a row of dy to six points.
pub(super) struct OutputGradientTransform;

impl Transform for OutputGradientTransform {
    const INPUTS: usize = 4;
    const OUTPUTS: usize = 6;

    #[inline(always)]
    fn row(&[a, b, c, d, ..]: &TileRow) -> TileRow {
        let (even_p, odd_p) = (a + c * P2, (b + d * P2) * P);
        let (even_q, odd_q) = (a + c * Q2, (b + d * Q2) * Q);
        [
            a,
            even_p + odd_p,
            even_p - odd_p,
            even_q + odd_q,
            even_q - odd_q,
            d,
        ]
    }
}

/// G': six points to a row of the kernel's gradient.
pub(super) struct KernelGradientTransform;

impl Transform for KernelGradientTransform {
    const INPUTS: usize = 6;
    const OUTPUTS: usize = 3;

    #[inline(always)]
    fn row(&[a, b, c, d, e, f]: &TileRow) -> TileRow {
        let (even_p, odd_p) = ((b + c) * AT_P, (b - c) * (P * AT_P));
        let (even_q, odd_q) = ((d + e) * AT_Q, (d - e) * (Q * AT_Q));
        padded_row([
            a * AT_ZERO + even_p + even_q,
            odd_p + odd_q,
            even_p * P2 + even_q * Q2 + f,
        ])
    }
}
