//! How lines of a tile are combined: B' of x, G of the kernel, A' to y, and the transposes of the last two.
//!
//! They are those of Toom and Cook: a row of x and a row of the kernel are polynomials, whose product is found from its values at
//! some points: 0, 3/4, -3/4, 3/2, -3/2 and infinity, instead of the usual 1 and 2. The coefficients are nearer to 1, and so errors are a
//! third, at most 3e-6 of the largest result at 256 channels, those of plain sums 4e-7.

use super::tiles::{TileRow, Transform, padded_row};

/// The points but 0 and infinity, which are also taken negative, and their squares.
const P: f32 = 0.75;
const Q: f32 = 1.5;
const P2: f32 = P * P;
const Q2: f32 = Q * Q;
/// Avx512 over the products of each point's distances from the others.
const AT_ZERO: f32 = 1.0 / (P2 * Q2);
const AT_P: f32 = 0.5 / (P2 * (P2 - Q2));
const AT_Q: f32 = 0.5 / (Q2 * (Q2 - P2));

/// Of a row of x, six of its combinations: B'.
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

/// Of a row of the kernel: G.
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

/// A row of y from products: A'.
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

/// Of a row of dy: A, the transpose of the last.
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

/// A row of the kernel's gradient from products: G'.
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
