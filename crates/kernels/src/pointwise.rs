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
    let is_packed = packs_ahead([dims[0], columns, depth]);
    let tiles = TileGrid::of::<R>([dims[0], columns, depth], team.threads(), is_packed);
    let of_tiles = tiles.scratch_len::<R>() * team.threads();
    if !is_packed {
        let floats = scratch.floats(of_tiles);
        return product(RightOperand::Matrix(right)).run(&tiles, result, team, floats);
    }
    let packed = PackedMatrix::len(columns, depth);
    let (panels, floats) = scratch.floats(packed + of_tiles).split_at_mut(packed);
    gemm::pack_ahead(right, panels, team);
    let right = RightOperand::Packed(PackedMatrix::new(panels, columns, depth));
    product(right).run(&tiles, result, team, floats);
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
    /// Computes these tiles of the result, each in what [`TileGrid::scratch_len`] says of `floats`.
    ///
    /// # Panics
    /// A length does not match the dimensions, or `floats` are too few for each thread: bugs of the caller.
    pub(crate) fn run<R: SimdElement>(
        &self,
        tiles: &TileGrid,
        result: &mut [R],
        team: &ThreadTeam,
        floats: &mut [f32],
    ) {
        assert_eq!(result.len(), self.dims[0] * self.dims[1]);
        assert!(self.bias.is_none_or(|bias| bias.len() == self.dims[1]));
        let own = tiles.scratch_len::<R>();
        assert!(floats.len() >= own * team.threads());
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

#[cfg(test)]
mod tests {
    use phalanx_pjrt::Bf16;

    use super::*;
    use crate::handlers::TensorDesc;
    use crate::onednn::DataType;
    use crate::stored::Stored;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7 + i / 5 + seed) % 5) as f32 - 2.0)
            .collect()
    }

    /// A convolution of whole numbers in bf16, which is exact.
    fn convolve([rows, depth, columns]: [usize; 3], threads: usize) {
        let tensor = |dims: [usize; 4]| TensorDesc {
            element: DataType::Bf16,
            dims: dims.map(|dim| dim as i64),
        };
        let key = ConvolutionDesc {
            direction: Direction::Forward,
            x: tensor([1, 1, rows, depth]),
            kernel: tensor([1, 1, depth, columns]),
            y: tensor([1, 1, rows, columns]),
            strides: [1; 2],
            dilation: [1; 2],
            padding_low: [0; 2],
            padding_high: [0; 2],
            groups: 1,
            bias: false,
            native_bf16: false,
            chosen: None,
        };
        let (x, kernel) = (numbers(rows * depth, 1), numbers(depth * columns, 3));
        let [narrow_x, narrow_kernel] = [&x, &kernel].map(|from| {
            from.iter()
                .map(|&number| Bf16::narrow(number))
                .collect::<Vec<_>>()
        });
        let mut y = vec![Bf16::narrow(f32::NAN); rows * columns];
        let team = ThreadTeam::alone_as(threads);
        run(
            &key,
            [&narrow_x, &narrow_kernel],
            (None, Epilogue::Identity),
            &mut y,
            &team,
            &mut Scratchpad::default(),
        );
        for (row, y) in y.chunks(columns).enumerate() {
            for (column, y) in y.iter().enumerate() {
                let terms = (0..depth).map(|k| x[row * depth + k] * kernel[k * columns + column]);
                assert_eq!(y.wide(), terms.sum::<f32>(), "{row} {column}");
            }
        }
    }

    #[test]
    fn each_of_many_threads_has_its_buffer() {
        if !simd::has_fma() {
            return;
        }
        for threads in [1, 2, 17, 22, 28, 31, 56, 64] {
            convolve([1568, 8, 320], threads);
            convolve([784, 8, 768], threads);
            convolve([100, 8, 320], threads);
        }
    }
}
