//! Convolutions of 3x3 in steps of 1 and their two gradients, by Winograd's minimal filtering, in f32, for processors with
//! AVX2 or AVX-512.
//!
//! A tile of 4x4 pixels of y depends on 6x6 pixels of x. Of both x and the kernel 36 linear combinations are made, so that the
//! combinations of y are their products: 36 multiplications for each pair of channels where the plain sum has 144 ([`transforms`] has the
//! formulas). Over all channels and many tiles each point of the combinations is a product of matrices, `[tiles, inputs] x [inputs,
//! outputs]`, which [`point_gemm`] keep in registers in blocks of 6 x 16.
//!
//! The gradient by the input is the same with the kernel flipped around and its channels exchanged. The gradient by the kernel is the
//! transpose of it all: combinations of x and of dy, multiplied and summed over the tiles, then combined to 3x3.
//!
//! Measured on one core with AVX2, 8 images, GFLOP/s that a plain sum would need, forward / by the input / by the kernel, beside
//! oneDNN's direct convolution (by the kernel: [`crate::kernel_gradient`]):
//!
//! | 3x3 | this | direct |
//! |---|---|---|
//! | 56x56, 64 -> 64 | 274 / 275 / 263 | 85 / 98 / 90 |
//! | 28x28, 128 -> 128 | 308 / 308 / 282 | 93 / 101 / 91 |
//! | 14x14, 256 -> 256 | 222 / 225 / 205 | 96 / 98 / 90 |
//! | 7x7, 512 -> 512 | 145 / 159 / 133 | 89 / 94 / 89 |
//! | 128 images of 24x24, 32 -> 64 | 206 / 150 / 171 | - / - / 77 |
//!
//! A pixel that is not finite may make all of its tile's not finite, where a plain sum would have reached its neighbours alone; it never
//! gets lost. PointGemmGradient of a tile are in the order of its channels: they depend on nothing but the tile. Kernel gradients sum over the
//! tiles of each thread first, so they depend on the number of threads.

mod point_gemm;
mod tiles;
mod transforms;

use std::ops::Range;

use crate::convolution::{Direction, Key};
use crate::epilogue::Epilogue;
use crate::microkernel::Isa;
use crate::onednn::{Scratch, Type};
use crate::processor;
use crate::team::{Target, Team};
use point_gemm::{MR, NR, PointGemm, PointGemmGradient};
use tiles::{LANES, POINTS, TILE_INPUT, TILE_OUTPUT, point_stride};

/// Combinations of a block of tiles, about.
const BLOCK_BYTES: usize = 1 << 21;
/// Combinations of a large kernel that are kept at once, about.
const GROUP_BYTES: usize = 1 << 23;
/// Elements of a kernel up to which each thread has its own tiles; for larger ones each has its own output channels, a group of them
/// at a time.
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

/// Whether this is the fastest way to compute it here. It does not depend on the number of images, so that what is computed from one
/// does not either.
pub(crate) fn suits(key: &Key) -> bool {
    let f32s = [key.x, key.kernel, key.y]
        .iter()
        .all(|image| image.element == Type::F32);
    let [height, width, inputs, outputs] = key.kernel.dims;
    let padding = [key.padding_low, key.padding_high];
    let [_, rows, columns, _] = match key.direction {
        Direction::InputGradient => key.x.dims,
        Direction::Forward | Direction::KernelGradient => key.y.dims,
    };
    let tiles = |side: i64| (side + TILE_OUTPUT as i64 - 1) / TILE_OUTPUT as i64;
    f32s
        && (height, width) == (3, 3)
        && key.groups == 1
        // Tiles that are cut off compute for nothing: 9 would be as many as a plain sum has.
        && tiles(rows) * tiles(columns) * POINTS as i64 <= 6 * rows * columns
        && key.strides == [1, 1]
        && key.dilation == [1, 1]
        && padding.iter().flatten().all(|&padding| padding <= 2)
        && [inputs, outputs]
            .iter()
            .all(|&channels| channels >= 16 && channels % LANES as i64 == 0)
        && processor::has_fma()
}

/// Computes y, or dx, of the operands in their order.
///
/// # Panics
/// The key does not suit, or the lengths are not those of its shapes: bugs of the caller.
pub(crate) fn run(
    key: &Key,
    operands: &[&[f32]],
    result: &mut [f32],
    epilogue: Epilogue<'_>,
    team: &Team,
    scratch: &mut Scratch,
) {
    assert!(suits(key));
    let g = Geometry::new(key);
    g.run(key.direction, operands, result, epilogue, team, scratch);
}

/// What y's sums end in.
#[derive(Clone, Copy)]
struct OutputEpilogue<'a> {
    /// A number for each output channel, which is added.
    bias: Option<&'a [f32]>,
    activation: Epilogue<'a>,
}

/// Tiles, and blocks of output channels.
type Share = (Range<usize>, Range<usize>);

impl Geometry {
    fn new(key: &Key) -> Self {
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

    /// What gives the gradient by x of this as its y.
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

    fn run(
        self,
        direction: Direction,
        operands: &[&[f32]],
        result: &mut [f32],
        epilogue: Epilogue<'_>,
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let (x_len, y_len) = (
            self.images * self.x[0] * self.x[1] * self.inputs,
            self.images * self.y[0] * self.y[1] * self.outputs,
        );
        let kernel_len = 9 * self.inputs * self.outputs;
        let bias = operands.get(2).copied();
        let lens = (operands[0].len(), operands[1].len(), result.len());
        assert!(!matches!(epilogue, Epilogue::SelectPositive(by) if by.len() != result.len()));
        match direction {
            Direction::Forward => {
                assert_eq!(lens, (x_len, kernel_len, y_len));
                assert!(bias.is_none_or(|bias| bias.len() == self.outputs));
                self.correlate(
                    operands[0],
                    (operands[1], false),
                    OutputEpilogue {
                        bias,
                        activation: epilogue,
                    },
                    result,
                    team,
                    scratch,
                );
            }
            Direction::InputGradient => {
                assert_eq!(lens, (y_len, kernel_len, x_len));
                let flipped = self.flipped();
                flipped.correlate(
                    operands[0],
                    (operands[1], true),
                    OutputEpilogue {
                        bias: None,
                        activation: epilogue,
                    },
                    result,
                    team,
                    scratch,
                );
            }
            Direction::KernelGradient => {
                assert_eq!(lens, (x_len, y_len, kernel_len));
                self.kernel_gradient(operands[0], operands[1], result, team, scratch);
            }
        }
    }

    /// y of x and a kernel, which is `[3, 3, outputs, inputs]` and the wrong way around where it is flipped.
    fn correlate(
        self,
        x: &[f32],
        (kernel, flipped): (&[f32], bool),
        epilogue: OutputEpilogue<'_>,
        y: &mut [f32],
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let blocking = Blocking::new(self, team.threads());
        let (size, own) = (blocking.group * blocking.panel(), blocking.combinations());
        let y = Target(y.as_mut_ptr());
        let channels = [self.inputs, self.outputs];
        if blocking.divided {
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
                // SAFETY: the groups have different channels of y.
                unsafe { blocking.correlate(x, zeros, combined, epilogue, share, buffer, y) };
            });
        }
        let floats = scratch.floats(self.zeros() + size + own * team.threads());
        let (zeros, floats) = self.split_zeros(floats);
        let (combined, buffers) = floats.split_at_mut(size);
        let targets = combined.chunks_mut(blocking.panel()).enumerate();
        team.each(targets, |(index, target)| {
            // SAFETY: as above.
            unsafe { tiles::transform_kernel(kernel, flipped, channels, index, target) };
        });
        let combined = &*combined;
        team.each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let share = (self.share(index, team.threads()), 0..self.panels());
            // SAFETY: the shares have different tiles, whose pixels of y are different.
            unsafe { blocking.correlate(x, zeros, combined, epilogue, share, buffer, y) };
        });
    }

    fn kernel_gradient(
        self,
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let blocking = Blocking::new(self, team.threads());
        let (size, own) = (blocking.group * blocking.panel(), blocking.combinations());
        let dw = Target(dw.as_mut_ptr());
        let channels = [self.inputs, self.outputs];
        let floats = scratch.floats(self.zeros() + (size + own) * team.threads());
        let (zeros, buffers) = self.split_zeros(floats);
        if blocking.divided {
            return blocking.by_groups(buffers, size + own, team, |panels, buffer| {
                let (sums, buffer) = buffer.split_at_mut(size);
                let share = (0..self.tiles(), panels.clone());
                // SAFETY: the lengths were checked; `run` found the instructions.
                unsafe { blocking.accumulate(x, dy, zeros, share, buffer, sums) };
                for (index, sums) in panels.zip(sums.chunks(blocking.panel())) {
                    // SAFETY: each panel has output channels of its own.
                    unsafe { tiles::store_kernel_gradient(sums, channels, index, dw) };
                }
            });
        }
        let parts = buffers.chunks_mut(size + own).enumerate();
        team.each(parts, |(index, buffer)| {
            let (sums, buffer) = buffer.split_at_mut(size);
            let share = (self.share(index, team.threads()), 0..self.panels());
            // SAFETY: as above.
            unsafe { blocking.accumulate(x, dy, zeros, share, buffer, sums) };
        });
        let (sums, others) = buffers.split_at_mut(size + own);
        let others = &*others;
        let panels = sums[..size].chunks_mut(blocking.panel()).enumerate();
        team.each(panels, |(index, sums)| {
            for other in others.chunks(size + own) {
                let pairs = sums.iter_mut().zip(&other[index * blocking.panel()..]);
                pairs.for_each(|(sum, other)| *sum += other);
            }
            // SAFETY: as above.
            unsafe { tiles::store_kernel_gradient(sums, channels, index, dw) };
        });
    }

    /// The tiles of one of so many threads.
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

/// How tiles and channels are gone through.
struct Blocking {
    g: Geometry,
    /// Whether each thread has its own output channels, not its own tiles.
    divided: bool,
    /// Blocks of output channels that are computed together.
    group: usize,
    /// Tiles of a block.
    block: usize,
    /// Elements of a row of combinations, of x and of a group of y.
    row: [usize; 2],
    /// Distance between points of combinations, of x and of y: not a power of two, for the sake of the first cache.
    point_stride: [usize; 2],
}

impl Blocking {
    fn new(g: Geometry, threads: usize) -> Self {
        let divided = 9 * g.inputs * g.outputs > SMALL_KERNEL;
        let panel = POINTS * point_stride(g.inputs) * size_of::<f32>();
        let group = if divided {
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
            divided,
            group,
            block,
            row,
            point_stride: row.map(|row| block * row + NR),
        }
    }

    /// Elements of the combinations of a kernel for a block of output channels.
    fn panel(&self) -> usize {
        POINTS * point_stride(self.g.inputs)
    }

    /// Gives each thread output channels of its own, a group at a time, and so much of the buffers.
    fn by_groups(
        &self,
        buffers: &mut [f32],
        own: usize,
        team: &Team,
        work: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let panels = self.g.panels();
        let share = panels.div_ceil(team.threads());
        team.each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let end = ((index + 1) * share).min(panels);
            for first in (index * share..end).step_by(self.group) {
                work(first..(first + self.group).min(end), buffer);
            }
        });
    }

    /// Elements of the combinations of x and y of a block.
    fn combinations(&self) -> usize {
        POINTS * (self.point_stride[0] + self.point_stride[1])
    }

    /// Computes y from a kernel's combinations for the share, `[panel][point][input][16]`.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the lengths are those of the geometry; nobody else uses this share of `y` meanwhile.
    #[expect(clippy::too_many_arguments, reason = "what a thread works with")]
    unsafe fn correlate(
        &self,
        x: &[f32],
        zeros: &[f32],
        kernel: &[f32],
        epilogue: OutputEpilogue<'_>,
        (tiles, panels): Share,
        buffer: &mut [f32],
        y: Target,
    ) {
        let (of_x, of_y) = buffer.split_at_mut(POINTS * self.point_stride[0]);
        let (point_stride, isa) = (point_stride(self.g.inputs), Isa::best_available());
        for first in tiles.clone().step_by(self.block) {
            let count = self.block.min(tiles.end - first);
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.transform_input(x, zeros, first, count, of_x);
                for point in 0..POINTS {
                    for index in 0..panels.len() {
                        let kernel = kernel.as_ptr().add((index * POINTS + point) * point_stride);
                        let x = of_x.as_ptr().add(point * self.point_stride[0]);
                        let y = of_y
                            .as_mut_ptr()
                            .add(point * self.point_stride[1] + index * NR);
                        let [x_row, y_row] = self.row;
                        isa.run(PointGemm {
                            x,
                            x_row,
                            kernel,
                            inputs: self.g.inputs,
                            y,
                            y_row,
                            count,
                        });
                    }
                }
                for i in 0..count {
                    let place = TilePosition::new(&self.g, TILE_OUTPUT, first + i);
                    let from = of_y.as_ptr().add(i * self.row[1]);
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

    /// The products of the combinations of x and dy, summed: `[panel][point][input][16]`.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the lengths are those of the geometry.
    unsafe fn accumulate(
        &self,
        x: &[f32],
        dy: &[f32],
        zeros: &[f32],
        (tiles, panels): Share,
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let (of_x, of_y) = buffer.split_at_mut(POINTS * self.point_stride[0]);
        let (point_stride, isa) = (point_stride(self.g.inputs), Isa::best_available());
        sums.fill(0.0);
        for first in tiles.clone().step_by(self.block) {
            let count = self.block.min(tiles.end - first);
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.transform_input(x, zeros, first, count, of_x);
                for i in 0..count {
                    let place = TilePosition::new(&self.g, TILE_OUTPUT, first + i);
                    let pixels = place.pixels_of_y(&self.g, TILE_OUTPUT, dy, zeros);
                    let to = of_y.as_mut_ptr().add(i * self.row[1]);
                    tiles::transform_output_gradient(
                        &pixels,
                        self.channels(&panels),
                        to,
                        self.point_stride[1],
                    );
                }
                for point in 0..POINTS {
                    for index in 0..panels.len() {
                        let x = of_x.as_ptr().add(point * self.point_stride[0]);
                        let y = of_y.as_ptr().add(point * self.point_stride[1] + index * NR);
                        let sums = sums
                            .as_mut_ptr()
                            .add((index * POINTS + point) * point_stride);
                        let [x_row, y_row] = self.row;
                        isa.run(PointGemmGradient {
                            x,
                            x_row,
                            y,
                            y_row,
                            count,
                            sums,
                            inputs: self.g.inputs,
                        });
                    }
                }
            }
        }
    }

    fn channels(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * NR..(panels.end * NR).min(self.g.outputs)
    }

    /// # Safety
    /// As for [`Blocking::correlate`].
    unsafe fn transform_input(
        &self,
        x: &[f32],
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

/// Where a tile of y is.
struct TilePosition {
    image: usize,
    /// Its first row and column.
    at: [usize; 2],
}

/// Where the pixels of a tile are, or where padding is.
type Pixels = [*const f32; POINTS];

impl TilePosition {
    fn new(g: &Geometry, out: usize, tile: usize) -> Self {
        let [rows, columns] = g.y.map(|side| side.div_ceil(out));
        Self {
            image: tile / (rows * columns),
            at: [tile / columns % rows * out, tile % columns * out],
        }
    }

    fn pixels_of_x(&self, g: &Geometry, side: usize, x: &[f32], zeros: &[f32]) -> Pixels {
        pixels(side, zeros, |row, column| {
            let row = (self.at[0] + row).checked_sub(g.low[0])?;
            let column = (self.at[1] + column).checked_sub(g.low[1])?;
            let inside = row < g.x[0] && column < g.x[1];
            let pixel = (self.image * g.x[0] + row) * g.x[1] + column;
            inside.then(|| &x[pixel * g.inputs..][..g.inputs])
        })
    }

    fn pixels_of_y(&self, g: &Geometry, out: usize, y: &[f32], zeros: &[f32]) -> Pixels {
        pixels(out, zeros, |row, column| {
            let (row, column) = (self.at[0] + row, self.at[1] + column);
            let inside = row < g.y[0] && column < g.y[1];
            let pixel = (self.image * g.y[0] + row) * g.y[1] + column;
            inside.then(|| &y[pixel * g.outputs..][..g.outputs])
        })
    }
}

fn pixels<'a>(
    side: usize,
    zeros: &[f32],
    at: impl Fn(usize, usize) -> Option<&'a [f32]>,
) -> Pixels {
    let mut pixels = [zeros.as_ptr(); POINTS];
    for (i, pixel) in pixels.iter_mut().take(side * side).enumerate() {
        if let Some(found) = at(i / side, i % side) {
            *pixel = found.as_ptr();
        }
    }
    pixels
}
