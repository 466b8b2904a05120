//! The calls of convolutions as products whose kernels are packed apart: `phalanx.conv_panels`, `phalanx.conv_by_panels`.
//!
//! With a kernel of one place and strides of 1 the pixels of x are the rows of the left matrix as they are. Else the windows of all pixels of y
//! are copied to be its rows first, which pays where y has few pixels: then packing or transforming the kernel, or reading its points, which
//! are four times as many, takes longer than the copies.

use phalanx_pjrt::{CustomCallError, CustomCallFrame, ElementType};

use crate::convolution::ConvolutionDesc;
use crate::epilogue::Epilogue;
use crate::gemm::{self, GemmOperand, PackedMatrix, RightOperand};
use crate::handlers::{TensorDesc, convolve_by_form, image, invalid, pair, replicas, worker_error};
use crate::kernels::Kernels;
use crate::matmul::TileGrid;
use crate::onednn::DataType;
use crate::openmp::ThreadTeam;
use crate::pointwise::TiledProduct;
use crate::worker_state::WorkerState;

/// Pixels whose windows are copied together.
const PIXELS: usize = 8;

/// From a kernel to its panels.
///
/// # Errors
/// The kernel is not of f32, or the result has another length than its panels.
pub(crate) fn pack(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let kernel = image(call.operand_shape(0)?)?;
    let [depth, columns] = matrix(&kernel)?;
    expect_panels(call.result_shape(0)?, [depth, columns])?;
    let (from, to) = (call.operand::<f32>(0)?, call.result::<f32>(0)?);
    let run = |state: &mut WorkerState| {
        let kernel = GemmOperand::new(from, columns, depth, false);
        gemm::pack_ahead(kernel, to, &state.team);
    };
    kernels
        .on_worker(replicas(call)?, run)
        .map_err(|why| worker_error(&why))
}

/// A convolution by the panels of its kernel.
///
/// # Errors
/// Dimensions do not fit each other, or there are groups.
pub(crate) fn convolve(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let is_right =
        |found: (ElementType, &[i64]), kernel: &TensorDesc| expect_panels(found, matrix(kernel)?);
    let window = pair(call, "window")?;
    convolve_by_form(kernels, call, (window, None), is_right, run)
}

/// Computes y from x, the panels of the kernel, and a bias where there are three operands.
fn run(
    key: &ConvolutionDesc,
    operands: &[&[f32]],
    y: &mut [f32],
    epilogue: Epilogue<'_>,
    state: &mut WorkerState,
) {
    let g = Windows::of(key);
    let (pixels, depth) = (
        g.images * g.y[0] * g.y[1],
        g.kernel[0] * g.kernel[1] * g.inputs,
    );
    let columns = y.len() / pixels;
    let as_they_are = key.is_pointwise();
    let windows = if as_they_are { 0 } else { pixels * depth };
    let right = RightOperand::Packed(PackedMatrix::new(operands[1], columns, depth));
    let product = |rows| TiledProduct {
        left: GemmOperand::new(rows, pixels, depth, true),
        right,
        dims: [pixels, columns],
        bias: operands.get(2).copied(),
        epilogue,
    };
    let (x, team) = (operands[0], &state.team);
    let tiles = TileGrid::of::<f32>([pixels, columns, depth], team.threads(), true);
    let own = tiles.scratch_len::<f32>() * team.threads();
    let (windows, buffers) = state.scratch.floats(windows + own).split_at_mut(windows);
    if as_they_are {
        return product(x).run(&tiles, y, team, buffers);
    }
    g.copy(x, windows, team);
    product(windows).run(&tiles, y, team, buffers);
}

/// Where the pixels of y have their windows in x; sides are height and width.
struct Windows {
    images: usize,
    x: [usize; 2],
    y: [usize; 2],
    kernel: [usize; 2],
    strides: [usize; 2],
    dilation: [usize; 2],
    padding_low: [usize; 2],
    inputs: usize,
}

impl Windows {
    fn of(key: &ConvolutionDesc) -> Self {
        let size = |value: i64| usize::try_from(value).expect("a checked key");
        let sides = |dims: [i64; 2]| dims.map(size);
        let [images, height, width, _] = key.y.dims;
        Self {
            images: size(images),
            x: sides([key.x.dims[1], key.x.dims[2]]),
            y: sides([height, width]),
            kernel: sides([key.kernel.dims[0], key.kernel.dims[1]]),
            strides: sides(key.strides),
            dilation: sides(key.dilation),
            padding_low: sides(key.padding_low),
            inputs: size(key.x.dims[3]),
        }
    }

    /// Writes the windows of all pixels, `[pixel][row][column][input]`.
    fn copy(&self, x: &[f32], windows: &mut [f32], team: &ThreadTeam) {
        let depth = self.kernel[0] * self.kernel[1] * self.inputs;
        let tasks = windows.chunks_mut(PIXELS * depth).enumerate();
        team.for_each(tasks, |(index, windows)| {
            let windows = windows.chunks_exact_mut(depth).enumerate();
            windows.for_each(|(i, window)| self.copy_window(x, index * PIXELS + i, window));
        });
    }

    fn copy_window(&self, x: &[f32], pixel: usize, window: &mut [f32]) {
        let [_, columns] = self.y;
        let (row, column) = (pixel / columns, pixel % columns);
        let (image, row) = (row / self.y[0], row % self.y[0]);
        for (tap, to) in window.chunks_exact_mut(self.inputs).enumerate() {
            let tap = [tap / self.kernel[1], tap % self.kernel[1]];
            let inside = |side: usize, at: usize| {
                let padded = at * self.strides[side] + tap[side] * self.dilation[side];
                let at = padded.checked_sub(self.padding_low[side]);
                at.filter(|at| *at < self.x[side])
            };
            match (inside(0, row), inside(1, column)) {
                (Some(row), Some(column)) => {
                    let pixel = (image * self.x[0] + row) * self.x[1] + column;
                    to.copy_from_slice(&x[pixel * self.inputs..][..self.inputs]);
                }
                _ => to.fill(0.0),
            }
        }
    }
}

fn expect_panels(
    (element, dims): (ElementType, &[i64]),
    [depth, columns]: [usize; 2],
) -> Result<(), CustomCallError> {
    let expected = PackedMatrix::len(columns, depth) as i64;
    if element == ElementType::F32 && dims == [expected] {
        return Ok(());
    }
    Err(invalid(format!(
        "the panels of a kernel with {depth} numbers for each of {columns} channels must be f32 [{expected}], got {element} {dims:?}"
    )))
}

fn matrix(kernel: &TensorDesc) -> Result<[usize; 2], CustomCallError> {
    let [height, width, inputs, outputs] = kernel.dims;
    let product = |dims: &[i64]| {
        let mut dims = dims.iter();
        let size = dims.try_fold(1usize, |size, &dim| {
            size.checked_mul(usize::try_from(dim).ok()?)
        });
        size.filter(|&size| size > 0 && size < 1 << 40)
    };
    let dims = (product(&[height, width, inputs]), product(&[outputs]));
    match (kernel.element, dims) {
        (DataType::F32, (Some(depth), Some(columns))) => Ok([depth, columns]),
        _ => Err(invalid(format!(
            "panels are of f32 kernels [height, width, inputs, outputs] that are not empty, got {kernel:?}"
        ))),
    }
}
