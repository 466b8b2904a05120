//! Right operands, which may have been packed ahead of the products by them.

use std::ops::Range;

use super::{GemmOperand, KC, pack};
use crate::microkernel::NR;
use crate::openmp::{OutputPointer, ThreadTeam};
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

/// Panels that are packed together.
const PART_PANELS: usize = 16;

/// Elements from which the team packs a matrix: fewer take less time than it does to call it.
const WORTH_SHARING: usize = 1 << 15;

/// In how many parts a matrix is packed ahead: each some panels of a slice.
pub(crate) fn packed_parts([count, depth]: [usize; 2]) -> usize {
    depth.div_ceil(KC) * count.div_ceil(PART_PANELS * NR)
}

/// Packs a part of a matrix ahead.
///
/// # Safety
/// The processor has AVX2; `panels` are places of [`PackedMatrix::len`] elements, and nobody else uses this part's meanwhile.
///
/// # Panics
/// There is no such part: a bug of the caller.
pub(crate) unsafe fn pack_part<T: SimdElement>(
    matrix: GemmOperand<'_, T>,
    part: usize,
    panels: *mut f32,
) {
    let groups = matrix.count.div_ceil(PART_PANELS * NR);
    let (slice, group) = (part / groups, part % groups);
    let ks = slice * KC..((slice + 1) * KC).min(matrix.depth);
    let columns = group * PART_PANELS * NR..((group + 1) * PART_PANELS * NR).min(matrix.count);
    let before = ks.start * matrix.count.next_multiple_of(NR) + columns.start * ks.len();
    let len = PackedMatrix::len(columns.len(), ks.len());
    // SAFETY: the caller's promise.
    unsafe {
        let panels = std::slice::from_raw_parts_mut(panels.add(before), len);
        pack::<NR, T>(matrix, &columns, &ks, panels);
    }
}

/// Packs a matrix ahead, into places of [`PackedMatrix::len`] elements.
///
/// # Panics
/// The processor lacks AVX2, or the length is another: bugs of the caller.
pub(crate) fn pack_ahead<T: SimdElement>(
    matrix: GemmOperand<'_, T>,
    panels: &mut [f32],
    team: &ThreadTeam,
) {
    let dims = [matrix.count, matrix.depth];
    assert!(has_fma() && panels.len() == PackedMatrix::len(dims[0], dims[1]));
    let to = OutputPointer(panels.as_mut_ptr());
    let pack = |part| {
        // SAFETY: the processor has the instructions, the panels have their length, and each part is packed once.
        unsafe { pack_part(matrix, part, to.start()) };
    };
    let parts = 0..packed_parts(dims);
    match panels.len() < WORTH_SHARING {
        true => parts.for_each(pack),
        false => team.for_each(parts, pack),
    }
}
