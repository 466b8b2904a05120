//! Right operands, which may have been packed ahead of the products by them.

use std::ops::Range;

use super::{GemmOperand, KC, left_len, pack, scratch_len};
use crate::microkernel::NR;
use crate::openmp::ThreadTeam;
use crate::simd::has_fma;
use crate::simd_element::SimdElement;

/// The right operand of a product: a matrix of which panels are packed where they are needed, or panels that were packed ahead.
#[derive(Clone, Copy)]
pub(crate) enum RightOperand<'a, T = f32> {
    Matrix(GemmOperand<'a, T>),
    Packed(PackedMatrix<'a>),
}

impl<T: SimdElement> RightOperand<'_, T> {
    /// Columns and the length of the summed dimension.
    pub(crate) fn dims(&self) -> [usize; 2] {
        match self {
            Self::Matrix(matrix) => [matrix.count, matrix.depth],
            Self::Packed(packed) => [packed.count, packed.depth],
        }
    }

    /// Size of the packing buffer for a tile of `columns` columns, in elements.
    pub(crate) fn scratch_len(&self, columns: usize) -> usize {
        match self {
            Self::Matrix(_) => scratch_len(columns),
            Self::Packed(_) => left_len(),
        }
    }
}

/// A right matrix packed ahead: of each slice of the summed dimension all panels of 16 columns, `[slice][panel][step][column]`. Columns that
/// the last panel has too many are zeros.
#[derive(Clone, Copy)]
pub(crate) struct PackedMatrix<'a> {
    panels: &'a [f32],
    count: usize,
    depth: usize,
}

impl<'a> PackedMatrix<'a> {
    /// Elements of `count` columns of a length.
    pub(crate) const fn len(count: usize, depth: usize) -> usize {
        count.next_multiple_of(NR) * depth
    }

    /// # Panics
    /// There are not [`len`](Self::len) elements: a bug of the caller.
    pub(crate) fn new(panels: &'a [f32], count: usize, depth: usize) -> Self {
        assert_eq!(panels.len(), Self::len(count, depth));
        Self {
            panels,
            count,
            depth,
        }
    }

    /// The panels of some columns, the first of which begins a panel, for a slice of the summed dimension.
    pub(super) fn part(self, columns: &Range<usize>, ks: &Range<usize>) -> &'a [f32] {
        assert!(columns.start.is_multiple_of(NR));
        let width = self.count.next_multiple_of(NR);
        let slice = &self.panels[ks.start * width..ks.end * width];
        &slice[columns.start * ks.len()..columns.end.next_multiple_of(NR) * ks.len()]
    }
}

/// Packs a matrix ahead, into places of [`PackedMatrix::len`] elements.
///
/// # Panics
/// The processor lacks AVX2, or the length is another: bugs of the caller.
pub(crate) fn pack_ahead(matrix: GemmOperand<'_>, panels: &mut [f32], team: &ThreadTeam) {
    let len = PackedMatrix::len(matrix.count, matrix.depth);
    assert!(has_fma() && panels.len() == len);
    let slice = PackedMatrix::len(matrix.count, KC);
    team.for_each(panels.chunks_mut(slice).enumerate(), |(index, slice)| {
        let ks = index * KC..((index + 1) * KC).min(matrix.depth);
        // SAFETY: the processor has the instructions.
        unsafe { pack::<NR, f32>(matrix, &(0..matrix.count), &ks, slice) };
    });
}
