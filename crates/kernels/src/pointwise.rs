//! Convolutions with kernels of one place, and their gradients, as matrix products of ours, in f32.
//!
//! With pixels as rows, y is `x * kernel`, dx is `dy * kernel` transposed, and the kernel's gradient is x transposed `* dy`, summed over all
//! pixels in slices ([`crate::gemm`]). The tiles of the result are the tasks of the threads; an element is summed in one order, whatever
//! their number.

use std::ops::Range;
use std::sync::Mutex;

use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::gemm::{self, GemmOperand, ResultTile, RightOperand};
use crate::matmul::TileGrid;
use crate::microkernel::Isa;
use crate::onednn::Scratchpad;
use crate::openmp::{OutputPointer, ThreadTeam};
use crate::simd;
use crate::sync::lock;

/// Whether this computes the convolution.
pub(crate) fn takes(key: &ConvolutionDesc) -> bool {
    key.is_pointwise() && key.is_f32() && simd::has_fma()
}

/// Computes the convolution of the operands in their order, and its epilogue.
///
/// # Panics
/// The convolution is not supported, or a length does not match its shape: bugs of the caller.
pub(crate) fn run(
    key: &ConvolutionDesc,
    operands: &[&[f32]],
    result: &mut [f32],
    epilogue: Epilogue<'_>,
    team: &ThreadTeam,
    scratch: &mut Scratchpad,
) {
    assert!(takes(key));
    let (left, right, dims) = matrices(key, operands);
    let product = TiledProduct {
        left,
        right: RightOperand::Matrix(right),
        dims,
        bias: operands.get(2).copied(),
        epilogue,
    };
    let floats = scratch.floats(product.scratch_len(team));
    product.run(result, team, floats);
}

/// A product of matrices and what follows it, for each element of the result while it is in the caches.
pub(crate) struct TiledProduct<'a> {
    pub(crate) left: GemmOperand<'a>,
    pub(crate) right: RightOperand<'a>,
    /// Rows and columns of the result.
    pub(crate) dims: [usize; 2],
    /// A number for each column.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) epilogue: Epilogue<'a>,
}

impl TiledProduct<'_> {
    /// Numbers that [`run`](Self::run) needs to work in.
    pub(crate) fn scratch_len(&self, team: &ThreadTeam) -> usize {
        let tiles = TileGrid::new(self.dims, team.threads());
        self.right.scratch_len(tiles.tile_columns) * team.threads()
    }

    /// # Panics
    /// A length does not match the dimensions, or `floats` are too few: bugs of the caller.
    pub(crate) fn run(&self, result: &mut [f32], team: &ThreadTeam, floats: &mut [f32]) {
        assert_eq!(result.len(), self.dims[0] * self.dims[1]);
        assert!(self.bias.is_none_or(|bias| bias.len() == self.dims[1]));
        let tiles = TileGrid::new(self.dims, team.threads());
        let own = self.right.scratch_len(tiles.tile_columns);
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
    unsafe fn tile(
        &self,
        [rows, columns]: [Range<usize>; 2],
        buffer: &mut [f32],
        result: *mut f32,
    ) {
        let tile = ResultTile {
            rows: rows.clone(),
            columns: columns.clone(),
            result,
            width: self.dims[1],
        };
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe { gemm::multiply(Isa::best_available(), self.left, self.right, &tile, buffer) };
        for row in rows {
            let start = row * self.dims[1] + columns.start;
            // SAFETY: the caller's promise.
            let values =
                unsafe { std::slice::from_raw_parts_mut(result.add(start), columns.len()) };
            if let Some(bias) = self.bias {
                let pairs = values.iter_mut().zip(&bias[columns.clone()]);
                pairs.for_each(|(value, bias)| *value += bias);
            }
            self.epilogue.apply_from(start, values);
        }
    }
}

/// The factors, and the rows and columns of their product.
fn matrices<'a>(
    key: &ConvolutionDesc,
    operands: &[&'a [f32]],
) -> (GemmOperand<'a>, GemmOperand<'a>, [usize; 2]) {
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
