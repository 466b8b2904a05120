//! Convolutions with kernels of one place, and their gradients, as matrix products of ours, in f32, of arrays of f32 or bf16.
//!
//! With pixels as rows, y is `x * kernel`, dx is `dy * kernel` transposed, and the kernel's gradient is x transposed `* dy`, summed over all
//! pixels in slices ([`crate::gemm`]). The tiles of the result are the tasks of the threads; an element is summed in one order, whatever
//! their number.

use std::ops::Range;
use std::sync::Mutex;

use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::gemm::{self, GemmOperand, PackedMatrix, RightOperand};
use crate::matmul::{TileGrid, multiply_tile, packs_ahead};
use crate::openmp::{OutputPointer, ThreadTeam};
use crate::scratchpad::Scratchpad;
use crate::simd;
use crate::simd_element::SimdElement;
use crate::sync::lock;

/// Whether this computes the convolution.
pub(crate) fn takes(key: &ConvolutionDesc) -> bool {
    key.is_pointwise() && key.has_elements_of_ours() && simd::has_fma()
}

/// Computes the convolution of two operands in their order, a number for each output channel, and what follows.
///
/// # Panics
/// The convolution is not supported, or a length does not match its shape: bugs of the caller.
pub(crate) fn run<T: SimdElement, R: SimdElement>(
    key: &ConvolutionDesc,
    operands: [&[T]; 2],
    (bias, epilogue): (Option<&[f32]>, Epilogue<'_>),
    result: &mut [R],
    team: &ThreadTeam,
    scratch: &mut Scratchpad,
) {
    assert!(takes(key));
    let (left, right, dims) = matrices(key, operands);
    let product = |right| TiledProduct {
        left,
        right,
        dims,
        bias,
        epilogue,
    };
    let [columns, depth] = RightOperand::Matrix(right).dims();
    let packed = match packs_ahead([dims[0], columns, depth]) {
        true => PackedMatrix::len(columns, depth),
        false => 0,
    };
    let of_tiles = product(RightOperand::Matrix(right)).scratch_len::<R>(team);
    let (panels, floats) = scratch.floats(packed + of_tiles).split_at_mut(packed);
    if packed == 0 {
        return product(RightOperand::Matrix(right)).run(result, team, floats);
    }
    gemm::pack_ahead(right, panels, team);
    let right = RightOperand::Packed(PackedMatrix::new(panels, columns, depth));
    product(right).run(result, team, floats);
}

/// A product of matrices and what follows it, for each element of the result while it is in the caches.
pub(crate) struct TiledProduct<'a, T = f32> {
    pub(crate) left: GemmOperand<'a, T>,
    pub(crate) right: RightOperand<'a, T>,
    /// Rows and columns of the result.
    pub(crate) dims: [usize; 2],
    /// A number for each column.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) epilogue: Epilogue<'a>,
}

impl<T: SimdElement> TiledProduct<'_, T> {
    /// Numbers that [`run`](Self::run) needs to work in for a result of `R`.
    pub(crate) fn scratch_len<R: SimdElement>(&self, team: &ThreadTeam) -> usize {
        self.tile_scratch_len::<R>(&self.tiles::<R>(team)) * team.threads()
    }

    fn tiles<R: SimdElement>(&self, team: &ThreadTeam) -> TileGrid {
        match self.right {
            RightOperand::Matrix(_) => TileGrid::new::<R>(self.dims, team.threads()),
            RightOperand::Packed(_) => TileGrid::of_packed::<R>(self.dims, team.threads()),
        }
    }

    fn tile_scratch_len<R: SimdElement>(&self, tiles: &TileGrid) -> usize {
        tiles.scratch_len::<R>(self.right.scratch_len(tiles.tile_columns))
    }

    /// # Panics
    /// A length does not match the dimensions, or `floats` are too few: bugs of the caller.
    pub(crate) fn run<R: SimdElement>(
        &self,
        result: &mut [R],
        team: &ThreadTeam,
        floats: &mut [f32],
    ) {
        assert_eq!(result.len(), self.dims[0] * self.dims[1]);
        assert!(self.bias.is_none_or(|bias| bias.len() == self.dims[1]));
        let tiles = self.tiles::<R>(team);
        let own = self.tile_scratch_len::<R>(&tiles);
        let buffers = floats.chunks_exact_mut(own).take(team.threads());
        let idle = Mutex::new(buffers.collect::<Vec<_>>());
        let result = OutputPointer(result.as_mut_ptr());
        team.for_each(0..tiles.count(), |tile| {
            let buffer = lock(&idle).pop().expect("a buffer for each thread");
            // SAFETY: the result has the length of the product, and its tiles have different elements.
            unsafe { self.tile(tiles.tile_bounds(tile), buffer, result.start()) };
            lock(&idle).push(buffer);
        });
    }

    /// Computes these rows and columns of the result.
    ///
    /// # Safety
    /// The result has room for all of the product, and nobody else uses these elements.
    unsafe fn tile<R: SimdElement>(
        &self,
        bounds: [Range<usize>; 2],
        buffer: &mut [f32],
        result: *mut R,
    ) {
        let finish = |start, values: &mut [f32]| self.epilogue.apply_from(start, values);
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe {
            multiply_tile(
                self.left, self.right, bounds, buffer, result, self.bias, finish,
            );
        }
    }
}

/// The factors, and the rows and columns of their product.
fn matrices<'a, T: SimdElement>(
    key: &ConvolutionDesc,
    operands: [&'a [T]; 2],
) -> (GemmOperand<'a, T>, GemmOperand<'a, T>, [usize; 2]) {
    let size = |value: i64| usize::try_from(value).expect("a checked key");
    let pixels = key.x.dims[..3].iter().map(|&dim| size(dim)).product();
    let [inputs, outputs] = [key.kernel.dims[2], key.kernel.dims[3]].map(size);
    let (rows, depth, columns) = match key.direction {
        Direction::Forward => (pixels, inputs, outputs),
        Direction::InputGradient => (pixels, outputs, inputs),
        Direction::KernelGradient => (inputs, pixels, outputs),
    };
    let left_adjacent = key.direction != Direction::KernelGradient;
    let right_adjacent = key.direction == Direction::InputGradient;
    (
        GemmOperand::new(operands[0], rows, depth, left_adjacent),
        GemmOperand::new(operands[1], columns, depth, right_adjacent),
        [rows, columns],
    )
}
