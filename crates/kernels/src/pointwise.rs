//! Convolutions with kernels of one place, and their gradients, as matrix products of ours, in f32.
//!
//! With pixels as rows, y is `x * kernel`, dx is `dy * kernel` transposed, and the kernel's gradient is x transposed `* dy`, summed over all
//! pixels in slices ([`crate::gemm`]). The tiles of the result are the tasks of the threads; an element is summed in one order, whatever
//! their number.

use std::sync::Mutex;

use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::gemm::{self, GemmOperand};
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
    let bias = operands.get(2).copied();
    assert_eq!(result.len(), dims[0] * dims[1]);
    assert!(bias.is_none_or(|bias| bias.len() == dims[1]));
    let tiles = TileGrid::new(dims, team.threads());
    let own = gemm::scratch_len(tiles.tile_columns);
    let buffers = scratch.floats(own * team.threads()).chunks_exact_mut(own);
    let idle = Mutex::new(buffers.collect::<Vec<_>>());
    let result = OutputPointer(result.as_mut_ptr());
    team.for_each(0..tiles.count(), |tile| {
        let [rows, columns] = tiles.tile_bounds(tile);
        let buffer = lock(&idle).pop().expect("a buffer for each thread");
        // SAFETY: the processor has the instructions; the result has the length of the product, and its tiles have different elements.
        unsafe {
            let (rows, columns) = (rows.clone(), columns.clone());
            let isa = Isa::best_available();
            gemm::multiply(isa, left, right, rows, columns, buffer, result.start());
        }
        for row in rows {
            let start = row * dims[1] + columns.start;
            // SAFETY: as above.
            let values =
                unsafe { std::slice::from_raw_parts_mut(result.start().add(start), columns.len()) };
            if let Some(bias) = bias {
                let pairs = values.iter_mut().zip(&bias[columns.clone()]);
                pairs.for_each(|(value, bias)| *value += bias);
            }
            epilogue.apply_from(start, values);
        }
        lock(&idle).push(buffer);
    });
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
