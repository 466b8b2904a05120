//! 3x3 convolutions with stride 1 and their two gradients by Winograd's minimal filtering F(4x4, 3x3), in f32 of arrays of f32 or bf16,
//! for processors with AVX2 or AVX-512.
//!
//! What: y is computed in tiles of 4x4 pixels, each of which depends on a tile of 6x6 pixels of x. Linear transforms map the tile of x
//! and the 3x3 kernel to 6x6 = 36 *points* each. The points of x and of the kernel are multiplied one by one and summed over the input
//! channels, and a last transform maps the 36 sums to the 4x4 pixels of y ([`transforms`] has the formulas).
//!
//! Why: a pair of channels takes 36 multiplications per tile, where the direct sum takes 16 * 9 = 144. Over all channels and many tiles
//! each point is a matrix product, `[tiles, inputs] x [inputs, outputs]`, and runs at the speed of [`point_gemm`]. The transforms cost
//! additions that grow with the channels, not with their product.
//!
//! How: the kernel is transformed once. Then blocks of tiles that fit into the cache are transformed, multiplied point by point, and
//! transformed back, with bias and activation applied on the way out ([`Blocking`]).
//!
//! Invariant: transforms work on one tile and 8 channels at a time, and each pixel of y belongs to exactly one tile. Threads have
//! different tiles or different output channels, and so never write to the same element.
//!
//! The input gradient is the same with the kernel flipped and its channels exchanged. The kernel gradient is the transpose of it all:
//! points of x and of dy, multiplied and summed over the tiles, then transformed to 3x3.
//!
//! Measured on one core with AVX2, 8 images, GFLOP/s of the equivalent direct sum, forward / input gradient / kernel gradient,
//! compared with a direct sum (oneDNN's convolution; for the kernel gradient, products of our own in registers):
//!
//! | 3x3 | this | direct |
//! |---|---|---|
//! | 56x56, 64 -> 64 | 274 / 275 / 263 | 85 / 98 / 90 |
//! | 28x28, 128 -> 128 | 308 / 308 / 282 | 93 / 101 / 91 |
//! | 14x14, 256 -> 256 | 222 / 225 / 205 | 96 / 98 / 90 |
//! | 7x7, 512 -> 512 | 145 / 159 / 133 | 89 / 94 / 89 |
//! | 128 images of 24x24, 32 -> 64 | 206 / 150 / 171 | - / - / 77 |
//!
//! A pixel of y whose whole neighbourhood in x is 0 is 0 (and the bias) to the bit, as a direct sum would be.
//!
//! A pixel that is not finite may make the whole tile not finite, where a direct sum would have affected its neighbours only; it is
//! never lost. The sums of a tile are in the order of the channels, so they depend on the tile alone. Kernel gradients are summed over the
//! tiles of each thread first, so they depend on the number of threads.

mod apart;
mod kernel_gradient;
mod point_gemm;
mod position;
mod tiles;
mod transforms;

use std::ops::Range;

use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::microkernel::Isa;
use crate::openmp::{OutputPointer, ThreadTeam};
use crate::scratchpad::Scratchpad;
use crate::simd;
use crate::simd_element::SimdElement;
pub(crate) use apart::{points_len, run_by_points, transform_kernel};
use point_gemm::{MR, NR, PointGemm};
use position::TilePosition;
use tiles::{LANES, POINTS, TILE_INPUT, TILE_OUTPUT, point_stride};

/// Approximate size of the points of a block of tiles, as large as second-level caches. With twice as many a step of the CNN took 6 % longer on an AMD
/// EPYC of family 26, of ResNet-50 2 %; with half of them both were as fast.
const BLOCK_BYTES: usize = 1 << 20;
/// Approximate size of the points of a large kernel that are kept at the same time.
const GROUP_BYTES: usize = 1 << 23;
/// Kernels of at most this many elements are transformed once, and each thread has its own tiles. For larger ones each thread has its
/// own output channels, and transforms the kernel for a group of them at a time.
const SMALL_KERNEL: usize = 1 << 18;

/// The correlation of x with a 3x3 kernel, in numbers of elements.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    images: usize,
    x: [usize; 2],
    y: [usize; 2],
    low: [usize; 2],
    inputs: usize,
    outputs: usize,
}

/// Whether this computes the convolution.
pub(crate) fn takes(key: &ConvolutionDesc) -> bool {
    let [height, width, inputs, outputs] = key.kernel.dims;
    let padding = [key.padding_low, key.padding_high];
    key.has_elements_of_ours()
        && (height, width) == (3, 3)
        && key.groups == 1
        && key.strides == [1, 1]
        && key.dilation == [1, 1]
        && padding.iter().flatten().all(|&padding| padding <= 2)
        && [inputs, outputs]
            .iter()
            .all(|&channels| channels >= 16 && channels % LANES as i64 == 0)
        && simd::has_fma()
}

/// Whether this is the fastest algorithm. The answer does not depend on the number of images, so that the results for one image do not
/// either.
pub(crate) fn suits(key: &ConvolutionDesc) -> bool {
    let [_, rows, columns, _] = match key.direction {
        Direction::InputGradient => key.x.dims,
        Direction::Forward | Direction::KernelGradient => key.y.dims,
    };
    let tiles = |side: i64| (side + TILE_OUTPUT as i64 - 1) / TILE_OUTPUT as i64;
    // Pixels of tiles that lie outside of y are wasted. 6 points per pixel are allowed; at 9 the direct sum would be as fast.
    takes(key) && tiles(rows) * tiles(columns) * POINTS as i64 <= 6 * rows * columns
}

/// Computes y, dx or dw of two operands in their order, a number for each output channel, and what follows.
///
/// # Panics
/// The convolution is not supported, or a length does not match its shape: bugs of the caller.
pub(crate) fn run<T: SimdElement, R: SimdElement>(
    key: &ConvolutionDesc,
    operands: [&[T]; 2],
    (bias, activation): (Option<&[f32]>, Epilogue<'_>),
    result: &mut [R],
    team: &ThreadTeam,
    scratch: &mut Scratchpad,
) {
    assert!(takes(key) && activation.fits(result.len()));
    let g = Geometry::new(key);
    assert!(bias.is_none_or(|bias| bias.len() == g.outputs));
    let [x, y] = [g.x, g.y].map(|[rows, columns]| g.images * rows * columns);
    let [x, y] = [x * g.inputs, y * g.outputs];
    let kernel = 9 * g.inputs * g.outputs;
    let lens = [operands[0].len(), operands[1].len(), result.len()];
    let (g, flipped, expected) = match key.direction {
        Direction::Forward => (g, false, [x, kernel, y]),
        Direction::InputGradient => (g.flipped(), true, [y, kernel, x]),
        Direction::KernelGradient => {
            assert_eq!(lens, [x, y, kernel]);
            return g.kernel_gradient(operands, result, team, scratch);
        }
    };
    assert_eq!(lens, expected);
    let [x, kernel] = operands;
    let kernel = GivenKernel::Taps { kernel, flipped };
    let epilogue = OutputEpilogue { bias, activation };
    g.correlate(x, kernel, epilogue, result, team, scratch);
}

/// What a convolution has of its kernel.
#[derive(Clone, Copy)]
enum GivenKernel<'a, T> {
    /// The kernel; a flipped one is `[3, 3, outputs, inputs]`, with its taps in the opposite order.
    Taps { kernel: &'a [T], flipped: bool },
    /// Its points, of all panels.
    Points(&'a [f32]),
}

/// The points of a kernel that a thread multiplies by.
#[derive(Clone, Copy)]
enum Points<'a> {
    /// They were transformed just now.
    InCaches(&'a [f32]),
    /// They were transformed ahead.
    InMemory(&'a [f32]),
}

/// Bias and activation that are applied when y is stored.
#[derive(Clone, Copy)]
struct OutputEpilogue<'a> {
    /// One number per output channel.
    bias: Option<&'a [f32]>,
    activation: Epilogue<'a>,
}

/// A thread's work: tiles, and blocks of output channels.
type Share = (Range<usize>, Range<usize>);

impl Geometry {
    fn new(key: &ConvolutionDesc) -> Self {
        let size = |value: i64| usize::try_from(value).expect("a checked key");
        let pair = |values: [i64; 2]| values.map(size);
        Self {
            images: size(key.x.dims[0]),
            x: [size(key.x.dims[1]), size(key.x.dims[2])],
            y: [size(key.y.dims[1]), size(key.y.dims[2])],
            low: pair(key.padding_low),
            inputs: size(key.x.dims[3]),
            outputs: size(key.y.dims[3]),
        }
    }

    /// The convolution whose y is the gradient by x of this one.
    fn flipped(self) -> Self {
        Self {
            x: self.y,
            y: self.x,
            low: self.low.map(|low| 2 - low),
            inputs: self.outputs,
            outputs: self.inputs,
            ..self
        }
    }

    /// Computes y from x and a kernel.
    fn correlate<T: SimdElement, R: SimdElement>(
        self,
        x: &[T],
        given: GivenKernel<'_, T>,
        epilogue: OutputEpilogue<'_>,
        y: &mut [R],
        team: &ThreadTeam,
        scratch: &mut Scratchpad,
    ) {
        let blocking = Blocking::new(self, team.threads());
        let (size, own) = (blocking.group * blocking.panel(), blocking.points_len());
        let y = OutputPointer(y.as_mut_ptr());
        let channels = [self.inputs, self.outputs];
        let (kernel, flipped) = match given {
            GivenKernel::Taps { kernel, flipped } => (kernel, flipped),
            GivenKernel::Points(points) => {
                let floats = scratch.floats(self.zeros() + own * team.threads());
                let (zeros, buffers) = self.split_zeros(floats);
                return blocking.by_shares(points, buffers, team, |points, share, buffer| {
                    // SAFETY: the shares have different tiles or channels of y; the caller has checked the lengths.
                    unsafe {
                        let points = Points::InMemory(points);
                        blocking.correlate(x, zeros, points, epilogue, share, buffer, y);
                    };
                });
            }
        };
        if blocking.by_channels {
            let floats = scratch.floats(self.zeros() + (size + own) * team.threads());
            let (zeros, buffers) = self.split_zeros(floats);
            return blocking.by_groups(buffers, size + own, team, |panels, buffer| {
                let (combined, buffer) = buffer.split_at_mut(size);
                let targets = combined.chunks_mut(blocking.panel());
                for (index, target) in panels.clone().zip(targets) {
                    // SAFETY: `run` found the instructions; the kernel and the panel have the lengths of the geometry.
                    unsafe { tiles::transform_kernel(kernel, flipped, channels, index, target) };
                }
                let share = (0..self.tiles(), panels);
                let points = Points::InCaches(combined);
                // SAFETY: the groups have different channels of y.
                unsafe { blocking.correlate(x, zeros, points, epilogue, share, buffer, y) };
            });
        }
        let floats = scratch.floats(self.zeros() + size + own * team.threads());
        let (zeros, floats) = self.split_zeros(floats);
        let (combined, buffers) = floats.split_at_mut(size);
        let targets = combined.chunks_mut(blocking.panel()).enumerate();
        team.for_each(targets, |(index, target)| {
            // SAFETY: as above.
            unsafe { tiles::transform_kernel(kernel, flipped, channels, index, target) };
        });
        let points = Points::InCaches(combined);
        team.for_each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let share = (self.share(index, team.threads()), 0..self.panels());
            // SAFETY: the shares have different tiles, whose pixels of y are different.
            unsafe { blocking.correlate(x, zeros, points, epilogue, share, buffer, y) };
        });
    }

    /// The tiles of thread `index` of `threads`.
    fn share(&self, index: usize, threads: usize) -> Range<usize> {
        let tiles = self.tiles();
        let share = tiles.div_ceil(threads);
        (index * share).min(tiles)..((index + 1) * share).min(tiles)
    }

    /// A pixel of padding, and the rest.
    fn split_zeros<'a>(&self, floats: &'a mut [f32]) -> (&'a [f32], &'a mut [f32]) {
        let (zeros, rest) = floats.split_at_mut(self.zeros());
        zeros.fill(0.0);
        (zeros, rest)
    }

    /// Tiles of all images.
    fn tiles(&self) -> usize {
        self.images * self.y[0].div_ceil(TILE_OUTPUT) * self.y[1].div_ceil(TILE_OUTPUT)
    }

    /// Blocks of output channels; the last may be cut off.
    fn panels(&self) -> usize {
        self.outputs.div_ceil(NR)
    }

    /// Numbers of a pixel that is padding.
    fn zeros(&self) -> usize {
        self.inputs.max(self.outputs).next_multiple_of(NR)
    }
}

/// How the loops over tiles and channels are blocked.
struct Blocking {
    g: Geometry,
    /// Whether each thread has its own output channels instead of its own tiles.
    by_channels: bool,
    /// Blocks of output channels that are computed together.
    group: usize,
    /// Tiles of a block.
    block: usize,
    /// Elements of the row of one tile in a point's matrix, of x and of a group of y.
    row: [usize; 2],
    /// Distance between the planes of two points, of x and of y. It must not be a power of two: all points of a tile would fall into the
    /// same set of the first-level cache.
    point_stride: [usize; 2],
}

impl Blocking {
    fn new(g: Geometry, threads: usize) -> Self {
        let by_channels = 9 * g.inputs * g.outputs > SMALL_KERNEL;
        let panel = POINTS * point_stride(g.inputs) * size_of::<f32>();
        let group = if by_channels {
            (GROUP_BYTES / panel).clamp(1, g.panels().div_ceil(threads))
        } else {
            g.panels()
        };
        let row = [g.inputs, group * NR];
        let tile = POINTS * (row[0] + row[1]) * size_of::<f32>();
        let block = (BLOCK_BYTES / tile).clamp(2 * MR, g.tiles().max(2 * MR));
        let block = block / MR * MR;
        Self {
            g,
            by_channels,
            group,
            block,
            row,
            point_stride: row.map(|row| block * row + NR),
        }
    }

    /// Elements of the points of a kernel for a block of output channels.
    fn panel(&self) -> usize {
        POINTS * point_stride(self.g.inputs)
    }

    /// Calls `work` on each thread with its own output channels, a group at a time, and `own` elements of the buffers.
    fn by_groups(
        &self,
        buffers: &mut [f32],
        own: usize,
        team: &ThreadTeam,
        work: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let panels = self.g.panels();
        let share = panels.div_ceil(team.threads());
        team.for_each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let end = ((index + 1) * share).min(panels);
            for first in (index * share..end).step_by(self.group) {
                work(first..(first + self.group).min(end), buffer);
            }
        });
    }

    /// Calls `work` on each thread with the points of its panels, its tiles and panels, and its buffer.
    fn by_shares(
        &self,
        points: &[f32],
        buffers: &mut [f32],
        team: &ThreadTeam,
        work: impl Fn(&[f32], Share, &mut [f32]) + Sync,
    ) {
        let own = self.points_len();
        if self.by_channels {
            return self.by_groups(buffers, own, team, |panels, buffer| {
                let points = &points[panels.start * self.panel()..panels.end * self.panel()];
                work(points, (0..self.g.tiles(), panels), buffer);
            });
        }
        team.for_each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let tiles = self.g.share(index, team.threads());
            work(points, (tiles, 0..self.g.panels()), buffer);
        });
    }

    /// Elements of the points of x and y of a block of tiles.
    fn points_len(&self) -> usize {
        POINTS * (self.point_stride[0] + self.point_stride[1])
    }

    /// Computes the share of y from the transformed kernel, `[panel][point][input][16]`.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the lengths fit the geometry; nobody else uses this share of `y` meanwhile.
    #[expect(clippy::too_many_arguments, reason = "what a thread works with")]
    unsafe fn correlate<T: SimdElement, R: SimdElement>(
        &self,
        x: &[T],
        zeros: &[f32],
        points: Points<'_>,
        epilogue: OutputEpilogue<'_>,
        (tiles, panels): Share,
        buffer: &mut [f32],
        y: OutputPointer<R>,
    ) {
        let (x_points, y_points) = buffer.split_at_mut(POINTS * self.point_stride[0]);
        let (point_stride, isa) = (point_stride(self.g.inputs), Isa::best_available());
        for first in tiles.clone().step_by(self.block) {
            let count = self.block.min(tiles.end - first);
            let (kernel, next) = match points {
                // For later tiles they are in the caches.
                Points::InMemory(points) if first == tiles.start => (points, Some(points.as_ptr())),
                Points::InMemory(points) | Points::InCaches(points) => (points, None),
            };
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.transform_input(x, zeros, first, count, x_points);
                for point in 0..POINTS {
                    let [x_row, y_row] = self.row;
                    isa.run(PointGemm {
                        x: x_points.as_ptr().add(point * self.point_stride[0]),
                        x_row,
                        kernel: kernel.as_ptr().add(point * point_stride),
                        kernel_panel: self.panel(),
                        inputs: self.g.inputs,
                        panels: panels.len(),
                        y: y_points.as_mut_ptr().add(point * self.point_stride[1]),
                        y_row,
                        count,
                        next: next.map(|next| next.wrapping_add((point + 1) * point_stride)),
                    });
                }
                for i in 0..count {
                    let mut place = TilePosition::new(&self.g, TILE_OUTPUT, first + i);
                    place.blank = place.blank_outputs(&self.g, x);
                    let from = y_points.as_ptr().add(i * self.row[1]);
                    let channels = self.channels(&panels);
                    tiles::store_output(
                        from,
                        self.point_stride[1],
                        &self.g,
                        channels,
                        &place,
                        epilogue,
                        y,
                    );
                }
            }
        }
    }

    fn channels(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * NR..(panels.end * NR).min(self.g.outputs)
    }

    /// # Safety
    /// As for [`Blocking::correlate`].
    unsafe fn transform_input<T: SimdElement>(
        &self,
        x: &[T],
        zeros: &[f32],
        first: usize,
        count: usize,
        to: &mut [f32],
    ) {
        for i in 0..count {
            let place = TilePosition::new(&self.g, TILE_OUTPUT, first + i);
            let pixels = place.pixels_of_x(&self.g, TILE_INPUT, x, zeros);
            // SAFETY: the caller's promise; each pixel has the channels of x.
            unsafe {
                let to = to.as_mut_ptr().add(i * self.row[0]);
                tiles::transform_input(&pixels, self.g.inputs, to, self.point_stride[0]);
            }
        }
    }
}
