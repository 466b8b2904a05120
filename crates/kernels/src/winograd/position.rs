//! Where a tile is, and which pixels are in it.

use super::Geometry;
use super::tiles::{LANES, POINTS, TILE_INPUT, TILE_OUTPUT};
use crate::simd_element::SimdElement;

/// Where a tile of y is.
pub(super) struct TilePosition {
    pub(super) image: usize,
    /// Its first row and column.
    pub(super) at: [usize; 2],
    /// Its pixels that are known to be 0, a bit for each in the order of rows.
    pub(super) blank: u16,
}

/// The address of each pixel of a tile, or of zeros where it is padding.
pub(super) type Pixels<T> = [*const T; POINTS];

impl TilePosition {
    pub(super) fn new(g: &Geometry, out: usize, tile: usize) -> Self {
        let [rows, columns] = g.y.map(|side| side.div_ceil(out));
        Self {
            image: tile / (rows * columns),
            at: [tile / columns % rows * out, tile % columns * out],
            blank: 0,
        }
    }

    pub(super) fn pixels_of_x<T: SimdElement>(
        &self,
        g: &Geometry,
        side: usize,
        x: &[T],
        zeros: &[f32],
    ) -> Pixels<T> {
        pixels(side, zeros, |row, column| {
            self.pixel_of_x(g, row, column, x)
        })
    }

    /// A pixel of the tile of x; none where it is padding.
    fn pixel_of_x<'a, T>(
        &self,
        g: &Geometry,
        row: usize,
        column: usize,
        x: &'a [T],
    ) -> Option<&'a [T]> {
        let row = (self.at[0] + row).checked_sub(g.low[0])?;
        let column = (self.at[1] + column).checked_sub(g.low[1])?;
        let inside = row < g.x[0] && column < g.x[1];
        let pixel = (self.image * g.x[0] + row) * g.x[1] + column;
        inside.then(|| &x[pixel * g.inputs..][..g.inputs])
    }

    /// The pixels of y whose whole 3x3 neighbourhood in x is 0, a bit for each in the order of rows: their sums are 0, and the
    /// transforms would leave rounding of the tile's other pixels in them.
    pub(super) fn blank_outputs<T: SimdElement>(&self, g: &Geometry, x: &[T]) -> u16 {
        let is_zero = |row: usize, column: usize| {
            let pixel = self.pixel_of_x(g, row, column, x).unwrap_or_default();
            let mut lanes = pixel.chunks_exact(LANES);
            lanes.all(|lanes| lanes.iter().fold(true, |all, &x| all & (x.wide() == 0.0)))
        };
        // Each neighbourhood has one of these four in it, and mostly none of them is 0.
        if ![(2, 2), (2, 3), (3, 2), (3, 3)]
            .iter()
            .any(|&(row, column)| is_zero(row, column))
        {
            return 0;
        }
        // A bit for each column of a row, first of zeros, then of three zeros in a row.
        let of_row = |row: usize| {
            let zeros = (0..TILE_INPUT).fold(0u16, |bits, column| {
                bits | u16::from(is_zero(row, column)) << column
            });
            zeros & zeros >> 1 & zeros >> 2
        };
        let rows: [u16; TILE_INPUT] = std::array::from_fn(of_row);
        (0..TILE_OUTPUT).fold(0, |bits, row| {
            bits | (rows[row] & rows[row + 1] & rows[row + 2]) << (row * TILE_OUTPUT)
        })
    }

    pub(super) fn pixels_of_y<T: SimdElement>(
        &self,
        g: &Geometry,
        out: usize,
        y: &[T],
        zeros: &[f32],
    ) -> Pixels<T> {
        pixels(out, zeros, |row, column| {
            let (row, column) = (self.at[0] + row, self.at[1] + column);
            let inside = row < g.y[0] && column < g.y[1];
            let pixel = (self.image * g.y[0] + row) * g.y[1] + column;
            inside.then(|| &y[pixel * g.outputs..][..g.outputs])
        })
    }
}

/// Zeros of f32 are as many zeros of a shorter type.
fn pixels<'a, T: SimdElement>(
    side: usize,
    zeros: &[f32],
    at: impl Fn(usize, usize) -> Option<&'a [T]>,
) -> Pixels<T> {
    let mut pixels = [zeros.as_ptr().cast(); POINTS];
    for (i, pixel) in pixels.iter_mut().take(side * side).enumerate() {
        if let Some(found) = at(i / side, i % side) {
            *pixel = found.as_ptr();
        }
    }
    pixels
}
